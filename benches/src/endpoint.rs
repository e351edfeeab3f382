//! What every benchmark opens: a GPU, a NIC, queue pairs, registered memory.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{
    self, Access, Device, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory, SendRequest, Work,
};
use serde::{Deserialize, Serialize};

use crate::gate::{Bell, Gate, well};
use crate::gpu::{self, Driver};
use crate::link::Link;
use crate::options::Setup;
use crate::report::Target;

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

impl Names {
    /// A target that is one on a soft GPU alone.
    pub fn on_soft(&self, target: Target) -> Vec<Target> {
        match self.runtime.as_str() {
            "soft" => vec![target],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names {
            gpu,
            provider,
            lowering,
            ..
        } = self;
        write!(f, "{gpu}; {provider}; lowering {lowering}")
    }
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
                match qp.doorbell() {
                    rdma::Doorbell::CpuThread => "cpu-thread",
                    _ => "direct",
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

/// Both ends of a connection in one process: two queue pairs of one NIC, memory to write from and
/// to, and a gate and a bell for the stream between.
pub struct Rig {
    /// Whose stream it is.
    pub endpoint: Endpoint,
    /// The end that writes.
    pub qp: Qp,
    /// The other one.
    pub peer: Qp,
    /// What is written.
    pub from: Mr,
    /// And where to.
    pub to: Mr,
    /// Holds the stream.
    pub gate: Gate,
    /// Is rung by the stream.
    pub bell: Bell,
    /// When everything is given up.
    pub deadline: Instant,
}

impl Rig {
    /// One with `queue` entries of each queue, and `bytes` bytes at each end.
    pub fn new(setup: &Setup, queue: u32, bytes: u64, limit: Duration) -> Result<Rig> {
        let endpoint = Endpoint::open(setup, 0)?;
        let (qp, peer) = endpoint.pair(&setup.queues(queue))?;
        let kind = setup.memory(&endpoint.gpu);
        Ok(Rig {
            from: endpoint.memory(kind, bytes)?,
            to: endpoint.memory(kind, bytes)?,
            gate: Gate::new(&endpoint.gpu)?,
            bell: Bell::new(&endpoint.gpu)?,
            deadline: Instant::now() + limit,
            endpoint,
            qp,
            peer,
        })
    }

    /// What it is made of.
    pub fn names(&self) -> Names {
        self.endpoint.names(&self.qp, self.from.region().kind())
    }

    /// What is left of the time limit.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Prepares the write of the first `len` bytes. What it costs beside the library's call is
    /// measured too, so it is little, and compiled into the caller.
    #[inline]
    pub fn prepare(&mut self, len: u32, signaled: bool) -> Result<SendRequest> {
        let sges = [self.from.sge(0, len)];
        let work = Work::write(&sges, self.to.remote().span(0, u64::from(len))?);
        let work = &if signaled { work.signaled() } else { work };
        Ok(self.qp.prepare(work)?)
    }

    /// Has the stream ring the bell, and spins until it is heard; returns when that was.
    pub fn hear(&mut self) -> Result<Instant> {
        self.bell.enqueue(&self.endpoint.stream)?;
        self.heard()
    }

    /// Spins until the bell has rung as often as was enqueued.
    pub fn heard(&mut self) -> Result<Instant> {
        let heard = self.bell.hear(self.deadline)?;
        well(self.qp.error())?;
        well(self.peer.error())?;
        Ok(heard)
    }

    /// Opens the gate, and waits until the stream and the queue pair are done.
    pub fn drain(&mut self) -> Result<()> {
        self.gate.open()?;
        let done = self.endpoint.stream.synchronize(self.left())?;
        ensure!(done, "the time limit passed");
        Ok(self.qp.quiet(self.left())?)
    }
}
