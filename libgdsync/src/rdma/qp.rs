//! Queue pairs as their owner holds them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::doorbell;
use mlx5_prm::wqe::{self, SendWqe};

use super::core::{EndpointKind, Side};
use super::list::{self, Descriptor};
use super::{Access, Device, Pd, QpAddress, QpCore, QpState, Sge, Work};
use crate::error::{Error, Kind, Result};
use crate::gpu::{MemoryKind, Region, Stream, Word32, Word64};
use crate::memop::trace::Tracer;
use crate::ring::{Poster, Refusal, RingMemory, Ticket};
use crate::status::Status;

/// Most data segments of one request.
pub(super) const MAX_SGE: usize = 30;

/// How doorbells and waits become work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lowering {
    /// Stream memory operations: no SM is used, enqueueing is cheap.
    MemOps,
    /// One tiny kernel a submission, whose counters live with the queues.
    Kernel,
    /// Whichever the environment (`GDS_LOWER`) or the runtime prefers.
    #[default]
    Auto,
}

impl Lowering {
    /// What `Auto` stands for here.
    fn resolve(self) -> Result<Lowering> {
        match self {
            Lowering::Auto => env_choice(
                "GDS_LOWER",
                &[
                    ("auto", Lowering::MemOps),
                    ("memops", Lowering::MemOps),
                    ("kernel", Lowering::Kernel),
                ],
            ),
            other => Ok(other),
        }
    }
}

/// Who rings the NIC for work that is posted on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Endpoint {
    /// The stream itself, by memory operations or a kernel.
    Ring,
    /// A CPU thread, on a word that the stream writes: possible with any NIC.
    Proxy,
    /// What the environment (`GDS_PROVIDER`) says, or the ring.
    #[default]
    Auto,
}

impl Endpoint {
    fn resolve(self) -> Result<Endpoint> {
        match self {
            Endpoint::Auto => env_choice(
                "GDS_PROVIDER",
                &[
                    ("auto", Endpoint::Ring),
                    ("emulated", Endpoint::Ring),
                    ("proxy", Endpoint::Proxy),
                ],
            ),
            other => Ok(other),
        }
    }
}

/// The value of a variable that has a few; the first if it is not set.
fn env_choice<T: Copy>(name: &str, choices: &[(&str, T)]) -> Result<T> {
    let value = std::env::var(name).unwrap_or_else(|_| choices[0].0.to_owned());
    choices
        .iter()
        .find(|(choice, _)| *choice == value)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| {
            let known: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            let what = format!("{name}={value}: known are {}", known.join(", "));
            Error::new("read environment", Kind::Invalid, what)
        })
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Basic blocks (64 bytes) of the send queue, a power of two, 4 to 32768. A send with up
    /// to 3 or a write with up to 2 segments takes one.
    pub send_blocks: u32,
    /// Entries of the receive queue, a power of two, 4 to 32768.
    pub recv_entries: u32,
    /// Segments of a receive, 1 to 16.
    pub recv_sges: u32,
    /// Where work queues lie.
    pub ring_memory: MemoryKind,
    /// Where completion queues lie.
    pub cq_memory: MemoryKind,
    /// Where the doorbell record lies.
    pub record_memory: MemoryKind,
    /// A send whose doorbell was rung and that does not complete for this long puts the queue
    /// pair in error, with [`Status::TIMEOUT`]. `None`: never.
    pub timeout: Option<Duration>,
    /// How posts and waits on streams are lowered.
    pub lowering: Lowering,
    /// Who rings the NIC for streams.
    pub endpoint: Endpoint,
    /// What peers may do through this queue pair, within what registrations permit.
    pub access: Access,
    /// First index of queues and completion positions; for tests that want to see them wrap.
    #[doc(hidden)]
    pub start: u32,
}

