//! vmlx5
