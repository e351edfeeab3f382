//! The rings against a model NIC that consumes entries in order.

use mlx5_prm::cqe::{self, Cqe64, ErrCqe, Failure, Success};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Payload, Remote, SendWqe, Sge, WqeFlags, basic_blocks};
use proptest::prelude::*;

use super::fault::{Fault, StatusSink, settled, status};
use super::memory::heap::Heap;
use super::*;
use crate::status::Status;

type Queue = SendQueue<std::rc::Rc<Heap>, u64>;

impl RingMemory for std::rc::Rc<Heap> {
    fn store_segment(&self, offset: usize, segment: &[u8; 16]) {
        (**self).store_segment(offset, segment)
    }
    fn load_segment(&self, offset: usize) -> [u8; 16] {
        (**self).load_segment(offset)
    }
    fn load32(&self, offset: usize) -> u32 {
        (**self).load32(offset)
    }
    fn store32(&self, offset: usize, value: u32) {
        (**self).store32(offset, value)
    }
}

const QPN: u32 = 0x101;

struct Rig {
    queue: Queue,
    ring: std::rc::Rc<Heap>,
    entries: std::rc::Rc<Heap>,
    passed: std::rc::Rc<Heap>,
    log: u8,
    /// What the NIC has executed and written.
    consumed: u32,
    written: u64,
}

fn rig(blocks: u32, start: u32, first: u64) -> Rig {
    let log = (2 * blocks).trailing_zeros().max(3) as u8;
    let ring = std::rc::Rc::new(Heap::new(64 * blocks as usize));
    let entries = std::rc::Rc::new(Heap::new(64 << log));
    let passed = std::rc::Rc::new(Heap::new(4 * cq::WAITERS));
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

/// All that a NIC, a stream or a later call can see of the queue: counters and live entries.
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

#[derive(Clone, Debug)]
enum Act {
    Prepare(usize, bool),
    Abort(u8),
    Post(u8, u64),
    Nic(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0usize..12, any::<bool>()).prop_map(|(n, s)| Act::Prepare(n, s)),
        2 => any::<u8>().prop_map(Act::Abort),
        2 => (any::<u8>(), 0u64..3).prop_map(|(t, s)| Act::Post(t, s)),
        2 => (0u8..8).prop_map(Act::Nic),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::testing::cases(256), failure_persistence: None, ..ProptestConfig::default() })]

    /// Random prepare, abort and post, starting just below every wrap: the NIC executes exactly
    /// what was posted, in order, NOPs for holes; every signaled one completes at the position it
    /// was given; slots and positions never leak.
    #[test]
    fn a_nic_sees_exactly_what_was_posted(acts in prop::collection::vec(act(), 1..400), near in 0u32..40) {
        let start = 0u32.wrapping_sub(near);
        let first = (1u64 << 24) - u64::from(near);
        let mut rig = rig(16, start, first);
        // ticket -> aborted; what was handed over, in order
        let mut live: Vec<(Ticket, bool)> = Vec::new();
        let mut executed = 0usize;
        let mut handed: Vec<(Ticket, bool)> = Vec::new();
        for a in acts {
            match a {
                Act::Prepare(sges, signaled) => match rig.prepare(sges, signaled) {
                    Ok(t) => live.push((t, false)),
                    Err(Refusal::WorkQueueFull { .. } | Refusal::CompletionQueueFull { .. }) => {}
                    Err(e) => prop_assert!(false, "{e:?}"),
                },
                Act::Abort(i) => {
                    let open: Vec<usize> = (0..live.len()).filter(|i| !live[*i].1).collect();
                    if open.is_empty() { continue }
                    let i = open[usize::from(i) % open.len()];
                    rig.queue.abort(live[i].0, |h| *h = 0).unwrap();
                    prop_assert!(rig.queue.abort(live[i].0, |h| *h = 0).is_err());
                    live[i].1 = true;
                    while live.last().is_some_and(|l| l.1) {
                        live.pop();
                    }
                }
                Act::Post(i, stream) => {
                    let open: Vec<usize> = (0..live.len()).filter(|i| !live[*i].1).collect();
                    if open.is_empty() { continue }
                    let pick = usize::from(i) % open.len();
                    let result = rig.queue.post(live[open[pick]].0, Poster::Stream(stream));
                    if pick > 0 {
                        prop_assert_eq!(result, Err(Refusal::OutOfOrder { first: live[open[0]].0.0 }));
                        continue;
                    }
                    result.unwrap();
                    handed.extend(live.drain(..=open[0]));
                }
                Act::Nic(n) => for _ in 0..n {
                    let Some((opcode, signaled)) = rig.execute(None) else { break };
                    let (ticket, aborted) = handed[executed];
                    executed += 1;
                    prop_assert_eq!(opcode == SendOpcode::NOP, aborted);
                    let entry = rig.queue.fifo.slot(ticket.0).unwrap().entry;
                    prop_assert_eq!(entry, signaled.then(|| rig.written - 1), "position of {:?}", ticket);
                },
            }
        }
        // Everything can be finished, and then everything is free again.
        while let Some((t, aborted)) = live.last().copied() {
            if !aborted { rig.queue.abort(t, |h| *h = 0).unwrap(); }
            live.pop();
            while live.last().is_some_and(|l| l.1) { live.pop(); }
        }
        while rig.execute(None).is_some() {}
        rig.queue.retire_with(|h| *h = 0);
        prop_assert_eq!(rig.queue.fifo.next(), rig.queue.fifo.posted());
        prop_assert_eq!(rig.queue.cq.next(), rig.written);
    }

    /// Preparing and aborting, in whatever order, leaves what is visible as it was.
    #[test]
    fn aborted_requests_leave_no_trace(kept in 0usize..4, sizes in prop::collection::vec((0usize..6, any::<bool>()), 1..6), seed: u64) {
        let mut rig = rig(32, 0xffff_fff0, 8);
        for _ in 0..kept {
            let t = rig.prepare(1, true).unwrap();
            rig.queue.post(t, Poster::Cpu).unwrap();
        }
        let before = snapshot(&rig);
        let mut tickets: Vec<Ticket> = sizes.iter().map(|(n, s)| rig.prepare(*n, *s).unwrap()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut tickets);
        for t in tickets {
            rig.queue.abort(t, |h| *h = 0).unwrap();
        }
        prop_assert_eq!(snapshot(&rig), before);
    }
}

