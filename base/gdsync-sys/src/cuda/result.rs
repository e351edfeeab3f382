//! [`CudaResult`]: the driver's return code, an integer with names for the known codes.

use std::fmt;

/// The return code of a driver function.
///
/// It is an integer, so a code that this table does not list is valid too.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[must_use]
pub struct CudaResult(pub i32);

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $code:literal;)*) => {
        impl CudaResult {
            $(
                #[doc = concat!("`", name!($name), "` (", stringify!($code), ").")]
                $(#[$meta])*
                pub const $name: CudaResult = CudaResult($code);
            )*

            /// The name of the code in cuda.h, if this table lists the code.
            ///
            /// This needs no driver; `cuGetErrorName` names every code of the loaded driver.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(CudaResult::$name => Some(name!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

macro_rules! name {
    (SUCCESS) => {
        "CUDA_SUCCESS"
    };
    ($name:ident) => {
        concat!("CUDA_ERROR_", stringify!($name))
    };
}

codes! {
    SUCCESS = 0;
    INVALID_VALUE = 1;
    OUT_OF_MEMORY = 2;
    /// `cuInit` was not called, or failed.
    NOT_INITIALIZED = 3;
    /// The driver is shutting down: the process is exiting.
    DEINITIALIZED = 4;
    /// The library is the stub of a toolkit and not the driver.
    STUB_LIBRARY = 34;
    CALL_REQUIRES_NEWER_DRIVER = 36;
    /// The device is lost, or another process has it in exclusive mode.
    DEVICE_UNAVAILABLE = 46;
    NO_DEVICE = 100;
    INVALID_DEVICE = 101;
    DEVICE_NOT_LICENSED = 102;
    INVALID_IMAGE = 200;
    /// No context is current, or the given context is invalid.
    INVALID_CONTEXT = 201;
    MAP_FAILED = 205;
    UNMAP_FAILED = 206;
    ALREADY_MAPPED = 208;
    NO_BINARY_FOR_GPU = 209;
    NOT_MAPPED = 211;
    ECC_UNCORRECTABLE = 214;
    PEER_ACCESS_UNSUPPORTED = 217;
    INVALID_PTX = 218;
    NVLINK_UNCORRECTABLE = 220;
    JIT_COMPILER_NOT_FOUND = 221;
    UNSUPPORTED_PTX_VERSION = 222;
    JIT_COMPILATION_DISABLED = 223;
    CONTAINED = 226;
    SHARED_OBJECT_INIT_FAILED = 303;
    OPERATING_SYSTEM = 304;
    INVALID_HANDLE = 400;
    ILLEGAL_STATE = 401;
    NOT_FOUND = 500;
    /// Not an error: the operation has not completed.
    NOT_READY = 600;
    ILLEGAL_ADDRESS = 700;
    LAUNCH_OUT_OF_RESOURCES = 701;
    LAUNCH_TIMEOUT = 702;
    PEER_ACCESS_ALREADY_ENABLED = 704;
    PEER_ACCESS_NOT_ENABLED = 705;
    PRIMARY_CONTEXT_ACTIVE = 708;
    CONTEXT_IS_DESTROYED = 709;
    ASSERT = 710;
    TOO_MANY_PEERS = 711;
    HOST_MEMORY_ALREADY_REGISTERED = 712;
    HOST_MEMORY_NOT_REGISTERED = 713;
    HARDWARE_STACK_ERROR = 714;
    ILLEGAL_INSTRUCTION = 715;
    MISALIGNED_ADDRESS = 716;
    INVALID_ADDRESS_SPACE = 717;
    INVALID_PC = 718;
    LAUNCH_FAILED = 719;
    TENSOR_MEMORY_LEAK = 721;
    NOT_PERMITTED = 800;
    NOT_SUPPORTED = 801;
    /// The system is not ready, for example because the fabric manager has not started.
    SYSTEM_NOT_READY = 802;
    SYSTEM_DRIVER_MISMATCH = 803;
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804;
    MPS_CONNECTION_FAILED = 805;
    MPS_RPC_FAILURE = 806;
    MPS_SERVER_NOT_READY = 807;
    MPS_CLIENT_TERMINATED = 810;
    STREAM_CAPTURE_UNSUPPORTED = 900;
    STREAM_CAPTURE_INVALIDATED = 901;
    STREAM_CAPTURE_MERGE = 902;
    STREAM_CAPTURE_UNMATCHED = 903;
    STREAM_CAPTURE_UNJOINED = 904;
    STREAM_CAPTURE_ISOLATION = 905;
    STREAM_CAPTURE_IMPLICIT = 906;
    CAPTURED_EVENT = 907;
    STREAM_CAPTURE_WRONG_THREAD = 908;
    TIMEOUT = 909;
    EXTERNAL_DEVICE = 911;
    FUNCTION_NOT_LOADED = 913;
    UNKNOWN = 999;
}

impl CudaResult {
    /// Whether the call succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether the context, or the process's use of the device, is lost. Then every later call of
    /// the context returns an error, and the program needs a new context or a new process.
    ///
    /// True for the codes that leave the context or the process in an inconsistent state by cuda.h,
    /// for a destroyed context, for a driver that is shutting down, for uncorrectable memory and
    /// link errors, and for a lost device. A code that this table does not list is not sticky.
    /// [`UNKNOWN`](CudaResult::UNKNOWN) is not sticky either, because it has no information about
    /// the context.
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            CudaResult::DEINITIALIZED
                | CudaResult::DEVICE_UNAVAILABLE
                | CudaResult::ECC_UNCORRECTABLE
                | CudaResult::NVLINK_UNCORRECTABLE
                | CudaResult::CONTAINED
                | CudaResult::ILLEGAL_ADDRESS
                | CudaResult::LAUNCH_TIMEOUT
                | CudaResult::CONTEXT_IS_DESTROYED
                | CudaResult::ASSERT
                | CudaResult::HARDWARE_STACK_ERROR
                | CudaResult::ILLEGAL_INSTRUCTION
                | CudaResult::MISALIGNED_ADDRESS
                | CudaResult::INVALID_ADDRESS_SPACE
                | CudaResult::INVALID_PC
                | CudaResult::LAUNCH_FAILED
                | CudaResult::TENSOR_MEMORY_LEAK
                | CudaResult::MPS_CLIENT_TERMINATED
                | CudaResult::EXTERNAL_DEVICE
        )
    }
}

impl fmt::Display for CudaResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

impl fmt::Debug for CudaResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
