//! The CUDA driver as a [`Driver`].

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_void};

use gdsync_sys::cuda::types::{
    CUDA_MEMCPY2D, CUdevice, CUgraphNode, CUipcMemHandle, CUlaunchAttribute, CUlaunchConfig,
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUstreamBatchMemOpParams as Params,
};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

use super::{dependent, peers, submit};
use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{
    Called, Context, Driver, Handle, MISSING, Physical, call, elf, extra, optional, text,
};
use crate::gpu::{Dims, GpuIdentity, KernelImage, Unreachable};
use crate::memop::Op;

/// An attribute of a device; 0 if the driver does not know the attribute.
pub(super) fn attribute(cuda: &Cuda, device: CUdevice, which: u32) -> i32 {
    let mut value = 0;
    // SAFETY: stores a number.
    let asked = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, which, device) };
    if asked.is_success() { value } else { 0 }
}

/// The properties of physical memory.
fn prop(cuda: &Cuda, device: CUdevice) -> CUmemAllocationProp {
    let has = |which| attribute(cuda, device, which) != 0;
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
            id: device,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: u8::from(has(rdma)),
        usage: 0,
        reserved: [0; 4],
    }
}

/// The end of the `extra` of a launch.
const LAUNCH_PARAM_END: *mut c_void = std::ptr::null_mut();

