//! Memory that the GPU, NICs and the CPU share; words and spans of it.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use gds_step::Time;

use super::runtime::{Allocation, Backing, View};
use super::{Gpu, Mapped};
use crate::error::{Error, Kind, Result};
use crate::memop::DevicePtr;
use crate::ring::RingMemory;

/// The location of memory: in the GPU, or in the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// In GPU memory. The CPU accesses it through a mapping that the first access creates (CUDA:
    /// GDRCopy), or by a copy engine where it cannot be mapped. A stream must wait with a flush for
    /// what a NIC writes there: see [`Consistency`](super::Consistency).
    Device,
    /// In host memory, pinned. The GPU accesses it over the bus, the CPU directly.
    Pinned,
}

/// Memory that a GPU, NICs and the CPU share: at least one byte, allocated, registered or adopted
/// by a [`Gpu`]. A clone is a handle on the same memory.
///
/// The memory is freed when the last clone, registration and request in flight is gone and the
/// streams have run the work enqueued by then. The library hands out no references to the memory,
/// because devices may write it at any time: [`Region::read`] and [`Region::write`] copy bytes, in
/// no order with the streams.
///
/// ```
/// use gdsync::gpu::MemoryKind;
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let memory = gpu.alloc(MemoryKind::Pinned, 64)?;
/// let (from, to) = (memory.span(0, 16)?, memory.span(16, 16)?); // for copies of a stream
/// let flag = memory.word32(32)?; // for waits and stores of a stream
/// memory.write(0, &[7; 16])?;
/// flag.store(1)?;
/// assert_eq!((from.len(), to.addr().0 - from.addr().0, flag.load()?), (16, 16, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    kind: MemoryKind,
    /// The CPU's view and its mapping; the error states why there is none. The field is declared
    /// before the allocation so that it is dropped first.
    view: OnceLock<Result<View, String>>,
    allocation: Allocation,
    /// The application's buffer, which the allocation's owner holds too. No code accesses the
    /// vector before all handles are gone.
    buffer: Option<Arc<Vec<u8>>>,
}

const GIVE_BACK: &str = "return buffer";

/// A weak handle on a region, which may be freed.
#[derive(Clone)]
pub(crate) struct WeakRegion(Weak<Inner>);

impl WeakRegion {
    pub fn upgrade(&self) -> Option<Region> {
        self.0.upgrade().map(Region)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind, allocation, ..
        } = &*self.0;
        write!(
            f,
            "{kind:?} region {:?}+{:#x}",
            allocation.addr, allocation.len
        )
    }
}

impl Region {
    pub(super) fn new(gpu: Gpu, kind: MemoryKind, allocation: Allocation) -> Region {
        Region(Arc::new(Inner {
            gpu,
            kind,
            allocation,
            view: OnceLock::new(),
            buffer: None,
        }))
    }

    /// Makes a region of `buffer`, which the owner of `allocation` holds too.
    pub(super) fn of_vec(gpu: Gpu, allocation: Allocation, buffer: Arc<Vec<u8>>) -> Region {
        Region(Arc::new(Inner {
            gpu,
            kind: MemoryKind::Pinned,
            allocation,
            view: OnceLock::new(),
            buffer: Some(buffer),
        }))
    }

