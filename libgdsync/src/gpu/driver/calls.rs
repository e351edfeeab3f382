//! The calls that the drivers of CUDA and HIP both have, in one vocabulary. A driver implements
//! [`Driver`] on its table of functions; everything else in this folder uses the trait alone.
//!
//! CUDA and HIP give the results that this folder distinguishes the same numbers. A function that is
//! missing returns [`MISSING`].

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};

use super::Context;
use crate::error::{Kind, Result};
use crate::gpu::{Dims, GpuIdentity, KernelImage, Unreachable};
use crate::memop::Op;

/// An object of the driver: a context, stream, event, module, kernel or graph.
pub(crate) type Handle = *mut c_void;

pub(crate) const OK: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const NOT_FOUND: i32 = 500;
/// Not an error: the work has not ended.
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ALREADY_REGISTERED: i32 = 712;
/// The event was recorded in a capture.
pub(crate) const CAPTURED_EVENT: i32 = 907;
/// The driver lacks the function. No driver returns this code.
pub(crate) const MISSING: i32 = i32::MIN;

/// The result of a call.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Called {
    pub code: i32,
    /// The name of the function, as the library exports it.
    pub call: &'static str,
}

impl Called {
    /// Nothing is to be done.
    pub const DONE: Called = Called { code: OK, call: "" };

    pub const fn missing(call: &'static str) -> Called {
        Called {
            code: MISSING,
            call,
        }
    }

    #[inline]
    pub fn is_ok(self) -> bool {
        self.code == OK
    }

    pub fn name(self) -> &'static str {
        self.call.trim_end_matches("_v2")
    }
}

/// A static text of a driver; `None` if it is empty.
///
/// # Safety
/// `at` is null or a static zero-terminated string.
pub(crate) unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    let text = (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy())?;
    (!text.is_empty()).then(|| text.into_owned())
}