impl Default for QpConfig {
    fn default() -> QpConfig {
        QpConfig {
            send_blocks: 256,
            recv_entries: 256,
            recv_sges: 4,
            ring_memory: MemoryKind::Pinned,
            cq_memory: MemoryKind::Pinned,
            record_memory: MemoryKind::Pinned,
            timeout: Some(Duration::from_secs(60)),
            lowering: Lowering::Auto,
            endpoint: Endpoint::Auto,
            access: Access::ALL,
            start: 0,
        }
    }
}

/// A request that was prepared on a send queue. A plain value: dropping it changes nothing,
/// the request waits to be posted or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest {
    pub(super) queue: u64,
    pub(super) ticket: u64,
}

/// A receive that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveRequest {
    pub(super) queue: u64,
    pub(super) ticket: u64,
}

/// The completion of a request: what streams and the CPU wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    pub(super) queue: u64,
    pub(super) side: Side,
    pub(super) ticket: u64,
}

impl From<SendRequest> for Completion {
    fn from(r: SendRequest) -> Completion {
        Completion {
            queue: r.queue,
            side: Side::Send,
            ticket: r.ticket,
        }
    }
}

impl From<ReceiveRequest> for Completion {
    fn from(r: ReceiveRequest) -> Completion {
        Completion {
            queue: r.queue,
            side: Side::Receive,
            ticket: r.ticket,
        }
    }
}

/// How a stream waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WaitOptions {
    /// What the NIC wrote to GPU memory before it wrote the completion is visible to what the
    /// stream does next. Needed for receives and READs into device memory, unless the platform
    /// orders them; refused as `Unsupported` where the runtime cannot flush.
    pub flush: bool,
    /// How long the stream may stand at this wait before the queue pair is put in error with
    /// [`Status::TIMEOUT`]. Counted from when the stream arrives there; of several waits with
    /// limits on one completion queue in one list, from when it arrives at the first.
    pub timeout: Option<Duration>,
}

/// What a completed receive tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that arrived.
    pub len: u32,
    /// The four bytes that travelled with the message, if any did.
    pub imm: Option<u32>,
}

/// A field of a prepared entry that a stream or kernel may change before the doorbell.
/// All fields are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Byte count of a data segment.
    Length(usize),
    /// Local key of a data segment.
    Key(usize),
    /// Address of a data segment.
    Address(usize),
    /// The peer's address.
    RemoteAddress,
    /// The peer's key.
    RemoteKey,
}

/// A reliable connected queue pair.
///
/// It has a send and a receive queue and, of its own, a completion queue for each and a UAR
/// page. Calls take `&mut self`: a queue has one owner, who may be moved between threads.
pub struct Qp {
    pub(super) core: Arc<QpCore>,
    pub(super) id: u64,
    pub(super) lowering: Lowering,
    pub(super) pd: Pd,
    ring: Region,
    recv_sges: u32,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#x} of {:?}", self.core.qpn(), self.device())
    }
}

