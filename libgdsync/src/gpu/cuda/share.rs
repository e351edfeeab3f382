//! Memory for other processes and other drivers: CUDA IPC, file descriptors of mapped memory and of
//! pinned memory, dma-buf.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use gdsync_sys::cuda::types::{
    CUdeviceptr, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation,
};
use gdsync_sys::cuda::{Cuda, consts};

use super::context::{Context, attribute};
use super::host;
use super::memory::{Memory, Origin};
use crate::error::{Error, Kind, Result};
use crate::gpu::SharedMemory;
use crate::gpu::runtime::Allocation;

fn lacks(call: &str) -> Error {
    let what = format!("the driver has no {call}; update the driver");
    Error::new("share memory", Kind::Unsupported, what)
}

fn prop(context: &Context) -> CUmemAllocationProp {
    let has = |which| attribute(context.cuda, context.device, which) != 0;
    let descriptors = consts::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let rdma = consts::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    CUmemAllocationProp {
        kind: consts::CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: match has(descriptors) {
            true => consts::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            false => consts::CU_MEM_HANDLE_TYPE_NONE,
        },
        location: CUmemLocation {
            kind: consts::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.device,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: u8::from(has(rdma)),
        usage: 0,
        reserved: [0; 4],
    }
}

/// Physical memory and the address range that it is mapped to.
pub(crate) struct Mapping {
    pub at: CUdeviceptr,
    pub len: usize,
    pub handle: CUmemGenericAllocationHandle,
}

/// Allocates and maps at least `len` bytes of physical memory.
pub(super) fn physical(context: &Context, len: usize) -> Result<Mapping> {
    const OPERATION: &str = "allocate device memory";
    let create = context
        .cuda
        .cuMemCreate
        .ok_or_else(|| lacks("cuMemCreate"))?;
    let prop = prop(context);
    let _own = context.enter_own()?;
    let unit = granularity(context, &prop)?;
    let size = len.checked_next_multiple_of(unit).ok_or_else(|| {
        let what = format!("{len} bytes exceed the address space");
        Error::new(OPERATION, Kind::Invalid, what)
    })?;
    let mut handle = 0;
    // SAFETY: creates physical memory.
    let made = unsafe { create(&mut handle, size, &prop, 0) };
    context.check(made, OPERATION, "cuMemCreate")?;
    map(context, handle, size)
}

/// The smallest size of physical memory, in bytes.
pub(super) fn granule(context: &Context) -> Result<usize> {
    granularity(context, &prop(context))
}

fn granularity(context: &Context, prop: &CUmemAllocationProp) -> Result<usize> {
    let ask = context.cuda.cuMemGetAllocationGranularity;
    let ask = ask.ok_or_else(|| lacks("cuMemGetAllocationGranularity"))?;
    let mut unit = 0;
    // SAFETY: stores a number.
    let asked = unsafe { ask(&mut unit, prop, consts::CU_MEM_ALLOC_GRANULARITY_MINIMUM) };
    context.check(
        asked,
        "allocate device memory",
        "cuMemGetAllocationGranularity",
    )?;
    Ok(unit.max(1))
}

/// Allocates device memory in a separate mapping, zeroed.
pub(super) fn exportable(context: &Arc<Context>, len: usize) -> Result<Allocation> {
    let mapping = physical(context, len)?;
    let at = mapping.at;
    let memory = Memory::new(context, at, len, Origin::Mapped(mapping));
    // SAFETY: the memory was just mapped.
    unsafe { context.engine.zero(context, at, len)? };
    Ok(memory.into_allocation(None))
}

/// Maps physical memory; releases `handle` if that fails.
fn map(context: &Context, handle: u64, size: usize) -> Result<Mapping> {
    const OPERATION: &str = "map memory";
    let cuda = context.cuda;
    let (Some(reserve), Some(map), Some(access)) =
        (cuda.cuMemAddressReserve, cuda.cuMemMap, cuda.cuMemSetAccess)
    else {
        return Err(lacks("cuMemMap"));
    };
    let mut mapping = Mapping {
        at: 0,
        len: size,
        handle,
    };
    let rights = CUmemAccessDesc {
        location: prop(context).location,
        flags: consts::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: addresses reserved by the library, mapped once to memory of that size.
    let mapped = unsafe {
        let reserved = reserve(&mut mapping.at, size, 0, 0, 0);
        context
            .check(reserved, OPERATION, "cuMemAddressReserve")
            .and_then(|()| {
                let mapped = map(mapping.at, size, 0, handle, 0);
                context.check(mapped, OPERATION, "cuMemMap")
            })
            .and_then(|()| {
                let set = access(mapping.at, size, &rights, 1);
                context.check(set, OPERATION, "cuMemSetAccess")
            })
    };
    match mapped {
        Ok(()) => Ok(mapping),
        Err(e) => {
            unmap(cuda, &mapping);
            Err(e)
        }
    }
}

/// Undoes the steps of a mapping that were done.
pub(super) fn unmap(cuda: &Cuda, mapping: &Mapping) {
    // SAFETY: the mapping belongs to the library and is unused; the driver refuses to undo a step
    // that was not done, which changes nothing.
    unsafe {
        if mapping.at != 0 {
            if let Some(unmap) = cuda.cuMemUnmap {
                let _ = unmap(mapping.at, mapping.len);
            }
            if let Some(free) = cuda.cuMemAddressFree {
                let _ = free(mapping.at, mapping.len);
            }
        }
        if let Some(release) = cuda.cuMemRelease {
            let _ = release(mapping.handle);
        }
    }
}

/// Exports `memory` for other processes.
pub(super) fn share(memory: &Memory) -> Result<SharedMemory> {
    const OPERATION: &str = "share memory";
    let context = memory.context();
    let cuda = context.cuda;
    let (mapping, offset) = match memory.origin() {
        Origin::Mapped(mapping) => (mapping, (memory.at() - mapping.at) as usize),
        Origin::Device(piece) => piece.share(),
        Origin::Owned(..) | Origin::Nothing => return by_ipc(memory),
        Origin::Pinned(piece) => return piece.share(memory.len()),
        Origin::Registered(..) | Origin::Opened(_) | Origin::OpenedHost(_) => {
            let what = "the region is host memory of the application, or memory of another process; \
                        only memory that the library allocated here can be shared";
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        }
    };
    let export = cuda
        .cuMemExportToShareableHandle
        .ok_or_else(|| lacks("cuMemExportToShareableHandle"))?;
    let mut fd: i32 = -1;
    let kind = consts::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let _own = context.enter_own()?;
    // SAFETY: stores a descriptor, an int.
    let done = unsafe { export((&raw mut fd).cast(), mapping.handle, kind, 0) };
    context.check(done, OPERATION, "cuMemExportToShareableHandle")?;
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
    let cuda = context.cuda;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let (mut base, mut size) = (0, 0);
    let _app = context.enter_app()?;
    // SAFETY: live device memory; each call stores a value.
    unsafe {
        let found = (cuda.cuMemGetAddressRange_v2)(&mut base, &mut size, memory.at());
        context.check(found, OPERATION, "cuMemGetAddressRange")?;
        let got = (cuda.cuIpcGetMemHandle)(&mut handle, memory.at());
        context.check(got, OPERATION, "cuIpcGetMemHandle")?;
    }
    Ok(SharedMemory::Ipc {
        handle: handle.reserved,
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
    let cuda = context.cuda;
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
            let handle = CUipcMemHandle { reserved: *handle };
            let mut base: CUdeviceptr = 0;
            let _own = context.enter_own()?;
            let flags = consts::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
            // SAFETY: a handle is plain bytes; the driver refuses an invalid one.
            let opened = unsafe { (cuda.cuIpcOpenMemHandle_v2)(&mut base, handle, flags) };
            context.check(opened, OPERATION, "cuIpcOpenMemHandle")?;
            let origin = Origin::Opened(base);
            let mut size = 0;
            let mut start = 0;
            // SAFETY: live memory.
            let found = unsafe { (cuda.cuMemGetAddressRange_v2)(&mut start, &mut size, base) };
            let at = base.wrapping_add(*offset);
            let memory = Memory::new(context, at, len, origin);
            context.check(found, OPERATION, "cuMemGetAddressRange")?;
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
            let import = cuda
                .cuMemImportFromShareableHandle
                .ok_or_else(|| lacks("cuMemImportFromShareableHandle"))?;
            let mut handle = 0;
            let kind = consts::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let value = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
            let _own = context.enter_own()?;
            let unit = granularity(context, &prop(context))?;
            // SAFETY: the descriptor is passed as the pointer's value; another file is refused.
            let imported = unsafe { import(&mut handle, value, kind) };
            context.check(imported, OPERATION, "cuMemImportFromShareableHandle")?;
            let size = end.checked_next_multiple_of(unit).unwrap_or(end);
            let mapping = map(context, handle, size)?;
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
    let export = context
        .cuda
        .cuMemGetHandleForAddressRange
        .ok_or_else(|| lacks("cuMemGetHandleForAddressRange"))?;
    // The descriptor gives access to the pages of the range and to nothing else of their unit, so
    // the rest of the unit is allocated as before.
    if let Origin::Device(piece) = memory.origin()
        && kept
    {
        piece.export();
    }
    let start = memory.at() / PAGE * PAGE;
    let end = (memory.at() + memory.len() as u64).next_multiple_of(PAGE);
    let mut fd: i32 = -1;
    let kind = consts::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let _own = context.enter_own()?;
    // SAFETY: stores a descriptor, an int; the range consists of whole pages of live memory.
    let done = unsafe { export((&raw mut fd).cast(), start, (end - start) as usize, kind, 0) };
    context.check(done, OPERATION, "cuMemGetHandleForAddressRange")?;
    // SAFETY: the driver just made this descriptor for the caller.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((fd, memory.at() - start))
}
