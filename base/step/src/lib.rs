//! Time, step machines and bells: the interface between software devices and the drivers that run
//! them.
//!
//! A software GPU, a virtual NIC, a link between two NICs and the watcher are *step machines*
//! ([`Machine`]). A step machine owns no thread and reads no clock. A driver calls
//! [`Machine::step`] with the time. The machine does a bounded amount of work and reports whether
//! it made progress. There are two drivers. [`Live`] uses real threads: one thread steps all
//! devices of a process (it spins while they are busy, and sleeps otherwise), another thread rings
//! doorbells for streams, and each watcher has its own thread. The crate `gds-sim` uses one thread,
//! a virtual clock and a seeded choice of the next machine.
//!
//! Code of a *rank* (an application thread and the library below it) uses the driver through
//! [`Env`]: the time, a wait that works in both drivers, and a bell. [`Host`] is an `Env` to which
//! machines can be attached. [`Shared`] gives a rank access to a machine between its steps.
//! [`Word`] is the atomic word of protocol code, so that the shipped source also runs under a model
//! checker. [`bytes`] copies memory that devices share. [`thread_times`] returns the processor time
//! of each thread of the process, by name.

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
pub use machine::{Awaits, Env, Host, Machine, MachineId, Probe, Shared, Step, Thread};
pub use panics::panic_message;
pub use thread_times::{ThreadTime, thread_times};
pub use time::{Time, after, deadline};
pub use word::Word;
