//! Queue pairs: the owner's handle.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{self, AvSeg, SendWqe};

use super::core::RungBy;
use super::destination::check_qkey;
use super::locked::let_go;
use super::{
    Device, Doorbell, Life, Lowering, Pd, QpConfig, QpCore, QpState, ReceiveRequest, SendRequest,
    Sge, Work,
};
use crate::error::{Error, Kind, Result};
use crate::gpu::{MemoryKind, Region};
use crate::memop::trace::Tracer;
use crate::mutant::{self, Mutant};
use crate::nic::{Access, QpAddress, Transport};
use crate::ring::Ticket;

/// Maximum number of data segments of one request.
pub(in crate::rdma) const MAX_SGE: usize = 30;
/// With at most this many segments, a request is prepared without clearing room for the maximum.
const FEW_SGES: usize = 2;
/// The time for which a reset waits for the library's own calls of the NIC.
const OWN_CALLS: Duration = Duration::from_secs(1);

/// Bytes of the operand of an atomic operation.
const ATOMIC: u64 = 8;

/// A queue pair (QP): a reliable connection, or a queue pair for datagrams.
///
/// It has a send queue, a receive queue, a completion queue for each, a doorbell record and a
/// doorbell. [`Pd::create_qp`] creates it, [`Qp::connect`] or [`Qp::activate`] makes it ready to
/// send; receives may be posted before. Each request passes these steps:
///
/// 1. [`Qp::prepare`], [`Qp::prepare_receive`]: writes the entry. [`Qp::abort`] takes it back.
/// 2. [`Qp::post`], [`Qp::post_receive`] by the CPU, or [`Qp::post_on`] by a stream: hands it to
///    the NIC, in the order of the prepare calls.
/// 3. [`Qp::wait`], [`Qp::poll`] by the CPU, or [`Descriptor::wait`](crate::rdma::Descriptor::wait)
///    by a stream: waits for its completion. Its room in the queue is reused after that.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::rdma::{QpAddress, QpConfig, Work};
/// # use gdsync::{gpu::MemoryKind, rdma::{Access, Device}};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let limit = Duration::from_secs(10);
/// let mut a = pd.create_qp(&QpConfig::default())?;
/// let mut b = pd.create_qp(&QpConfig::default())?; // usually in another process
/// let (to_b, to_a) = (a.address().to_bytes(), b.address().to_bytes()); // exchange these
/// a.connect(&QpAddress::from_bytes(&to_a)?)?;
/// b.connect(&QpAddress::from_bytes(&to_b)?)?;
///
/// let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 64)?, Access::ALL)?;
/// let recv = b.prepare_receive(&[memory.sge(32, 32)])?;
/// b.post_receive(recv)?;
/// let send = a.prepare(&Work::send(&[memory.sge(0, 16)]).signaled())?;
/// a.post(send)?;
/// a.wait(send, limit)?;
/// b.wait(recv, limit)?;
/// assert_eq!(b.received(recv)?.len, 16);
/// # Ok(())
/// # }
/// ```
///
/// If a request fails, the queue pair is in error: the NIC flushes all later requests, and calls
/// return `Failed` with the status of the first one. [`Qp::reset`] makes it usable again.
///
/// A drop does not block: work in flight continues, and the watcher of the device destroys the
/// queue pair after it. [`Device::close`](crate::rdma::Device::close) waits for that.
///
/// Calls take `&mut self`: a queue has one owner, which may move between threads.
///
/// Two threads cannot prepare on one queue pair:
///
/// ```compile_fail,E0499
/// # use gdsync::rdma::{Qp, Work};
/// fn prepare(qp: &mut Qp) {
///     std::thread::scope(|s| {
///         s.spawn(|| qp.prepare(&Work::nop()));
///         s.spawn(|| qp.prepare(&Work::nop())); // the first thread has the queue pair
///     });
/// }
/// ```
pub struct Qp {
    pub(in crate::rdma) core: Arc<QpCore>,
    pub(in crate::rdma) id: u64,
    pub(in crate::rdma) lowering: Lowering,
    /// Whether a kernel may spin until a completion: it may not if the GPU runs the peer's process only
    /// in time slices.
    pub(in crate::rdma) spin: bool,
    /// The peer's rail to which it is connected.
    there: u8,
    pub(in crate::rdma) pd: Pd,
    /// The region that contains the send queue, and the offset in it.
    pub(in crate::rdma) ring: (Region, usize),
    /// The locations of work queues, completion queues and doorbell record.
    memory: [MemoryKind; 3],
    recv_sges: u32,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x} of {}", self.core.qpn(), self.device().name())
    }
}

