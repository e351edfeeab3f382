//! Memory of a driver: device, pinned, registered, mapped, of other processes, of the application.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use gdrcopy_sys::Gdr;

use super::context::Context;
use super::host;
use super::pages::{self, Units};
use super::pool::Piece;
use super::share::{self, Mapping};
use crate::error::{Error, Kind, Result};
use crate::gpu::host as files;
use crate::gpu::runtime::{Allocation, Backing, Owner, View};
use crate::gpu::{Mapped, SharedMemory};
use crate::memop::DevicePtr;

/// The memory of a region.
pub(crate) struct Memory {
    context: Arc<Context>,
    at: u64,
    len: usize,
    origin: Origin,
    /// The offsets at which another registration begins.
    edges: Vec<usize>,
    /// Whether streams, NICs and other GPUs may access its words while kernels run.
    words: bool,
}

/// The way memory was allocated, which decides how it is freed.
#[derive(Default)]
pub(crate) enum Origin {
    /// Memory of the application without an owner, or freed memory.
    #[default]
    Nothing,
    Device(Piece),
    Pinned(files::Piece),
    /// Host memory of the application, and its owner.
    Registered(Units, Option<Owner>),
    Mapped(Mapping),
    /// Device memory of the driver's own allocator.
    Allocated(u64),
    /// Memory of another process.
    Opened(u64),
    /// Host memory of another process.
    OpenedHost(files::Mapping),
    /// The owner of the application's memory, and its context.
    Owned(Owner, Arc<Context>),
}

impl Drop for Memory {
    fn drop(&mut self) {
        match std::mem::take(&mut self.origin) {
            Origin::Nothing => {}
            origin => self.context.deferred.defer(&self.context, origin),
        }
    }
}

impl Origin {
    /// Frees the memory. The caller makes sure that no stream uses it. The caller drops the
    /// returned owner without any lock held, because the drop is foreign code.
    #[must_use]
    pub fn free(self, context: &Context) -> Option<Owner> {
        let Ok(_own) = context.enter_own() else {
            // The context is lost, and all its memory with it.
            return match self {
                Origin::Registered(_, owner) => owner,
                Origin::Owned(owner, _) => Some(owner),
                _ => None,
            };
        };
        let freed = match self {
            Origin::Nothing => Ok(()),
            Origin::Owned(owner, context) => {
                super::deferred::dispose(&context, owner);
                Ok(())
            }
            Origin::Device(piece) => {
                context.pool.give(context, piece);
                Ok(())
            }
            Origin::Pinned(piece) => match context.host.give(piece) {
                Some(unit) => host::unregister(context, unit.mapping()),
                None => Ok(()),
            },
            Origin::Registered(units, owner) => return pages::leave(context, units, owner),
            Origin::Mapped(mapping) => {
                share::unmap(context, &mapping);
                Ok(())
            }
            Origin::Allocated(at) => {
                // SAFETY: the library allocated it, frees it once, and no stream uses it.
                let freed = unsafe { context.driver.mem_free(at) };
                context.check(freed, "free memory")
            }
            Origin::Opened(at) => {
                // SAFETY: the library opened it, closes it once, and no stream uses it.
                let closed = unsafe { context.driver.ipc_close(at) };
                context.check(closed, "free memory")
            }
            Origin::OpenedHost(mapping) => host::unregister(context, &mapping),
        };
        if let Err(e) = freed {
            tracing::warn!(target: "gdsync", "{e}");
        }
        None
    }
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>, at: u64, len: usize, origin: Origin) -> Memory {
        Memory {
            context: Arc::clone(context),
            at,
            len,
            origin,
            edges: Vec::new(),
            words: true,
        }
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The units of registered memory.
    fn units(&self) -> &[usize] {
        match &self.origin {
            Origin::Registered(units, _) => units,
            _ => &[],
        }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    fn checked_addr(&self, offset: usize, len: usize) -> Result<u64> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            let what = format!(
                "{len} bytes at offset {offset} exceed the {} bytes of memory at {:#x}",
                self.len, self.at
            );
            return Err(Error::new("copy device memory", Kind::Invalid, what));
        }
        Ok(self.at + offset as u64)
    }

    /// Makes an allocation of it; `cpu` is the address at which the CPU can access it.
    pub(super) fn into_allocation(self, cpu: Option<NonNull<u8>>) -> Allocation {
        let len = self.len;
        Allocation {
            addr: DevicePtr(self.at),
            len,
            // SAFETY: `len` bytes that live as long as `backing`; the region hands out copies only
            // while it lives, and all access is atomic.
            cpu: cpu.map(|base| unsafe { Mapped::new(base, len) }),
            backing: Box::new(self),
        }
    }
}

