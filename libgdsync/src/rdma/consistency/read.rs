//! Flushes by a READ. Behind its wait a stream writes the doorbell of a READ of a word of GPU
//! memory, on a queue pair that is connected to itself, and waits for the completion. Then the
//! NIC's earlier writes have arrived, because on PCIe a read request does not overtake writes. The
//! CPU takes no part.
//!
//! Each stream has a separate queue pair: posts of one queue are ordered, and streams are not. The
//! queue pairs belong to a separate device on the same NIC, whose watcher visits only them.

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

/// The maximum number of outstanding flushes of one stream: one block and one READ each.
const DEPTH: u32 = 256;
/// The number of queue pairs from which on an idle one is reused for another stream.
const STREAMS: usize = 16;
/// Bytes of one READ.
const WORD: u32 = 8;

/// The flusher of one NIC.
pub(in crate::rdma) struct ReadFlusher {
    gpu: Gpu,
    nic: Arc<dyn Nic>,
    watched: bool,
    fault: Arc<FlushFaults>,
    /// Made with the first stream that requests a flush.
    own: Mutex<Option<Own>>,
    loops: PerStream<LoopbackQp>,
}

/// The objects that all queue pairs share.
struct Own {
    pd: Pd,
    /// In GPU memory.
    from: Mr,
    /// In host memory.
    into: Mr,
}

/// The queue pair of one stream.
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

    /// The queue pair of a stream. A queue pair in error is replaced.
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
    /// Visits the queue pairs if no other watcher does.
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
    /// `QueueFull` if too many flushes of the stream are outstanding, `Failed` if the queue pair is
    /// in error.
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

    /// Aborts the prepared request if it was not posted.
    pub fn take_back(&self) {
        self.qp.core.lock().take_prepared_back();
    }
}
