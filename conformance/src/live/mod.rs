//! What trials on real threads and real GPUs stand on: `rig` has a GPU with kernels for payloads and
//! queue pairs on it, `provider` the NICs that the environment chooses, `limits` ends what hangs,
//! [`child`] has the processes that trials start, `verdict` says what a trial finds.

pub mod child;
pub(crate) mod limits;
pub(crate) mod provider;
pub(crate) mod rig;
pub(crate) mod verdict;

/// The variable that says how many hardware channels a context has.
pub const CHANNELS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
