//! Queue pairs whose packets are carried by TCP: for hosts without an RDMA NIC.

use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::nic::{Nic, TcpOptions};
use std::sync::Arc;

pub(crate) fn open(_gpu: &Gpu, _options: &TcpOptions) -> Result<Arc<dyn Nic>> {
    Err(Error::new(
        "open TCP device",
        Kind::Unsupported,
        "not built yet",
    ))
}
