//! The sending half of a queue pair: fetches work queue entries, sends their messages, and
//! completes them in order as answers arrive.
//!
//! A fetched entry waits in `pending` until its message is acknowledged. `cursor` counts the sent
//! ones. When packets are lost, `cursor` goes back and the NIC fetches the entries from the ring
//! again; the NIC owns the entries in the ring until they complete. `send` has the send path,
//! `answer` the handling of answers, `retry` the timeouts and retries, `datagram` the send path of
//! datagrams.

mod answer;
mod datagram;
mod retry;
mod send;

pub(crate) use datagram::Datagrams;

use std::collections::VecDeque;
use std::time::Duration;

use gds_step::Time;
use mlx5_prm::cqe::MAX_SCATTER;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Sge, WqeFlags};

use crate::attr::SqAttr;
use crate::error::Fault;
use crate::frame::{packets, psn};
use crate::sq::{Entry, MAX_WQE};

/// Most entries of one queue that are fetched and not complete.
const MAX_PENDING: usize = 1024;

/// Most packets in flight, unless they belong to one read. This is far less than half of all
/// numbers, so that old and new numbers can be distinguished.
const WINDOW: u32 = 1 << 22;

pub(crate) struct Requester {
    pub ring: SqAttr,
    start: u16,
    /// Index of the next entry to fetch, and the index that the last doorbell announced.
    pub next: u16,
    pub rung: u16,
    /// Entries fetched and not completed, in order.
    pub pending: VecDeque<Pending>,
    /// How many entries of `pending` were sent.
    pub cursor: usize,
    /// Bytes of the message at `cursor` that were sent.
    sent: u32,
    /// `wqe` contains the entry at `cursor`.
    loaded: bool,
    wqe: Box<[u8; MAX_WQE]>,
    mtu_log: u8,
    /// Number of the next message's first packet.
    psn: u32,
    /// The NIC has acknowledgements of every packet before this one.
    acked: u32,
    /// The number after the last packet that was ever sent. It differs from the packet at `cursor`
    /// after `cursor` went back.
    top: u32,
    pub max_rd_atomic: u8,
    /// Reads and atomics that wait for their answer, in order.
    reads: VecDeque<ReadCtx>,
    spare: Vec<Vec<Sge>>,
    /// Results of reads and atomics that go into their completion entries, in order, with the
    /// number of their first packet.
    brought: VecDeque<(u32, [u8; MAX_SCATTER])>,
    /// The responder has no receive: the queue pair sends nothing until the wait is over.
    held: bool,
    /// The fault of the entry at `cursor`: reported once the entries before it are complete.
    fault: Option<Fault>,
    /// The time of the next retransmission, or the end of the wait of `held`.
    pub deadline: Option<Time>,
    pub timeout: Option<Duration>,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Retries that remain until progress resets them.
    retries_left: u8,
    rnr_left: u8,
    /// The acknowledged packet at the last report of a loss: further reports of the same loss do
    /// not count.
    loss_at: Option<u32>,
}

/// A fetched entry.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub index: u16,
    pub opcode: SendOpcode,
    blocks: u8,
    flags: WqeFlags,
    /// The number of its message's first packet; without a message, that of the next packet.
    psn: u32,
    /// Number of packets of the message, or of its answer if that has more.
    packets: u32,
    /// It has a message. NOPs have none, nor have entries that were malformed from the start.
    numbered: bool,
    total: u32,
}

struct ReadCtx {
    psn: u32,
    packets: u32,
    atomic: bool,
    total: u32,
    got: u32,
    /// Its result goes into the completion entry.
    scattered: bool,
    sges: Vec<Sge>,
}

impl ReadCtx {
    /// The first missing packet.
    fn next(&self, mtu_log: u8) -> u32 {
        psn::add(self.psn, self.got >> mtu_log)
    }
}

/// The parameters of a connection's sends.
#[derive(Default)]
pub(crate) struct Begin {
    pub psn: u32,
    pub mtu_log: u8,
    pub max_rd_atomic: u8,
    pub timeout: Option<Duration>,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// The result of a queue pair's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is no work until the next event.
    Done,
    /// There is more work.
    More,
    /// The fabric has no room (backpressure).
    Full,
}

