//! NVIDIA's CUDA driver: [`Cuda`], the table of libcuda.so.1.
//!
//! Names and numbers are those of cuda.h 13.0. Functions stand under the names that the library
//! exports, so `cuMemAlloc_v2` and not `cuMemAlloc`: the plain name, where both exist, is an
//! older function.

pub mod consts;
mod result;
pub mod types;

pub use result::CudaResult;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use types::*;

crate::dl_api! {
    /// The functions of the CUDA driver.
    ///
    /// Required is what a driver of CUDA 11.7 has and gdsync cannot do without; what is optional
    /// is newer, or belongs to one capability alone.
    ///
    /// # Safety
    /// Every function is as the vendor documents it; addresses must be valid for what it reads
    /// and writes, and most need a current context. See also what blocks behind a stream that
    /// waits: `cuMemFree_v2`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuIpcCloseMemHandle`,
    /// `cuModuleLoadData` and `cuModuleUnload`.
    pub struct Cuda("CUDA driver") {
        sonames: ["libcuda.so.1"],
        env: "GDS_CUDA_LIB",
        required {
            /// Starts the driver; `flags` is 0.
            fn cuInit(flags: c_uint) -> CudaResult;
            /// The CUDA version of the driver, 1000 * major + 10 * minor.
            fn cuDriverGetVersion(version: *mut c_int) -> CudaResult;
            /// The name of a code, a static string.
            fn cuGetErrorName(error: CudaResult, name: *mut *const c_char) -> CudaResult;
            /// What a code means, a static string.
            fn cuGetErrorString(error: CudaResult, text: *mut *const c_char) -> CudaResult;

            /// How many devices there are.
            fn cuDeviceGetCount(count: *mut c_int) -> CudaResult;
            /// The device of an ordinal.
            fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CudaResult;
            /// Its name, NUL-terminated within `len`.
            fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CudaResult;
            /// One of its attributes.
            fn cuDeviceGetAttribute(
                value: *mut c_int,
                attribute: CUdevice_attribute,
                device: CUdevice,
            ) -> CudaResult;
            /// Its PCI address as `domain:bus:device.function`, NUL-terminated within `len`.
            fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) -> CudaResult;
            /// Bytes of its memory.
            fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CudaResult;

            /// Retains the device's primary context.
            fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CudaResult;
            /// Gives it back.
            fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CudaResult;
            /// Makes a context and pushes it on the thread's stack.
            fn cuCtxCreate_v2(
                context: *mut CUcontext,
                flags: c_uint,
                device: CUdevice,
            ) -> CudaResult;
            /// Destroys a context and all it holds.
            fn cuCtxDestroy_v2(context: CUcontext) -> CudaResult;
            /// The thread's current context, or null.
            fn cuCtxGetCurrent(context: *mut CUcontext) -> CudaResult;
            /// Replaces the thread's current context.
            fn cuCtxSetCurrent(context: CUcontext) -> CudaResult;
            /// Pushes a context on the thread's stack.
            fn cuCtxPushCurrent_v2(context: CUcontext) -> CudaResult;
            /// Pops it.
            fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CudaResult;
            /// The device of the current context.
            fn cuCtxGetDevice(device: *mut CUdevice) -> CudaResult;

            /// Allocates device memory.
            fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CudaResult;
            /// Frees it; blocks behind a stream that waits.
            fn cuMemFree_v2(address: CUdeviceptr) -> CudaResult;
            /// Bytes free and in all.
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CudaResult;
            /// Allocates pinned host memory; `CU_MEMHOSTALLOC_*`.
            fn cuMemHostAlloc(
                pointer: *mut *mut c_void,
                bytes: usize,
                flags: c_uint,
            ) -> CudaResult;
            /// Frees it; blocks behind a stream that waits.
            fn cuMemFreeHost(pointer: *mut c_void) -> CudaResult;
            /// Pins host memory; `CU_MEMHOSTREGISTER_*`.
            fn cuMemHostRegister_v2(
                pointer: *mut c_void,
                bytes: usize,
                flags: c_uint,
            ) -> CudaResult;
            /// Unpins it; blocks behind a stream that waits.
            fn cuMemHostUnregister(pointer: *mut c_void) -> CudaResult;
            /// The device's address of pinned host memory; `flags` is 0.
            fn cuMemHostGetDevicePointer_v2(
                address: *mut CUdeviceptr,
                pointer: *mut c_void,
                flags: c_uint,
            ) -> CudaResult;
            /// The allocation around an address.
            fn cuMemGetAddressRange_v2(
                base: *mut CUdeviceptr,
                bytes: *mut usize,
                address: CUdeviceptr,
            ) -> CudaResult;
            /// One attribute of an address.
            fn cuPointerGetAttribute(
                value: *mut c_void,
                attribute: CUpointer_attribute,
                address: CUdeviceptr,
            ) -> CudaResult;
            /// Sets one attribute of the allocation of an address.
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

            /// Makes a stream; `CU_STREAM_*`.
            fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CudaResult;
            /// Destroys it; what was enqueued is still done.
            fn cuStreamDestroy_v2(stream: CUstream) -> CudaResult;
            /// Success if all is done, else `NOT_READY`.
            fn cuStreamQuery(stream: CUstream) -> CudaResult;
            /// The context of a stream.
            fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CudaResult;
            /// Whether it captures.
            fn cuStreamIsCapturing(
                stream: CUstream,
                status: *mut CUstreamCaptureStatus,
            ) -> CudaResult;
            /// Lets a stream wait for an event; `flags` is 0.
            fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CudaResult;
            /// Makes an event; `CU_EVENT_*`.
            fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CudaResult;
            /// Destroys it.
            fn cuEventDestroy_v2(event: CUevent) -> CudaResult;
            /// Records it on a stream.
            fn cuEventRecord(event: CUevent, stream: CUstream) -> CudaResult;
            /// Success if it has happened, else `NOT_READY`.
            fn cuEventQuery(event: CUevent) -> CudaResult;

            /// Loads PTX (NUL-terminated), a cubin or a fatbin; blocks behind a stream that
            /// waits.
            fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CudaResult;
            /// Unloads it; blocks behind a stream that waits.
            fn cuModuleUnload(module: CUmodule) -> CudaResult;
            /// A kernel by its name.
            fn cuModuleGetFunction(
                function: *mut CUfunction,
                module: CUmodule,
                name: *const c_char,
            ) -> CudaResult;
            /// One attribute of a kernel, which is loaded if it was not.
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

            /// A name of a device allocation for another process.
            fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CudaResult;
            /// Maps another process's allocation; `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
            fn cuIpcOpenMemHandle_v2(
                address: *mut CUdeviceptr,
                handle: CUipcMemHandle,
                flags: c_uint,
            ) -> CudaResult;
            /// Unmaps it; blocks behind a stream that waits.
            fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CudaResult;
        }
        optional {
            /// The device's UUID, of a MIG slice its own.
            fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CudaResult;
            /// A number of the stream, unique in the process.
            fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong) -> CudaResult;
            /// A number of the context, unique in the process.
            fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> CudaResult;
            /// Copies rows. The driver gives copies of several rows to a copy engine, however
            /// small they are.
            fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> CudaResult;
            /// Loads a kernel now.
            fn cuFuncLoad(function: CUfunction) -> CudaResult;

            /// Makes physical memory; `flags` is 0.
            fn cuMemCreate(
                handle: *mut CUmemGenericAllocationHandle,
                bytes: usize,
                prop: *const CUmemAllocationProp,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Releases it, once it is unmapped.
            fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaResult;
            /// Reserves addresses.
            fn cuMemAddressReserve(
                address: *mut CUdeviceptr,
                bytes: usize,
                alignment: usize,
                hint: CUdeviceptr,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Gives addresses back.
            fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CudaResult;
            /// Maps physical memory to reserved addresses.
            fn cuMemMap(
                address: CUdeviceptr,
                bytes: usize,
                offset: usize,
                handle: CUmemGenericAllocationHandle,
                flags: c_ulonglong,
            ) -> CudaResult;
            /// Unmaps it.
            fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CudaResult;
            /// Says who may access mapped memory.
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
            /// Imports it; a file descriptor is passed as the pointer's value.
            fn cuMemImportFromShareableHandle(
                handle: *mut CUmemGenericAllocationHandle,
                shareable: *mut c_void,
                kind: CUmemAllocationHandleType,
            ) -> CudaResult;
            /// The granularity of such allocations, in bytes.
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

            /// Swaps the calling thread's capture mode with the one pointed to.
            fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CudaResult;
            /// Begins a capture.
            fn cuStreamBeginCapture_v2(
                stream: CUstream,
                mode: CUstreamCaptureMode,
            ) -> CudaResult;
            /// Ends it.
            fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CudaResult;
            /// Destroys a graph.
            fn cuGraphDestroy(graph: CUgraph) -> CudaResult;

            /// Enqueues one 32-bit write.
            fn cuStreamWriteValue32_v2(
                stream: CUstream,
                address: CUdeviceptr,
                value: u32,
                flags: c_uint,
            ) -> CudaResult;
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
