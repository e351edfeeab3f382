//! Two-sided messages: sends and receives, by the CPU and on streams.
//!
//! Messages under one tag from one rank to another are numbered, by the sender in the order in
//! which it prepares sends and by the receiver in the order in which it prepares receives; equal
//! numbers match. A message of at most the eager limit (by its declared length) is written into
//! the receiver's mailbox at once, when its slot is free; a *credit* tells the sender so. A longer
//! one goes by rendezvous: its sender announces it (RTS), the receive advertises where it lies and
//! says that it is ready (CTS), and the message is written there.
//!
//! The parts, each with fields of its own, most tested by themselves:
//! - `channel` (one tag to or from a rank: numbers, memory, credits), `channels` (all of a rank: how
//!   they open and go), `peer` (one rank: its lanes, channels, and whether it was given up).
//! - `lanes` (which stream posts on which), `any` (receives from any source), `outbox` (control
//!   messages that wait), `liveness` (whether ranks live), `watch` (where streams stand), `staging`.
//!
//! `state` is all of them behind the one lock of `engine`, which `config` sets up. The engine
//! composes them:
//! - What calls do: `spec`, `open`, `send`, `receive`, `post`, `wait`, `claim` (a stream takes a
//!   message in), `take` (the CPU does), `close`.
//! - What goes on behind them: `progress`, `control`, `finish`, and `texts`, which says it in words.

mod any;
mod channel;
mod channels;
mod claim;
mod close;
pub(crate) mod config;
mod control;
pub(crate) mod engine;
mod finish;
mod lanes;
mod liveness;
mod open;
mod outbox;
mod peer;
mod post;
mod progress;
mod receive;
mod send;
mod spec;
mod staging;
mod state;
mod take;
mod texts;
pub(crate) mod wait;
mod watch;

pub use config::{Connect, Full, Progress};
pub use spec::{RecvOp, SendOp, SizeSource, Source};
pub use watch::Stuck;