/// The budget of a queue pair's turn.
pub(crate) struct Allowance {
    pub frames: u32,
    pub bytes: usize,
}

impl Allowance {
    pub fn spend(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub fn spent(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }
}

impl Requester {
    pub fn new(ring: SqAttr, start: u16) -> Requester {
        Requester {
            ring,
            start,
            next: start,
            rung: start,
            pending: VecDeque::new(),
            cursor: 0,
            sent: 0,
            loaded: false,
            wqe: Box::new([0; MAX_WQE]),
            mtu_log: 12,
            psn: 0,
            acked: 0,
            top: 0,
            max_rd_atomic: 0,
            reads: VecDeque::new(),
            spare: Vec::new(),
            brought: VecDeque::new(),
            held: false,
            fault: None,
            deadline: None,
            timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            retries_left: 0,
            rnr_left: 0,
            loss_at: None,
        }
    }

    pub fn reset(&mut self) {
        self.next = self.start;
        self.rung = self.start;
        self.pending.clear();
        self.brought.clear();
        self.stop();
        self.stop_clock();
        self.cursor = 0;
        (self.psn, self.acked, self.top) = (0, 0, 0);
        while let Some(read) = self.reads.pop_front() {
            self.spare.push(read.sges);
        }
    }

    /// Resets the progress of the entry at `cursor`.
    fn drop_current(&mut self) {
        self.sent = 0;
        self.loaded = false;
        self.fault = None;
    }

    fn stop(&mut self) {
        self.drop_current();
        self.held = false;
    }

    pub fn begin(&mut self, how: Begin) {
        self.psn = how.psn;
        self.acked = how.psn;
        self.top = how.psn;
        self.mtu_log = how.mtu_log;
        self.max_rd_atomic = how.max_rd_atomic;
        self.timeout = how.timeout;
        (self.retry_cnt, self.rnr_retry) = (how.retry_cnt, how.rnr_retry);
        (self.retries_left, self.rnr_left) = (how.retry_cnt, how.rnr_retry);
        self.loss_at = None;
    }

    /// Reloads the counts of retries; no work is outstanding.
    pub fn refill(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry_cnt, self.rnr_retry);
    }

    /// Resumes after a failure that ended all work: new packets follow all former ones.
    pub fn restart(&mut self) {
        (self.acked, self.top) = (self.psn, self.psn);
        self.cursor = self.pending.len();
    }

    /// The index up to which entries are complete.
    pub fn done(&self) -> u16 {
        self.pending.front().map_or(self.next, |p| p.index)
    }

    /// Returns true if packet `p` was sent and not acknowledged.
    fn waits_for(&self, p: u32) -> bool {
        psn::after(self.acked, p) < psn::after(self.acked, self.top)
    }

    /// Returns true if a packet was sent and not acknowledged.
    pub fn outstanding(&self) -> bool {
        self.acked != self.top
    }

    /// Returns true if a read or atomic before packet `p` waits for its answer.
    fn read_before(&self, p: u32) -> bool {
        self.reads.front().is_some_and(|r| psn::before(r.psn, p))
    }

    fn push(&mut self, index: u16, entry: Entry) {
        let numbered = self.loaded && entry.opcode != SendOpcode::NOP;
        let packets = packets(entry.total, self.mtu_log);
        self.pending.push_back(Pending {
            index,
            opcode: entry.opcode,
            blocks: entry.blocks,
            flags: entry.flags,
            psn: self.psn,
            packets,
            numbered,
            total: entry.total,
        });
        self.next = index.wrapping_add(u16::from(entry.blocks));
        if numbered {
            self.psn = psn::add(self.psn, packets);
        }
    }

    /// The entry at `cursor` is sent: advance to the next.
    fn advance(&mut self) {
        self.cursor += 1;
        self.sent = 0;
        self.loaded = false;
    }
}
