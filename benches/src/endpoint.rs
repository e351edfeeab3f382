//! What every benchmark opens: a GPU, a NIC, queue pairs, registered memory.

use anyhow::{Context, Result};
use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{self, Access, Device, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory};
use serde::{Deserialize, Serialize};

use crate::cli::Setup;
use crate::gpu::{self, Driver};
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

/// What an endpoint is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The GPU's name.
    pub gpu: String,
    /// Its runtime: `soft` or `cuda`.
    pub runtime: String,
    /// The driver below it, if it has one.
    pub driver: Option<Driver>,
    /// Where payloads lie: `device` or `pinned`.
    pub memory: String,
    /// The provider and the NIC.
    pub provider: String,
    /// How doorbells and waits become work of a stream.
    pub lowering: String,
}

/// What contexts of mp over an endpoint are made of.
pub struct Made {
    /// The names.
    pub names: Names,
    /// Such a queue pair as theirs are. It stays: in traces its place has its name.
    _qp: Qp,
}

impl Endpoint {
    /// Opens those of rank `number`.
    pub fn open(setup: &Setup, number: u32) -> Result<Endpoint> {
        let gpu = gpu::open(&setup.gpus, number)?;
        let device = setup.device(&gpu).context("opening a NIC")?;
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

    /// What this and queue pairs as asked for are made of.
    pub fn made_of(&self, setup: &Setup, memory: MemoryKind) -> Result<Made> {
        let qp = self.pd.create_qp(&setup.queues(4))?;
        Ok(Made {
            names: self.names(&qp, memory),
            _qp: qp,
        })
    }

    /// What this is made of.
    pub fn names(&self, qp: &Qp, memory: MemoryKind) -> Names {
        Names {
            gpu: self.gpu.name(),
            runtime: self.gpu.runtime_name().to_owned(),
            driver: Driver::of(&self.gpu),
            memory: format!("{memory:?}").to_lowercase(),
            provider: format!(
                "{}, {}",
                self.device.name(),
                match qp.endpoint() {
                    rdma::Endpoint::Proxy => "proxy",
                    _ => "ring",
                }
            ),
            lowering: format!("{:?}", qp.lowering()).to_lowercase(),
        }
    }
}

/// Exchanges what the peers need to write into each other's memory.
pub fn exchange_memory(mine: &Mr, link: &mut Link) -> Result<RemoteMemory> {
    let theirs = link.exchange(&mine.remote().to_bytes())?;
    Ok(RemoteMemory::from_bytes(&theirs)?)
}