    /// Returns the buffer that [`Gpu::adopt_vec`] took. The call waits, at most for `limit`, until
    /// this is the last handle on the memory and every stream of the GPU has run the work that was
    /// enqueued by then.
    ///
    /// # Errors
    /// Each error returns the region unchanged. `Timeout` after `limit`, with what still uses the
    /// memory: other handles, registrations, requests in flight, or enqueued work; `Invalid` if the
    /// region was not made from a buffer.
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Region, Error)> {
        let deadline = self.gpu().host().now() + limit;
        match self.check_buffer().and_then(|()| self.settle(0, deadline)) {
            // SAFETY: `settle` has waited until no other handle and no stream reaches the memory.
            Ok(()) => Ok(unsafe { self.release() }),
            Err(e) => Err((self, e)),
        }
    }

    /// Returns the buffer that [`Gpu::adopt_vec`] took if this is the only handle and the region is
    /// unused; otherwise a copy of it. The result is empty if the region was not made from a
    /// buffer.
    #[doc(hidden)]
    pub fn into_untouched_vec(self) -> Vec<u8> {
        self.into_vec(Duration::ZERO).unwrap_or_else(|(region, _)| {
            let mut bytes = vec![0; region.len()];
            match region.read(0, &mut bytes) {
                Ok(()) => bytes,
                Err(_) => Vec::new(),
            }
        })
    }

    /// # Errors
    /// `Invalid` if the region was not made from a buffer.
    pub(crate) fn check_buffer(&self) -> Result<()> {
        match self.0.buffer {
            Some(_) => Ok(()),
            None => {
                let what = format!("{self:?} was not made from a buffer of the application");
                Err(Error::new(GIVE_BACK, Kind::Invalid, what))
            }
        }
    }

    /// Waits until only this handle and `more` handles that the caller knows reach the memory.
    ///
    /// # Errors
    /// `Timeout` names what still reaches it.
    pub(crate) fn settle(&self, more: usize, deadline: Time) -> Result<()> {
        let host = self.gpu().host();
        let late = |why: String| Err(Error::new(GIVE_BACK, Kind::Timeout, why));
        let alone = &mut || self.handles() <= 1 + more;
        if !host.wait_until(Some(deadline), alone) {
            let others = self.handles().saturating_sub(1 + more);
            return late(format!(
                "{others} other handles, MRs or requests in flight still use {self:?} after the \
                 time limit"
            ));
        }
        // No stream can enqueue work on the memory from here on.
        let ends = self.gpu().runtime().ends();
        if !host.wait_until(Some(deadline), &mut || ends.is_reached()) {
            return late(format!(
                "a stream of {:?} still has enqueued work that may use {self:?} after the time limit",
                self.gpu()
            ));
        }
        Ok(())
    }

    /// Frees the region and returns the buffer.
    ///
    /// # Safety
    /// The region was made from a buffer, and no other handle existed after it was last settled
    /// that could enqueue work on it.
    pub(crate) unsafe fn release(self) -> Vec<u8> {
        // Releases the memory for remote writes that are still in flight.
        self.gpu().flush_remote_writes();
        let buffer = self.0.buffer.clone().unwrap_or_default();
        if let Some(inner) = Arc::into_inner(self.0) {
            drop(inner.view);
            drop(inner.buffer);
            // SAFETY: the caller's promise.
            unsafe { inner.allocation.backing.release() };
        }
        // If a thread that only inspects the region still holds it, the bytes are copied.
        Arc::unwrap_or_clone(buffer)
    }

    /// The GPU that the memory belongs to.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// The location of the memory.
    pub fn kind(&self) -> MemoryKind {
        self.0.kind
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.allocation.len
    }

    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of the first byte on the GPU, as kernels use it.
    pub fn addr(&self) -> DevicePtr {
        self.0.allocation.addr
    }

    /// The runtime's object for this memory.
    pub(super) fn backing(&self) -> &dyn Backing {
        &*self.0.allocation.backing
    }

    /// The number of handles on this memory.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// The CPU's view of the memory, for plain loads and stores.
    ///
    /// # Errors
    /// `Unsupported` if this memory cannot be mapped for the CPU.
    pub(crate) fn mapped(&self) -> Result<Mapped> {
        const OPERATION: &str = "map device memory for the CPU";
        self.view()
            .map_err(|e| Error::new(OPERATION, Kind::Unsupported, e.clone()))
    }

    /// As [`Region::mapped`], without an error that costs an allocation.
    fn view(&self) -> Result<Mapped, &String> {
        if let Some(cpu) = self.0.allocation.cpu {
            return Ok(cpu);
        }
        let map = || self.backing().map().map_err(|e| e.reason().to_owned());
        self.0.view.get_or_init(map).as_ref().map(|v| v.mapped)
    }

    /// The CPU's view of host memory, and of any memory of a soft GPU; `None` for GPU memory.
    pub(crate) fn host_view(&self) -> Option<Mapped> {
        match self.gpu().is_software() {
            true => self.mapped().ok(),
            false => self.0.allocation.cpu,
        }
    }

    /// As [`Region::mapped`], but only if the view exists already.
    #[cfg(feature = "emulated")]
    pub(crate) fn mapped_already(&self) -> Option<Mapped> {
        let view = || Some(self.0.view.get()?.as_ref().ok()?.mapped);
        self.0.allocation.cpu.or_else(view)
    }

    fn check(
        &self,
        operation: &'static str,
        offset: usize,
        len: usize,
        align: usize,
    ) -> Result<()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        let at = (self.addr().0 as usize).wrapping_add(offset);
        let what = match inside {
            true if at.is_multiple_of(align) => return Ok(()),
            true => format!(
                "the address at offset {offset} of {self:?} is misaligned; it must be a multiple of \
                 {align} bytes"
            ),
            false => format!("{len} bytes at offset {offset} exceed {self:?}"),
        };
        Err(Error::new(operation, Kind::Invalid, what).with_limit(self.len() as u64, "bytes"))
    }

    /// The 32-bit word at byte `offset`, for waits and stores of streams.
    ///
    /// # Errors
    /// `Invalid` if the word is not inside the region or not aligned to 4 bytes; `Unsupported` for
    /// coarse-grained memory of HIP.
    pub fn word32(&self, offset: usize) -> Result<Word32> {
        self.check("create word", offset, 4, 4)?;
        self.backing().check_words()?;
        Ok(Word32 {
            region: self.clone(),
            offset,
        })
    }

    /// The 64-bit word at byte `offset`, for waits and stores of streams.
    ///
    /// # Errors
    /// As [`Region::word32`], with 8 bytes.
    pub fn word64(&self, offset: usize) -> Result<Word64> {
        self.check("create word", offset, 8, 8)?;
        self.backing().check_words()?;
        Ok(Word64 {
            region: self.clone(),
            offset,
        })
    }

    /// The `len` bytes at byte `offset`, for copies and stores of streams. `len` may be 0.
    ///
    /// # Errors
    /// `Invalid` if the bytes are not inside the region.
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        self.check("create span", offset, len, 1)?;
        Ok(Span {
            region: self.clone(),
            offset,
            len,
        })
    }

    /// Copies `into.len()` bytes at byte `offset` out of the region: by the CPU if it can access
    /// the memory, else by a copy engine. The call returns after the copy. It is not ordered with
    /// any stream: first wait for the work that writes the bytes, for example with
    /// [`Stream::synchronize`](super::Stream::synchronize).
    ///
    /// # Errors
    /// `Invalid` if the range is not inside the region; `Unsupported` if neither the CPU nor a copy
    /// engine can access the memory; `System`, `Timeout` or `DeviceLost` if the copy fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check("read region", offset, into.len(), 1)?;
        match self.mapped() {
            Ok(mapped) => mapped.read(offset, into),
            Err(e) => self.backing().read(offset, into).unwrap_or(Err(e))?,
        }
        Ok(())
    }

    /// Copies `from` into the region at byte `offset`: by the CPU or by a copy engine, as
    /// [`Region::read`] does. Work that is enqueued on a stream, or posted to a NIC, after the call
    /// finds the bytes.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check("write region", offset, from.len(), 1)?;
        match self.mapped() {
            Ok(mapped) => mapped.write(offset, from),
            Err(e) => self.backing().write(offset, from).unwrap_or(Err(e))?,
        }
        Ok(())
    }

    /// Copies `len` bytes at byte `from` of `source` into the region at byte `offset`, by the CPU
    /// and without memory between them. As [`Region::read`] followed by [`Region::write`], if the
    /// CPU can access both regions, but in any order, and not by words: the bytes must not contain words for
    /// which a thread or a device waits. `false`: it cannot, and nothing is copied. The bytes of the two
    /// must not overlap, or their content is undefined.
    ///
    /// # Errors
    /// `Invalid` if a range is not inside its region.
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Region,
        from: usize,
        len: usize,
    ) -> Result<bool> {
        self.check("write region", offset, len, 1)?;
        source.check("read region", from, len, 1)?;
        let both = self.mapped().ok().zip(source.mapped().ok());
        if let Some((into, source)) = both {
            into.copy_from(offset, &source, from, len);
        }
        Ok(both.is_some())
    }

    /// Stores 64-bit words at byte `offset`, a multiple of 8, one after the other, as
    /// [`Word64::store`] does for each.
    ///
    /// # Errors
    /// As [`Region::write`].
    pub fn store_words(&self, offset: usize, words: &[u64]) -> Result<()> {
        self.check("write region", offset, 8 * words.len(), 8)?;
        let mut words = (offset..).step_by(8).zip(words);
        match self.view() {
            Ok(mapped) => words.for_each(|(at, word)| mapped.store64(at, *word)),
            Err(_) => words.try_for_each(|(at, word)| self.write(at, &word.to_ne_bytes()))?,
        }
        self.gpu().host().stored();
        Ok(())
    }
}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $value:ty, $load:ident, $store:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            region: Region,
            offset: usize,
        }

        impl $name {
            /// The region that contains the word.
            pub fn region(&self) -> &Region {
                &self.region
            }

            /// The address on the GPU.
            pub fn addr(&self) -> DevicePtr {
                self.region.addr().offset(self.offset as u64)
            }

            /// Loads the current value: with acquire ordering if the CPU can access the memory,
            /// else as [`Region::read`] does.
            ///
            /// # Errors
            /// As [`Region::read`].
            pub fn load(&self) -> Result<$value> {
                if let Ok(mapped) = self.region.view() {
                    return Ok(mapped.$load(self.offset));
                }
                let mut bytes = [0; size_of::<$value>()];
                self.region.read(self.offset, &mut bytes)?;
                Ok(<$value>::from_ne_bytes(bytes))
            }

            /// Stores a value: with release ordering if the CPU can access the memory, else as
            /// [`Region::write`] does. It releases a stream that waits for the value.
            ///
            /// # Errors
            /// As [`Region::write`].
            pub fn store(&self, value: $value) -> Result<()> {
                match self.region.view() {
                    Ok(mapped) => mapped.$store(self.offset, value),
                    Err(_) => self.region.write(self.offset, &value.to_ne_bytes())?,
                }
                self.region.gpu().host().stored();
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "word at {} of {:?}", self.offset, self.region)
            }
        }
    };
}

