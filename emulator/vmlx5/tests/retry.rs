//! Timeouts in virtual time: silent peers, receivers that are not ready, and the effect of progress
//! on the counts of retries. Times are exact to the nanosecond.

mod rig;

use std::time::Duration;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::*;

const REQ: CqeOpcode = CqeOpcode::REQ;
const REQ_ERR: CqeOpcode = CqeOpcode::REQ_ERR;

/// The smallest step of time.
const STEP: Duration = Duration::from_nanos(100);

/// Waits for a completion; returns the time since the step that sent.
fn time_to_entry(world: &mut World, a: &mut End) -> Duration {
    world.step();
    let sent = world.now;
    world.settle();
    loop {
        let deadline = world.deadline.expect("a timeout runs").as_nanos();
        world.now = deadline - STEP.as_nanos() as u64;
        world.step();
        // A completion caused by a timeout is there immediately, one caused by an answer in the
        // next step.
        for _ in 0..2 {
            if a.send.poll().is_some() {
                a.send.next -= 1;
                let took = Duration::from_nanos(world.now - sent);
                world.settle();
                return took;
            }
            world.step();
        }
        world.settle();
    }
}

#[test]
fn silent_peer_times_out_after_the_exact_time() {
    for (timeout, retry_cnt) in [(1, 0), (8, 0), (8, 1), (12, 7), (14, 3), (31, 7)] {
        let config =
            EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (timeout, retry_cnt));
        let (mut world, mut a, b) = World::joined(config, EndConfig::default());
        world.silence(&b);
        let index = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        let after = a.post(&nop());
        let took = time_to_entry(&mut world, &mut a);
        let expected = Duration::from_nanos(4096 << timeout) * (u32::from(retry_cnt) + 1);
        assert_eq!(took, expected, "timeout {timeout} x {retry_cnt}");
        assert_eq!(
            a.send_failed(index, Syndrome::TRANSPORT_RETRY),
            vendor::RETRY
        );
        a.send_failed(after, Syndrome::WR_FLUSH);
        let tries = world.nics[0].stats().frames_sent;
        // The frames are the hint of its connection, and the write.
        assert_eq!(tries, 2 + u64::from(retry_cnt));
    }
}

#[test]
fn without_a_timeout_the_wait_has_no_end() {
    let (mut world, mut a, b) = World::joined(
        EndConfig::default().changed(|c| c.timeout = 0),
        EndConfig::default(),
    );
    let node = world.silence(&b);
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    world.pass(Duration::from_secs(100_000));
    assert_eq!((a.send.poll(), world.deadline), (None, None));
    world.hub.silence(node, false);
    world.settle();
    a.sent(s);
}

#[test]
fn idle_connection_has_no_timeout() {
    let (mut world, mut a, b) = World::connected();
    let node = world.node(&b);
    a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    assert_eq!(a.send.drain().len(), 1);
    world.hub.silence(node, true);
    world.outlast();
    assert_eq!((world.state(&a), world.deadline), (QpState::Rts, None));
}

#[test]
fn full_fabric_does_not_stop_the_timeout() {
    let (mut world, mut a, b) = World::connected();
    let (mut c, d) = world.pair(EndConfig::default(), EndConfig::default());
    world.silence(&b);
    for _ in 0..4 {
        a.post(&write(b.remote(0), &[a.sge(0, 1 << 20)]));
    }
    world.settle();
    // This message was never sent, not even in part.
    let index = c.post(&write(d.remote(0), &[c.sge(0, 40_000)]));
    world.outlast();
    let error = c.send.poll().unwrap();
    assert_err(&error, REQ_ERR, index, Syndrome::TRANSPORT_RETRY);
    assert_eq!(world.state(&a), QpState::Err);
}

#[test]
fn progress_resets_the_retry_count() {
    let config = EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (8, 2));
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    let node = world.node(&b);
    let once = ack_timeout(8).unwrap();
    for round in 0..10 {
        world.hub.silence(node, true);
        let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        // Two retries are used; the peer resumes shortly before the last one expires.
        world.pass(once * 3 - 10 * STEP);
        assert_eq!(a.send.poll(), None, "round {round}");
        world.hub.silence(node, false);
        world.settle();
        a.sent(s);
    }
    let dropped: u64 = world.nics.iter().map(|n| n.stats().frames_dropped).sum();
    assert_eq!(dropped, 0, "duplicates are received, not dropped");
}

