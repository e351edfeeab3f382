//! An environment for tests: it steps the engines itself, inside every wait, with its own clock.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gds_step::{Env, Machine, Step, Time};
use softgpu::{Cond, Config, DevAddr, Engine, Gpu, MemOp, Stream, Weak};

/// A value that differs from another in a field or two.
pub trait Changed: Sized {
    fn changed(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl<T> Changed for T {}

/// Steps without progress after which a wait without deadline counts as hung.
const HUNG: u64 = 20_000;

type EachStep = Box<dyn FnMut(u64) + Send>;

#[derive(Default)]
pub struct TestEnv {
    engines: Mutex<Vec<Engine>>,
    now: AtomicU64,
    rings: AtomicU64,
    /// Called once per step, inside and outside of waits, with the number of the step.
    each_step: Mutex<Option<EachStep>>,
}

impl TestEnv {
    /// Steps every engine once. Returns whether any made progress.
    pub fn step(&self) -> bool {
        let n = self.now.fetch_add(1, Ordering::Relaxed);
        if let Some(f) = &mut *self.each_step.lock().unwrap() {
            f(n);
        }
        let mut engines = self.engines.lock().unwrap();
        let steps = engines.iter_mut().map(|e| e.step(Time::from_nanos(n)));
        steps.fold(false, |any, step| any | (step == Step::Progress))
    }

    pub fn steps(&self, n: u32) {
        for _ in 0..n {
            self.step();
        }
    }

    /// Steps until no engine makes progress.
    pub fn settle(&self) {
        while self.step() {}
    }

    pub fn on_each_step(&self, f: impl FnMut(u64) + Send + 'static) {
        *self.each_step.lock().unwrap() = Some(Box::new(f));
    }

    pub fn count(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    pub fn add(&self, engine: Engine) {
        self.engines.lock().unwrap().push(engine);
    }

    pub fn drop_engines(&self) {
        self.engines.lock().unwrap().clear();
    }
}

impl std::fmt::Debug for TestEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestEnv")
    }
}

impl Env for TestEnv {
    fn now(&self) -> Time {
        Time::from_nanos(self.count())
    }

    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        let mut idle = 0;
        loop {
            if condition() {
                return true;
            }
            if deadline.is_some_and(|d| self.now() >= d) {
                return false;
            }
            idle = if self.step() { 0 } else { idle + 1 };
            assert!(deadline.is_some() || idle < HUNG, "nothing moves: a hang");
        }
    }

    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::Relaxed);
    }
}

/// An environment with one GPU.
pub fn rig(config: Config) -> (Arc<TestEnv>, Gpu) {
    let env = Arc::new(TestEnv::default());
    let gpu = add_gpu(&env, config);
    (env, gpu)
}

pub fn add_gpu(env: &Arc<TestEnv>, config: Config) -> Gpu {
    let (gpu, engine) = Gpu::new(Arc::clone(env) as _, config).unwrap();
    env.add(engine);
    gpu
}

/// A GPU with weak memory.
pub fn weak(seed: u64) -> Config {
    Config::default().changed(|c| c.weak = Some(Weak::seeded(seed)))
}

fn write(addr: DevAddr, value: u64, wide: bool, fenced: bool) -> MemOp {
    MemOp::Write {
        addr,
        value,
        wide,
        fenced,
    }
}

pub fn write32(addr: DevAddr, value: u32) -> MemOp {
    write(addr, value.into(), false, true)
}

pub fn unfenced32(addr: DevAddr, value: u32) -> MemOp {
    write(addr, value.into(), false, false)
}

pub fn unfenced64(addr: DevAddr, value: u64) -> MemOp {
    write(addr, value, true, false)
}

/// Until the word fulfils the condition, without a flush.
pub fn wait(addr: DevAddr, cond: Cond, value: u64, mask: u64, wide: bool) -> MemOp {
    MemOp::Wait {
        addr,
        value,
        mask,
        cond,
        wide,
        flush: false,
    }
}

/// The same, and what NICs wrote is visible then.
pub fn flushing(mut wait: MemOp) -> MemOp {
    if let MemOp::Wait { flush, .. } = &mut wait {
        *flush = true;
    }
    wait
}

pub fn wait32(addr: DevAddr, value: u32) -> MemOp {
    wait(addr, Cond::Eq, value.into(), !0, false)
}

pub fn wait64(addr: DevAddr, value: u64) -> MemOp {
    wait(addr, Cond::Eq, value, !0, true)
}

/// Waits for the stream, without a deadline.
pub fn sync(stream: &Stream) {
    assert_eq!(stream.synchronize(None), Ok(true));
}
