//! Requests are prepared, posted or aborted, and retired in order.

use super::*;

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
        2 => (any::<u8>(), 0u64..4).prop_map(|(t, s)| Act::Post(t, s)),
        2 => (0u8..8).prop_map(Act::Nic),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::testing::cases(256), failure_persistence: None, ..ProptestConfig::default() })]

    /// Random prepare, abort and post, starting just below every wrap: the NIC executes exactly the
    /// posted requests, in order, and NOPs for holes. Every signaled request completes at the
    /// position that it was given. Slots and positions never leak.
    #[test]
    fn a_nic_sees_exactly_what_was_posted(acts in prop::collection::vec(act(), 1..400), near in 0u32..40) {
        let start = 0u32.wrapping_sub(near);
        let first = (1u64 << 24) - u64::from(near);
        let mut rig = rig(16, start, first);
        // ticket -> aborted; the tickets handed over, in order
        let mut live: Vec<(Ticket, bool)> = Vec::new();
        let mut executed = 0usize;
        let mut handed: Vec<(Ticket, bool)> = Vec::new();
        for a in acts {
            match a {
                Act::Prepare(sges, signaled) => match rig.prepare(sges, signaled) {
                    Ok(t) => live.push((t, false)),
                    Err(Refusal::SendQueueFull { .. } | Refusal::CompletionQueueFull { .. }) => {}
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
                    let before = snapshot(&rig);
                    let poster = if stream == 3 { Poster::Cpu } else { Poster::Stream(stream) };
                    let result = rig.queue.post(live[open[pick]].0, poster);
                    if pick > 0 {
                        prop_assert_eq!(result, Err(Refusal::OutOfOrder { first: live[open[0]].0.0 }));
                        prop_assert_eq!(snapshot(&rig), before, "a refused post changes nothing");
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
        // All requests can be finished, and then all slots are free again.
        while let Some((t, aborted)) = live.last().copied() {
            if !aborted { rig.queue.abort(t, |h| *h = 0).unwrap(); }
            live.pop();
            while live.last().is_some_and(|l| l.1) { live.pop(); }
        }
        rig.drain();
        rig.queue.retire_with(|h| *h = 0);
        prop_assert_eq!(rig.queue.fifo.next(), rig.queue.fifo.posted());
        prop_assert_eq!(rig.queue.cq.next(), rig.written);
    }

    /// Preparing and aborting, in any order, leaves the visible state unchanged.
    #[test]
    fn aborted_requests_leave_no_trace(kept in 0usize..4, sizes in prop::collection::vec((0usize..6, any::<bool>()), 1..6), seed: u64) {
        let mut rig = rig(32, 0xffff_fff0, 8);
        for _ in 0..kept {
            rig.send(1, true);
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
    rig.drain();
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
    let cq = || CompletionRing::new(Heap::new(64 * 8), Heap::new(4 * cq::WAITERS), 3, 0);
    // A queue pair number of more than 24 bits is refused when the work queue entry is written.
    rig.queue = SendQueue::new(Heap::new(64 * 16), 1 << 24, 16, 0, cq());
    assert!(matches!(rig.prepare(1, true), Err(Refusal::Format(_))));
    assert_eq!(rig.queue.cq.next(), 0);
    let mut receives = ReceiveQueue::<_, u64>::new(Heap::new(32 * 4), 4, 32, 0, cq());
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
fn request_retired_for_room_releases_its_hold() {
    let mut rig = rig(16, 0, 0);
    rig.send_all();
    rig.drain();
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
                Err(Refusal::SendQueueFull { limit: 16 }) => {
                    assert!(rig.execute(None).is_some(), "lap {lap}: stuck");
                    rig.drain();
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
    rig.send(1, true);
    rig.execute(None);
    rig.queue.retire_with(|h| *h = 0);
    // So many requests that the last one uses the slot of the first.
    let taken: Vec<Ticket> = (0..4).map(|_| rig.prepare(1, false).unwrap()).collect();
    assert_ne!(rig.queue.fifo.silent_run(), 0);
    for t in taken.iter().rev() {
        rig.queue.abort(*t, |h| *h = 0).unwrap();
        assert!(rig.queue.fifo.slot(t.0).is_none());
    }
    assert_eq!(rig.queue.fifo.silent_run(), 0);
}

/// For a forgotten abort the answer is `None`, not `Some(false)`.
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