/// Allocates device memory, zeroed.
pub(super) fn device(context: &Arc<Context>, len: usize) -> Result<Allocation> {
    if !context.maps {
        return allocated(context, len);
    }
    let piece = context.pool.take(context, len)?;
    let at = piece.at();
    let memory = Memory::new(context, at, len, Origin::Device(piece));
    // SAFETY: the memory was just allocated.
    unsafe { context.engine.zero(context, at, len)? };
    Ok(memory.into_allocation(None))
}

/// Allocates device memory by the driver's own allocator, zeroed.
pub(super) fn allocated(context: &Arc<Context>, len: usize) -> Result<Allocation> {
    let mut at = 0;
    {
        let _own = context.enter_own()?;
        // SAFETY: stores the address of new memory.
        let made = unsafe { context.driver.mem_alloc(&mut at, len) };
        context.check(made, "allocate device memory")?;
    }
    let memory = Memory::new(context, at, len, Origin::Allocated(at));
    // SAFETY: the memory was just allocated.
    unsafe { context.engine.zero(context, at, len)? };
    Ok(memory.into_allocation(None))
}

/// Registers host memory of the application.
///
/// # Safety
/// The memory stays valid until `owner` is dropped. Without an owner, it does until the allocation
/// is dropped and the work enqueued before that has run.
pub(super) unsafe fn registered(
    context: &Arc<Context>,
    ptr: *mut u8,
    len: usize,
    owner: Option<Owner>,
    same_address: bool,
) -> Result<Allocation> {
    const OPERATION: &str = "register host memory";
    refuse_managed(context, OPERATION, ptr as u64)?;
    // SAFETY: the caller's promise.
    let (units, made) = unsafe { pages::enter(context, ptr, len) };
    let edges = units
        .iter()
        .filter_map(|unit| unit.checked_sub(ptr as usize));
    let edges = edges.filter(|edge| *edge > 0).collect();
    let mut memory = Memory::new(context, ptr as u64, len, Origin::Registered(units, owner));
    made?;
    memory.edges = edges;
    if !same_address {
        memory.at = address_of(context, ptr as usize, memory.units())?;
    }
    let base = NonNull::new(ptr)
        .ok_or_else(|| Error::new(OPERATION, Kind::Invalid, "the address is null"))?;
    Ok(memory.into_allocation(Some(base)))
}

/// The GPU's address of registered memory at `ptr`: the same distance from the CPU's in all units.
fn address_of(context: &Context, ptr: usize, units: &[usize]) -> Result<u64> {
    const OPERATION: &str = "register host memory";
    let _app = context.enter_app()?;
    let mut distance = None;
    for unit in units {
        let here = (*unit).max(ptr);
        let mut at = 0;
        // SAFETY: the memory is registered.
        let found = unsafe { context.driver.host_address(&mut at, here as *mut _) };
        context.check(found, OPERATION)?;
        let found = at.wrapping_sub(here as u64);
        if *distance.get_or_insert(found) != found {
            let what = "the memory overlaps another registration, and the GPU accesses the two at \
                        addresses that are not adjacent; register each range once";
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
    }
    Ok((ptr as u64).wrapping_add(distance.unwrap_or(0)))
}

/// Adopts memory of the application's context.
///
/// # Safety
/// The memory stays allocated until the allocation is dropped and the work enqueued before that has
/// run.
pub(super) unsafe fn adopted(
    context: &Arc<Context>,
    at: u64,
    len: usize,
    owner: Option<Owner>,
) -> Result<Allocation> {
    const OPERATION: &str = "adopt memory";
    refuse_managed(context, OPERATION, at)?;
    let _app = context.enter_app()?;
    let (mut base, mut size) = (0, 0);
    // SAFETY: stores two numbers; the driver refuses an invalid address.
    let found = unsafe { context.driver.address_range(&mut base, &mut size, at) };
    context.check(found, OPERATION)?;
    let inside = at >= base && len as u64 <= size as u64 && at - base <= size as u64 - len as u64;
    if !inside {
        let what = format!("{len} bytes at {at:#x} exceed the allocation at {base:#x}");
        return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(size as u64, "bytes"));
    }
    let mut host = std::ptr::null_mut();
    // SAFETY: stores an address.
    let asked = unsafe { context.driver.host_pointer(&mut host, at) };
    context.check(asked, OPERATION)?;
    let owned = |owner| Origin::Owned(owner, Arc::clone(context));
    let origin = owner.map_or(Origin::Nothing, owned);
    let mut memory = Memory::new(context, at, len, origin);
    // SAFETY: the driver has found the memory.
    memory.words = unsafe { context.driver.has_words(at) };
    Ok(memory.into_allocation(NonNull::new(host)))
}

