//! One queue pair: it sends its requests as frames, executes those of the peer, and completes both.
//!
//! Both sides execute the other's requests in order, each when its last byte is there. A request is
//! complete when the peer's count of executed requests covers it, and a READ or an atomic when its
//! answer is there. The count travels in the head of each frame. If no frame is sent for a
//! moment ([`delay`](super::delay)), a frame carries it alone, so an exchange of short messages costs
//! one segment each way.
//!
//! A request that takes a receive is held back, and those behind it, until the peer has announced a
//! receive for it. So a connection never stops for a receive, and what a side has not executed yet
//! never stands in front of an answer.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};
use smallvec::SmallVec;

use super::Broken;
use super::delay::Delay;
use super::dial::Dial;
use super::frame::{HEAD, Head, Kind, MOST, OPERANDS};
use super::greeting::{Claim, End, Key, Verdict};
use super::input::{Input, Payload, Sink};
use super::memory::{Piece, Pieces, Registrations};
use super::output::Output;
use super::seal::Seal;
use super::wire::Wire;
use crate::gpu::Chunks;
use crate::nic::{Access, Events, MrKeys, PdId, Report};
use crate::provider::relay::Queues;
use crate::status::Status;

/// Maximum number of outstanding READs and atomics; further ones wait.
pub const FETCHES: usize = 16;
/// Number of executed requests whose count does not wait.
const ACK_AT: u64 = 32;
/// While the peer knows of so many receives, more are not announced by a frame of their own.
const ENOUGH: u16 = 32;
/// Bytes that are received in one step; then other queue pairs have their turn.
const STEP: usize = 512 * 1024;
/// Number of steps after the last byte in which the connection is read at each.
const HOT: u32 = 256;

/// What all queue pairs of a device share.
pub struct Shared {
    pub registrations: Registrations,
    /// For the memory of a GPU that the CPU cannot load.
    pub chunks: Option<Arc<Chunks>>,
    pub poller: super::poller::Poller,
    pub node: u64,
    pub key: Key,
    pub encrypted: bool,
    /// Held for an atomic.
    pub atomics: gds_step::Mutex<()>,
    /// Failures that the watcher reports.
    pub events: Events,
}

/// The connection.
enum Link {
    /// The queue pair is in its first state.
    None,
    /// The peer connects.
    Awaited,
    /// This side connects.
    Dialled(Box<Dial>),
    Open(Box<dyn Wire>),
    Broken,
}

/// A request that is not complete.
struct Sent {
    wr_id: u64,
    kind: Kind,
    /// Where the answer of a READ or an atomic goes.
    sink: Sink,
    len: u32,
    answered: bool,
}

struct Posted {
    wr_id: u64,
    sink: Sink,
}

/// The bytes behind the head of a request.
enum Data<'a> {
    /// Inline data of an entry.
    Inline(&'a [ibv_sge]),
    Bytes(SmallVec<[u8; OPERANDS as usize]>),
    Memory(Pieces),
}

/// A request or an answer of the peer whose payload is being received.
enum Body {
    /// None: the next bytes are a head.
    Head,
    Payload(Head, Payload),
    Operands(Head, Piece),
}

/// The answer to a peer that connects.
pub enum Offer {
    Taken,
    /// Not yet: the peer's address is not known here.
    Later,
    Refused(Verdict),
}

