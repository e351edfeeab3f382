//! Deaths on real threads, at any moment of an exchange: the surviving ranks get errors that name
//! the dead rank, their streams continue, and they continue to exchange messages with each other.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use common::{LIMIT, gpu};
use gdsync::gpu::MemoryKind;
use mp::bootstrap::Local;
use mp::{Bootstrap, Connect, Context, Kind, Result};

const ROUNDS: u64 = 25;
/// The rank that dies.
const VICTIM: u32 = 1;
/// No request waits for this limit, so its length does not matter.
const TIMEOUT: Duration = Duration::from_secs(20);

fn open(bootstrap: Arc<dyn Bootstrap>) -> Context {
    let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu());
    // All ranks connect first: a rank announces its end only to ranks that it is connected to.
    let builder = builder.connect(Connect::UpFront);
    builder.timeout(TIMEOUT).depth(4).build().unwrap()
}

/// Exchanges `times` messages with a rank on a stream. An error, or `stop`, leaves requests in
/// flight.
fn exchange(ctx: &Context, with: u32, tag: u32, times: usize, stop: &AtomicBool) -> Result<()> {
    let stream = ctx.gpu().stream()?;
    let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16)?;
    for i in 0..times {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let len = if i % 2 == 0 { 64 } else { 10_000 };
        let recv = ctx.irecv_on(&stream, with, tag, &memory.slice(0, len)?)?;
        let send = ctx.isend_on(&stream, with, tag, &memory.slice(1 << 15, len)?)?;
        recv.wait_on(&stream)?;
        send.wait_on(&stream)?;
        if i % 8 == 7 {
            assert!(stream.synchronize(LIMIT)?, "the stream is not released");
            recv.wait(LIMIT)?;
            send.wait(LIMIT)?;
        }
    }
    assert!(stream.synchronize(LIMIT)?, "the stream is not released");
    Ok(())
}

#[test]
fn survivors_continue_after_deaths_at_any_moment() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for round in 0..ROUNDS {
        let mut rng = fastrand::Rng::with_seed(seed ^ round);
        let when = Duration::from_micros(rng.u64(0..5000));
        let leaves = rng.bool();
        let ranks = Local::ranks(3);
        let keep = Arc::clone(&ranks[VICTIM as usize]);
        let connected = Arc::new(Barrier::new(3));
        let threads = ranks.into_iter().map(|bootstrap| {
            let connected = Arc::clone(&connected);
            thread::spawn(move || {
                let ctx = open(bootstrap);
                connected.wait();
                match ctx.rank() {
                    VICTIM => dies(&ctx, when),
                    me => survives(&ctx, 2 - me),
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        // Half of the dying ranks stay in the job.
        let keep = leaves.then_some(keep);
        for thread in threads {
            thread.join().unwrap();
        }
        drop(keep);
    }
}

/// Drops its context in the middle of two exchanges.
fn dies(ctx: &Context, when: Duration) {
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for with in [0, 2] {
            let stop = &stop;
            s.spawn(move || exchange(ctx, with, 1, usize::MAX, stop).unwrap());
        }
        thread::sleep(when);
        stop.store(true, Ordering::Relaxed);
    });
}

fn survives(ctx: &Context, friend: u32) {
    let go = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| exchange(ctx, friend, 2, 200, &go).unwrap());
        let e = exchange(ctx, VICTIM, 1, usize::MAX, &go).unwrap_err();
        assert_eq!(e.rank(), Some(VICTIM), "{e:?}");
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
    });
    assert!(ctx.stuck().is_empty());
    exchange(ctx, friend, 3, 20, &go).unwrap();
    // Requests whose handles were dropped may have failed.
    if let Err(e) = ctx.close(LIMIT) {
        assert_eq!(e.rank(), Some(VICTIM), "{e:?}");
    }
    ctx.close(LIMIT).unwrap();
}
