//! Two-sided messages: sends and receives, by the CPU and on streams.
//!
//! Messages under one tag from one rank to another have numbers. The sender counts in the order in
//! which it prepares sends, the receiver in the order in which it prepares receives; equal numbers
//! match. A message of at most the eager limit (by its declared length) is written into the
//! receiver's mailbox as soon as its slot is free; a *credit* from the receiver frees the slot. A
//! longer message uses rendezvous: its sender announces it (RTS), the receive advertises its memory
//! and writes a ready word (CTS), and the message is written there.
//!
//! The parts, each with its fields, most of them with unit tests:
//! - `channel` (one tag to or from a rank: numbers, memory, credits), `channels` (all channels of a
//!   rank: how they open and retire), `peer` (one rank: its lanes, channels, and whether it was
//!   given up).
//! - `circuits` (messages in CUDA graphs), `zero_sm` (messages without kernels).
//! - `lanes` (which stream posts on which lane), `any` (receives from any rank), `outbox` (control
//!   messages that wait), `liveness` (whether ranks are alive), `watch` (where streams wait),
//!   `staging` and `packed` (messages in many pieces).
//!
//! `state` contains all of them, behind the one lock of `engine`; `config` has the settings. The
//! engine composes them:
//! - Calls of the application: `spec`, `open`, `send`, `receive`, `null`, `bind`, `post`, `wait`,
//!   `transfer` (posting operations of windows), `post_all` (with `passes` and `take_back`) and `wait_all`
//!   (several requests in one submission), `claim` (a stream takes a message in), `marks` (how far streams have
//!   come), `take` (the CPU takes a message in), `at_once` (short messages of the CPU by mapped memory, in one
//!   step), `flush`, `close`, `agree` (agreements on lost ranks), `ready` (the memory of ready words), `capture`
//!   (messages in CUDA graphs), `zero_choice`, `zero_post` and `zero_wait` (zero-SM messages).
//! - Background work: `progress`, `control`, `finish`, `zero_advance`, `steps` (neighbourhoods), `team` (collective
//!   calls), and `texts`, which describes it in errors and logs.

mod agree;
mod any;
mod at_once;
mod bind;
mod capture;
mod channel;
mod channels;
mod circuits;
mod claim;
mod close;
pub(crate) mod config;
mod control;
pub(crate) mod engine;
mod finish;
mod flush;
mod lanes;
mod liveness;
mod marks;
mod null;
mod open;
mod outbox;
mod packed;
mod passes;
mod peer;
mod post;
mod post_all;
mod progress;
pub(crate) mod ready;
mod receive;
mod send;
mod sharing;
mod spec;
mod staging;
mod state;
mod steps;
mod take;
mod take_back;
mod team;
mod texts;
mod transfer;
pub(crate) mod wait;
mod wait_all;
mod watch;
mod zero_advance;
mod zero_choice;
mod zero_post;
mod zero_sm;
mod zero_wait;

pub(crate) use capture::{Captured, Message, Started, of_graph};
pub(crate) use marks::mark_others;
pub(crate) use peer::{Need, Peer};
pub(crate) use spec::On;
pub(crate) use state::{State, no_lane, not_connected};
pub(crate) use texts::join;

pub use config::{Connect, Full, Progress};
pub use null::NULL_RANK;
pub use spec::{RecvOp, SendOp, SizeSource, Source};
pub use watch::Stuck;
