//! NVIDIA's CUDA driver: [`Cuda`], the table of libcuda.so.1.
//!
//! Names and numbers are those of cuda.h 13.0. Functions have the names that the library exports:
//! `cuMemAlloc_v2` and not `cuMemAlloc`. Where both exist, the plain name is an older function.

pub mod consts;
mod result;
pub mod types;

pub use result::CudaResult;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use types::*;

crate::dl_api! {
    /// The functions of the CUDA driver.
    ///
    /// Required functions are those that gdsync needs and that a driver of CUDA 11.7 has. Optional
    /// functions are newer, or belong to one capability only.
    ///
    /// # Safety
    /// The vendor's documentation of each function applies. Addresses must be valid for the reads
    /// and writes of the function, and most functions need a current context. These functions block
    /// behind a stream that waits: `cuMemFree_v2`, `cuMemFreeHost`, `cuMemHostUnregister`,
    /// `cuIpcCloseMemHandle` and `cuModuleLoadData`.
    pub struct Cuda("CUDA driver") {
        sonames: ["libcuda.so.1"],
        env: "GDS_CUDA_LIB",
        required {
            /// Initialises the driver; `flags` is 0.
            fn cuInit(flags: c_uint) -> CudaResult;
            /// The CUDA version of the driver, 1000 * major + 10 * minor.
            fn cuDriverGetVersion(version: *mut c_int) -> CudaResult;
            /// The name of a result code, a static string.
            fn cuGetErrorName(error: CudaResult, name: *mut *const c_char) -> CudaResult;
            /// The description of a result code, a static string.
            fn cuGetErrorString(error: CudaResult, text: *mut *const c_char) -> CudaResult;

            /// The number of devices.
            fn cuDeviceGetCount(count: *mut c_int) -> CudaResult;
            /// The device of an ordinal.
            fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CudaResult;
            /// The device's name, NUL-terminated within `len` bytes.
            fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CudaResult;
            /// The value of one device attribute.
            fn cuDeviceGetAttribute(
                value: *mut c_int,
                attribute: CUdevice_attribute,
                device: CUdevice,
            ) -> CudaResult;
            /// Its PCI address as `domain:bus:device.function`, NUL-terminated within `len`.
            fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) -> CudaResult;
            /// The device's memory in bytes.
            fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CudaResult;

            /// Retains the device's primary context.
            fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CudaResult;
            /// Creates a context and pushes it on the thread's stack.
            fn cuCtxCreate_v2(
                context: *mut CUcontext,
                flags: c_uint,
                device: CUdevice,
            ) -> CudaResult;
            /// Destroys a context and its objects.
            fn cuCtxDestroy_v2(context: CUcontext) -> CudaResult;
            /// The thread's current context, or null.
            fn cuCtxGetCurrent(context: *mut CUcontext) -> CudaResult;
            /// Replaces the thread's current context.
            fn cuCtxSetCurrent(context: CUcontext) -> CudaResult;
            /// Pushes a context on the thread's stack.
            fn cuCtxPushCurrent_v2(context: CUcontext) -> CudaResult;
            /// Pops the thread's current context.
            fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CudaResult;
            /// The device of the current context.
            fn cuCtxGetDevice(device: *mut CUdevice) -> CudaResult;

            /// Allocates device memory.
            fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CudaResult;
            /// Frees device memory; blocks behind a stream that waits.
            fn cuMemFree_v2(address: CUdeviceptr) -> CudaResult;
            /// Free and total device memory in bytes.
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CudaResult;
            /// Allocates pinned host memory; `CU_MEMHOSTALLOC_*`.
            fn cuMemHostAlloc(
                pointer: *mut *mut c_void,
                bytes: usize,
                flags: c_uint,
            ) -> CudaResult;
            /// Frees pinned host memory; blocks behind a stream that waits.
            fn cuMemFreeHost(pointer: *mut c_void) -> CudaResult;
            /// Pins host memory; `CU_MEMHOSTREGISTER_*`.
            fn cuMemHostRegister_v2(
                pointer: *mut c_void,
                bytes: usize,
                flags: c_uint,
            ) -> CudaResult;
            /// Unpins host memory; blocks behind a stream that waits.
            fn cuMemHostUnregister(pointer: *mut c_void) -> CudaResult;
            /// The device's address of pinned host memory; `flags` is 0.
            fn cuMemHostGetDevicePointer_v2(
                address: *mut CUdeviceptr,
                pointer: *mut c_void,
                flags: c_uint,
            ) -> CudaResult;
            /// The start and the length of the allocation that contains an address.
            fn cuMemGetAddressRange_v2(
                base: *mut CUdeviceptr,
                bytes: *mut usize,
                address: CUdeviceptr,
            ) -> CudaResult;
            /// One attribute of the memory at an address.
            fn cuPointerGetAttribute(
                value: *mut c_void,
                attribute: CUpointer_attribute,
                address: CUdeviceptr,
            ) -> CudaResult;
            /// Sets one attribute of the allocation that contains an address.
            fn cuPointerSetAttribute(
                value: *const c_void,
                attribute: CUpointer_attribute,
                address: CUdeviceptr,
            ) -> CudaResult;

            /// Copies between any two addresses.
            fn cuMemcpyAsync(
                to: CUdeviceptr,
                from: CUdeviceptr,
                bytes: usize,
                stream: CUstream,
            ) -> CudaResult;
            /// Copies from host memory.
            fn cuMemcpyHtoDAsync_v2(
                to: CUdeviceptr,
                from: *const c_void,
                bytes: usize,
                stream: CUstream,
            ) -> CudaResult;
            /// Copies to host memory.
            fn cuMemcpyDtoHAsync_v2(
                to: *mut c_void,
                from: CUdeviceptr,
                bytes: usize,
                stream: CUstream,
            ) -> CudaResult;
            /// Sets bytes.
            fn cuMemsetD8Async(
                to: CUdeviceptr,
                value: u8,
                bytes: usize,
                stream: CUstream,
            ) -> CudaResult;

            /// Creates a stream; `CU_STREAM_*`.
            fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CudaResult;
            /// Destroys a stream; the work in it still completes.
            fn cuStreamDestroy_v2(stream: CUstream) -> CudaResult;
            /// Returns success if all work of the stream completed, else `NOT_READY`.
            fn cuStreamQuery(stream: CUstream) -> CudaResult;
            /// The context of a stream.
            fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CudaResult;
            /// The capture status of a stream.
            fn cuStreamIsCapturing(
                stream: CUstream,
                status: *mut CUstreamCaptureStatus,
            ) -> CudaResult;
            /// Makes a stream wait for an event; `flags` is 0.
            fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CudaResult;
            /// Creates an event; `CU_EVENT_*`.
            fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CudaResult;
            /// Destroys an event.
            fn cuEventDestroy_v2(event: CUevent) -> CudaResult;
            /// Records an event on a stream.
            fn cuEventRecord(event: CUevent, stream: CUstream) -> CudaResult;
            /// The time between two events with timing that have completed, in milliseconds.
            fn cuEventElapsedTime(ms: *mut f32, start: CUevent, end: CUevent) -> CudaResult;
            /// Returns success if the event completed, else `NOT_READY`.
            fn cuEventQuery(event: CUevent) -> CudaResult;

            /// Loads a module from PTX (NUL-terminated), a cubin or a fatbin; blocks behind a
            /// stream that waits.
            fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CudaResult;
            /// The kernel of a module with this name.
            fn cuModuleGetFunction(
                function: *mut CUfunction,
                module: CUmodule,
                name: *const c_char,
            ) -> CudaResult;
            /// One attribute of a kernel. Loads the kernel if it is not loaded.
            fn cuFuncGetAttribute(
                value: *mut c_int,
                attribute: CUfunction_attribute,
                function: CUfunction,
            ) -> CudaResult;
            /// Launches a kernel.
            fn cuLaunchKernel(
                function: CUfunction,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared_bytes: c_uint,
                stream: CUstream,
                params: *mut *mut c_void,
                extra: *mut *mut c_void,
            ) -> CudaResult;
            /// Enqueues memory operations, fewer than 256; `flags` is 0.
            fn cuStreamBatchMemOp_v2(
                stream: CUstream,
                count: c_uint,
                params: *mut CUstreamBatchMemOpParams,
                flags: c_uint,
            ) -> CudaResult;

            /// Begins a capture.
            fn cuStreamBeginCapture_v2(
                stream: CUstream,
                mode: CUstreamCaptureMode,
            ) -> CudaResult;
            /// Ends a capture.
            fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CudaResult;
            /// Makes a graph that streams can launch; `flags` is 0.
            fn cuGraphInstantiateWithFlags(
                exec: *mut CUgraphExec,
                graph: CUgraph,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Enqueues the operations of a graph, behind its earlier launches on any stream. Calls
            /// with the same graph must not overlap.
            fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CudaResult;

            /// The IPC handle of a device allocation, for another process.
            fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CudaResult;
            /// Maps another process's allocation; `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
            fn cuIpcOpenMemHandle_v2(
                address: *mut CUdeviceptr,
                handle: CUipcMemHandle,
                flags: c_uint,
            ) -> CudaResult;
            /// Unmaps an allocation of another process; blocks behind a stream that waits.
            fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CudaResult;
        }
        optional {
            /// The UUID of the device; a MIG slice has its own UUID.
            fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CudaResult;
            /// Whether `device` can access memory of `peer`: 0 or 1.
            fn cuDeviceCanAccessPeer(
                can: *mut c_int,
                device: CUdevice,
                peer: CUdevice,
            ) -> CudaResult;
            /// The identifier of the context, unique in the process.
            fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> CudaResult;
            /// Copies rows. The driver uses a copy engine for copies of several rows, whatever
            /// their size.
            fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> CudaResult;
            /// Loads a kernel now.
            fn cuFuncLoad(function: CUfunction) -> CudaResult;
            /// Sets an attribute of a kernel.
            fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: c_int) -> CudaResult;
            /// Launches a kernel with attributes.
            fn cuLaunchKernelEx(
                config: *const CUlaunchConfig,
                function: CUfunction,
                params: *mut *mut c_void,
                extra: *mut *mut c_void,
            ) -> CudaResult;

            /// Creates physical memory; `flags` is 0.
            fn cuMemCreate(
                handle: *mut CUmemGenericAllocationHandle,
                bytes: usize,
                prop: *const CUmemAllocationProp,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Releases physical memory; it is freed once it is unmapped.
            fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaResult;
            /// Reserves a range of addresses.
            fn cuMemAddressReserve(
                address: *mut CUdeviceptr,
                bytes: usize,
                alignment: usize,
                hint: CUdeviceptr,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Frees a reserved range of addresses.
            fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CudaResult;
            /// Maps physical memory to reserved addresses.
            fn cuMemMap(
                address: CUdeviceptr,
                bytes: usize,
                offset: usize,
                handle: CUmemGenericAllocationHandle,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Unmaps physical memory.
            fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CudaResult;
            /// Sets the access rights of devices to mapped memory.
            fn cuMemSetAccess(
                address: CUdeviceptr,
                bytes: usize,
                access: *const CUmemAccessDesc,
                count: usize,
            ) -> CudaResult;
            /// Exports physical memory; for a file descriptor, `shareable` points to an int.
            fn cuMemExportToShareableHandle(
                shareable: *mut c_void,
                handle: CUmemGenericAllocationHandle,
                kind: CUmemAllocationHandleType,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Imports physical memory; a file descriptor is passed as the pointer's value.
            fn cuMemImportFromShareableHandle(
                handle: *mut CUmemGenericAllocationHandle,
                shareable: *mut c_void,
                kind: CUmemAllocationHandleType,
            ) -> CudaResult;
            /// The granularity of physical allocations, in bytes.
            fn cuMemGetAllocationGranularity(
                bytes: *mut usize,
                prop: *const CUmemAllocationProp,
                option: CUmemAllocationGranularity_flags,
            ) -> CudaResult;
            /// Exports an address range; for a dma-buf, `handle` points to an int.
            fn cuMemGetHandleForAddressRange(
                handle: *mut c_void,
                address: CUdeviceptr,
                bytes: usize,
                kind: CUmemRangeHandleType,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Blocks until remote writes that have arrived are visible.
            fn cuFlushGPUDirectRDMAWrites(
                target: CUflushGPUDirectRDMAWritesTarget,
                scope: CUflushGPUDirectRDMAWritesScope,
            ) -> CudaResult;

            /// Exchanges the capture mode of the calling thread.
            fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CudaResult;
            /// Destroys a graph.
            fn cuGraphDestroy(graph: CUgraph) -> CudaResult;
            /// The number of nodes of a graph, and up to `count` of them; none if `nodes` is null.
            fn cuGraphGetNodes(
                graph: CUgraph,
                nodes: *mut CUgraphNode,
                count: *mut usize,
            ) -> CudaResult;
            /// The type of a node.
            fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) -> CudaResult;
            /// Enqueues the preparation of a graph for its launches.
            fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> CudaResult;
            /// Destroys an executable graph; a launch that runs still runs to its end.
            fn cuGraphExecDestroy(exec: CUgraphExec) -> CudaResult;

            /// Enqueues one 32-bit wait.
            fn cuStreamWaitValue32_v2(
                stream: CUstream,
                address: CUdeviceptr,
                value: u32,
                flags: c_uint,
            ) -> CudaResult;
        }
    }
}
