//! Windows: one-sided operations on memory of other ranks.
//!
//! `targets` has the memory of each rank, `join` exchanges it among all ranks, `op` posts
//! puts, gets, signals and atomics. `signal` waits for signals, which are words of this rank's
//! memory in a window, `word` for words of any registered memory. `ready` sends ready words and
//! waits for them.
//!
//! The operations are those of the engine of `two_sided`, which has the lanes, the requests and the
//! background work. [`Window`](crate::Window) is the handle of the application.

mod join;
mod op;
mod ready;
mod signal;
mod targets;
mod word;

pub(crate) use op::{Access, WindowOp};
pub(crate) use ready::ReadyWords;
pub(crate) use signal::Awaited;
pub(crate) use targets::Targets;