/// Four requests, each posted by the CPU, by one of two streams, or aborted: all 256 ways, in
/// prepare order and in every other order.
#[test]
fn four_requests_every_way() {
    let mut orders = Vec::new();
    permute(&mut [0, 1, 2, 3], 0, &mut orders);
    assert_eq!(orders.len(), 24);
    for order in &orders {
        for ways in 0..256u32 {
            let way = |i: usize| ways >> (2 * i) & 3;
            let mut rig = rig(16, 0xffff_fffe, 0);
            let t: Vec<Ticket> = (0..4).map(|i| rig.prepare(i, true).unwrap()).collect();
            let mut done = [false; 4];
            for &i in order {
                let waiting = (0..i).find(|j| !done[*j]);
                if way(i) == 0 {
                    rig.queue.abort(t[i], |h| *h = 0).unwrap();
                    done[i] = true;
                    continue;
                }
                let poster = if way(i) == 3 {
                    Poster::Cpu
                } else {
                    Poster::Stream(u64::from(way(i)))
                };
                let before = snapshot(&rig);
                match (waiting, rig.queue.post(t[i], poster)) {
                    (Some(j), Err(Refusal::OutOfOrder { first })) => {
                        assert_eq!(first, t[j].0);
                        assert_eq!(snapshot(&rig), before, "a refused post changes nothing");
                    }
                    (None, Ok(_)) => done[i] = true,
                    other => panic!("{order:?} {ways:#x} {i}: {other:?}"),
                }
            }
            // What was refused is posted now, in order.
            for i in 0..4 {
                if !done[i] {
                    rig.queue.post(t[i], Poster::Cpu).unwrap();
                }
            }
            let posted: Vec<usize> = (0..4).filter(|i| way(*i) != 0).collect();
            let mut ran = Vec::new();
            while let Some((opcode, _)) = rig.execute(None) {
                ran.push(opcode);
            }
            let expected = posted.last().map_or(0, |last| last + 1);
            assert_eq!(
                ran.len(),
                expected,
                "{ways:#x}: holes behind the last post vanish"
            );
            for (i, opcode) in ran.iter().enumerate() {
                assert_eq!(*opcode == SendOpcode::NOP, way(i) == 0);
            }
            assert_eq!(rig.queue.cq.next(), rig.written);
        }
    }
}

