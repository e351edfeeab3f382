//! Who executes work requests.
//!
//! [`emulated`] is the virtual ConnectX, linked in: its queue pairs are rings that CPU, streams
//! and kernels ring directly; [`nodes`] addresses its datagrams. [`rdma_core`] is a ConnectX by libibverbs and libmlx5, used the same
//! way; [`verbs`] is any NIC by libibverbs alone, with a CPU thread between its queues and our rings.
//! All stand behind the trait [`nic::Nic`]; [`events`] keeps what NICs report outside of completion queues. [`proxy`] is a CPU thread that rings on behalf of
//! streams and publishes completions as words, over any of them.

pub(crate) mod emulated;
pub(crate) mod events;
pub(crate) mod nic;
mod nodes;
pub(crate) mod proxy;
pub(crate) mod rdma_core;
mod span;
pub(crate) mod verbs;
