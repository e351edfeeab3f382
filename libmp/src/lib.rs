//! Two-sided messages (tag matching, eager and rendezvous) on GPU streams.
//!
//! A rank sends and receives in stream order: `isend_on`, `irecv_on` and `wait_on` enqueue the work
//! on the application's stream, in order with its kernels, and the CPU takes no further part in the
//! message. The CPU can post the same requests and wait for them. A CPU thread can also write the
//! doorbell for a stream.
//!
//! ```
//! use std::time::Duration;
//!
//! use mp::Context;
//! use mp::bootstrap::Local;
//! use mp::gdsync::Gpu;
//! use mp::gdsync::gpu::MemoryKind;
//!
//! fn rank(ctx: &Context) -> mp::Result<()> {
//!     let peer = 1 - ctx.rank();
//!     let stream = ctx.gpu().stream()?;
//!     let memory = ctx.alloc(MemoryKind::Device, 64)?;
//!     memory.write(0, &[ctx.rank() as u8; 8])?;
//!
//!     let recv = ctx.irecv_on(&stream, peer, 7, &memory.slice(32, 32)?)?;
//!     let send = ctx.isend_on(&stream, peer, 7, &memory.slice(0, 8)?)?;
//!     recv.wait_on(&stream)?; // later kernels of the stream read the message
//!     drop(send); // detached: the send continues
//!
//!     ctx.synchronize(&stream, Duration::from_secs(10))?; // returns the first error of the stream
//!     let mut bytes = [0; 8];
//!     memory.read(32, &mut bytes)?;
//!     assert_eq!(bytes, [peer as u8; 8]);
//!     assert_eq!(recv.wait(Duration::ZERO)?.len, 8);
//!     ctx.close(Duration::from_secs(10)) // returns the first unreported error
//! }
//!
//! # fn main() -> mp::Result<()> {
//! // Two ranks as threads of this process. Ranks in processes are started by
//! // `mprun -n 2 PROGRAM`, mpirun, srun or torchrun, and call `Context::builder().build()`.
//! let ranks: Vec<_> = Local::ranks(2)
//!     .into_iter()
//!     .map(|job| -> mp::Result<_> {
//!         let gpu = Gpu::soft()?; // a software GPU and, below it, a virtual NIC
//!         let ctx = Context::builder().bootstrap(job).gpu(&gpu).build()?;
//!         Ok(std::thread::spawn(move || rank(&ctx)))
//!     })
//!     .collect::<Result<_, _>>()?;
//! for rank in ranks {
//!     rank.join().expect("no panic")?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modules and types
//! - [`bootstrap`]: the ranks of the job, and how they exchange addresses.
//! - [`Context`]: one rank's part in the job, with one GPU and one NIC; [`Memory`] and [`Slice`].
//! - [`Request`]: a send or a receive in flight; [`SendOp`] and [`RecvOp`] hold all options of one.
//!
//! # Matching
//! A receive names a tag and a source. Under one tag from one rank to another, the n-th send
//! matches the n-th receive, in the order in which they were *prepared* (`isend` and the similar
//! calls prepare and post at once). Matching is by number, so it needs no CPU while messages move.
//! The CPU matches a receive from [`Source::Any`] when a message has arrived.
//!
//! A receive may have more room than the message needs; the bytes after the message are unchanged.
//! Less room is an error on both sides ([`Kind::Truncated`]): nothing is written, and the next
//! message under the tag is received normally. The sender of a short message may have continued
//! before the error is found. It finds the error in its request, while it holds the handle, in
//! [`Context::error_word`] and from [`Context::close`]. If a length word gives the length of a
//! message, the declared maximum counts: a receive of at most the eager limit is too short for a
//! message that is declared longer.
//!
//! # Eager and rendezvous messages
//! A message of up to the eager limit (4096 bytes, [`Builder::eager_limit`]) is eager: it is
//! written into a slot of the receiver's mailbox and copied from there. Each pair of rank and tag
//! has 16 slots ([`Builder::depth`]). The receiver returns slots as credits as it takes messages,
//! so a slow receiver applies backpressure to its senders only. A longer message uses rendezvous:
//! it waits for its receive and is written directly to the receive's memory, without a copy. A
//! receive in several pieces is an exception: it takes pinned memory of the size of its room, and a
//! context keeps up to 64 MiB of this memory for later receives.
//!
//! # Order and streams
//! All work is in stream order: memory is read when the stream reaches the send, and may be written
//! from when the stream reaches the receive. A stream waits at a send without credit, at a
//! rendezvous send without a receive, and at every wait. Each stream has its own queue pair to each
//! peer, so a waiting stream does not block another stream. Streams share queue pairs only if more
//! than seven of them exist. `docs/deadlocks.md` lists the orders that deadlock.
//!
//! # Completion
//! A send has completed when its memory may be written again, a receive when the message is in
//! place. Requests that a stream waits for retire without a call, whatever their number. At most
//! 65,536 requests may be unfinished, or held by a handle, at a time.
//!
//! # Errors and timeouts
//! A wait or test of a failed request returns its failure. A failure that no call has returned is
//! returned by [`Context::synchronize`], if the stream posted the request or waited for it, by
//! [`Context::close`] or by [`Context::take_error`]: the first failure, once, with kind, rank, tag
//! and number. Failures of requests whose handles were dropped are logged as well.
//!
//! A rank that dies, or that exceeds the timeout of a request, is given up. Its requests fail with
//! [`Kind::PeerFailed`], which names the rank. The error text has the missing message, the timeout,
//! and what is known about whether the rank is alive. A stream that waits for the rank continues
//! after the status is stored in the request's word ([`Request::result_word`]) and in the context's
//! word ([`Context::error_word`]). Other ranks are not affected. Messages that had arrived are
//! still received. A warning and [`Context::stuck`] name a stream that has waited for long. The
//! timeout of a request on a stream starts when the stream has passed all earlier requests and what
//! the request waits for is missing; time in a kernel between them counts too.
//!
//! # Progress
//! Messages on streams need no CPU once both ranks have used the tag. A background thread of the
//! context does all other work, or the program does it ([`Progress::Manual`]).
//!
//! # Threads
//! Contexts, memory, requests and bootstraps are `Send` and `Sync`: several threads may use one.
//!
//! # Features
//! `soft`, `emulated` (both on by default) and `serde` are those of [`gdsync`].
//!
//! # Environment
//! `GDS_GPU`, `GDS_PROVIDER`, `GDS_NIC`, `GDS_DOORBELL`, `MP_TELL`, and the variables of the job:
//! see `docs/env.md`.