pub struct TcpQueues {
    shared: Arc<Shared>,
    pd: PdId,
    access: Access,
    /// The registration of the send ring.
    ring: MrKeys,
    /// How long a peer may take to connect when a request waits, and to show a sign of life.
    limit: Option<Duration>,
    link: Link,
    /// Whether the peer uses the open connection. The side that accepts does not know before the
    /// first frame whether its verdict has arrived. Until then it writes nothing, and takes a later
    /// connection of the peer in place of this one.
    confirmed: bool,
    /// The number of the open connection in the order in which connections were accepted.
    number: u64,
    /// This side and the peer, of the current connection.
    ends: [End; 2],
    waiting_since: Option<Instant>,
    sent: VecDeque<Sent>,
    /// Number of the oldest request in `sent`: so many are complete.
    first: u64,
    /// The last requests of `sent`, if they wait for a receive of the peer.
    held: VecDeque<(Head, Data<'static>)>,
    /// Number of receives that the peer has announced, and of those that requests have taken.
    theirs: [u16; 2],
    /// Whether a request was refused on this side: those behind it are not sent.
    stopped: bool,
    output: Output,
    receives: VecDeque<Posted>,
    /// Number of receives that were posted, that the peer knows of, and that it has taken.
    posted: u16,
    told: u16,
    taken: u16,
    input: Input,
    body: Body,
    /// Number of the peer's requests that are executed, and that the peer knows to be.
    executed: u64,
    acked: u64,
    delay: Delay,
    done: VecDeque<ibv_wc>,
    /// Whether the connection has bytes that were left for the next step.
    more: bool,
    /// Number of steps in which the connection is read without a look for events: a peer that has
    /// just sent is likely to send again.
    hot: u32,
    /// Whether a request of the peer was refused: nothing more is executed or pushed, and the
    /// connection ends when it has taken what was pushed before.
    refused_peer: bool,
    /// The completion of the receive that the refused request took, for that end.
    refused_receive: Option<ibv_wc>,
}

impl Data<'_> {
    /// The same, for longer than the call of the relay.
    fn kept(self) -> Data<'static> {
        match self {
            Data::Inline(sges) => {
                let bytes = sges.iter().flat_map(|sge| {
                    // SAFETY: inline data of the entry, which the relay keeps during its call.
                    unsafe {
                        std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
                    }
                });
                Data::Bytes(bytes.copied().collect())
            }
            Data::Bytes(bytes) => Data::Bytes(bytes),
            Data::Memory(pieces) => Data::Memory(pieces),
        }
    }
}

/// A completion.
fn completion(wr_id: u64, status: c_int) -> ibv_wc {
    ibv_wc {
        wr_id,
        status,
        ..ibv_wc::default()
    }
}

/// The statuses with which a peer refuses a request.
fn refusal(syndrome: u8) -> c_int {
    match c_int::from(syndrome) {
        status @ (IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_ACCESS_ERR | IBV_WC_RNR_RETRY_EXC_ERR) => {
            status
        }
        _ => IBV_WC_REM_OP_ERR,
    }
}

impl TcpQueues {
    pub fn new(
        shared: &Arc<Shared>,
        pd: PdId,
        access: Access,
        ring: MrKeys,
        limit: Option<Duration>,
    ) -> TcpQueues {
        TcpQueues {
            shared: Arc::clone(shared),
            pd,
            access,
            ring,
            limit,
            link: Link::None,
            confirmed: false,
            number: 0,
            ends: [End::default(); 2],
            waiting_since: None,
            sent: VecDeque::new(),
            first: 0,
            held: VecDeque::new(),
            theirs: [0; 2],
            stopped: false,
            output: Output::new(shared.chunks.clone()),
            receives: VecDeque::new(),
            posted: 0,
            told: 0,
            taken: 0,
            input: Input::new(shared.chunks.clone()),
            body: Body::Head,
            executed: 0,
            acked: 0,
            delay: Delay::default(),
            done: VecDeque::new(),
            more: false,
            hot: 0,
            refused_peer: false,
            refused_receive: None,
        }
    }

    /// Begins a connection of this side, `ends[0]`, to a peer that accepts at an address, or that
    /// connects to this side.
    pub fn connect(&mut self, ends: [End; 2], at: Option<std::net::SocketAddr>) {
        self.ends = ends;
        self.link = match at {
            None => Link::Awaited,
            Some(at) => {
                let [from, to] = ends;
                let encrypted = self.shared.encrypted;
                let claim = Claim {
                    to,
                    from,
                    encrypted,
                };
                let (key, poller) = (self.shared.key, &self.shared.poller);
                Link::Dialled(Box::new(Dial::new(
                    at,
                    claim,
                    key,
                    poller.clone(),
                    self.limit,
                )))
            }
        };
    }

    /// The registration of the send ring.
    pub fn ring(&self) -> MrKeys {
        self.ring
    }

