//! The connections between NICs: [`Fabric`], a reliable carrier of frames, in order from one NIC to
//! another.
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

/// The number of a NIC, unique among all NICs that may connect; part of address records.
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

/// The number of a link within one fabric; it belongs to one node for the fabric's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub u32);

/// The reason why a link cannot be made, or is lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No NIC listens as that node.
    #[error("no NIC answers as node {node}: {reason}")]
    Unreachable {
        /// The called node.
        node: NodeId,
        /// The error of the system.
        reason: rustix::io::Errno,
    },
    /// The other end has another version of the protocol.
    #[error("the other end has fabric protocol version {theirs}, this end has version {ours}")]
    Version {
        /// Our version.
        ours: u32,
        /// The other end's version.
        theirs: u32,
    },
    /// The other end sent an invalid frame.
    #[error("the other end sent an invalid frame")]
    Garbage(#[from] FrameError),
    /// The greeting was malformed.
    #[error("the greeting is malformed: {0}")]
    Greeting(&'static str),
    /// The other end is a process of another user.
    #[error("the other end belongs to user {uid}, not to user {expected}")]
    Foreign {
        /// The user of the other process.
        uid: u32,
        /// The user of this process.
        expected: u32,
    },
    /// The other end closed the link, or its process died.
    #[error("the other end closed the link or died")]
    Closed,
    /// The fabric has no room for another link.
    #[error("the fabric has no room for another link: the limit is {limit}")]
    TooMany {
        /// The most links of this fabric.
        limit: usize,
    },
    /// The system refused a call that the link needs.
    #[error("the system refused {what}: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        errno: rustix::io::Errno,
    },
}

/// The state of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The other end was called and did not answer yet. Frames may be sent already.
    Connecting,
    /// Both ends answered.
    Up,
    /// The link is lost, with the reason.
    Lost(LinkError),
}

/// The reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendRefused {
    /// The link has no room now (backpressure): retry after the other end has received frames.
    Full,
    /// The link is lost.
    Lost,
    /// `fill` could not write the payload; nothing was sent.
    Unfilled,
}

/// The limits of one call of [`Fabric::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Remaining frames.
    pub frames: u32,
    /// Remaining payload bytes; the frame that exceeds them is the last.
    pub bytes: usize,
}

impl Budget {
    /// Subtracts one frame of `len` payload bytes. Returns false when the budget is used up.
    pub fn spend(&mut self, len: usize) -> bool {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(len);
        self.frames > 0 && self.bytes > 0
    }
}

/// Writes a payload into the given room; returns false if the payload cannot be read.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// Handles a received frame: its link, its header, its payload. An error closes the link.
pub type Sink<'a> = &'a mut dyn FnMut(PeerId, &FrameHeader, &[u8]) -> Result<(), FrameError>;

/// A reliable carrier of frames between NICs, in order from one NIC to another. One NIC owns it and
/// drives it from its step; it has no thread.
pub trait Fabric: Send {
    /// The node of the NIC at this end.
    fn node(&self) -> NodeId;

    /// Returns the link to `node`. Makes it if it does not exist, and makes it again if it was
    /// lost.
    ///
    /// # Errors
    /// The fabric has no room for another link. A node that cannot be reached is no error here: its
    /// link is lost.
    fn connect(&mut self, node: NodeId) -> Result<PeerId, LinkError>;

    /// The state of the link.
    fn state(&self, peer: PeerId) -> LinkState;

    /// Sends one frame: `fill` writes its `header.len` payload bytes. The frame may become visible
    /// to the other end only after [`flush`](Fabric::flush).
    ///
    /// # Errors
    /// See [`SendRefused`]; nothing was sent.
    fn send(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        fill: Fill<'_>,
    ) -> Result<(), SendRefused>;

    /// Passes received frames to `sink` within `budget`, fairly among links. Returns the number of
    /// frames.
    fn receive(&mut self, budget: Budget, sink: Sink<'_>) -> u32;

    /// Returns a link that was lost since the last call.
    fn lost(&mut self) -> Option<PeerId>;

    /// Publishes sent frames and released room to the other ends, and wakes those that sleep.
    fn flush(&mut self);

    /// Handles new and lost links. `Some(t)`: the caller must call again at `t` at the latest.
    fn step(&mut self, now: Time) -> Option<Time>;
}
