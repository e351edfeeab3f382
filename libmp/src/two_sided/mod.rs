//! Two-sided messages: sends and receives, by the CPU and on streams.
//!
//! Messages under one tag from one rank to another are numbered, by the sender in the order in
//! which it prepares sends and by the receiver in the order in which it prepares receives; equal
//! numbers match. A message of at most the eager limit (by its declared length) is written into
//! the receiver's mailbox at once, when its slot is free; a longer one is announced, waits
//! until the receive says that it is there, and is written where that lies.

mod any;
mod channel;
mod claim;
pub(crate) mod config;
mod credit;
pub(crate) mod engine;
mod finish;
mod lanes;
mod liveness;
mod open;
mod peer;
mod post;
mod receive;
mod send;
mod spec;
mod staging;
mod state;
mod take;
mod turn;
pub(crate) mod wait;
mod watch;
mod words;

pub use config::{Connect, Full, Progress};
pub use spec::{Recv, Send, SizeSource, Source};
pub use state::Stuck;
