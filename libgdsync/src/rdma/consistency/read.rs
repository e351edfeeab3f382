//! Flushes by a READ. Behind its wait a stream rings the NIC for a READ of a word of the GPU's
//! memory, by a queue pair that is connected to itself, and waits for its completion: what the
//! NIC wrote before has arrived then, since on PCIe a read request does not overtake writes. No CPU
//! takes part.
//!
//! Each stream has a queue pair of its own: posts of a queue follow each other, and streams do
//! not. They belong to a device of their own beside the one that they serve, over the same NIC,
//! with a watcher that knows no others.

use std::sync::Arc;

use gds_step::Mutex;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{self, Payload, Remote, SendWqe, WqeFlags};

use super::{FlushFaults, PerStream};
use crate::error::Result;
use crate::gpu::{Gpu, MemoryKind};
use crate::nic::{Access, Nic};
use crate::rdma::verbs::{
    Device, Flusher, Held, Mr, Pd, Qp, QpConfig, QpState, SendRequest, let_go,
};

/// Flushes of one stream that may be outstanding: as many as blocks, one READ each.
const DEPTH: u32 = 256;
/// Streams that have a queue pair before one that is idle goes to another stream.
const STREAMS: usize = 16;
/// Bytes that are read.
const WORD: u32 = 8;

/// The flusher of one NIC.
pub(in crate::rdma) struct ReadFlusher {
    gpu: Gpu,
    nic: Arc<dyn Nic>,
    watched: bool,
    fault: Arc<FlushFaults>,
    /// Made with the first stream that asks.
    own: Mutex<Option<Own>>,
    loops: PerStream<LoopbackQp>,
}

/// What the queue pairs are made of.
struct Own {
    pd: Pd,
    /// In the GPU.
    from: Mr,
    /// In the host.
    into: Mr,
}

/// One stream's queue pair.
pub(in crate::rdma) struct LoopbackQp {
    pub qp: Qp,
    from: Mr,
    into: Mr,
}

impl ReadFlusher {
    pub(super) fn new(
        gpu: &Gpu,
        nic: &Arc<dyn Nic>,
        watched: bool,
        fault: &Arc<FlushFaults>,
    ) -> ReadFlusher {
        ReadFlusher {
            gpu: gpu.clone(),
            nic: Arc::clone(nic),
            watched,
            fault: Arc::clone(fault),
            own: Mutex::default(),
            loops: PerStream::new(STREAMS),
        }
    }

    /// The queue pair of a stream. One in error is replaced.
    pub fn of(&self, stream: u64) -> Result<Arc<Mutex<LoopbackQp>>> {
        let one = self
            .loops
            .get(stream, LoopbackQp::is_idle, || self.make())?;
        let mut held = one.lock();
        if held.qp.core.lock().failed().is_some() {
            *held = self.make()?;
        }
        drop(held);
        Ok(one)
    }

    fn make(&self) -> Result<LoopbackQp> {
        let mut own = self.own.lock();
        let own = match &mut *own {
            Some(own) => own,
            none => none.insert(self.open()?),
        };
        let config = QpConfig::default()
            .send_blocks(DEPTH)
            .recv_entries(4)
            .recv_sges(1)
            .access(Access::REMOTE_READ);
        let mut qp = own.pd.create_qp(&config)?;
        let address = qp.address();
        qp.connect(&address)?;
        Ok(LoopbackQp {
            qp,
            from: own.from.clone(),
            into: own.into.clone(),
        })
    }

    fn open(&self) -> Result<Own> {
        let device = Device::beside(&self.gpu, &self.nic, self.watched, &self.fault);
        let pd = device.alloc_pd()?;
        let memory = |kind, access| {
            let region = self.gpu.alloc(kind, WORD as usize)?;
            pd.register(&region, access)
        };
        Ok(Own {
            from: memory(MemoryKind::Device, Access::REMOTE_READ)?,
            into: memory(MemoryKind::Pinned, Access::LOCAL_WRITE)?,
            pd,
        })
    }
}

impl Flusher for ReadFlusher {
    /// Where nobody else watches them.
    fn progress(&self) -> bool {
        let own = self.own.lock();
        own.as_ref().is_some_and(|own| own.pd.device().progress())
    }
}

impl LoopbackQp {
    fn is_idle(&self) -> bool {
        let mut state = self.qp.core.lock();
        self.qp.core.settle(&mut state);
        self.qp.core.is_idle(&state)
    }

    /// Prepares a READ.
    ///
    /// # Errors
    /// `QueueFull` if too many flushes of the stream are outstanding, `Failed`.
    pub fn prepare(&self) -> Result<SendRequest> {
        const OPERATION: &str = "flush by a READ";
        let (from, into) = (self.from.remote(), self.into.region().addr().0);
        let into = [wqe::Sge {
            addr: into,
            lkey: self.into.lkey(),
            len: WORD,
        }];
        let wqe = SendWqe {
            opcode: SendOpcode::RDMA_READ,
            flags: WqeFlags {
                signaled: true,
                ..WqeFlags::default()
            },
            remote: Some(Remote {
                addr: from.addr,
                rkey: from.rkeys[0].unwrap_or_default(),
            }),
            payload: Payload::Gather(&into),
            ..SendWqe::default()
        };
        let mut guard = self.qp.core.lock();
        let state = self.qp.usable(&mut guard, OPERATION)?;
        let QpState { send, ended, .. } = &mut *state;
        let prepared = send.prepare(
            &wqe,
            |hold| let_go(hold, ended),
            |hold| hold.extend([Held::from(&self.from), Held::from(&self.into)]),
        );
        let ticket = prepared.map_err(|refusal| self.qp.refused(OPERATION, refusal))?;
        Ok(SendRequest {
            queue: self.qp.id,
            ticket: ticket.0,
            serial: state.send.fifo.serial(ticket.0),
        })
    }

    /// Takes back what was prepared and not posted.
    pub fn take_back(&self) {
        self.qp.core.lock().take_prepared_back();
    }
}
