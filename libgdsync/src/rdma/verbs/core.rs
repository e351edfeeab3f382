//! The core of a queue pair: the part that its owner shares with the watcher and the CPU thread.
//!
//! The owner's calls take the lock. The watcher takes it about once a millisecond for a few hundred
//! nanoseconds, the CPU thread whenever there is a request to post. A holder of the lock neither
//! waits nor calls the NIC ([`locked`](super::locked)). All memory that devices access is in
//! regions that the core keeps alive.

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

/// The objects that a request keeps alive while it is in flight.
pub(crate) type Hold = Vec<Held>;

/// One of these objects.
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

/// One of the two work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// The addresses of the pieces of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideAddrs {
    pub ring: SharedAddr,
    pub cq: SharedAddr,
    /// Per waiter: a count that its stream writes after it has passed.
    pub passed: SharedAddr,
    /// Per waiter: the count that its stream writes before it waits, for waits with a time limit.
    pub arrived: SharedAddr,
    /// Per request: its [`Status`] once it has failed.
    pub statuses: SharedAddr,
    /// With a CPU-thread doorbell: the number of complete positions, of 64 bits; streams
    /// of GPUs that compare cyclically wait for its lower half.
    pub done: SharedAddr,
    /// With a CPU-thread doorbell: the number of requests to post.
    pub trigger: SharedAddr,
}

/// The addresses of the pieces of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpAddrs {
    /// The page of the doorbell, for its name in traces; the library does not access memory by this
    /// address.
    pub uar: DevicePtr,
    /// The doorbell: eight bytes, only for stores.
    pub doorbell: SharedAddr,
    /// Whether the NIC reads it.
    pub reads_doorbell: bool,
    pub record: SharedAddr,
    pub error: SharedAddr,
    pub send: SideAddrs,
    pub recv: SideAddrs,
}

/// The side that writes the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RungBy {
    /// The poster writes the doorbell.
    Poster,
    /// The poster writes a trigger word; the CPU thread writes the doorbell, and publishes
    /// completions as words.
    CpuThread,
}

/// A wait with a time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub side: Side,
    pub waiter: usize,
    /// The completion that the stream waits for.
    pub position: u64,
    /// The value of the waiter's count that shows the arrival of its stream.
    pub mark: u32,
    pub limit: Duration,
    /// The time at which the stream was first seen at the wait.
    pub since: Option<Time>,
}

/// The phase in the life of a queue pair.
#[derive(Clone, Copy)]
pub(crate) enum Life {
    /// The owner holds it.
    Open,
    /// The owner has dropped it: the watcher finishes it.
    Closing,
    /// Nothing is in flight: the queue pair is kept only until streams have passed its doorbell.
    /// `ends` records how far they must run.
    Leaving,
    /// No thread accesses it any more.
    Closed,
}

/// The shared part of a queue pair; see the module.
pub(crate) struct QpCore {
    pub gpu: Gpu,
    /// The GPU's host, copied for fast access: it steps the software devices.
    pub host: Arc<dyn Host>,
    pub objects: QpObjects,
    pub addrs: QpAddrs,
    pub rung_by: RungBy,
    pub transport: Transport,
    pub timeout: Option<Duration>,
    /// The owner's additional error word.
    error: Option<Word32>,
    state: Mutex<QpState>,
    /// A [`Life`], which only increases: stored (release) by `advance`, loaded (acquire) by `is`.
    life: AtomicU8,
    /// The number of threads that are still dropping objects of requests. Incremented under the
    /// lock, decremented (release) without it; `calls_nic` loads with acquire, so that after it no
    /// registration of a completed request is left.
    pub(in crate::rdma) letting_go: AtomicU32,
    pub(in crate::rdma) ends: Mutex<Option<Ends>>,
    /// The region of the words: records, marks, statuses.
    pub control: Region,
    /// The other memory that devices use, and the protection domain: only kept alive, never read.
    _regions: Vec<Region>,
    _pd: Arc<PdInner>,
    pub nic: Arc<dyn Nic>,
    pub flushes: Flushes,
}

/// The state under the lock.
pub(crate) struct QpState {
    pub send: SendQueue<Mapped, Hold>,
    pub recv: ReceiveQueue<Mapped, Hold>,
    pub send_fault: Fault,
    pub recv_fault: Fault,
    /// The side and status with which the library itself put the queue pair in error, if it did.
    /// The oldest request of that side gets the status, the others are flushed.
    pub cause: Option<(Side, Status)>,
    /// Whether the queue pair is connected or activated.
    pub connected: bool,
    /// Whether the NIC must put the queue pair in error after the lock is released.
    pub fails: bool,
    /// Whether a thread without the lock calls the NIC to change the state of the queue pair. No
    /// second call starts meanwhile.
    pub under_way: bool,
    /// Last references of completed requests, dropped after the lock is released.
    pub ended: Vec<Ended>,
    /// Whether a stream was given a doorbell to write.
    pub rung_by_streams: bool,
    /// Set when a list failed half way: the ends of streams after which none of them posts the
    /// rest.
    pub torn: Option<Ends>,
    /// The number of resets of the queue pair.
    pub epoch: u32,
    pub timers: Vec<Timer>,
    /// The number of failed flushes when the queue pair was created or reset.
    pub flush_faults: u32,
    /// The number of send requests for which the CPU thread has written the doorbell.
    pub rung: u64,
    /// The number of the NIC's report that was last read.
    pub(in crate::rdma) reports: u32,
    /// The NIC's report about this queue pair.
    pub(in crate::rdma) reported: Option<Report>,
    /// The oldest incomplete position whose doorbell is written, and the time since then.
    pub(super) oldest: Option<(u64, Time)>,
}

