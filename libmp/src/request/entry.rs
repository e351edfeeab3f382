//! One request: the fields of every request, and the states of sends and of receives.
//! `transfer`, `step` and `collective` have the states of the others.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use gds_step::Time;
use gdsync::Status;
use gdsync::gpu::{Event, MemoryKind, WeakStream, Word64};

use super::collective::Collection;
use super::fault::End;
use super::one_sided::{Action, SignalState, SignalWait};
use super::reached::Mark;
use super::step::Step;
use super::transfer::{Transfer, TransferState};
use super::zero_sm::ZeroSm;
use crate::path::Put;
use crate::region::{Memory, Slice, Strided};

/// The side that executes a request: the CPU or a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poster {
    /// The lane of its puts.
    pub lane: u8,
    /// The stream, which the application may destroy in the meantime; `None`: the CPU.
    pub stream: Option<WeakStream>,
}

impl Poster {
    /// The id of its stream; `None`: the CPU.
    pub fn id(&self) -> Option<u64> {
        self.stream.as_ref().map(WeakStream::id)
    }
}

/// The state of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SendState {
    /// It has its number; nothing was posted.
    #[default]
    Prepared,
    /// A CPU send that waits for credit or for the receive. `announced`: the peer has the
    /// announcement.
    Queued { announced: bool },
    /// Its puts are posted; it ends when this put is done.
    InFlight(Put),
    /// It has ended.
    Done(Status),
}

/// The state of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// Nothing was posted.
    #[default]
    Prepared,
    /// From any rank, and no message has matched it.
    Unmatched,
    /// It has its number, and no stream waits for it.
    Posted,
    /// The stream with this number takes its message in.
    Claimed(u64),
    /// It has ended.
    Done(Status),
}

/// The memory of a request.
#[derive(Debug, Default)]
pub(crate) enum Segments {
    /// No memory.
    #[default]
    None,
    /// One piece.
    One(Slice),
    /// Several pieces.
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

/// The operation and its state.
#[derive(Debug)]
pub(crate) enum Operation {
    Send(Outgoing),
    Receive(Incoming),
    /// A put, a get, a signal or an atomic with a window.
    Transfer(Transfer),
    /// A stream's wait for a signal.
    Signal(SignalWait),
    /// A step of an exchange with neighbours; the peer is the one that it waits for now, or because
    /// of which it failed.
    Step(Step),
    /// A stream's collective call.
    Collective(Collection),
    /// A zero-SM send or receive.
    ZeroSm(ZeroSm),
}

/// The fields of a send.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub state: SendState,
    /// The fields of a send whose length or destination is known late.
    pub late: Option<Box<Late>>,
    /// The pieces that are gathered when it is posted; then its segment is staging memory.
    pub packed: Option<Box<Strided>>,
    /// Its stream waited until it was packed, and left its end to `Engine::synchronize`.
    pub ends_behind_stream: bool,
    /// A copy engine does not look for the memory of its receive before.
    pub next_look: Time,
}

/// The fields of a send whose length or destination is known only when the stream reaches it.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// The words that hold the length, and the offset in the segment.
    pub length: Option<Word64>,
    pub offset: Option<Word64>,
    /// Puts that are posted after the kernel; the last one is the stamp.
    pub behind: Vec<Put>,
    /// The puts are complete, because the receive was posted before the send: there is no kernel.
    pub complete: bool,
}

/// The fields of a receive.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub state: ReceiveState,
    /// The buffer into which a large message is written first: for scattered memory, or device memory by TCP.
    pub staging: Option<Memory>,
    /// The pieces to which the message is scattered at its end; then its segment is staging
    /// memory.
    pub packed: Option<Box<Strided>>,
    /// The CPU was asked to complete it.
    pub wanted: bool,
    /// The sender of a message that has no room here has been refused.
    pub refused: bool,
    /// The CPU has posted it, and its memory is not advertised to its sender yet.
    pub unadvertised: bool,
    /// Where the stream that posted it has reached it; `None`: no mark is enqueued.
    pub reached: Option<Mark>,
    /// The stream that waits already, by an event, for the stream that posted the receive.
    pub behind: Option<u64>,
    /// The value of the word in device memory in which its kernel stores that it has ended; see
    /// [`Table::make_report`](super::table::Table::make_report).
    pub ended: Option<u64>,
    /// Kernels of the application, or streams, may read its result word in host memory.
    pub result_in_host: bool,
}

