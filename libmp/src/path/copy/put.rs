//! A put: its number and kind, its state, and its sources.

use gdsync::gpu::Region;

use super::{Piece, Span};
use crate::kernels::{Await, Direct, Flag, Name, Relay};

/// Where a put goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To memory.
    Memory,
    /// A message, to a flagged room. Only a stream posts it.
    Room,
    /// A message, to the memory of its receive; a flagged room shows it. Only a stream posts it.
    Receive,
    /// The name of the memory of a receive, to device memory. Only a stream posts it.
    Name,
    /// A wait for the credit of a message whose puts follow. Only a stream posts it.
    Credit,
    /// A wait for such a name, which is stored in host memory of this rank. Only a stream posts it.
    Relay,
}

/// A put that is prepared on a lane, in flight, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    /// The lane, as [`Lane::id`](super::Lane::id).
    pub(super) lane: u32,
    pub(super) slot: u16,
    /// Whole words that become visible only after all earlier puts, and end a group of puts.
    pub(super) words: bool,
    /// It has a kernel launch of its own.
    pub(super) large: bool,
    pub(super) target: Target,
    /// A kernel waits until the slot of the message is free, or for its receive.
    pub(in crate::path) waits: bool,
    pub(super) serial: u64,
    /// The value of its report when it is done, unless it goes to memory.
    pub(super) end: u64,
}

impl Put {
    pub(super) fn slot(self) -> usize {
        self.slot.into()
    }

    /// Whether a kernel of its own kind executes it, and reports its end in device memory.
    pub fn reports(self) -> bool {
        self.target != Target::Memory
    }

    /// Whether its kernel waits until the slot of the message is free. One that waits for the name of a
    /// receive is behind the announcement of the message, which needs the slot.
    pub fn takes_credit(self) -> bool {
        matches!(self.target, Target::Room | Target::Receive)
    }

    /// Whether it is a wait, which puts behind it must follow.
    pub(super) fn is_credit(&self) -> bool {
        self.target == Target::Credit
    }

    /// Whether its kernel waits for a receive.
    pub fn waits_for_receive(self) -> bool {
        self.target == Target::Receive
    }

    pub(super) fn serial(self) -> u64 {
        self.serial
    }
}

/// The state of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutState {
    /// Its WQE is free.
    Free,
    Prepared,
    /// Posted: done when the put named here, the last of its list, is done.
    Posted(Put),
    /// The lane failed before the put was done.
    Lost,
}

/// One source of a put's bytes.
pub(super) struct Source {
    pub region: Region,
    pub offset: usize,
    pub len: usize,
}

/// The sources of a put. Most puts have one, which takes no allocation.
#[derive(Default)]
pub(super) struct Sources {
    first: Option<Source>,
    more: Vec<Source>,
}

impl From<Piece<'_>> for Source {
    fn from(piece: Piece<'_>) -> Source {
        Source {
            region: piece.region.clone(),
            offset: piece.offset,
            len: piece.len,
        }
    }
}

impl Sources {
    pub(super) fn push(&mut self, source: Source) {
        match &self.first {
            None => self.first = Some(source),
            Some(_) => self.more.push(source),
        }
    }

    pub fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.first.iter().chain(&self.more)
    }
}

/// A put.
pub(super) struct Slot {
    /// Its number, unique among the puts of the lane.
    pub serial: u64,
    pub state: PutState,
    /// Its length in bytes, at most.
    pub len: u64,
    pub(super) to: Span,
    /// The parameters of the kernel of a put that reports.
    pub flag: Flag,
    pub direct: Direct,
    pub name: Name,
    pub relay: Relay,
    pub credit: Await,
    /// The report of the WQE when all its puts are done.
    pub end: u64,
    /// Held until the put is done or enqueued on a stream.
    pub(super) from: Sources,
}

impl Slot {
    pub(super) fn free() -> Slot {
        Slot {
            serial: 0,
            state: PutState::Free,
            len: 0,
            to: Span::default(),
            flag: Flag::default(),
            direct: Direct::default(),
            name: Name::default(),
            relay: Relay::default(),
            credit: Await::default(),
            end: 0,
            from: Sources::default(),
        }
    }
}
