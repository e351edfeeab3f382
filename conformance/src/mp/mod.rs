//! Programs of messages of [`mp`]: ranks that send, receive and compare every byte.
//!
//! [`setup`] has the settings of messages, [`plan`] draws the messages, [`memory`] has their
//! memory, and [`rank`] runs one rank. [`pair`] exchanges messages with one other rank, in rounds.

pub mod memory;
pub mod pair;
pub mod plan;
pub mod rank;
pub mod setup;