    /// Connects the queue pair to itself.
    pub fn connect_to_itself(&mut self, ends: [End; 2], wire: Box<dyn Wire>) {
        self.ends = ends;
        (self.link, self.confirmed) = (Link::Open(wire), true);
    }

    /// A connection by `wire` of a peer that has proven its claim. The peer gives up a connection
    /// before it begins another one. Those that have waited for this queue pair come in any order, so
    /// `number` says which is later.
    pub fn offer(
        &mut self,
        number: u64,
        claim: &Claim,
        keys: [Key; 2],
        wire: impl FnOnce(Option<Duration>) -> Option<Box<dyn Wire>>,
    ) -> Offer {
        if claim.encrypted != self.shared.encrypted {
            return Offer::Refused(Verdict::Encryption);
        }
        let awaited = match &self.link {
            Link::None => return Offer::Later,
            Link::Awaited => true,
            Link::Open(_) => !self.confirmed && number > self.number,
            _ => false,
        };
        if !awaited || [claim.to, claim.from] != self.ends {
            return Offer::Refused(Verdict::NotNow);
        }
        let Some(wire) = wire(self.limit) else {
            return Offer::Refused(Verdict::NotNow);
        };
        self.await_again();
        self.number = number;
        let [theirs, ours] = keys;
        self.open(wire, ours, theirs);
        Offer::Taken
    }

    fn open(&mut self, wire: Box<dyn Wire>, ours: Key, theirs: Key) {
        if self.shared.encrypted {
            self.output.seal(Some(Seal::new(&ours)));
            self.input.seal(Some(Seal::new(&theirs)));
        }
        // What has arrived with the greeting was reported already.
        (self.link, self.more) = (Link::Open(wire), true);
    }

    /// Drops a connection that the peer does not use; it connects again.
    fn await_again(&mut self) {
        if let Link::Open(wire) = std::mem::replace(&mut self.link, Link::Awaited) {
            wire.close();
        }
        self.output.seal(None);
        self.input.seal(None);
        self.body = Body::Head;
    }

    /// Closes the connection and forgets all requests: the queue pair is in its first state.
    pub fn reset(&mut self) {
        // What the peer has not read yet arrives all the same.
        self.write_out();
        self.announce();
        self.write_out();
        if let Link::Open(wire) = std::mem::replace(&mut self.link, Link::None) {
            wire.close();
        }
        self.sent.clear();
        self.held.clear();
        self.receives.clear();
        self.done.clear();
        (self.first, self.executed, self.acked) = (0, 0, 0);
        (self.theirs, self.posted, self.told, self.taken) = ([0; 2], 0, 0, 0);
        self.output = Output::new(self.shared.chunks.clone());
        self.input = Input::new(self.shared.chunks.clone());
        (self.body, self.delay, self.waiting_since) = (Body::Head, Delay::default(), None);
        (self.refused_peer, self.stopped, self.confirmed) = (false, false, false);
        self.refused_receive = None;
    }

    /// The connection is of no use any more: the oldest request fails, and all behind it are flushed.
    fn break_off(&mut self, why: Broken, status: c_int) {
        if matches!(self.link, Link::Broken) {
            return;
        }
        let [own, peer] = self.ends;
        tracing::debug!(
            target: "gdsync",
            "QP {:#x}: the connection to QP {:#x} has ended: {why}", own.qpn, peer.qpn
        );
        if let Link::Open(wire) = std::mem::replace(&mut self.link, Link::Broken) {
            wire.close();
        }
        if self.refused_peer {
            let report = Report::Closed(Status::PEER_ACCESS);
            self.shared.events.qp(own.qpn, report);
        }
        self.done.extend(self.refused_receive.take());
        // Nothing keeps the memory of requests and receives beyond their ends.
        (self.output, self.body) = (Output::default(), Body::Head);
        self.input.forget_chunks();
        self.held.clear();
        let mut status = status;
        for sent in self.sent.drain(..) {
            self.done.push_back(completion(sent.wr_id, status));
            self.first += 1;
            status = IBV_WC_WR_FLUSH_ERR;
        }
    }

