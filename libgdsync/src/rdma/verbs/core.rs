//! The part of a queue pair that its owner shares with the watcher and the CPU thread.
//!
//! The owner's calls take the lock; the watcher takes it about once a millisecond for a few
//! hundred nanoseconds, the CPU thread when there is something to post. Nobody waits while holding
//! it, or calls the NIC ([`locked`](super::locked)). Everything that devices touch lies in regions
//! that this keeps alive.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use gds_step::{Host, Mutex, Time};
use mlx5_prm::doorbell;

use super::device::Flushes;
use super::locked::{Ended, Locked, let_go};
use super::pd::PdInner;
use super::watch::FlushFaults;
use super::{Destination, Mr};
use crate::gpu::{Ends, Gpu, Mapped, Region, Word32};
use crate::memop::DevicePtr;
use crate::nic::{Nic, QpObjects, Report, SharedAddr, Transport};
use crate::ring::cq::WAITERS;
use crate::ring::fault::{Fault, StatusSink, due, settled, status};
use crate::ring::fifo::Fifo;
use crate::ring::{CompletionRing, ReceiveQueue, RingMemory, SendQueue, Ticket};
use crate::status::Status;

/// What requests keep alive while they are in flight.
pub(crate) type Hold = Vec<Held>;

/// One thing of these.
pub(crate) enum Held {
    Memory(Mr),
    Destination(Destination),
}

impl From<&Mr> for Held {
    fn from(mr: &Mr) -> Held {
        Held::Memory(mr.clone())
    }
}

impl From<&Destination> for Held {
    fn from(to: &Destination) -> Held {
        Held::Destination(to.clone())
    }
}

/// Which of the two work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// Where the pieces of one side lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideAddrs {
    pub ring: SharedAddr,
    pub cq: SharedAddr,
    /// Per waiter: counted up by its stream after it has passed.
    pub passed: SharedAddr,
    /// Per waiter: written by its stream before it waits, for waits with a time limit.
    pub arrived: SharedAddr,
    /// Per request: its [`Status`] once it has failed.
    pub statuses: SharedAddr,
    /// Rung by the CPU thread: how many positions are complete.
    pub done: SharedAddr,
    /// Rung by the CPU thread: how many requests are to be posted.
    pub trigger: SharedAddr,
}

/// Where the pieces of a queue pair lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpAddrs {
    /// The page of the doorbell, for its name in traces; no access is by this.
    pub uar: DevicePtr,
    /// The doorbell: eight bytes, for stores alone.
    pub doorbell: SharedAddr,
    pub record: SharedAddr,
    pub error: SharedAddr,
    pub send: SideAddrs,
    pub recv: SideAddrs,
}

/// How work reaches the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RungBy {
    /// The poster rings the NIC itself.
    Poster,
    /// The poster writes a word; the CPU thread rings, and publishes completions as words.
    CpuThread,
}

/// A wait with a time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub side: Side,
    pub waiter: usize,
    /// The completion waited for.
    pub position: u64,
    /// The waiter's count by which its stream says that it has arrived.
    pub mark: u32,
    pub limit: Duration,
    /// When the stream was first seen to stand at the wait.
    pub since: Option<Time>,
}

/// How far the life of a queue pair has come.
#[derive(Clone, Copy)]
pub(crate) enum Life {
    /// Its owner has it.
    Open,
    /// Its owner has dropped it: the watcher finishes it.
    Closing,
    /// Nothing of it is in flight: it is kept only until streams are past its doorbell, which
    /// `ends` records.
    Leaving,
    /// Nobody will touch it again.
    Closed,
}

/// See the module.
pub(crate) struct QpCore {
    pub gpu: Gpu,
    /// The GPU's, at hand: who steps the software devices.
    pub host: Arc<dyn Host>,
    pub objects: QpObjects,
    pub addrs: QpAddrs,
    pub rung_by: RungBy,
    pub transport: Transport,
    pub timeout: Option<Duration>,
    /// The owner's own error word.
    error: Option<Word32>,
    state: Mutex<QpState>,
    /// A [`Life`], which only goes on: raised (released) by `advance`, loaded (acquired) by `is`.
    life: AtomicU8,
    /// How many holders of the lock are still dropping what requests held. Raised under the
    /// lock, lowered (released) without it; `calls_nic` acquires, so that after it no registration of
    /// a request that is done is left.
    pub(in crate::rdma) letting_go: AtomicU32,
    pub(in crate::rdma) ends: Mutex<Option<Ends>>,
    /// The region of the words: records, marks, statuses.
    pub control: Region,
    /// The other memory that devices use, and the protection domain: held, never read.
    _regions: Vec<Region>,
    _pd: Arc<PdInner>,
    pub nic: Arc<dyn Nic>,
    pub flushes: Flushes,
}

