//! An address as the GPU sees it.

use std::fmt;
use std::ops::Add;

/// An address as the GPU sees it: in device memory, in pinned memory, or in registered host
/// memory. Not a pointer: it cannot be dereferenced, so a stray access by host code is a type
/// error. Only kernels and stream operations follow it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevAddr(u64);

impl DevAddr {
    /// The address with the number `raw`. Harmless: an operation on an address that lies in
    /// no live allocation is refused.
    pub const fn from_raw(raw: u64) -> DevAddr {
        DevAddr(raw)
    }

    /// The number, as kernel arguments carry it.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl Add<u64> for DevAddr {
    type Output = DevAddr;

    /// `offset` bytes further on, modulo 2^64.
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
