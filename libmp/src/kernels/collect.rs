//! The kernel that ends a collective call: it compares the words of the ranks, and gathers or
//! reduces their contributions.

use gdsync::Stream;
use zerocopy::{Immutable, IntoBytes};

use super::Kernels;
use crate::error::Result;

/// Maximum number of lengths of [`Collect`].
pub(crate) const LENS: usize = 64;

/// What the kernel does with the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Shape {
    Nothing = 0,
    /// Copies one contribution.
    One = 1,
    /// Copies all, of equal length, one after the other.
    All = 2,
    /// Copies all, of the lengths in the parameters, one after the other.
    Varied = 3,
    /// Combines all, element by element, in the order of the ranks.
    Reduced = 4,
}

/// The parameters of the kernel. It runs after the wait for the words of the call. Addresses are
/// GPU addresses.
///
/// If a word is not that of this call, or the object has a fault, nothing is copied. The first
/// such word becomes the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Collect {
    /// The 64-bit words of the ranks, one after the other.
    pub words: u64,
    /// The contributions of the ranks; of [`Shape::One`], the contribution.
    pub slots: u64,
    /// Bytes from a contribution to the next.
    pub stride: u64,
    /// The contribution of this rank to itself.
    pub own: u64,
    /// The memory for the result, aligned to its elements.
    pub out: u64,
    /// Bytes of each contribution.
    pub len: u64,
    /// The word that each rank stores; of [`Shape::Varied`], with the length 0.
    pub expected: u64,
    /// Three 64-bit words: the call with the fault of the object, or 0; the rank; its word.
    pub fault: u64,
    /// A 32-bit word that keeps the first failure.
    pub error: u64,
    /// The 64-bit word that is set to `call` at the end; or 0.
    pub passed: u64,
    /// See `passed`.
    pub call: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// This rank, whose word is not compared.
    pub me: u32,
    /// Number of ranks whose words are compared, and whose contributions are copied.
    pub count: u32,
    /// The first of them.
    pub first: u32,
    /// A [`Shape`].
    pub shape: u32,
    /// The code of the elements' type: [`Number::TYPE`](crate::Number).
    pub element: u32,
    /// The code of the operation: [`Op`](crate::Op).
    pub op: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of the contributions of [`Shape::Varied`], from `first` on.
    pub lens: [u32; LENS],
}

const _: () = assert!(size_of::<Collect>() == 376 && align_of::<Collect>() == 8);

impl Kernels {
    /// Enqueues the end of a collective call.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Collect`].
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn collect(&self, stream: &Stream, params: &Collect) -> Result<()> {
        // SAFETY: the kernel accesses what `Collect` names, which the caller guarantees to be
        // valid.
        Ok(unsafe { stream.launch(&self.collect, self.copying, params) }?)
    }
}
