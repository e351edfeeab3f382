//! The memory of rings, as the ring logic sees it.

use mlx5_prm::wqe::{SEGMENT, SegmentSink};

/// Bytes that this CPU shares with a NIC and a GPU. Offsets are within the ring; an offset outside
/// it is a bug of the ring logic, which checks its indices.
pub trait RingMemory {
    /// Stores 16 aligned bytes (one segment of a work queue entry). The store is not ordered; the
    /// later write of the doorbell record has release order.
    fn store_segment(&self, offset: usize, segment: &[u8; 16]);
    /// Loads 16 aligned bytes.
    fn load_segment(&self, offset: usize) -> [u8; 16];
    /// Loads an aligned word with acquire: the writer's earlier stores are visible after the load.
    fn load32(&self, offset: usize) -> u32;
    /// Stores an aligned word with release: earlier stores are visible before this one.
    fn store32(&self, offset: usize, value: u32);
}

/// Writes segments one after the other, wrapping at the end of a ring of `mask + 1` bytes.
pub(super) struct Writer<'a, M> {
    pub memory: &'a M,
    pub at: usize,
    pub mask: usize,
}

impl<M: RingMemory> SegmentSink for Writer<'_, M> {
    #[inline]
    fn put(&mut self, segment: &[u8; SEGMENT]) {
        self.memory.store_segment(self.at & self.mask, segment);
        self.at += SEGMENT;
    }
}

#[cfg(test)]
pub(crate) mod heap {
    use super::RingMemory;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Ring memory for tests: plain words. Clones are the same memory.
    #[derive(Clone, Debug)]
    pub struct Heap(Rc<[AtomicU32]>);

    impl Heap {
        pub fn new(bytes: usize) -> Heap {
            Heap((0..bytes / 4).map(|_| AtomicU32::new(0)).collect())
        }
    }

    impl RingMemory for Heap {
        fn store_segment(&self, offset: usize, segment: &[u8; 16]) {
            for (i, word) in segment.chunks_exact(4).enumerate() {
                self.store32(offset + 4 * i, u32::from_le_bytes(word.try_into().unwrap()));
            }
        }
        fn load_segment(&self, offset: usize) -> [u8; 16] {
            let mut s = [0; 16];
            for (i, word) in s.chunks_exact_mut(4).enumerate() {
                word.copy_from_slice(&self.load32(offset + 4 * i).to_le_bytes());
            }
            s
        }
        fn load32(&self, offset: usize) -> u32 {
            assert_eq!(offset % 4, 0);
            self.0[offset / 4].load(Ordering::Acquire)
        }
        fn store32(&self, offset: usize, value: u32) {
            assert_eq!(offset % 4, 0);
            self.0[offset / 4].store(value, Ordering::Release)
        }
    }
}
