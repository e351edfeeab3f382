//! Tests of internals: each written byte compared with libmlx5, the times of calls of the NIC, and
//! NICs that lack a feature.

mod bytes;
mod calls;
pub(super) mod odd_nic;
