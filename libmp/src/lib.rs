//! Messages between ranks on GPU streams: two-sided, with tags, flow control and timeouts.
//!
//! `isend_on`, `irecv_on` and `wait_on` enqueue messages on the application's stream, in order with
//! its kernels. After both ranks have used a tag once, its messages need no CPU. The CPU can post
//! the same requests and wait for them.
//!
//! ```
//! use std::time::Duration;
//!
//! use mp::Context;
//! use mp::bootstrap::Local;
//! use mp::gdsync::Gpu;
//! use mp::gdsync::gpu::MemoryKind;
//!
//! fn ring(ctx: &Context) -> mp::Result<()> {
//!     let (rank, size) = (ctx.rank(), ctx.size());
//!     let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
//!     let stream = ctx.gpu().stream()?;
//!     let memory = ctx.alloc(MemoryKind::Device, 2 << 20)?;
//!     memory.write(0, &[rank as u8; 1 << 20])?;
//!
//!     let recv = ctx.irecv_on(&stream, left, 7, &memory.slice(1 << 20, 1 << 20)?)?;
//!     // enqueue kernels that compute what is sent
//!     let send = ctx.isend_on(&stream, right, 7, &memory.slice(0, 1 << 20)?)?;
//!     recv.wait_on(&stream)?; // kernels enqueued from here on find the message
//!     drop(send); // a dropped request completes by itself
//!
//!     ctx.synchronize(&stream, Duration::from_secs(10))?; // returns the first error of the stream
//!     let mut bytes = vec![0; 1 << 20];
//!     memory.read(1 << 20, &mut bytes)?;
//!     assert!(bytes.iter().all(|byte| *byte == left as u8));
//!     ctx.close(Duration::from_secs(10)) // returns the first unreturned error
//! }
//!
//! # fn main() -> mp::Result<()> {
//! // Two ranks as threads of this process. A rank that is a process calls
//! // `ring(&Context::builder().build()?)`; mprun, mpirun, srun or torchrun starts it.
//! let ranks: Vec<_> = Local::ranks(2)
//!     .into_iter()
//!     .map(|job| -> mp::Result<_> {
//!         let gpu = Gpu::soft()?; // a software GPU; its NIC is a virtual ConnectX
//!         let ctx = Context::builder().bootstrap(job).gpu(&gpu).build()?;
//!         Ok(std::thread::spawn(move || ring(&ctx)))
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
//! The rank and its job:
//! - [`Context`]: one rank's part in a job, with one GPU and one NIC. [`Builder`] builds it, with
//!   the settings [`Connect`], [`Progress`], [`Full`], [`NicOptions`] and [`WordOrder`].
//! - [`bootstrap`]: how the ranks of a job find each other: threads of one process, a directory, a
//!   TCP store, or the launcher's environment variables.
//!
//! Messages:
//! - [`Memory`], [`Slice`], [`Strided`]: registered GPU or host memory, a range of its bytes, and
//!   pieces of it at equal distances.
//! - [`Request`]: a send, a receive or an operation of a window in flight; [`Done`] is its result.
//!   [`wait_all`], [`wait_any`] and [`wait_some`] wait for several.
//! - [`SendOp`], [`RecvOp`]: a send or a receive with all options; [`Source`] and [`SizeSource`]
//!   are two of them. [`NULL_RANK`] is a rank without messages.
//! - [`Context::sendrecv`], [`Context::sendrecv_on`]: a send and a receive in one call.
//!   [`Context::post_all_on`], [`Context::wait_all_on`]: several requests in one submission.
//! - [`Scope`]: messages of borrowed host memory.
//!
//! One-sided operations:
//! - [`Window`]: memory that other ranks write and read without a receive: put, get, signal,
//!   fetch-add and compare-swap.
//! - [`Context::send_ready`], [`Context::wait_ready`]: ready words, by hand.
//! - [`Context::wait_value`]: waits of the CPU and of streams for any word of registered memory.
//!
//! Exchanges with neighbours:
//! - [`Neighbourhood`]: a halo exchange that is built once and repeated: three calls for each step,
//!   whatever the number of neighbours. [`Neighbour`] is one of them, [`Neighbours`] builds it.
//!
//! Collective calls:
//! - [`Collectives`]: barrier, broadcast, all-gather, all-to-all and all-reduce of small data, by the
//!   CPU and by streams; [`Op`] and [`Number`] say what an all-reduce computes.
//!
//! Failures and diagnosis:
//! - [`Error`], [`Kind`], [`Result`]: what failed, for which rank, tag and message.
//! - [`Stats`]: numbers of messages, operations, bytes and waits by peer ([`Counts`]);
//!   [`Builder::trace`]: a timeline.
//! - [`Context::agree`]: which ranks are lost, the same answer at all survivors ([`Agreed`]).
//! - [`Stuck`]: a stream that has waited for long; [`Path`]: how bytes reach a rank.
//!
//! [`gdsync`], the library below, has GPUs, streams, kernels, NICs and RDMA verbs.
//!
//! # Matching and order
//! A receive names a tag and a source. Under one tag from one rank to another, the n-th send
//! matches the n-th receive, in the order in which they were *prepared*: `isend` and the similar
//! calls prepare and post at once, [`Context::prepare_send`] prepares only. A message can arrive
//! before an earlier message of its tag, for instance if two streams send them; it still goes to
//! its own receive. Messages of different tags, or of different pairs of ranks, have no order.
//! Matching is by number, so it needs no CPU while messages move. The CPU matches a receive from
//! [`Source::Any`] when a message has arrived. Every value of `u32` is a tag. A rank can send to
//! itself.
//!
//! A receive may have more room than the message needs; the bytes after the message are unchanged.
//! Less room is an error on both sides ([`Kind::Truncated`]): nothing is written, and the next
//! message under the tag is received normally. The sender of an eager message may have continued
//! before the error is found. It finds the error in its request if it still holds the handle, in
//! [`Context::error_word`] and from [`Context::close`]. If a length word gives the length of a
//! message ([`SizeSource::Word`]), the length of its segment decides in place of the word: if the
//! segment is longer than the eager limit, a receive of at most the eager limit is too short.
//!
//! All work of a stream is in stream order. The memory of a send is read when the stream reaches
//! the send; the memory of a receive may be written from when the stream reaches the receive. A
//! request that the CPU posts is not ordered with any stream: its memory may be used from the call
//! on. Each stream has its own queue pair to each peer, so a waiting stream does not block another
//! stream. Streams share queue pairs only if more than seven of them exist.
//!
//! # Eager and rendezvous
//! A message of up to the eager limit (default 4096 bytes, by TCP 256 KiB, [`Builder::eager_limit`]) is
//! *eager*: it is written into a slot of the receiver's mailbox, even if its receive is not posted yet, and is
//! copied from there. Each pair of rank and tag has 16 slots ([`Builder::depth`]), whose memory is
//! allocated before the first eager message. The receiver returns slots as credits as it takes
//! messages, so a slow receiver applies back-pressure to its senders only. A sender without a credit
//! waits: its stream, or its CPU request.
//!
//! A longer message uses *rendezvous*: it waits for its receive and is then written to the memory
//! of the receive, without a copy. **A stream that sends a message above the eager limit waits at
//! the send until the receive is posted**; later work of the stream waits too. Post receives before
//! sends. A receive in several pieces is staged: it takes pinned memory of the size of its room.
//! A send or a receive of more than 30 pieces ([`Strided`]) is staged as well, of any length; and, by
//! TCP on other GPUs than software ones, a send by a stream of up to 256 KiB of device memory in one
//! piece, and such a receive above the eager limit. A context keeps up to 64 MiB of this memory for
//! later messages.
//!
//! A stream waits at a send without a credit, at a rendezvous send without a posted receive, and at
//! every `wait_on`. No call blocks meanwhile, and no call detects that two streams wait for each
//! other: `docs/deadlocks.md` lists the orders that deadlock.
//!
//! # Completion
//! A send has completed when its memory may be written again. This is local: the peer may not have
//! received an eager message yet. A receive has completed when the message is in place. Completion
//! is seen by the CPU ([`Request::test`], [`Request::wait`]), by streams ([`Request::wait_on`]) and
//! by kernels ([`Request::result_word`]). [`Context::flush`] waits for all posted sends. Requests
//! that a stream waits for retire without a call, whatever their number. At most 65,536 requests
//! may be unfinished, or held by a handle, at a time.
//!
//! # Timeouts
//! - The start of a job: 60 s, `MP_START_TIMEOUT`, or the limit that the call passes; then
//!   [`Kind::Missing`], which names the ranks.
//! - The first use of a peer or a tag, and the first eager message under a tag behind messages or
//!   receives above the eager limit, wait for the background work of the peer: at most
//!   [`Builder::timeout`] (default 30 s), then [`Kind::Timeout`], which names the rank.
//! - A call that finds no room waits at most twice [`Builder::timeout`], then
//!   [`Kind::QueueFull`]; with [`Full::Fail`] it fails at once.
//! - A send, and a receive or a signal that a stream waits for: [`Builder::timeout`], or
//!   [`SendOp::timeout`] and [`RecvOp::timeout`] for one request; then the peer is given up, see
//!   below. A receive from any rank has no peer: it alone fails, with [`Kind::Failed`].
//! - A receive that only the CPU waits for has no timeout, unless [`RecvOp::timeout`] sets one.
//! - A wait of the CPU ([`Request::wait`], [`Context::synchronize`], [`Context::close`]): the limit
//!   that the call passes, then [`Kind::Timeout`]; nothing has changed, and the call may be
//!   repeated.
//! - [`Context::agree`]: its limit, then [`Kind::Missing`], which names the ranks that did not call.
//!   A rank that answers no ping for half of it is lost.
//! - A stream that has waited for [`Builder::watchdog`] (default 10 s) continues to wait: a warning
//!   and [`Context::stuck`] name the message that it waits for.
//!
//! The timeout of a request on a stream starts when the stream has passed all earlier requests, and
//! the message, credit or receive that the request needs is missing. The time of a kernel between
//! the two requests counts too.
//!
//! # Failures
//! A wait or test of a failed request returns its failure. A failure that no call has returned is
//! returned by [`Context::synchronize`], if the stream posted the request or waited for it, by
//! [`Context::close`] or by [`Context::take_error`]: the first failure, once, with kind, rank, tag
//! and number. Failures of requests whose handles were dropped are logged as well (`tracing`,
//! target `mp`).
//!
//! A rank that dies, or that exceeds the timeout of a request, is *given up*: the context uses it
//! no more, and informs it if it is alive. All requests with it fail with [`Kind::PeerFailed`],
//! which names the rank. The error text has the missing message, the timeout, and what is known
//! about whether the rank is alive. A stream that waits for the rank continues after the status is
//! stored in the request's word ([`Request::result_word`]) and in the context's word
//! ([`Context::error_word`]). Messages that had arrived are still received. Messages between other
//! ranks are not affected.
//!
//! A dead peer is not detected directly. A send to it fails when the NIC's retries are exhausted:
//! after 1.07 s by default, on a physical NIC after up to four times as long. Any request with it
//! fails when the bootstrap reports that the peer's process has ended, or with the timeout. If the
//! bootstrap's store is lost, open peers and tags stay usable, and no others can be opened
//! ([`Kind::BootstrapLost`]).
//!
//! ```
//! # use std::time::Duration;
//! # use mp::{Context, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
//! use mp::Kind;
//! # let open = |job| Context::builder().bootstrap(job).gpu(&Gpu::soft()?).build();
//! # let mut jobs = Local::ranks(2).into_iter().map(open);
//! # let (ctx, rank_1) = (jobs.next().unwrap()?, jobs.next().unwrap()?);
//! # let memory = ctx.alloc(MemoryKind::Pinned, 64)?.all();
//!
//! let recv = ctx.irecv(1, 7, &memory)?;
//! drop(rank_1); // the peer dies
//! let e = recv.wait(Duration::from_secs(10)).unwrap_err();
//! assert!(matches!(e.kind(), Kind::PeerFailed(_)));
//! assert_eq!((e.rank(), e.tag(), e.number()), (Some(1), Some(7), Some(0)));
//! println!("{e}"); // one sentence: operation, object, reason
//! # Ok::<(), mp::Error>(())
//! ```
//!
//! Ranks find a loss at different times, and those that exchange no messages with the lost rank may
//! never find it. [`Context::agree`] returns the set of lost ranks, the same at all survivors, also
//! if ranks are lost during the call.
//!
//! # Progress and threads
//! Messages on streams need no CPU once both ranks have used the tag. A background thread of the
//! context does all other work, or the program does it ([`Progress::Manual`]). Contexts, memory,
//! requests and bootstraps are `Send` and `Sync`: several threads may use one. A child process of
//! `fork` may call `exec` and must not use the library.
//!
//! # Features
//! - `soft` (default): the software GPU. Without it no C++ compiler is needed.
//! - `emulated` (default): the virtual ConnectX in the process.
//! - `serde`: the addresses of [`gdsync`] implement the traits of serde.
//!
//! # Environment
//! `GDS_GPU`, `GDS_PROVIDER`, `GDS_NIC`, `GDS_DOORBELL`, `MP_TELL`, `MP_TRACE`, and the variables of
//! the job: see `docs/env.md`.

