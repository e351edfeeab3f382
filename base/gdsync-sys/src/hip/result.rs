//! [`HipResult`]: HIP's return code, an integer with names for the known codes.

use std::fmt;

/// The return code of a HIP function.
///
/// It is an integer, so a code that this table does not list is valid too.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[must_use]
pub struct HipResult(pub i32);

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $code:literal $hip:ident;)*) => {
        impl HipResult {
            $(
                #[doc = concat!("`", stringify!($hip), "` (", stringify!($code), ").")]
                $(#[$meta])*
                pub const $name: HipResult = HipResult($code);
            )*

            /// The listed codes and their names.
            #[doc(hidden)]
            pub const LISTED: &[(&str, HipResult)] =
                &[$((stringify!($hip), HipResult::$name)),*];

            /// The name of the code in HIP's headers, if this table lists the code.
            ///
            /// This needs no library; `hipGetErrorName` names every code of the loaded library.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(HipResult::$name => Some(stringify!($hip)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0 hipSuccess;
    INVALID_VALUE = 1 hipErrorInvalidValue;
    OUT_OF_MEMORY = 2 hipErrorOutOfMemory;
    NOT_INITIALIZED = 3 hipErrorNotInitialized;
    /// The library is shutting down: the process is exiting.
    DEINITIALIZED = 4 hipErrorDeinitialized;
    INVALID_CONFIGURATION = 9 hipErrorInvalidConfiguration;
    INVALID_DEVICE_POINTER = 17 hipErrorInvalidDevicePointer;
    INVALID_MEMCPY_DIRECTION = 21 hipErrorInvalidMemcpyDirection;
    INSUFFICIENT_DRIVER = 35 hipErrorInsufficientDriver;
    PRIOR_LAUNCH_FAILURE = 53 hipErrorPriorLaunchFailure;
    INVALID_DEVICE_FUNCTION = 98 hipErrorInvalidDeviceFunction;
    NO_DEVICE = 100 hipErrorNoDevice;
    INVALID_DEVICE = 101 hipErrorInvalidDevice;
    INVALID_IMAGE = 200 hipErrorInvalidImage;
    INVALID_CONTEXT = 201 hipErrorInvalidContext;
    MAP_FAILED = 205 hipErrorMapFailed;
    UNMAP_FAILED = 206 hipErrorUnmapFailed;
    ALREADY_MAPPED = 208 hipErrorAlreadyMapped;
    NO_BINARY_FOR_GPU = 209 hipErrorNoBinaryForGpu;
    NOT_MAPPED = 211 hipErrorNotMapped;
    ECC_NOT_CORRECTABLE = 214 hipErrorECCNotCorrectable;
    PEER_ACCESS_UNSUPPORTED = 217 hipErrorPeerAccessUnsupported;
    INVALID_KERNEL_FILE = 218 hipErrorInvalidKernelFile;
    FILE_NOT_FOUND = 301 hipErrorFileNotFound;
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 hipErrorSharedObjectSymbolNotFound;
    SHARED_OBJECT_INIT_FAILED = 303 hipErrorSharedObjectInitFailed;
    OPERATING_SYSTEM = 304 hipErrorOperatingSystem;
    INVALID_HANDLE = 400 hipErrorInvalidHandle;
    ILLEGAL_STATE = 401 hipErrorIllegalState;
    NOT_FOUND = 500 hipErrorNotFound;
    /// Not an error: the operation has not completed.
    NOT_READY = 600 hipErrorNotReady;
    ILLEGAL_ADDRESS = 700 hipErrorIllegalAddress;
    LAUNCH_OUT_OF_RESOURCES = 701 hipErrorLaunchOutOfResources;
    LAUNCH_TIME_OUT = 702 hipErrorLaunchTimeOut;
    PEER_ACCESS_ALREADY_ENABLED = 704 hipErrorPeerAccessAlreadyEnabled;
    PEER_ACCESS_NOT_ENABLED = 705 hipErrorPeerAccessNotEnabled;
    SET_ON_ACTIVE_PROCESS = 708 hipErrorSetOnActiveProcess;
    /// Also the code for a stream that does not exist.
    CONTEXT_IS_DESTROYED = 709 hipErrorContextIsDestroyed;
    ASSERT = 710 hipErrorAssert;
    HOST_MEMORY_ALREADY_REGISTERED = 712 hipErrorHostMemoryAlreadyRegistered;
    HOST_MEMORY_NOT_REGISTERED = 713 hipErrorHostMemoryNotRegistered;
    LAUNCH_FAILURE = 719 hipErrorLaunchFailure;
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 hipErrorCooperativeLaunchTooLarge;
    NOT_SUPPORTED = 801 hipErrorNotSupported;
    STREAM_CAPTURE_UNSUPPORTED = 900 hipErrorStreamCaptureUnsupported;
    STREAM_CAPTURE_INVALIDATED = 901 hipErrorStreamCaptureInvalidated;
    STREAM_CAPTURE_MERGE = 902 hipErrorStreamCaptureMerge;
    STREAM_CAPTURE_UNMATCHED = 903 hipErrorStreamCaptureUnmatched;
    STREAM_CAPTURE_UNJOINED = 904 hipErrorStreamCaptureUnjoined;
    STREAM_CAPTURE_ISOLATION = 905 hipErrorStreamCaptureIsolation;
    STREAM_CAPTURE_IMPLICIT = 906 hipErrorStreamCaptureImplicit;
    CAPTURED_EVENT = 907 hipErrorCapturedEvent;
    STREAM_CAPTURE_WRONG_THREAD = 908 hipErrorStreamCaptureWrongThread;
    UNKNOWN = 999 hipErrorUnknown;
    /// A memory call of the HSA runtime failed.
    RUNTIME_MEMORY = 1052 hipErrorRuntimeMemory;
    /// Another call of the HSA runtime failed.
    RUNTIME_OTHER = 1053 hipErrorRuntimeOther;
}

impl HipResult {
    /// Whether the call succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether the device is lost for the process: every later call returns an error.
    ///
    /// True for faults of kernels, for uncorrectable memory errors, and for a library that is
    /// shutting down. A code that this table does not list is not sticky, and neither is
    /// [`CONTEXT_IS_DESTROYED`](HipResult::CONTEXT_IS_DESTROYED), with which HIP refuses a stream
    /// that does not exist. Most faults of an AMD GPU end the process without a code.
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            HipResult::DEINITIALIZED
                | HipResult::PRIOR_LAUNCH_FAILURE
                | HipResult::ECC_NOT_CORRECTABLE
                | HipResult::ILLEGAL_ADDRESS
                | HipResult::LAUNCH_TIME_OUT
                | HipResult::ASSERT
                | HipResult::LAUNCH_FAILURE
        )
    }
}

impl fmt::Display for HipResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "HIP error {}", self.0),
        }
    }
}

impl fmt::Debug for HipResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
