//! Memory that the GPU, NICs and the CPU share, and the words and spans carved from it.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use gds_step::Time;

use super::runtime::{Allocation, Backing, View};
use super::{Gpu, Mapped};
use crate::error::{Error, Kind, Result};
use crate::memop::DevicePtr;
use crate::ring::RingMemory;

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// In the GPU. The CPU reaches it through a mapping made on first use.
    Device,
    /// In the host, pinned; the GPU reaches it over the bus.
    Pinned,
}

/// A piece of memory of one GPU. Clones are the same memory, which is freed when the last
/// clone, registration and request in flight is gone. There is no access by reference: devices
/// may write at any time, so bytes are copied in and out.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    kind: MemoryKind,
    /// The CPU's view, with what keeps it alive; an error says why there is none. Before the
    /// allocation, so that it ends first.
    view: OnceLock<Result<View, String>>,
    allocation: Allocation,
    /// The application's buffer behind it, which the allocation's owner holds too. Nothing
    /// touches the vector before all of these are gone.
    buffer: Option<Arc<Vec<u8>>>,
}

const GIVE_BACK: &str = "give buffer back";

/// A region that may be gone.
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

    /// A region of `buffer`, which the owner of `allocation` holds too.
    pub(super) fn of_vec(gpu: Gpu, allocation: Allocation, buffer: Arc<Vec<u8>>) -> Region {
        Region(Arc::new(Inner {
            gpu,
            kind: MemoryKind::Pinned,
            allocation,
            view: OnceLock::new(),
            buffer: Some(buffer),
        }))
    }

    /// Gives the buffer back that [`Gpu::adopt_vec`] took, once nothing else can reach it: waits,
    /// at most `limit`, until this is the last handle on the memory and every stream of the GPU
    /// has run what had been enqueued by then.
    ///
    /// # Errors
    /// The region as well: `Timeout`, naming what still reaches it, or `Invalid` if it was not
    /// made of a buffer.
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Region, Error)> {
        let deadline = self.gpu().host().now() + limit;
        match self.check_buffer().and_then(|()| self.settle(0, deadline)) {
            // SAFETY: just waited for.
            Ok(()) => Ok(unsafe { self.release() }),
            Err(e) => Err((self, e)),
        }
    }

    /// The buffer that [`Gpu::adopt_vec`] took, if this is the only handle and the region was not
    /// used yet; otherwise a copy of it. Empty if the region was not made of a buffer.
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
    /// `Invalid` if it was not made of a buffer.
    pub(crate) fn check_buffer(&self) -> Result<()> {
        match self.0.buffer {
            Some(_) => Ok(()),
            None => {
                let what = format!("{self:?} was not made of a buffer");
                Err(Error::new(GIVE_BACK, Kind::Invalid, what))
            }
        }
    }

    /// Waits until nothing but this handle and `more` that the caller knows reach the memory.
    ///
    /// # Errors
    /// `Timeout`, naming what does.
    pub(crate) fn settle(&self, more: usize, deadline: Time) -> Result<()> {
        let host = self.gpu().host();
        let late = |why: String| Err(Error::new(GIVE_BACK, Kind::Timeout, why));
        let alone = &mut || self.handles() <= 1 + more;
        if !host.wait_until(Some(deadline), alone) {
            let others = self.handles().saturating_sub(1 + more);
            return late(format!(
                "{self:?}: {others} other handles, registrations or requests in flight hold it"
            ));
        }
        // No stream is given more of it from here on.
        let ends = self.gpu().runtime().ends();
        if !host.wait_until(Some(deadline), &mut || ends.is_reached()) {
            return late(format!(
                "{self:?}: a stream of {:?} has not run what was enqueued before, which may name it",
                self.gpu()
            ));
        }
        Ok(())
    }

    /// Frees the region and returns the buffer.
    ///
    /// # Safety
    /// It was made of one, and after the last time that it was settled nobody had a handle on it
    /// to enqueue with.
    pub(crate) unsafe fn release(self) -> Vec<u8> {
        // Remote writes that are still in flight hold the memory.
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

    /// The GPU it belongs to.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// Where it lies.
    pub fn kind(&self) -> MemoryKind {
        self.0.kind
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.allocation.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its address on the GPU.
    pub fn addr(&self) -> DevicePtr {
        self.0.allocation.addr
    }

    /// What is behind it.
    pub(super) fn backing(&self) -> &dyn Backing {
        &*self.0.allocation.backing
    }

    /// How many handles on this memory there are.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// The CPU's view of it, for access by plain loads and stores.
    ///
    /// # Errors
    /// `Unsupported` if this memory cannot be mapped for the CPU.
    pub(crate) fn mapped(&self) -> Result<Mapped> {
        const OPERATION: &str = "map device memory for the CPU";
        if let Some(cpu) = self.0.allocation.cpu {
            return Ok(cpu);
        }
        let view = self
            .0
            .view
            .get_or_init(|| self.backing().map().map_err(|e| e.to_string()));
        match view {
            Ok(view) => Ok(view.mapped),
            Err(why) => Err(Error::new(OPERATION, Kind::Unsupported, why.clone())),
        }
    }

    /// Memory of the host as the CPU has it, also that of a soft GPU; `None` for a GPU's.
    pub(crate) fn host_view(&self) -> Option<Mapped> {
        match self.gpu().is_software() {
            true => self.mapped().ok(),
            false => self.0.allocation.cpu,
        }
    }

    /// As [`Region::mapped`], only if that costs nothing.
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
        if !inside
            || !(self.addr().0 as usize)
                .wrapping_add(offset)
                .is_multiple_of(align)
        {
            return Err(Error::new(
                operation,
                Kind::Invalid,
                format!("{len} bytes aligned to {align} at offset {offset} of {self:?}"),
            )
            .limit(self.len() as u64));
        }
        Ok(())
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Errors
    /// `Invalid` if it does not lie in the region or is not aligned to 4.
    pub fn word32(&self, offset: usize) -> Result<Word32> {
        self.check("carve word", offset, 4, 4)?;
        Ok(Word32 {
            region: self.clone(),
            offset,
        })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Errors
    /// `Invalid` if it does not lie in the region or is not aligned to 8.
    pub fn word64(&self, offset: usize) -> Result<Word64> {
        self.check("carve word", offset, 8, 8)?;
        Ok(Word64 {
            region: self.clone(),
            offset,
        })
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Invalid` if they do not lie in the region.
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        self.check("carve span", offset, len, 1)?;
        Ok(Span {
            region: self.clone(),
            offset,
            len,
        })
    }

    /// Copies bytes out: by the CPU where it reaches the memory, else by a copy engine, beside
    /// all streams.
    ///
    /// # Errors
    /// `Invalid` outside the region; `System` or `DeviceLost` if the copy fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check("read region", offset, into.len(), 1)?;
        match self.mapped() {
            Ok(mapped) => mapped.read(offset, into),
            Err(e) => self.backing().read(offset, into).unwrap_or(Err(e))?,
        }
        Ok(())
    }

    /// Copies bytes in, as [`Region::read`] copies them out.
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
            /// The region it lies in.
            pub fn region(&self) -> &Region {
                &self.region
            }

            /// Its address on the GPU.
            pub fn addr(&self) -> DevicePtr {
                self.region.addr().offset(self.offset as u64)
            }

            /// Its value now, with acquire.
            ///
            /// # Errors
            /// As [`Region::read`].
            pub fn load(&self) -> Result<$value> {
                if let Ok(mapped) = self.region.mapped() {
                    return Ok(mapped.$load(self.offset));
                }
                let mut bytes = [0; size_of::<$value>()];
                self.region.read(self.offset, &mut bytes)?;
                Ok(<$value>::from_ne_bytes(bytes))
            }

            /// Stores a value, with release, and tells the software devices.
            ///
            /// # Errors
            /// As [`Region::write`].
            pub fn store(&self, value: $value) -> Result<()> {
                match self.region.mapped() {
                    Ok(mapped) => mapped.$store(self.offset, value),
                    Err(_) => self.region.write(self.offset, &value.to_ne_bytes())?,
                }
                self.region.gpu().host().ring();
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
    /// Stores `new`, as [`Word64::store`] does, if the value is still `current`; answers what was
    /// there. A write of a NIC's or a GPU's to host memory comes before it or behind it.
    ///
    /// # Errors
    /// The memory is none that the CPU reaches.
    pub fn compare_swap(&self, current: u64, new: u64) -> Result<u64> {
        let before = self
            .region
            .mapped()?
            .compare_swap64(self.offset, current, new);
        self.region.gpu().host().ring();
        Ok(before)
    }

    /// The CPU's view of it.
    pub(crate) fn mapped(&self) -> Result<Mapped> {
        Ok(self.region.mapped()?.part(self.offset, 8))
    }
}

word!(
    /// A 32-bit word of a region, aligned.
    Word32, u32, load32, store32
);
word!(
    /// A 64-bit word of a region, aligned.
    Word64, u64, load64, store64
);

/// Some bytes of a region.
#[derive(Clone)]
pub struct Span {
    region: Region,
    offset: usize,
    len: usize,
}

impl Span {
    /// The region it lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Its address on the GPU.
    pub fn addr(&self) -> DevicePtr {
        self.region.addr().offset(self.offset as u64)
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