fn permute(items: &mut [usize; 4], k: usize, out: &mut Vec<[usize; 4]>) {
    if k == 4 {
        out.push(*items);
        return;
    }
    for i in k..4 {
        items.swap(k, i);
        permute(items, k + 1, out);
        items.swap(k, i);
    }
}

#[test]
fn a_change_of_poster_waits_for_the_record_and_nothing_else_does() {
    let mut rig = rig(16, 0, 0);
    let t: Vec<Ticket> = (0..7).map(|_| rig.prepare(1, true).unwrap()).collect();
    let mut edge = |i: usize, p| rig.queue.post(t[i], p).unwrap().edge;
    assert_eq!(edge(0, Poster::Cpu), None);
    assert_eq!(
        edge(1, Poster::Stream(1)),
        None,
        "the CPU has rung when its call returns"
    );
    assert_eq!(
        edge(2, Poster::Stream(1)),
        None,
        "a stream is in order by itself"
    );
    assert_eq!(edge(3, Poster::Stream(2)), Some(3));
    assert_eq!(edge(4, Poster::Cpu), Some(4));
    assert_eq!(edge(5, Poster::Stream(2)), None);
    while rig.execute(None).is_some() {}
    rig.queue.retire_with(|h| *h = 0);
    assert_eq!(
        rig.queue.post(t[6], Poster::Stream(3)).unwrap().edge,
        None,
        "all is done"
    );
}

#[test]
fn a_refused_request_takes_no_completion_position() {
    let mut rig = rig(16, 0, 0);
    let heap = |bytes| std::rc::Rc::new(Heap::new(bytes));
    let cq = || CompletionRing::new(heap(64 * 8), heap(4 * cq::WAITERS), 3, 0);
    // A queue pair number of more than 24 bits is refused when the work queue entry is written.
    rig.queue = SendQueue::new(heap(64 * 16), 1 << 24, 16, 0, cq());
    assert!(matches!(rig.prepare(1, true), Err(Refusal::Format(_))));
    assert_eq!(rig.queue.cq.next(), 0);
    let mut receives = ReceiveQueue::<_, u64>::new(heap(32 * 4), 4, 32, 0, cq());
    let sge = Sge {
        addr: 0,
        lkey: 7,
        len: 8,
    };
    let refused = receives.prepare(&[sge; 3], |_| (), |_| ());
    assert!(matches!(refused, Err(Refusal::Format(_))));
    assert_eq!(receives.cq.next(), 0);
}

#[test]
fn a_doorbell_covers_only_posted_requests() {
    let mut rig = rig(16, 5, 0);
    let t: Vec<Ticket> = (0..3).map(|_| rig.prepare(1, true).unwrap()).collect();
    assert_eq!(rig.queue.ring_for(3), None);
    rig.queue.post(t[0], Poster::Cpu).unwrap();
    let posted = rig.queue.post(t[1], Poster::Cpu).unwrap();
    let [none, one, two, three] = [0, 1, 2, 3].map(|upto| rig.queue.ring_for(upto));
    assert_eq!((none, one.map(|p| p.index)), (None, Some(6)));
    assert_eq!((two, three), (Some(posted), Some(posted)));
}

