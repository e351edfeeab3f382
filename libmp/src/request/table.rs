//! The requests of a context: what became of each, and the words that say how it ended.
//!
//! An entry lives while its request is unfinished or its handle is held; what is finished and
//! held by nobody goes when the table is swept. Entries have a word each in pinned memory, by
//! which kernels tell the CPU and streams how a request ended.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use gds_step::Time;
use gdsync::gpu::{DevicePtr, Event, MemoryKind, WeakStream, Word64};
use gdsync::{Gpu, Status};
use slotmap::{DefaultKey, Key, SlotMap};

use super::fault::{End, Fault};
use crate::error::{Error, Kind, Result};
use crate::path::Put;
use crate::region::{Memory, Slice};
use crate::wire::word;

pub(crate) type RequestKey = DefaultKey;

/// Entries whose words share a region.
const CHUNK: usize = 512;
/// Bytes of an entry's words: the result, and the mark by which a stream tells that it is there.
const WORDS: usize = 16;
/// Unfinished requests that a context has at most.
pub(crate) const MAX_REQUESTS: usize = 1 << 16;

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
    /// Dropped before the request was posted, whose number others come behind: its match is told
    /// that nothing comes.
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
    /// Puts posted first (a send's all, but for stamped ones).
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

/// The table.
pub(crate) struct Table {
    entries: SlotMap<RequestKey, Entry>,
    chunks: Vec<Vec<Words>>,
    /// Slots of the map that were ever used; the next entry takes one of them or the next.
    used: usize,
    /// Sweep when so many entries live.
    sweep_at: usize,
    next_order: u64,
}

#[derive(Clone, Debug)]
struct Words {
    result: Word64,
    mark: Word64,
}

impl Words {
    /// Nobody needs them any more: the next request finds them cleared. Storing wakes devices, so
    /// it is done only if need be.
    fn clear(&self) {
        // Pinned memory, which the CPU reaches: it cannot fail.
        if self.result.load().unwrap_or(0) != 0 {
            let _ = self.result.store(0);
        }
    }
}

fn index(key: RequestKey) -> usize {
    (key.data().as_ffi() & 0xffff_ffff) as usize
}

impl Table {
    pub fn new() -> Table {
        Table {
            entries: SlotMap::new(),
            chunks: Vec::new(),
            // The first one is never given.
            used: 1,
            sweep_at: 256,
            next_order: 0,
        }
    }

    /// Sees to it that there is room for one more entry, and words for it.
    ///
    /// # Errors
    /// `QueueFull` with the limit; `Gdsync` if there is no memory for its words.
    #[inline]
    pub fn reserve(&mut self, gpu: &Gpu) -> Result<()> {
        if self.entries.len() >= MAX_REQUESTS {
            let what = "requests that are unfinished, or whose handles are held";
            let full = Error::new("prepare request", Kind::QueueFull, what);
            return Err(full.with_limit(MAX_REQUESTS));
        }
        while self.used >= CHUNK * self.chunks.len() {
            // Under the state's lock, but no stream that stands still can hold it up: pinned memory
            // is made in a context of the library's own.
            self.chunks.push(chunk(gpu)?);
        }
        Ok(())
    }

    /// Puts an entry in, whose words are clear, where room was reserved for it.
    #[inline]
    pub fn put(&mut self, entry: Entry) -> RequestKey {
        let key = self.entries.insert(entry);
        self.used = self.used.max(index(key) + 1);
        key
    }

    /// Whether it is time to sweep.
    pub fn is_crowded(&self) -> bool {
        self.entries.len() >= self.sweep_at
    }

    /// Called after a sweep.
    pub fn swept(&mut self) {
        self.sweep_at = (2 * self.entries.len()).max(256);
    }

    pub fn get(&self, key: RequestKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub fn get_mut(&mut self, key: RequestKey) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    pub fn receive_mut(&mut self, key: RequestKey) -> Option<&mut Incoming> {
        match &mut self.entries.get_mut(key)?.operation {
            Operation::Receive(receive) => Some(receive),
            Operation::Send(_) => None,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (RequestKey, &Entry)> {
        self.entries.iter()
    }

    /// Forgets a request that has ended, if nobody needs its words any more.
    pub fn forget(&mut self, key: RequestKey) -> bool {
        let passed = |w: &Waiter| {
            let event = w.passed.as_ref();
            event.is_some_and(|event| event.is_done().unwrap_or(true))
        };
        let free = self.entries.get(key).is_some_and(|entry| {
            let done = entry.status().is_some();
            let marked = entry.receive().and_then(|receive| receive.marked.as_ref());
            let written = marked.is_none_or(|e| e.is_done().unwrap_or(true));
            done && entry.handle != Handle::Held && written && entry.waiters.iter().all(passed)
        });
        if free {
            self.words(key).clear();
            self.entries.remove(key);
        }
        free
    }

    /// Writes the keys of all entries that are not done, or not forgotten yet, into `into`.
    pub fn unfinished(&self, into: &mut Vec<RequestKey>) {
        into.clear();
        let open = self
            .entries
            .iter()
            .filter(|(_, e)| e.status().is_none() || e.handle != Handle::Held);
        into.extend(open.map(|(key, _)| key));
    }

    /// Failures that no call has returned.
    pub fn faults(&mut self) -> impl Iterator<Item = (&Fault, &mut bool)> {
        let ends = self.entries.values_mut().map(|entry| &mut entry.end);
        ends.filter_map(|end| Some((end.fault.as_deref()?, &mut end.returned)))
            .filter(|(_, returned)| !**returned)
    }

    /// The next position in the order of posts.
    pub fn order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    fn words(&self, key: RequestKey) -> &Words {
        &self.chunks[index(key) / CHUNK][index(key) % CHUNK]
    }

    /// Where the request's end is told: see [`word::result`].
    pub fn result_word(&self, key: RequestKey) -> &Word64 {
        &self.words(key).result
    }

    /// Set to 1 by the stream that posted the request when it is there.
    pub fn mark_word(&self, key: RequestKey) -> &Word64 {
        &self.words(key).mark
    }

    /// How a kernel says that the request ended.
    pub fn result(&self, key: RequestKey) -> Option<(Status, u64)> {
        word::parse_result(self.words(key).result.load().unwrap_or(0))
    }

    /// Stores how a request ended.
    pub fn set_result(&self, key: RequestKey, status: Status, len: u64) {
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.result_word(key).store(word::result(status, len));
    }

    /// As the GPU sees the result.
    pub fn result_addr(&self, key: RequestKey) -> DevicePtr {
        self.words(key).result.addr()
    }
}

fn chunk(gpu: &Gpu) -> Result<Vec<Words>> {
    let region = gpu.alloc(MemoryKind::Pinned, CHUNK * WORDS)?;
    let words = |i: usize| -> Result<Words> {
        Ok(Words {
            result: region.word64(i * WORDS)?,
            mark: region.word64(i * WORDS + 8)?,
        })
    };
    (0..CHUNK).map(words).collect()
}
