//! Stream memory operations, and the results derived from lists of them: cost, legality, programs,
//! traces.
//!
//! Everything here is pure: it computes lists and accesses no device and no memory. An [`Op`] is
//! one operation of a stream's front end: write a word, wait for a word, copy a few bytes, fence,
//! flush. A [`Batch`] is a list of them with the places where it must not be cut. `post` and
//! `completion` define the operations that ring a doorbell and those that wait for a completion
//! entry. A batch keeps its needs and its cost up to date as it grows. `cost` decides when a kernel
//! is cheaper, `legal` rewrites a batch into operations that a runtime's [`Caps`] allow, `program`
//! encodes it as a kernel's parameter, and `trace` prints each submission.

mod batch;
mod caps;
pub(crate) mod completion;
pub(crate) mod cost;
pub(crate) mod legal;
mod op;
pub(crate) mod post;
pub(crate) mod program;
pub(crate) mod trace;

pub use batch::Batch;
pub(crate) use batch::Role;
pub use caps::Caps;
pub(crate) use caps::Needs;
pub use op::{Condition, DevicePtr, Inline, Op, Width};
