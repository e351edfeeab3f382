//! A zero-SM message: the states of its send or of its receive.

use gdsync::Status;
use gdsync::gpu::Region;

/// How a message moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sender copies to the memory of the receive.
    Direct,
    /// By a slot of the receiver.
    Staged {
        /// The slot.
        slot: u64,
    },
    /// The receiver copies from the memory of the send.
    Pulled,
}

/// The fields of a zero-SM send or receive.
#[derive(Debug)]
pub(crate) struct ZeroSm {
    pub sends: bool,
    pub way: Way,
    /// Of a receive whose send was first: bytes of the message.
    pub arriving: u64,
    /// Where a receive of a long message copies from, if its send was first; or where a send by the CPU
    /// copies to.
    pub far: Option<(Region, usize)>,
    /// A send by the CPU that waits for its receive or for its slot.
    pub queued: bool,
    /// Bytes that the CPU has copied.
    pub moved: u64,
    /// The stream that takes the message in, or the first one that waits for it.
    pub claimed: Option<u64>,
    /// The CPU was asked to complete it.
    pub wanted: bool,
    /// How it ended.
    pub done: Option<Status>,
}