    fn push_head(&mut self, head: Head) {
        (self.acked, self.told) = (self.executed, self.posted);
        self.delay.sent(head.kind != Kind::Ack);
        let head = Head {
            ack: self.executed,
            receives: self.posted,
            ..head
        };
        self.output.push_bytes(&head.encode());
    }

    /// Number of receives that the peer may still take, as far as it knows.
    fn offered(&self) -> u16 {
        self.told.wrapping_sub(self.taken)
    }

    /// Whether there are receives that the peer may wait for.
    fn has_receives(&self) -> bool {
        self.told != self.posted && self.offered() < ENOUGH
    }

    /// Whether the peer lacks a count that it may wait for.
    fn has_news(&self) -> bool {
        let counts = self.has_receives() || self.acked != self.executed;
        counts && !self.refused_peer && matches!(self.link, Link::Open(_))
    }

    /// Sends the counts that the peer lacks, unless earlier ones wait for a peer that does not read.
    /// Returns whether it sends them.
    fn announce(&mut self) -> bool {
        let sends = self.has_news() && !self.output.has_counts();
        if sends {
            self.push_head(Head::new(Kind::Ack, 0));
            self.output.end_counts();
        }
        sends
    }

    /// Writes what the connection takes. Returns whether it took anything.
    fn write(&mut self) -> io::Result<bool> {
        match &mut self.link {
            Link::Open(wire) if self.confirmed && !self.output.is_empty() => {
                self.output.write(&mut **wire)
            }
            _ => Ok(false),
        }
    }

    /// As [`TcpQueues::write`], and waits for what a copy engine copies.
    fn write_out(&mut self) {
        while self.write().is_ok() && self.output.waits() {
            std::hint::spin_loop();
        }
    }

    /// Whether a request of this kind may be sent: the peer has a receive for it, if it takes one.
    fn may_send(&self, kind: Kind) -> bool {
        let [announced, taken] = self.theirs;
        !self.refused_peer && (!kind.takes_receive() || announced != taken)
    }

    /// Queues a request for the connection. `false`: the GPU is lost.
    fn push(&mut self, head: Head, data: Data<'_>) -> bool {
        let [_, taken] = &mut self.theirs;
        *taken = taken.wrapping_add(head.kind.takes_receive().into());
        self.push_head(head);
        match data {
            Data::Inline(sges) => {
                for sge in sges {
                    let (at, len) = (sge.addr as *const u8, sge.length as usize);
                    // SAFETY: inline data of the entry, which the relay keeps during its call.
                    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                    self.output.push_bytes(bytes);
                }
            }
            Data::Bytes(bytes) => self.output.push_bytes(&bytes),
            Data::Memory(pieces) => {
                let mut pieces = pieces.into_iter();
                return pieces.all(|piece| self.output.push_memory(piece));
            }
        }
        true
    }

    /// Queues the held requests for which the peer has receives.
    fn release(&mut self) {
        while let Some((head, _)) = self.held.front()
            && self.may_send(head.kind)
            && let Some((head, data)) = self.held.pop_front()
        {
            if !self.push(head, data) {
                return self.break_off(Broken::Gpu, IBV_WC_LOC_PROT_ERR);
            }
        }
    }

    /// The memory of local segments.
    fn gather(&self, sges: &[ibv_sge], need: Access) -> Option<Pieces> {
        let find = |sge: &ibv_sge| {
            let all = &self.shared.registrations;
            all.find(sge.lkey, self.pd, sge.addr, sge.length, need)
        };
        let pieces = sges.iter().filter(|sge| sge.length > 0);
        pieces.map(find).collect()
    }

