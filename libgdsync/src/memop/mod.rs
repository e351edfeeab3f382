//! The vocabulary of stream memory operations, and what is made of lists of them: cost, legality,
//! programs, traces.
//!
//! Everything here is pure: it computes lists, touches no device and no memory. An [`Op`] is
//! one operation of a stream's front end: write a word, wait for a word, copy a few bytes,
//! fence, flush. A [`Batch`] is a list of them with the places where it must not be cut.
//! `post` and `completion` say which operations ring a doorbell and which wait for a
//! completion entry. A batch counts itself as it grows (what it needs, what it costs); `cost` says
//! when a kernel is cheaper, `legal` rewrites it into what a runtime's [`Caps`] allow, `program`
//! makes a kernel's parameter of it, and `trace` prints what is submitted.

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
