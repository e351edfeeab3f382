//! Time, step machines and bells: what software devices and the drivers that run them share.
//!
//! A software GPU, a virtual NIC, a link between two NICs, the watcher: each is a
//! *step machine* ([`Machine`]): it owns no thread and reads no clock. A driver calls
//! [`Machine::step`] with the time, and the machine does a bounded piece of work and says
//! whether it got anywhere. Two drivers exist: [`Live`] (a thread
//! steps all devices of a process, spins while they are busy and sleeps when they are not; another
//! rings for streams, and each watcher has its own) and the
//! crate `gds-sim` (one thread, a virtual clock, a seeded choice of the next machine).
//!
//! Code that belongs to a *rank* (an application thread and the library below it) sees the
//! driver through [`Env`]: the time, a way to wait that works in both worlds, and a bell.
//! [`Host`] is an `Env` that machines can be attached to. [`Shared`] lets a rank operate on a
//! machine between its steps, and [`Word`] is the atomic word that protocol code is generic
//! over, so that the shipped source also runs under a model checker. [`bytes`] copies memory that
//! devices share. [`thread_times`] reads the processor time of each thread of the process, by name.

mod bell;
pub mod bytes;
mod live;
mod lock;
mod machine;
mod mutants;
mod panics;
mod thread_times;
mod time;
mod word;

pub use bell::{Bell, BellError};
pub use live::{Failure, Live, LiveConfig, LiveError};
pub use lock::Mutex;
pub use machine::{Env, Host, Machine, MachineId, Probe, Shared, Step, Thread};
pub use panics::panic_message;
pub use thread_times::{ThreadTime, thread_times};
pub use time::{Time, after, deadline};
pub use word::Word;
