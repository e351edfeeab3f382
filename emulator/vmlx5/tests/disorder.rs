//! WRITEs that are placed out of order: which of them may become visible early, which may not, and
//! that the NIC executes nothing twice.

mod rig;

use std::time::Duration;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::wqe::Atomic;
use rig::*;
use vmlx5::fabric::faults::Faults;

const US: Duration = Duration::from_micros(1);
/// Longer than the delay of the latest piece.
const LATE: Duration = Duration::from_micros(50);
/// The address of the data at the other end.
const DATA: u64 = 0;
const LEN: usize = 10_000;
/// The address of the word behind the data.
const WORD: u64 = 65_536;

fn faults(seed: u64) -> Faults {
    Faults {
        seed,
        ooo: 0.5,
        ..Faults::default()
    }
}

/// A sender, and a receiver whose NIC places WRITEs out of order.
fn world(seed: u64) -> (World, End, End) {
    let (mut world, a, b) = World::connected();
    world.nics[1].set_faults(faults(seed));
    a.put(DATA, &pattern(seed, LEN));
    a.put64(WORD, 1);
    (world, a, b)
}

/// Steps until `there` returns true.
fn until(world: &mut World, mut there: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if there() {
            return;
        }
        if !world.step() {
            world.pass(US);
        }
    }
    panic!("the data did not arrive");
}

/// Returns true if the receiver has all the data.
fn whole(a: &End, b: &End) -> bool {
    b.get(DATA, LEN) == a.get(DATA, LEN)
}

#[test]
fn later_write_may_be_visible_before_an_earlier_one() {
    let (mut early, mut displaced) = (0, 0);
    for seed in 0..40 {
        let (mut world, mut a, b) = world(seed);
        a.post(&write(b.remote(DATA), &[a.sge(DATA, LEN as u32)]));
        let last = a.post(&write(b.remote(WORD), &[a.sge(WORD, 8)]));
        until(&mut world, || b.get64(WORD) == 1);
        early += u32::from(!whole(&a, &b));
        world.pass(LATE);
        assert!(whole(&a, &b));
        let entries = a.send.drain();
        assert_ok(&entries[1], CqeOpcode::REQ, last);
        displaced += world.nics[1].fault_stats().displaced;
    }
    assert!((5..40).contains(&early) && displaced > 20, "{early} of 40");
}

#[test]
fn atomic_and_read_fenced_write_are_visible_after_earlier_writes() {
    for seed in 0..100 {
        let (mut world, mut a, b) = world(seed);
        a.post(&write(b.remote(DATA), &[a.sge(DATA, LEN as u32)]));
        let old = [a.sge(WORD + 64, 8)];
        if seed % 2 == 0 {
            a.post(&atomic(b.remote(WORD), Atomic::FetchAdd { add: 1 }, &old));
        } else {
            a.post(&read(b.remote(WORD), &old));
            let word = [a.sge(WORD, 8)];
            let mut word = write(b.remote(WORD), &word);
            word.flags = fenced();
            a.post(&word);
        }
        until(&mut world, || b.get64(WORD) == 1);
        assert!(whole(&a, &b), "{seed}");
    }
}

#[test]
fn completed_receive_is_visible_after_earlier_writes() {
    for seed in 0..100 {
        let (mut world, mut a, mut b) = world(seed);
        b.post_recv(&[b.sge(WORD, 64)]);
        a.post(&write(b.remote(DATA), &[a.sge(DATA, LEN as u32)]));
        a.post(&send(&[a.sge(WORD, 8)]));
        until(&mut world, || b.recv.poll().is_some());
        assert!(whole(&a, &b), "{seed}");
    }
}

#[test]
fn write_completes_after_it_is_placed() {
    for seed in 0..100 {
        let (mut world, mut a, b) = world(seed);
        a.post(&write(b.remote(DATA), &[a.sge(DATA, LEN as u32)]));
        until(&mut world, || a.send.poll().is_some());
        assert!(whole(&a, &b), "{seed}");
    }
}

/// With lost and duplicated frames as well: each atomic counts once, and a READ returns the data of
/// earlier writes.
#[test]
fn repeated_atomics_are_executed_once() {
    for seed in 0..40 {
        let config = EndConfig::default().changed(|c| (c.timeout, c.retry_cnt) = (8, 7));
        let (mut world, mut a, b) = World::joined(config.clone(), config);
        world.set_faults(&Faults {
            loss: 0.05,
            dup: 0.1,
            reorder: 0.1,
            ..faults(seed)
        });
        for i in 0..20_u64 {
            let at = 64 * i;
            a.put64(at, seed + i);
            a.post(&write(b.remote(at), &[a.sge(at, 8)]));
            let old = [a.sge(WORD + 8 * i, 8)];
            a.post(&atomic(b.remote(WORD), Atomic::FetchAdd { add: 1 }, &old));
            a.post(&read(b.remote(at), &[a.sge(2 * WORD + at, 8)]));
        }
        world.pass(Duration::from_secs(1));
        let entries = a.send.drain();
        assert_eq!(entries.len(), 60);
        assert!(
            entries.iter().all(|e| e.opcode() == CqeOpcode::REQ),
            "{seed}"
        );
        assert_eq!(b.get64(WORD), 20);
        for i in 0..20_u64 {
            assert_eq!(a.get64(WORD + 8 * i), i, "the result of an atomic");
            assert_eq!(a.get64(2 * WORD + 64 * i), seed + i, "the result of a READ");
        }
    }
}
