//! Providers, which execute work requests: one folder each, behind the trait
//! [`Nic`](crate::nic::Nic).
//!
//! [`emulated`] is the virtual ConnectX, linked into the process: CPU, streams and kernels write
//! the rings and doorbells of its queue pairs directly. [`mlx5`] is a ConnectX by libibverbs and
//! libmlx5, used the same way; [`tcp`] needs no NIC: TCP carries its packets; [`verbs`] is any NIC by libibverbs alone, with a CPU thread between
//! its queues and the rings of the library. [`ibv`] is the common part of the last two. [`relay`] is
//! a queue pair whose rings are read by the CPU.

#[cfg(feature = "emulated")]
pub(crate) mod emulated;
pub(crate) mod ibv;
pub(crate) mod mlx5;
mod relay;
pub(crate) mod tcp;
pub(crate) mod verbs;
