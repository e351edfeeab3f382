//! Parameters of the kernels: structures whose layout the headers in `device/` assert too.

use super::Entry;
use crate::memop::DevicePtr;

/// Most queues, or waiters, of one launch of [`Trigger`] or [`Wait`].
pub const QUEUES: usize = 8;

/// A work queue as [`Trigger`] reads it from memory. It never changes: the doorbell record holds
/// the index up to which the queue is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueState {
    /// The ring: basic blocks of a send queue; unused for a receive queue.
    pub ring: DevicePtr,
    /// The doorbell record: the word for receives, then the word for sends.
    pub record: DevicePtr,
    /// The doorbell; unused for a receive queue.
    pub doorbell: DevicePtr,
    /// Basic blocks of the ring, less one.
    pub mask: u32,
    /// Zero.
    pub reserved: [u32; 9],
}

/// The state of a waiter of a completion queue. [`Wait`] reads it from memory and advances it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WaiterState {
    /// The completion queue, of 64-byte entries.
    pub cq: DevicePtr,
    /// The word that counts how often the waiter has passed.
    pub passed: DevicePtr,
    /// Logarithm of the queue's entries.
    pub log_entries: u32,
    /// How often the waiter has passed.
    pub marks: u32,
    /// The position that the waiter waits for next.
    pub next: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// A queue that [`Trigger`] posts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TriggerQueue {
    /// Address of the queue's [`QueueState`].
    pub state: DevicePtr,
    /// Number of entries to post.
    pub entries: u32,
    /// 1 for a receive queue, 0 for a send queue.
    pub receive: u32,
}

/// Posts the next entries on up to [`QUEUES`] different queues in parallel. Each queue's doorbell
/// record holds the index of the last post, so a launch that a graph repeats posts the entries that
/// follow. The queues have no order among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Trigger {
    /// Number of queues in use, from the first.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The queues.
    pub queues: [TriggerQueue; QUEUES],
}

/// A waiter that [`Wait`] advances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Waited {
    /// Address of the waiter's [`WaiterState`].
    pub state: DevicePtr,
    /// Number of completions to pass over: 0 waits for the next one.
    pub skip: u64,
}

/// Waits in parallel for the next completion of up to [`QUEUES`] different waiters, and counts up
/// the word of each waiter that has passed. The waiter passes a completion in error only after it
/// is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wait {
    /// Number of waiters in use, from the first.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The waiters.
    pub waiters: [Waited; QUEUES],
}

/// Writes a pattern into memory that the GPU may write: byte `i` is byte `i % 8` of
/// [`pattern`]`(seed, i / 8)`, the lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fill {
    /// Start address; alignment to 8 bytes makes it fast.
    pub at: DevicePtr,
    /// Length in bytes.
    pub len: u64,
    /// Seed of the pattern.
    pub seed: u64,
}

/// Compares memory with the pattern that [`Fill`] writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Verify {
    /// Start address; alignment to 8 bytes makes it fast.
    pub at: DevicePtr,
    /// Length in bytes.
    pub len: u64,
    /// Seed of the pattern.
    pub seed: u64,
    /// Address of the [`Report`], aligned to 8 bytes, in memory of the device. The kernel adds its
    /// findings.
    pub report: DevicePtr,
}

/// Copies between two ranges that do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Transfer {
    /// Destination address; alignment of both ranges to 8 bytes makes it fast.
    pub to: DevicePtr,
    /// Source address.
    pub from: DevicePtr,
    /// Length in bytes.
    pub len: u64,
}

/// The findings of [`Verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Report {
    /// Number of bytes that differ.
    pub wrong: u64,
    /// The offset of the first byte that differs, `u64::MAX` if none does.
    pub first: u64,
}

impl Report {
    /// A report without findings: the content of the report before the first launch.
    pub const CLEAN: Report = Report {
        wrong: 0,
        first: u64::MAX,
    };

    /// The bytes of the report in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.wrong.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.first.to_ne_bytes());
        bytes
    }

    /// The report from its bytes in memory.
    pub fn from_bytes(bytes: [u8; 16]) -> Report {
        let all = u128::from_le_bytes(bytes);
        Report {
            wrong: u64::from_le(all as u64),
            first: u64::from_le((all >> 64) as u64),
        }
    }
}

/// The eight bytes at offset `8 * word` of the pattern `seed`, as a little-endian number.
pub fn pattern(seed: u64, word: u64) -> u64 {
    // A generator that can start at any offset: a counter, mixed (splitmix64).
    let z = seed.wrapping_add(word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A structure with a fixed layout in memory. `$size` repeats the size that the headers assert.
macro_rules! layout {
    ($($name:ident: $size:literal),*) => {$(
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == 8);

        impl $name {
            /// The bytes of the structure.
            pub fn bytes(&self) -> &[u8] {
                // SAFETY: the structure is repr(C) without padding (its size, asserted above, is
                // the sum of its fields') and initialised; a byte has no alignment or validity
                // requirement.
                unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<$name>()) }
            }
        }
    )*};
}

/// The parameter structures of kernels.
macro_rules! params {
    ($($name:ident: $size:literal),*) => {
        layout!($($name: $size),*);
        $(impl $name {
            /// The kernel that takes this parameter.
            pub const ENTRY: Entry = Entry::$name;
        })*
    };
}

layout!(QueueState: 64, WaiterState: 64);
params!(Trigger: 136, Wait: 136, Fill: 24, Verify: 32, Transfer: 24);