#[test]
fn what_retires_for_the_sake_of_room_lets_go_of_what_it_held() {
    let mut rig = rig(16, 0, 0);
    while let Ok(t) = rig.prepare(1, true) {
        rig.queue.post(t, Poster::Cpu).unwrap();
    }
    while rig.execute(None).is_some() {}
    let newest = rig.prepare(1, true).unwrap();
    for t in 1..newest.0 {
        assert_eq!(rig.queue.fifo.slot(t).unwrap().hold, 0, "request {t}");
    }
    assert_eq!(rig.queue.fifo.slot(newest.0).unwrap().hold, newest.0);
}

#[test]
fn unsignaled_work_is_signaled_before_it_could_fill_the_queue() {
    let mut rig = rig(16, 0, 0);
    for lap in 0..200 {
        let t = loop {
            match rig.prepare(1, false) {
                Ok(t) => break t,
                Err(Refusal::WorkQueueFull { limit: 16 }) => {
                    assert!(rig.execute(None).is_some(), "lap {lap}: stuck");
                    while rig.execute(None).is_some() {}
                }
                Err(e) => panic!("{e:?}"),
            }
        };
        rig.queue.post(t, Poster::Cpu).unwrap();
    }
    assert_eq!(rig.queue.cq.next(), 200 / 9, "half the queue is silent");
}

#[test]
fn aborted_newest_requests_leave_no_slot_and_no_silent_run() {
    let mut rig = rig(4, 0, 0);
    let first = rig.prepare(1, true).unwrap();
    rig.queue.post(first, Poster::Cpu).unwrap();
    rig.execute(None);
    rig.queue.retire_with(|h| *h = 0);
    // So many that the last one uses the slot of the first.
    let taken: Vec<Ticket> = (0..4).map(|_| rig.prepare(1, false).unwrap()).collect();
    assert_ne!(rig.queue.fifo.silent_run(), 0);
    for t in taken.iter().rev() {
        rig.queue.abort(*t, |h| *h = 0).unwrap();
        assert!(rig.queue.fifo.slot(t.0).is_none());
    }
    assert_eq!(rig.queue.fifo.silent_run(), 0);
}

/// For an abort that is forgotten, the answer is `None`, not `Some(false)`.
#[test]
fn an_abort_is_reported_or_unknown_but_never_denied() {
    let mut fifo: fifo::Fifo<()> = fifo::Fifo::new(4, 0);
    let push = |fifo: &mut fifo::Fifo<()>| fifo.push(1, 1, None, |()| ());
    let done = push(&mut fifo);
    fifo.post(done, Poster::Cpu).unwrap();
    fifo.retire(done, |()| ());
    // Serial 2 is aborted before serial 1.
    for _ in 0..2 {
        push(&mut fifo);
    }
    for _ in 0..2 {
        fifo.pop(|()| ());
    }
    let known = |fifo: &fifo::Fifo<()>| [0, 1, 2].map(|serial| fifo.was_aborted(serial));
    assert_eq!(known(&fifo), [Some(false), Some(true), Some(true)]);
    for newer in 3.. {
        push(&mut fifo);
        fifo.pop(|()| ());
        assert_eq!(fifo.was_aborted(newer), Some(true));
        assert_eq!(fifo.was_aborted(newer + 1), Some(false));
        match known(&fifo) {
            [Some(false), Some(true), Some(true)] | [None, Some(true), None] => {}
            [None, None, None] => break,
            wrong => panic!("{wrong:?} after {newer}"),
        }
    }
}

#[test]
fn entries_are_not_given_again_before_their_waiters_have_passed() {
    let mut rig = rig(8, 0, 0);
    let window = rig.queue.cq.window();
    assert_eq!(window, 8);
    let mut waits = 0;
    let refused = loop {
        match rig.prepare(1, true) {
            Ok(t) => {
                rig.queue.post(t, Poster::Cpu).unwrap();
                let position = rig.queue.fifo.slot(t.0).unwrap().entry.unwrap();
                let waiter = rig.queue.cq.waiter(77).unwrap();
                rig.queue.cq.note_wait(waiter, position);
                rig.queue.cq.commit_mark(waiter);
                waits += 1;
                while rig.execute(None).is_some() {}
            }
            Err(e) => break e,
        }
        assert!(waits <= window, "more outstanding than the window");
    };
    assert_eq!(refused, Refusal::CompletionQueueFull { limit: 8 });
    // The stream passes the first quarter's four waits: four more positions, and not one more.
    rig.passed.store32(0, 4);
    for _ in 0..4 {
        let t = rig.prepare(1, true).unwrap();
        rig.queue.post(t, Poster::Cpu).unwrap();
        while rig.execute(None).is_some() {}
    }
    assert!(rig.prepare(1, true).is_err());
}