    /// Prepares and queues a request; the status of its completion if it is refused.
    fn send(&mut self, wr: &ibv_send_wr) -> Result<(), c_int> {
        let sges = match wr.num_sge {
            0 => &[],
            // SAFETY: the relay passes a list of this length.
            n => unsafe { std::slice::from_raw_parts(wr.sg_list, n as usize) },
        };
        let len: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if len > MOST.into() {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        let kind = match wr.opcode {
            IBV_WR_RDMA_WRITE => Kind::Write,
            IBV_WR_RDMA_WRITE_WITH_IMM => Kind::WriteImm,
            IBV_WR_SEND => Kind::Send,
            IBV_WR_SEND_WITH_IMM => Kind::SendImm,
            IBV_WR_SEND_WITH_INV => Kind::SendInvalidate,
            IBV_WR_RDMA_READ => Kind::Read,
            IBV_WR_ATOMIC_CMP_AND_SWP => Kind::CompareSwap,
            IBV_WR_ATOMIC_FETCH_AND_ADD => Kind::FetchAdd,
            _ => return Err(IBV_WC_LOC_QP_OP_ERR),
        };
        // SAFETY: plain numbers; the relay sets all bytes of the union.
        let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
        let (addr, rkey) = match kind {
            Kind::CompareSwap | Kind::FetchAdd => (atomic.remote_addr, atomic.rkey),
            _ => (rdma.remote_addr, rdma.rkey),
        };
        let head = Head {
            addr,
            rkey,
            imm: wr.imm_data,
            ..Head::new(kind, len as u32)
        };
        let mut sink = Sink::default();
        let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
            Data::Inline(sges)
        } else if kind.fetches() {
            let pieces = self.gather(sges, Access::LOCAL_WRITE);
            sink = Sink::new(pieces.ok_or(IBV_WC_LOC_PROT_ERR)?);
            let operands = [atomic.compare_add, atomic.swap].map(u64::to_le_bytes);
            match kind {
                Kind::Read => Data::Bytes(SmallVec::new()),
                _ => Data::Bytes(SmallVec::from_slice(operands.as_flattened())),
            }
        } else {
            let pieces = self.gather(sges, Access::LOCAL_READ);
            Data::Memory(pieces.ok_or(IBV_WC_LOC_PROT_ERR)?)
        };
        self.sent.push_back(Sent {
            wr_id: wr.wr_id,
            kind,
            sink,
            len: len as u32,
            answered: false,
        });
        if !self.held.is_empty() || !self.may_send(kind) {
            self.held.push_back((head.used(), data.kept()));
        } else if !self.push(head.used(), data) {
            self.break_off(Broken::Gpu, IBV_WC_LOC_PROT_ERR);
        }
        Ok(())
    }

    /// The oldest READ or atomic that was sent and is not answered.
    fn oldest_fetch(&mut self) -> Option<&mut Sent> {
        let count = self.sent.len() - self.held.len();
        let mut sent = self.sent.iter_mut().take(count);
        sent.find(|sent| sent.kind.fetches() && !sent.answered)
    }

    /// Completes the requests that the peer has executed.
    fn retire(&mut self, ack: u64) -> Result<(), Broken> {
        let behind = ack.wrapping_sub(self.first);
        if behind > (self.sent.len() - self.held.len()) as u64 {
            return Err(Broken::Frame("it counts requests that were not sent"));
        }
        let executed = behind as usize;
        let ready = |sent: &Sent| sent.answered || !sent.kind.fetches();
        let count = self
            .sent
            .iter()
            .take(executed)
            .take_while(|sent| ready(sent));
        for _ in 0..count.count() {
            if let Some(sent) = self.sent.pop_front() {
                self.done.push_back(completion(sent.wr_id, IBV_WC_SUCCESS));
                self.first += 1;
            }
        }
        Ok(())
    }

    /// Receives and executes what the connection has; returns whether there was anything.
    fn receive(&mut self) -> Result<bool, Broken> {
        let mut received = 0;
        let mut busy = false;
        loop {
            busy |= self.execute()?;
            self.more = received >= STEP;
            if self.more {
                return Ok(busy);
            }
            let Link::Open(wire) = &mut self.link else {
                return Ok(busy);
            };
            let payload = match &mut self.body {
                Body::Payload(_, payload) => Some(payload),
                _ => None,
            };
            let (n, more) = match self.input.read(&mut **wire, payload) {
                // What has arrived is executed first; the next step finds the end again.
                Err(Broken::Closed | Broken::Connection(_)) if self.input.is_copying() => {
                    (0, false)
                }
                outcome => outcome?,
            };
            received += n;
            busy |= n > 0;
            if !more {
                return Ok(busy | self.execute()?);
            }
        }
    }

