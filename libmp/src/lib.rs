//! Messages on GPU streams.
//!
//! A rank sends and receives beside its kernels: `isend_on`, `irecv_on` and `wait_on` put work on
//! the application's stream, in order with what it computes, and the CPU has nothing more to do
//! with the message. The same requests can be posted and waited for by the CPU, or by a stream
//! for which a CPU thread rings the NIC.
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
//!     recv.wait_on(&stream)?; // kernels enqueued from here on find the message
//!     drop(send); // detached: it goes on
//!
//!     ctx.synchronize(&stream, Duration::from_secs(10))?; // the first error of what was enqueued
//!     let mut bytes = [0; 8];
//!     memory.read(32, &mut bytes)?;
//!     assert_eq!(bytes, [peer as u8; 8]);
//!     assert_eq!(recv.wait(Duration::ZERO)?.len, 8);
//!     ctx.close(Duration::from_secs(10)) // the first error that no call has returned
//! }
//!
//! # fn main() -> mp::Result<()> {
//! // Two ranks, threads of this process. As processes they find each other by
//! // `mprun -n 2 PROGRAM`, mpirun, srun or torchrun, and `Context::builder().build()`.
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
//! # The rooms
//! - [`bootstrap`]: who is in the job, and how ranks find each other.
//! - [`Context`]: one rank's part in it, over one GPU and one NIC; [`Memory`] and [`Slice`].
//! - [`Request`]: sends and receives under way; [`SendOp`] and [`RecvOp`] are all that can be said of
//!   one.
//!
//! # Matching
//! A receive names a tag and a source. Under one tag from one rank to another, the n-th send
//! meets the n-th receive, in the order in which they were *prepared* (`isend` and its like prepare
//! and post at once). Nobody matches anything while messages move, so no CPU is needed. A
//! receive from [`Source::Any`] is matched by the CPU when a message has come.
//!
//! A receive may have more room than the message needs; what lies behind the message stays as it
//! is. Less room is an error on both sides ([`Kind::Truncated`]), nothing is written, and the
//! next message under the tag is received as if nothing had been. The sender of a short message
//! may have gone on before: it learns from its request, while it holds it, from
//! [`Context::error_word`] and from [`Context::close`]. Where a length word says how long a
//! message is, its declared most counts: a receive of at most the eager limit is too short for one that is declared longer.
//!
//! # Short and long messages
//! Up to the eager limit (4096 bytes, [`Builder::eager_limit`]) a message goes into a slot of the
//! receiver's mailbox and is copied from there. A rank and a tag have 16 slots
//! ([`Builder::depth`]), which the receiver gives back as it takes messages: a receiver that is
//! slow stalls its senders, and nobody else. Longer messages wait for their receive and are
//! written where that wants them, without a copy, unless it is a receive in several pieces: that
//! takes pinned memory for as much as it has room for, of which a context keeps 64 MiB for the next.
//!
//! # Order and streams
//! Everything happens in stream order: memory is read when the stream gets to the send, and
//! may be written from when it gets to the receive. A stream stands still at a send without room
//! and at a long send without receive, and at every wait. Each stream has a queue pair of its own
//! to each peer, so that one which stands still does not hold up another; streams share queue pairs
//! only while more than seven of them exist. `docs/deadlocks.md` says which orders cannot end.
//!
//! # Completion
//! A send has ended when its memory may be written again, a receive when the message is in
//! place. Requests that a stream waits for retire by themselves: no call is needed however many
//! there are. At most 65,536 may be unfinished, or held, at a time.
//!
//! # Errors and time
//! A wait or test of a request that failed returns its failure. A failure that no call has
//! returned is returned by [`Context::synchronize`], if the stream posted the request or waited for
//! it, by [`Context::close`] or by [`Context::take_error`]: the first one, once, with kind, rank, tag
//! and number. Failures of requests whose handles were dropped are logged as well.
//!
//! A rank that dies, or fails a request by its time limit, is given up: its requests fail
//! with [`Kind::PeerFailed`], naming it, and say what did not come, in which time, and what is known
//! of the rank's life; the streams that wait for it go on, having stored the
//! status in the request's word ([`Request::result_word`]) and the context's
//! ([`Context::error_word`]), and everybody else is as before. What had arrived is still received.
//! A stream that has waited for long is named by a warning and [`Context::stuck`]. The time limit of
//! a request on a stream counts from when the stream has passed all earlier ones and what it
//! waits for is not there; a kernel in between counts too.
//!
//! # Progress
//! Messages on streams need no CPU once both ranks have used the tag. Everything else is done in
//! the background by a thread of the context, or by the program ([`Progress::Manual`]).
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

/// What the section on threads promises.
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

/// What the fuzzers call.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a control message and writes it again.
    pub fn control(bytes: &[u8]) -> Option<Vec<u8>> {
        let message = crate::wire::control::Control::decode(bytes).ok()?;
        Some(message.encode())
    }
}

/// The README's programs are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
