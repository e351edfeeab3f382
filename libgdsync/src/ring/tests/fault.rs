//! The statuses that a failing queue reports, and the streams that it releases.

use super::*;

/// When the NIC is gone, the library writes the completion entries of posted requests.
#[test]
fn flushes_written_by_the_library_read_as_the_nics_own() {
    for executed in 0..6u64 {
        for first in [0u64, 13, (1 << 24) - 3] {
            let mut rig = rig(16, 0xffff_fffc, first);
            let tickets: Vec<u64> = (0..6)
                .map(|i| {
                    let t = rig.send(1, i % 2 == 0);
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
            rig.tick(&mut fault, &mut sink);
            // The entry of the aborted request is left alone until the NIC has written it.
            if i == 0 {
                assert_eq!(rig.queue.cq.state(1), cqe::EntryState::NotYet);
            }
        }
        let fifo = &rig.queue.fifo;
        assert_eq!(status(fifo, 1, fifo.serial(1)), Some(Status::ABORTED));
        let mut statuses = sink.statuses.iter().filter(|(t, _)| *t == 1);
        assert!(statuses.all(|(_, s)| *s == Status::ABORTED));
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
        rig.tick(&mut fault, &mut sink);
        rig.queue.retire_with(|h| *h = 0);
    };
    fail(&mut rig);
    assert_eq!(rig.queue.cq.completed(), 0);
    // It is taken back together with the next one; another request gets its ticket and position.
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

/// Two unsignaled requests fail before the request of the first position does. Meanwhile the
/// position of the later, aborted request may be released, but not the first one.
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
        assert!(rig.tick(&mut fault, &mut sink));
        assert!(!rig.tick(&mut fault, &mut sink));
    }
    assert!(settled(&rig.queue.fifo));
}

/// The third of eight requests fails; every third is signaled, so positions and entries no longer
/// agree. Each request gets its own status. Exactly the positions whose request has a status are
/// released, and only after the status was published.
#[test]
fn errors_are_attributed_by_counter_and_waits_are_released_after_their_status() {
    for failing in 0..8u64 {
        for first in [0u64, 13, (1 << 24) - 3] {
            let mut rig = rig(16, 0xffff_fffc, first);
            for i in 0..8 {
                rig.send(1 + i % 3, i % 3 == 0);
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
                rig.tick(&mut fault, &mut sink);
                let cq = &rig.queue.cq;
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