    /// Executes what is buffered.
    fn execute(&mut self) -> Result<bool, Broken> {
        let mut busy = false;
        loop {
            match std::mem::replace(&mut self.body, Body::Head) {
                Body::Head => {
                    let Some(bytes) = self.input.take::<HEAD>() else {
                        return Ok(busy);
                    };
                    let head = Head::decode(&bytes)?;
                    self.theirs[0] = head.receives;
                    self.confirmed = true;
                    // The answer itself is not there yet.
                    if head.kind != Kind::Response {
                        self.retire(head.ack)?;
                    }
                    self.begin(head)?;
                }
                Body::Operands(head, word) => {
                    let Some(operands) = self.input.take::<{ OPERANDS as usize }>() else {
                        self.body = Body::Operands(head, word);
                        return Ok(busy);
                    };
                    self.atomic(&head, &word, &operands)?;
                }
                Body::Payload(head, mut payload) => {
                    if !self.input.store(&mut payload)? {
                        self.body = Body::Payload(head, payload);
                        return Ok(busy);
                    }
                    self.finish(&head)?;
                }
            }
            busy = true;
        }
    }

    /// The memory that a request of the peer names, if it may access it like this.
    fn named(&self, head: &Head, need: Access) -> Option<Pieces> {
        if !self.access.permits(need) {
            return None;
        }
        if head.len == 0 {
            return Some(Pieces::new());
        }
        let all = &self.shared.registrations;
        let piece = all.find(head.rkey, self.pd, head.addr, head.len, need)?;
        Some(Pieces::from_iter([piece]))
    }

