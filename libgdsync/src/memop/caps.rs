//! The capabilities of a runtime's streams.

use std::ops::BitOr;

use crate::options::setters;

/// The capabilities of a GPU's streams. The library chooses by them how it writes, waits and
/// flushes. They are probed when the GPU is opened, or set by hand on a software GPU
/// ([`SoftOptions::caps`](crate::gpu::soft::SoftOptions)), so that each combination can be tested.
/// Capabilities that `GDS_CONSISTENCY` excludes are not set.
///
/// Names in capitals are device attributes of the CUDA driver API, `CU_DEVICE_ATTRIBUTE_...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Writes and waits of 64-bit words (CUDA: `CAN_USE_64_BIT_STREAM_MEM_OPS`).
    pub memops64: bool,
    /// Waits with [`Condition::Nor`](super::Condition::Nor) (CUDA:
    /// `CAN_USE_STREAM_WAIT_VALUE_NOR`).
    pub nor: bool,
    /// Waits for a masked word. HIP has them; CUDA does not.
    pub mask: bool,
    /// Waits with [`Condition::Geq`](super::Condition::Geq) compare cyclically (CUDA); otherwise
    /// as plain unsigned numbers (HIP), and the library replaces the waits for which this differs.
    pub cyclic: bool,
    /// Waits that flush devices' writes to GPU memory, and the flush operation (CUDA:
    /// `CAN_FLUSH_REMOTE_WRITES`).
    pub flush: bool,
    /// Whether devices' writes to GPU memory are visible, without a flush, to a stream that has
    /// seen a later write of the same device (CUDA: `GPU_DIRECT_RDMA_WRITES_ORDERING` of *owner* or
    /// more). Flushes are then no-ops.
    pub ordered_writes: bool,
    /// Whether the CPU can make devices' writes to GPU memory visible (CUDA:
    /// `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS` with *host*).
    pub host_flush: bool,
    /// Stores of up to 32 bytes as one operation. No public driver has them: the library replaces
    /// each by writes of words.
    pub inline_copy: bool,
    /// Fences between writes as a separate operation. CUDA has none: every write of
    /// `cuStreamBatchMemOp` is fenced.
    pub fence: bool,
    /// Whether captures record memory operations (CUDA). If not (HIP), a kernel executes the word
    /// operations of a graph.
    pub captures: bool,
    /// Whether the library's kernels can be launched.
    pub kernels: bool,
    /// The maximum number of operations of one submission (255 on CUDA). Longer lists are split.
    pub batch_limit: usize,
}

setters! { Caps {
    memops64: bool,
    nor: bool,
    mask: bool,
    cyclic: bool,
    flush: bool,
    ordered_writes: bool,
    host_flush: bool,
    inline_copy: bool,
    fence: bool,
    captures: bool,
    kernels: bool,
    batch_limit: usize,
} }

/// The set of capabilities that operations need of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs(u16);

impl Needs {
    /// Words of 64 bits.
    pub const WIDE: Needs = Needs(1 << 0);
    pub const NOR: Needs = Needs(1 << 1);
    pub const MASK: Needs = Needs(1 << 2);
    pub const FLUSH: Needs = Needs(1 << 3);
    pub const COPY: Needs = Needs(1 << 4);
    pub const FENCE: Needs = Needs(1 << 5);
    /// A program: memory operations of this runtime cannot express the operation.
    pub const KERNEL: Needs = Needs(1 << 6);
    /// A comparison that differs from that of plain unsigned numbers.
    pub const CYCLIC: Needs = Needs(1 << 7);
    /// NOR under a mask. HIP documents that clear bits outside the mask count, so no runtime has
    /// it.
    pub const MASKED_NOR: Needs = Needs(1 << 8);

    /// This set if `so`, else the empty set.
    pub const fn only_if(self, so: bool) -> Needs {
        if so { self } else { Needs(0) }
    }

    /// Whether this set contains all of `other`.
    pub const fn has(self, other: Needs) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Needs {
    type Output = Needs;

    fn bitor(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }
}

impl Caps {
    /// The needs that this runtime meets with memory operations as they are.
    pub(crate) fn met(&self) -> Needs {
        Needs::WIDE.only_if(self.memops64)
            | Needs::NOR.only_if(self.nor)
            | Needs::MASK.only_if(self.mask)
            | Needs::CYCLIC.only_if(self.cyclic)
            // Flushes are left out where writes are ordered without them.
            | Needs::FLUSH.only_if(self.flush && !self.ordered_writes)
            | Needs::COPY.only_if(self.inline_copy)
            | Needs::FENCE.only_if(self.fence)
    }
}

#[cfg(test)]
impl Caps {
    /// The capabilities with which every operation runs as it is.
    pub(crate) const FULL: Caps = Caps {
        memops64: true,
        nor: true,
        mask: true,
        cyclic: true,
        flush: true,
        ordered_writes: false,
        host_flush: true,
        inline_copy: true,
        fence: true,
        captures: true,
        kernels: true,
        batch_limit: 255,
    };
}
