//! The simulation: one thread, virtual time, and an order of events that a seed draws.
//!
//! [`exchange`] draws from a seed a program of messages, the capabilities of the runtime and the
//! settings of queues. [`directed`] has the scenarios that a random program would reach too rarely:
//! failures, blocked streams, silent peers. [`mp`] tests messages of `mp`. `world` is the common
//! base, and [`mutants`] finds seeds that detect mutants.

pub mod directed;
pub mod exchange;
pub mod mp;
pub mod mutants;
mod world;
