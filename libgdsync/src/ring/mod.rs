//! The bytes and the rules of the rings: send queue, receive queue, completion queue.
//!
//! Pure logic over [`RingMemory`]: no device, no thread, no clock, no lock. [`fifo`] is the order
//! of both work queues (prepare, then post or abort, then retire), [`send`] and [`recv`] add the
//! entries' bytes, [`cq`] assigns completion positions and decides when an entry may be reused,
//! [`fault`] attributes error entries and releases the streams that wait for them.

pub mod cq;
pub mod fault;
pub mod fifo;
pub mod memory;
pub mod recv;
pub mod send;

#[cfg(test)]
mod tests;

pub use cq::CompletionRing;
pub use fifo::{Poster, Ticket};
pub use memory::RingMemory;
pub use recv::ReceiveQueue;
pub use send::SendQueue;

/// The reason for which a ring refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The send queue has no room for the request; the limit is its basic blocks.
    SendQueueFull { limit: u32 },
    /// The receive queue has no room for another entry; the limit is its entries.
    ReceiveQueueFull { limit: u32 },
    /// No completion entry may be reused yet; the limit is the number that may be outstanding.
    CompletionQueueFull { limit: u32 },
    /// Another request, prepared earlier, must be posted or aborted first.
    OutOfOrder { first: u64 },
    /// The request is posted already.
    AlreadyPosted,
    /// The request was aborted.
    Aborted,
    /// The request is so old that the ring does not know what became of it.
    Forgotten,
    /// Only the newest receive can be aborted: an entry in the middle cannot be made void.
    NotNewest,
    /// More streams wait on one completion queue than it has waiters.
    TooManyWaiters { limit: u32 },
    /// The request takes more blocks than the queue has.
    TooLarge { blocks: u32, limit: u32 },
    /// The request cannot be encoded.
    Format(mlx5_prm::wqe::FormatError),
}
