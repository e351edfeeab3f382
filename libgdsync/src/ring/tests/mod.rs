//! The rings against a model NIC that consumes entries in order.

mod model;

use mlx5_prm::cqe::{self, Cqe64, ErrCqe, Failure, Success};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, WqeFlags, basic_blocks};
use proptest::prelude::*;

mod completion;
mod fault;
mod order;

use super::fault::{Fault, StatusSink, settled, status};
use super::memory::heap::Heap;
use super::*;
use crate::status::Status;

const QPN: u32 = 0x101;

struct Rig {
    queue: SendQueue<Heap, u64>,
    ring: Heap,
    entries: Heap,
    passed: Heap,
    log: u8,
    /// The index up to which the NIC has executed, and the next position that it writes.
    consumed: u32,
    written: u64,
}

fn rig(blocks: u32, start: u32, first: u64) -> Rig {
    let log = (2 * blocks).trailing_zeros().max(3) as u8;
    let ring = Heap::new(64 * blocks as usize);
    let entries = Heap::new(64 << log);
    let passed = Heap::new(4 * cq::WAITERS);
    let cq = CompletionRing::new(entries.clone(), passed.clone(), log, first);
    Rig {
        queue: SendQueue::new(ring.clone(), QPN, blocks, start, cq),
        ring,
        entries,
        passed,
        log,
        consumed: start,
        written: first,
    }
}

impl Rig {
    fn prepare(&mut self, sges: usize, signaled: bool) -> Result<Ticket, Refusal> {
        let tag = self.queue.fifo.next();
        let sges: Vec<Sge> = (0..sges)
            .map(|i| Sge {
                addr: tag * 64 + i as u64,
                lkey: 7,
                len: 8,
            })
            .collect();
        let wqe = SendWqe {
            opcode: SendOpcode::RDMA_WRITE,
            flags: WqeFlags {
                signaled,
                ..WqeFlags::default()
            },
            remote: Some(Remote { addr: tag, rkey: 9 }),
            payload: Payload::Gather(&sges),
            ..SendWqe::default()
        };
        self.queue.prepare(&wqe, |h| *h = 0, |h| *h = tag)
    }

    /// Prepares a request and posts it by the CPU.
    fn send(&mut self, sges: usize, signaled: bool) -> Ticket {
        let ticket = self.prepare(sges, signaled).unwrap();
        self.queue.post(ticket, Poster::Cpu).unwrap();
        ticket
    }

    /// Sends until there is no room.
    fn send_all(&mut self) {
        while let Ok(t) = self.prepare(1, true) {
            self.queue.post(t, Poster::Cpu).unwrap();
        }
    }

    /// Executes all posted requests.
    fn drain(&mut self) {
        while self.execute(None).is_some() {}
    }

    fn tick(&mut self, fault: &mut Fault, sink: &mut Published) -> bool {
        let SendQueue { fifo, cq, .. } = &mut self.queue;
        fault.tick(fifo, cq, None, sink)
    }

    fn write_entry(&mut self, bytes: [u8; 64]) {
        let base = (self.written & ((1 << self.log) - 1)) as usize * 64;
        for (i, s) in bytes.chunks_exact(16).enumerate() {
            self.entries
                .store_segment(base + 16 * i, s.try_into().unwrap());
        }
        self.written += 1;
    }

    /// Executes one posted entry; returns its opcode and whether it raised an entry.
    fn execute(&mut self, fail: Option<Syndrome>) -> Option<(SendOpcode, bool)> {
        if self.consumed == self.queue.fifo.posted_head() {
            return None;
        }
        let control = self.ring.load_segment(self.queue.offset(self.consumed));
        let word = |i: usize| u32::from_be_bytes(control[4 * i..4 * i + 4].try_into().unwrap());
        assert_eq!(
            word(0) >> 8 & 0xffff,
            self.consumed & 0xffff,
            "index in the control segment"
        );
        assert_eq!(word(1) >> 8, QPN);
        let counter = self.consumed as u16;
        let opcode = SendOpcode(word(0) as u8);
        let signaled = control[11] & 0x08 != 0;
        self.consumed = self
            .consumed
            .wrapping_add(u32::from(basic_blocks(word(1) as u8 & 0x3f)));
        let owner = cqe::owner_of_lap(self.written as u32, self.log);
        if let Some(syndrome) = fail {
            let failure = Failure {
                opcode: CqeOpcode::REQ_ERR,
                syndrome,
                qpn: QPN,
                wqe_counter: counter,
                ..Failure::default()
            };
            self.write_entry(ErrCqe::new(&failure, owner).to_bytes());
        } else if signaled {
            let success = Success {
                opcode: CqeOpcode::REQ,
                qpn: QPN,
                wqe_counter: counter,
                ..Success::default()
            };
            self.write_entry(Cqe64::success(&success, owner).to_bytes());
        }
        Some((opcode, signaled))
    }
}

/// The state of the queue that a NIC, a stream or a later call can see: counters and live entries.
fn snapshot(rig: &Rig) -> (u32, u64, u64, u64, Vec<[u8; 16]>) {
    let fifo = &rig.queue.fifo;
    let mut segments = Vec::new();
    for t in fifo.retired()..fifo.next() {
        let slot = fifo.slot(t).unwrap();
        for s in 0..u32::from(slot.segments) {
            let at = rig.queue.offset(slot.start) + 16 * s as usize;
            segments.push(rig.ring.load_segment(at & (64 * fifo.room() as usize - 1)));
        }
    }
    (
        fifo.head(),
        fifo.next(),
        fifo.posted(),
        rig.queue.cq.next(),
        segments,
    )
}

#[derive(Default)]
struct Published {
    statuses: Vec<(u64, Status)>,
    /// Tickets of signaled requests.
    signaled: Vec<u64>,
}

impl StatusSink for Published {
    fn publish(&mut self, ticket: u64, status: Status) {
        self.statuses.push((ticket, status));
    }
    fn signaled(&mut self) {
        self.signaled.push(self.statuses.last().unwrap().0);
    }
}
