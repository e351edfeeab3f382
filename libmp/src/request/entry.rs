//! One request: what every request has, and the states of sends and of receives.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use gds_step::Time;
use gdsync::Status;
use gdsync::gpu::{Event, MemoryKind, WeakStream, Word64};

use super::fault::End;
use crate::path::Put;
use crate::region::{Memory, Slice};

/// Who does the work of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poster {
    /// The lane its puts go by.
    pub lane: u8,
    /// The stream, which the application may destroy meanwhile; `None`: the CPU.
    pub stream: Option<WeakStream>,
}

/// How far a send has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Has its number; nothing was posted.
    #[default]
    Prepared,
    /// The CPU's: waits for room or for the receive. `announced`: the peer knows.
    Queued { announced: bool },
    /// Its puts are posted; it ends with this one.
    InFlight(Put),
    /// Ended.
    Done(Status),
}

/// How far a receive has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// Nothing was posted.
    #[default]
    Prepared,
    /// From any rank, and no message has matched it.
    Unmatched,
    /// Has its number; no stream takes its message in.
    Posted,
    /// A stream takes its message in: the one with this number.
    Claimed(u64),
    /// Ended.
    Done(Status),
}

/// The memory of a request.
#[derive(Debug, Default)]
pub(crate) enum Segments {
    /// Nothing.
    #[default]
    None,
    /// One piece.
    One(Slice),
    /// Several.
    Many(Vec<Slice>),
}

impl Segments {
    pub fn new(list: &[Slice]) -> Segments {
        match list {
            [] => Segments::None,
            [one] => Segments::One(one.clone()),
            many => Segments::Many(many.to_vec()),
        }
    }

    pub fn as_slice(&self) -> &[Slice] {
        match self {
            Segments::None => &[],
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Many(many) => many,
        }
    }
}

/// What is to be done, and how far it has come.
#[derive(Debug)]
pub(crate) enum Operation {
    Send(Outgoing),
    Receive(Incoming),
}

/// What only a send has.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub state: SendState,
    /// What is found out late.
    pub late: Option<Box<Late>>,
}

/// Of a send whose length or destination is found out late.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Where the length is, and the offset in the segment.
    pub length: Option<Word64>,
    pub offset: Option<Word64>,
    /// Puts that are posted behind the kernel, the last one being the stamp.
    pub behind: Vec<Put>,
}

/// What only a receive has.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub state: ReceiveState,
    /// Where a large message for scattered memory lands first.
    pub staging: Option<Memory>,
    /// The CPU was asked to see to its end.
    pub wanted: bool,
    /// The sender of a message that has no room here was told so.
    pub refused: bool,
    /// Posted by a stream: the stream was told to set the mark.
    pub marked: Option<Event>,
}

/// What has become of the application's handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Handle {
    #[default]
    Held,
    Dropped,
    /// Dropped before it was posted, when later requests of its tag had numbers: its number stays
    /// taken, and its match ends without a message.
    Void,
}

/// A stream that waits for the result word of a request.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Its number.
    pub stream: u64,
    /// When it was told to, in the order of posts and waits.
    pub order: u64,
    /// Done when it has passed: until then the word is this request's. `None`: nobody can tell.
    pub passed: Option<Event>,
}

/// What every request has.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub peer: u32,
    pub tag: u32,
    /// Its number among the messages of peer and tag. Of a receive from anybody: once matched.
    pub number: u64,
    pub poster: Poster,
    pub handle: Handle,
    /// Bytes that are sent, or room for; once done, bytes that moved.
    pub len: u64,
    /// Above the eager limit, so by rendezvous: a send waits for the receive, a receive advertises
    /// where it lies.
    pub large: bool,
    pub segments: Segments,
    /// Prepared puts, except those that go behind a kernel ([`Late::behind`]).
    pub puts: [Option<Put>; 3],
    /// `None`: the context's, where it has one.
    pub timeout: Option<Duration>,
    /// Position in the order of posts and waits.
    pub order: u64,
    /// Streams that wait for its result, with their positions in the order.
    pub waiters: Vec<Waiter>,
    /// Since when it could have ended.
    pub since: Option<Time>,
    /// The watchdog has warned of it.
    pub warned: bool,
    /// How it ended, as far as it concerns errors.
    pub end: End,
}

