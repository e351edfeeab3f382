//! A queue pair whose rings are in memory of the library, laid out as a ConnectX has them, and whose
//! requests something else than a ConnectX executes: the queues of a verbs device, or a connection.
//!
//! [`Relay`] is one queue pair as a step machine, between its rings and [`Queues`]. It is the NIC of
//! the rings: it reads entries up to the index in the doorbell record, in order, and writes
//! completion entries, in order. It posts as many requests as the queues take; the others stay in
//! the ring. Each request is signaled to the queues, so that each end is reported; the relay writes
//! an entry for the requests that asked for one. After a failure it writes one for every request,
//! and flushes the requests that the queues never got.
//!
//! [`translate`] converts entries to requests of verbs and completions of verbs to entries,
//! [`entries`] writes completion entries, [`handles`] maps numbers to the destinations of datagrams,
//! [`thread`] is the thread that polls the rings of a NIC.

pub(in crate::provider) mod entries;
pub(in crate::provider) mod handles;
pub(in crate::provider) mod thread;
pub(in crate::provider) mod translate;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use gds_step::{Machine, Step, Time};
use gdsync_sys::verbs::types::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};
use mlx5_prm::doorbell::{self, SendDoorbell};
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{AvSeg, BASIC_BLOCK, MAX_SEGMENTS, SEGMENT, WqeFlags, basic_blocks};

use self::entries::{Entries, Kind as EntryKind};
use self::handles::Handles;
use self::translate::{Outcome, UNNAMED};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Mapped, Region};
use crate::nic::QpRings;
use crate::ring::RingMemory as _;

/// Bytes of the longest entry, and of the longest slot of a receive.
const ENTRY_BYTES: usize = MAX_SEGMENTS.next_multiple_of(4) * SEGMENT;
/// Completions polled at once.
const BATCH: usize = 16;
/// Number of requests of the longest queue.
const LONGEST: u16 = 1 << 15;
/// Marks the numbers of receives.
const RECEIVE: u64 = 1 << 63;

/// The error of a call for a queue pair that was destroyed.
pub(in crate::provider) fn gone(qpn: u32, operation: &'static str) -> Error {
    let what = format!("QP {qpn:#x} does not exist any more");
    Error::new(operation, Kind::WrongState, what)
}

/// The queues of verbs behind a relay.
pub(in crate::provider) trait Queues: Send {
    /// Posts a send; returns 0 or an errno.
    fn post_send(&mut self, wr: &mut ibv_send_wr) -> c_int;
    /// Posts a receive; returns 0 or an errno.
    fn post_recv(&mut self, wr: &mut ibv_recv_wr) -> c_int;
    /// Polls completions; returns their number.
    fn poll(&mut self, into: &mut [ibv_wc]) -> usize;
    /// Puts the queue pair in error. Returns whether its requests complete: a lost device does not
    /// complete them.
    fn to_error(&mut self) -> bool;
    /// Whether [`Queues::poll`] has completions.
    fn has_completions(&self) -> bool {
        false
    }
    /// Executes work that needs no post, such as that of the peer; returns whether there was any.
    fn progress(&mut self) -> bool {
        false
    }
    /// Sends what was posted; returns whether there was any.
    fn flush(&mut self) -> bool {
        false
    }
    /// Whether there is work that the end of a time causes, which the NIC's thread does.
    fn needs_thread(&self) -> bool {
        false
    }
    /// When the next work is due that no event announces.
    fn due(&self) -> Option<Instant> {
        None
    }
    /// Whether there is work that no event announces, because a copy engine of a GPU is at it.
    fn is_copying(&self) -> bool {
        false
    }
    /// Whether the queue pair has failed, although none of its requests has.
    fn has_failed(&self) -> bool {
        false
    }
    /// Requests an event for the next work, before the thread sleeps.
    fn arm(&mut self) {}
}

/// The limits of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Limits {
    /// Outstanding requests.
    pub sends: usize,
    pub receives: usize,
    /// Pieces of one send.
    pub send_sges: usize,
    pub recv_sges: usize,
    /// Bytes of a send that the device copies when it is posted.
    pub inline: usize,
}

/// The rings of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Rings {
    pub qpn: u32,
    pub start: u32,
    pub record: Mapped,
    pub send: Mapped,
    /// The send ring as the NIC reads it.
    pub send_memory: translate::RingMemory,
    pub recv: Mapped,
    /// Bytes of a slot of the receive ring.
    pub stride: usize,
    pub send_entries: Entries,
    pub recv_entries: Entries,
}

