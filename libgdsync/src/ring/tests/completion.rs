//! Completion positions are reused only after they are written and passed.

use super::*;

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
                rig.drain();
            }
            Err(e) => break e,
        }
        assert!(waits <= window, "more outstanding than the window");
    };
    assert_eq!(refused, Refusal::CompletionQueueFull { limit: 8 });
    // The stream passes the first quarter's four waits: four more positions, and not one more.
    rig.passed.store32(0, 4);
    for _ in 0..4 {
        rig.send(1, true);
        rig.drain();
    }
    assert!(rig.prepare(1, true).is_err());
}

#[test]
fn a_wait_is_omitted_only_for_a_complete_request() {
    let mut rig = rig(8, 0, 0);
    let mut left_out = 0;
    for _ in 0..100 {
        rig.send_all();
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
        let entries = Heap::new(64 * 8);
        let passed = Heap::new(4 * cq::WAITERS);
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

/// A mark of an earlier lap is not compared again: after 2^31 further waits it would seem to be
/// ahead of its stream's count.
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
