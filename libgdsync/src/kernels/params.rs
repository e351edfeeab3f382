//! What the kernels take: structures with the layout that the headers in `device/` assert too.

use super::Entry;
use crate::memop::DevicePtr;

/// Queues, or waiters, that one launch of [`Trigger`] or [`Wait`] takes.
pub const QUEUES: usize = 8;

/// A work queue as [`Trigger`] finds it in memory. It never changes: how far the queue is posted
/// is what its doorbell record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueState {
    /// The ring: basic blocks of a send queue; unused for a receive queue.
    pub ring: DevicePtr,
    /// The doorbell record, receives before sends.
    pub record: DevicePtr,
    /// The doorbell; unused for a receive queue.
    pub doorbell: DevicePtr,
    /// Basic blocks of the ring, less one.
    pub mask: u32,
    /// Zero.
    pub reserved: [u32; 9],
}

/// Where a stream stands in a completion queue, as [`Wait`] finds it in memory and moves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WaiterState {
    /// The completion queue, of 64-byte entries.
    pub cq: DevicePtr,
    /// The word that says how often the waiter has passed.
    pub passed: DevicePtr,
    /// Logarithm of the queue's entries.
    pub log_entries: u32,
    /// How often it has passed.
    pub marks: u32,
    /// The position that it waits for next.
    pub next: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// A queue that [`Trigger`] posts on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TriggerQueue {
    /// Where the queue's [`QueueState`] is.
    pub state: DevicePtr,
    /// How many entries are posted.
    pub entries: u32,
    /// 1 for a receive queue, 0 for a send queue.
    pub receive: u32,
}

/// Posts the entries that come next on up to [`QUEUES`] different queues, side by side: what
/// was posted last says each queue's doorbell record. So a launch that is run again, by a graph
/// say, posts what comes then. It has no order among the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Trigger {
    /// Queues in use, from the first.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// The queues.
    pub queues: [TriggerQueue; QUEUES],
}

/// A waiter that [`Wait`] moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Waited {
    /// Where the waiter's [`WaiterState`] is.
    pub state: DevicePtr,
    /// Completions that are passed over: 0 waits for the next one.
    pub skip: u64,
}

/// Waits, side by side, for the completion that comes next for up to [`QUEUES`] different waiters,
/// and announces that each has passed. A completion in error is not passed until it is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wait {
    /// Waiters in use, from the first.
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
    /// Where; alignment to 8 makes it fast.
    pub at: DevicePtr,
    /// How many bytes.
    pub len: u64,
    /// Which pattern.
    pub seed: u64,
}

/// Compares memory with the pattern that [`Fill`] writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Verify {
    /// Where; alignment to 8 makes it fast.
    pub at: DevicePtr,
    /// How many bytes.
    pub len: u64,
    /// Which pattern.
    pub seed: u64,
    /// Where the [`Report`] is, aligned to 8, in memory of the device. What is found is added.
    pub report: DevicePtr,
}

/// Copies between two ranges that do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Transfer {
    /// Where to; alignment of both ranges to 8 makes it fast.
    pub to: DevicePtr,
    /// Where from.
    pub from: DevicePtr,
    /// How many bytes.
    pub len: u64,
}

/// What [`Verify`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Report {
    /// Bytes that differ.
    pub wrong: u64,
    /// The offset of the first that does, `u64::MAX` if none does.
    pub first: u64,
}

impl Report {
    /// Nothing found: what the report holds before the first launch.
    pub const CLEAN: Report = Report {
        wrong: 0,
        first: u64::MAX,
    };

    /// As it lies in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.wrong.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.first.to_ne_bytes());
        bytes
    }

    /// From how it lies in memory.
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
    // A generator that can start anywhere: a counter, mixed (splitmix64).
    let z = seed.wrapping_add(word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A structure as it lies in memory. `$size` repeats what the headers assert.
macro_rules! layout {
    ($($name:ident: $size:literal),*) => {$(
        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == 8);

        impl $name {
            /// Its bytes.
            pub fn bytes(&self) -> &[u8] {
                // SAFETY: the structure is repr(C) without padding (its size, asserted above, is
                // the sum of its fields') and initialised; a byte has no alignment or validity
                // requirement.
                unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<$name>()) }
            }
        }
    )*};
}

/// The structures that kernels are launched with.
macro_rules! params {
    ($($name:ident: $size:literal),*) => {
        layout!($($name: $size),*);
        $(impl $name {
            /// The kernel that takes it.
            pub const ENTRY: Entry = Entry::$name;
        })*
    };
}

layout!(QueueState: 64, WaiterState: 64);
params!(Trigger: 136, Wait: 136, Fill: 24, Verify: 32, Transfer: 24);
