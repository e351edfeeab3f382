//! A [`Device`] on a NIC that is open: verbs objects, and beside them what makes the NIC's writes
//! visible to streams (`consistency`). Which NIC that is, [`crate::open`] chooses.

use std::sync::Arc;

use super::consistency::flusher;
use super::verbs::{Device, FlushFaults, Flushes, WatchList};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::nic::Nic;

impl Device {
    /// A device on this NIC, and beside it what streams of its GPU need to see what it writes.
    ///
    /// # Errors
    /// `Unsupported` if the environment demands what the NIC cannot do.
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
