//! The HIP runtime as a [`Driver`].

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};

use gdsync_sys::hip::types::{
    MemoryKind, hipIpcMemHandle_t, hipMemAccessDesc, hipMemAllocationProp, hipMemLocation,
    hipPointerAttribute_t,
};
use gdsync_sys::hip::{Hip, HipResult, Hsa, consts};

use super::{code, device, exported, submit};
use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{
    Called, Context, Driver, Handle, OK, Physical, call, elf, extra, optional, text,
};
use crate::gpu::{Dims, GpuIdentity, KernelImage, Unreachable};
use crate::memop::{DevicePtr, Op, Width};

/// The handle of a device's context: its number plus 1, because null is no context.
pub(super) fn context(device: i32) -> Handle {
    std::ptr::without_provenance_mut(device as usize + 1)
}

/// The version of the runtime; 0 if it does not say.
pub(super) fn version(hip: &Hip) -> i32 {
    let mut version = 0;
    // SAFETY: stores a number.
    let asked = unsafe { (hip.hipRuntimeGetVersion)(&mut version) };
    if asked.is_success() { version } else { 0 }
}

/// What the runtime knows about an address; `None` for memory that it does not know.
fn attributes(hip: &Hip, at: u64) -> Option<hipPointerAttribute_t> {
    let mut all = std::mem::MaybeUninit::<hipPointerAttribute_t>::zeroed();
    // SAFETY: stores the structure, which consists of numbers and addresses.
    unsafe {
        let asked = (hip.hipPointerGetAttributes)(all.as_mut_ptr(), at as *const c_void);
        asked.is_success().then(|| all.assume_init())
    }
}

