//! An address in the GPU's address space.

use std::fmt;
use std::ops::Add;

/// An address in the GPU's address space: in device memory, in pinned memory, or in registered host
/// memory. It is not a pointer and cannot be dereferenced, so a stray access by host code is a type
/// error. Only kernels and stream operations access the memory behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevAddr(u64);

impl DevAddr {
    /// The address with the number `raw`. This is safe: the GPU refuses an operation on an address
    /// outside every live allocation.
    pub const fn from_raw(raw: u64) -> DevAddr {
        DevAddr(raw)
    }

    /// The number, as a kernel argument contains it.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl Add<u64> for DevAddr {
    type Output = DevAddr;

    /// The address `offset` bytes after this one, modulo 2^64.
    fn add(self, offset: u64) -> DevAddr {
        DevAddr(self.0.wrapping_add(offset))
    }
}

impl fmt::Debug for DevAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dev:{:#x}", self.0)
    }
}

impl fmt::Display for DevAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
