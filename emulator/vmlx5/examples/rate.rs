//! Measures how many 8-byte RDMA WRITEs a second one thread drives through two NICs of one
//! process, one in sixteen signaled; and the bandwidth of 1 MiB writes.
//!
//! `cargo run --release -p vmlx5 --example rate`

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::Instant;

use mlx5_prm::wqe::{SendWqe, WqeFlags};
use rig::*;

fn main() {
    for nics in [2, 1] {
        let config = EndConfig {
            log_sq: 9,
            log_cq: 9,
            data: 2 << 20,
            ..EndConfig::default()
        };
        let mut world = World::new(nics);
        let (mut a, b) = world.pair(config.clone(), config);
        let (n, window) = (4_000_000_u64, 256);
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < n {
            while posted < n && posted - done < window {
                a.put64(8 * (posted % 16), posted);
                let flags = WqeFlags {
                    signaled: posted % 16 == 15,
                    ..WqeFlags::default()
                };
                let slot = 8 * (posted % 16);
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
                        "payload of write {}",
                        done - 16 + i
                    );
                }
            }
        }
        let took = start.elapsed();
        let rate = n as f64 / took.as_secs_f64() / 1e6;
        println!(
            "{nics} NIC(s): {rate:.2} M writes/s, {:?} each",
            took / n as u32
        );

        let (n, mut done) = (4000, 0);
        let start = Instant::now();
        let (target, sges) = (b.remote(0), [a.sge(0, 1 << 20)]);
        let mut posted = 0;
        while done < n {
            while posted < n && posted - done < 8 {
                a.post(&write(target, &sges));
                posted += 1;
            }
            world.step();
            done += a.send.drain().len();
        }
        let rate = n as f64 * (1 << 20) as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{nics} NIC(s): {rate:.2} GB/s in 1 MiB writes");
    }
}
