//! The NIC's access to memory: [`Dma`], and [`HostMemory`], the plain buffer that implements it for
//! hosts and tests.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gds_step::bytes;
use thiserror::Error;

/// An access of the device that the memory refused: outside the span, misaligned, or to memory that
/// was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the memory refused {len} bytes at offset {offset:#x} of a span of {limit:#x} bytes")]
pub struct DmaFault {
    /// Offset of the access, relative to the span.
    pub offset: u64,
    /// Length of the access in bytes.
    pub len: u64,
    /// Size of the span in bytes.
    pub limit: u64,
}

/// A span of memory that a device reads and writes. Offsets are relative to its start, which
/// is aligned to 4096 bytes or more if the span holds a UAR page, to 64 bytes or more otherwise.
///
/// The ordering is that of posted writes on a bus. A [`write`](Dma::write) may become visible to
/// others late and in any order (in a GPU's memory), with two exceptions that the NIC relies on.
/// Bytes of one call never become visible after a later [`store32`](Dma::store32). An aligned piece
/// of 2, 4 or 8 bytes of one call becomes visible at once.
pub trait Dma: Send + Sync {
    /// Size of the span in bytes.
    fn len(&self) -> u64;

    /// Returns true if the span has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `into.len()` bytes out of memory.
    ///
    /// # Errors
    /// The bytes are not inside the span.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies `from` into memory, lower addresses not later than higher ones.
    ///
    /// # Errors
    /// The bytes are not inside the span.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault>;

    /// Loads an aligned 32-bit word in the machine's byte order, with acquire ordering.
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn load32(&self, offset: u64) -> Result<u32, DmaFault>;

    /// Loads an aligned 64-bit word in the machine's byte order, with acquire ordering.
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn load64(&self, offset: u64) -> Result<u64, DmaFault>;

    /// Stores an aligned 32-bit word with release ordering: a reader that observes it also observes
    /// every earlier `write` of this device, through any span.
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault>;

    /// Exchanges an aligned 64-bit word and returns the old value (to take a doorbell).
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault>;

    /// Stores `new` in an aligned 64-bit word if the word equals `current`; returns the old value.
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault>;

    /// Adds to an aligned 64-bit word, wrapping; returns the old value.
    ///
    /// # Errors
    /// The word is not inside the span or is misaligned.
    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault>;
}

const PAGE: usize = 4096;

/// A zeroed buffer, aligned to 4096 bytes, that threads and devices share.
///
/// Every access is atomic word by word, so sharing is safe. A reader that races with a writer reads
/// a mixture of old and new words, as on a real machine.
pub struct HostMemory {
    pages: Box<[Page]>,
    len: usize,
}

#[repr(align(4096))]
struct Page(
    #[expect(dead_code, reason = "reached through HostMemory::base")] [AtomicU64; PAGE / 8],
);

impl HostMemory {
    /// A buffer of `len` zero bytes.
    pub fn new(len: usize) -> HostMemory {
        let pages = (0..len.div_ceil(PAGE))
            .map(|_| Page([const { AtomicU64::new(0) }; PAGE / 8]))
            .collect();
        HostMemory { pages, len }
    }

    /// The address of the first byte: the address in a work queue entry if the buffer is registered
    /// under its own address.
    pub fn addr(&self) -> u64 {
        self.base().as_ptr() as u64
    }

    /// Stores an aligned 64-bit word with release ordering, as a CPU writes a doorbell.
    ///
    /// # Errors
    /// The word is not inside the buffer or is misaligned.
    pub fn store64(&self, offset: u64, value: u64) -> Result<(), DmaFault> {
        self.word64(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn base(&self) -> NonNull<u8> {
        // A slice pointer is never null; dangling (aligned) if there are no pages.
        NonNull::from(&*self.pages).cast()
    }

    fn check(&self, offset: u64, len: usize, align: u64) -> Result<NonNull<u8>, DmaFault> {
        let fits = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len as u64);
        if !fits || offset & (align - 1) != 0 {
            return Err(DmaFault {
                offset,
                len: len as u64,
                limit: self.len as u64,
            });
        }
        // SAFETY: `offset + len <= self.len`, which the pages cover.
        Ok(unsafe { self.base().add(offset as usize) })
    }

    fn word32(&self, offset: u64) -> Result<&AtomicU32, DmaFault> {
        let at = self.check(offset, 4, 4)?;
        // SAFETY: four aligned bytes inside the pages, which live as long as `self` and are only
        // ever accessed atomically. Words of different sizes overlap here as they do on the
        // hardware that this models; the machine's accesses of one naturally aligned word are
        // indivisible whatever the size.
        Ok(unsafe { at.cast().as_ref() })
    }

    fn word64(&self, offset: u64) -> Result<&AtomicU64, DmaFault> {
        let at = self.check(offset, 8, 8)?;
        // SAFETY: as in `word32`, with eight bytes.
        Ok(unsafe { at.cast().as_ref() })
    }
}

impl Dma for HostMemory {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let from = self.check(offset, into.len(), 1)?;
        // SAFETY: `check` found the bytes in the pages, which are only accessed atomically.
        unsafe { bytes::copy_out(from, into) };
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        let to = self.check(offset, from.len(), 1)?;
        // SAFETY: as in `read`.
        unsafe { bytes::copy_in(to, from) };
        Ok(())
    }

    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        Ok(self.word32(offset)?.load(Ordering::Acquire))
    }

    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        Ok(self.word64(offset)?.load(Ordering::Acquire))
    }

    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        self.word32(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        Ok(self.word64(offset)?.swap(value, Ordering::AcqRel))
    }

    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        let word = self.word64(offset)?;
        match word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(was) | Err(was) => Ok(was),
        }
    }

    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        Ok(self.word64(offset)?.fetch_add(add, Ordering::AcqRel))
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:#x} bytes at {:#x})", self.len, self.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_every_alignment() {
        let m = HostMemory::new(100);
        for start in 0..20_u64 {
            for len in 0..40_usize {
                let blank = [0xee; 100];
                m.write(0, &blank).unwrap();
                let data: Vec<u8> = (0..len).map(|i| i as u8 + 1).collect();
                m.write(start, &data).unwrap();
                let mut all = [0; 100];
                m.read(0, &mut all).unwrap();
                let mut expect = blank;
                expect[start as usize..start as usize + len].copy_from_slice(&data);
                assert_eq!(all, expect, "start {start} len {len}");
                let mut back = vec![0; len];
                m.read(start, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
    }

    #[test]
    fn access_outside_the_span_is_refused() {
        let m = HostMemory::new(100);
        let fault = m.write(97, &[0; 4]).unwrap_err();
        assert_eq!((fault.offset, fault.len, fault.limit), (97, 4, 100));
        assert!(m.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(m.load32(2).is_err());
        assert!(m.load64(96).is_err());
        assert!(m.load32(96).is_ok());
        assert!(HostMemory::new(0).read(0, &mut []).is_ok());
    }

    #[test]
    fn word_operations_return_the_old_value() {
        let m = HostMemory::new(64);
        m.store64(8, 5).unwrap();
        assert_eq!(m.fetch_add64(8, u64::MAX).unwrap(), 5);
        assert_eq!(m.compare_swap64(8, 3, 9).unwrap(), 4);
        assert_eq!(m.compare_swap64(8, 4, 9).unwrap(), 4);
        assert_eq!(m.swap64(8, 0).unwrap(), 9);
        m.store32(12, 1).unwrap();
        assert_eq!(m.load64(8).unwrap().to_ne_bytes()[4..], 1_u32.to_ne_bytes());
    }
}
