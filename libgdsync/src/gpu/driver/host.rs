//! Host memory of the library: memory files, registered with the driver, so that other
//! processes can map them.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::context::Context;
use super::memory::{Memory, Origin};
use super::pages;
use crate::error::Result;
use crate::gpu::host::{self, Mapping};
use crate::gpu::runtime::Allocation;

/// Registers a mapping for all contexts; returns the GPU's address of it.
fn register(context: &Context, operation: &'static str, mapping: &Mapping) -> Result<u64> {
    // The new mapping may have addresses of memory of the application whose registration is unused.
    pages::free_unused(context);
    let at = mapping.base().as_ptr().cast();
    let _own = context.enter_own()?;
    // SAFETY: the mapping stays until it is unregistered.
    let done = unsafe { context.driver.host_register(at, mapping.len(), false) };
    context.check(done, operation)?;
    let mut address = 0;
    // SAFETY: the memory is registered.
    let found = unsafe { context.driver.host_address(&mut address, at) };
    let found = context.check(found, operation);
    if found.is_err() {
        // The first error is the one to report.
        let _ = unregister(context, mapping);
    }
    found.map(|()| address)
}

/// Ends the registration of a mapping that no stream uses any more.
pub(super) fn unregister(context: &Context, mapping: &Mapping) -> Result<()> {
    let _own = context.enter_own()?;
    // SAFETY: the library registered this address, and no stream uses it.
    let gone = unsafe {
        context
            .driver
            .host_unregister(mapping.base().as_ptr().cast())
    };
    context.check(gone, "free memory")
}

/// Allocates pinned host memory, zeroed.
pub(super) fn pinned(context: &Arc<Context>, len: usize) -> Result<Allocation> {
    // A piece of a file takes no call of the driver, which would report a lost GPU.
    context.alive()?;
    let register = |mapping: &Mapping| register(context, "allocate pinned memory", mapping);
    let piece = context.host.take(len, register)?;
    let (at, base) = (piece.at(), piece.base());
    Ok(Memory::new(context, at, len, Origin::Pinned(piece)).into_allocation(Some(base)))
}

/// Opens pinned host memory of another process.
pub(super) fn open(
    context: &Arc<Context>,
    fd: &impl AsFd,
    offset: u64,
    len: u64,
) -> Result<Allocation> {
    let (mapping, inside) = host::open(fd.as_fd(), offset, len)?;
    let at = register(context, "open shared memory", &mapping)? + inside as u64;
    // SAFETY: inside the mapping.
    let base = unsafe { mapping.base().add(inside) };
    let memory = Memory::new(context, at, len as usize, Origin::OpenedHost(mapping));
    Ok(memory.into_allocation(Some(base)))
}