impl Qp {
    pub(in crate::rdma) fn create(pd: &Pd, config: &QpConfig) -> Result<Qp> {
        let doorbell = config.doorbell.resolve()?;
        // Kernels of a soft GPU run on a CPU and have no advantage.
        let costs = pd.device().gpu().caps().kernels && pd.device().gpu().number() != 0;
        let lowering = match (doorbell, config.lowering.resolve()?) {
            (Doorbell::CpuThread, _) => Lowering::MemOps,
            (_, Lowering::Auto) if !costs => Lowering::MemOps,
            (_, lowering) => lowering,
        };
        if lowering == Lowering::Kernel && !pd.device().gpu().caps().kernels {
            let what = format!(
                "{:?} runs no kernels; choose the lowering `memops` (GDS_LOWER, \
                 QpConfig::lowering)",
                pd.device().gpu()
            );
            return Err(Error::new("create queue pair", Kind::Unsupported, what));
        }
        let kind = match doorbell {
            Doorbell::CpuThread => RungBy::CpuThread,
            _ => RungBy::Poster,
        };
        if let Transport::Ud { qkey } = config.transport {
            check_qkey(qkey, "create queue pair")?;
        }
        let built = super::build::build(pd, config, kind)?;
        let core = Arc::new(built.core);
        pd.device().watch().add(Arc::clone(&core));
        if kind == RungBy::CpuThread {
            pd.device().serve_by_cpu_thread(Arc::clone(&core));
        }
        Ok(Qp {
            core,
            id: crate::gpu::next_id(),
            lowering,
            spin: false,
            there: 0,
            pd: pd.clone(),
            ring: built.ring,
            memory: built.memory,
            recv_sges: config.recv_sges,
        })
    }

    /// The device of the queue pair.
    pub fn device(&self) -> &Device {
        self.pd.device()
    }

    /// The protection domain of the queue pair.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The lowering of its posts and waits on streams, after `GDS_LOWER` and the GPU are taken into
    /// account. `Auto`: chosen for each list by its cost.
    pub fn lowering(&self) -> Lowering {
        self.lowering
    }

    /// Whether a kernel may spin until a message of the peer arrives, for callers that launch a
    /// kernel for the message anyway. True if the lowering is `Kernel`, or `Auto` and the peer does
    /// not share this GPU from another process, which would run only in time slices beside a
    /// spinning kernel; with NVIDIA's Multi-Process Service (MPS) it runs beside it.
    pub fn may_spin(&self) -> bool {
        match self.lowering {
            Lowering::MemOps => false,
            Lowering::Kernel => true,
            Lowering::Auto => self.spin,
        }
    }

    /// Whether kernels of the peer run beside kernels of this side: the peer has another GPU, or
    /// shares this one in this process or by NVIDIA's Multi-Process Service (MPS). Otherwise kernels
    /// of two processes on one GPU run in turn. `false` before the queue pair is connected.
    pub fn runs_beside_peer(&self) -> bool {
        self.spin
    }

    /// The side that writes the doorbell for work posted on a stream.
    pub fn doorbell(&self) -> Doorbell {
        match self.core.rung_by {
            RungBy::Poster => Doorbell::Direct,
            RungBy::CpuThread => Doorbell::CpuThread,
        }
    }

    /// The transport: connection or datagrams.
    pub fn transport(&self) -> Transport {
        self.core.transport
    }

    /// The actual locations of work queues, completion queues and the doorbell record: as
    /// [`QpConfig`] asks, or pinned memory where the NIC or the CPU cannot access the memory that
    /// it asks for.
    pub fn memory(&self) -> [MemoryKind; 3] {
        self.memory
    }

    /// The record from which the peer connects or makes a [`Destination`](super::Destination). It
    /// changes with each [`Qp::reset`].
    pub fn address(&self) -> QpAddress {
        QpAddress {
            node: self.core.nic.node(),
            qpn: self.core.qpn(),
            psn: self.core.psn(&self.core.lock()),
            gpu: self.core.gpu.number(),
            process: crate::nic::process(),
            port: self.core.nic.port(),
            qkey: match self.core.transport {
                Transport::Rc => None,
                Transport::Ud { qkey } => Some(qkey),
            },
            rail: self.pd.rail(),
        }
    }

