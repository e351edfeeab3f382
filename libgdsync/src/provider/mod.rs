//! What executes work requests: a folder for each provider, behind the trait
//! [`Nic`](crate::nic::Nic).
//!
//! [`emulated`] is the virtual ConnectX, linked in: its queue pairs are rings that CPU, streams
//! and kernels ring directly. [`mlx5`] is a ConnectX by libibverbs and libmlx5, used the same
//! way; [`verbs`] is any NIC by libibverbs alone, with a CPU thread between its queues and our rings.
//! [`ibv`] is what the last two have in common.

#[cfg(feature = "emulated")]
pub(crate) mod emulated;
pub(crate) mod ibv;
pub(crate) mod mlx5;
pub(crate) mod verbs;