#[test]
fn a_wait_is_omitted_only_for_a_complete_request() {
    let mut rig = rig(8, 0, 0);
    let mut left_out = 0;
    for _ in 0..100 {
        while let Ok(t) = rig.prepare(1, true) {
            rig.queue.post(t, Poster::Cpu).unwrap();
        }
        let behind = (0..rig.queue.cq.next())
            .take_while(|p| rig.queue.cq.is_behind(*p))
            .count() as u64;
        assert!(behind <= rig.written, "{behind}, written {}", rig.written);
        left_out = left_out.max(behind);
        rig.execute(None);
    }
    assert!(left_out > 80, "{left_out}");
}

/// A ring may start at any lap of its NIC, and in memory that another ring has used.
#[test]
fn a_new_ring_has_no_entries_and_no_passed_waits() {
    for start in [0, 5, 8, 13, (1 << 24) - 3] {
        let entries = std::rc::Rc::new(Heap::new(64 * 8));
        let passed = std::rc::Rc::new(Heap::new(4 * cq::WAITERS));
        for entry in 0..8 {
            // A success of either lap.
            let word = cqe::last_dword(CqeOpcode::REQ, entry & 1, 0, 0);
            entries.store32(64 * usize::from(entry) + cqe::LAST_DWORD_OFFSET, word);
        }
        (0..cq::WAITERS).for_each(|waiter| passed.store32(4 * waiter, 7));
        let ring = CompletionRing::new(entries.clone(), passed.clone(), 3, start);
        for position in start..start + 8 {
            assert_eq!(ring.state(position), cqe::EntryState::NotYet);
            let word = entries.load32(ring.offset(position));
            let owner = u32::from(ring.spot(position).owner);
            assert_ne!((word / cqe::OWNER_BIT) & 1, owner, "from {start}");
        }
        assert!((0..cq::WAITERS).all(|waiter| passed.load32(4 * waiter) == 0));
    }
}

/// Prepares and completes requests until the ring refuses, a hundred at most; returns how many.
fn fill(rig: &mut Rig) -> usize {
    let complete = |_: &usize| match rig.prepare(1, true) {
        Ok(t) => {
            rig.queue.post(t, Poster::Cpu).unwrap();
            rig.execute(None).is_some()
        }
        Err(_) => false,
    };
    (0..100).take_while(complete).count()
}

#[test]
fn waits_are_counted_past_the_wrap_of_the_count() {
    for marks in [0, i32::MAX as u32, u32::MAX - 1, u32::MAX] {
        let mut rig = rig(8, 0, 0);
        rig.queue.cq.age(77, marks).unwrap();
        let waiter = rig.queue.cq.waiter(77).unwrap();
        rig.prepare(1, true).unwrap();
        rig.queue.cq.note_wait(waiter, 0);
        rig.queue.cq.commit_mark(waiter);
        rig.queue.post(Ticket(0), Poster::Cpu).unwrap();
        rig.execute(None);
        assert!(!rig.queue.cq.all_passed());
        assert_eq!(fill(&mut rig), 7, "after {marks:#x} waits");
        rig.passed.store32(4 * waiter, marks.wrapping_add(1));
        assert!(rig.queue.cq.all_passed());
        assert_eq!(fill(&mut rig), 100, "after {marks:#x} waits");
    }
}