impl Qp {
    pub(super) fn create(pd: &Pd, config: &QpConfig) -> Result<Qp> {
        let endpoint = config.endpoint.resolve()?;
        // The proxy's words are plain words: nothing for the kernel's counters to do.
        let lowering = match endpoint {
            Endpoint::Proxy => Lowering::MemOps,
            _ => config.lowering.resolve()?,
        };
        if lowering == Lowering::Kernel && !pd.device().gpu().caps().kernels {
            let what = format!("kernel lowering on {:?}", pd.device().gpu());
            return Err(Error::new("create queue pair", Kind::Unsupported, what));
        }
        let kind = match endpoint {
            Endpoint::Proxy => EndpointKind::Proxy,
            _ => EndpointKind::Ring,
        };
        let built = super::build::build(pd, config, kind)?;
        let core = Arc::new(built.core);
        pd.device().watch().add(Arc::clone(&core));
        if kind == EndpointKind::Proxy {
            pd.device().serve_by_proxy(Arc::clone(&core));
        }
        Ok(Qp {
            core,
            id: crate::gpu::next_id(),
            lowering,
            pd: pd.clone(),
            ring: built.ring,
            recv_sges: config.recv_sges,
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.pd.device()
    }

    /// How its posts and waits on streams are lowered.
    pub fn lowering(&self) -> Lowering {
        self.lowering
    }

    /// The record that the peer connects to. Another one after each [`Qp::reset`].
    pub fn address(&self) -> QpAddress {
        QpAddress {
            node: self.core.nic.node(),
            qpn: self.core.qpn(),
            psn: self.core.psn(&self.core.lock()),
        }
    }

    /// Connects to a peer's queue pair, which must do the same.
    ///
    /// # Errors
    /// `WrongState` if it is connected already; `Protocol` if the peer speaks another version;
    /// `System` if the peer's NIC cannot be reached.
    pub fn connect(&mut self, peer: &QpAddress) -> Result<()> {
        let mut state = self.core.lock();
        if state.connected || state.failed().is_some() {
            return Err(Error::new(
                "connect",
                Kind::WrongState,
                format!("{self:?} is connected or in error"),
            ));
        }
        let psn = self.core.psn(&state);
        self.core.nic.connect_qp(self.core.qpn(), psn, peer)?;
        state.connected = true;
        Ok(())
    }

    /// Brings a queue pair in error, or a connected one with nothing in flight, back to the
    /// state after creation. Prepared requests are aborted; statuses are forgotten.
    ///
    /// # Errors
    /// `Busy` while the NIC or a stream still has work of this queue pair.
    pub fn reset(&mut self) -> Result<()> {
        let mut guard = self.core.lock();
        self.core.settle(&mut guard);
        if !guard.is_idle() {
            let what = format!("{self:?} has work in flight");
            return Err(Error::new("reset queue pair", Kind::Busy, what));
        }
        super::build::reset(&self.core, &mut guard)
    }

    fn usable<'s>(
        &self,
        state: &'s mut QpState,
        operation: &'static str,
    ) -> Result<&'s mut QpState> {
        if let Some(status) = state.failed() {
            return Err(Error::new(
                operation,
                Kind::Failed(status),
                format!("{self:?}"),
            ));
        }
        if !state.connected {
            return Err(Error::new(
                operation,
                Kind::WrongState,
                format!("{self:?} is not connected"),
            ));
        }
        Ok(state)
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
                return Err(Error::new(
                    operation,
                    Kind::Foreign,
                    format!("{mr:?} with {self:?}"),
                ));
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
    /// it must be; `QueueFull`, naming the limit, when there is no room now; `WrongState` and
    /// `Failed` if the queue pair is not connected or in error.
    pub fn prepare(&mut self, work: &Work<'_>) -> Result<SendRequest> {
        const OPERATION: &str = "prepare send";
        let mut sges = [wqe::Sge::default(); MAX_SGE];
        let Some(sges) = sges.get_mut(..work.sges.len()) else {
            let what = format!("{} segments", work.sges.len());
            return Err(Error::new(OPERATION, Kind::Invalid, what).limit(MAX_SGE as u64));
        };
        let need = match work.opcode {
            o if o == mlx5_prm::opcode::SendOpcode::RDMA_READ || work.atomic.is_some() => {
                Access::LOCAL_WRITE
            }
            _ => Access::LOCAL_READ,
        };
        self.gather(work.sges, sges, need, OPERATION)?;
        let wqe = SendWqe {
            opcode: work.opcode,
            flags: work.flags,
            imm: work.imm,
            remote: work.remote(),
            atomic: work.atomic,
            payload: work.payload(sges),
            ..SendWqe::default()
        };
        let mut guard = self.core.lock();
        let state = self.usable(&mut guard, OPERATION)?;
        let ticket = state
            .send
            .prepare(&wqe, |hold| {
                hold.clear();
                hold.extend(work.sges.iter().map(|sge| sge.mr.clone()));
            })
            .map_err(|e| self.refused(OPERATION, e))?;
        Ok(SendRequest {
            queue: self.id,
            ticket: ticket.0,
        })
    }

    /// As [`Qp::prepare`], waiting at most `limit` for room.
    ///
    /// # Errors
    /// As [`Qp::prepare`]; `QueueFull` after the limit.
    pub fn prepare_within(&mut self, work: &Work<'_>, limit: Duration) -> Result<SendRequest> {
        let host = Arc::clone(self.core.nic.host());
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
            return Err(Error::new(
                OPERATION,
                Kind::Failed(status),
                format!("{self:?}"),
            ));
        }
        let ticket = guard
            .recv
            .prepare(list, |hold| {
                hold.clear();
                hold.extend(sges.iter().map(|sge| sge.mr.clone()));
            })
            .map_err(|e| self.refused(OPERATION, e))?;
        Ok(ReceiveRequest {
            queue: self.id,
            ticket: ticket.0,
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
        state
            .send
            .abort(Ticket(request.ticket), Vec::clear)
            .map_err(|e| self.refused("abort", e))
    }

    /// Takes the newest prepared receive back.
    ///
    /// # Errors
    /// `NoSuchRequest` as for [`Qp::abort`]; `Unsupported` if a receive was prepared after it.
    pub fn abort_receive(&mut self, request: ReceiveRequest) -> Result<()> {
        self.own(request.queue, "abort receive")?;
        let mut state = self.core.lock();
        state
            .recv
            .abort(Ticket(request.ticket), Vec::clear)
            .map_err(|e| self.refused("abort receive", e))
    }

    pub(super) fn own(&self, queue: u64, operation: &'static str) -> Result<()> {
        if queue == self.id {
            return Ok(());
        }
        let what = format!("a request of another queue pair with {self:?}");
        Err(Error::new(operation, Kind::Foreign, what))
    }

    pub(super) fn refused(&self, operation: &'static str, refusal: Refusal) -> Error {
        let (kind, what, limit) = match refusal {
            Refusal::WorkQueueFull { limit } => (
                Kind::QueueFull,
                "the work queue is full".to_owned(),
                Some(limit),
            ),
            Refusal::CompletionQueueFull { limit } => (
                Kind::QueueFull,
                "the completion queue is full".to_owned(),
                Some(limit),
            ),
            Refusal::OutOfOrder { first } => {
                let what = format!(
                    "request {first} was prepared earlier and is neither posted nor aborted"
                );
                (Kind::OutOfOrder, what, None)
            }
            Refusal::NoSuchRequest => (
                Kind::NoSuchRequest,
                "posted, aborted, or never prepared".to_owned(),
                None,
            ),
            Refusal::NotNewest => (
                Kind::Unsupported,
                "only the newest receive can be aborted".to_owned(),
                None,
            ),
            Refusal::TooManyWaiters { limit } => (
                Kind::QueueFull,
                "streams that wait on one completion queue".to_owned(),
                Some(limit),
            ),
            Refusal::Format(e) => {
                return Error::new(operation, Kind::Invalid, format!("{self:?}: {e}")).source(e);
            }
        };
        let error = Error::new(operation, kind, format!("{self:?}: {what}"));
        match limit {
            Some(limit) => error.limit(limit),
            None => error,
        }
    }

    /// Posts a prepared request from the CPU.
    ///
    /// # Errors
    /// `OutOfOrder` if an earlier request is neither posted nor aborted; `Busy` if a stream
    /// posted last and has not rung yet (see [`Qp::post_within`]); `NoSuchRequest`, `Failed`.
    pub fn post(&mut self, request: SendRequest) -> Result<()> {
        const OPERATION: &str = "post send";
        self.own(request.queue, OPERATION)?;
        let mut guard = self.core.lock();
        let state = self.usable(&mut guard, OPERATION)?;
        let mark = state.send.mark();
        let posted = state
            .send
            .post(Ticket(request.ticket), Poster::Cpu)
            .map_err(|e| self.refused(OPERATION, e))?;
        if let Some(index) = posted.edge {
            if !self.has_rung(state, index, mark.posted()) {
                state.send.restore(mark);
                let what = format!("{self:?}: a stream posted last and has not rung yet");
                return Err(Error::new(OPERATION, Kind::Busy, what));
            }
        }
        state.rung = state.send.fifo.posted();
        self.core
            .places
            .send
            .trigger
            .cpu
            .store32(0, state.rung as u32);
        self.note_counters(state);
        self.core.ring(posted.index, posted.doorbell);
        Ok(())
    }

    /// Whether the stream that posted last has rung: the record shows `index`.
    fn has_rung(&self, state: &QpState, index: u32, posted: u64) -> bool {
        match self.core.kind {
            EndpointKind::Ring => {
                let record = self.core.places.record.cpu.load32(doorbell::SND);
                doorbell::record_index(record) == index as u16
            }
            EndpointKind::Proxy => state.rung >= posted,
        }
    }

    /// Tells the program kernel's counters what the CPU has posted.
    fn note_counters(&self, state: &QpState) {
        let words = &self.core.places.send.device_state.cpu;
        words.store32(super::build::STATE_INDEX, state.send.fifo.posted_head());
        let words = &self.core.places.recv.device_state.cpu;
        words.store32(super::build::STATE_INDEX, state.recv.fifo.posted_head());
    }

    /// As [`Qp::post`], waiting at most `limit` for a stream that posted last.
    ///
    /// # Errors
    /// As [`Qp::post`]; `Busy` after the limit.
    pub fn post_within(&mut self, request: SendRequest, limit: Duration) -> Result<()> {
        let host = Arc::clone(self.core.nic.host());
        let deadline = host.now() + limit;
        let mut result = self.post(request);
        host.wait_until(Some(deadline), &mut || {
            if matches!(&result, Err(e) if e.kind() == Kind::Busy) {
                result = self.post(request);
            }
            !matches!(&result, Err(e) if e.kind() == Kind::Busy)
        });
        result
    }

    /// Posts a prepared receive from the CPU.
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<()> {
        const OPERATION: &str = "post receive";
        self.own(request.queue, OPERATION)?;
        let mut state = self.core.lock();
        if let Some(status) = state.failed() {
            return Err(Error::new(
                OPERATION,
                Kind::Failed(status),
                format!("{self:?}"),
            ));
        }
        let mark = state.recv.mark();
        let (index, edge) = state
            .recv
            .post(Ticket(request.ticket), Poster::Cpu)
            .map_err(|e| self.refused(OPERATION, e))?;
        let record = &self.core.places.record.cpu;
        if edge.is_some_and(|index| {
            doorbell::record_index(record.load32(doorbell::RCV)) != index as u16
        }) {
            state.recv.restore(mark);
            let what = format!("{self:?}: a stream posted last and has not done so yet");
            return Err(Error::new(OPERATION, Kind::Busy, what));
        }
        self.core.places.recv.trigger.cpu.store32(0, index);
        self.note_counters(&state);
        record.store32(doorbell::RCV, doorbell::record_value(index));
        self.core.nic.host().ring();
        Ok(())
    }

    /// Posts, waits and does word operations on `stream`, all in one submission where the
    /// runtime's limit allows. Same as [`post_on`](super::post_on) with this queue pair alone.
    ///
    /// # Errors
    /// See [`post_on`](super::post_on).
    pub fn post_on(&mut self, stream: &Stream, list: &[Descriptor<'_>]) -> Result<()> {
        list::post_on(stream, &mut [self], list)
    }

    /// Whether the request has completed: `None` while it is in flight or not posted.
    /// Unsignaled requests are known to have completed once a later one has.
    pub fn poll(&mut self, completion: impl Into<Completion>) -> Result<Option<Status>> {
        let completion = completion.into();
        self.own(completion.queue, "poll")?;
        let mut state = self.core.lock();
        self.core.settle(&mut state);
        match state.status(completion.side, Ticket(completion.ticket)) {
            None => Err(self.refused("poll", Refusal::NoSuchRequest)),
            Some(Status::PENDING) => Ok(None),
            Some(status) => Ok(Some(status)),
        }
    }

    /// Waits on the CPU until the request has completed.
    ///
    /// # Errors
    /// `Failed` with its status if it failed; `Timeout` after `limit`, the request stays in
    /// flight; `NoSuchRequest` if nothing of that name is posted.
    pub fn wait(&mut self, completion: impl Into<Completion>, limit: Duration) -> Result<()> {
        const OPERATION: &str = "wait for completion";
        let completion = completion.into();
        self.own(completion.queue, OPERATION)?;
        {
            let state = self.core.lock();
            let posted = match completion.side {
                Side::Send => state.send.fifo.posted(),
                Side::Receive => state.recv.fifo.posted(),
            };
            if completion.ticket >= posted {
                return Err(Error::new(
                    OPERATION,
                    Kind::NoSuchRequest,
                    format!("{self:?}: it is not posted"),
                ));
            }
        }
        let host = Arc::clone(self.core.nic.host());
        let deadline = host.now() + limit;
        let mut result = Ok(None);
        host.wait_until(Some(deadline), &mut || {
            result = self.poll(completion);
            !matches!(result, Ok(None))
        });
        match result? {
            Some(Status::SUCCESS) => Ok(()),
            Some(status) => Err(Error::new(
                OPERATION,
                Kind::Failed(status),
                format!("{self:?}"),
            )),
            None => Err(Error::new(
                OPERATION,
                Kind::Timeout,
                format!("{self:?}, request {}", completion.ticket),
            )),
        }
    }

    /// What a completed receive brought.
    ///
    /// # Errors
    /// `NoSuchRequest` if it has not completed, or so long ago that its entry has been reused;
    /// `Failed` if it failed.
    pub fn received(&mut self, request: ReceiveRequest) -> Result<Received> {
        const OPERATION: &str = "read receive completion";
        if let Some(status) = self.poll(request)?.filter(|s| s.is_error()) {
            return Err(Error::new(
                OPERATION,
                Kind::Failed(status),
                format!("{self:?}"),
            ));
        }
        let state = self.core.lock();
        let cq = &state.recv.cq;
        let position = state.recv.fifo.slot(request.ticket).and_then(|s| s.entry);
        let Some(position) = position.filter(|p| *p < cq.completed() && !cq.is_behind(*p)) else {
            let what = format!("{self:?}: not complete, or its entry has been reused");
            return Err(Error::new(OPERATION, Kind::NoSuchRequest, what));
        };
        let entry = Cqe64::from_bytes(cq.entry(position));
        use mlx5_prm::opcode::CqeOpcode;
        let imm = matches!(
            entry.opcode(),
            CqeOpcode::RESP_SEND_IMM | CqeOpcode::RESP_WR_IMM
        )
        .then(|| u32::from_be_bytes(entry.imm_inval_pkey));
        Ok(Received {
            len: entry.byte_cnt.get(),
            imm,
        })
    }

    /// The status of the first request that failed, if the queue pair is in error.
    pub fn error(&mut self) -> Option<Status> {
        let mut state = self.core.lock();
        self.core.settle(&mut state);
        state.failed()
    }

    /// The error word: [`Status::PENDING`] (0) until a request fails, then its status.
    /// Kernels may read it after a wait to learn whether they were released by a failure.
    pub fn error_word(&self) -> crate::memop::DevicePtr {
        self.core.places.error.gpu
    }

    /// The status word of a request: [`Status::PENDING`] (0) until the request fails, then its
    /// status, stored before a stream that waits for it goes on. A kernel that runs after the
    /// wait learns so what became of the request; after a success the word is still 0. It
    /// belongs to the request until as many later ones as the queue has blocks are prepared.
    ///
    /// # Errors
    /// `Foreign` for a request of another queue pair.
    pub fn status_word(
        &self,
        completion: impl Into<Completion>,
    ) -> Result<crate::memop::DevicePtr> {
        let completion = completion.into();
        self.own(completion.queue, "name status word")?;
        let statuses = self.core.side(completion.side).statuses;
        let slots = (statuses.cpu.len() / 4) as u64;
        Ok(statuses.gpu.offset(4 * (completion.ticket & (slots - 1))))
    }

    fn field(&self, request: SendRequest, field: Field, operation: &'static str) -> Result<usize> {
        use mlx5_prm::wqe::{DataSeg, RaddrSeg, SEGMENT};
        self.own(request.queue, operation)?;
        let state = self.core.lock();
        state
            .send
            .fifo
            .check_prepared(request.ticket)
            .map_err(|e| self.refused(operation, e))?;
        let no = || {
            Error::new(
                operation,
                Kind::Invalid,
                format!("{self:?}: the entry has no {field:?}"),
            )
        };
        let slot = state.send.fifo.slot(request.ticket).ok_or_else(no)?;
        let layout = state.send.layout(slot).ok_or_else(no)?;
        let (segment, offset) = match field {
            Field::Length(i) => (layout.data(i).ok_or_else(no)?, DataSeg::BYTE_COUNT),
            Field::Key(i) => (layout.data(i).ok_or_else(no)?, DataSeg::LKEY),
            Field::Address(i) => (layout.data(i).ok_or_else(no)?, DataSeg::ADDR),
            Field::RemoteAddress => (layout.remote.ok_or_else(no)?, RaddrSeg::ADDR),
            Field::RemoteKey => (layout.remote.ok_or_else(no)?, RaddrSeg::RKEY),
        };
        let ring = state.send.fifo.room() as usize * wqe::BASIC_BLOCK;
        Ok((state.send.offset(slot.start) + segment * SEGMENT + offset) % ring)
    }

    /// A 32-bit field of a prepared request, to be written, big-endian, by the stream that posts
    /// it, earlier on. For lengths and keys.
    ///
    /// # Errors
    /// `Invalid` if the entry has no such field or it is an address; `NoSuchRequest` if the
    /// request is not prepared.
    pub fn field32(&self, request: SendRequest, field: Field) -> Result<Word32> {
        if matches!(field, Field::Address(_) | Field::RemoteAddress) {
            return Err(Error::new(
                "name field",
                Kind::Invalid,
                format!("{field:?} has 64 bits"),
            ));
        }
        let at = self.field(request, field, "name field")?;
        self.ring.word32(at)
    }

    /// A 64-bit field of a prepared request; see [`Qp::field32`]. For addresses.
    ///
    /// # Errors
    /// As [`Qp::field32`].
    pub fn field64(&self, request: SendRequest, field: Field) -> Result<Word64> {
        if !matches!(field, Field::Address(_) | Field::RemoteAddress) {
            return Err(Error::new(
                "name field",
                Kind::Invalid,
                format!("{field:?} has 32 bits"),
            ));
        }
        let at = self.field(request, field, "name field")?;
        self.ring.word64(at)
    }

    /// Waits, at most `limit`, until nothing of this queue pair is in flight: the NIC is done
    /// with what was posted and every stream has passed its waits.
    ///
    /// # Errors
    /// `Timeout` after the limit; the work stays in flight.
    pub fn quiet(&mut self, limit: Duration) -> Result<()> {
        let host = Arc::clone(self.core.nic.host());
        let deadline = host.now() + limit;
        let idle = &mut || {
            let mut state = self.core.lock();
            self.core.settle(&mut state);
            state.is_idle()
        };
        if host.wait_until(Some(deadline), idle) {
            return Ok(());
        }
        Err(Error::new(
            "wait for quiet",
            Kind::Timeout,
            format!("{self:?} has work in flight"),
        ))
    }

    pub(super) fn tracer(&self) -> &Tracer {
        self.core.gpu.tracer()
    }
}

impl Drop for Qp {
    /// Never blocks: what is in flight goes on, and the watcher takes the queue pair down once
    /// it is done.
    fn drop(&mut self) {
        for place in [self.core.places.uar, self.core.places.record] {
            self.tracer().forget(place.gpu);
        }
        self.core.close();
    }
}