    /// Connects to a peer's queue pair: INIT, RTR and RTS of `ibv_modify_qp`. The peer must connect
    /// to this one, before or after. The call does not wait for the peer.
    ///
    /// # Errors
    /// `WrongState` if the queue pair is connected already or in error; `Invalid` for numbers that
    /// no peer has, and if either queue pair is for datagrams; `System` if the NIC has no room for
    /// another connection. After these errors the call may be repeated: posted receives are kept.
    /// `Failed` if the NIC refused the last step, to ready to send: then the queue pair is in
    /// error. A peer that is unreachable, or has another version, is detected when a request is
    /// sent to it: [`Status::TRANSPORT_RETRY`](crate::Status::TRANSPORT_RETRY).
    pub fn connect(&mut self, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        if self.core.transport.is_ud() || peer.qkey.is_some() {
            let what = match self.core.transport.is_ud() {
                true => format!("{self:?} is for datagrams; activate it instead of connecting it"),
                false => format!(
                    "{self:?} cannot be connected to QP {:#x}, which is for datagrams",
                    peer.qpn
                ),
            };
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        let psn = self.begin_to_go_up(OPERATION)?;
        let up = self.core.nic.connect_qp(self.core.qpn(), psn, peer);
        let up = self.core.went_up(OPERATION, up);
        up.map_err(|e| e.with_owner(&self))?;
        self.there = peer.rail;
        let gpu = &self.core.gpu;
        self.spin = peer.gpu != gpu.number()
            || peer.process == crate::nic::process()
            || gpu.runs_processes_beside();
        Ok(())
    }

    /// Activates a queue pair for datagrams, which then sends and receives: INIT, RTR and RTS of
    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// `WrongState` if the queue pair is active already or in error; `Invalid` for a connection;
    /// `System` if the NIC refuses, and the call may be repeated. `Failed` as for [`Qp::connect`].
    pub fn activate(&mut self) -> Result<()> {
        const OPERATION: &str = "activate";
        let Transport::Ud { qkey } = self.core.transport else {
            let what = format!("{self:?} is a connection; connect it to a peer");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        };
        let psn = self.begin_to_go_up(OPERATION)?;
        let up = self.core.nic.activate_qp(self.core.qpn(), psn, qkey);
        let up = self.core.went_up(OPERATION, up);
        up.map_err(|e| e.with_owner(&self))
    }

    /// Refuses a queue pair that is connected, active or in error. Returns the number of the first
    /// packet; after that the NIC is called without the lock.
    fn begin_to_go_up(&self, operation: &'static str) -> Result<u32> {
        let mut state = self.core.lock();
        if state.connected || state.failed().is_some() {
            let what = match state.failed() {
                Some(status) => format!("{self:?} is in error ({status}); reset it first"),
                None => format!("{self:?} is connected or active already; reset it first"),
            };
            return Err(Error::new(operation, Kind::WrongState, what));
        }
        state.under_way = true;
        Ok(self.core.psn(&state))
    }

    /// Resets a queue pair that is in error or has nothing in flight to the state after its
    /// creation: it must be connected or activated again.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use gdsync::rdma::Work;
    /// use gdsync::{Kind, Status};
    /// # use gdsync::rdma::{Device, QpConfig};
    ///
    /// # fn main() -> gdsync::Result<()> {
    /// # let gpu = gdsync::Gpu::soft()?;
    /// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
    /// # let config = QpConfig::default();
    /// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
    /// # a.connect(&b.address())?;
    /// # b.connect(&a.address())?;
    /// # let limit = Duration::from_secs(10);
    /// a.fail(Status::CANCELLED); // as if a request had failed
    /// let error = a.prepare(&Work::nop()).unwrap_err();
    /// assert_eq!(error.kind(), Kind::Failed(Status::CANCELLED));
    /// for qp in [&mut a, &mut b] {
    ///     qp.quiet(limit)?;
    ///     qp.reset()?;
    /// }
    /// a.connect(&b.address())?; // both addresses are new
    /// b.connect(&a.address())?;
    /// # assert!(a.prepare(&Work::nop()).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    /// Prepared requests are aborted, even if the call fails with `Busy`; all earlier
    /// requests are unknown afterwards.
    ///
    /// # Errors
    /// `Busy` while the NIC or a stream still has work of this queue pair, or may have: the
    /// completion of unsignaled requests is known only a moment later. Receives that a stream has
    /// yet to post count as work. [`Qp::quiet`] waits for all of that. One case is not detected: a
    /// stream that posted without a wait, and was followed by another poster, may still have to
    /// write its doorbell. Synchronise that stream first. `Failed` if the NIC refused after it
    /// had dropped the connection: the queue pair is then in error, and the caller may reset it
    /// again.
    pub fn reset(&mut self) -> Result<()> {
        let core = &self.core;
        let deadline = core.host.now() + OWN_CALLS;
        let mut idle = false;
        core.host.wait_until(Some(deadline), &mut || {
            let mut state = core.lock();
            core.settle(&mut state);
            state.take_prepared_back();
            core.drain(&mut state);
            idle = core.is_idle(&state);
            // No other call of the NIC starts until the reset is over.
            state.under_way |= idle;
            idle || !core.calls_nic(&state)
        });
        if !idle {
            let what = format!("{self:?} has work in flight; wait with `quiet` first");
            return Err(Error::new("reset queue pair", Kind::Busy, what));
        }
        super::build::reset(&self.core)?;
        self.id = crate::gpu::next_id();
        Ok(())
    }

    /// Checks local segments and converts them to keys and addresses.
    fn gather(
        &self,
        sges: &[Sge<'_>],
        out: &mut [wqe::Sge],
        need: Access,
        operation: &'static str,
    ) -> Result<()> {
        for (sge, to) in sges.iter().zip(out) {
            let mr = sge.mr;
            let end = sge.offset.checked_add(u64::from(sge.len));
            if !mr.is_of(&self.pd) {
                let what = format!(
                    "MR {:#x} belongs to another protection domain than {self:?}",
                    mr.lkey()
                );
                return Err(Error::new(operation, Kind::Foreign, what));
            }
            if end.is_none_or(|end| end > mr.region().len() as u64) {
                let what = format!(
                    "an SGE of {} bytes at offset {} exceeds {mr:?}",
                    sge.len, sge.offset
                );
                return Err(Error::new(operation, Kind::Invalid, what)
                    .with_limit(mr.region().len() as u64, "bytes"));
            }
            if !mr.access().permits(need) {
                let what = format!(
                    "{mr:?} does not have the access right LOCAL_WRITE, which the request needs"
                );
                return Err(Error::new(operation, Kind::NotRegistered, what));
            }
            *to = wqe::Sge {
                addr: mr.region().addr().0 + sge.offset,
                lkey: mr.lkey(),
                len: sge.len,
            };
        }
        Ok(())
    }

    /// Prepares a request: writes a work queue entry (WQE) for `work` into the send queue. The NIC
    /// does not start it yet. The queue pair keeps the registrations and the destination of `work`
    /// until the request is complete or aborted. The call does not block.
    ///
    /// # Errors
    /// `Invalid` for requests that cannot be encoded or exceed their memory; `Foreign` and
    /// `NotRegistered` for memory of another protection domain, for memory that must be writable
    /// and is not, for a peer's record without a key for its rail, or for a destination of another
    /// protection domain; `QueueFull`, with the limit, if the queue has no room now; `WrongState`
    /// and `Failed` if the queue pair is not connected (or active) or in error; `Unsupported` for an
    /// atomic on a NIC that executes none. On a datagram queue
    /// pair also `Invalid` for a request that is not a SEND, has no destination, or is longer than
    /// [`Destination::max_len`](super::Destination::max_len); on a connection for a request with a
    /// destination.
    pub fn prepare(&mut self, work: &Work<'_>) -> Result<SendRequest> {
        const OPERATION: &str = "prepare send";
        let remote = work.remote(self.there).map_err(|rail| {
            let what = format!(
                "the record of the peer's memory has no rkey for rail {rail}, to which {self:?} is \
                 connected"
            );
            Error::new(OPERATION, Kind::NotRegistered, what)
        })?;
        let mut few = [wqe::Sge::default(); FEW_SGES];
        let mut many;
        let sges = match work.sges.len() {
            n if n <= FEW_SGES => &mut few[..n],
            n if n <= MAX_SGE => {
                many = [wqe::Sge::default(); MAX_SGE];
                &mut many[..n]
            }
            n => {
                let what = format!("the work request has {n} SGEs; use fewer");
                return Err(
                    Error::new(OPERATION, Kind::Invalid, what).with_limit(MAX_SGE as u64, "SGEs")
                );
            }
        };
        let need = match work.opcode {
            o if o == SendOpcode::RDMA_READ || work.atomic.is_some() => Access::LOCAL_WRITE,
            _ => Access::LOCAL_READ,
        };
        self.gather(work.sges, sges, need, OPERATION)?;
        let total: u64 = work.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if work.atomic.is_some() && total != ATOMIC {
            let what = format!(
                "the SGEs of an atomic on {self:?} have {total} bytes; its old value needs a whole \
                 64-bit word"
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(ATOMIC, "bytes"));
        }
        if work.atomic.is_some() && !self.core.nic.atomics() {
            let what = format!("the NIC of {self:?} executes no atomics (atomic_cap is 0)");
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
        let av = self.datagram(work, total, OPERATION)?;
        // NICs write the whole old value of an atomic into each piece.
        let split = |sge: &Sge<'_>| !matches!(u64::from(sge.len), 0 | ATOMIC);
        if work.atomic.is_some() && work.sges.iter().any(split) {
            let what = format!(
                "the old value of an atomic on {self:?} is split over several SGEs; use one SGE"
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(ATOMIC, "bytes"));
        }
        let wqe = SendWqe {
            av,
            opcode: work.opcode,
            flags: work.flags,
            imm: work.imm,
            remote,
            atomic: work.atomic,
            payload: work.payload(sges),
        };
        let mut guard = self.core.lock();
        let state = self.usable(&mut guard, OPERATION)?;
        let QpState { send, ended, .. } = &mut *state;
        let prepared = send.prepare(
            &wqe,
            |hold| let_go(hold, ended),
            |hold| {
                hold.extend(work.sges.iter().map(|sge| sge.mr.into()));
                hold.extend(work.to.map(Into::into));
            },
        );
        let ticket = match prepared {
            Ok(ticket) => ticket,
            Err(refusal) => {
                // Unsignaled requests at the end release no room by themselves.
                self.core.drain(state);
                return Err(self.refused(OPERATION, refusal));
            }
        };
        Ok(SendRequest {
            queue: self.id,
            ticket: ticket.0,
            serial: state.send.fifo.serial(ticket.0),
        })
    }

    /// The address vector of a request that gathers `total` bytes; `None` on a connection, and for
    /// a NOP.
    fn datagram(
        &self,
        work: &Work<'_>,
        total: u64,
        operation: &'static str,
    ) -> Result<Option<AvSeg>> {
        let invalid = |what: String| Error::new(operation, Kind::Invalid, what);
        let sends = matches!(work.opcode, SendOpcode::SEND | SendOpcode::SEND_IMM);
        match (self.core.transport, work.to) {
            (Transport::Rc, None) => Ok(None),
            (Transport::Ud { .. }, None) if work.opcode == SendOpcode::NOP => Ok(None),
            (Transport::Rc, Some(to)) => Err(invalid(format!(
                "{self:?} is a connection, but the work request has a {to:?}"
            ))),
            (Transport::Ud { .. }, _) if !sends => Err(invalid(format!(
                "{self:?} sends datagrams, which cannot have the opcode {:?}; use a SEND",
                work.opcode
            ))),
            (Transport::Ud { .. }, None) => Err(invalid(format!(
                "the datagram on {self:?} has no destination; set it with `Work::to`"
            ))),
            (Transport::Ud { qkey }, Some(to)) => {
                if !to.is_of(&self.pd) {
                    let what =
                        format!("the {to:?} belongs to another protection domain than {self:?}");
                    return Err(Error::new(operation, Kind::Foreign, what));
                }
                let pieces = work.inline.unwrap_or_default().iter();
                let len = pieces.fold(total, |n, piece| n.saturating_add(piece.len() as u64));
                if len > to.max_len().into() {
                    let what = format!(
                        "the datagram of {len} bytes on {self:?} is longer than the MTU to {to:?}"
                    );
                    return Err(invalid(what).with_limit(to.max_len(), "bytes"));
                }
                let mut av = to.av();
                if mutant::on(Mutant::KeyOfSender) {
                    av.qkey = qkey.into();
                }
                Ok(Some(av))
            }
        }
    }

    /// Prepares a request, as [`Qp::prepare`] does, but blocks for at most `limit` until the queue
    /// has room.
    ///
    /// # Errors
    /// As [`Qp::prepare`]; `QueueFull` after `limit`.
    pub fn prepare_within(&mut self, work: &Work<'_>, limit: Duration) -> Result<SendRequest> {
        let host = Arc::clone(&self.core.host);
        let deadline = host.now() + limit;
        let mut result = self.prepare(work);
        host.wait_until(Some(deadline), &mut || {
            if matches!(&result, Err(e) if e.kind() == Kind::QueueFull) {
                result = self.prepare(work);
            }
            !matches!(&result, Err(e) if e.kind() == Kind::QueueFull)
        });
        result
    }

    /// Prepares a receive: writes an entry for these segments into the receive queue. A message can
    /// match it once it is posted. On a connection, a message that is longer than the segments
    /// fails both requests. For a datagram, the first [`GRH`](crate::rdma::GRH) bytes are the
    /// header.
    ///
    /// # Errors
    /// `Invalid` for more segments than [`QpConfig::recv_sges`](field@QpConfig::recv_sges), or for
    /// a segment outside its memory; `Foreign` for memory of another protection domain;
    /// `NotRegistered` for memory without [`Access::LOCAL_WRITE`]; `QueueFull`, with the limit, if
    /// the queue has no room now; `Failed` if the queue pair is in error.
    pub fn prepare_receive(&mut self, sges: &[Sge<'_>]) -> Result<ReceiveRequest> {
        const OPERATION: &str = "prepare receive";
        let limit = self.recv_sges as usize;
        let mut list = [wqe::Sge::default(); MAX_SGE];
        let Some(list) = list.get_mut(..sges.len()).filter(|l| l.len() <= limit) else {
            let what = format!(
                "the receive has {} SGEs; create the queue pair with more `QpConfig::recv_sges`",
                sges.len()
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(limit as u64, "SGEs"));
        };
        self.gather(sges, list, Access::LOCAL_WRITE, OPERATION)?;
        let mut guard = self.core.lock();
        // Receives may be posted before the queue pair is connected.
        if let Some(status) = guard.failed() {
            return Err(self.in_error(OPERATION, status));
        }
        let QpState { recv, ended, .. } = &mut *guard;
        let ticket = recv
            .prepare(
                list,
                |hold| let_go(hold, ended),
                |hold| hold.extend(sges.iter().map(|sge| sge.mr.into())),
            )
            .map_err(|e| self.refused(OPERATION, e))?;
        Ok(ReceiveRequest {
            queue: self.id,
            ticket: ticket.0,
            serial: guard.recv.fifo.serial(ticket.0),
        })
    }

    /// Aborts a prepared request. If it is the newest one, its entry is removed; an older one
    /// becomes a NOP of equal size.
    ///
    /// # Errors
    /// `NoSuchRequest` if it was posted or aborted before; `Foreign` if it is a request of another
    /// queue pair, or from before a reset.
    pub fn abort(&mut self, request: SendRequest) -> Result<()> {
        self.own(request.queue, "abort send")?;
        let mut state = self.core.lock();
        self.known(&state, request.into(), "abort send")?;
        let QpState { send, ended, .. } = &mut *state;
        send.abort(Ticket(request.ticket), |hold| let_go(hold, ended))
            .map_err(|e| self.refused("abort send", e))
    }

    /// Aborts the newest prepared receive.
    ///
    /// # Errors
    /// `NoSuchRequest`, `Foreign` as for [`Qp::abort`]; `Unsupported` if a receive was prepared
    /// after it.
    pub fn abort_receive(&mut self, request: ReceiveRequest) -> Result<()> {
        self.own(request.queue, "abort receive")?;
        let mut state = self.core.lock();
        self.known(&state, request.into(), "abort receive")?;
        let QpState { recv, ended, .. } = &mut *state;
        recv.abort(Ticket(request.ticket), |hold| let_go(hold, ended))
            .map_err(|e| self.refused("abort receive", e))
    }

    pub(in crate::rdma) fn tracer(&self) -> &Tracer {
        self.core.gpu.tracer()
    }
}

impl Drop for Qp {
    /// Never blocks: work in flight continues, and the watcher destroys the queue pair once that
    /// work is done.
    fn drop(&mut self) {
        let addrs = &self.core.addrs;
        for at in [addrs.uar, addrs.record.gpu] {
            self.tracer().forget(at);
        }
        self.core.advance(Life::Closing);
    }
}
