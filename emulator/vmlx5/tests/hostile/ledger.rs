//! The valid completions of one queue pair: each entry once and in order, and only flushes after a
//! failure.

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;

use crate::rig::*;

/// The completions of a queue pair so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// The index after the last completed send.
    sent: u16,
    /// A send failed.
    failed: bool,
    /// The index of the next receive to complete.
    received: u16,
    /// A receive failed.
    refused: bool,
}

/// The vendor syndrome of an error entry; none for other entries.
fn syndrome(entry: &Cqe64) -> Option<Syndrome> {
    entry.opcode().is_error().then(|| entry.as_error().reason())
}

impl Ledger {
    /// A ledger for a queue pair, from the start indices of its end.
    pub fn new(end: &End) -> Ledger {
        Ledger {
            sent: end.config.sq_start,
            received: end.config.rq_start,
            ..Ledger::default()
        }
    }

    /// Sends continue after a failure.
    pub fn resumed(&mut self) {
        self.failed = false;
    }

    /// Records a completion.
    pub fn take(&mut self, end: &mut End) {
        for entry in end.send.drain() {
            self.send(end, &entry);
        }
        for entry in end.recv.drain() {
            self.receive(end, &entry);
        }
    }

    fn send(&mut self, end: &End, entry: &Cqe64) {
        assert_eq!(entry.srqn_uidx.get(), 0x77);
        let (index, why) = (entry.wqe_counter.get(), syndrome(entry));
        let posted = end.sq.wrapping_sub(self.sent);
        let into = index.wrapping_sub(self.sent);
        assert!(
            into < posted,
            "entry {index:#x} when {:#x} to {:#x} were due",
            self.sent,
            end.sq
        );
        self.sent = index.wrapping_add(1);
        match why {
            None => {
                assert_eq!(entry.opcode(), CqeOpcode::REQ);
                assert_eq!(entry.qpn(), end.qpn.0);
                assert!(!self.failed, "entry {index:#x} is done after a failure");
            }
            Some(why) => {
                assert_eq!(entry.opcode(), CqeOpcode::REQ_ERR);
                assert_eq!(entry.as_error().qpn(), end.qpn.0);
                let flushed = why == Syndrome::WR_FLUSH;
                assert!(!self.failed || flushed, "{why} after a failure");
                assert!(why.name().is_some());
                self.failed = true;
            }
        }
    }

    fn receive(&mut self, end: &End, entry: &Cqe64) {
        assert_eq!(entry.srqn_uidx.get(), 0x77);
        assert_eq!(entry.wqe_counter.get(), self.received);
        assert_ne!(self.received, end.rq, "a receive that was never posted");
        self.received = self.received.wrapping_add(1);
        match syndrome(entry) {
            None => {
                assert!(!entry.opcode().is_error());
                assert!(!self.refused, "a receive is used after a failure");
            }
            Some(why) => {
                assert_eq!(entry.opcode(), CqeOpcode::RESP_ERR);
                let flushed = why == Syndrome::WR_FLUSH;
                assert!(!self.refused || flushed, "{why} after a failure");
                self.refused = true;
            }
        }
    }

    /// Asserts that all posted work is completed or flushed: the queue pair is in ERR, and the
    /// world has settled.
    pub fn settled(&self, world: &World, end: &End) {
        let info = world.nics[end.nic].query_qp(end.qpn).expect("is there");
        assert_eq!((info.sq_done, info.outstanding), (end.sq, 0), "{info:?}");
        assert_eq!(self.received, end.rq, "receives remain posted: {info:?}");
        for queue in [&end.send, &end.recv] {
            let info = world.nics[end.nic].query_cq(queue.cqn).expect("is there");
            assert_eq!((info.failure, info.producer), (None, queue.next));
        }
    }
}
