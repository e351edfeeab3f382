//! Weak memory of a stream: stores that were made and are not visible to others yet.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use fastrand::Rng;

/// Stores held back at most; one more pushes some other out.
const MOST: usize = 64;

/// A store of one to eight bytes on its way.
#[derive(Clone, Copy, Debug)]
struct Store {
    ptr: *mut u8,
    len: usize,
    data: [u8; 8],
}

impl Store {
    fn overlaps(&self, ptr: *const u8, len: usize) -> bool {
        self.ptr.addr() < ptr.addr() + len && ptr.addr() < self.ptr.addr() + self.len
    }
}

/// The stores of one stream that others cannot see yet. They become visible in any order,
/// except that stores to the same bytes keep theirs.
#[derive(Debug)]
pub(crate) struct StoreBuffer {
    stores: Vec<Store>,
    rng: Rng,
    one_in: u32,
    just_fenced: bool,
}

// SAFETY: the pointers are followed only while whoever called `store` keeps them valid.
unsafe impl Send for StoreBuffer {}

impl StoreBuffer {
    pub(crate) fn new(seed: u64, one_in: u32) -> StoreBuffer {
        StoreBuffer {
            stores: Vec::with_capacity(MOST + 8),
            rng: Rng::with_seed(seed),
            one_in,
            just_fenced: true,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Whether nothing was stored since the last [`drain`](Self::drain).
    pub(crate) fn just_fenced(&self) -> bool {
        self.just_fenced
    }

    /// Holds a store of `data` back. `tear`: eight bytes may come apart into halves.
    ///
    /// # Safety
    /// `ptr` is valid for atomic writes of `data` until the buffer is empty.
    pub(crate) unsafe fn store(&mut self, ptr: *mut u8, data: &[u8], tear: bool) {
        let piece = if tear && data.len() == 8 && self.rng.bool() {
            4
        } else {
            8
        };
        for (i, part) in data.chunks(piece).enumerate() {
            let mut data = [0; 8];
            data[..part.len()].copy_from_slice(part);
            self.stores.push(Store {
                ptr: ptr.wrapping_add(i * piece),
                len: part.len(),
                data,
            });
        }
        self.just_fenced = false;
        while self.stores.len() > MOST {
            self.commit_one();
        }
    }

    /// Makes everything visible, in order.
    pub(crate) fn drain(&mut self) {
        for store in self.stores.drain(..) {
            commit(store);
        }
        self.just_fenced = true;
    }

    /// Once a step: perhaps makes some store visible.
    pub(crate) fn pass_time(&mut self) {
        if !self.stores.is_empty() && self.rng.u32(..self.one_in) == 0 {
            self.commit_one();
        }
    }

    /// Makes the stores to these bytes visible.
    pub(crate) fn settle(&mut self, ptr: *const u8, len: usize) {
        while let Some(i) = self.stores.iter().position(|s| s.overlaps(ptr, len)) {
            self.commit(i);
        }
    }

    /// What the stream itself reads: memory, and its own stores on top.
    ///
    /// # Safety
    /// `ptr` is aligned to `len`, 4 or 8, and valid for an atomic load.
    pub(crate) unsafe fn load(&self, ptr: *const u8, len: usize) -> u64 {
        let mut bytes = [0; 8];
        if len == 4 {
            // SAFETY: the caller's promise.
            let v = unsafe { AtomicU32::from_ptr(ptr.cast_mut().cast()) }.load(Ordering::Acquire);
            bytes[..4].copy_from_slice(&v.to_ne_bytes());
        } else {
            // SAFETY: the caller's promise.
            let v = unsafe { AtomicU64::from_ptr(ptr.cast_mut().cast()) }.load(Ordering::Acquire);
            bytes = v.to_ne_bytes();
        }
        for s in self.stores.iter().filter(|s| s.overlaps(ptr, len)) {
            for (i, byte) in s.data[..s.len].iter().enumerate() {
                let at = (s.ptr.addr() + i).wrapping_sub(ptr.addr());
                if at < len {
                    bytes[at] = *byte;
                }
            }
        }
        if len == 4 {
            let [a, b, c, d, ..] = bytes;
            u64::from(u32::from_ne_bytes([a, b, c, d]))
        } else {
            u64::from_ne_bytes(bytes)
        }
    }

    /// Makes a store visible that no older one to the same bytes stands before.
    fn commit_one(&mut self) {
        let i = self.rng.usize(..self.stores.len());
        self.commit(i);
    }

    /// Makes the store with index `i`, or an older one that it must not pass, visible.
    fn commit(&mut self, mut i: usize) {
        while let Some(older) = self.stores[..i]
            .iter()
            .position(|s| s.overlaps(self.stores[i].ptr, self.stores[i].len))
        {
            i = older;
        }
        commit(self.stores.remove(i));
    }
}

/// Writes a store to memory, as one access where it is a word.
fn commit(store: Store) {
    let Store { ptr, len, data } = store;
    let [a, b, c, d, ..] = data;
    if len == 8 && ptr.addr().is_multiple_of(8) {
        // SAFETY: `StoreBuffer::store` was promised a valid pointer; aligned here.
        unsafe { AtomicU64::from_ptr(ptr.cast()) }
            .store(u64::from_ne_bytes(data), Ordering::Release);
    } else if len == 4 && ptr.addr().is_multiple_of(4) {
        let word = u32::from_ne_bytes([a, b, c, d]);
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr.cast()) }.store(word, Ordering::Release);
    } else {
        for (i, byte) in data[..len].iter().enumerate() {
            // SAFETY: as above, byte by byte.
            unsafe { AtomicU8::from_ptr(ptr.wrapping_add(i)) }.store(*byte, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mem: &mut [u64], byte: usize) -> *mut u8 {
        mem.as_mut_ptr().cast::<u8>().wrapping_add(byte)
    }

    #[test]
    fn own_stores_are_seen_and_same_bytes_keep_their_order() {
        for seed in 0..200 {
            let mut mem = [0_u64; 2];
            let mut b = StoreBuffer::new(seed, 1);
            let word = at(&mut mem, 0);
            // SAFETY: `mem` outlives the buffer.
            unsafe {
                b.store(word, &1_u64.to_ne_bytes(), true);
                b.store(word, &2_u32.to_ne_bytes(), false);
                b.store(word.wrapping_add(4), &3_u32.to_ne_bytes(), false);
                b.store(word.wrapping_add(6), &[9], false);
                let whole = 2 | (3 | 9 << 16) << 32;
                assert_eq!(b.load(word, 8), whole);
                assert_eq!(b.load(word, 4), 2);
                while !b.is_empty() {
                    b.pass_time();
                    assert_eq!(b.load(word, 8), whole);
                }
            }
            assert_eq!(mem, [2 | (3 | 9 << 16) << 32, 0]);
        }
    }

    #[test]
    fn order_is_lost_without_a_drain() {
        let inverted = (0..100).any(|seed| {
            let mut mem = [0_u64; 2];
            let mut b = StoreBuffer::new(seed, 1);
            let (first, second) = (at(&mut mem, 0), at(&mut mem, 8));
            // SAFETY: `mem` outlives the buffer.
            unsafe {
                b.store(first, &1_u64.to_ne_bytes(), false);
                b.store(second, &1_u64.to_ne_bytes(), false);
            }
            b.pass_time();
            mem == [0, 1]
        });
        assert!(inverted);
    }

    #[test]
    fn a_full_buffer_lets_some_out() {
        let mut mem = [0_u64; 2 * MOST];
        let mut b = StoreBuffer::new(1, u32::MAX);
        for i in 0..2 * MOST {
            // SAFETY: `mem` outlives the buffer.
            unsafe { b.store(at(&mut mem, 8 * i), &1_u64.to_ne_bytes(), false) };
        }
        let seen: u64 = mem.iter().sum();
        assert_eq!(seen as usize, MOST);
        b.drain();
        assert!(mem.iter().all(|&w| w == 1));
    }
}
