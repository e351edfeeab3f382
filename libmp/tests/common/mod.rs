//! Fixtures of several tests: ranks as threads, payloads that identify sender and message.
#![allow(dead_code, reason = "each test uses a part")]

pub mod alarm;
pub mod gate;
pub mod packing;

use std::sync::Arc;
use std::time::Duration;

use gdsync::Gpu;
use mp::bootstrap::Local;
use mp::{Builder, Context, Memory};

/// The time after which the test reports a hang.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The GPU that `GDS_GPU` names; by default a software GPU for each rank.
pub fn gpu() -> Gpu {
    let name = std::env::var("GDS_GPU").unwrap_or_else(|_| "soft".to_owned());
    Gpu::open(&name).unwrap()
}

/// Runs `body` as each of `size` ranks, which are threads of this process with a GPU each.
pub fn ranks(size: u32, body: impl Fn(Context) + Send + Sync + 'static) {
    ranks_with(size, |builder| builder, body);
}

/// As [`ranks`], with contexts built by `build`.
pub fn ranks_with(
    size: u32,
    build: impl Fn(Builder) -> Builder,
    body: impl Fn(Context) + Send + Sync + 'static,
) {
    let warnings = alarm::of_this_process();
    let body = Arc::new(body);
    let threads: Vec<_> = Local::ranks(size)
        .into_iter()
        .map(|bootstrap| {
            let gpu = gpu();
            let ctx = build(Context::builder().bootstrap(bootstrap).gpu(&gpu))
                .build()
                .unwrap();
            let body = Arc::clone(&body);
            std::thread::Builder::new()
                .name(format!("rank{}", ctx.rank()))
                .spawn(move || {
                    body(ctx.clone());
                    // Tests of failures leave requests that cannot end.
                    let _ = ctx.close(Duration::from_secs(5));
                })
                .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(warnings.alarms(), [""; 0], "an alarm without a cause");
}

/// The payload of message `i` of `rank`.
pub fn pattern(rank: u32, i: usize, len: usize) -> Vec<u8> {
    let seed = (u64::from(rank) << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64)
        .map(|at| ((at ^ seed).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8)
        .collect()
}

/// The contents of memory.
pub fn read(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}