/// The state of the application's handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Handle {
    #[default]
    Held,
    Dropped,
    /// Dropped before the request was posted, when later requests of its tag had numbers: its
    /// number stays in use, and its match ends without a message.
    Void,
}

/// A stream that waits for the result word of a request, or that may still store to it.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// The stream's number.
    pub stream: u64,
    /// Position of the wait, in the order of posts and waits.
    pub order: u64,
    /// When the stream has passed the wait: until then the word belongs to this request.
    pub passed: Passed,
}

/// When a stream has passed a [`Waiter`].
#[derive(Debug)]
pub(crate) enum Passed {
    /// The word is not the result word, and is set when the request has ended.
    WithEnd,
    /// It cannot be determined.
    Unknown,
    /// When the event is done.
    At(Event),
    /// When the stream has run its present work: there was no room for an event yet.
    AtEnd(WeakStream),
}

impl Passed {
    /// Whether the stream has passed; never waits for it.
    pub fn is_done(&mut self) -> bool {
        if let Passed::AtEnd(stream) = self {
            match stream.end() {
                Ok(Some(end)) => *self = Passed::At(end),
                Ok(None) => return true,
                Err(e) => return e.kind() == gdsync::Kind::DeviceLost,
            }
        }
        if let Passed::WithEnd = self {
            return true;
        }
        matches!(self, Passed::At(event) if event.is_done().unwrap_or(true))
    }
}

/// The fields of every request.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub peer: u32,
    pub tag: u32,
    /// Its number among the messages of peer and tag. A receive from any rank has one once it is
    /// matched.
    pub number: u64,
    pub poster: Poster,
    pub handle: Handle,
    /// Bytes that are sent, or room for; after the end, bytes that moved.
    pub len: u64,
    /// Above the eager limit, so by rendezvous: a send waits for the receive, a receive advertises
    /// its address.
    pub large: bool,
    pub segments: Segments,
    /// Prepared puts, except those that follow a kernel ([`Late::behind`]).
    pub puts: [Option<Put>; 3],
    /// Its timeout. `None`: the timeout of the context, if it has one.
    pub timeout: Option<Duration>,
    /// Position in the order of posts and waits.
    pub order: u64,
    /// Streams that wait for its result, with their positions in the order.
    pub waiters: Vec<Waiter>,
    /// The time since when it could have ended.
    pub since: Option<Time>,
    /// The watchdog has logged a warning for it.
    pub warned: bool,
    /// How it ended, for error reports.
    pub end: End,
}

impl Common {
    /// Fields of a request without a number, held and not posted.
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
    /// The memory into which the sender of a large message writes.
    pub fn landing<'m>(&'m self, common: &'m Common) -> Option<&'m Memory> {
        let first = || common.segments.as_slice().first().map(Slice::memory);
        self.staging.as_ref().or_else(first)
    }