/// Managed memory has no fixed place: its pages move between the GPU and the host, and a NIC cannot
/// follow them.
fn refuse_managed(context: &Context, operation: &'static str, at: u64) -> Result<()> {
    let _app = context.enter_app()?;
    // SAFETY: the driver refuses an address that is not in its memory.
    if !unsafe { context.driver.is_managed(at) } {
        return Ok(());
    }
    let what = format!(
        "the memory at {at:#x} is managed memory (cuMemAllocManaged, hipMallocManaged), whose pages \
         move between GPU and host, so that a NIC cannot access it; allocate device memory \
         (cuMemAlloc, hipMalloc) or pinned memory (cuMemAllocHost, hipHostMalloc), and copy"
    );
    Err(Error::new(operation, Kind::Unsupported, what))
}

/// The driver's number of the allocation at `at`, which is never reused.
pub(crate) fn buffer_id(context: &Context, at: u64) -> Result<u64> {
    const OPERATION: &str = "query allocation number";
    let _app = context.enter_app()?;
    let mut id: u64 = 0;
    // SAFETY: stores a number; the driver refuses an invalid address.
    let asked = unsafe { context.driver.buffer_id(&mut id, at) };
    context.check(asked, OPERATION)?;
    Ok(id)
}

/// The GDRCopy library, or the reason why it is not used.
fn gdrcopy() -> Result<&'static Gdr, &'static str> {
    static GDR: OnceLock<Result<Gdr, String>> = OnceLock::new();
    let gdr = GDR.get_or_init(|| Gdr::open().map_err(|e| e.to_string()));
    gdr.as_ref().map_err(String::as_str)
}

impl Backing for Memory {
    fn read(&self, offset: usize, into: &mut [u8]) -> Option<Result<()>> {
        let at = self.checked_addr(offset, into.len());
        // SAFETY: the range is inside memory that lives as long as `self`.
        let read = |at| unsafe { self.context.engine.read(&self.context, at, into) };
        Some(at.and_then(read))
    }

    fn write(&self, offset: usize, from: &[u8]) -> Option<Result<()>> {
        // SAFETY: as in `read`.
        let write = |at| unsafe { self.context.engine.write(&self.context, at, from) };
        Some(self.checked_addr(offset, from.len()).and_then(write))
    }

    /// Maps the memory by GDRCopy.
    fn map(&self) -> Result<View> {
        const OPERATION: &str = "map device memory for the CPU";
        let fail = |why: &str| {
            let name = self.context.name();
            let what = format!(
                "GDRCopy cannot map {} bytes of {name} at {:#x}: {why}",
                self.len, self.at
            );
            Error::new(OPERATION, Kind::Unsupported, what)
        };
        let gdr = gdrcopy().map_err(fail)?;
        {
            let _own = self.context.enter_own()?;
            // SAFETY: live memory.
            unsafe { self.context.driver.synchronise_copies(self.at) };
        }
        // SAFETY: live device memory, which outlives the view: the region owns both.
        let mapping = unsafe { gdr.map(self.at, self.len, gdrcopy_sys::Pin::Default) };
        let mapping = mapping.map_err(|e| fail(&e.to_string()))?;
        let base = NonNull::new(mapping.as_ptr()).ok_or_else(|| fail("gdr_map returned null"))?;
        Ok(View {
            // SAFETY: the mapping has `len` bytes and lives as long as this value. Copies of
            // `mapped` are used only while the region lives.
            mapped: unsafe { Mapped::write_combining(base, self.len) },
            _mapping: Box::new(mapping),
        })
    }

    fn check_words(&self) -> Result<()> {
        if self.words {
            return Ok(());
        }
        let what = format!(
            "the memory at {:#x} of {} is coarse-grained: streams, NICs and other GPUs cannot access \
             its words while kernels run; allocate it by Gpu::alloc, or fine-grained \
             (hipExtMallocWithFlags, hipDeviceMallocFinegrained)",
            self.at,
            self.context.name()
        );
        Err(Error::new("create word", Kind::Unsupported, what))
    }

    fn is_whole(&self, span: Range<usize>) -> bool {
        !self
            .edges
            .iter()
            .any(|edge| span.contains(edge) && *edge > span.start)
    }

    fn share(&self) -> Result<SharedMemory> {
        share::share(self)
    }

    fn dma_buf(&self, kept: bool) -> Result<(OwnedFd, u64)> {
        share::dma_buf(self, kept)
    }

    unsafe fn release(mut self: Box<Self>) {
        drop(std::mem::take(&mut self.origin).free(&self.context));
    }
}