impl Common {
    /// Of a request without a number, held and not posted.
    pub fn new(peer: u32, tag: u32, segments: &[Slice]) -> Common {
        Common {
            peer,
            tag,
            segments: Segments::new(segments),
            ..Common::default()
        }
    }
}

impl Incoming {
    /// Whether the NIC writes the message to GPU memory, so that who waits for it has to flush.
    pub fn lands_in_device(&self, common: &Common) -> bool {
        let device = |s: &Slice| s.memory().region().kind() == MemoryKind::Device;
        common.large && self.staging.is_none() && common.segments.as_slice().iter().any(device)
    }
}

/// One request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub common: Common,
    pub operation: Operation,
}

impl Deref for Entry {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl DerefMut for Entry {
    fn deref_mut(&mut self) -> &mut Common {
        &mut self.common
    }
}

impl Entry {
    pub fn is_receive(&self) -> bool {
        self.receive().is_some()
    }

    pub fn send(&self) -> Option<&Outgoing> {
        match &self.operation {
            Operation::Send(send) => Some(send),
            Operation::Receive(_) => None,
        }
    }

    pub fn receive(&self) -> Option<&Incoming> {
        match &self.operation {
            Operation::Receive(receive) => Some(receive),
            Operation::Send(_) => None,
        }
    }

    /// Whether nothing was posted.
    pub fn is_prepared(&self) -> bool {
        match &self.operation {
            Operation::Send(send) => send.state == SendState::Prepared,
            Operation::Receive(receive) => receive.state == ReceiveState::Prepared,
        }
    }

    /// Whether it is a receive from any rank that no message has matched.
    pub fn is_unmatched(&self) -> bool {
        let receive = self.receive();
        receive.is_some_and(|receive| receive.state == ReceiveState::Unmatched)
    }

    /// Whether it is a send of the CPU's that waits for room or for the receive.
    pub fn is_queued(&self) -> bool {
        let send = self.send();
        send.is_some_and(|send| matches!(send.state, SendState::Queued { .. }))
    }

    /// Of a send that is in flight, the put that it ends with.
    pub fn in_flight(&self) -> Option<Put> {
        match self.send()?.state {
            SendState::InFlight(put) => Some(put),
            _ => None,
        }
    }

    /// The stream that takes its message in.
    pub fn claimed_by(&self) -> Option<u64> {
        match self.receive()?.state {
            ReceiveState::Claimed(stream) => Some(stream),
            _ => None,
        }
    }

    /// How it ended; `None`: it has not.
    pub fn status(&self) -> Option<Status> {
        match &self.operation {
            Operation::Send(Outgoing {
                state: SendState::Done(status),
                ..
            })
            | Operation::Receive(Incoming {
                state: ReceiveState::Done(status),
                ..
            }) => Some(*status),
            _ => None,
        }
    }

    /// Ends it.
    pub fn end_with(&mut self, status: Status) {
        match &mut self.operation {
            Operation::Send(send) => {
                send.state = SendState::Done(status);
                send.late = None;
            }
            Operation::Receive(receive) => receive.state = ReceiveState::Done(status),
        }
    }

    /// Gives up its memory: segments, and where a large message lands first.
    pub fn take_memory(&mut self) -> (Segments, Option<Memory>) {
        let staging = match &mut self.operation {
            Operation::Receive(receive) => receive.staging.take(),
            Operation::Send(_) => None,
        };
        (std::mem::take(&mut self.segments), staging)
    }

    /// All prepared puts, the newest first.
    pub fn newest_puts(&self) -> Vec<Put> {
        let late = self.send().and_then(|send| send.late.as_ref());
        let puts = late.map_or(&[][..], |late| &late.behind).iter().rev();
        puts.chain(self.puts.iter().flatten().rev())
            .copied()
            .collect()
    }
}
