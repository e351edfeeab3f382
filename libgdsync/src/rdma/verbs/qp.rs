//! Queue pairs as their owner holds them.

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

/// Most data segments of one request.
pub(in crate::rdma) const MAX_SGE: usize = 30;
/// Up to so many a request is prepared without clearing room for the most.
const FEW_SGES: usize = 2;
/// How long a reset waits for calls of the library's own to the NIC.
const OWN_CALLS: Duration = Duration::from_secs(1);

/// Bytes that an atomic operation works on.
const ATOMIC: u64 = 8;

/// A queue pair: a reliable connection, or one of datagrams.
///
/// It has a send and a receive queue and, of its own, a completion queue for each and a UAR
/// page. Calls take `&mut self`: a queue has one owner, who may be moved between threads.
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
    /// Whether a kernel may spin until a completion: the peer does not share this GPU from
    /// another process, which the GPU would run only in time slices beside it.
    pub(in crate::rdma) spin: bool,
    /// The peer's rail that it is connected to.
    there: u8,
    pub(in crate::rdma) pd: Pd,
    /// The region that the send queue is in, and where.
    pub(in crate::rdma) ring: (Region, usize),
    /// Where work queues, completion queues and record lie.
    memory: [MemoryKind; 3],
    recv_sges: u32,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#x} of {:?}", self.core.qpn(), self.device())
    }
}

