//! Opening the virtual NIC, in a build with the feature `emulated`.

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::Gpu;
use crate::nic::Nic;
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};
use crate::rdma::Device;

pub(super) fn open(gpu: &Gpu) -> Result<Arc<dyn Nic>> {
    Ok(Arc::new(EmulatedNic::open(
        gpu,
        EmulatedOptions::default(),
    )?))
}

/// With the feature `emulated`.
impl Device {
    /// Opens a virtual ConnectX that is linked into this process. It reaches other virtual NICs of
    /// this process and of other processes of the host, and no other NIC. Every call opens a new
    /// one.
    ///
    /// # Errors
    /// `System` if the operating system refuses a socket or memory; `Invalid` for an invalid
    /// `GDS_FAULTS`; `Unsupported` if `GDS_CONSISTENCY` demands a policy that the NIC lacks.
    pub fn emulated(gpu: &Gpu) -> Result<Device> {
        Device::emulated_with(gpu, EmulatedOptions::default())
    }

    /// Opens a virtual ConnectX, as [`Device::emulated`] does, with options.
    ///
    /// # Errors
    /// As [`Device::emulated`].
    pub fn emulated_with(gpu: &Gpu, options: EmulatedOptions) -> Result<Device> {
        Device::open_emulated(gpu, options, true)
    }

    /// Opens a virtual ConnectX, as [`Device::emulated_with`] does, without the background thread
    /// that serves queue pairs: the caller calls [`Device::progress`] about once a millisecond
    /// instead. Until that call, no failure is reported and no stream that waits for a failed
    /// request is released.
    ///
    /// # Errors
    /// As [`Device::emulated`].
    pub fn emulated_unwatched(gpu: &Gpu, options: EmulatedOptions) -> Result<Device> {
        Device::open_emulated(gpu, options, false)
    }

    fn open_emulated(gpu: &Gpu, options: EmulatedOptions, watched: bool) -> Result<Device> {
        let nic = EmulatedNic::open(gpu, options)?;
        Device::on(gpu, Arc::new(nic), watched, Vec::new())
    }
}