pub mod bootstrap;
mod context;
mod error;
mod kernels;
#[doc(hidden)]
pub mod mutant;
mod path;
mod region;
mod request;
mod two_sided;
mod wire;

pub use bootstrap::Bootstrap;
pub use context::{Builder, Context, Request, Scope, wait_all, wait_any, wait_some};
pub use error::{Error, Kind, Result};
pub use gdsync;
pub use path::{NicOptions, Path, WordOrder};
pub use region::{Memory, Slice};
pub use request::Done;
pub use two_sided::{Connect, Full, Progress, RecvOp, SendOp, SizeSource, Source, Stuck};

/// Checks what the section on threads promises.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<Builder>();
    shared::<Memory>();
    shared::<Slice>();
    shared::<Request>();
    shared::<Error>();
    shared::<Stuck>();
    shared::<RecvOp<'_>>();
    shared::<SendOp<'_>>();
    shared::<Scope<'_>>();
    shared::<bootstrap::Directory>();
    shared::<bootstrap::Local>();
    shared::<bootstrap::Tcp>();
    shared::<bootstrap::tcp::Server>();
};

/// Entry points for the fuzzers.
#[doc(hidden)]
pub mod fuzzing {
    /// Decodes a control message and encodes it again.
    pub fn control(bytes: &[u8]) -> Option<Vec<u8>> {
        let message = crate::wire::control::Control::decode(bytes).ok()?;
        Some(message.encode())
    }
}

/// Compiles and runs the README's programs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
