//! How NICs reach each other: [`Fabric`], a reliable carrier of frames, in order from one
//! NIC to another.
//!
//! [`hub`] joins NICs of one process, [`shm`] NICs of several processes of one host. Both
//! carry frames in byte rings (`ring`), so a payload goes from the source's memory into a
//! ring and from there into the target's memory, and nothing is allocated per message.

pub mod faults;
pub(crate) mod greeting;
pub mod hub;
pub(crate) mod links;
pub(crate) mod ring;
pub mod shm;

use std::fmt;

use gds_step::Time;
use thiserror::Error;

use crate::frame::{FrameError, FrameHeader};

/// Names a NIC among all that may ever meet: travels in address records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Names a link within one fabric; stays with the node for the fabric's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// Why a link cannot be had, or is no more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Nobody answers to that node.
    #[error("no NIC answers as node {node}: {reason}")]
    Unreachable {
        /// Who was called.
        node: NodeId,
        /// What the system said.
        reason: rustix::io::Errno,
    },
    /// The other end speaks another version of the protocol.
    #[error("fabric protocol version {theirs} at the other end, {ours} here")]
    Version {
        /// Our version.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// The other end sent what no sane NIC sends.
    #[error("garbage on the link")]
    Garbage(#[from] FrameError),
    /// The greeting was malformed.
    #[error("malformed greeting: {0}")]
    Greeting(&'static str),
    /// The other end is a process of another user.
    #[error("the other end belongs to user {uid}, not to user {expected}")]
    Foreign {
        /// Whose process it is.
        uid: u32,
        /// Whose it must be.
        expected: u32,
    },
    /// The other end is gone.
    #[error("the other end is gone")]
    Closed,
    /// No room for another link.
    #[error("more than {limit} links")]
    TooMany {
        /// The most this fabric holds.
        limit: usize,
    },
    /// The system refused what the link needs.
    #[error("{what}: {errno}")]
    System {
        /// Which call.
        what: &'static str,
        /// Its error.
        errno: rustix::io::Errno,
    },
}

/// Where a link stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Called; no answer yet. Frames may be sent already.
    Connecting,
    /// Both ends answered.
    Up,
    /// No more, and why.
    Lost(LinkError),
}

/// A frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// No room now: try again when the other end has taken some.
    Full,
    /// The link is lost.
    Lost,
    /// The payload could not be filled in; nothing was sent.
    Unfilled,
}

/// How much one call of [`Fabric::receive`] may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Frames left.
    pub frames: u32,
    /// Payload bytes left; the frame that exceeds them is the last.
    pub bytes: usize,
}

impl Budget {
    /// Takes one frame of `len` payload bytes off. False when nothing is left.
    pub fn spend(&mut self, len: usize) -> bool {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len);
        self.frames > 0 && self.bytes > 0
    }
}

/// Writes a payload into the room it is given; false if it cannot be had.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// Takes a received frame: from whom, its header, its payload. An error closes the link.
pub type Sink<'a> = &'a mut dyn FnMut(PeerId, &FrameHeader, &[u8]) -> Result<(), FrameError>;

/// A reliable carrier of frames between NICs, in order from one NIC to another. Owned and
/// driven by one NIC, from its step: no thread inside.
pub trait Fabric: Send {
    /// The name of the NIC at this end.
    fn node(&self) -> NodeId;

    /// The link to `node`, made if there is none, made anew if it was lost.
    ///
    /// # Errors
    /// No room for another link. A node that cannot be reached shows as a lost link.
    fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError>;

    /// Where the link stands.
    fn state(&self, peer: PeerId) -> LinkState;

    /// Sends one frame: `fill` writes its `header.len` payload bytes. Others may see it only
    /// after [`flush`](Fabric::flush).
    ///
    /// # Errors
    /// See [`SendRefused`]; nothing was sent.
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused>;

    /// Hands received frames to `sink` as far as `budget` goes, fairly among links. Returns
    /// how many.
    fn receive(&mut self, budget: Budget, sink: Sink<'_>) -> u32;

    /// A link that was lost since the last call.
    fn lost(&mut self) -> Option<PeerId>;

    /// Makes everything sent and taken known to the other ends, and wakes those that sleep.
    fn flush(&mut self);

    /// Housekeeping: new and dead links. `Some(t)`: call again at `t` at the latest.
    fn step(&mut self, now: Time) -> Option<Time>;
}