impl Rings {
    /// The rings of queue pair `qpn`. The caller sets the key of the send ring's memory.
    ///
    /// # Errors
    /// Errors of a memory that the CPU cannot map.
    pub fn of(rings: &QpRings<'_>, qpn: u32) -> Result<Rings> {
        let part = |region: &Region, offset: u64, len: usize| -> Result<Mapped> {
            Ok(region.mapped()?.part(offset as usize, len))
        };
        let (send_region, send_at, blocks) = rings.send_ring;
        let (recv_region, recv_at, slots, stride) = rings.recv_ring;
        let send_bytes = blocks as usize * BASIC_BLOCK;
        let entries = |(region, offset, log): (&Region, u64, u8), kind| -> Result<Entries> {
            Ok(Entries {
                ring: part(region, offset, crate::ring::cq::ENTRY << log)?,
                log,
                kind,
                qpn,
                next: rings.start,
            })
        };
        Ok(Rings {
            qpn,
            start: rings.start,
            record: part(rings.record.0, rings.record.1, 8)?,
            send: part(send_region, send_at, send_bytes)?,
            send_memory: translate::RingMemory {
                addr: send_region.addr().0 + send_at,
                len: send_bytes as u64,
                lkey: 0,
            },
            recv: part(recv_region, recv_at, slots as usize * stride as usize)?,
            stride: stride as usize,
            send_entries: entries(rings.send_cq, EntryKind::Send)?,
            recv_entries: entries(rings.recv_cq, EntryKind::Receive)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The rings are not polled.
    Down,
    Up,
    /// Posted requests are flushed.
    Error,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// At the device.
    Posted,
    /// Completed by the device.
    Done(Outcome),
    /// A request without effect: it is complete when its turn comes.
    Nothing,
    /// It fails when its turn comes; no later request is posted.
    Bad(Syndrome),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    counter: u16,
    opcode: SendOpcode,
    signaled: bool,
    stage: Stage,
}

/// One of the two work queues.
#[derive(Debug)]
struct Side {
    /// Requests that are read from the ring and not reported yet, oldest first.
    flight: VecDeque<Request>,
    /// The number of the oldest request. Numbers are never reused, so that completions of a former
    /// connection can be told apart.
    first: u64,
    /// Index up to which the ring is read: basic blocks, or receives.
    head: u32,
    /// Index, modulo 2^16, up to which streams are going to post, in the unit of `head`; equal to `head` if
    /// they are going to post nothing.
    expected: u16,
    /// Number of requests at the device.
    posted: usize,
    entries: Entries,
}

impl Side {
    fn new(start: u32, room: usize, entries: Entries) -> Side {
        Side {
            flight: VecDeque::with_capacity(room),
            first: 0,
            head: start,
            expected: start as u16,
            posted: 0,
            entries,
        }
    }

    /// Whether `expected` is ahead of `head`: streams have posts that were not read. Indices wrap: a
    /// difference of 1 to 2^15, the longest queue, is ahead.
    fn awaits(&self) -> bool {
        (1..=LONGEST).contains(&self.expected.wrapping_sub(self.head as u16))
    }

    fn next(&self) -> u64 {
        self.first + self.flight.len() as u64
    }

    fn push(&mut self, request: Request, size: u32) {
        self.posted += usize::from(matches!(request.stage, Stage::Posted));
        self.flight.push_back(request);
        self.head = self.head.wrapping_add(size);
        // An index that stayed would seem ahead once the CPU has posted 2^15 more.
        if !self.awaits() {
            self.expected = self.head as u16;
        }
    }

    fn done(&mut self, number: u64, outcome: Outcome) {
        let index = number.checked_sub(self.first).map(|i| i as usize);
        let Some(request) = index.and_then(|i| self.flight.get_mut(i)) else {
            return;
        };
        if matches!(request.stage, Stage::Posted) {
            request.stage = Stage::Done(outcome);
            self.posted -= 1;
        }
    }

    /// Whether a request that is going to fail blocks later ones.
    fn blocked(&self) -> bool {
        let last = self.flight.back();
        last.is_some_and(|last| matches!(last.stage, Stage::Bad(_)))
    }

    /// Writes entries for finished requests. Returns whether there were any, and whether one
    /// failed.
    fn settle(&mut self, in_error: bool) -> (bool, bool) {
        let (mut busy, mut failed) = (false, false);
        while let Some(request) = self.flight.front() {
            let flush = |syndrome| Outcome {
                failure: Some((syndrome, 0)),
                ..Outcome::default()
            };
            let outcome = match request.stage {
                Stage::Posted => break,
                Stage::Done(outcome) => outcome,
                Stage::Nothing | Stage::Bad(_) if in_error || failed => flush(Syndrome::WR_FLUSH),
                Stage::Nothing => Outcome::default(),
                Stage::Bad(syndrome) => flush(syndrome),
            };
            failed |= outcome.failure.is_some();
            if request.signaled || outcome.failure.is_some() {
                self.entries.put(request.counter, request.opcode, &outcome);
            }
            self.flight.pop_front();
            self.first += 1;
            busy = true;
        }
        (busy, failed)
    }

    /// The device completes no request any more: all outstanding requests fail, the oldest with
    /// `why`.
    fn lose(&mut self, mut why: Syndrome) {
        let posted = |request: &&mut Request| matches!(request.stage, Stage::Posted);
        for request in self.flight.iter_mut().filter(posted) {
            request.stage = Stage::Done(Outcome {
                failure: Some((why, 0)),
                ..Outcome::default()
            });
            why = Syndrome::WR_FLUSH;
        }
        self.posted = 0;
    }

    /// Drops all requests in flight.
    fn reset(&mut self, start: u32) {
        self.first = self.next();
        self.flight.clear();
        (self.head, self.expected, self.posted) = (start, start as u16, 0);
    }
}

/// The relay of one queue pair; see the module.
pub(in crate::provider) struct Relay<Q> {
    pub queues: Q,
    rings: Rings,
    limits: Limits,
    /// The destinations of its datagrams; `None`: the queue pair is a connection.
    handles: Option<Arc<Handles>>,
    state: State,
    send: Side,
    recv: Side,
    /// The pieces of the request that is being posted.
    sges: Vec<ibv_sge>,
    wcs: [ibv_wc; BATCH],
    entry: Box<[u8; ENTRY_BYTES]>,
}

impl<Q: Queues> Relay<Q> {
    pub fn new(queues: Q, rings: Rings, limits: Limits) -> Relay<Q> {
        let blocks = rings.send.len() / BASIC_BLOCK;
        let slots = rings.recv.len() / rings.stride;
        Relay {
            queues,
            rings,
            limits,
            handles: None,
            state: State::Down,
            send: Side::new(rings.start, blocks, rings.send_entries),
            recv: Side::new(rings.start, slots, rings.recv_entries),
            sges: Vec::with_capacity(2 * MAX_SEGMENTS),
            wcs: [ibv_wc::default(); BATCH],
            entry: Box::new([0; ENTRY_BYTES]),
        }
    }

    /// The same, for a queue pair of datagrams.
    pub fn of_datagrams(mut self, handles: Arc<Handles>) -> Relay<Q> {
        self.handles = Some(handles);
        self
    }

    /// Announces that streams are going to post up to these indices.
    pub fn expect(&mut self, send: u32, recv: u32) {
        (self.send.expected, self.recv.expected) = (send as u16, recv as u16);
    }

    /// Whether streams have posts, announced by [`Relay::expect`], that were not read yet.
    pub fn awaits(&self) -> bool {
        self.state != State::Down && (self.send.awaits() || self.recv.awaits())
    }

    /// Starts to poll the rings: the device's queue pair is connected.
    pub fn up(&mut self) {
        self.state = State::Up;
    }

    /// Changes to the error state, from any state.
    pub fn fail(&mut self) {
        self.state = State::Error;
        if !self.queues.to_error() {
            self.lose();
        }
    }

    /// The device is lost: its requests fail, and posted requests are flushed. Returns whether that
    /// is new.
    pub fn lose(&mut self) -> bool {
        let waits = self.send.posted + self.recv.posted > 0;
        if self.state == State::Down || (self.state == State::Error && !waits) {
            return false;
        }
        self.state = State::Error;
        // The oldest request fails for a reason that verbs have no name for.
        self.send.lose(UNNAMED);
        self.recv.lose(UNNAMED);
        true
    }

    /// The device has reported that its queue pair is unusable. The relay flushes all outstanding
    /// requests. A device that still `obeys` is stopped first.
    pub fn give_up(&mut self, obeys: bool) {
        self.state = State::Error;
        if obeys {
            self.queues.to_error();
        }
        self.send.lose(Syndrome::WR_FLUSH);
        self.recv.lose(Syndrome::WR_FLUSH);
    }

    /// Stops to poll the rings. Drops the requests in flight, and the completions without a reader:
    /// not every device drops them when it is reset, and its completion queue has no room for those
    /// of two connections.
    pub fn down(&mut self) {
        self.state = State::Down;
        while self.queues.poll(&mut self.wcs) > 0 {}
        self.send.reset(self.rings.start);
        self.recv.reset(self.rings.start);
    }

    /// Whether the rings are not polled.
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// The next positions of the completion queues.
    pub fn positions(&self) -> (u32, u32) {
        (self.send.entries.next, self.recv.entries.next)
    }

    /// Does a bounded piece of work; returns whether there was any.
    pub fn advance(&mut self) -> bool {
        if self.state == State::Down {
            return false;
        }
        let mut busy = self.queues.progress();
        if self.queues.has_failed() && self.state == State::Up {
            self.fail();
        }
        busy |= self.collect();
        busy |= self.settle();
        busy |= self.read_sends();
        busy |= self.read_receives();
        busy |= self.queues.flush();
        busy | self.settle()
    }

    /// Posts new sends and sends them; all other work is left to the thread.
    pub(in crate::provider) fn push(&mut self) {
        if self.state != State::Down {
            self.read_sends();
            self.queues.flush();
        }
    }

    /// Whether requests have ended that are not reported yet.
    pub(in crate::provider) fn has_ends(&self) -> bool {
        let oldest = self.send.flight.front();
        let ended = oldest.is_some_and(|oldest| !matches!(oldest.stage, Stage::Posted));
        ended || self.queues.has_completions()
    }

    /// Posts the available receives now.
    pub fn receive(&mut self) {
        if self.state != State::Down {
            self.read_receives();
        }
    }

    fn collect(&mut self) -> bool {
        if self.send.posted + self.recv.posted == 0 {
            return false;
        }
        let n = self.queues.poll(&mut self.wcs);
        for wc in &self.wcs[..n] {
            let outcome = translate::outcome(wc);
            match wc.wr_id & RECEIVE {
                0 => self.send.done(wc.wr_id, outcome),
                _ => self.recv.done(wc.wr_id & !RECEIVE, outcome),
            }
        }
        n > 0
    }

    fn settle(&mut self) -> bool {
        let mut busy = false;
        for receives in [false, true] {
            let side = match receives {
                false => &mut self.send,
                true => &mut self.recv,
            };
            let (some, failed) = side.settle(self.state == State::Error);
            busy |= some;
            if failed && self.state != State::Error {
                self.fail();
            }
        }
        busy
    }

    /// Posts new sends, or flushes them.
    fn read_sends(&mut self) -> bool {
        let tail = self.rings.record.load32(doorbell::SND);
        let tail = doorbell::record_index(tail);
        let mut busy = false;
        loop {
            let left = tail.wrapping_sub(self.send.head as u16);
            let full = self.send.posted >= self.limits.sends;
            if left == 0 || full || self.send.blocked() {
                return busy;
            }
            let (head, blocks) = self.read_entry(left);
            let mut request = Request {
                counter: self.send.head as u16,
                opcode: head.doorbell.opcode,
                signaled: head.flags.signaled,
                stage: Stage::Nothing,
            };
            if self.state == State::Error {
                if self.send.posted > 0 {
                    // The entries of earlier requests come first.
                    return busy;
                }
                request.stage = Stage::Bad(Syndrome::WR_FLUSH);
                self.send.push(request, blocks.unwrap_or(1));
                self.send.settle(true);
                busy = true;
                continue;
            }
            request.stage = match blocks {
                None => Stage::Bad(Syndrome::LOCAL_QP_OP),
                Some(_) => match self.post_send(head.doorbell.ds) {
                    Some(stage) => stage,
                    None => return busy,
                },
            };
            self.send.push(request, blocks.unwrap_or(1));
            busy = true;
        }
    }

    /// Reads the entry at the head; returns its size in blocks if it is valid and within the `left`
    /// posted blocks.
    fn read_entry(&mut self, left: u16) -> (Head, Option<u32>) {
        let ring = self.rings.send.len();
        let at = self.send.head as usize * BASIC_BLOCK;
        let mut read = |i: usize| {
            let segment = self.rings.send.load_segment((at + i * SEGMENT) % ring);
            self.entry[i * SEGMENT..][..SEGMENT].copy_from_slice(&segment);
            segment
        };
        let head = Head::new(read(0));
        let ds = head.doorbell.ds;
        let blocks = u32::from(basic_blocks(ds));
        let good = (1..=MAX_SEGMENTS).contains(&ds.into())
            && head.doorbell.index == self.send.head as u16
            && head.doorbell.qpn == self.rings.qpn
            && blocks <= u32::from(left)
            && usize::from(left) * BASIC_BLOCK <= ring;
        if !good {
            return (head, None);
        }
        for i in 1..ds.into() {
            read(i);
        }
        (head, Some(blocks))
    }

    /// Posts the entry that was read to the device. `None`: not possible now.
    fn post_send(&mut self, ds: u8) -> Option<Stage> {
        let at = u64::from(self.send.head) * BASIC_BLOCK as u64;
        let bytes = &self.entry[..usize::from(ds) * SEGMENT];
        let most = translate::Most {
            sges: self.limits.send_sges,
            inline: self.limits.inline,
        };
        let ring = &self.rings.send_memory;
        // The lock is held until the device has taken the request.
        let handles = self.handles.as_deref().map(Handles::read);
        let wr = match &handles {
            None => translate::send(bytes, at, ring, most, &mut self.sges),
            Some(handles) => {
                let find = |av: &AvSeg| handles.find(av);
                translate::datagram(bytes, at, ring, most, &mut self.sges, find)
            }
        };
        let wr = match wr {
            Ok(None) => return Some(Stage::Nothing),
            Ok(Some(wr)) => wr,
            Err(syndrome) => return Some(Stage::Bad(syndrome)),
        };
        let mut wr = ibv_send_wr {
            wr_id: self.send.next(),
            ..wr
        };
        match self.queues.post_send(&mut wr) {
            0 => Some(Stage::Posted),
            // The device's queue is full, although it reported a higher limit.
            libc::ENOMEM if self.send.posted > 0 => None,
            _ => Some(Stage::Bad(Syndrome::LOCAL_QP_OP)),
        }
    }

    /// Posts new receives, or flushes them.
    fn read_receives(&mut self) -> bool {
        let tail = self.rings.record.load32(doorbell::RCV);
        let tail = doorbell::record_index(tail);
        let slots = self.rings.recv.len() / self.rings.stride;
        let mut busy = false;
        loop {
            let left = tail.wrapping_sub(self.recv.head as u16);
            let full = self.recv.posted >= self.limits.receives;
            if left == 0 || full || self.recv.blocked() {
                return busy;
            }
            let mut request = Request {
                counter: self.recv.head as u16,
                opcode: SendOpcode::default(),
                signaled: true,
                stage: Stage::Bad(Syndrome::WR_FLUSH),
            };
            if self.state == State::Error {
                if self.recv.posted > 0 {
                    return busy;
                }
                self.recv.push(request, 1);
                self.recv.settle(true);
                busy = true;
                continue;
            }
            request.stage = match self.post_receive(usize::from(left) <= slots, slots) {
                Some(stage) => stage,
                None => return busy,
            };
            self.recv.push(request, 1);
            busy = true;
        }
    }

    fn post_receive(&mut self, good: bool, slots: usize) -> Option<Stage> {
        let stride = self.rings.stride;
        let at = self.recv.head as usize % slots * stride;
        let slot = &mut self.entry[..stride];
        self.rings.recv.read(at, slot);
        let wr = match translate::receive(slot, self.limits.recv_sges, &mut self.sges) {
            Ok(wr) if good => wr,
            _ => return Some(Stage::Bad(Syndrome::LOCAL_QP_OP)),
        };
        let mut wr = ibv_recv_wr {
            wr_id: self.recv.next() | RECEIVE,
            ..wr
        };
        match self.queues.post_recv(&mut wr) {
            0 => Some(Stage::Posted),
            libc::ENOMEM if self.recv.posted > 0 => None,
            _ => Some(Stage::Bad(Syndrome::LOCAL_QP_OP)),
        }
    }
}

impl<Q: Queues> Machine for Relay<Q> {
    fn step(&mut self, _now: Time) -> Step {
        match self.advance() {
            true => Step::Progress,
            false => Step::IdleUntil(None),
        }
    }

    fn name(&self) -> String {
        format!("qp{:#x}.relay", self.rings.qpn)
    }
}

/// The first bytes of an entry.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The first eight bytes, which are the value of a doorbell.
    doorbell: SendDoorbell,
    flags: WqeFlags,
}

impl Head {
    fn new(segment: [u8; SEGMENT]) -> Head {
        let [doorbell @ .., _, _, _, flags, _, _, _, _] = segment;
        Head {
            doorbell: SendDoorbell::from_bytes(doorbell),
            flags: WqeFlags::from_byte(flags),
        }
    }
}

#[cfg(test)]
mod tests;