/// What the lock guards.
pub(crate) struct QpState {
    pub send: SendQueue<Mapped, Hold>,
    pub recv: ReceiveQueue<Mapped, Hold>,
    pub send_fault: Fault,
    pub recv_fault: Fault,
    /// Why the library itself put the queue pair in error, if it did, and for whose sake: the
    /// oldest request of that side gets the status, the others are flushed.
    pub cause: Option<(Side, Status)>,
    /// Or activated.
    pub connected: bool,
    /// The NIC is to put the queue pair in error, once the lock is free.
    pub fails: bool,
    /// A call of the NIC that changes the state of the queue pair is under way, without the lock.
    /// No other is started meanwhile.
    pub under_way: bool,
    /// Last references of completed requests, dropped once the lock is free.
    pub ended: Vec<Ended>,
    /// A stream was given a doorbell to ring.
    pub rung_by_streams: bool,
    /// A list failed half way: how far streams have to run before it is certain that none of them
    /// posts the rest.
    pub torn: Option<Ends>,
    /// How often the queue pair was reset.
    pub epoch: u32,
    pub timers: Vec<Timer>,
    /// How many flushes had failed when the queue pair was made or reset.
    pub flush_faults: u32,
    /// Send requests that the CPU thread has rung for.
    pub rung: u64,
    /// The number of the NIC's reports that was last looked up.
    pub(in crate::rdma) reports: u32,
    /// What the NIC reported about this queue pair.
    pub(in crate::rdma) reported: Option<Report>,
    /// The oldest incomplete position whose doorbell was rung, and since when.
    pub(super) oldest: Option<(u64, Time)>,
}

struct Publisher<'a> {
    statuses: &'a Mapped,
    error: &'a Mapped,
    shared: Option<&'a Word32>,
    /// Told of failures: streams rely on the requests to flush.
    fault: Option<&'a FlushFaults>,
    slots: u64,
}

impl StatusSink for Publisher<'_> {
    fn publish(&mut self, ticket: u64, status: Status) {
        if let Some(fault) = self.fault.filter(|_| status.is_error()) {
            fault.raise();
        }
        let slot = (ticket & (self.slots - 1)) as usize;
        self.statuses.store32(4 * slot, status.0);
        // The word keeps the first real cause; a flush is only a consequence of one.
        let known = Status(self.error.load32(0));
        if known == Status::PENDING || (known == Status::FLUSHED && status != known) {
            self.error.store32(0, status.0);
        }
    }

    fn signaled(&mut self) {
        let Some(shared) = self.shared else { return };
        if shared.load().is_ok_and(|known| known == 0) {
            // Pinned memory, which the CPU reaches: it cannot fail.
            let _ = shared.store(self.error.load32(0));
        }
    }
}