impl Driver for Cuda {
    fn api(&self) -> &'static str {
        "CUDA"
    }

    fn runtime(&self) -> &'static str {
        super::OPENER.name
    }

    fn describe(&self, code: i32) -> [Option<String>; 2] {
        let code = CudaResult(code);
        let text = |f: unsafe extern "C" fn(CudaResult, *mut *const c_char) -> CudaResult| {
            let mut at = std::ptr::null();
            // SAFETY: stores a pointer to a static string, or null.
            let known = unsafe { f(code, &mut at) }.is_success();
            // SAFETY: as above.
            known.then(|| unsafe { text(at) })?
        };
        let name = text(self.cuGetErrorName).or_else(|| code.name().map(str::to_owned));
        [name, text(self.cuGetErrorString)]
    }

    fn kind(&self, code: i32) -> Kind {
        match CudaResult(code) {
            CudaResult::NO_DEVICE | CudaResult::STUB_LIBRARY => Kind::Absent,
            CudaResult::NOT_SUPPORTED | CudaResult::NOT_PERMITTED => Kind::Unsupported,
            CudaResult::INVALID_VALUE
            | CudaResult::INVALID_DEVICE
            | CudaResult::INVALID_IMAGE
            | CudaResult::INVALID_PTX
            | CudaResult::NO_BINARY_FOR_GPU
            | CudaResult::NOT_FOUND => Kind::Invalid,
            lost if lost.is_sticky() => Kind::DeviceLost,
            _ => Kind::System,
        }
    }

    fn identity(&self, device: i32) -> GpuIdentity {
        peers::identity(self, device)
    }

    fn reaches(&self, context: &Context, other: &GpuIdentity) -> Result<(), Unreachable> {
        peers::reaches(self, context, other)
    }

    fn pci(&self, device: i32) -> Option<String> {
        peers::pci(self, device)
    }

    fn code(&self, context: &Context, image: &KernelImage) -> Result<Cow<'static, [u8]>> {
        let ptx = image.ptx().ok_or_else(|| {
            let what = format!(
                "{image:?} have no PTX: nvcc was not found when they were built; install it or \
                 set NVCC, or commit PTX and name it with gdsync_build::Kernels::ptx"
            );
            Error::new("load kernels", Kind::Unsupported, what)
        })?;
        Ok(match context.dependent_launch {
            false => Cow::Borrowed(ptx.as_bytes()),
            true => match dependent::for_sm_90(ptx) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
        })
    }

    fn streams_ahead(&self) -> usize {
        32
    }

    fn has_dependent_launch(&self, device: i32) -> bool {
        let major = consts::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        self.cuLaunchKernelEx.is_some() && attribute(self, device, major) >= 9
    }

    fn current(&self) -> Handle {
        let mut current = std::ptr::null_mut();
        // SAFETY: stores the thread's current context, or null.
        let _ = unsafe { (self.cuCtxGetCurrent)(&mut current) };
        current.cast()
    }

    #[inline]
    unsafe fn enter(&self, context: Handle) -> Called {
        call!(self.cuCtxPushCurrent_v2(context.cast()))
    }

    #[inline]
    unsafe fn leave(&self, _previous: Handle) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops the context that `enter` pushed. A failure cannot be reported.
        let _ = unsafe { (self.cuCtxPopCurrent_v2)(&mut popped) };
    }

    unsafe fn context_create(&self, context: &mut Handle, device: i32) -> Called {
        let mut own = std::ptr::null_mut();
        let created = call!(self.cuCtxCreate_v2(&mut own, consts::CU_CTX_SCHED_AUTO, device));
        if created.is_ok() {
            *context = own.cast();
            // SAFETY: pops the context just pushed.
            unsafe { self.leave(std::ptr::null_mut()) };
        }
        created
    }

    unsafe fn context_destroy(&self, context: Handle) {
        // SAFETY: the caller's promise.
        let _ = unsafe { (self.cuCtxDestroy_v2)(context.cast()) };
    }

    fn exchange_capture_mode(&self, mode: Option<u32>) -> Option<u32> {
        let exchange = self.cuThreadExchangeStreamCaptureMode?;
        let mut mode = mode.unwrap_or(consts::CU_STREAM_CAPTURE_MODE_RELAXED);
        // SAFETY: exchanges this thread's mode.
        unsafe { exchange(&mut mode) }.is_success().then_some(mode)
    }

    unsafe fn host_flush(&self, _device: i32) -> Called {
        optional!(self.cuFlushGPUDirectRDMAWrites(
            consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
            consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
        ))
    }

    /// GPUDirect RDMA orders the writes before the work.
    fn starts_see_remote_writes(&self) -> bool {
        true
    }

    /// The stream does not synchronise with the legacy default stream.
    unsafe fn stream_create(&self, stream: &mut Handle, _copies: bool) -> Called {
        let out = (&raw mut *stream).cast();
        call!(self.cuStreamCreate(out, consts::CU_STREAM_NON_BLOCKING))
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> Called {
        call!(self.cuStreamDestroy_v2(stream.cast()))
    }

    #[inline]
    unsafe fn stream_query(&self, stream: Handle) -> Called {
        call!(self.cuStreamQuery(stream.cast()))
    }

    #[inline]
    unsafe fn stream_is_capturing(&self, stream: Handle, capturing: &mut bool) -> Called {
        let mut status = consts::CU_STREAM_CAPTURE_STATUS_NONE;
        let asked = call!(self.cuStreamIsCapturing(stream.cast(), &mut status));
        *capturing = status != consts::CU_STREAM_CAPTURE_STATUS_NONE;
        asked
    }

    unsafe fn stream_context(&self, stream: Handle, context: &mut Handle) -> Called {
        call!(self.cuStreamGetCtx(stream.cast(), (&raw mut *context).cast()))
    }

    unsafe fn stream_wait_event(&self, stream: Handle, event: Handle) -> Called {
        call!(self.cuStreamWaitEvent(stream.cast(), event.cast(), 0))
    }

    #[inline]
    unsafe fn submit(&self, context: &Context, stream: Handle, ops: &[Op]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { submit::submit(self, context, stream, ops) }
    }

    unsafe fn event_create(&self, event: &mut Handle, timing: bool) -> Called {
        let flags = match timing {
            true => consts::CU_EVENT_DEFAULT,
            false => consts::CU_EVENT_DISABLE_TIMING,
        };
        call!(self.cuEventCreate((&raw mut *event).cast(), flags))
    }

    unsafe fn event_destroy(&self, event: Handle) -> Called {
        call!(self.cuEventDestroy_v2(event.cast()))
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Called {
        call!(self.cuEventRecord(event.cast(), stream.cast()))
    }

    unsafe fn event_query(&self, event: Handle) -> Called {
        call!(self.cuEventQuery(event.cast()))
    }

    unsafe fn event_elapsed(&self, ms: &mut f32, start: Handle, end: Handle) -> Called {
        call!(self.cuEventElapsedTime(ms, start.cast(), end.cast()))
    }

    unsafe fn copy(&self, to: u64, from: u64, len: usize, stream: Handle) -> Called {
        call!(self.cuMemcpyAsync(to, from, len, stream.cast()))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, len: usize, stream: Handle) -> Called {
        call!(self.cuMemcpyHtoDAsync_v2(to, from.cast(), len, stream.cast()))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, len: usize, stream: Handle) -> Called {
        call!(self.cuMemcpyDtoHAsync_v2(to.cast(), from, len, stream.cast()))
    }

    unsafe fn copy_two_rows(
        &self,
        to: u64,
        from: *const u8,
        pitch: usize,
        half: usize,
        stream: Handle,
    ) -> Called {
        let rows = CUDA_MEMCPY2D {
            src_x_in_bytes: 0,
            src_y: 0,
            src_memory_type: consts::CU_MEMORYTYPE_HOST,
            src_host: from.cast(),
            src_device: 0,
            src_array: std::ptr::null_mut(),
            src_pitch: pitch,
            dst_x_in_bytes: 0,
            dst_y: 0,
            dst_memory_type: consts::CU_MEMORYTYPE_DEVICE,
            dst_host: std::ptr::null_mut(),
            dst_device: to,
            dst_array: std::ptr::null_mut(),
            dst_pitch: half,
            width_in_bytes: half,
            height: 2,
        };
        optional!(self.cuMemcpy2DAsync_v2(&rows, stream.cast()))
    }

    unsafe fn write_word(&self, stream: Handle, to: u64, value: u64, bytes: usize) -> Called {
        let mut param = match bytes {
            8 => Params::write64(to, value, 0),
            _ => Params::write32(to, value as u32, 0),
        };
        call!(self.cuStreamBatchMemOp_v2(stream.cast(), 1, &mut param, 0))
    }

    unsafe fn zero(&self, at: u64, len: usize, stream: Handle) -> Called {
        call!(self.cuMemsetD8Async(at, 0, len, stream.cast()))
    }

    unsafe fn mem_alloc(&self, at: &mut u64, len: usize) -> Called {
        call!(self.cuMemAlloc_v2(at, len))
    }

    unsafe fn mem_free(&self, at: u64) -> Called {
        call!(self.cuMemFree_v2(at))
    }

    unsafe fn host_alloc(&self, at: &mut Handle, len: usize) -> Called {
        call!(self.cuMemHostAlloc(at, len, consts::CU_MEMHOSTALLOC_PORTABLE))
    }

    unsafe fn host_register(&self, at: Handle, len: usize, device_registers: bool) -> Called {
        let plain = consts::CU_MEMHOSTREGISTER_PORTABLE | consts::CU_MEMHOSTREGISTER_DEVICEMAP;
        let flags = match device_registers {
            true => plain | consts::CU_MEMHOSTREGISTER_IOMEMORY,
            false => plain,
        };
        call!(self.cuMemHostRegister_v2(at, len, flags))
    }

    unsafe fn host_unregister(&self, at: Handle) -> Called {
        call!(self.cuMemHostUnregister(at))
    }

    unsafe fn host_address(&self, address: &mut u64, at: Handle) -> Called {
        call!(self.cuMemHostGetDevicePointer_v2(address, at, 0))
    }

    unsafe fn address_range(&self, base: &mut u64, len: &mut usize, at: u64) -> Called {
        call!(self.cuMemGetAddressRange_v2(base, len, at))
    }

    unsafe fn host_pointer(&self, host: &mut *mut u8, at: u64) -> Called {
        let mut kind: u32 = 0;
        let which = consts::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let asked = call!(self.cuPointerGetAttribute((&raw mut kind).cast(), which, at));
        if !asked.is_ok() || kind != consts::CU_MEMORYTYPE_HOST {
            return asked;
        }
        let which = consts::CU_POINTER_ATTRIBUTE_HOST_POINTER;
        call!(self.cuPointerGetAttribute((&raw mut *host).cast(), which, at))
    }

    unsafe fn is_managed(&self, at: u64) -> bool {
        let mut managed: u32 = 0;
        let which = consts::CU_POINTER_ATTRIBUTE_IS_MANAGED;
        let asked = call!(self.cuPointerGetAttribute((&raw mut managed).cast(), which, at));
        asked.is_ok() && managed != 0
    }

    unsafe fn buffer_id(&self, id: &mut u64, at: u64) -> Called {
        let which = consts::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        call!(self.cuPointerGetAttribute((&raw mut *id).cast(), which, at))
    }

    unsafe fn synchronise_copies(&self, at: u64) {
        let on: u32 = 1;
        let which = consts::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // Memory that does not accept the attribute is used without it.
        let _ = call!(self.cuPointerSetAttribute((&raw const on).cast(), which, at));
    }

    unsafe fn granularity(&self, len: &mut usize, device: i32) -> Called {
        let prop = prop(self, device);
        let least = consts::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        optional!(self.cuMemGetAllocationGranularity(len, &prop, least))
    }

    unsafe fn physical_create(&self, memory: &mut Physical, len: usize, device: i32) -> Called {
        let prop = prop(self, device);
        optional!(self.cuMemCreate(memory, len, &prop, 0))
    }

    unsafe fn physical_release(&self, memory: Physical) {
        let _ = optional!(self.cuMemRelease(memory));
    }

    unsafe fn physical_map(
        &self,
        at: &mut u64,
        len: usize,
        memory: Physical,
        device: i32,
    ) -> Called {
        let rights = CUmemAccessDesc {
            location: prop(self, device).location,
            flags: consts::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let reserved = optional!(self.cuMemAddressReserve(at, len, 0, 0, 0));
        if !reserved.is_ok() {
            return reserved;
        }
        let mapped = optional!(self.cuMemMap(*at, len, 0, memory, 0));
        if !mapped.is_ok() {
            return mapped;
        }
        optional!(self.cuMemSetAccess(*at, len, &rights, 1))
    }

    unsafe fn physical_unmap(&self, at: u64, len: usize) {
        let _ = optional!(self.cuMemUnmap(at, len));
        let _ = optional!(self.cuMemAddressFree(at, len));
    }

    unsafe fn physical_export(&self, fd: &mut i32, memory: Physical) -> Called {
        let kind = consts::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        optional!(self.cuMemExportToShareableHandle((&raw mut *fd).cast(), memory, kind, 0))
    }

    /// The descriptor is passed as the pointer's value.
    unsafe fn physical_import(&self, memory: &mut Physical, fd: i32) -> Called {
        let kind = consts::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let value = std::ptr::without_provenance_mut(fd as usize);
        optional!(self.cuMemImportFromShareableHandle(memory, value, kind))
    }

    unsafe fn ipc_export(&self, handle: &mut [u8; 64], at: u64) -> Called {
        call!(self.cuIpcGetMemHandle((&raw mut *handle).cast(), at))
    }

    unsafe fn ipc_open(&self, at: &mut u64, handle: [u8; 64]) -> Called {
        let handle = CUipcMemHandle { reserved: handle };
        let flags = consts::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        call!(self.cuIpcOpenMemHandle_v2(at, handle, flags))
    }

    unsafe fn ipc_close(&self, at: u64) -> Called {
        call!(self.cuIpcCloseMemHandle(at))
    }

    unsafe fn dma_buf(&self, (fd, _): (&mut i32, &mut u64), start: u64, len: usize) -> Called {
        let kind = consts::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        optional!(self.cuMemGetHandleForAddressRange((&raw mut *fd).cast(), start, len, kind, 0))
    }

    fn loadable<'a>(&self, code: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        const OPERATION: &str = "load module";
        if elf::is_binary(code) {
            elf::check(OPERATION, code)?;
            return Ok(Cow::Borrowed(code));
        }
        // Text ends at a zero byte.
        let text = CString::new(code.strip_suffix(b"\0").unwrap_or(code)).map_err(|e| {
            let what = "the PTX text contains a zero byte";
            Error::new(OPERATION, Kind::Invalid, what).with_source(e)
        })?;
        Ok(Cow::Owned(text.into_bytes_with_nul()))
    }

    unsafe fn module_load(&self, module: &mut Handle, code: *const u8) -> Called {
        call!(self.cuModuleLoadData((&raw mut *module).cast(), code.cast()))
    }

    unsafe fn module_function(&self, kernel: &mut Handle, module: Handle, name: &CStr) -> Called {
        let out = (&raw mut *kernel).cast();
        call!(self.cuModuleGetFunction(out, module.cast(), name.as_ptr()))
    }

    unsafe fn function_load(&self, kernel: Handle) -> Called {
        let loaded = optional!(self.cuFuncLoad(kernel.cast()));
        if loaded.code != MISSING {
            return loaded;
        }
        let mut registers = 0;
        let which = consts::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // This call loads the kernel too.
        call!(self.cuFuncGetAttribute(&mut registers, which, kernel.cast()))
    }

    unsafe fn function_shares(&self, kernel: Handle) -> Called {
        let which = consts::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // Percent of the memory of a multiprocessor.
        let all = 100;
        optional!(self.cuFuncSetAttribute(kernel.cast(), which, all))
    }

    #[inline]
    unsafe fn launch(&self, kernel: Handle, dims: &Dims, stream: Handle, args: &[u8]) -> Called {
        let ([gx, gy, gz], [bx, by, bz]) = (dims.grid, dims.block);
        let mut size = args.len();
        let mut extra = extra(args, &mut size, LAUNCH_PARAM_END);
        call!(self.cuLaunchKernel(
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
        ))
    }

    #[inline]
    unsafe fn launch_dependent(
        &self,
        kernel: Handle,
        dims: &Dims,
        stream: Handle,
        args: &[u8],
    ) -> Called {
        let which = consts::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = CUlaunchAttribute::int(which, 1);
        let config = CUlaunchConfig {
            grid: dims.grid,
            block: dims.block,
            shared_bytes: dims.shared,
            stream: stream.cast(),
            attributes: &mut attribute,
            count: 1,
        };
        let mut size = args.len();
        let mut extra = extra(args, &mut size, LAUNCH_PARAM_END);
        let none = std::ptr::null_mut();
        optional!(self.cuLaunchKernelEx(&config, kernel.cast(), none, extra.as_mut_ptr()))
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Called {
        let mode = consts::CU_STREAM_CAPTURE_MODE_RELAXED;
        call!(self.cuStreamBeginCapture_v2(stream.cast(), mode))
    }

    unsafe fn capture_end(&self, stream: Handle, graph: &mut Handle) -> Called {
        call!(self.cuStreamEndCapture(stream.cast(), (&raw mut *graph).cast()))
    }

    /// Measured with driver 580 on an H100: one if all nodes are kernels, otherwise one for each node.
    unsafe fn graph_submissions(&self, graph: Handle) -> Option<u32> {
        let (get, kind) = (self.cuGraphGetNodes?, self.cuGraphNodeGetType?);
        let mut count = 0;
        // SAFETY: a live graph; without a list only the number is stored.
        let asked = unsafe { get(graph.cast(), std::ptr::null_mut(), &mut count) };
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: a list of `count` nodes.
        let listed = unsafe { get(graph.cast(), nodes.as_mut_ptr(), &mut count) };
        let is_kernel = |node: &CUgraphNode| {
            let mut found = u32::MAX;
            // SAFETY: a node of the graph.
            let _ = unsafe { kind(*node, &mut found) };
            found == consts::CU_GRAPH_NODE_TYPE_KERNEL
        };
        let known = asked.is_success() && (listed.is_success() || count == 0);
        known.then(|| match nodes.iter().all(is_kernel) {
            true => 1,
            false => u32::try_from(count).unwrap_or(u32::MAX),
        })
    }

    unsafe fn graph_instantiate(&self, launchable: &mut Handle, graph: Handle) -> Called {
        let out = (&raw mut *launchable).cast();
        call!(self.cuGraphInstantiateWithFlags(out, graph.cast(), 0))
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        let _ = optional!(self.cuGraphDestroy(graph.cast()));
    }

    unsafe fn graph_upload(&self, launchable: Handle, stream: Handle) -> Called {
        optional!(self.cuGraphUpload(launchable.cast(), stream.cast()))
    }

    #[inline]
    unsafe fn graph_launch(&self, launchable: Handle, stream: Handle) -> Called {
        call!(self.cuGraphLaunch(launchable.cast(), stream.cast()))
    }

    unsafe fn launchable_destroy(&self, launchable: Handle) {
        let _ = optional!(self.cuGraphExecDestroy(launchable.cast()));
    }
}
