//! Handles of a GPU's memory: device memory, pinned host memory, or registered host memory.
//!
//! Dropping a handle frees the memory: later operations on its addresses are refused. The memory is
//! unmapped after all earlier operations have retired and all windows, views and graphs with
//! operations on it are dropped.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use crate::backing::Backing;
use crate::span::Span;
use crate::{DevAddr, Error, Fault, Window};

/// Memory that a GPU can address, until it is dropped.
#[derive(Debug)]
struct Known {
    core: Arc<Core>,
    memory: Arc<Backing>,
    /// No enqueued operation can access it.
    unused: bool,
}

impl Known {
    fn new(core: &Arc<Core>, memory: Backing) -> Result<Known, Error> {
        let memory = Arc::new(memory);
        if !core.table.insert(Arc::clone(&memory)) {
            return Err(Error::AlreadyRegistered {
                addr: memory.span().ptr().addr(),
                len: memory.span().len(),
            });
        }
        Ok(Known {
            core: Arc::clone(core),
            memory,
            unused: false,
        })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        match self.unused {
            true => self.core.table.remove(self.memory.addr()),
            false => self.core.free(Arc::clone(&self.memory)),
        }
    }
}

/// Device memory, zeroed at allocation. The host accesses it only through a [`CpuView`], other
/// devices through a [`Window`].
#[derive(Debug)]
pub struct DeviceMemory(Known);

/// Pinned host memory, zeroed at allocation. The GPU uses the same address.
#[derive(Debug)]
pub struct PinnedMemory(Known);

/// Registered host memory of another owner. The GPU uses the same address.
#[derive(Debug)]
pub struct HostRegistration(Known);

macro_rules! known {
    ($($name:ident)*) => {$(
        impl $name {
            pub(crate) fn new(core: &Arc<Core>, memory: Backing) -> Result<$name, Error> {
                Known::new(core, memory).map($name)
            }

            /// Its address in the GPU's address space.
            pub fn addr(&self) -> DevAddr {
                self.0.memory.addr()
            }

            /// The requested length in bytes.
            // Memory is never empty.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(&self) -> usize {
                self.0.memory.span().len()
            }

            /// The interface of the memory for other devices on the bus.
            pub fn window(&self) -> Window {
                Window::new(Arc::clone(&self.0.memory), self.0.core.posted.as_ref())
            }
        }
    )*};
}

known! { DeviceMemory PinnedMemory HostRegistration }

impl DeviceMemory {
    /// A mapping for the CPU, as gdrcopy creates it.
    pub fn map_cpu(&self) -> CpuView {
        CpuView {
            span: self.0.memory.span(),
            _memory: Arc::clone(&self.0.memory),
        }
    }

    /// A descriptor with which another process can [import](crate::Gpu::import) the memory. The
    /// memory lives as long as any process holds it.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        self.0.memory.export()
    }
}

impl PinnedMemory {
    /// The host address. Other threads and devices write the memory at any time: use atomic or
    /// volatile accesses, unless the GPU and NICs are known not to access it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.memory.span().ptr()
    }
}

impl HostRegistration {
    /// Ends the registration at once, even if streams have pending operations.
    ///
    /// # Safety
    /// Every enqueued operation that names the memory has already run (see
    /// [`Gpu::ends`](crate::Gpu::ends)), and no graph names it.
    pub unsafe fn release(mut self) {
        self.0.unused = true;
    }
}

/// Device memory in a separate CPU mapping; keeps the memory alive. The engine does not order it:
/// CPU accesses are not part of any stream's order.
#[derive(Clone, Debug)]
pub struct CpuView {
    span: Span,
    _memory: Arc<Backing>,
}

impl CpuView {
    /// The CPU address. It is valid as long as the view.
    pub fn as_ptr(&self) -> *mut u8 {
        self.span.ptr()
    }

    /// The length in bytes.
    // Memory is never empty.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// The bytes are out of bounds.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.span.read(offset, data)
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn load32(&self, offset: u64) -> Result<u32, Fault> {
        Ok(self.span.word32(offset)?.load(Ordering::Acquire))
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn load64(&self, offset: u64) -> Result<u64, Fault> {
        Ok(self.span.word64(offset)?.load(Ordering::Acquire))
    }
}
