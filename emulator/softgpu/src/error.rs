//! What can go wrong, each named with its object and its limit.

use std::fmt;

use crate::{DevAddr, KernelFault, LaunchError};

/// Why an operation on a software GPU was refused. Nothing was enqueued or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the configuration with which no GPU works.
    #[error("configuration: {what} is {value}, must be from {min} to {max}")]
    BadConfig {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// The GPU lacks a capability.
    #[error("unsupported by this GPU: {what}")]
    Unsupported {
        /// The capability that is missing.
        what: &'static str,
    },
    /// An address range of an operation lies in no live allocation or registration.
    #[error("{object}: {len} bytes at {addr} lie in no live memory of this GPU")]
    BadAddress {
        /// The operation, and which of its addresses.
        object: Object,
        /// Where the range starts.
        addr: DevAddr,
        /// How long it is.
        len: usize,
    },
    /// The address of a memory operation is not a multiple of its size.
    #[error("{object}: {addr} is not a multiple of {align}")]
    Misaligned {
        /// The operation, and which of its addresses.
        object: Object,
        /// The address.
        addr: DevAddr,
        /// What it must be a multiple of.
        align: usize,
    },
    /// A submission has more operations than the GPU takes at once.
    #[error("stream {stream}: a submission of {ops} memory operations, at most {limit}")]
    BatchTooLong {
        /// The stream.
        stream: u64,
        /// Operations in the submission.
        ops: usize,
        /// The GPU's limit.
        limit: usize,
    },
    /// More data than an inline copy carries.
    #[error("inline copy of {len} bytes, at most {limit}")]
    InlineTooLong {
        /// Bytes wanted.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// Source and destination of a copy overlap.
    #[error("copy of {len} bytes from {src} to {dst}: the ranges overlap")]
    Overlap {
        /// The destination.
        dst: DevAddr,
        /// The source.
        src: DevAddr,
        /// The length.
        len: usize,
    },
    /// The stream is capturing, which no operation here supports. Nothing was recorded.
    #[error("stream {stream} is capturing")]
    Capturing {
        /// The stream.
        stream: u64,
    },
    /// The capture to be ended was not begun.
    #[error("stream {stream} is not capturing")]
    NotCapturing {
        /// The stream.
        stream: u64,
    },
    /// A launch that the kernel cannot take.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Part of the range is registered, or is memory of the GPU, already.
    #[error("host range of {len} bytes at {addr:#x} overlaps memory known to this GPU")]
    AlreadyRegistered {
        /// Where the range starts.
        addr: usize,
        /// How long it is.
        len: usize,
    },
    /// A length that no memory can have.
    #[error("{what}: a length of {len} bytes is not possible")]
    BadLength {
        /// What was to be allocated.
        what: &'static str,
        /// The length wanted.
        len: usize,
    },
    /// More memory than the GPU has left.
    #[error("{what} of {len} bytes: the GPU has {limit}, of which {used} are in use")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// The length wanted.
        len: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes that the GPU has.
        limit: usize,
    },
    /// A file descriptor that is not exported device memory.
    #[error("import: {why}")]
    BadImport {
        /// What is wrong with it.
        why: &'static str,
    },
    /// The operating system refused memory.
    #[error("{what} of {len} bytes: {errno}")]
    Os {
        /// What was to be done.
        what: &'static str,
        /// The length wanted.
        len: usize,
        /// The system's answer.
        errno: rustix::io::Errno,
    },
    /// The GPU stopped at an error of its own; it stays that way.
    #[error("device error: {0}")]
    Device(DeviceError),
    /// The GPU's engine is gone: nothing will run any more.
    #[error("the GPU's engine was dropped")]
    Stopped,
}

/// Which operation an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// The memory operation with this number in its submission.
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

/// Why a GPU stopped. Sticky: later calls repeat it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {fault}")]
pub struct DeviceError {
    /// The stream that the kernel ran on.
    pub stream: u64,
    /// The kernel, and what it did.
    pub fault: KernelFault,
}

/// An access through a window or CPU view that lies outside of it or is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset:#x} of memory of {limit:#x} bytes: {}", if *.misaligned { "misaligned" } else { "out of bounds" })]
pub struct Fault {
    /// Where the access starts.
    pub offset: u64,
    /// Its length.
    pub len: usize,
    /// The length of the memory.
    pub limit: usize,
    /// Within bounds, but the offset is not a multiple of the length.
    pub misaligned: bool,
}