impl Word64 {
    /// Stores `new`, as [`Word64::store`] does, if the value is still `current`, and returns the
    /// value before the call. The operation is atomic also with respect to writes of NICs and GPUs
    /// to host memory.
    ///
    /// # Errors
    /// `Unsupported` if the CPU cannot access the memory.
    pub fn compare_swap(&self, current: u64, new: u64) -> Result<u64> {
        let before = self
            .region
            .mapped()?
            .compare_swap64(self.offset, current, new);
        self.region.gpu().host().stored();
        Ok(before)
    }

    /// The CPU's view of the word; `None` if its memory cannot be mapped for the CPU.
    pub(crate) fn mapped(&self) -> Option<Mapped> {
        Some(self.region.view().ok()?.part(self.offset, 8))
    }

    /// The position in the region, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
}

word!(
    /// A 32-bit word of a region, aligned to 4 bytes. Streams wait for it and store into it; the
    /// CPU loads and stores it. A clone is the same word.
    Word32, u32, load32, store32
);
word!(
    /// A 64-bit word of a region, aligned to 8 bytes. Streams wait for it and store into it; the
    /// CPU loads, stores and compare-swaps it. A clone is the same word.
    Word64, u64, load64, store64
);

/// A range of bytes of a region, for [`Stream::copy`](super::Stream::copy) and
/// [`Descriptor::WriteMemory`](crate::rdma::Descriptor::WriteMemory). A clone is the same range.
#[derive(Clone)]
pub struct Span {
    region: Region,
    offset: usize,
    len: usize,
}

impl Span {
    /// The region that contains the bytes.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The address of the first byte on the GPU.
    pub fn addr(&self) -> DevicePtr {
        self.region.addr().offset(self.offset as u64)
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// See [`Backing::is_whole`].
    pub(super) fn is_whole(&self) -> bool {
        let span = self.offset..self.offset + self.len;
        self.region.backing().is_whole(span)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {} of {:?}",
            self.len, self.offset, self.region
        )
    }
}
