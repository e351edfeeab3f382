//! Work over late links, and over wires that lose, duplicate, delay and reorder frames: every
//! operation is executed exactly once, or fails when the retries are used up.
//!
//! `GDS_CASES` sets the number of cases of each property.

mod rig;
mod worker;

use std::time::Duration;

use gds_step::Time;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use proptest::prelude::*;
use rig::*;
use vmlx5::fabric::faults::Faults;
use vmlx5::*;

fn cases(by_default: u32) -> ProptestConfig {
    let cases = std::env::var("GDS_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(by_default))
    }
}

const US: Duration = Duration::from_micros(1);

/// Retry limits that outlast the losses of these tests.
fn patient() -> EndConfig {
    EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (8, 7))
}

proptest! {
    #![proptest_config(cases(128))]

    /// Over late links, with receives that are posted later, every operation is executed exactly
    /// once.
    #[test]
    fn random_work_completes_over_late_links(seed: u64) {
        worker::random_work(seed, World::scheduled(3, seed), EndConfig::default());
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn random_work_completes_over_unreliable_wires(
        seed: u64,
        strict: bool,
        loss in 0.0..0.05,
        dup in 0.0..0.2,
        reorder in 0.0..0.2,
        late in 0_u32..100,
    ) {
        let mut world = World::built(3, |c| c.strict = strict);
        let delay = Duration::ZERO..US * late;
        world.set_faults(&Faults { seed, loss, dup, reorder, delay, ..Faults::default() });
        let mut world = worker::random_work(seed, world, patient());
        prop_assert!(world.nics[0].fault_stats().frames > 50);
        // No timeout runs at the end.
        world.pass(Duration::from_secs(10));
        prop_assert_eq!(world.deadline, None);
    }

    /// So many frames are lost that work fails; all other work is correct.
    #[test]
    fn hopeless_wires_fail_work_and_corrupt_nothing(seed: u64, loss in 0.3..0.9) {
        let config = EndConfig { retry_cnt: 2, timeout: 4, ..EndConfig::default() };
        let (mut world, mut a, b) = World::joined(config, EndConfig::default());
        world.set_faults(&Faults { seed, loss, ..Faults::default() });
        for i in 0..40 {
            a.put64(8 * i, i + 1);
            a.post(&write(b.remote(8 * i), &[a.sge(8 * i, 8)]));
        }
        world.pass(Duration::from_secs(1));
        let entries = a.send.drain();
        prop_assert_eq!(entries.len(), 40);
        let failed = entries.iter().position(|e| e.opcode() == CqeOpcode::REQ_ERR).unwrap_or(40);
        for (i, entry) in entries.iter().enumerate() {
            let index = i as u16;
            match i.cmp(&failed) {
                std::cmp::Ordering::Less => {
                    assert_ok(entry, CqeOpcode::REQ, index);
                    prop_assert_eq!(b.get64(8 * i as u64), i as u64 + 1);
                }
                std::cmp::Ordering::Equal => {
                    assert_err(entry, CqeOpcode::REQ_ERR, index, Syndrome::TRANSPORT_RETRY);
                }
                std::cmp::Ordering::Greater => {
                    assert_err(entry, CqeOpcode::REQ_ERR, index, Syndrome::WR_FLUSH);
                }
            }
        }
    }
}

#[test]
fn fence_holds_over_unreliable_wires() {
    for seed in 0..60 {
        let (mut world, mut a, b) = World::joined(patient(), patient());
        b.put(0, &vec![1; 200_000]);
        a.put(500_000, &vec![2; 200_000]);
        let faults = bad_wire(seed, [0.05, 0.1, 0.2]);
        world.set_faults(&faults);
        a.post(&read(b.remote(0), &[a.sge(0, 200_000)]));
        a.post(&write(b.remote(0), &[a.sge(500_000, 200_000)]).changed(|s| s.flags = fenced()));
        world.pass(Duration::from_millis(100));
        assert_eq!(a.send.drain().len(), 2, "seed {seed}");
        assert_eq!(a.get(0, 200_000), vec![1; 200_000], "seed {seed}");
        assert_eq!(b.get(0, 200_000), vec![2; 200_000], "seed {seed}");
    }
}

#[test]
fn faults_have_their_rates_and_repeat_for_a_seed() {
    let run = |seed| {
        let config = patient().changed(|c| (c.log_sq, c.log_cq) = (9, 9));
        let (mut world, mut a, b) = World::joined(config.clone(), config);
        world.set_faults(&bad_wire(seed, [0.01, 0.02, 0.05]));
        for _ in 0..50 {
            for _ in 0..400 {
                a.prepare(&write(b.remote(0), &[a.sge(0, 8)]));
            }
            a.ring();
            world.pass(Duration::from_millis(20));
            assert_eq!(a.send.drain().len(), 400);
        }
        (
            world.now,
            world.nics[0].fault_stats(),
            world.nics[1].stats(),
        )
    };
    for seed in 0..3 {
        let (now, stats, others) = run(seed);
        assert_eq!(run(seed), (now, stats, others));
        let n = stats.frames as f64;
        assert!(n > 20_000.0);
        for (what, rate) in [
            (stats.lost, 0.01),
            (stats.doubled, 0.02),
            (stats.held, 0.07),
        ] {
            // Six standard deviations.
            let off = (what as f64 - n * rate).abs();
            assert!(
                off < 6.0 * (n * rate).sqrt(),
                "{what} of {n} at {rate}, seed {seed}"
            );
        }
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn deaf_period_is_retried_and_death_fails_work() {
    let config = EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (8, 3));
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    let at = |us: u64| Time::from_nanos(us * 1000);
    let faults = Faults {
        deaf: vec![at(1_000)..at(3_000), at(10_000)..at(11_000)],
        die_at: Some(at(20_000)),
        ..Faults::default()
    };
    world.nics[1].set_faults(faults);
    for (start, answered) in [
        (500, 500),
        (1_500, 3_597),
        (10_500, 11_549),
        (19_000, 19_000),
    ] {
        world.pass(US * (start - (world.now / 1000) as u32));
        let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        world.pass(US * (answered - start) + US * 2);
        a.sent(s);
    }
    world.pass(US * 2_000);
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    world.pass(ack_timeout(8).unwrap() * 4 - US);
    assert_eq!(a.send.poll(), None);
    world.pass(US * 2);
    a.send_failed(s, Syndrome::TRANSPORT_RETRY);
}