/// A text that a call stores in `N` bytes, zero-terminated; `None` if it is empty.
pub(crate) fn stored<const N: usize>(
    store: impl FnOnce(*mut c_char, i32) -> Called,
) -> Option<String> {
    let mut text = [0_u8; N];
    if !store(text.as_mut_ptr().cast(), N as i32).is_ok() {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Calls a function of a table, whose result is a number. The functions of a [`Driver`] uphold its
/// conditions by the promise of their callers; other places state why they do.
macro_rules! call {
    ($table:ident.$name:ident($($arg:expr),* $(,)?)) => {
        $crate::gpu::driver::Called {
            // SAFETY: the caller's promise, or the reason at the call.
            code: unsafe { ($table.$name)($($arg),*) }.0,
            call: stringify!($name),
        }
    };
}
pub(crate) use call;

/// As `call`, a function that the driver may lack.
macro_rules! optional {
    ($table:ident.$name:ident($($arg:expr),* $(,)?)) => {
        $crate::gpu::driver::Called {
            // SAFETY: the caller's promise.
            code: $table.$name.map_or($crate::gpu::driver::MISSING, |call| unsafe {
                call($($arg),*)
            }.0),
            call: stringify!($name),
        }
    };
}
pub(crate) use optional;

/// The last argument of a launch: the parameter structure. `size` has its length. CUDA and HIP give
/// the entries the same numbers, but for the `end`.
pub(crate) fn extra(args: &[u8], size: &mut usize, end: *mut c_void) -> [*mut c_void; 5] {
    const POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
    const SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
    let args = args.as_ptr().cast_mut().cast();
    [POINTER, args, SIZE, (&raw mut *size).cast(), end]
}

/// Physical memory of the driver.
pub(crate) type Physical = u64;

/// The functions of a driver.
///
/// # Safety
/// As the vendor's documentation of each function demands: handles are live objects of the current
/// context, addresses are valid for the access, and results are stored through the references.
pub(crate) trait Driver: Send + Sync {
    /// The name of the API: `CUDA`.
    fn api(&self) -> &'static str;
    /// The name of the runtime: `cuda`.
    fn runtime(&self) -> &'static str;
    /// The name of a code, and the driver's description of it.
    fn describe(&self, code: i32) -> [Option<String>; 2];
    /// The kind of the error with this code; `DeviceLost` if the process cannot use the GPU any more.
    fn kind(&self, code: i32) -> Kind;

    /// See [`Runtime::identity`](crate::gpu::runtime::Runtime::identity).
    fn identity(&self, device: i32) -> GpuIdentity;
    fn reaches(&self, context: &Context, other: &GpuIdentity) -> Result<(), Unreachable>;
    fn pci(&self, device: i32) -> Option<String>;
    /// The code of an image for the device of `context`.
    fn code(&self, context: &Context, image: &KernelImage) -> Result<Cow<'static, [u8]>>;
    /// Whether the device has physical memory that is mapped to addresses and exported as a file.
    /// Otherwise device memory is allocated by [`Driver::mem_alloc`].
    fn maps(&self, _device: i32) -> bool {
        true
    }
    /// The number of streams that the library creates ahead, because a creation may block behind waits.
    /// 0: it may not, and streams share hardware queues.
    fn streams_ahead(&self) -> usize;
    /// Whether the device has dependent launches.
    fn has_dependent_launch(&self, _device: i32) -> bool {
        false
    }

    fn current(&self) -> Handle;
    /// Makes a context the current one, until [`Driver::leave`].
    unsafe fn enter(&self, context: Handle) -> Called;
    /// Makes `previous` the current context again.
    unsafe fn leave(&self, previous: Handle);
    unsafe fn context_create(&self, _context: &mut Handle, _device: i32) -> Called {
        Called::missing("second context")
    }
    unsafe fn context_destroy(&self, _context: Handle) {}
    /// Exchanges the thread's mode of captures for `mode`, or the mode that allows every call. Returns
    /// the previous one; `None`: the driver has no modes.
    fn exchange_capture_mode(&self, mode: Option<u32>) -> Option<u32>;
    /// Waits until writes of NICs are visible to the streams, by the CPU: the flush of `Caps::host_flush`.
    unsafe fn host_flush(&self, device: i32) -> Called;
    /// Whether work that is enqueued after the CPU saw the completion of NIC writes sees these writes
    /// without a flush.
    fn starts_see_remote_writes(&self) -> bool;

    /// `copies`: a stream for the copies of the library, which waits of other streams must not delay.
    unsafe fn stream_create(&self, stream: &mut Handle, copies: bool) -> Called;
    unsafe fn stream_destroy(&self, stream: Handle) -> Called;
    unsafe fn stream_query(&self, stream: Handle) -> Called;
    unsafe fn stream_is_capturing(&self, stream: Handle, capturing: &mut bool) -> Called;
    /// The context of a stream.
    unsafe fn stream_context(&self, stream: Handle, context: &mut Handle) -> Called;
    unsafe fn stream_wait_event(&self, stream: Handle, event: Handle) -> Called;
    /// Enqueues memory operations in the application's context.
    ///
    /// # Errors
    /// `Unsupported` for operations that the driver lacks, before any is enqueued; the driver's error.
    unsafe fn submit(&self, context: &Context, stream: Handle, ops: &[Op]) -> Result<()>;

    /// With `timing`, the event has a time.
    unsafe fn event_create(&self, event: &mut Handle, timing: bool) -> Called;
    unsafe fn event_destroy(&self, event: Handle) -> Called;
    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Called;
    unsafe fn event_query(&self, event: Handle) -> Called;
    unsafe fn event_elapsed(&self, ms: &mut f32, start: Handle, end: Handle) -> Called;

    unsafe fn copy(&self, to: u64, from: u64, len: usize, stream: Handle) -> Called;
    unsafe fn copy_in(&self, to: u64, from: *const u8, len: usize, stream: Handle) -> Called;
    unsafe fn copy_out(&self, to: *mut u8, from: u64, len: usize, stream: Handle) -> Called;
    /// Copies two rows of `half` bytes, `pitch` bytes apart in host memory and adjacent at `to`, by a
    /// copy engine. [`MISSING`]: the driver cannot.
    unsafe fn copy_two_rows(
        &self,
        _to: u64,
        _from: *const u8,
        _pitch: usize,
        _half: usize,
        _stream: Handle,
    ) -> Called {
        Called::missing("copy of two rows")
    }
    /// Writes a word of 8 or 4 bytes by a memory operation. `INVALID_VALUE`: it cannot access the
    /// memory.
    unsafe fn write_word(&self, stream: Handle, to: u64, value: u64, bytes: usize) -> Called;
    unsafe fn zero(&self, at: u64, len: usize, stream: Handle) -> Called;

    /// Allocates device memory whose words other GPUs and NICs may access while kernels run.
    unsafe fn mem_alloc(&self, at: &mut u64, len: usize) -> Called;
    unsafe fn mem_free(&self, at: u64) -> Called;
    unsafe fn host_alloc(&self, at: &mut Handle, len: usize) -> Called;
    /// Whether the driver registers memory twice without an error, and ends both registrations at once.
    fn registers_twice(&self) -> bool {
        false
    }
    /// Registers host memory for all contexts; `device_registers`: it may be a device's registers.
    unsafe fn host_register(&self, at: Handle, len: usize, device_registers: bool) -> Called;
    unsafe fn host_unregister(&self, at: Handle) -> Called;
    unsafe fn host_address(&self, address: &mut u64, at: Handle) -> Called;
    unsafe fn address_range(&self, base: &mut u64, len: &mut usize, at: u64) -> Called;
    /// The CPU's address of host memory; `host` stays unchanged for device memory.
    unsafe fn host_pointer(&self, host: &mut *mut u8, at: u64) -> Called;
    /// Whether streams, NICs and other GPUs may access words of the memory while kernels run.
    unsafe fn has_words(&self, _at: u64) -> bool {
        true
    }
    /// Whether the memory moves between GPU and host.
    unsafe fn is_managed(&self, at: u64) -> bool;
    /// The number of the allocation, which is never reused.
    unsafe fn buffer_id(&self, id: &mut u64, at: u64) -> Called;
    /// Keeps synchronous copies of the memory synchronous with accesses of the CPU.
    unsafe fn synchronise_copies(&self, _at: u64) {}

    unsafe fn granularity(&self, len: &mut usize, device: i32) -> Called;
    unsafe fn physical_create(&self, memory: &mut Physical, len: usize, device: i32) -> Called;
    unsafe fn physical_release(&self, memory: Physical);
    /// Reserves addresses, maps the memory and grants the device access. On failure `at` is not 0 if
    /// addresses are reserved.
    unsafe fn physical_map(
        &self,
        at: &mut u64,
        len: usize,
        memory: Physical,
        device: i32,
    ) -> Called;
    /// Undoes the steps of [`Driver::physical_map`] that were done.
    unsafe fn physical_unmap(&self, at: u64, len: usize);
    unsafe fn physical_export(&self, fd: &mut i32, memory: Physical) -> Called;
    unsafe fn physical_import(&self, memory: &mut Physical, fd: i32) -> Called;
    /// `at`: the start of an allocation.
    unsafe fn ipc_export(&self, handle: &mut [u8; 64], at: u64) -> Called;
    unsafe fn ipc_open(&self, at: &mut u64, handle: [u8; 64]) -> Called;
    unsafe fn ipc_close(&self, at: u64) -> Called;
    /// Exports whole pages of memory as a dma-buf: the descriptor, and the offset in it.
    unsafe fn dma_buf(&self, out: (&mut i32, &mut u64), start: u64, len: usize) -> Called;

    /// The bytes of `code` as [`Driver::module_load`] takes them: without a length.
    fn loadable<'a>(&self, code: &'a [u8]) -> Result<Cow<'a, [u8]>>;
    unsafe fn module_load(&self, module: &mut Handle, code: *const u8) -> Called;
    unsafe fn module_function(&self, kernel: &mut Handle, module: Handle, name: &CStr) -> Called;
    /// Loads the kernel now, so that no launch loads it.
    unsafe fn function_load(&self, _kernel: Handle) -> Called {
        Called::DONE
    }
    /// Lets kernels that need much shared memory start beside the kernel. [`MISSING`]: the driver
    /// cannot.
    unsafe fn function_shares(&self, _kernel: Handle) -> Called {
        Called::DONE
    }
    unsafe fn launch(&self, kernel: Handle, dims: &Dims, stream: Handle, args: &[u8]) -> Called;
    /// As [`Driver::launch`]; the kernel may start before the earlier work of the stream has ended.
    unsafe fn launch_dependent(
        &self,
        kernel: Handle,
        dims: &Dims,
        stream: Handle,
        args: &[u8],
    ) -> Called {
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, dims, stream, args) }
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Called;
    unsafe fn capture_end(&self, stream: Handle, graph: &mut Handle) -> Called;
    /// The number of submissions that a launch takes; `None`: unknown.
    unsafe fn graph_submissions(&self, graph: Handle) -> Option<u32>;
    unsafe fn graph_instantiate(&self, launchable: &mut Handle, graph: Handle) -> Called;
    unsafe fn graph_destroy(&self, graph: Handle);
    /// Prepares the first launch. [`MISSING`]: the first launch prepares itself.
    unsafe fn graph_upload(&self, _launchable: Handle, _stream: Handle) -> Called {
        Called::DONE
    }
    unsafe fn graph_launch(&self, launchable: Handle, stream: Handle) -> Called;
    unsafe fn launchable_destroy(&self, launchable: Handle);
}