/// A mark of an earlier lap is not compared again: 2^31 waits later it would seem to be ahead of
/// its stream's count.
#[test]
fn waits_for_a_quarter_are_forgotten_in_its_next_lap() {
    let mut rig = rig(8, 0, 0);
    let waiter = rig.queue.cq.waiter(77).unwrap();
    rig.prepare(1, true).unwrap();
    rig.queue.cq.note_wait(waiter, 0);
    rig.queue.post(Ticket(0), Poster::Cpu).unwrap();
    rig.execute(None);
    for marks in [1, 2 + (1 << 31)] {
        rig.queue.cq.age(77, marks).unwrap();
        assert_eq!(fill(&mut rig), 100);
    }
}

/// When the NIC is gone, the library writes the completion entries of posted requests.
#[test]
fn flushes_written_by_the_library_read_as_the_nics_own() {
    for executed in 0..6u64 {
        for first in [0u64, 13, (1 << 24) - 3] {
            let mut rig = rig(16, 0xffff_fffc, first);
            let tickets: Vec<u64> = (0..6)
                .map(|i| {
                    let t = rig.prepare(1, i % 2 == 0).unwrap();
                    rig.queue.post(t, Poster::Cpu).unwrap();
                    t.0
                })
                .collect();
            for _ in 0..executed {
                rig.execute(None);
            }
            let SendQueue { fifo, cq, .. } = &mut rig.queue;
            assert_eq!(cq.written(), rig.written);
            let pending = tickets.iter().skip(executed as usize);
            for (position, ticket) in (cq.written()..).zip(pending) {
                let counter = fifo.slot(*ticket).unwrap().start as u16;
                cq.put_flushed(position, CqeOpcode::REQ_ERR, counter);
            }
            let (mut fault, mut sink) = (Fault::default(), Published::default());
            fault.tick(fifo, cq, None, &mut sink);
            assert_eq!(cq.advance(), cq.next(), "every wait passes");
            assert_eq!(fault.first().is_some(), executed < 6);
        }
    }
}

/// The NIC executes or flushes the no-op in the place of an aborted request.
#[test]
fn an_aborted_request_stays_aborted_when_the_queue_fails() {
    for failing in 0..3 {
        let mut rig = rig(16, 0, 0);
        let t: Vec<Ticket> = (0..3).map(|_| rig.prepare(1, true).unwrap()).collect();
        rig.queue.abort(t[1], |h| *h = 0).unwrap();
        for i in [0, 2] {
            rig.queue.post(t[i], Poster::Cpu).unwrap();
        }
        let (mut fault, mut sink) = (Fault::default(), Published::default());
        for i in 0..3 {
            rig.execute((i >= failing).then_some(Syndrome::WR_FLUSH));
            let SendQueue { fifo, cq, .. } = &mut rig.queue;
            fault.tick(fifo, cq, None, &mut sink);
            // The entry of the aborted request is left alone until the NIC has written it.
            if i == 0 {
                assert_eq!(cq.state(1), cqe::EntryState::NotYet);
            }
        }
        let fifo = &rig.queue.fifo;
        assert_eq!(status(fifo, 1, fifo.serial(1)), Some(Status::ABORTED));
        let mut told = sink.statuses.iter().filter(|(t, _)| *t == 1);
        assert!(told.all(|(_, s)| *s == Status::ABORTED));
    }
}

/// Unsignaled requests that fail write entries at the positions of requests that are not posted.
#[test]
fn an_aborted_request_is_not_done_before_it_is_posted() {
    let mut rig = rig(16, 0, 0);
    let t = [false, false, true, true].map(|signaled| rig.prepare(1, signaled).unwrap());
    for t in &t[..2] {
        rig.queue.post(*t, Poster::Cpu).unwrap();
    }
    rig.queue.abort(t[2], |h| *h = 0).unwrap();
    let (mut fault, mut sink) = (Fault::default(), Published::default());
    let mut fail = |rig: &mut Rig| {
        while rig.execute(Some(Syndrome::WR_FLUSH)).is_some() {}
        let SendQueue { fifo, cq, .. } = &mut rig.queue;
        fault.tick(fifo, cq, None, &mut sink);
        rig.queue.retire_with(|h| *h = 0);
    };
    fail(&mut rig);
    assert_eq!(rig.queue.cq.completed(), 0);
    // It is taken back together with the one behind it; another has its ticket and its position.
    rig.queue.abort(t[3], |h| *h = 0).unwrap();
    let again = rig.prepare(1, true).unwrap();
    assert_eq!(again, t[2]);
    let outcome = |rig: &Rig| {
        let fifo = &rig.queue.fifo;
        status(fifo, again.0, fifo.serial(again.0))
    };
    assert_eq!(outcome(&rig), Some(Status::PENDING));
    rig.queue.post(again, Poster::Cpu).unwrap();
    fail(&mut rig);
    assert_eq!(outcome(&rig), Some(Status::FLUSHED));
    assert_eq!(rig.queue.cq.completed(), 1);
}

