//! What the library promises, checked from outside over random programs and faults.
//!
//! [`exchange`] draws a program from a seed, what the runtime can do and how queues are made, and
//! runs it under the simulation: the programs are those of `hardware::program`.
//! [`directed`] holds the scenarios that a random program would meet too rarely: failures,
//! held streams, silent peers. `world` is what all of them stand on; `mp_sim` are messages in it, of
//! programs that `mp` draws and plays, and `mutants` hunts for what breaks a rule.
//!
//! [`hardware`] is for real threads and real GPUs, over every GPU runtime present, on the rig of `live`; `cover`
//! draws a few cells from a matrix too large to be run whole.

mod cover;
pub mod digest;
pub mod directed;
pub mod exchange;
pub mod hardware;
pub mod live;
mod mp;
pub mod mp_sim;
pub mod mutants;
mod world;
