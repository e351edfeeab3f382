//! Errors of the software GPU. Each names its object and its limit.

use std::fmt;

use crate::{DevAddr, KernelFault, LaunchError};

/// The reason for which a software GPU refused an operation. Nothing was enqueued or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has an invalid value.
    #[error("configuration: {what} is {value}, must be from {min} to {max}")]
    BadConfig {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The least permitted value.
        min: usize,
        /// The largest permitted value.
        max: usize,
    },
    /// The configuration has warps of an invalid size.
    #[error("configuration: a warp has {0} threads, must have 32 or 64")]
    BadWarp(u32),
    /// The GPU lacks a capability.
    #[error("this GPU does not support {what}")]
    Unsupported {
        /// The missing capability.
        what: &'static str,
    },
    /// An address range of an operation is not within one live allocation or registration.
    #[error("{object}: {len} bytes at {addr} are not within live memory of this GPU")]
    BadAddress {
        /// The operation and the operand.
        object: Object,
        /// The start of the range.
        addr: DevAddr,
        /// The length of the range in bytes.
        len: usize,
    },
    /// The address of a memory operation is not a multiple of its size.
    #[error("{object}: {addr} is not a multiple of {align}")]
    Misaligned {
        /// The operation and the operand.
        object: Object,
        /// The address.
        addr: DevAddr,
        /// The required alignment in bytes.
        align: usize,
    },
    /// A submission has more operations than the GPU's limit.
    #[error("stream {stream}: the submission has {ops} memory operations; the limit is {limit}")]
    BatchTooLong {
        /// The stream.
        stream: u64,
        /// Operations in the submission.
        ops: usize,
        /// The GPU's limit.
        limit: usize,
    },
    /// The data are longer than the limit of an inline copy.
    #[error("the inline copy has {len} bytes; the limit is {limit}")]
    InlineTooLong {
        /// The length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Source and destination of a copy overlap.
    #[error("copy of {len} bytes from {src} to {dst}: the ranges overlap")]
    Overlap {
        /// The destination.
        dst: DevAddr,
        /// The source.
        src: DevAddr,
        /// The length in bytes.
        len: usize,
    },
    /// The stream is capturing, and the operation cannot be part of a graph. Nothing was recorded.
    #[error("stream {stream} is captured, and a graph cannot contain this operation")]
    Capturing {
        /// The stream.
        stream: u64,
    },
    /// The stream has no capture to end.
    #[error("stream {stream} is not capturing")]
    NotCapturing {
        /// The stream.
        stream: u64,
    },
    /// The graph belongs to another GPU than the stream.
    #[error("stream {stream}: the graph belongs to another GPU")]
    OtherGpu {
        /// The stream.
        stream: u64,
    },
    /// The kernel refuses the launch.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Part of the range is registered already, or is memory of the GPU.
    #[error("host range of {len} bytes at {addr:#x} overlaps memory of this GPU or a registration")]
    AlreadyRegistered {
        /// The start of the range.
        addr: usize,
        /// The length of the range in bytes.
        len: usize,
    },
    /// A length that no memory can have: zero, or too large.
    #[error("{what}: a length of {len} bytes is not possible")]
    BadLength {
        /// The kind of memory.
        what: &'static str,
        /// The requested length in bytes.
        len: usize,
    },
    /// The GPU has less memory left than requested.
    #[error(
        "{what} of {len} bytes is not available: of {limit} bytes of the GPU, {used} are in use"
    )]
    OutOfMemory {
        /// The kind of memory.
        what: &'static str,
        /// The requested length in bytes.
        len: usize,
        /// The bytes in use.
        used: usize,
        /// The memory size of the GPU in bytes.
        limit: usize,
    },
    /// The file descriptor is not that of exported device memory.
    #[error("import: {why}")]
    BadImport {
        /// The reason.
        why: &'static str,
    },
    /// The operating system refused memory.
    #[error("{what} of {len} bytes failed: {errno}")]
    Os {
        /// The refused call.
        what: &'static str,
        /// The requested length in bytes.
        len: usize,
        /// The error of the system.
        errno: rustix::io::Errno,
    },
    /// The GPU stopped after a fault; it stays stopped.
    #[error("the GPU stopped after a fault: {0}")]
    Device(DeviceError),
    /// The GPU's engine was dropped: no operation runs any more.
    #[error("the GPU's engine was dropped")]
    Stopped,
}

/// The operation and the operand of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The memory operation with this index in its submission.
    MemOp(usize),
    /// The destination of a copy.
    CopyTo,
    /// The source of a copy.
    CopyFrom,
    /// The destination of a fill.
    Fill,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::MemOp(n) => write!(f, "memory operation {n}"),
            Object::CopyTo => f.write_str("destination of a copy"),
            Object::CopyFrom => f.write_str("source of a copy"),
            Object::Fill => f.write_str("destination of a fill"),
        }
    }
}

/// The fault that stopped a GPU. Sticky: later calls return it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {fault}")]
pub struct DeviceError {
    /// The stream of the kernel.
    pub stream: u64,
    /// The kernel, and its fault.
    pub fault: KernelFault,
}

/// An access through a window or a CPU view that is out of bounds or not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset:#x} of memory of {limit:#x} bytes: {}", if *.misaligned { "they are misaligned" } else { "they are out of bounds" })]
pub struct Fault {
    /// The offset of the access in bytes.
    pub offset: u64,
    /// The length of the access in bytes.
    pub len: usize,
    /// The length of the memory in bytes.
    pub limit: usize,
    /// In bounds, but the offset is not a multiple of the length.
    pub misaligned: bool,
}