/// Two unsignaled requests fail before the request of the first position does: meanwhile the
/// position of the aborted request behind it may be released, but not the first one.
#[test]
fn a_tick_without_new_entries_reports_no_work() {
    let mut rig = rig(16, 0, 0);
    let signaled = [false, false, true, true, true];
    let t = signaled.map(|signaled| rig.prepare(1, signaled).unwrap());
    rig.queue.abort(t[3], |h| *h = 0).unwrap();
    for i in [0, 1, 2, 4] {
        rig.queue.post(t[i], Poster::Cpu).unwrap();
    }
    let (mut fault, mut sink) = (Fault::default(), Published::default());
    for _ in 0..5 {
        rig.execute(Some(Syndrome::WR_FLUSH));
        let SendQueue { fifo, cq, .. } = &mut rig.queue;
        assert!(fault.tick(fifo, cq, None, &mut sink));
        assert!(!fault.tick(fifo, cq, None, &mut sink));
    }
    assert!(settled(&rig.queue.fifo));
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

/// The third of eight requests fails; every third is signaled, so positions and entries no
/// longer agree. Each request gets its own status; released positions are exactly those whose
/// request has one, and only after it was published.
#[test]
fn errors_are_attributed_by_counter_and_waits_are_released_after_their_status() {
    for failing in 0..8u64 {
        for first in [0u64, 13, (1 << 24) - 3] {
            let mut rig = rig(16, 0xffff_fffc, first);
            for i in 0..8 {
                let t = rig.prepare(1 + i % 3, i % 3 == 0).unwrap();
                rig.queue.post(t, Poster::Cpu).unwrap();
            }
            let mut fault = Fault::default();
            let mut sink = Published::default();
            for i in 0..8 {
                let fail = match i {
                    i if i < failing => None,
                    i if i == failing => Some(Syndrome::REMOTE_ACCESS),
                    _ => Some(Syndrome::WR_FLUSH),
                };
                rig.execute(fail);
                let SendQueue { fifo, cq, .. } = &mut rig.queue;
                fault.tick(fifo, cq, None, &mut sink);
                for p in first..cq.next() {
                    let passes = matches!(cq.state(p), cqe::EntryState::Success(_));
                    let known = cq.ticket(p) <= i;
                    assert_eq!(passes, known, "failing {failing}, after {i}, position {p}");
                }
            }
            let SendQueue { fifo, .. } = &rig.queue;
            assert!(settled(fifo));
            assert_eq!(fault.first(), Some(Status::REMOTE_ACCESS));
            for t in 0..8 {
                let expected = match t {
                    t if t < failing => Status::SUCCESS,
                    t if t == failing => Status::REMOTE_ACCESS,
                    _ => Status::FLUSHED,
                };
                assert_eq!(
                    status(fifo, t, fifo.serial(t)),
                    Some(expected),
                    "ticket {t}, failing {failing}"
                );
            }
            let order: Vec<u64> = sink.statuses.iter().map(|(t, _)| *t).collect();
            assert_eq!(order, (failing..8).collect::<Vec<_>>());
            let signaled: Vec<u64> = (failing..8).filter(|t| t % 3 == 0).collect();
            assert_eq!(sink.signaled, signaled);
        }
    }
}
