//! AMD's HIP runtime: [`Hip`], the table of libamdhip64.so; [`Hsa`], what of libhsa-runtime64.so
//! exports memory to NICs; [`HipRtc`], the compiler.
//!
//! Names and numbers are those of HIP's headers. Required functions are those that gdsync needs and
//! that HIP 5.2 has; functions of newer releases are optional. Of the structs of 5.2, 6 and 7, only
//! the layouts that gdsync uses are declared.

pub mod consts;
mod result;
pub mod types;

pub use result::HipResult;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use types::*;

/// The first version of HIP 6 as `hipRuntimeGetVersion` returns it: 10000000 * major + 100000 *
/// minor + patch.
pub const VERSION_6: c_int = 60_000_000;

crate::dl_api! {
    /// The functions of the HIP runtime.
    ///
    /// # Safety
    /// The vendor's documentation of each function applies. Addresses must be valid for the reads
    /// and writes of the function. These functions block until the streams of the device are idle:
    /// `hipFree`, `hipHostUnregister`, `hipIpcCloseMemHandle` and
    /// `hipModuleLoadData`.
    pub struct Hip("HIP runtime") {
        sonames: ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"],
        env: "GDS_HIP_LIB",
        required {
            /// Initialises the runtime; `flags` is 0.
            fn hipInit(flags: c_uint) -> HipResult;
            /// The version of the library, 10000000 * major + 100000 * minor + patch.
            fn hipRuntimeGetVersion(version: *mut c_int) -> HipResult;
            /// The name of a result code, a static string.
            fn hipGetErrorName(error: HipResult) -> *const c_char;
            /// The description of a result code, a static string.
            fn hipGetErrorString(error: HipResult) -> *const c_char;

            /// The number of devices; `hipErrorNoDevice` if there is none.
            fn hipGetDeviceCount(count: *mut c_int) -> HipResult;
            /// The calling thread's device.
            fn hipGetDevice(device: *mut c_int) -> HipResult;
            /// Sets the calling thread's device. Every device has one context, so there is no other state.
            fn hipSetDevice(device: c_int) -> HipResult;
            /// The device's name, NUL-terminated within `len` bytes.
            fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t) -> HipResult;
            /// The value of one device attribute.
            fn hipDeviceGetAttribute(
                value: *mut c_int,
                attribute: hipDeviceAttribute_t,
                device: c_int,
            ) -> HipResult;
            /// Its PCI address as `domain:bus:device.function`, NUL-terminated within `len`.
            fn hipDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> HipResult;
            /// The device's memory in bytes.
            fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> HipResult;
            /// Whether `device` can access memory of `peer`: 0 or 1.
            fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> HipResult;
            /// Lets the calling thread's device access memory of `peer`; `flags` is 0.
            fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> HipResult;

            /// Allocates coarse-grained device memory.
            fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> HipResult;
            /// Allocates device memory; `hipDeviceMalloc*` or `hipMallocSignalMemory`.
            fn hipExtMallocWithFlags(
                pointer: *mut *mut c_void,
                bytes: usize,
                flags: c_uint,
            ) -> HipResult;
            /// Frees device memory; blocks until the device's streams are idle.
            fn hipFree(pointer: *mut c_void) -> HipResult;
            /// Allocates pinned host memory; `hipHostMalloc*`.
            fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) -> HipResult;
            /// Pins host memory; `hipHostRegister*`.
            fn hipHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint) -> HipResult;
            /// Unpins host memory; blocks until the device's streams are idle.
            fn hipHostUnregister(pointer: *mut c_void) -> HipResult;
            /// The device's address of pinned host memory; `flags` is 0.
            fn hipHostGetDevicePointer(
                address: *mut *mut c_void,
                pointer: *mut c_void,
                flags: c_uint,
            ) -> HipResult;
            /// The start and the length of the allocation that contains an address.
            fn hipMemGetAddressRange(
                base: *mut hipDeviceptr_t,
                bytes: *mut usize,
                address: hipDeviceptr_t,
            ) -> HipResult;
            /// What the runtime knows about an address.
            fn hipPointerGetAttributes(
                attributes: *mut hipPointerAttribute_t,
                pointer: *const c_void,
            ) -> HipResult;
            /// One attribute of the memory at an address.
            fn hipPointerGetAttribute(
                value: *mut c_void,
                attribute: hipPointer_attribute,
                address: hipDeviceptr_t,
            ) -> HipResult;

            /// Copies between any two addresses.
            fn hipMemcpyAsync(
                to: *mut c_void,
                from: *const c_void,
                bytes: usize,
                kind: hipMemcpyKind,
                stream: hipStream_t,
            ) -> HipResult;
            /// Copies from host memory.
            fn hipMemcpyHtoDAsync(
                to: hipDeviceptr_t,
                from: *const c_void,
                bytes: usize,
                stream: hipStream_t,
            ) -> HipResult;
            /// Copies to host memory.
            fn hipMemcpyDtoHAsync(
                to: *mut c_void,
                from: hipDeviceptr_t,
                bytes: usize,
                stream: hipStream_t,
            ) -> HipResult;
            /// Sets bytes.
            fn hipMemsetD8Async(
                to: hipDeviceptr_t,
                value: u8,
                bytes: usize,
                stream: hipStream_t,
            ) -> HipResult;

            /// Creates a stream on the calling thread's device; `hipStreamDefault` or `hipStreamNonBlocking`.
            fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) -> HipResult;
            /// The least and the greatest priority of streams; a lower number is a higher priority.
            fn hipDeviceGetStreamPriorityRange(
                least: *mut c_int,
                greatest: *mut c_int,
            ) -> HipResult;
            /// As `hipStreamCreateWithFlags`, with a priority. Streams of different priorities share no
            /// hardware queue.
            fn hipStreamCreateWithPriority(
                stream: *mut hipStream_t,
                flags: c_uint,
                priority: c_int,
            ) -> HipResult;
            /// Destroys a stream; may block until its work has ended.
            fn hipStreamDestroy(stream: hipStream_t) -> HipResult;
            /// Returns success if all work of the stream completed, else `hipErrorNotReady`.
            fn hipStreamQuery(stream: hipStream_t) -> HipResult;
            /// The capture status of a stream.
            fn hipStreamIsCapturing(
                stream: hipStream_t,
                status: *mut hipStreamCaptureStatus,
            ) -> HipResult;
            /// Makes a stream wait for an event; `flags` is 0.
            fn hipStreamWaitEvent(
                stream: hipStream_t,
                event: hipEvent_t,
                flags: c_uint,
            ) -> HipResult;
            /// Enqueues a 32-bit wait; `hipStreamWaitValue*`. Releases before 6, and later ones with
            /// `GPU_STREAMOPS_CP_WAIT=1`, may refuse memory other than of `hipMallocSignalMemory`.
            fn hipStreamWaitValue32(
                stream: hipStream_t,
                address: *mut c_void,
                value: u32,
                flags: c_uint,
                mask: u32,
            ) -> HipResult;
            /// Enqueues a 64-bit wait.
            fn hipStreamWaitValue64(
                stream: hipStream_t,
                address: *mut c_void,
                value: u64,
                flags: c_uint,
                mask: u64,
            ) -> HipResult;
            /// Enqueues a 32-bit write; `flags` is 0.
            fn hipStreamWriteValue32(
                stream: hipStream_t,
                address: *mut c_void,
                value: u32,
                flags: c_uint,
            ) -> HipResult;
            /// Enqueues a 64-bit write; `flags` is 0.
            fn hipStreamWriteValue64(
                stream: hipStream_t,
                address: *mut c_void,
                value: u64,
                flags: c_uint,
            ) -> HipResult;
            /// Creates an event; `hipEvent*`.
            fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> HipResult;
            /// Destroys an event.
            fn hipEventDestroy(event: hipEvent_t) -> HipResult;
            /// Records an event on a stream.
            fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> HipResult;
            /// Returns success if the event completed, else `hipErrorNotReady`.
            fn hipEventQuery(event: hipEvent_t) -> HipResult;
            /// The time between two events with timing that have completed, in milliseconds.
            fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, end: hipEvent_t) -> HipResult;

            /// Loads a code object or a bundle of them; blocks until the device's streams are idle.
            fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> HipResult;
            /// The kernel of a module with this name.
            fn hipModuleGetFunction(
                function: *mut hipFunction_t,
                module: hipModule_t,
                name: *const c_char,
            ) -> HipResult;
            /// Launches a kernel.
            fn hipModuleLaunchKernel(
                function: hipFunction_t,
                grid_x: c_uint,
                grid_y: c_uint,
                grid_z: c_uint,
                block_x: c_uint,
                block_y: c_uint,
                block_z: c_uint,
                shared_bytes: c_uint,
                stream: hipStream_t,
                params: *mut *mut c_void,
                extra: *mut *mut c_void,
            ) -> HipResult;

            /// Begins a capture.
            fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) -> HipResult;
            /// Ends a capture.
            fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t) -> HipResult;
            /// Makes a graph that streams can launch; `flags` is 0.
            fn hipGraphInstantiateWithFlags(
                exec: *mut hipGraphExec_t,
                graph: hipGraph_t,
                flags: c_ulonglong,
            ) -> HipResult;
            /// Enqueues the operations of a graph. Calls with the same graph must not overlap.
            fn hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t) -> HipResult;

            /// The IPC handle of a device allocation, for another process.
            fn hipIpcGetMemHandle(
                handle: *mut hipIpcMemHandle_t,
                pointer: *mut c_void,
            ) -> HipResult;
            /// Maps another process's allocation; `hipIpcMemLazyEnablePeerAccess`.
            fn hipIpcOpenMemHandle(
                pointer: *mut *mut c_void,
                handle: hipIpcMemHandle_t,
                flags: c_uint,
            ) -> HipResult;
            /// Unmaps an allocation of another process; blocks until the device's streams are idle.
            fn hipIpcCloseMemHandle(pointer: *mut c_void) -> HipResult;
        }
        optional {
            /// The UUID of the device.
            fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t) -> HipResult;
            /// The properties of the device in the layout of HIP 6; only HIP 6 and later have it.
            fn hipGetDevicePropertiesR0600(
                properties: *mut hipDeviceProp_tR0600,
                device: c_int,
            ) -> HipResult;
            /// The device of a stream.
            fn hipStreamGetDevice(stream: hipStream_t, device: *mut hipDevice_t) -> HipResult;

            /// Creates physical memory; `flags` is 0.
            fn hipMemCreate(
                handle: *mut hipMemGenericAllocationHandle_t,
                bytes: usize,
                prop: *const hipMemAllocationProp,
                flags: c_ulonglong,
            ) -> HipResult;
            /// Releases physical memory; it is freed once it is unmapped.
            fn hipMemRelease(handle: hipMemGenericAllocationHandle_t) -> HipResult;
            /// Reserves a range of addresses.
            fn hipMemAddressReserve(
                address: *mut *mut c_void,
                bytes: usize,
                alignment: usize,
                hint: *mut c_void,
                flags: c_ulonglong,
            ) -> HipResult;
            /// Frees a reserved range of addresses.
            fn hipMemAddressFree(address: *mut c_void, bytes: usize) -> HipResult;
            /// Maps physical memory to reserved addresses.
            fn hipMemMap(
                address: *mut c_void,
                bytes: usize,
                offset: usize,
                handle: hipMemGenericAllocationHandle_t,
                flags: c_ulonglong,
            ) -> HipResult;
            /// Unmaps physical memory.
            fn hipMemUnmap(address: *mut c_void, bytes: usize) -> HipResult;
            /// Sets the access rights of devices to mapped memory.
            fn hipMemSetAccess(
                address: *mut c_void,
                bytes: usize,
                access: *const hipMemAccessDesc,
                count: usize,
            ) -> HipResult;
            /// Exports physical memory; for a file descriptor, `shareable` points to an int.
            fn hipMemExportToShareableHandle(
                shareable: *mut c_void,
                handle: hipMemGenericAllocationHandle_t,
                kind: hipMemAllocationHandleType,
                flags: c_ulonglong,
            ) -> HipResult;
            /// Imports physical memory; a file descriptor is passed as the pointer's value.
            fn hipMemImportFromShareableHandle(
                handle: *mut hipMemGenericAllocationHandle_t,
                shareable: *mut c_void,
                kind: hipMemAllocationHandleType,
            ) -> HipResult;
            /// The granularity of physical allocations, in bytes.
            fn hipMemGetAllocationGranularity(
                bytes: *mut usize,
                prop: *const hipMemAllocationProp,
                option: hipMemAllocationGranularity_flags,
            ) -> HipResult;
            /// Exports an address range; for a dma-buf, `handle` points to an int.
            fn hipMemGetHandleForAddressRange(
                handle: *mut c_void,
                address: hipDeviceptr_t,
                bytes: usize,
                kind: hipMemRangeHandleType,
                flags: c_ulonglong,
            ) -> HipResult;

            /// Exchanges the capture mode of the calling thread.
            fn hipThreadExchangeStreamCaptureMode(mode: *mut hipStreamCaptureMode) -> HipResult;
            /// Destroys a graph.
            fn hipGraphDestroy(graph: hipGraph_t) -> HipResult;
            /// The number of nodes of a graph, and up to `count` of them; none if `nodes` is null.
            fn hipGraphGetNodes(
                graph: hipGraph_t,
                nodes: *mut hipGraphNode_t,
                count: *mut usize,
            ) -> HipResult;
            /// Destroys an executable graph.
            fn hipGraphExecDestroy(exec: hipGraphExec_t) -> HipResult;
        }
    }
}

