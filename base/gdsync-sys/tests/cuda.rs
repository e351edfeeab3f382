//! The CUDA table against libraries made from its own list of names, and against C code with the
//! structs of cuda.h.

mod shared;

use gdsync_sys::LoadError;
use gdsync_sys::cuda::consts::*;
use gdsync_sys::cuda::types::*;
use gdsync_sys::cuda::{Cuda, CudaResult};
use std::path::{Path, PathBuf};

fn library(name: &str, source: &str) -> PathBuf {
    shared::compile(Path::new(env!("CARGO_TARGET_TMPDIR")), name, source)
}

/// A function for each name, which returns a code that the table does not list.
fn functions<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names
        .into_iter()
        .map(|name| format!("int {name}(void) {{ return 4711; }}\n"))
        .collect()
}

#[test]
fn library_with_the_required_functions_only_is_accepted() {
    let path = library("cuda-required.so", &functions(Cuda::REQUIRED));
    // SAFETY: only cuInit is called, which ignores what it is given.
    let cuda = unsafe { Cuda::load_from([&path]) }.expect("all required functions are there");
    assert!(cuda.cuMemCreate.is_none() && cuda.cuStreamWaitValue32_v2.is_none());
    // SAFETY: the function was made above and touches nothing.
    let code = unsafe { (cuda.cuInit)(0) };
    assert_eq!(code, CudaResult(4711));
    assert_eq!(code.to_string(), "CUDA error 4711");
    assert!(!code.is_success() && !code.is_sticky() && code.name().is_none());
}

#[test]
fn functions_are_looked_up_by_their_exported_names() {
    let all = functions(Cuda::REQUIRED) + &functions(Cuda::OPTIONAL);
    let path = library("cuda-all.so", &all);
    // SAFETY: nothing is called.
    let cuda = unsafe { Cuda::load_from([&path]) }.expect("all functions are there");
    assert!(cuda.cuDeviceGetUuid_v2.is_some() && cuda.cuMemGetHandleForAddressRange.is_some());

    // Where cuda.h renames a function, the plain name is an older one of another type.
    let header_renames = [
        "cuDeviceTotalMem",
        "cuDevicePrimaryCtxRelease",
        "cuCtxCreate",
        "cuCtxDestroy",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuMemAlloc",
        "cuMemFree",
        "cuMemGetInfo",
        "cuMemHostRegister",
        "cuMemHostGetDevicePointer",
        "cuMemGetAddressRange",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuStreamBatchMemOp",
        "cuIpcOpenMemHandle",
        "cuStreamBeginCapture",
        "cuStreamWriteValue32",
        "cuStreamWaitValue32",
        "cuDeviceGetUuid",
    ];
    for name in Cuda::REQUIRED.iter().chain(Cuda::OPTIONAL) {
        assert!(!header_renames.contains(name), "{name} is the older one");
    }
}

#[test]
fn old_driver_is_refused_and_the_missing_function_is_named() {
    let names = Cuda::REQUIRED
        .iter()
        .filter(|n| **n != "cuStreamBatchMemOp_v2");
    let path = library("cuda-old.so", &functions(names));
    // SAFETY: nothing is called.
    let error = unsafe { Cuda::load_from([&path]) }.expect_err("a function is missing");
    assert_eq!(
        error,
        LoadError::MissingSymbol {
            api: "CUDA driver",
            library: path,
            symbol: "cuStreamBatchMemOp_v2",
        }
    );
}

/// The structs of cuda.h, and functions that read their arguments.
const STRUCTS: &str = r"
typedef unsigned long long u64;
typedef union {
    int operation;
    struct { int operation; u64 address; union { unsigned value; u64 value64; }; unsigned flags;
             u64 alias; } waitValue;
    struct { int operation; unsigned flags; } memoryBarrier;
    u64 pad[6];
} Op;
typedef struct { char reserved[64]; } Ipc;
typedef struct { int type; int id; } Location;
typedef struct {
    int type; int requestedHandleTypes; Location location; void *win32;
    struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage;
             unsigned char reserved[4]; } allocFlags;
} Prop;
typedef struct { Location location; int flags; } Access;
typedef struct { int id; char pad[8 - sizeof(int)]; union { char pad[64]; int allowed; } value; } Attribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void *hStream; Attribute *attrs; unsigned numAttrs;
} Config;

