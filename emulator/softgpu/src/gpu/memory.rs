//! Handles of a GPU's memory: allocated on the device, pinned on the host, or registered.
//!
//! Dropping a handle frees: later operations on its addresses are refused, and the memory is
//! unmapped once what was enqueued before has retired and windows and views are gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use crate::backing::Backing;
use crate::span::Span;
use crate::{DevAddr, Error, Fault, Window};

/// Memory that a GPU knows, until dropped.
#[derive(Debug)]
struct Known {
    core: Arc<Core>,
    memory: Arc<Backing>,
    /// No operation that was enqueued can touch it.
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

/// Memory of the device, zeroed when allocated. The host sees it only through a
/// [`CpuView`], other devices through a [`Window`].
#[derive(Debug)]
pub struct DeviceMemory(Known);

/// Host memory, zeroed when allocated, that the GPU sees too, at the same address.
#[derive(Debug)]
pub struct PinnedMemory(Known);

/// Host memory of somebody else that the GPU sees too, at the same address.
#[derive(Debug)]
pub struct HostRegistration(Known);

macro_rules! known {
    ($($name:ident)*) => {$(
        impl $name {
            pub(crate) fn new(core: &Arc<Core>, memory: Backing) -> Result<$name, Error> {
                Known::new(core, memory).map($name)
            }

            /// Where the GPU sees it.
            pub fn addr(&self) -> DevAddr {
                self.0.memory.addr()
            }

            /// The length in bytes, as asked for.
            // Memory is never empty.
            #[allow(clippy::len_without_is_empty)]
            pub fn len(&self) -> usize {
                self.0.memory.span().len()
            }

            /// What a device on the bus sees of it.
            pub fn window(&self) -> Window {
                Window::new(Arc::clone(&self.0.memory), self.0.core.posted.as_ref())
            }
        }
    )*};
}

known! { DeviceMemory PinnedMemory HostRegistration }

impl DeviceMemory {
    /// A mapping for the CPU, as gdrcopy makes one.
    pub fn map_cpu(&self) -> CpuView {
        CpuView {
            span: self.0.memory.span(),
            _memory: Arc::clone(&self.0.memory),
        }
    }

    /// A descriptor by which another process can [import](crate::Gpu::import) the memory, which
    /// lives as long as any process has it.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        self.0.memory.export()
    }
}

impl PinnedMemory {
    /// Where the host sees it. Others write it at any time: access it atomically, or by volatile
    /// accesses, unless the GPU and NICs are known not to.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.memory.span().ptr()
    }
}

impl HostRegistration {
    /// Ends the registration at once, whatever streams have still to run.
    ///
    /// # Safety
    /// Every enqueued operation that names the memory is known to have run: see
    /// [`Gpu::ends`](crate::Gpu::ends).
    pub unsafe fn release(mut self) {
        self.0.unused = true;
    }
}

/// Device memory as the CPU sees it through a mapping of its own; keeps the memory alive.
/// Not what the engine orders: the CPU's accesses take part in no stream's order.
#[derive(Clone, Debug)]
pub struct CpuView {
    span: Span,
    _memory: Arc<Backing>,
}

impl CpuView {
    /// Where the CPU sees the memory. Valid as long as the view.
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
    /// They lie outside of the memory.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.span.read(offset, data)
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// It lies outside of the memory or is not aligned.
    pub fn load32(&self, offset: u64) -> Result<u32, Fault> {
        Ok(self.span.word32(offset)?.load(Ordering::Acquire))
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// It lies outside of the memory or is not aligned.
    pub fn load64(&self, offset: u64) -> Result<u64, Fault> {
        Ok(self.span.word64(offset)?.load(Ordering::Acquire))
    }
}
