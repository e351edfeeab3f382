//! Two-sided messages: sends and receives, by the CPU and on streams.
//!
//! Messages under one tag from one rank to another are numbered, by the sender in the order in
//! which it prepares sends and by the receiver in the order in which it prepares receives; equal
//! numbers match. A message of at most the eager limit (by its declared length) is written into
//! the receiver's mailbox at once, when its slot is free; a longer one is announced, waits
//! until the receive says that it is there, and is written where that lies.

mod any;
pub(crate) mod channel;
mod claim;
mod credit;
mod finish;
mod post;
mod receive;
mod send;
mod spec;
mod take;
mod turn;
mod watch;
pub(crate) mod words;

pub(crate) use post::{note_waiter, uncaptured};
pub(crate) use spec::On;
pub use spec::{Recv, Send, SizeSource, Source};