    /// Whether the NIC writes the message to GPU memory, so that a wait for it has to flush.
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
        match &self.operation {
            Operation::Receive(_) => true,
            Operation::ZeroSm(message) => !message.sends,
            _ => false,
        }
    }

    pub fn send(&self) -> Option<&Outgoing> {
        match &self.operation {
            Operation::Send(send) => Some(send),
            _ => None,
        }
    }

    pub fn receive(&self) -> Option<&Incoming> {
        match &self.operation {
            Operation::Receive(receive) => Some(receive),
            _ => None,
        }
    }

    pub fn transfer(&self) -> Option<&Transfer> {
        match &self.operation {
            Operation::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    pub fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        match &mut self.operation {
            Operation::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// The wait of a stream for a signal that the stream has not passed.
    pub fn signal(&self) -> Option<&SignalWait> {
        match &self.operation {
            Operation::Signal(wait) if !matches!(wait.state, SignalState::Done(_)) => Some(wait),
            _ => None,
        }
    }

    /// The step of an exchange that has not ended.
    pub fn step(&self) -> Option<&Step> {
        match &self.operation {
            Operation::Step(step) if step.done.is_none() => Some(step),
            _ => None,
        }
    }

    /// The collective call of a stream that the stream has not passed.
    pub fn collective(&self) -> Option<&Collection> {
        match &self.operation {
            Operation::Collective(collection) => Some(collection).filter(|c| c.done.is_none()),
            _ => None,
        }
    }

    /// The zero-SM message that has not ended.
    pub fn zero_sm(&self) -> Option<&ZeroSm> {
        match &self.operation {
            Operation::ZeroSm(message) => Some(message).filter(|m| m.done.is_none()),
            _ => None,
        }
    }

    /// What a one-sided operation does; `None` for sends and receives.
    pub fn action(&self) -> Option<Action> {
        match &self.operation {
            Operation::Transfer(transfer) => Some(transfer.action),
            Operation::Signal(wait) => Some(wait.action),
            Operation::Step(_) => Some(Action::Exchange),
            Operation::Collective(collection) => Some(Action::Collective(collection.call)),
            Operation::Send(_) | Operation::Receive(_) | Operation::ZeroSm(_) => None,
        }
    }

    /// Whether a NIC writes to GPU memory for it, so that a wait for it has to flush.
    pub fn lands_in_device(&self) -> bool {
        match &self.operation {
            Operation::Receive(receive) => receive.lands_in_device(&self.common),
            Operation::Transfer(transfer) => transfer.lands_in_device(self.segments.as_slice()),
            Operation::Send(_)
            | Operation::Signal(_)
            | Operation::Step(_)
            | Operation::Collective(_)
            | Operation::ZeroSm(_) => false,
        }
    }

    /// Whether a kernel stores its end in device memory, and the CPU has not read that.
    pub fn ends_in_device(&self) -> bool {
        match &self.operation {
            Operation::Send(Outgoing {
                state: SendState::InFlight(put),
                ..
            }) => put.reports(),
            Operation::Receive(receive) => {
                receive.ended.is_some() && matches!(receive.state, ReceiveState::Claimed(_))
            }
            _ => false,
        }
    }

    /// The memory into which the sender of a large message writes, of a receive.
    pub fn landing(&self) -> Option<&Memory> {
        self.receive()
            .filter(|_| self.common.large)?
            .landing(&self.common)
    }

    /// Whether nothing was posted.
    pub fn is_prepared(&self) -> bool {
        match &self.operation {
            Operation::Send(send) => send.state == SendState::Prepared,
            Operation::Receive(receive) => receive.state == ReceiveState::Prepared,
            Operation::Transfer(transfer) => {
                matches!(transfer.state, TransferState::Prepared(..))
            }
            Operation::Signal(_)
            | Operation::Step(_)
            | Operation::Collective(_)
            | Operation::ZeroSm(_) => false,
        }
    }

    /// Whether it is a receive from any rank that no message has matched.
    pub fn is_unmatched(&self) -> bool {
        let receive = self.receive();
        receive.is_some_and(|receive| receive.state == ReceiveState::Unmatched)
    }

    /// Whether it is a CPU send that waits for credit or for the receive.
    pub fn is_queued(&self) -> bool {
        let send = self.send();
        send.is_some_and(|send| matches!(send.state, SendState::Queued { .. }))
    }

    /// The put that ends a send or a transfer in flight; `None` if it is not in flight.
    pub fn in_flight(&self) -> Option<Put> {
        match &self.operation {
            Operation::Send(Outgoing {
                state: SendState::InFlight(put),
                ..
            })
            | Operation::Transfer(Transfer {
                state: TransferState::InFlight(put),
                ..
            }) => Some(*put),
            _ => None,
        }
    }

    /// Whether this stream posted it, and a kernel in front of the wait copies or packs its memory: then the
    /// stream need not wait.
    pub fn needs_no_wait_by(&self, stream: u64) -> bool {
        let by_kernel = || self.in_flight().is_some_and(|put| put.is_copy());
        let packed = || self.send().is_some_and(|send| send.packed.is_some());
        self.poster.id() == Some(stream) && (by_kernel() || packed())
    }

    /// Whether it is a packed send that has not ended, and whose end this stream left to `Engine::synchronize`.
    pub fn is_open_behind(&self, stream: u64) -> bool {
        let waited = self.send().is_some_and(|send| send.ends_behind_stream);
        waited && self.poster.id() == Some(stream) && self.status().is_none()
    }

    /// The stream that takes its message in.
    pub fn claimed_by(&self) -> Option<u64> {
        match (&self.operation, self.receive().map(|receive| receive.state)) {
            (Operation::ZeroSm(message), _) if message.done.is_none() => message.claimed,
            (_, Some(ReceiveState::Claimed(stream))) => Some(stream),
            _ => None,
        }
    }

    /// The status with which it ended; `None`: it has not ended.
    pub fn status(&self) -> Option<Status> {
        match &self.operation {
            Operation::Send(Outgoing {
                state: SendState::Done(status),
                ..
            })
            | Operation::Receive(Incoming {
                state: ReceiveState::Done(status),
                ..
            })
            | Operation::Transfer(Transfer {
                state: TransferState::Done(status),
                ..
            })
            | Operation::Signal(SignalWait {
                state: SignalState::Done(status),
                ..
            })
            | Operation::Step(Step {
                done: Some(status), ..
            })
            | Operation::Collective(Collection {
                done: Some(status), ..
            }) => Some(*status),
            Operation::ZeroSm(message) => message.done,
            _ => None,
        }
    }

    /// Ends the request with `status`.
    pub fn end_with(&mut self, status: Status) {
        match &mut self.operation {
            Operation::Send(send) => {
                send.state = SendState::Done(status);
            }
            Operation::Receive(receive) => receive.state = ReceiveState::Done(status),
            Operation::Transfer(transfer) => transfer.state = TransferState::Done(status),
            Operation::Signal(wait) => wait.state = SignalState::Done(status),
            Operation::Step(step) => step.done = Some(status),
            Operation::Collective(collection) => collection.done = Some(status),
            Operation::ZeroSm(message) => message.done = Some(status),
        }
    }

    /// Takes the late fields of a send out.
    pub fn take_late(&mut self) -> Option<Box<Late>> {
        match &mut self.operation {
            Operation::Send(send) => send.late.take(),
            _ => None,
        }
    }

    /// Takes its memory out: that of the application, and staging memory.
    pub fn take_memory(&mut self) -> (Segments, Option<Memory>) {
        let segments = std::mem::take(&mut self.segments);
        let (packed, staging) = match &mut self.operation {
            Operation::Receive(receive) => (receive.packed.take(), receive.staging.take()),
            Operation::Send(send) => (send.packed.take(), None),
            _ => (None, None),
        };
        match (packed, &segments) {
            (Some(pieces), Segments::One(staging)) => {
                let staging = staging.memory().clone();
                (Segments::One(pieces.memory().all()), Some(staging))
            }
            _ => (segments, staging),
        }
    }

    /// All prepared puts, the newest first.
    pub fn newest_puts(&self) -> impl DoubleEndedIterator<Item = Put> + '_ {
        let late = self.send().and_then(|send| send.late.as_ref());
        let puts = late.map_or(&[][..], |late| &late.behind).iter().rev();
        puts.chain(self.puts.iter().flatten().rev()).copied()
    }
}
