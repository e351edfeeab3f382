//! The common ground of the software devices and the drivers that run them.
//!
//! A software GPU, a virtual NIC, a link between two NICs, the watcher: each is a
//! *step machine* ([`Machine`]): it owns no thread and reads no clock. A driver calls
//! [`Machine::step`] with the time, and the machine does a bounded piece of work and says
//! whether it got anywhere. Two drivers exist: `sim` (one thread, a virtual clock, a seeded
//! choice of who steps) and `live` (one device thread a process).
//!
//! Code that belongs to a *rank* (an application thread and the library below it) sees the
//! driver through [`Env`]: the time, a way to wait that works in both worlds, and a bell.
//! [`Host`] is an `Env` that machines can be attached to. [`Shared`] lets a rank operate on a
//! machine between its steps, and [`Word`] is the atomic word that protocol code is generic
//! over, so that the shipped source also runs under a model checker.

mod bell;
mod machine;
mod mutants;
mod time;
mod word;

pub use bell::{Bell, BellError};
pub use machine::{Env, Host, Lane, Machine, MachineId, Probe, Shared, Step};
pub use time::{Time, after, deadline};
pub use word::Word;