crate::dl_api! {
    /// The functions of the HSA runtime, below HIP, that export memory to NICs.
    ///
    /// # Safety
    /// The vendor's documentation of each function applies.
    pub struct Hsa("HSA runtime") {
        sonames: ["libhsa-runtime64.so.1"],
        env: "GDS_HSA_LIB",
        required {
            /// A dma-buf of the allocation that contains a range, and the offset of the range in it.
            fn hsa_amd_portable_export_dmabuf(
                pointer: *const c_void,
                bytes: usize,
                dmabuf: *mut c_int,
                offset: *mut u64,
            ) -> hsa_status_t;
        }
        optional {}
    }
}

crate::dl_api! {
    /// The functions of HIPRTC, which compiles source to code objects.
    ///
    /// # Safety
    /// The vendor's documentation of each function applies.
    pub struct HipRtc("HIPRTC") {
        sonames: ["libhiprtc.so.7", "libhiprtc.so.6"],
        env: "GDS_HIPRTC_LIB",
        required {
            /// The version.
            fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult;
            /// Makes a program of a source and of headers.
            fn hiprtcCreateProgram(
                program: *mut hiprtcProgram,
                source: *const c_char,
                name: *const c_char,
                headers: c_int,
                texts: *const *const c_char,
                names: *const *const c_char,
            ) -> hiprtcResult;
            /// Compiles it with options such as `--offload-arch=gfx942`.
            fn hiprtcCompileProgram(
                program: hiprtcProgram,
                options: c_int,
                texts: *const *const c_char,
            ) -> hiprtcResult;
            /// The length of the compiler's messages with the final NUL.
            fn hiprtcGetProgramLogSize(program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult;
            /// The compiler's messages.
            fn hiprtcGetProgramLog(program: hiprtcProgram, log: *mut c_char) -> hiprtcResult;
            /// The length of the code object in bytes.
            fn hiprtcGetCodeSize(program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult;
            /// The code object.
            fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult;
            /// Destroys a program and sets it to null.
            fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult;
            /// The description of a result code, a static string.
            fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char;
        }
        optional {}
    }
}