#[test]
fn packets_of_long_messages_count_as_progress() {
    // Each step delivers one frame, so that the message takes longer than all retries together.
    let mut world = World::scheduled(2, 5);
    let config = EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (3, 0));
    let (mut a, b) = world.pair(config, EndConfig::default());
    a.put(0, &pattern(1, 1 << 20));
    let posted = [0; 4].map(|_| {
        a.post(&write(b.remote(0), &[a.sge(0, 1 << 20)]));
        a.post(&read(b.remote(0), &[a.sge(0, 1 << 20)]))
    });
    let start = world.now;
    while a.send.next < 8 {
        world.step();
        for cqe in a.send.drain() {
            assert_ok(&cqe, REQ, cqe.wqe_counter.get());
        }
        world.now += 900;
    }
    assert_eq!(posted[3], 7);
    assert!(Duration::from_nanos(world.now - start) > 2 * ack_timeout(3).unwrap());
}

#[test]
fn receiver_that_is_never_ready_exhausts_the_rnr_retries() {
    for strict in [false, true] {
        for (rnr_retry, timer) in [(1, 0), (3, 1), (6, 31)] {
            let mut world = World::built(2, |c| c.strict = strict);
            let b = EndConfig::default().changed(|c| c.min_rnr_timer = timer);
            let (mut a, b) =
                world.pair(EndConfig::default().changed(|c| c.rnr_retry = rnr_retry), b);
            let index = a.post(&send(&[a.sge(0, 8)]));
            let took = time_to_entry(&mut world, &mut a);
            // The NAK arrives in the step after each attempt.
            let retries = u32::from(rnr_retry);
            assert_eq!(took, (rnr_delay(timer) + STEP) * retries + STEP);
            assert_eq!(a.send_failed(index, Syndrome::RNR_RETRY), vendor::RNR);
            assert_eq!(world.state(&b), QpState::Rts, "the receiver has no error");
        }
    }
}

#[test]
fn rnr_retry_seven_has_no_limit_and_a_receive_ends_it() {
    for strict in [false, true] {
        let mut world = World::built(2, |c| c.strict = strict);
        let (mut a, mut b) = world.pair(EndConfig::default(), EndConfig::default());
        let s = a.post(&send(&[a.sge(0, 8)]));
        world.pass(Duration::from_secs(1));
        assert!(a.send.poll().is_none());
        let tries = world.nics[1].stats().frames_sent;
        let most = Duration::from_secs(1).as_nanos() / rnr_delay(12).as_nanos();
        assert!(
            (most as u64 - 10..most as u64 + 5).contains(&tries),
            "{tries}"
        );
        let r = b.post_recv(&[b.sge(0, 8)]);
        world.settle();
        // Devices do not send hints.
        assert_eq!(a.send.poll().is_none(), strict);
        if strict {
            world.pass(rnr_delay(12));
            a.sent(s);
        }
        b.received(r);
    }
}

#[test]
fn retries_connect_strict_nics_in_any_order() {
    let mut world = World::built(2, |c| c.strict = true);
    let mut a = world.end(0, EndConfig::default());
    let b = world.end(1, EndConfig::default());
    world.init(&a);
    world.rtr(&a, &b, 7);
    world.rts(&a, 9);
    let s = a.post(&write(b.remote(8), &[a.sge(0, 8)]));
    world.pass(ack_timeout(14).unwrap() * 5 / 2);
    world.init(&b);
    world.rtr(&b, &a, 9);
    world.settle();
    assert!(a.send.poll().is_none(), "a strict NIC gets no hint");
    world.pass(ack_timeout(14).unwrap());
    a.sent(s);
}

#[test]
fn many_timeouts_run_at_once() {
    let mut world = World::new(2);
    let mut ends = Vec::new();
    for i in 0..40 {
        let config =
            EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (1 + i % 5, i % 3));
        ends.push(world.pair(config, EndConfig::default()));
    }
    let node = world.nics[1].node();
    world.hub.silence(node, true);
    for (a, b) in &mut ends {
        a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    }
    world.settle();
    // One queue pair is destroyed, one reset, while their timeouts run.
    let (gone, _) = ends.swap_remove(7);
    world.nics[0].destroy_qp(gone.qpn).unwrap();
    let (back, _) = ends.swap_remove(3);
    world.modify(&back, Modify::Reset);
    let start = world.now;
    for step in 1..100 {
        world.pass(Duration::from_nanos(start + 4096 * step - world.now));
        for (a, _) in &ends {
            let due = (u64::from(a.config.retry_cnt) + 1) << a.config.timeout;
            let state = if step >= due {
                QpState::Err
            } else {
                QpState::Rts
            };
            // All were sent within the first steps.
            if step != due && step + 1 != due {
                assert_eq!(world.state(a), state, "{step} of {due}");
            }
        }
    }
    assert_eq!(world.deadline, None);
}