struct Publisher<'a> {
    statuses: &'a Mapped,
    error: &'a Mapped,
    shared: Option<&'a Word32>,
    /// The fault counter that failures raise: streams rely on these requests to flush.
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
        // The word keeps the first real cause; a flush is only a consequence.
        let known = Status(self.error.load32(0));
        if known == Status::PENDING || (known == Status::FLUSHED && status != known) {
            self.error.store32(0, status.0);
        }
    }

    fn signaled(&mut self) {
        let Some(shared) = self.shared else { return };
        if shared.load().is_ok_and(|known| known == 0) {
            // Pinned memory, which the CPU can access: the store cannot fail.
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

    /// The number of the first packet of a connection that is made now. It changes with each reset,
    /// so that packets of a former connection are not accepted for this one.
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

    /// As [`QpCore::lock`], for a thread that serves other NICs too: calls of this NIC are left to
    /// the watcher's next visit.
    #[inline]
    pub fn lock_for_watcher(&self) -> MutexGuard<'_, QpState> {
        self.state.lock()
    }

    pub(in crate::rdma) fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self, self.state.try_lock()?))
    }

    /// Writes the doorbell from the CPU, for all requests up to `index`.
    pub fn ring(&self, index: u32, doorbell: [u8; 8]) {
        let record = &self.addrs.record.cpu;
        record.store32(doorbell::SND, doorbell::record_value(index));
        // The NIC must see the record before the doorbell, and the entries before both.
        fence(Ordering::SeqCst);
        let register = &self.addrs.doorbell.cpu;
        register.store64_fenced(0, u64::from_ne_bytes(doorbell));
        if self.nic.is_on_host() {
            self.host.ring();
        }
        self.nic.ring_sends(self.qpn());
    }

    /// Wakes a sleeping NIC, because streams are about to post.
    pub fn expect_posts(&self) {
        if self.nic.expects() {
            let (send, recv) = {
                let state = self.lock();
                (state.send.fifo.posted_head(), state.recv.fifo.posted_head())
            };
            self.nic.expect(self.qpn(), send, recv);
        }
    }

    /// Wakes the side that handles posts, which may sleep.
    pub fn ring_nic(&self) {
        if self.nic.is_on_host() {
            self.host.ring();
        }
        self.nic.ring();
    }

    /// Advances to `life`, unless the queue pair is in a later phase. The lock orders everything
    /// else.
    pub(in crate::rdma) fn advance(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::Release);
    }

    /// Whether the queue pair is exactly in the phase `life`.
    pub fn is(&self, life: Life) -> bool {
        self.life.load(Ordering::Acquire) == life as u8
    }

    /// Retires completed requests, attributes failures, releases streams.
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
            // A failed send of datagrams stops the send queue alone (state SQE of verbs): the NIC
            // continues the receives. The library fails the whole queue pair, as a connection.
            *cause = Some((Side::Send, status));
            *fails = true;
        }
        send.retire_with(|hold| let_go(hold, ended));
        recv.retire_with(|hold| let_go(hold, ended));
        if self.rung_by == RungBy::CpuThread {
            let (sends, receives) = (&self.addrs.send.done, &self.addrs.recv.done);
            sends.cpu.store64(0, send.cq.completed());
            receives.cpu.store64(0, recv.cq.completed());
        }
        if busy || before != (send.fifo.retired(), recv.fifo.retired()) {
            // Streams may continue.
            self.host.stored();
            busy = true;
        }
        busy
    }

    /// Whether the NIC and every stream are done with the queue pair. Receives that are posted and
    /// unmatched do not count: no message completes them any more. Receives that a stream has yet
    /// to post count: the stream writes the doorbell record when it reaches them, and would hand
    /// over entries from before a reset.
    pub fn is_idle(&self, state: &QpState) -> bool {
        let (send, recv) = (&state.send.fifo, &state.recv.fifo);
        state.is_done()
            && !self.calls_nic(state)
            && state.torn.is_none()
            && self.has_rung(state, send.posted_head(), send.posted())
            && self.has_posted_receives(recv.posted_head())
    }

    /// Whether the library is about to call the NIC for this queue pair, or is in a call.
    pub fn calls_nic(&self, state: &QpState) -> bool {
        state.fails || state.under_way || self.letting_go.load(Ordering::Acquire) != 0
    }

    /// Puts the queue pair in error for a reason of the library. The NIC flushes outstanding
    /// requests, and the flushed entries release the streams.
    pub fn fail(&self, state: &mut QpState, side: Side, status: Status) {
        if state.failed().is_some() {
            return;
        }
        state.cause = Some((side, status));
        state.connected = false;
        self.addrs.error.cpu.store32(0, status.0);
        state.fails = true;
    }

    /// Takes the queue pair from the NIC and releases every stream that waits for it. For the end
    /// of the device, when no watcher remains.
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
            addrs.done.cpu.store64(0, cq.next());
        }
        // Ordering edges need no action: streams write the record whether or not a NIC reads it.
        self.host.ring();
    }
}

impl QpState {
    /// The state of a queue pair that is not connected and has no prepared requests.
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

    /// Status of the first request that failed, or the reason why the library failed the queue
    /// pair.
    #[inline]
    pub fn failed(&self) -> Option<Status> {
        // Without short-circuit evaluation: four loads and one branch for each request.
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

    /// The outcome of the request with this ticket and serial, as far as it is known.
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

    /// Whether the NIC is done with all posted requests, and every stream has passed its waits.
    fn is_done(&self) -> bool {
        settled(&self.send.fifo) && self.send.cq.all_passed() && self.recv.cq.all_passed()
    }
}

/// Bytes of the waiters' words.
pub(crate) const WAITER_WORDS: usize = 4 * WAITERS;
