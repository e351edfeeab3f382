//! Weak memory of a stream: stores that are not yet visible to others.

use std::sync::atomic::{AtomicU8, Ordering};

use fastrand::Rng;

use crate::span;

// Bytes of a word are counted from its least significant one.
const _: () = assert!(cfg!(target_endian = "little"));

/// The maximal number of held-back stores; one more makes another visible.
const MOST: usize = 64;

/// A held-back store of one to eight bytes.
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

/// The held-back stores of one stream. They become visible in any order, except that stores to the
/// same bytes keep their order.
#[derive(Debug)]
pub(crate) struct StoreBuffer {
    stores: Vec<Store>,
    rng: Rng,
    one_in: u32,
    just_fenced: bool,
}

// SAFETY: the pointers are used only while the caller of `store` keeps them valid.
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

    /// Whether no store is held back.
    pub(crate) fn just_fenced(&self) -> bool {
        self.just_fenced
    }

    /// Holds back a store of `data`. `tear`: eight bytes may become visible as separate halves.
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

    /// Holds back a word: 64 bits if it is `wide`, else the lower half of `value`.
    ///
    /// # Safety
    /// As for [`store`](Self::store).
    pub(crate) unsafe fn store_word(&mut self, ptr: *mut u8, value: u64, wide: bool, tear: bool) {
        let (word, half) = (value.to_le_bytes(), (value as u32).to_le_bytes());
        // SAFETY: the caller's promise.
        unsafe { self.store(ptr, if wide { &word } else { &half }, tear) };
    }

    /// Makes all stores visible, in order.
    pub(crate) fn drain(&mut self) {
        for store in self.stores.drain(..) {
            commit(store);
        }
        self.just_fenced = true;
    }

    /// Called once per step: may make one store visible.
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

    /// The stream's own view: memory, with its own held-back stores applied.
    ///
    /// # Safety
    /// The word is aligned and valid for an atomic load.
    pub(crate) unsafe fn load(&self, ptr: *const u8, wide: bool) -> u64 {
        // SAFETY: the caller's promise.
        let mut word = unsafe { span::load(ptr, wide) };
        let len = if wide { 8 } else { 4 };
        for s in self.stores.iter().filter(|s| s.overlaps(ptr, len)) {
            for (i, byte) in s.data[..s.len].iter().enumerate() {
                let at = (s.ptr.addr() + i).wrapping_sub(ptr.addr());
                if at < len {
                    word = word & !(0xff << (8 * at)) | u64::from(*byte) << (8 * at);
                }
            }
        }
        word
    }

    /// Makes a store visible that has no older store to the same bytes before it.
    fn commit_one(&mut self) {
        let i = self.rng.usize(..self.stores.len());
        self.commit(i);
    }

    /// Makes the store with index `i`, or an older one that it must not overtake, visible.
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

/// Writes a store to memory, in one access if it is a word.
fn commit(store: Store) {
    let Store { ptr, len, data } = store;
    if matches!(len, 4 | 8) && ptr.addr().is_multiple_of(len) {
        // SAFETY: `StoreBuffer::store` was promised a valid pointer; aligned here.
        unsafe { span::store(ptr, u64::from_le_bytes(data), len == 8, Ordering::Release) };
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
    fn own_stores_are_observed_and_same_bytes_keep_their_order() {
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
                assert_eq!(b.load(word, true), whole);
                assert_eq!(b.load(word, false), 2);
                while !b.is_empty() {
                    b.pass_time();
                    assert_eq!(b.load(word, true), whole);
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
    fn full_buffer_makes_stores_visible() {
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
