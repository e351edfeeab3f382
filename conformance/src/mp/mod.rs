//! Programs of messages of [`mp`]: ranks that send, receive and look at every byte.
//!
//! [`setup`] says what messages are like, [`plan`] draws them, [`memory`] has what they are made of
//! and land in, [`rank`] plays one rank. [`pair`] is for messages with one other rank, in rounds.

pub mod memory;
pub mod pair;
pub mod plan;
pub mod rank;
pub mod setup;
