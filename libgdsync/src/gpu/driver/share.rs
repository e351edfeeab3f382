//! Memory for other processes and other drivers: IPC handles, file descriptors of mapped memory and of
//! pinned memory, dma-buf.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::calls::Physical;
use super::context::Context;
use super::host;
use super::memory::{self, Memory, Origin};
use crate::error::{Error, Kind, Result};
use crate::gpu::SharedMemory;
use crate::gpu::runtime::Allocation;

/// Physical memory and the address range that it is mapped to.
pub(crate) struct Mapping {
    pub at: u64,
    pub len: usize,
    pub memory: Physical,
}

/// Allocates and maps at least `len` bytes of physical memory.
pub(super) fn physical(context: &Context, len: usize) -> Result<Mapping> {
    const OPERATION: &str = "allocate device memory";
    let _own = context.enter_own()?;
    let unit = granule(context)?;
    let size = len.checked_next_multiple_of(unit).ok_or_else(|| {
        let what = format!("{len} bytes exceed the address space");
        Error::new(OPERATION, Kind::Invalid, what)
    })?;
    let mut memory = 0;
    // SAFETY: creates physical memory.
    let made = unsafe {
        context
            .driver
            .physical_create(&mut memory, size, context.device)
    };
    context.check(made, OPERATION)?;
    map(context, memory, size)
}

/// The smallest size of physical memory, in bytes.
pub(super) fn granule(context: &Context) -> Result<usize> {
    let mut unit = 0;
    // SAFETY: stores a number.
    let asked = unsafe { context.driver.granularity(&mut unit, context.device) };
    context.check(asked, "allocate device memory")?;
    Ok(unit.max(1))
}

/// Allocates device memory that other processes can open, zeroed.
pub(super) fn exportable(context: &Arc<Context>, len: usize) -> Result<Allocation> {
    if !context.maps {
        return memory::allocated(context, len);
    }
    let mapping = physical(context, len)?;
    let at = mapping.at;
    let memory = Memory::new(context, at, len, Origin::Mapped(mapping));
    // SAFETY: the memory was just mapped.
    unsafe { context.engine.zero(context, at, len)? };
    Ok(memory.into_allocation(None))
}

/// Maps physical memory; releases it if that fails.
fn map(context: &Context, memory: Physical, len: usize) -> Result<Mapping> {
    let mut mapping = Mapping { at: 0, len, memory };
    // SAFETY: addresses reserved by the library, mapped once to memory of that size.
    let mapped = unsafe {
        context
            .driver
            .physical_map(&mut mapping.at, len, memory, context.device)
    };
    match context.check(mapped, "map memory") {
        Ok(()) => Ok(mapping),
        Err(e) => {
            unmap(context, &mapping);
            Err(e)
        }
    }
}

/// Undoes the steps of a mapping that were done.
pub(super) fn unmap(context: &Context, mapping: &Mapping) {
    let driver = context.driver;
    // SAFETY: the mapping belongs to the library and is unused; the driver refuses to undo a step
    // that was not done, which changes nothing.
    unsafe {
        if mapping.at != 0 {
            driver.physical_unmap(mapping.at, mapping.len);
        }
        driver.physical_release(mapping.memory);
    }
}

