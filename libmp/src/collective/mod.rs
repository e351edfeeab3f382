//! Collective calls: barrier, broadcast, all-gather, all-to-all and all-reduce of small data, by the
//! CPU and by streams.
//!
//! `op` has the operations of an all-reduce, `team` the memory of the ranks, `call` what a call sends
//! where, `cpu` and `stream` post calls and wait. [`Collectives`](crate::Collectives) is the handle
//! of the application. How calls of streams end, and how a team fails, is background work:
//! `two_sided::team`.
//!
//! # A call
//! The calls of a team are numbered. The first number is 1 more than the lowest 32 bits of the
//! setting `Builder::start`. In call `n` each rank puts its contribution into its *slot* at every
//! other rank, and then its *word* (`wire::collective`), which has `n` and the kind of the call.
//! Then it waits for the words of all other ranks, compares them with its own, and copies or
//! combines the contributions. So every call, also a broadcast, is a barrier.
//!
//! # Why slots can be used again
//! A rank has words and slots for two calls: call `n` uses those of parity `n % 2`. No message
//! reports that slots are free; the order of the calls implies it:
//!
//! 1. A rank starts call `n + 1` only when its call `n` has ended: its slots of call `n` are read.
//!    The calls of one rank have one order: `&mut self`, and the CPU and other streams wait for the
//!    stream of the last call.
//! 2. Rank `s` starts call `n + 2` only when its call `n + 1` has ended, for which it has waited for
//!    the word `n + 1` of every rank `r`.
//! 3. Rank `r` stores this word in its call `n + 1`, so, by 1, when its call `n` has ended.
//!
//! Hence, when `s` writes into the slots and words of call `n + 2` at `r`, which are those of call
//! `n`, rank `r` has read them. Equally, `r` may write in call `n + 2` the memory from which it has
//! put in call `n`: it then has the words `n + 1` of all ranks, and each rank stored its word when
//! its call `n` had ended, so with the contribution of `r`. So no call waits for the completion of
//! its puts. The same order shows that words for two successive calls suffice to find a rank that
//! has made another call: the word of call `n` is compared before any rank can store that of call
//! `n + 2`.
//!
//! # The same result everywhere
//! An all-reduce gathers the contributions and combines them in the order of the ranks, on each
//! rank for itself: the same operations on the same operands, so the same bits, even for sums of
//! floating-point numbers, whether a rank calls by the CPU or by a stream. Results that are NaN
//! become one NaN.
//!
//! # Failures
//! The first failure of a call ends the team on this rank, and a control message ends it on the
//! others ([`Control::Broken`](crate::wire::control::Control)), so no rank waits for a rank whose
//! call has failed. Streams that wait for words are released: the library
//! stores values that no rank stores, and the kernel then copies nothing.

mod call;
mod cpu;
pub(crate) mod op;
mod stream;
mod team;

pub use op::{Number, Op};

pub(crate) use call::CollectiveCall;
pub(crate) use stream::Buffers;
pub(crate) use team::TeamHandle;
