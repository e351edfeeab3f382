//! Committed mutants of the transport: each breaks one rule, and at least one scenario must detect
//! it. Only with the feature `mutants`; all in one test, since the switch applies to the whole
//! process.

mod rig;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::Atomic;
use rig::*;
use vmlx5::fabric::faults::Faults;
use vmlx5::mutant::{self, Mutant};

/// Seeds that a mutant has to survive in every scenario before it counts as alive.
const SEEDS: u64 = 12;

/// A scenario: panics when a rule is broken.
type Scenario = (&'static str, fn(u64));

const SCENARIOS: [Scenario; 5] = [
    ("random work over bad wires", bad_wires),
    ("a lost frame without a timeout", one_lost),
    ("a fenced write after a read", fence),
    ("no receive", no_receive),
    ("WRITEs out of order before an atomic", disorder),
];

fn bad_wires(seed: u64) {
    let mut world = World::new(3);
    let bad = bad_wire(seed, [0.05, 0.1, 0.1]);
    world.set_faults(&bad);
    let config = EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (8, 7));
    worker::random_work(seed, world, config);
}

fn one_lost(seed: u64) {
    let without = EndConfig::default().changed(|c| c.timeout = 0);
    let (mut world, mut a, b) = World::joined(without.clone(), without);
    for loss in [1.0, 0.0] {
        let bad = Faults {
            seed,
            loss,
            ..Faults::default()
        };
        world.nics[0].set_faults(bad);
        a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    }
    assert_eq!(a.send.drain().len(), 2);
}

fn fence(seed: u64) {
    let (mut world, mut a, b) = World::late(seed);
    b.put(0, &vec![1; 200_000]);
    a.put(500_000, &vec![2; 200_000]);
    a.post(&read(b.remote(0), &[a.sge(0, 200_000)]));
    a.run(
        &mut world,
        &write(b.remote(0), &[a.sge(500_000, 200_000)]).changed(|s| s.flags = fenced()),
    );
    assert_eq!(a.send.drain().len(), 2);
    assert!(a.get(0, 200_000).iter().all(|&byte| byte == 1));
}

fn no_receive(_: u64) {
    let config = EndConfig::default().changed(|c| c.rnr_retry = 3);
    let (mut world, mut a, b) = World::joined(config.clone(), config);
    let s = a.post(&send(&[a.sge(0, 8)]));
    world.outlast();
    let entry = a.send.poll().expect("a completion");
    assert_err(&entry, CqeOpcode::REQ_ERR, s, Syndrome::RNR_RETRY);
    drop(b);
}

fn disorder(seed: u64) {
    let (mut world, mut a, b) = World::connected();
    world.nics[1].set_faults(Faults {
        seed,
        ooo: 0.5,
        ..Faults::default()
    });
    a.put(0, &[1; 1000]);
    a.post(&write(b.remote(0), &[a.sge(0, 1000)]));
    let add = Atomic::FetchAdd { add: 1 };
    a.post(&atomic(b.remote(2000), add, &[a.sge(2000, 8)]));
    while b.get64(2000) == 0 {
        if !world.step() {
            world.pass(Duration::from_micros(1));
        }
    }
    assert_eq!(b.get(0, 1000), a.get(0, 1000));
}

/// The first scenario and seed that detect the active mutant.
fn killer() -> Option<(&'static str, u64)> {
    (0..SEEDS).find_map(|seed| {
        let fails = |(_, run): &&Scenario| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err();
        SCENARIOS.iter().find(fails).map(|(name, _)| (*name, seed))
    })
}

#[test]
fn every_mutant_is_detected() {
    assert_eq!(killer(), None, "the scenarios fail without a mutant");
    let hook = std::panic::take_hook();
    let mut alive = Vec::new();
    for mutant in Mutant::ALL {
        // The hook suppresses the output of expected panics.
        std::panic::set_hook(Box::new(|_| {}));
        mutant::set(Some(mutant));
        let killer = killer();
        mutant::set(None);
        let _ = std::panic::take_hook();
        match killer {
            Some((name, seed)) => println!("{mutant:?}: killed by {name}, seed {seed}"),
            None => alive.push(mutant),
        }
    }
    std::panic::set_hook(hook);
    assert!(alive.is_empty(), "alive after {SEEDS} seeds: {alive:?}");
}