/// Exports `memory` for other processes.
pub(super) fn share(memory: &Memory) -> Result<SharedMemory> {
    const OPERATION: &str = "share memory";
    let context = memory.context();
    let (mapping, offset) = match memory.origin() {
        Origin::Mapped(mapping) => (mapping, (memory.at() - mapping.at) as usize),
        Origin::Device(piece) => piece.share(),
        Origin::Allocated(_) | Origin::Owned(..) | Origin::Nothing => return by_ipc(memory),
        Origin::Pinned(piece) => return piece.share(memory.len()),
        Origin::Registered(..) | Origin::Opened(_) | Origin::OpenedHost(_) => {
            let what = "the region is host memory of the application, or memory of another process; \
                        only memory that the library allocated here can be shared";
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
    };
    let mut fd: i32 = -1;
    let _own = context.enter_own()?;
    // SAFETY: stores a descriptor.
    let done = unsafe { context.driver.physical_export(&mut fd, mapping.memory) };
    context.check(done, OPERATION)?;
    Ok(SharedMemory::File {
        // SAFETY: the driver just made this descriptor for the caller.
        fd: unsafe { OwnedFd::from_raw_fd(fd) },
        offset: offset as u64,
        len: memory.len() as u64,
    })
}

/// Exports memory that the application's context allocated.
fn by_ipc(memory: &Memory) -> Result<SharedMemory> {
    const OPERATION: &str = "share memory";
    let context = memory.context();
    let mut handle = [0; 64];
    let (mut base, mut size) = (0, 0);
    let _app = context.enter_app()?;
    // SAFETY: live device memory; each call stores a value.
    unsafe {
        let found = context
            .driver
            .address_range(&mut base, &mut size, memory.at());
        context.check(found, OPERATION)?;
        let got = context.driver.ipc_export(&mut handle, base);
        context.check(got, OPERATION)?;
    }
    Ok(SharedMemory::Ipc {
        handle,
        offset: memory.at() - base,
        len: memory.len() as u64,
    })
}

/// Opens memory of another process.
///
/// # Safety
/// With IPC, the other process keeps its region as long as the allocation and the work on it.
pub(super) unsafe fn open(context: &Arc<Context>, shared: &SharedMemory) -> Result<Allocation> {
    const OPERATION: &str = "open shared memory";
    let driver = context.driver;
    let length = |len: u64| {
        usize::try_from(len)
            .ok()
            .filter(|len| *len > 0)
            .ok_or_else(|| {
                let what = format!("the shared memory cannot have {len} bytes");
                Error::new(OPERATION, Kind::Invalid, what)
            })
    };
    match shared {
        SharedMemory::Ipc {
            handle,
            offset,
            len,
        } => {
            let len = length(*len)?;
            let mut base = 0;
            let _own = context.enter_own()?;
            // SAFETY: a handle is plain bytes; the driver refuses an invalid one.
            let opened = unsafe { driver.ipc_open(&mut base, *handle) };
            context.check(opened, OPERATION)?;
            let origin = Origin::Opened(base);
            let mut size = 0;
            let mut start = 0;
            // SAFETY: live memory.
            let found = unsafe { driver.address_range(&mut start, &mut size, base) };
            let at = base.wrapping_add(*offset);
            let memory = Memory::new(context, at, len, origin);
            context.check(found, OPERATION)?;
            let inside = offset
                .checked_add(len as u64)
                .is_some_and(|end| end <= size as u64);
            if !inside {
                let what = format!("{len} bytes at offset {offset} exceed the shared allocation");
                return Err(
                    Error::new(OPERATION, Kind::Invalid, what).with_limit(size as u64, "bytes")
                );
            }
            Ok(memory.into_allocation(None))
        }
        SharedMemory::File { fd, offset, len } => {
            let len = length(*len)?;
            let end = usize::try_from(*offset)
                .ok()
                .and_then(|at| at.checked_add(len));
            let end = end.ok_or_else(|| {
                let what = format!("{len} bytes at offset {offset} exceed the address space");
                Error::new(OPERATION, Kind::Invalid, what)
            })?;
            let mut memory = 0;
            let _own = context.enter_own()?;
            let unit = granule(context)?;
            // SAFETY: stores a handle; the driver refuses another file.
            let imported = unsafe { driver.physical_import(&mut memory, fd.as_raw_fd()) };
            context.check(imported, OPERATION)?;
            let size = end.checked_next_multiple_of(unit).unwrap_or(end);
            let mapping = map(context, memory, size)?;
            let at = mapping.at + offset;
            let memory = Memory::new(context, at, len, Origin::Mapped(mapping));
            Ok(memory.into_allocation(None))
        }
        SharedMemory::Host { fd, offset, len } => host::open(context, fd, *offset, *len),
    }
}

/// Exports `memory` as a dma-buf; returns the descriptor and the byte offset of the memory in it.
/// `kept`: the descriptor, or an object made from it, may outlive the memory. The pages are then
/// not allocated again.
pub(super) fn dma_buf(memory: &Memory, kept: bool) -> Result<(OwnedFd, u64)> {
    const OPERATION: &str = "export dma-buf";
    const PAGE: u64 = 4096;
    let context = memory.context();
    // The descriptor is for the pages of the range, so the rest of their unit is allocated as before.
    // (That of the HSA runtime is for the whole allocation, with the place of the range.)
    if let Origin::Device(piece) = memory.origin()
        && kept
    {
        piece.export();
    }
    let start = memory.at() / PAGE * PAGE;
    let end = (memory.at() + memory.len() as u64).next_multiple_of(PAGE);
    let (mut fd, mut offset) = (-1, 0);
    let _own = context.enter_own()?;
    // SAFETY: stores a descriptor and a number; the range consists of whole pages of live memory.
    let done = unsafe {
        let len = (end - start) as usize;
        context.driver.dma_buf((&mut fd, &mut offset), start, len)
    };
    context.check(done, OPERATION)?;
    // SAFETY: the driver just made this descriptor for the caller.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((fd, offset + (memory.at() - start)))
}