impl Qp {
    pub(in crate::rdma) fn create(pd: &Pd, config: &QpConfig) -> Result<Qp> {
        let doorbell = config.doorbell.resolve()?;
        // Kernels of a soft GPU run on a CPU: they win nothing.
        let costs = pd.device().gpu().caps().kernels && pd.device().gpu().identity() != 0;
        let lowering = match (doorbell, config.lowering.resolve()?) {
            (Doorbell::CpuThread, _) => Lowering::MemOps,
            (_, Lowering::Auto) if !costs => Lowering::MemOps,
            (_, lowering) => lowering,
        };
        if lowering == Lowering::Kernel && !pd.device().gpu().caps().kernels {
            let what = format!("kernel lowering on {:?}", pd.device().gpu());
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

    /// Its device.
    pub fn device(&self) -> &Device {
        self.pd.device()
    }

    /// The protection domain that it was made in.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// How its posts and waits on streams are lowered. `Auto`: by what each list costs.
    pub fn lowering(&self) -> Lowering {
        self.lowering
    }

    /// Whether a kernel that has to be launched for a message of the peer's anyway may wait for it by
    /// itself: the lowering is by kernels, or left to the library and the peer does not share this
    /// GPU from another process, which would only run in time slices beside a kernel that spins.
    pub fn may_spin(&self) -> bool {
        match self.lowering {
            Lowering::MemOps => false,
            Lowering::Kernel => true,
            Lowering::Auto => self.spin,
        }
    }

    /// Who rings the NIC for work that is posted on a stream.
    pub fn doorbell(&self) -> Doorbell {
        match self.core.rung_by {
            RungBy::Poster => Doorbell::Direct,
            RungBy::CpuThread => Doorbell::CpuThread,
        }
    }

    /// How it talks to others.
    pub fn transport(&self) -> Transport {
        self.core.transport
    }

    /// Where work queues, completion queues and the doorbell record really lie: as
    /// [`QpConfig`] asks, or in pinned memory where the NIC or the CPU does not reach what it asks
    /// for.
    pub fn memory(&self) -> [MemoryKind; 3] {
        self.memory
    }

    /// The record that the peer connects to, or that a [`Destination`](super::Destination) is
    /// made of. Another one after each [`Qp::reset`].
    pub fn address(&self) -> QpAddress {
        QpAddress {
            node: self.core.nic.node(),
            qpn: self.core.qpn(),
            psn: self.core.psn(&self.core.lock()),
            gpu: self.core.gpu.identity(),
            process: crate::nic::process(),
            port: self.core.nic.port(),
            qkey: match self.core.transport {
                Transport::Rc => None,
                Transport::Ud { qkey } => Some(qkey),
            },
            rail: self.pd.rail(),
        }
    }

    /// Connects to a peer's queue pair, which must do the same.
    ///
    /// # Errors
    /// `WrongState` if it is connected already or in error; `Invalid` for numbers that no peer
    /// has, and if this or the other one is of datagrams; `System` if the NIC
    /// holds no more links. The call may be repeated: posted receives are kept. `Failed` if the NIC
    /// refused the last step, to ready to send: then the queue pair is in error. A peer that cannot
    /// be reached, or speaks another version, shows when something is sent to it:
    /// [`Status::TRANSPORT_RETRY`](crate::Status::TRANSPORT_RETRY).
    pub fn connect(&mut self, peer: &QpAddress) -> Result<()> {
        const OPERATION: &str = "connect";
        if self.core.transport.is_ud() || peer.qkey.is_some() {
            let what = format!(
                "{self:?} with qp {:#x}: datagrams know no connection",
                peer.qpn
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        let psn = self.begin_to_go_up(OPERATION)?;
        let up = self.core.nic.connect_qp(self.core.qpn(), psn, peer);
        let up = self.core.went_up(OPERATION, up);
        up.map_err(|e| e.of(&self))?;
        self.there = peer.rail;
        self.spin = peer.gpu != self.core.gpu.identity() || peer.process == crate::nic::process();
        Ok(())
    }

    /// Makes a queue pair of datagrams ready to send and to receive.
    ///
    /// # Errors
    /// `WrongState` if it is so already, or in error; `Invalid` for a connection; `System` if the
    /// NIC refuses. It may be tried again. `Failed` as for [`Qp::connect`].
    pub fn activate(&mut self) -> Result<()> {
        const OPERATION: &str = "activate";
        let Transport::Ud { qkey } = self.core.transport else {
            let what = format!("{self:?} is a connection, which needs a peer");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        };
        let psn = self.begin_to_go_up(OPERATION)?;
        let up = self.core.nic.activate_qp(self.core.qpn(), psn, qkey);
        let up = self.core.went_up(OPERATION, up);
        up.map_err(|e| e.of(&self))
    }

    /// Refuses what is connected or active already, or in error. Answers the number of the first
    /// packet; behind it the NIC is called without the lock.
    fn begin_to_go_up(&self, operation: &'static str) -> Result<u32> {
        let mut state = self.core.lock();
        if state.connected || state.failed().is_some() {
            let what = format!("{self:?} is connected or in error");
            return Err(Error::new(operation, Kind::WrongState, what));
        }
        state.under_way = true;
        Ok(self.core.psn(&state))
    }

    /// Brings a queue pair in error, or one with nothing in flight, back to the
    /// state after creation. Prepared requests are aborted, also if the answer is `Busy`; all
    /// requests from before are unknown afterwards.
    ///
    /// # Errors
    /// `Busy` while the NIC or a stream still has work of this queue pair, or may have: whether
    /// unsignaled requests are done shows a moment later. Receives that a stream has still to
    /// post count as work. [`Qp::quiet`] waits for that. One case is not detected: a
    /// stream that posted without a wait, and was followed by another poster, may still have to
    /// write its doorbell. Synchronise such a stream first. `Failed` if the NIC
    /// refused after it had forgotten the connection: the queue pair is then in error, and may be
    /// reset again.
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
            // Nothing else is begun until the reset is over.
            state.under_way |= idle;
            idle || !core.calls_nic(&state)
        });
        if !idle {
            let what = format!("{self:?} has work in flight");
            return Err(Error::new("reset queue pair", Kind::Busy, what));
        }
        super::build::reset(&self.core)?;
        self.id = crate::gpu::next_id();
        Ok(())
    }

    /// Checks local segments and turns them into keys and addresses.
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
                let what = format!("{mr:?} with {self:?}");
                return Err(Error::new(operation, Kind::Foreign, what));
            }
            if end.is_none_or(|end| end > mr.region().len() as u64) {
                let what = format!("{} bytes at {} of {mr:?}", sge.len, sge.offset);
                return Err(
                    Error::new(operation, Kind::Invalid, what).limit(mr.region().len() as u64)
                );
            }
            if !mr.access().permits(need) {
                let what = format!("{mr:?} may not be written");
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

    /// Writes a work queue entry for `work`. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` for requests that cannot be encoded or lie outside their memory; `Foreign` and
    /// `NotRegistered` for memory that is not this protection domain's or not writable where
    /// it must be, or for which the peer's rail has no key, or for a destination of another
    /// protection domain; `QueueFull`, naming the limit, when there is no room now; `WrongState`
    /// and `Failed` if the queue pair is not connected (or active) or in error. On a queue pair of
    /// datagrams also `Invalid` for what is no SEND, has no destination, or is longer than
    /// [`Destination::max_len`](super::Destination::max_len); on others for a destination.
    pub fn prepare(&mut self, work: &Work<'_>) -> Result<SendRequest> {
        const OPERATION: &str = "prepare send";
        let remote = work.remote(self.there).map_err(|rail| {
            let what = format!("{self:?}: no key for the peer's rail {rail}");
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
                let what = format!("{n} segments");
                return Err(Error::new(OPERATION, Kind::Invalid, what).limit(MAX_SGE as u64));
            }
        };
        let need = match work.opcode {
            o if o == SendOpcode::RDMA_READ || work.atomic.is_some() => Access::LOCAL_WRITE,
            _ => Access::LOCAL_READ,
        };
        self.gather(work.sges, sges, need, OPERATION)?;
        let total: u64 = work.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if work.atomic.is_some() && total != ATOMIC {
            let what = format!("{self:?}: {total} bytes for the old value of an atomic");
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(ATOMIC));
        }
        let av = self.datagram(work, total, OPERATION)?;
        // NICs take each piece of an atomic for the whole old value.
        let split = |sge: &Sge<'_>| !matches!(u64::from(sge.len), 0 | ATOMIC);
        if work.atomic.is_some() && work.sges.iter().any(split) {
            let what = format!("{self:?}: the old value of an atomic in pieces");
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(ATOMIC));
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
                // Unsignaled requests at the end give no room back by themselves.
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

    /// The address vector of a request that gathers `total` bytes; `None` for a connection's, and
    /// for one that does nothing.
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
                "{self:?} is connected: {to:?} is no peer of it"
            ))),
            (Transport::Ud { .. }, _) if !sends => Err(invalid(format!(
                "{self:?}: {:?} as a datagram",
                work.opcode
            ))),
            (Transport::Ud { .. }, None) => Err(invalid(format!("{self:?}: a send to nobody"))),
            (Transport::Ud { qkey }, Some(to)) => {
                if !to.is_of(&self.pd) {
                    let what = format!("{to:?} with {self:?}");
                    return Err(Error::new(operation, Kind::Foreign, what));
                }
                let pieces = work.inline.unwrap_or_default().iter();
                let len = pieces.fold(total, |n, piece| n.saturating_add(piece.len() as u64));
                if len > to.max_len().into() {
                    let what = format!("{self:?}: a datagram of {len} bytes to {to:?}");
                    return Err(invalid(what).limit(to.max_len()));
                }
                let mut av = to.av();
                if mutant::on(Mutant::KeyOfSender) {
                    av.qkey = qkey.into();
                }
                Ok(Some(av))
            }
        }
    }

    /// As [`Qp::prepare`], waiting at most `limit` for room.
    ///
    /// # Errors
    /// As [`Qp::prepare`]; `QueueFull` after the limit.
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

    /// Writes a receive queue entry. It can be matched once it is posted.
    ///
    /// # Errors
    /// As [`Qp::prepare`].
    pub fn prepare_receive(&mut self, sges: &[Sge<'_>]) -> Result<ReceiveRequest> {
        const OPERATION: &str = "prepare receive";
        let limit = self.recv_sges as usize;
        let mut list = [wqe::Sge::default(); MAX_SGE];
        let Some(list) = list.get_mut(..sges.len()).filter(|l| l.len() <= limit) else {
            let what = format!("{} segments", sges.len());
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(limit as u64));
        };
        self.gather(sges, list, Access::LOCAL_WRITE, OPERATION)?;
        let mut guard = self.core.lock();
        // Receives may be posted before the queue pair is connected.
        if let Some(status) = guard.failed() {
            return Err(self.failed(OPERATION, status));
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

    /// Takes a prepared request back. The newest one leaves no trace; an older one becomes a
    /// NOP of equal size.
    ///
    /// # Errors
    /// `NoSuchRequest` if it was posted or aborted before, or is not of this queue.
    pub fn abort(&mut self, request: SendRequest) -> Result<()> {
        self.own(request.queue, "abort")?;
        let mut state = self.core.lock();
        self.known(&state, request.into(), "abort")?;
        let QpState { send, ended, .. } = &mut *state;
        send.abort(Ticket(request.ticket), |hold| let_go(hold, ended))
            .map_err(|e| self.refused("abort", e))
    }

    /// Takes the newest prepared receive back.
    ///
    /// # Errors
    /// `NoSuchRequest` as for [`Qp::abort`]; `Unsupported` if a receive was prepared after it.
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
    /// Never blocks: what is in flight goes on, and the watcher takes the queue pair down once
    /// it is done.
    fn drop(&mut self) {
        let addrs = &self.core.addrs;
        for at in [addrs.uar, addrs.record.gpu] {
            self.tracer().forget(at);
        }
        self.core.advance(Life::Closing);
    }
}