int cuStreamBatchMemOp_v2(void *stream, unsigned count, Op *ops, unsigned flags) {
    if ((u64)stream != 1 || count != 4 || flags) return 1;
    if (ops[0].operation != 2 || ops[0].waitValue.address != 0x1122334455667788ull ||
        ops[0].waitValue.value != 0xfffffffe || ops[0].waitValue.flags != 0) return 2;
    if (ops[1].operation != 4 || ops[1].waitValue.address != 16 ||
        ops[1].waitValue.value64 != 0x8000000000000001ull ||
        ops[1].waitValue.flags != (3u | 1u << 30)) return 3;
    if (ops[2].operation != 6 || ops[2].memoryBarrier.flags != 1) return 4;
    if (ops[3].operation != 3 || ops[3].memoryBarrier.flags != 0) return 5;
    return 0;
}
int cuIpcOpenMemHandle_v2(u64 *address, Ipc handle, unsigned flags) {
    for (int i = 0; i < 64; i++) if (handle.reserved[i] != i) return 1;
    if (flags != 1) return 2;
    *address = 0xabcd;
    return 0;
}
int cuMemCreate(u64 *handle, unsigned long bytes, const Prop *prop, u64 flags) {
    if (bytes != 1 << 21 || flags || prop->type != 1 || prop->requestedHandleTypes != 8 ||
        prop->location.type != 1 || prop->location.id != 7 || prop->win32 ||
        prop->allocFlags.compressionType || prop->allocFlags.gpuDirectRDMACapable != 1) return 1;
    *handle = 99;
    return 0;
}
int cuLaunchKernelEx(const Config *c, void *function, void **params, void **extra) {
    if (c->gridDimX != 1 || c->gridDimY != 2 || c->gridDimZ != 3 || c->blockDimX != 4 ||
        c->blockDimY != 5 || c->blockDimZ != 6 || c->sharedMemBytes != 7) return 1;
    if ((u64)c->hStream != 1 || c->numAttrs != 2 || function || params || extra) return 2;
    if (c->attrs[0].id != 6 || c->attrs[0].value.allowed != 1) return 3;
    if (c->attrs[1].id != 9 || c->attrs[1].value.allowed != -1) return 4;
    return 0;
}
int cuMemSetAccess(u64 address, unsigned long bytes, const Access *access, unsigned long count) {
    return !(address == 1 && bytes == 2 && count == 2 && access[1].location.type == 1 &&
             access[1].location.id == 5 && access[1].flags == 3);
}
";

#[test]
fn structs_have_the_layout_of_c() {
    let taken = ["cuStreamBatchMemOp_v2", "cuIpcOpenMemHandle_v2"];
    let names = Cuda::REQUIRED.iter().filter(|name| !taken.contains(name));
    let path = library("cuda-structs.so", &(functions(names) + STRUCTS));
    // SAFETY: the functions called were made above with the table's types.
    let cuda = unsafe { Cuda::load_from([&path]) }.expect("all is there");

    let mut ops = [
        CUstreamBatchMemOpParams::write32(0x1122_3344_5566_7788, !1, 0),
        CUstreamBatchMemOpParams::wait64(
            16,
            1 << 63 | 1,
            CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH,
        ),
        CUstreamBatchMemOpParams::barrier(CU_STREAM_MEMORY_BARRIER_TYPE_GPU),
        CUstreamBatchMemOpParams::flush_remote_writes(),
    ];
    // SAFETY: four operations are there; the stand-in only reads them.
    let code = unsafe { (cuda.cuStreamBatchMemOp_v2)(CU_STREAM_LEGACY, 4, ops.as_mut_ptr(), 0) };
    assert_eq!(code, CudaResult::SUCCESS);

    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    for (byte, i) in handle.reserved.iter_mut().zip(0..) {
        *byte = i;
    }
    let mut address = 0;
    // SAFETY: the address is written to a local.
    let code = unsafe {
        (cuda.cuIpcOpenMemHandle_v2)(&mut address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    };
    assert_eq!((code, address), (CudaResult::SUCCESS, 0xabcd));

    let location = CUmemLocation {
        kind: CU_MEM_LOCATION_TYPE_DEVICE,
        id: 7,
    };
    let prop = CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_FABRIC,
        location,
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 1,
        usage: 0,
        reserved: [0; 4],
    };
    let mut physical = 0;
    let create = cuda.cuMemCreate.expect("it is there");
    // SAFETY: the handle is written to a local.
    let code = unsafe { create(&mut physical, 1 << 21, &prop, 0) };
    assert_eq!((code, physical), (CudaResult::SUCCESS, 99));

    let access = [7, 5].map(|id| CUmemAccessDesc {
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id,
        },
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    });
    let set_access = cuda.cuMemSetAccess.expect("it is there");
    // SAFETY: two descriptions are there.
    let code = unsafe { set_access(1, 2, access.as_ptr(), 2) };
    assert_eq!(code, CudaResult::SUCCESS);

    let mut attributes = [
        CUlaunchAttribute::int(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1),
        CUlaunchAttribute::int(9, u32::MAX),
    ];
    let config = CUlaunchConfig {
        grid: [1, 2, 3],
        block: [4, 5, 6],
        shared_bytes: 7,
        stream: CU_STREAM_LEGACY,
        attributes: attributes.as_mut_ptr(),
        count: 2,
    };
    let launch = cuda.cuLaunchKernelEx.expect("it is there");
    let (function, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the stand-in only reads the configuration and its two attributes.
    let code = unsafe { launch(&config, function, none, none) };
    assert_eq!(code, CudaResult::SUCCESS);
}

#[test]
fn codes_have_names_and_report_whether_the_context_is_lost() {
    assert_eq!(CudaResult(0).to_string(), "CUDA_SUCCESS (0)");
    assert_eq!(
        format!("{:?}", CudaResult(712)),
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)"
    );
    assert_eq!(CudaResult(-3).to_string(), "CUDA error -3");
    for lost in [
        4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721,
    ] {
        assert!(CudaResult(lost).is_sticky(), "{lost}");
    }
    for fine in [
        0, 1, 2, 3, 100, 201, 600, 701, 704, 712, 713, 720, 800, 801, 901, 999, 4711,
    ] {
        assert!(!CudaResult(fine).is_sticky(), "{fine}");
    }
}
