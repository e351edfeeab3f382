//! Engine and enqueueing threads at the same time, as under the `live` driver.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::{Changed, wait32, weak, write32};
use gds_step::{Env, Machine, Time};
use softgpu::{Config, Event, Gpu};

/// Waits by yielding; an engine runs on another thread.
#[derive(Debug, Default)]
struct Live(AtomicU64);

impl Env for Live {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::Relaxed))
    }
    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if condition() {
                return true;
            }
            if deadline.is_some_and(|d| self.now() >= d) {
                return false;
            }
            thread::yield_now();
        }
    }
    fn ring(&self) {}
}

/// Runs `f` while another thread steps the GPU's engine.
fn with_engine(config: Config, f: impl FnOnce(&Gpu)) {
    let env = Arc::new(Live::default());
    let (gpu, mut engine) = Gpu::new(Arc::clone(&env) as _, config).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let now = env.0.fetch_add(1, Ordering::Relaxed);
                engine.step(Time::from_nanos(now));
            }
        });
        // Also when `f` panics: the scope waits for the engine's thread.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        f(&gpu);
    });
}

/// Two threads on one small stream, a third on another; counters show that each thread's
/// submissions ran in order and none was lost.
#[test]
fn threads_share_a_stream_and_block_on_its_bound() {
    for config in [Config::default(), weak(5)] {
        let config = config.changed(|c| c.stream_bound = 4);
        with_engine(config, |gpu| {
            let pin = gpu.alloc_pinned(4096).unwrap();
            let shared = gpu.stream().unwrap();
            thread::scope(|s| {
                for t in 0..3 {
                    let stream = if t < 2 {
                        shared.clone()
                    } else {
                        gpu.stream().unwrap()
                    };
                    let word = pin.addr() + 64 * t;
                    s.spawn(move || {
                        for n in 0..500_u32 {
                            let write = write32(word, n + 1);
                            // The stream observes its own writes, so every wait ends.
                            stream.submit([wait32(word, n), write]).unwrap();
                        }
                        assert_eq!(stream.synchronize(None), Ok(true));
                    });
                }
            });
            for t in 0..3 {
                assert_eq!(pin.window().load32(64 * t), Ok(500));
            }
        });
    }
}

/// A stream and a CPU thread play ping-pong through words, in memory that is allocated and freed.
#[test]
fn cpu_thread_answers_a_stream() {
    with_engine(Config::default(), |gpu| {
        for _ in 0..5 {
            let pin = gpu.alloc_pinned(256).unwrap();
            let dev = gpu.alloc_device(256).unwrap();
            let stream = gpu.stream().unwrap();
            let done = Event::new();
            for n in 1..=50 {
                stream
                    .submit([write32(pin.addr(), n), wait32(pin.addr() + 64, n)])
                    .unwrap();
                stream.copy(dev.addr() + 4, pin.addr() + 128, 4).unwrap();
            }
            stream.record(&done).unwrap();
            drop(stream);
            let window = pin.window();
            for n in 1..=50 {
                while window.load32(0).unwrap() < n {
                    thread::yield_now();
                }
                window.store32(128, n * 3).unwrap();
                window.store32(64, n).unwrap();
            }
            while !done.query() {
                thread::yield_now();
            }
            let last = dev.window().load32(4).unwrap();
            assert_eq!(last, 150);
        }
    });
}
