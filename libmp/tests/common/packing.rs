//! A count of the kernels that pack messages or scatter packed ones.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gdsync::Gpu;
use gdsync::gpu::{Observer, Passed, Work};

/// Counts the kernels that pack messages or scatter packed ones.
#[derive(Default)]
pub struct Packing(AtomicUsize);

impl Observer for Packing {
    fn enqueued(&self, _: u64, work: Work<'_>, _: gds_step::Time, _: Option<Passed>) {
        // Relaxed: it orders nothing else.
        let packs = format!("{work:?}").contains("mp_strided");
        self.0.fetch_add(packs.into(), Ordering::Relaxed);
    }
}

impl Packing {
    /// Counts those of the GPU from now on, as long as the result is held.
    pub fn of(gpu: &Gpu) -> Arc<Packing> {
        let packing = Arc::new(Packing::default());
        let observer: Arc<dyn Observer> = Arc::clone(&packing) as _;
        gpu.observe(&observer).unwrap();
        packing
    }

    /// Those that were enqueued so far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
