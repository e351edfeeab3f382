//! A [`Device`] on an open NIC: verbs objects, and the flusher that makes the NIC's writes visible
//! to streams (`consistency`). [`crate::open`] chooses the NIC.

use std::sync::Arc;

use super::consistency::flusher;
use super::verbs::{Device, FlushFaults, Flushes, WatchList};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::nic::Nic;

impl Device {
    /// Makes a device on this NIC, with the flusher that streams of its GPU need to see its writes.
    ///
    /// # Errors
    /// `Unsupported` if the environment demands a policy that the NIC does not support.
    pub(crate) fn on(
        gpu: &Gpu,
        nic: Arc<dyn Nic>,
        watched: bool,
        passed_over: Vec<String>,
    ) -> Result<Device> {
        let watch = WatchList::default();
        let flushes = Flushes {
            fault: Arc::new(FlushFaults::new(&watch)),
            raises: false,
        };
        let flusher = flusher(gpu, &nic, watched, &flushes.fault)?;
        let name = watched.then(|| format!("{}.watcher", nic.name()));
        Ok(Device::assemble(
            gpu,
            nic,
            passed_over,
            name,
            watch,
            flusher,
            flushes,
        ))
    }
}