impl QpCore {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        gpu: Gpu,
        nic: Arc<dyn Nic>,
        objects: QpObjects,
        addrs: QpAddrs,
        rung_by: RungBy,
        transport: Transport,
        timeout: Option<Duration>,
        error: Option<Word32>,
        control: Region,
        regions: Vec<Region>,
        pd: Arc<PdInner>,
        flushes: Flushes,
        send: SendQueue<Mapped, Hold>,
        recv: ReceiveQueue<Mapped, Hold>,
    ) -> QpCore {
        QpCore {
            host: Arc::clone(gpu.host()),
            gpu,
            nic,
            objects,
            addrs,
            rung_by,
            transport,
            timeout,
            error,
            state: Mutex::new(QpState {
                flush_faults: flushes.fault.count(),
                ..QpState::new(send, recv)
            }),
            life: AtomicU8::new(Life::Open as u8),
            letting_go: AtomicU32::new(0),
            ends: Mutex::default(),
            control,
            _regions: regions,
            _pd: pd,
            flushes,
        }
    }

    pub fn qpn(&self) -> u32 {
        self.objects.qpn
    }

    /// Number of the first packet of a connection made now: another one after each reset, so
    /// that what a former connection left behind is not taken for this one's.
    pub fn psn(&self, state: &QpState) -> u32 {
        let mixed = self.qpn().wrapping_mul(0x9e37_79b1) ^ state.epoch.wrapping_mul(0x85eb_ca6b);
        mixed >> 8
    }

    pub fn side(&self, side: Side) -> &SideAddrs {
        match side {
            Side::Send => &self.addrs.send,
            Side::Receive => &self.addrs.recv,
        }
    }

    #[inline]
    pub fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.lock_for_watcher())
    }

    /// As [`QpCore::lock`], for a thread that serves other NICs too: what is to be done at this NIC
    /// is left to the watcher's next visit.
    #[inline]
    pub fn lock_for_watcher(&self) -> MutexGuard<'_, QpState> {
        self.state.lock()
    }

    pub(in crate::rdma) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self, self.state.try_lock()?))
    }

    /// Rings from the CPU: everything up to `index` is for the NIC.
    pub fn ring(&self, index: u32, doorbell: [u8; 8]) {
        let record = &self.addrs.record.cpu;
        record.store32(doorbell::SND, doorbell::record_value(index));
        // The NIC must see the record before the doorbell, and the entries before both.
        fence(Ordering::SeqCst);
        let register = &self.addrs.doorbell.cpu;
        register.store64_fenced(0, u64::from_ne_bytes(doorbell));
        self.ring_nic();
    }

    /// Tells a NIC that sleeps what streams are going to post.
    pub fn expect_posts(&self) {
        if self.nic.expects() {
            let (send, recv) = {
                let state = self.lock();
                (state.send.fifo.posted_head(), state.recv.fifo.posted_head())
            };
            self.nic.expect(self.qpn(), send, recv);
        }
    }

    /// Tells whoever may sleep that something was posted.
    pub fn ring_nic(&self) {
        self.host.ring();
        self.nic.ring();
    }

    /// Goes on to `life`, unless the queue pair has come further. The lock orders everything else.
    pub(in crate::rdma) fn advance(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::Release);
    }

    /// Whether the queue pair has come to `life`, and no further.
    pub fn is(&self, life: Life) -> bool {
        self.life.load(Ordering::Acquire) == life as u8
    }

    /// Retires what is complete, attributes what has failed, releases streams.
    pub fn settle(&self, state: &mut QpState) -> bool {
        let faults = self.flushes.fault.count();
        if faults != state.flush_faults && !self.flushes.raises {
            state.flush_faults = faults;
            self.fail(state, Side::Receive, Status::NOT_VISIBLE);
        }
        let lost = state.lost();
        let QpState {
            send,
            recv,
            send_fault,
            recv_fault,
            cause,
            fails,
            ended,
            ..
        } = state;
        let cause_of = |side| {
            cause
                .filter(|(of, _)| *of == side)
                .map(|(_, status)| status)
                .or(lost)
        };
        let before = (send.fifo.retired(), recv.fifo.retired());
        let mut busy = false;
        let mut sink = Publisher {
            statuses: &self.addrs.send.statuses.cpu,
            error: &self.addrs.error.cpu,
            shared: self.error.as_ref(),
            fault: self.flushes.raises.then_some(&*self.flushes.fault),
            slots: u64::from(send.fifo.room()),
        };
        let (sent, received) = due(&mut send.cq, &mut recv.cq);
        if sent {
            let cause = cause_of(Side::Send);
            busy |= send_fault.tick(&mut send.fifo, &mut send.cq, cause, &mut sink);
        }
        sink.statuses = &self.addrs.recv.statuses.cpu;
        sink.slots = u64::from(recv.fifo.room());
        if received {
            let cause = cause_of(Side::Receive);
            busy |= recv_fault.tick(&mut recv.fifo, &mut recv.cq, cause, &mut sink);
        }
        if let (Transport::Ud { .. }, None, Some(status)) =
            (self.transport, *cause, send_fault.first())
        {
            // A NIC would go on with the receives of such a queue pair.
            *cause = Some((Side::Send, status));
            *fails = true;
        }
        send.retire_with(|hold| let_go(hold, ended));
        recv.retire_with(|hold| let_go(hold, ended));
        if self.rung_by == RungBy::CpuThread {
            let (sends, receives) = (&self.addrs.send.done, &self.addrs.recv.done);
            sends.cpu.store32(0, send.cq.completed() as u32);
            receives.cpu.store32(0, recv.cq.completed() as u32);
        }
        if busy || before != (send.fifo.retired(), recv.fifo.retired()) {
            // Streams may go on: the device thread should look.
            self.host.ring();
            busy = true;
        }
        busy
    }

    /// Whether the NIC and every stream are done with the queue pair. Receives that are posted
    /// and not matched do not count: no message completes them any more. Those that a stream has
    /// still to post do: it writes the doorbell record when it comes to them, and would hand over
    /// entries of before a reset.
    pub fn is_idle(&self, state: &QpState) -> bool {
        let (send, recv) = (&state.send.fifo, &state.recv.fifo);
        state.is_done()
            && !self.calls_nic(state)
            && state.torn.is_none()
            && self.has_rung(state, send.posted_head(), send.posted())
            && self.has_posted_receives(recv.posted_head())
    }

    /// Whether the library is about to call the NIC for this queue pair, or has not returned.
    pub fn calls_nic(&self, state: &QpState) -> bool {
        state.fails || state.under_way || self.letting_go.load(Ordering::Acquire) != 0
    }

    /// Puts the queue pair in error for a reason of the library's own. What is outstanding is
    /// flushed by the NIC, and the flushed entries release the streams.
    pub fn fail(&self, state: &mut QpState, side: Side, status: Status) {
        if state.failed().is_some() {
            return;
        }
        state.cause = Some((side, status));
        state.connected = false;
        self.addrs.error.cpu.store32(0, status.0);
        state.fails = true;
    }

    /// Takes the queue pair from the NIC and lets every stream pass that waits for it. For the
    /// end of the device, when nobody will watch any more.
    pub fn abandon(&self) {
        if self.is(Life::Closed) {
            return;
        }
        self.nic.destroy_qp(&self.objects);
        let leaving = self.is(Life::Leaving);
        self.advance(Life::Closed);
        let mut state = self.lock();
        let state = &mut *state;
        if !leaving && !self.is_idle(state) {
            self.addrs.error.cpu.store32(0, Status::CLOSED.0);
        }
        for (addrs, cq) in [
            (&self.addrs.send, &state.send.cq),
            (&self.addrs.recv, &state.recv.cq),
        ] {
            for position in cq.completed()..cq.next() {
                cq.release(position);
            }
            addrs.done.cpu.store32(0, cq.next() as u32);
        }
        // Ordering edges need no help: streams write the record whether or not a NIC reads it.
        self.host.ring();
    }
}

