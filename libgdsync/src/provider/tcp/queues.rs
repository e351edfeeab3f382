//! One queue pair: it sends its requests as frames, executes those of the peer, and completes both.
//!
//! Both sides execute the other's requests in order. Long payloads are stored as they arrive; a request is
//! executed when its last byte has arrived. It is complete when the peer's count of executed requests
//! covers it, and a READ or an atomic when its answer is there. The count travels in the head of each
//! frame. It waits for a moment ([`delay`](super::delay)) for a frame to carry it, so an exchange of short
//! messages costs one segment each way; then a frame carries it alone.
//!
//! A request that takes a receive is held back, and those behind it, until the peer has announced a
//! receive for it. A missing receive therefore never stops the reading of a connection, and never
//! delays an answer.
//!
//! [`requests`] has the requests of this side, [`peer`] executes those of the other one, [`counts`] is
//! what the two know of each other's queues, and [`connection`] begins connections.

mod connection;
mod counts;
mod peer;
mod requests;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};

use self::connection::Link;
pub use self::connection::Offer;
use self::counts::Counts;
use self::peer::{Peer, Refusal};
use self::requests::Requests;
use super::frame::{Head, Kind};
use super::greeting::{End, Key};
use super::input::Input;
use super::memory::{Pieces, Registrations};
use super::output::Output;
use super::{Broken, LAST};
use crate::gpu::Chunks;
use crate::nic::{Access, Events, MrKeys, PdId};
use crate::provider::relay::Queues;

/// Bytes that are received in one step; then other queue pairs have their turn.
const STEP: usize = 512 * 1024;
/// For this many steps after the last byte, each step reads the connection, whether or not the poller
/// reports it: a peer that has just sent is likely to send again.
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
    requests: Requests,
    peer: Peer,
    counts: Counts,
    refusal: Option<Refusal>,
    output: Output,
    input: Input,
    done: VecDeque<ibv_wc>,
    /// Whether the connection has bytes that were left for the next step.
    more: bool,
    /// Number of steps in which the connection is read without a look for events.
    hot: u32,
}

/// A completion.
fn completion(wr_id: u64, status: c_int) -> ibv_wc {
    ibv_wc {
        wr_id,
        status,
        ..ibv_wc::default()
    }
}

/// The pieces of a request.
///
/// # Safety
/// `at` points to `count` pieces for as long as `'a`.
unsafe fn pieces_of<'a>(at: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match count {
        0 => &[],
        // SAFETY: the caller's promise.
        n => unsafe { std::slice::from_raw_parts(at, n as usize) },
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
            requests: Requests::default(),
            peer: Peer::default(),
            counts: Counts::default(),
            refusal: None,
            output: Output::new(shared.chunks.clone()),
            input: Input::new(shared.chunks.clone()),
            done: VecDeque::new(),
            more: false,
            hot: 0,
        }
    }

    /// The registration of the send ring.
    pub fn ring(&self) -> MrKeys {
        self.ring
    }

    /// Closes the connection and forgets all requests: the queue pair is in its first state.
    pub fn reset(&mut self) {
        // The peer gets pending answers and counts, as far as the connection takes them.
        self.write_out();
        self.announce();
        self.write_out();
        if let Link::Open(wire) = std::mem::replace(&mut self.link, Link::None) {
            wire.close();
        }
        let number = self.number;
        let shared = Arc::clone(&self.shared);
        *self = TcpQueues::new(&shared, self.pd, self.access, self.ring, self.limit);
        self.number = number;
    }

    /// Ends the connection: the oldest request fails with `status`, those behind it are flushed.
    fn end_connection(&mut self, why: Broken, status: c_int) {
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
        self.report_refusal();
        // Requests and receives that have ended keep no memory.
        self.output = Output::default();
        self.peer.forget();
        self.input.forget_chunks();
        self.requests.fail(status, &mut self.done);
    }

    fn push_head(&mut self, head: Head) {
        let head = self.counts.stamp(head);
        self.output.push_bytes(&head.encode());
    }

    /// Whether the peer lacks a count that it may wait for.
    fn has_news(&self) -> bool {
        let open = matches!(self.link, Link::Open(_)) && self.refusal.is_none();
        open && self.counts.has_news()
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

    /// As [`TcpQueues::write`], and waits a moment for what a copy engine copies.
    fn write_out(&mut self) {
        let start = Instant::now();
        while self.write().is_ok() && self.output.waits() && start.elapsed() < LAST {
            std::hint::spin_loop();
        }
    }

    /// Receives and executes what has arrived, and what a copy engine still copies, for at most [`LAST`].
    fn read_out(&mut self) {
        let start = Instant::now();
        while start.elapsed() < LAST {
            match self.receive() {
                Ok(busy) if busy || self.input.is_copying() => {}
                _ => return,
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
            let (n, more) = match self.input.read(&mut **wire, self.peer.payload()) {
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
}

impl Queues for TcpQueues {
    fn post_send(&mut self, wr: &mut ibv_send_wr) -> c_int {
        self.post(wr)
    }

    fn post_recv(&mut self, wr: &mut ibv_recv_wr) -> c_int {
        self.post_receive(wr);
        0
    }

    fn poll(&mut self, into: &mut [ibv_wc]) -> usize {
        let n = into.len().min(self.done.len());
        for (to, wc) in into.iter_mut().zip(self.done.drain(..n)) {
            *to = wc;
        }
        n
    }

    fn has_completions(&self) -> bool {
        !self.done.is_empty()
    }

    fn to_error(&mut self) -> bool {
        self.end_connection(Broken::Stopped, IBV_WC_WR_FLUSH_ERR);
        self.peer.flush(&mut self.done);
        true
    }

    fn progress(&mut self) -> bool {
        if matches!(self.link, Link::None | Link::Broken) {
            return false;
        }
        if !self.confirmed && self.is_late() {
            self.end_connection(Broken::Late, IBV_WC_RETRY_EXC_ERR);
            return true;
        }
        let Link::Open(wire) = &mut self.link else {
            return self.connecting();
        };
        if !wire.may_read() && !self.more && self.hot == 0 && !self.input.is_copying() {
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
                self.end_connection(why, IBV_WC_RETRY_EXC_ERR);
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
            let urgent = self.counts.is_urgent();
            let now = Instant::now();
            let due = self.counts.is_due(now);
            let sent = (due || urgent) && self.announce();
            if sent && !urgent {
                self.counts.sent_alone(now);
            }
        }
        match self.write() {
            Ok(_) if self.has_refused() => {
                self.end_connection(Broken::Refused, IBV_WC_RETRY_EXC_ERR);
                true
            }
            Ok(wrote) => wrote || self.output.waits(),
            Err(e) => {
                let why = e.raw_os_error().map_or(Broken::Gpu, Broken::Connection);
                // What arrived before the error may complete requests, or refuse one.
                if matches!(why, Broken::Connection(_)) {
                    self.read_out();
                }
                self.end_connection(why, IBV_WC_RETRY_EXC_ERR);
                true
            }
        }
    }

    fn needs_thread(&self) -> bool {
        let connecting = matches!(self.link, Link::Awaited | Link::Dialled(_));
        connecting || self.has_news() || self.is_copying()
    }

    fn due(&self) -> Option<Instant> {
        match &self.link {
            Link::Dialled(dial) => Some(dial.due()),
            _ => None,
        }
    }

    fn is_copying(&self) -> bool {
        self.input.is_copying() || self.output.waits()
    }

    fn has_failed(&self) -> bool {
        self.refusal.is_some() && matches!(self.link, Link::Broken)
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
