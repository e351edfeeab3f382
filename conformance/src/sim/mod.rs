//! What runs in the simulation: one thread, virtual time, and an order of events that a seed draws.
//!
//! [`exchange`] draws a program of messages from a seed, what the runtime can do and how queues are
//! made. [`directed`] holds the scenarios that a random program would meet too rarely: failures, held
//! streams, silent peers. [`mp`] are messages of `mp`. `world` is what all of them stand on, and
//! [`mutants`] hunts for what breaks a rule.

pub mod directed;
pub mod exchange;
pub mod mp;
pub mod mutants;
mod world;