#![deny(clippy::missing_errors_doc)]
#![deny(clippy::missing_panics_doc)]
#![deny(clippy::missing_safety_doc)]

mod agreement;
pub mod bootstrap;
mod collective;
mod context;
mod error;
mod kernels;
#[doc(hidden)]
pub mod mutant;
mod neighbourhood;
mod path;
mod plan;
mod region;
mod request;
mod stats;
mod trace;
mod two_sided;
mod window;
mod wire;

pub use bootstrap::Bootstrap;
pub use collective::{Number, Op};
pub use context::{
    Agreed, Builder, Collectives, Context, Neighbourhood, Neighbours, Request, Scope, Window,
    wait_all, wait_any, wait_some,
};
pub use error::{Error, Kind, Result};
pub use gdsync;
pub use neighbourhood::Neighbour;
pub use path::{NicOptions, Path, PathChoice, WordOrder};
pub use region::{Memory, Slice, Strided};
pub use request::Done;
pub use stats::{Counts, PeerStats, Stats};
pub use two_sided::{
    Connect, Full, NULL_RANK, Progress, RecvOp, SendOp, SizeSource, Source, Stuck,
};

/// Checks what the section on threads promises.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<Builder>();
    shared::<Memory>();
    shared::<Slice>();
    shared::<Strided>();
    shared::<Request>();
    shared::<Window>();
    shared::<Neighbourhood>();
    shared::<Neighbours>();
    shared::<Neighbour>();
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
    /// The version of control messages.
    pub const CONTROL_VERSION: u16 = crate::wire::control::VERSION;

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
