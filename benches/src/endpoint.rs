//! What every benchmark opens: a GPU, a NIC, queue pairs, registered memory.

use anyhow::{Context, Result};
use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{self, Access, Device, Lowering, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory};
use serde::{Deserialize, Serialize};

use crate::link::Link;

/// A GPU with a stream, and a NIC.
pub struct Endpoint {
    /// The application's stream.
    pub stream: Stream,
    /// Where registrations and queue pairs belong.
    pub pd: Pd,
    /// The NIC.
    pub device: Device,
    /// The GPU.
    pub gpu: Gpu,
}

/// What an endpoint is made of, for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The GPU's runtime and name.
    pub gpu: String,
    /// The provider and the NIC.
    pub provider: String,
    /// How doorbells and waits become work of a stream.
    pub lowering: String,
}

impl Endpoint {
    /// Opens them.
    pub fn open() -> Result<Endpoint> {
        let gpu = Gpu::soft().context("opening a GPU")?;
        let device = Device::emulated(&gpu).context("opening a NIC")?;
        Ok(Endpoint {
            stream: gpu.stream()?,
            pd: device.alloc_pd()?,
            device,
            gpu,
        })
    }

    /// Zeroed memory that both sides may write.
    pub fn memory(&self, kind: MemoryKind, len: u64) -> Result<Mr> {
        let region = self.gpu.alloc(kind, usize::try_from(len)?)?;
        Ok(self.pd.register(&region, Access::ALL)?)
    }

    /// A queue pair connected to the one that the peer makes at the same time.
    pub fn connect(&self, config: &QpConfig, link: &mut Link) -> Result<Qp> {
        let mut qp = self.pd.create_qp(config)?;
        let theirs = link.exchange(&qp.address().to_bytes())?;
        qp.connect(&QpAddress::from_bytes(&theirs)?)?;
        Ok(qp)
    }

    /// Two queue pairs of this NIC, connected to each other.
    pub fn pair(&self, config: &QpConfig) -> Result<(Qp, Qp)> {
        let mut a = self.pd.create_qp(config)?;
        let mut b = self.pd.create_qp(config)?;
        a.connect(&b.address())?;
        b.connect(&a.address())?;
        Ok((a, b))
    }

    /// What this is made of.
    pub fn names(&self, qp: &Qp) -> Names {
        Names {
            gpu: self.gpu.name(),
            provider: format!(
                "{}, {}",
                self.device.name(),
                match qp.endpoint() {
                    rdma::Endpoint::Proxy => "proxy",
                    _ => "ring",
                }
            ),
            lowering: match qp.lowering() {
                Lowering::Kernel => "kernel".to_owned(),
                _ => "memops".to_owned(),
            },
        }
    }
}

/// Exchanges what the peers need to write into each other's memory.
pub fn exchange_memory(mine: &Mr, link: &mut Link) -> Result<RemoteMemory> {
    let theirs = link.exchange(&mine.remote().to_bytes())?;
    Ok(RemoteMemory::from_bytes(&theirs)?)
}
