//! Measures how many 8-byte RDMA WRITEs a second one thread drives through two NICs of one
//! process, one in sixteen signaled; and the bandwidth of 1 MiB writes.
//!
//! `cargo run --release -p vmlx5 --example rate`

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gds_step::Bell;
use mlx5_prm::wqe::{SendWqe, WqeFlags};
use rig::*;
use vmlx5::fabric::Fabric;
use vmlx5::fabric::shm::{ShmConfig, ShmFabric};

const WRITES: u64 = 4_000_000;
const WINDOW: u64 = 256;

fn main() {
    let shm = |_| {
        let bell = Arc::new(Bell::new().expect("a bell"));
        let fabric = ShmFabric::open(ShmConfig::default(), bell).expect("a socket");
        Box::new(fabric) as Box<dyn Fabric>
    };
    measure("two NICs on a hub", World::new(2));
    measure("one NIC to itself", World::new(1));
    measure(
        "two NICs over shared memory",
        World::on((0..2).map(shm).collect()),
    );
}

fn measure(what: &str, mut world: World) {
    let config = EndConfig {
        log_sq: 9,
        log_cq: 9,
        data: 2 << 20,
        ..EndConfig::default()
    };
    let (mut a, b) = world.pair(config.clone(), config);
    let took = writes(&mut world, &mut a, &b);
    let rate = WRITES as f64 / took.as_secs_f64() / 1e6;
    println!(
        "{what}: {rate:.2} M writes/s of 8 bytes, {:?} each",
        took / WRITES as u32
    );
    let n = 4000;
    let took = large(&mut world, &mut a, &b, n);
    let rate = n as f64 * (1 << 20) as f64 / took.as_secs_f64() / 1e9;
    println!("{what}: {rate:.2} GB/s in writes of 1 MiB");
    let n = 200_000;
    let start = Instant::now();
    for i in 0..n {
        a.put64(0, i + 1);
        a.post(&write(b.remote(8), &[a.sge(0, 8)]));
        while a.send.poll().is_none() {
            world.step();
        }
        assert_eq!(b.get64(8), i + 1);
    }
    println!(
        "{what}: {:?} from doorbell to completion",
        start.elapsed() / n as u32
    );
}

fn writes(world: &mut World, a: &mut End, b: &End) -> Duration {
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < WRITES {
        while posted < WRITES && posted - done < WINDOW {
            let slot = 8 * (posted % 16);
            a.put64(slot, posted);
            let flags = WqeFlags {
                signaled: posted % 16 == 15,
                ..WqeFlags::default()
            };
            let (target, sges) = (b.remote(slot), [a.sge(slot, 8)]);
            a.prepare(&SendWqe {
                flags,
                ..write(target, &sges)
            });
            posted += 1;
            if posted % 16 == 0 {
                a.ring();
            }
        }
        world.step();
        while a.send.poll().is_some() {
            done += 16;
            for i in 0..16 {
                assert!(
                    b.get64(8 * i) >= done - 16,
                    "payload of write {i} of {done}"
                );
            }
        }
    }
    start.elapsed()
}

fn large(world: &mut World, a: &mut End, b: &End, n: usize) -> Duration {
    let start = Instant::now();
    let (target, sges) = (b.remote(0), [a.sge(0, 1 << 20)]);
    let (mut posted, mut done) = (0, 0);
    while done < n {
        while posted < n && posted - done < 8 {
            a.post(&write(target, &sges));
            posted += 1;
        }
        world.step();
        done += a.send.drain().len();
    }
    start.elapsed()
}