    /// Begins what a head announces.
    fn begin(&mut self, head: Head) -> Result<(), Broken> {
        let sink = match head.kind {
            Kind::Ack => return Ok(()),
            Kind::Refuse => return self.refused(&head),
            Kind::Response => match self.oldest_fetch() {
                Some(fetch) if fetch.len == head.len => std::mem::take(&mut fetch.sink),
                _ => return Err(Broken::Frame("it answers a request that was not sent")),
            },
            kind if self.refused_peer => {
                let payload = Payload::new(Sink::default(), kind.payload(head.len) as usize);
                self.body = Body::Payload(head, payload);
                return Ok(());
            }
            kind if kind.takes_receive() && self.receives.is_empty() => {
                return Err(Broken::Frame("there is no receive for it"));
            }
            // A peer that keeps the limit has received the answer to an earlier one.
            kind if kind.fetches() && self.output.answers() >= FETCHES => {
                return Err(Broken::Frame("too many READs and atomics are outstanding"));
            }
            Kind::Write | Kind::WriteImm => match self.named(&head, Access::REMOTE_WRITE) {
                Some(pieces) => Sink::new(pieces),
                None => return self.refuse(head, IBV_WC_REM_ACCESS_ERR),
            },
            Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
                let sink = std::mem::take(&mut self.receives[0].sink);
                if sink.room() < head.len.into() {
                    self.receive_done(&head, IBV_WC_LOC_LEN_ERR);
                    self.refused_receive = self.done.pop_back();
                    return self.refuse(head, IBV_WC_REM_INV_REQ_ERR);
                }
                sink
            }
            Kind::Read => {
                let Some(pieces) = self.named(&head, Access::REMOTE_READ) else {
                    return self.refuse(head, IBV_WC_REM_ACCESS_ERR);
                };
                return self.answer(head.len, |output| {
                    pieces.into_iter().all(|piece| output.push_memory(piece))
                });
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let named = self.named(&head, Access::REMOTE_ATOMIC);
                let Some(word) = named.and_then(|mut pieces| pieces.pop()) else {
                    return self.refuse(head, IBV_WC_REM_ACCESS_ERR);
                };
                if !head.addr.is_multiple_of(8) {
                    return self.refuse(head, IBV_WC_REM_INV_REQ_ERR);
                }
                self.body = Body::Operands(head, word);
                return Ok(());
            }
        };
        self.body = Body::Payload(head, Payload::new(sink, head.len as usize));
        Ok(())
    }

    /// Answers a READ or an atomic of the peer.
    fn answer(&mut self, len: u32, push: impl FnOnce(&mut Output) -> bool) -> Result<(), Broken> {
        self.executed += 1;
        self.push_head(Head::new(Kind::Response, len));
        let pushed = push(&mut self.output);
        self.output.end_answer();
        match pushed {
            true => Ok(()),
            false => Err(Broken::Gpu),
        }
    }

    fn atomic(&mut self, head: &Head, word: &Piece, operands: &[u8; 16]) -> Result<(), Broken> {
        let mut numbers = [0; 2];
        for (number, bytes) in numbers.iter_mut().zip(operands.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        let before = {
            let _one = self.shared.atomics.lock();
            word.atomic(head.kind == Kind::FetchAdd, numbers)
        };
        let before = before.ok_or(Broken::Gpu)?.to_ne_bytes();
        self.answer(8, |output| {
            output.push_bytes(&before);
            true
        })
    }

    /// Completes the oldest receive.
    fn receive_done(&mut self, head: &Head, status: c_int) {
        let Some(receive) = self.receives.pop_front() else {
            return;
        };
        self.taken = self.taken.wrapping_add(1);
        let opcode = match head.kind {
            Kind::WriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => IBV_WC_RECV,
        };
        let wc_flags = match head.kind {
            Kind::WriteImm | Kind::SendImm => IBV_WC_WITH_IMM,
            Kind::SendInvalidate => IBV_WC_WITH_INV,
            _ => 0,
        };
        self.done.push_back(ibv_wc {
            opcode,
            wc_flags,
            byte_len: head.len,
            imm_data: head.imm,
            ..completion(receive.wr_id, status)
        });
    }

    /// The payload of a request or an answer is stored.
    fn finish(&mut self, head: &Head) -> Result<(), Broken> {
        if head.kind == Kind::Response {
            if let Some(fetch) = self.oldest_fetch() {
                fetch.answered = true;
            }
            return self.retire(head.ack);
        }
        if self.refused_peer {
            return Ok(());
        }
        if head.kind.takes_receive() {
            self.receive_done(head, IBV_WC_SUCCESS);
        }
        self.executed += 1;
        Ok(())
    }

    /// Refuses a request of the peer. It and those behind it have no effect; this side still executes
    /// the peer's answers, as the peer may wait for room before it reads those of this side.
    fn refuse(&mut self, refused: Head, status: c_int) -> Result<(), Broken> {
        let head = Head {
            syndrome: status as u8,
            ..Head::new(Kind::Refuse, 0)
        };
        self.push_head(head);
        self.refused_peer = true;
        // Bytes that are no frame may follow, and end the connection at once.
        self.write_out();
        self.begin(refused)
    }

    /// Whether the connection has taken a refusal. A queue pair on itself reads it first.
    fn has_refused(&self) -> bool {
        let [own, peer] = self.ends;
        self.refused_peer && self.output.is_empty() && !self.has_failed() && own != peer
    }

    /// The peer refuses the oldest request. No frame behind it is executed.
    fn refused(&mut self, head: &Head) -> Result<(), Broken> {
        self.break_off(Broken::Refused, refusal(head.syndrome));
        Err(Broken::Refused)
    }

    /// Whether a connection that a request waits for takes too long.
    fn is_late(&mut self) -> bool {
        if self.sent.is_empty() {
            return false;
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.limit.is_some_and(|limit| since.elapsed() > limit)
    }

    fn connecting(&mut self) -> bool {
        if self.is_late() {
            self.break_off(Broken::Late, IBV_WC_RETRY_EXC_ERR);
            return true;
        }
        let Link::Dialled(dial) = &mut self.link else {
            return false;
        };
        let Some((wire, [ours, theirs])) = dial.step() else {
            return false;
        };
        self.open(wire, ours, theirs);
        self.confirmed = true;
        if self.output.is_empty() {
            self.push_head(Head::new(Kind::Ack, 0));
        }
        true
    }
}

impl Queues for TcpQueues {
    fn post_send(&mut self, wr: &mut ibv_send_wr) -> c_int {
        let fetches = matches!(
            wr.opcode,
            IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
        );
        let fenced = wr.send_flags & IBV_SEND_FENCE != 0;
        if fetches || fenced {
            let open = self.sent.iter().filter(|sent| sent.kind.fetches()).count();
            if open >= FETCHES || fenced && open > 0 {
                return libc::ENOMEM;
            }
        }
        let outcome = match self.link {
            _ if self.stopped => Err(IBV_WC_WR_FLUSH_ERR),
            Link::Broken => Err(IBV_WC_RETRY_EXC_ERR),
            _ => self.send(wr),
        };
        if let Err(status) = outcome {
            // What is behind a request that fails must not take effect.
            self.stopped = true;
            self.done.push_back(completion(wr.wr_id, status));
        }
        0
    }

    fn post_recv(&mut self, wr: &mut ibv_recv_wr) -> c_int {
        let sges = match wr.num_sge {
            0 => &[],
            // SAFETY: the relay passes a list of this length.
            n => unsafe { std::slice::from_raw_parts(wr.sg_list, n as usize) },
        };
        match self.gather(sges, Access::LOCAL_WRITE) {
            Some(pieces) => {
                self.posted = self.posted.wrapping_add(1);
                self.receives.push_back(Posted {
                    wr_id: wr.wr_id,
                    sink: Sink::new(pieces),
                });
            }
            None => self
                .done
                .push_back(completion(wr.wr_id, IBV_WC_LOC_PROT_ERR)),
        }
        0
    }

    fn poll(&mut self, into: &mut [ibv_wc]) -> usize {
        let n = into.len().min(self.done.len());
        for (to, wc) in into.iter_mut().zip(self.done.drain(..n)) {
            *to = wc;
        }
        n
    }

    fn to_error(&mut self) -> bool {
        self.break_off(Broken::Stopped, IBV_WC_WR_FLUSH_ERR);
        for receive in self.receives.drain(..) {
            self.done
                .push_back(completion(receive.wr_id, IBV_WC_WR_FLUSH_ERR));
        }
        true
    }

    fn progress(&mut self) -> bool {
        match &self.link {
            Link::None | Link::Broken => return false,
            Link::Awaited | Link::Dialled(_) => return self.connecting(),
            Link::Open(_) => {}
        }
        if !self.confirmed && self.is_late() {
            self.break_off(Broken::Late, IBV_WC_RETRY_EXC_ERR);
            return true;
        }
        if let Link::Open(wire) = &self.link
            && !wire.may_read()
            && !self.more
            && self.hot == 0
            && !self.input.is_copying()
        {
            return false;
        }
        match self.receive() {
            Ok(busy) => {
                self.hot = match busy {
                    true => HOT,
                    false => self.hot.saturating_sub(1),
                };
                busy || self.input.is_copying()
            }
            Err(why) if self.confirmed => {
                self.break_off(why, IBV_WC_RETRY_EXC_ERR);
                true
            }
            Err(_) => {
                self.await_again();
                true
            }
        }
    }

    fn flush(&mut self) -> bool {
        self.release();
        if self.has_news() {
            let waits = self.has_receives() && self.offered() == 0;
            let urgent = waits || self.executed - self.acked >= ACK_AT;
            let now = Instant::now();
            let over = self.delay.is_over(now);
            let sent = (over || urgent) && self.announce();
            if sent && !urgent {
                self.delay.sent_alone(now);
            }
        }
        match self.write() {
            Ok(_) if self.has_refused() => {
                self.break_off(Broken::Refused, IBV_WC_RETRY_EXC_ERR);
                true
            }
            Ok(wrote) => wrote || self.output.waits(),
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(0);
                self.break_off(Broken::Connection(errno), IBV_WC_RETRY_EXC_ERR);
                true
            }
        }
    }

    fn needs_thread(&self) -> bool {
        let connecting = matches!(self.link, Link::Awaited | Link::Dialled(_));
        connecting || self.has_news() || self.is_copying()
    }

    fn is_copying(&self) -> bool {
        self.input.is_copying() || self.output.waits()
    }

    fn has_failed(&self) -> bool {
        self.refused_peer && matches!(self.link, Link::Broken)
    }

    fn arm(&mut self) {
        // Counts that were not written hold back those behind them.
        self.flush();
        self.announce();
        self.flush();
    }
}

#[cfg(test)]
mod tests;