/// The properties of physical memory.
fn prop(device: i32) -> hipMemAllocationProp {
    hipMemAllocationProp {
        kind: consts::hipMemAllocationTypeUncached,
        requested_handle_type: consts::hipMemHandleTypePosixFileDescriptor,
        location: hipMemLocation {
            kind: consts::hipMemLocationTypeDevice,
            id: device,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 1,
        usage: 0,
    }
}

impl Driver for Hip {
    fn api(&self) -> &'static str {
        "HIP"
    }

    fn runtime(&self) -> &'static str {
        super::OPENER.name
    }

    fn describe(&self, code: i32) -> [Option<String>; 2] {
        let text = |f: unsafe extern "C" fn(HipResult) -> *const c_char| {
            // SAFETY: returns a static string, or null.
            unsafe { text(f(HipResult(code))) }
        };
        // For a code that it does not know, the runtime returns the name of another one.
        let unknown = HipResult::UNKNOWN.name().map(str::to_owned);
        let name = text(self.hipGetErrorName);
        match HipResult(code).name() {
            None if name == unknown || name.is_none() => [None, None],
            known => [
                known.map(str::to_owned).or(name),
                text(self.hipGetErrorString),
            ],
        }
    }

    fn kind(&self, code: i32) -> Kind {
        match HipResult(code) {
            HipResult::NO_DEVICE => Kind::Absent,
            HipResult::NOT_SUPPORTED => Kind::Unsupported,
            HipResult::INVALID_VALUE
            | HipResult::INVALID_DEVICE
            | HipResult::INVALID_DEVICE_POINTER
            | HipResult::INVALID_CONFIGURATION
            | HipResult::INVALID_IMAGE
            | HipResult::INVALID_KERNEL_FILE
            | HipResult::NO_BINARY_FOR_GPU
            | HipResult::NOT_FOUND => Kind::Invalid,
            lost if lost.is_sticky() => Kind::DeviceLost,
            _ => Kind::System,
        }
    }

    fn identity(&self, device: i32) -> GpuIdentity {
        device::identity(self, device)
    }

    fn reaches(&self, context: &Context, other: &GpuIdentity) -> Result<(), Unreachable> {
        device::reaches(self, context, other)
    }

    fn pci(&self, device: i32) -> Option<String> {
        device::pci(self, device)
    }

    fn code(&self, context: &Context, image: &KernelImage) -> Result<Cow<'static, [u8]>> {
        code::of(self, context, image)
    }

    /// HIP 7 can make such memory uncached; in earlier releases it is coarse-grained.
    fn maps(&self, device: i32) -> bool {
        const HIP_7: i32 = 70_000_000;
        let which = consts::hipDeviceAttributeVirtualMemoryManagementSupported;
        let mut len = 0;
        version(self) >= HIP_7
            && device::attribute(self, device, which) != 0
            // SAFETY: stores a number.
            && unsafe { self.granularity(&mut len, device) }.is_ok()
    }

    fn streams_ahead(&self) -> usize {
        // A new stream takes a share of a hardware queue, and its creation does not block.
        0
    }

    #[inline]
    fn current(&self) -> Handle {
        let mut device = 0;
        // SAFETY: stores a number; on failure it stays 0.
        let _ = unsafe { (self.hipGetDevice)(&mut device) };
        context(device)
    }

    #[inline]
    unsafe fn enter(&self, context: Handle) -> Called {
        call!(self.hipSetDevice(context.addr() as i32 - 1))
    }

    #[inline]
    unsafe fn leave(&self, previous: Handle) {
        let _ = call!(self.hipSetDevice(previous.addr() as i32 - 1));
    }

    fn exchange_capture_mode(&self, mode: Option<u32>) -> Option<u32> {
        let exchange = self.hipThreadExchangeStreamCaptureMode?;
        let mut mode = mode.unwrap_or(consts::hipStreamCaptureModeRelaxed);
        // SAFETY: exchanges this thread's mode.
        unsafe { exchange(&mut mode) }.is_success().then_some(mode)
    }

    unsafe fn host_flush(&self, device: i32) -> Called {
        let Some(register) = device::flush_register(self, device) else {
            return Called::missing("register for the flush of remote writes");
        };
        // SAFETY: the runtime has mapped this register of the device. A write flushes, and a read
        // behind it waits for the flush.
        unsafe {
            register.write_volatile(1);
            register.read_volatile();
        }
        Called::DONE
    }

    /// HIP does not document such an order.
    fn starts_see_remote_writes(&self) -> bool {
        false
    }

    /// Streams of the greatest priority share no hardware queue with others.
    unsafe fn stream_create(&self, stream: &mut Handle, copies: bool) -> Called {
        let (out, flags) = ((&raw mut *stream).cast(), consts::hipStreamNonBlocking);
        let (mut least, mut greatest) = (0, 0);
        let asked = call!(self.hipDeviceGetStreamPriorityRange(&mut least, &mut greatest));
        match copies && asked.is_ok() && greatest < 0 {
            true => call!(self.hipStreamCreateWithPriority(out, flags, greatest)),
            false => call!(self.hipStreamCreateWithFlags(out, flags)),
        }
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> Called {
        call!(self.hipStreamDestroy(stream.cast()))
    }

    #[inline]
    unsafe fn stream_query(&self, stream: Handle) -> Called {
        call!(self.hipStreamQuery(stream.cast()))
    }

    #[inline]
    unsafe fn stream_is_capturing(&self, stream: Handle, capturing: &mut bool) -> Called {
        let mut status = consts::hipStreamCaptureStatusNone;
        let asked = call!(self.hipStreamIsCapturing(stream.cast(), &mut status));
        *capturing = status != consts::hipStreamCaptureStatusNone;
        asked
    }

    unsafe fn stream_context(&self, stream: Handle, context: &mut Handle) -> Called {
        let mut device = 0;
        let asked = optional!(self.hipStreamGetDevice(stream.cast(), &mut device));
        if asked.is_ok() {
            *context = self::context(device);
        }
        asked
    }

    unsafe fn stream_wait_event(&self, stream: Handle, event: Handle) -> Called {
        call!(self.hipStreamWaitEvent(stream.cast(), event.cast(), 0))
    }

    #[inline]
    unsafe fn submit(&self, context: &Context, stream: Handle, ops: &[Op]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { submit::submit(self, context, stream, ops) }
    }

    unsafe fn event_create(&self, event: &mut Handle, timing: bool) -> Called {
        let flags = match timing {
            true => consts::hipEventDefault,
            false => consts::hipEventDisableTiming,
        };
        call!(self.hipEventCreateWithFlags((&raw mut *event).cast(), flags))
    }

    unsafe fn event_destroy(&self, event: Handle) -> Called {
        call!(self.hipEventDestroy(event.cast()))
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Called {
        call!(self.hipEventRecord(event.cast(), stream.cast()))
    }

    unsafe fn event_query(&self, event: Handle) -> Called {
        call!(self.hipEventQuery(event.cast()))
    }

    unsafe fn event_elapsed(&self, ms: &mut f32, start: Handle, end: Handle) -> Called {
        call!(self.hipEventElapsedTime(ms, start.cast(), end.cast()))
    }

    unsafe fn copy(&self, to: u64, from: u64, len: usize, stream: Handle) -> Called {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        call!(self.hipMemcpyAsync(to, from, len, consts::hipMemcpyDefault, stream.cast()))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, len: usize, stream: Handle) -> Called {
        call!(self.hipMemcpyHtoDAsync(to as *mut c_void, from.cast(), len, stream.cast()))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, len: usize, stream: Handle) -> Called {
        call!(self.hipMemcpyDtoHAsync(to.cast(), from as *mut c_void, len, stream.cast()))
    }

    unsafe fn write_word(&self, stream: Handle, to: u64, value: u64, bytes: usize) -> Called {
        let width = match bytes {
            8 => Width::Bits64,
            _ => Width::Bits32,
        };
        // SAFETY: the caller's promise.
        unsafe { submit::write(self, stream.cast(), width, DevicePtr(to), value) }
    }

    unsafe fn zero(&self, at: u64, len: usize, stream: Handle) -> Called {
        call!(self.hipMemsetD8Async(at as *mut c_void, 0, len, stream.cast()))
    }

    /// Fine-grained, so that its words can be used.
    unsafe fn mem_alloc(&self, at: &mut u64, len: usize) -> Called {
        let out = (&raw mut *at).cast();
        call!(self.hipExtMallocWithFlags(out, len, consts::hipDeviceMallocFinegrained))
    }

    unsafe fn mem_free(&self, at: u64) -> Called {
        exported::remove(at);
        call!(self.hipFree(at as *mut c_void))
    }

    unsafe fn host_alloc(&self, at: &mut Handle, len: usize) -> Called {
        let flags = consts::hipHostMallocPortable | consts::hipHostMallocMapped;
        call!(self.hipHostMalloc(at, len, flags | consts::hipHostMallocCoherent))
    }

    fn registers_twice(&self) -> bool {
        true
    }

    unsafe fn host_register(&self, at: Handle, len: usize, device_registers: bool) -> Called {
        let plain = consts::hipHostRegisterPortable | consts::hipHostRegisterMapped;
        let flags = match device_registers {
            true => plain | consts::hipHostRegisterIoMemory,
            false => plain,
        };
        call!(self.hipHostRegister(at, len, flags))
    }

    unsafe fn host_unregister(&self, at: Handle) -> Called {
        call!(self.hipHostUnregister(at))
    }

    unsafe fn host_address(&self, address: &mut u64, at: Handle) -> Called {
        call!(self.hipHostGetDevicePointer((&raw mut *address).cast(), at, 0))
    }

    unsafe fn address_range(&self, base: &mut u64, len: &mut usize, at: u64) -> Called {
        call!(self.hipMemGetAddressRange((&raw mut *base).cast(), len, at as *mut c_void))
    }

    unsafe fn host_pointer(&self, host: &mut *mut u8, at: u64) -> Called {
        let mut all = std::mem::MaybeUninit::<hipPointerAttribute_t>::zeroed();
        let asked = call!(self.hipPointerGetAttributes(all.as_mut_ptr(), at as *const c_void));
        // SAFETY: the structure consists of numbers and addresses.
        let all = unsafe { all.assume_init() };
        if asked.is_ok() && all.memory_kind() == MemoryKind::Host {
            *host = all.host_pointer.cast();
        }
        asked
    }

    /// Device memory of `hipMalloc` is coarse-grained, and so is host memory that was allocated with
    /// `hipHostMallocNonCoherent`.
    unsafe fn has_words(&self, at: u64) -> bool {
        let coarse = |all: &hipPointerAttribute_t| match all.memory_kind() {
            MemoryKind::Device => all.allocation_flags == consts::hipDeviceMallocDefault,
            MemoryKind::Host => all.allocation_flags & consts::hipHostMallocNonCoherent != 0,
            MemoryKind::Other => false,
        };
        !attributes(self, at).is_some_and(|all| coarse(&all))
    }

    unsafe fn is_managed(&self, at: u64) -> bool {
        attributes(self, at).is_some_and(|all| all.is_managed != 0)
    }

    unsafe fn buffer_id(&self, id: &mut u64, at: u64) -> Called {
        let which = consts::HIP_POINTER_ATTRIBUTE_BUFFER_ID;
        call!(self.hipPointerGetAttribute((&raw mut *id).cast(), which, at as *mut c_void))
    }

    unsafe fn granularity(&self, len: &mut usize, device: i32) -> Called {
        let least = consts::hipMemAllocationGranularityMinimum;
        optional!(self.hipMemGetAllocationGranularity(len, &prop(device), least))
    }

    unsafe fn physical_create(&self, memory: &mut Physical, len: usize, device: i32) -> Called {
        let mut made = std::ptr::null_mut();
        let done = optional!(self.hipMemCreate(&mut made, len, &prop(device), 0));
        *memory = made as Physical;
        done
    }

    unsafe fn physical_release(&self, memory: Physical) {
        let _ = optional!(self.hipMemRelease(memory as *mut _));
    }

    unsafe fn physical_map(
        &self,
        at: &mut u64,
        len: usize,
        memory: Physical,
        device: i32,
    ) -> Called {
        let rights = hipMemAccessDesc {
            location: prop(device).location,
            flags: consts::hipMemAccessFlagsProtReadWrite,
        };
        let out = (&raw mut *at).cast();
        let anywhere = std::ptr::null_mut();
        let reserved = optional!(self.hipMemAddressReserve(out, len, 0, anywhere, 0));
        if !reserved.is_ok() {
            return reserved;
        }
        let here = *at as *mut c_void;
        let mapped = optional!(self.hipMemMap(here, len, 0, memory as *mut _, 0));
        if !mapped.is_ok() {
            return mapped;
        }
        optional!(self.hipMemSetAccess(here, len, &rights, 1))
    }

    unsafe fn physical_unmap(&self, at: u64, len: usize) {
        let _ = optional!(self.hipMemUnmap(at as *mut c_void, len));
        let _ = optional!(self.hipMemAddressFree(at as *mut c_void, len));
    }

    unsafe fn physical_export(&self, fd: &mut i32, memory: Physical) -> Called {
        let kind = consts::hipMemHandleTypePosixFileDescriptor;
        let out = (&raw mut *fd).cast();
        optional!(self.hipMemExportToShareableHandle(out, memory as *mut _, kind, 0))
    }

    /// The descriptor is passed as the pointer's value.
    unsafe fn physical_import(&self, memory: &mut Physical, fd: i32) -> Called {
        let kind = consts::hipMemHandleTypePosixFileDescriptor;
        let value = std::ptr::without_provenance_mut(fd as usize);
        let mut made = std::ptr::null_mut();
        let done = optional!(self.hipMemImportFromShareableHandle(&mut made, value, kind));
        *memory = made as Physical;
        done
    }

    unsafe fn ipc_export(&self, handle: &mut [u8; 64], at: u64) -> Called {
        let mut made = hipIpcMemHandle_t { reserved: [0; 64] };
        let done = call!(self.hipIpcGetMemHandle(&mut made, at as *mut c_void));
        if done.is_ok() {
            *handle = made.reserved;
            exported::add(*handle, at);
        }
        done
    }

    unsafe fn ipc_open(&self, at: &mut u64, handle: [u8; 64]) -> Called {
        if let Some(own) = exported::open(&handle) {
            *at = own;
            return Called::DONE;
        }
        let flags = consts::hipIpcMemLazyEnablePeerAccess;
        let handle = hipIpcMemHandle_t { reserved: handle };
        call!(self.hipIpcOpenMemHandle((&raw mut *at).cast(), handle, flags))
    }

    unsafe fn ipc_close(&self, at: u64) -> Called {
        if exported::close(at) {
            return Called::DONE;
        }
        call!(self.hipIpcCloseMemHandle(at as *mut c_void))
    }

    unsafe fn dma_buf(&self, (fd, offset): (&mut i32, &mut u64), start: u64, len: usize) -> Called {
        const CALL: &str = "hsa_amd_portable_export_dmabuf";
        if let Ok(hsa) = Hsa::get() {
            let export = hsa.hsa_amd_portable_export_dmabuf;
            // SAFETY: stores a descriptor and a number; the range is in live memory.
            let status = unsafe { export(start as *const c_void, len, fd, offset) };
            const OUT_OF_RESOURCES: u32 = 0x1008;
            let code = match status {
                0 => OK,
                OUT_OF_RESOURCES => HipResult::OUT_OF_MEMORY.0,
                _ => HipResult::NOT_SUPPORTED.0,
            };
            // HSA refuses mapped memory, which HIP exports.
            if status == 0 || self.hipMemGetHandleForAddressRange.is_none() {
                return Called { code, call: CALL };
            }
            (*fd, *offset) = (-1, 0);
        }
        let kind = consts::hipMemRangeHandleTypeDmaBufFd;
        let out = (&raw mut *fd).cast();
        optional!(self.hipMemGetHandleForAddressRange(out, start as *mut c_void, len, kind, 0))
    }

    fn loadable<'a>(&self, code: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        const OPERATION: &str = "load module";
        if !elf::is_binary(code) {
            let what = "the code is no code object; HIP loads no text";
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        elf::check(OPERATION, code)?;
        Ok(Cow::Borrowed(code))
    }

    unsafe fn module_load(&self, module: &mut Handle, code: *const u8) -> Called {
        call!(self.hipModuleLoadData((&raw mut *module).cast(), code.cast()))
    }

    unsafe fn module_function(&self, kernel: &mut Handle, module: Handle, name: &CStr) -> Called {
        let out = (&raw mut *kernel).cast();
        call!(self.hipModuleGetFunction(out, module.cast(), name.as_ptr()))
    }

    #[inline]
    unsafe fn launch(&self, kernel: Handle, dims: &Dims, stream: Handle, args: &[u8]) -> Called {
        let ([gx, gy, gz], [bx, by, bz]) = (dims.grid, dims.block);
        let mut size = args.len();
        let mut extra = extra(args, &mut size, consts::HIP_LAUNCH_PARAM_END);
        let launched = call!(self.hipModuleLaunchKernel(
            kernel.cast(),
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            dims.shared,
            stream.cast(),
            std::ptr::null_mut(),
            extra.as_mut_ptr(),
        ));
        if HipResult(launched.code) == HipResult::LAUNCH_FAILURE
            // SAFETY: the caller's promise.
            && unsafe { self.stream_query(stream) }.code != launched.code
        {
            // The runtime also refuses a block that is too large for the kernel with this code. A GPU
            // in error repeats it.
            let code = HipResult::INVALID_CONFIGURATION.0;
            return Called { code, ..launched };
        }
        launched
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Called {
        let mode = consts::hipStreamCaptureModeRelaxed;
        call!(self.hipStreamBeginCapture(stream.cast(), mode))
    }

    unsafe fn capture_end(&self, stream: Handle, graph: &mut Handle) -> Called {
        call!(self.hipStreamEndCapture(stream.cast(), (&raw mut *graph).cast()))
    }

    unsafe fn graph_submissions(&self, graph: Handle) -> Option<u32> {
        let mut count = 0;
        let none = std::ptr::null_mut();
        let asked = optional!(self.hipGraphGetNodes(graph.cast(), none, &mut count));
        asked
            .is_ok()
            .then(|| u32::try_from(count).unwrap_or(u32::MAX))
    }

    unsafe fn graph_instantiate(&self, launchable: &mut Handle, graph: Handle) -> Called {
        let out = (&raw mut *launchable).cast();
        call!(self.hipGraphInstantiateWithFlags(out, graph.cast(), 0))
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        let _ = optional!(self.hipGraphDestroy(graph.cast()));
    }

    #[inline]
    unsafe fn graph_launch(&self, launchable: Handle, stream: Handle) -> Called {
        call!(self.hipGraphLaunch(launchable.cast(), stream.cast()))
    }

    unsafe fn launchable_destroy(&self, launchable: Handle) {
        let _ = optional!(self.hipGraphExecDestroy(launchable.cast()));
    }
}
