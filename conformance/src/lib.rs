//! What the library promises, checked from outside over random programs and faults.
//!
//! [`plan`] draws a program from a seed: who sends what to whom, how it is posted, what is
//! aborted, what the runtime can do. [`exchange`] runs such a program on two ranks under the
//! simulation and checks every byte. [`directed`] holds the scenarios that a random program
//! would meet too rarely: failures, held streams, silent peers. [`world`] is what all of
//! them stand on.

pub mod directed;
pub mod exchange;
pub mod plan;
pub mod world;
