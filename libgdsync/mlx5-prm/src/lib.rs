//! mlx5-prm
