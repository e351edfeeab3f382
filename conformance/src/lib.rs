//! Checks of the library's guarantees from outside, by random programs and faults.
//!
//! `program`, `datagrams` and `mp` draw and play programs of messages, on the queue pairs of a `rig`.
//! [`sim`] runs them in the simulation, where every seed is an order of events; [`hardware`] on real
//! threads and real GPUs, over every GPU runtime present.

mod datagrams;
pub mod hardware;
mod mp;
mod program;
mod rig;
pub mod sim;