impl QpState {
    /// The state of a queue pair that is not connected and has nothing prepared.
    pub fn new(send: SendQueue<Mapped, Hold>, recv: ReceiveQueue<Mapped, Hold>) -> QpState {
        QpState {
            send,
            recv,
            send_fault: Fault::default(),
            recv_fault: Fault::default(),
            cause: None,
            connected: false,
            fails: false,
            under_way: false,
            ended: Vec::new(),
            rung_by_streams: false,
            torn: None,
            epoch: 0,
            timers: Vec::new(),
            flush_faults: 0,
            rung: 0,
            reports: 0,
            reported: None,
            oldest: None,
        }
    }

    /// Status of the first request that failed, or why the library gave up.
    #[inline]
    pub fn failed(&self) -> Option<Status> {
        // Without short cuts: four loads and one branch for each request.
        let sound = self.cause.is_none()
            & self.reported.is_none()
            & self.send_fault.first().is_none()
            & self.recv_fault.first().is_none();
        if sound { None } else { self.failure() }
    }

    #[cold]
    #[inline(never)]
    fn failure(&self) -> Option<Status> {
        let says = |s: &Status| !matches!(*s, Status::FLUSHED | Status::UNKNOWN_SYNDROME);
        let flush = |s: &Status| *s != Status::FLUSHED;
        self.cause
            .map(|(_, status)| status)
            .or(self.send_fault.first().filter(says))
            .or(self.recv_fault.first().filter(says))
            .or(self.reported())
            .or(self.send_fault.first().filter(flush))
            .or(self.recv_fault.first().filter(flush))
            .or(self.send_fault.first())
            .or(self.recv_fault.first())
    }

    /// The outcome of the request with this ticket and serial as far as it is known.
    pub fn status(&self, side: Side, ticket: Ticket, serial: u64) -> Option<Status> {
        status(self.fifo(side), ticket.0, serial)
    }

    /// The requests of one side.
    pub fn fifo(&self, side: Side) -> &Fifo<Hold> {
        match side {
            Side::Send => &self.send.fifo,
            Side::Receive => &self.recv.fifo,
        }
    }

    /// The requests and the completions of one side.
    pub fn work(&mut self, side: Side) -> (&mut Fifo<Hold>, &mut CompletionRing<Mapped>) {
        match side {
            Side::Send => (&mut self.send.fifo, &mut self.send.cq),
            Side::Receive => (&mut self.recv.fifo, &mut self.recv.cq),
        }
    }

    /// Whether the NIC is done with what was sent, and every stream has passed its waits.
    fn is_done(&self) -> bool {
        settled(&self.send.fifo) && self.send.cq.all_passed() && self.recv.cq.all_passed()
    }
}

/// Bytes of the waiters' words.
pub(crate) const WAITER_WORDS: usize = 4 * WAITERS;
