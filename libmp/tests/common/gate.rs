//! A word that blocks a stream until the test opens it.
#![allow(dead_code, reason = "each test uses a part")]

use gdsync::Gpu;
use gdsync::gpu::{Condition, MemoryKind, Stream, Word64};
use gdsync::rdma::{Descriptor, post_on};

/// A word that a stream waits for.
pub struct Gate(Word64);

impl Gate {
    pub fn new(gpu: &Gpu) -> Gate {
        let region = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        Gate(region.word64(0).unwrap())
    }

    /// Enqueues a wait for the word on a stream.
    pub fn hold(&self, stream: &Stream) {
        let wait = Descriptor::wait_value(&self.0, Condition::Geq, 1);
        post_on(stream, &mut [], &[wait]).unwrap();
    }

    pub fn open(&self) {
        self.0.store(1).unwrap();
    }
}
