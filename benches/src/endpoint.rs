//! The resources that every benchmark opens: a GPU, a NIC, QPs and registered memory.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{
    self, Access, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory, SendRequest, Work,
};
use serde::{Deserialize, Serialize};

use crate::gate::{Bell, Gate, check_qp};
use crate::gpu::{self, Driver};
use crate::link::Link;
use crate::options::{Provider, Setup};
use crate::report::Target;

/// A GPU with a stream, and a NIC.
pub struct Endpoint {
    /// The application's stream.
    pub stream: Stream,
    /// The protection domain of registrations and QPs, which has the NIC; opened on first use.
    pd: OnceLock<Pd>,
    provider: Provider,
    /// The GPU.
    pub gpu: Gpu,
}

/// The names of an endpoint's parts and settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Names {
    /// The GPU's name.
    pub gpu: String,
    /// Its runtime: `soft` or `cuda`.
    pub runtime: String,
    /// The version of the GPU's driver, if it has one.
    pub driver: Option<Driver>,
    /// The memory of payloads: `device` or `pinned`.
    pub memory: String,
    /// The provider and the NIC.
    pub provider: String,
    /// How a stream executes doorbell writes and waits.
    pub lowering: String,
}

impl Names {
    /// A target that applies to a soft GPU only.
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

/// The parts of contexts of mp over an endpoint.
pub struct Made {
    /// The names.
    pub names: Names,
    /// A QP with the settings of the contexts' QPs. It is kept, because traces name its doorbell.
    _qp: Qp,
}

impl Endpoint {
    /// Opens those of rank `number`.
    pub fn open(setup: &Setup, number: u32) -> Result<Endpoint> {
        let gpu = gpu::open(&setup.gpus, number)?;
        Ok(Endpoint {
            stream: gpu.stream()?,
            pd: OnceLock::new(),
            provider: setup.provider,
            gpu,
        })
    }

    /// The protection domain of the NIC.
    pub fn pd(&self) -> Result<&Pd> {
        if let Some(pd) = self.pd.get() {
            return Ok(pd);
        }
        let device = self.provider.open(&self.gpu).context("opening a NIC")?;
        let pd = device.alloc_pd()?;
        Ok(self.pd.get_or_init(|| pd))
    }

    /// Zeroed memory that both sides may write.
    pub fn memory(&self, kind: MemoryKind, len: u64) -> Result<Mr> {
        let region = self.gpu.alloc(kind, usize::try_from(len)?)?;
        Ok(self.pd()?.register(&region, Access::ALL)?)
    }

    /// A QP connected to the QP that the peer makes at the same time.
    pub fn connect(&self, config: &QpConfig, link: &mut Link) -> Result<Qp> {
        let mut qp = self.pd()?.create_qp(config)?;
        let theirs = link.exchange(&qp.address().to_bytes())?;
        qp.connect(&QpAddress::from_bytes(&theirs)?)?;
        Ok(qp)
    }

    /// Two queue pairs of this NIC, connected to each other.
    pub fn pair(&self, config: &QpConfig) -> Result<(Qp, Qp)> {
        let mut a = self.pd()?.create_qp(config)?;
        let mut b = self.pd()?.create_qp(config)?;
        a.connect(&b.address())?;
        b.connect(&a.address())?;
        Ok((a, b))
    }

    /// The names of this endpoint's GPU and of the NIC of a context, with QPs as the options request.
    pub fn made_of(
        &self,
        context: &mp::Context,
        setup: &Setup,
        memory: MemoryKind,
    ) -> Result<Made> {
        let pd = context.device().alloc_pd()?;
        let qp = pd.create_qp(&setup.queues(4))?;
        Ok(Made {
            names: self.names(&qp, memory),
            _qp: qp,
        })
    }

    /// The names of this endpoint's GPU and of the NIC of a QP.
    pub fn names(&self, qp: &Qp, memory: MemoryKind) -> Names {
        Names {
            gpu: self.gpu.name(),
            runtime: self.gpu.runtime_name().to_owned(),
            driver: Driver::of(&self.gpu),
            memory: format!("{memory:?}").to_lowercase(),
            provider: format!(
                "{}, {}",
                qp.device().name(),
                match qp.doorbell() {
                    rdma::Doorbell::CpuThread => "cpu-thread",
                    _ => "direct",
                }
            ),
            lowering: format!("{:?}", qp.lowering()).to_lowercase(),
        }
    }
}

/// Exchanges what each peer needs to write into the other's memory: address records and rkeys.
pub fn exchange_memory(mine: &Mr, link: &mut Link) -> Result<RemoteMemory> {
    let theirs = link.exchange(&mine.remote().to_bytes())?;
    Ok(RemoteMemory::from_bytes(&theirs)?)
}

/// Both ends of a connection in one process: two QPs of one NIC, source and target memory, and a
/// gate and a bell for the stream between them.
pub struct Rig {
    /// The endpoint with the stream.
    pub endpoint: Endpoint,
    /// The QP that writes.
    pub qp: Qp,
    /// The QP at the other end.
    pub peer: Qp,
    /// The source of the writes.
    pub from: Mr,
    /// The target of the writes.
    pub to: Mr,
    /// The gate, which blocks the stream.
    pub gate: Gate,
    /// The bell, which the stream rings.
    pub bell: Bell,
    /// The end of the time limit.
    pub deadline: Instant,
}

impl Rig {
    /// A pair with `queue` entries in each queue, and `bytes` bytes at each end.
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

    /// The names of its parts.
    pub fn names(&self) -> Names {
        self.endpoint.names(&self.qp, self.from.region().kind())
    }

    /// The remaining time of the time limit.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Prepares a write of the first `len` bytes. The measurement includes everything beside the
    /// library's call, so this does little and is compiled into the caller.
    #[inline]
    pub fn prepare(&mut self, len: u32, signaled: bool) -> Result<SendRequest> {
        let sges = [self.from.sge(0, len)];
        let work = Work::write(&sges, self.to.remote().span(0, u64::from(len))?);
        let work = &if signaled { work.signaled() } else { work };
        Ok(self.qp.prepare(work)?)
    }

    /// Enqueues a ring of the bell, and polls until it has rung; returns the time of that moment.
    pub fn ring_and_poll(&mut self) -> Result<Instant> {
        self.bell.enqueue(&self.endpoint.stream)?;
        self.poll_bell()
    }

    /// Polls until the bell has rung as often as was enqueued.
    pub fn poll_bell(&mut self) -> Result<Instant> {
        let rung_at = self.bell.poll(self.deadline)?;
        check_qp(self.qp.error())?;
        check_qp(self.peer.error())?;
        Ok(rung_at)
    }

    /// Opens the gate, and waits until the stream and the QP are done.
    pub fn drain(&mut self) -> Result<()> {
        self.gate.open()?;
        let done = self.endpoint.stream.synchronize(self.left())?;
        ensure!(done, "the time limit expired");
        Ok(self.qp.quiet(self.left())?)
    }
}
