//! A lane of copies: the puts that are prepared or in flight, and those that the CPU
//! executes.

use std::collections::VecDeque;

use gdsync::gpu::{Condition, Region, Word64};
use gdsync::rdma::{self, Descriptor};
use gdsync::{Status, Stream};

use super::stream::{LARGE, Tasks};
use super::wqe::{BLOCK, MOST, Wqes};
use super::{Copier, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Await, Credit, Direct, Flag, MOST_CHUNKS, Name, PUTS, Relay, Stamp};
use crate::mutant::{Mutant, on};
use crate::path::INLINE;

/// Number of bytes that the CPU copies in one round, under the context's lock.
pub(crate) const ROUND: usize = 4 << 20;
/// Number of bytes that the CPU copies when it posts, under the context's lock.
pub(crate) const AT_ONCE: usize = 64 << 10;
/// Bytes of the copy buffer. Each piece of device memory costs two calls of the GPU's driver.
const BUFFER: usize = 64 << 10;

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
    /// The lane, as [`Lane::id`].
    pub(super) lane: u32,
    slot: u16,
    /// Whole words that become visible only after all earlier puts, and end a group of puts.
    pub(super) words: bool,
    /// It has a kernel launch of its own.
    pub(super) large: bool,
    pub(super) target: Target,
    /// A kernel waits until the slot of the message is free, or for its receive.
    pub(in crate::path) waits: bool,
    serial: u64,
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
struct Source {
    region: Region,
    offset: usize,
    len: usize,
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
    fn push(&mut self, source: Source) {
        match &self.first {
            None => self.first = Some(source),
            Some(_) => self.more.push(source),
        }
    }

    pub fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    fn iter(&self) -> impl Iterator<Item = &Source> {
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
    to: Span,
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
    fn free() -> Slot {
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

/// A lane of copies to one rank.
pub(crate) struct Lane {
    /// Its number, unique among the lanes of the context.
    pub(super) id: u32,
    pub(super) copier: Copier,
    pub(super) wqes: Wqes,
    pub(super) slots: Vec<Slot>,
    /// The index at which the search for a free WQE starts.
    next: usize,
    /// Number of puts so far.
    count: u64,
    /// Puts that the CPU executes, the oldest first.
    queue: VecDeque<Put>,
    /// Number of copied bytes of the first put.
    copied: usize,
    /// The buffer of copies to or from memory that the CPU cannot access; empty before the first.
    buffer: Vec<u8>,
    /// Buffers of lists.
    pub(super) tasks: Tasks,
    pub(super) run: Vec<Put>,
    failed: Option<Status>,
}

impl Lane {
    pub fn new(copier: &Copier) -> Result<Lane> {
        Ok(Lane {
            id: copier.next_lane(),
            wqes: Wqes::new(&copier.gpu)?,
            copier: copier.clone(),
            slots: (0..BLOCK).map(|_| Slot::free()).collect(),
            next: 0,
            count: 0,
            queue: VecDeque::with_capacity(BLOCK),
            copied: 0,
            buffer: Vec::new(),
            tasks: Tasks::default(),
            run: Vec::with_capacity(PUTS),
            failed: None,
        })
    }

    /// Whether a posted put is done, by the word of the last put of its list.
    fn is_done(&self, last: Put) -> bool {
        let done = self.wqes.done(last.slot());
        let report = self.wqes.report(last.slot()).filter(|_| last.reports());
        // Pinned memory, which the CPU reaches: it cannot fail. Acquire: pairs with the release of
        // the kernel, or of the CPU in `complete`.
        done.load().unwrap_or(0) >= last.serial
            || report.is_some_and(|report| report.load() >= last.end)
    }

    fn is_free(&self, at: usize) -> bool {
        match self.slots[at].state {
            PutState::Free => true,
            PutState::Prepared | PutState::Lost => false,
            PutState::Posted(last) => self.is_done(last),
        }
    }

    /// # Errors
    /// `PeerFailed` if the lane has failed.
    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let Some(status) = self.failed else {
            return Ok(());
        };
        let what = format!("the lane has failed: {status}");
        Err(Error::new(operation, Kind::PeerFailed(status), what))
    }

    fn take(&mut self) -> Result<usize> {
        const OPERATION: &str = "prepare request";
        self.check(OPERATION)?;
        let count = self.slots.len();
        let mut places = (0..count).map(|i| (self.next + i) % count);
        match places.find(|at| self.is_free(*at)) {
            Some(at) => Ok(at),
            None if count < MOST => {
                self.wqes.grow()?;
                self.slots.extend((0..BLOCK).map(|_| Slot::free()));
                Ok(count)
            }
            None => {
                let what = "too many puts by copies are in flight; retry later";
                Err(Error::new(OPERATION, Kind::QueueFull, what).with_limit(MOST, "puts"))
            }
        }
    }

    fn prepare(&mut self, at: usize, to: Span, words: bool) -> Result<Put> {
        let put = self.begin(at, to, words);
        let pieces = self.slots[at].from.iter().count();
        self.wqes.write(at, to, pieces)?;
        Ok(put)
    }

    /// Sets the state of a put whose sources are set.
    fn begin(&mut self, at: usize, to: Span, words: bool) -> Put {
        self.count += 1;
        self.next = (at + 1) % self.slots.len();
        let slot = &mut self.slots[at];
        slot.serial = self.count;
        slot.state = PutState::Prepared;
        slot.to = to;
        slot.len = slot.from.iter().map(|source| source.len as u64).sum();
        Put {
            lane: self.id,
            slot: at as u16,
            words,
            large: !words && slot.len >= LARGE,
            target: Target::Memory,
            waits: false,
            serial: self.count,
            end: 0,
        }
    }

    /// Prepares a put of pieces of memory, concatenated.
    #[inline]
    pub fn put<'a>(
        &mut self,
        pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
    ) -> Result<Put> {
        self.put_pieces(pieces, to, false)
    }

    #[inline]
    fn put_pieces<'a>(
        &mut self,
        pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
        words: bool,
    ) -> Result<Put> {
        let at = self.take()?;
        self.slots[at].from.clear();
        for (index, piece) in pieces.enumerate() {
            self.wqes.write_piece(at, index, piece)?;
            self.slots[at].from.push(piece.into());
        }
        self.prepare(at, to, words)
    }

    /// Takes a WQE for a put that reports, and returns it with the address of its report. `piece`: its
    /// source.
    fn take_reporting(&mut self, piece: Option<Piece<'_>>) -> Result<(usize, u64)> {
        let at = self.take()?;
        let report = self.wqes.make_report(at, &self.copier)?;
        let from = &mut self.slots[at].from;
        from.clear();
        if let Some(piece) = piece {
            from.push(piece.into());
        }
        Ok((at, report))
    }

    /// Sets the state of a put that reports so many shares.
    fn begin_reporting(&mut self, at: usize, to: Span, target: Target, shares: u64) -> Put {
        let put = self.begin(at, to, true);
        let end = self.slots[at].end + shares - u64::from(on(Mutant::EarlyReport));
        Put { target, end, ..put }
    }

    /// Prepares a message of at most one piece to a flagged room of the receiver, whose parameters but
    /// the payload's are `params`. Only a stream posts it.
    #[inline]
    pub fn flag(&mut self, piece: Option<Piece<'_>>, room: Span, params: Flag) -> Result<Put> {
        let (at, report) = self.take_reporting(piece)?;
        let len = piece.map_or(0, |piece| piece.len as u64);
        let shares = match (params.long_room, &self.copier.kernels) {
            (1.., Some(kernels)) => kernels.shares_of_flag(len).into(),
            _ => 1,
        };
        let params = Flag {
            report,
            from: piece.map_or(0, |piece| piece.addr()),
            room: room.addr,
            len,
            shares,
            ..params
        };
        let put = self.begin_reporting(at, room, Target::Room, params.shares);
        self.slots[at].flag = params;
        Ok(Put {
            waits: params.slot.taken != 0,
            ..put
        })
    }

    /// Prepares a message of one piece to the memory of its receive, for which a kernel waits. `params`
    /// has the words; [`Lane::end_in`] sets those of the result. Only a stream posts it.
    pub fn direct(&mut self, piece: Piece<'_>, room: Span, params: Direct) -> Result<Put> {
        let (at, report) = self.take_reporting(Some(piece))?;
        let len = piece.len as u64;
        let kernels = self.copier.kernels.as_ref();
        let shares = kernels.map_or(1, |kernels| {
            kernels.shares_of_direct(len, params.room_lines)
        });
        let params = Direct {
            report,
            from: piece.addr(),
            len,
            room: room.addr,
            shares: shares.into(),
            ..params
        };
        let put = self.begin_reporting(at, room, Target::Receive, params.shares);
        self.slots[at].direct = params;
        Ok(Put { waits: true, ..put })
    }

    /// Prepares the name of a receive's memory, stored at `to`. Only a stream posts it.
    pub fn name(&mut self, to: Span, params: Name) -> Result<Put> {
        let (at, report) = self.take_reporting(None)?;
        self.slots[at].name = Name {
            report,
            place: to.addr,
            ..params
        };
        Ok(self.begin_reporting(at, to, Target::Name, 1))
    }

    /// Prepares a wait for the credit of a message. Only a stream posts it.
    pub fn credit(&mut self, slot: Credit) -> Result<Put> {
        let (at, report) = self.take_reporting(None)?;
        self.slots[at].credit = Await { slot, report };
        let put = self.begin_reporting(at, Span::default(), Target::Credit, 1);
        Ok(Put { waits: true, ..put })
    }

    /// Prepares a wait for the name of a receive's memory. Only a stream posts it.
    pub fn relay(&mut self, params: Relay) -> Result<Put> {
        let (at, report) = self.take_reporting(None)?;
        self.slots[at].relay = Relay { report, ..params };
        let put = self.begin_reporting(at, Span::default(), Target::Relay, 1);
        Ok(Put { waits: true, ..put })
    }

    /// Sets where the kernels of a message store a failure: the request's result, and the error word.
    pub fn end_in(&mut self, put: Put, result: u64, error: u64) {
        let direct = &mut self.slots[put.slot()].direct;
        (direct.result, direct.error) = (result, error);
    }

    /// The word that reaches a value when a put is done, posted or not.
    pub fn end_of(&self, put: Put) -> (&Word64, u64) {
        match self.wqes.report(put.slot()) {
            Some(report) if put.reports() => (report.word(), put.end),
            _ => (self.wqes.done(put.slot()), put.serial),
        }
    }

    /// Prepares a get: a copy of the `len` bytes at `from` to `into`, after all earlier puts.
    pub fn get(&mut self, into: Span, len: usize, from: Span) -> Result<Put> {
        let (region, offset) = self.copier.table.find(from, len as u64)?;
        let region = &region;
        let piece = Piece {
            region,
            offset,
            len,
        };
        self.put([piece].into_iter(), into)
    }

    /// Prepares a put of words in memory, each copied atomically, after all earlier puts.
    pub fn put_words(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        self.put_pieces([words].into_iter(), to, true)
    }

    /// Prepares a put of words, copied now, after all earlier puts.
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.capture(words, to, true)
    }

    /// Prepares a put of a few bytes, which are copied now. 8 aligned bytes are a word: an
    /// announcement, which streams and the CPU wait for and must see as a whole.
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        let word = bytes.len() == 8 && to.addr.is_multiple_of(8);
        self.capture(bytes, to, word)
    }

    fn capture(&mut self, bytes: &[u8], to: Span, words: bool) -> Result<Put> {
        let at = self.take()?;
        debug_assert!(bytes.len() <= INLINE);
        self.wqes.capture(at, bytes)?;
        let piece = self.wqes.captured(at, bytes.len());
        self.wqes.write_piece(at, 0, piece)?;
        let source = piece.into();
        let from = &mut self.slots[at].from;
        from.clear();
        from.push(source);
        self.prepare(at, to, words)
    }

    fn known(&mut self, operation: &'static str, put: Put) -> Result<&mut Slot> {
        let slot = self.slots.get_mut(put.slot());
        let known = slot.filter(|slot| slot.serial == put.serial && slot.state != PutState::Free);
        let what = "the put is unknown: it was aborted, or is too old";
        known.ok_or_else(|| Error::new(operation, Kind::Invalid, what))
    }

    /// The status of a put; `None`: it is in flight.
    ///
    /// # Errors
    /// The put was not posted, or is so old that the lane has no state for it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        const OPERATION: &str = "test request";
        match self.known(OPERATION, put)?.state {
            PutState::Posted(last) => Ok(self.is_done(last).then_some(Status::SUCCESS)),
            PutState::Lost => Ok(Some(self.failed.unwrap_or(Status::FLUSHED))),
            PutState::Free | PutState::Prepared => Err(Error::new(
                OPERATION,
                Kind::Invalid,
                "the put was not posted",
            )),
        }
    }

    /// Aborts a put that was prepared and not posted.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "cancel request";
        let slot = self.known(OPERATION, put)?;
        if slot.state != PutState::Prepared {
            return Err(Error::new(
                OPERATION,
                Kind::Invalid,
                "the put was already posted",
            ));
        }
        slot.state = PutState::Free;
        slot.from.clear();
        self.next = put.slot();
        Ok(())
    }

    /// The word and the value for which a stream waits until a put is done; `None`: it is done.
    pub fn done_word(&self, put: Put) -> Option<(&Word64, u64)> {
        let slot = self.slots.get(put.slot())?;
        let slot = Some(slot).filter(|slot| slot.serial == put.serial)?;
        let PutState::Posted(last) = slot.state else {
            return None;
        };
        (!self.is_done(last)).then(|| self.end_of(last))
    }

    /// Makes `stream` wait until a put is done.
    pub fn wait_on(&mut self, stream: &Stream, put: Put) -> Result<()> {
        let Some((done, serial)) = self.done_word(put) else {
            return Ok(());
        };
        let list = [Descriptor::wait_value(done, Condition::Geq, serial)];
        Ok(rdma::post_on(stream, &mut [], &list)?)
    }

    /// Whether nothing that was posted is in flight.
    pub fn is_quiet(&self) -> bool {
        let under_way = |slot: &Slot| match slot.state {
            PutState::Posted(last) => !self.is_done(last),
            _ => false,
        };
        !self.slots.iter().any(under_way)
    }

    /// Submissions of a stream for a late message of `puts`: those of a NIC's lane, the kernels that wait
    /// for the credit and for the receive, and a kernel for each put.
    pub fn submissions(puts: usize) -> u32 {
        6 + puts as u32
    }

    pub fn error(&self) -> Option<Status> {
        self.failed
    }

    /// Fails the lane: no further put is executed, and waits for its puts complete.
    pub fn fail(&mut self, status: Status) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(status);
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.wqes.failed().store(status.0);
        self.queue.clear();
        for at in 0..self.slots.len() {
            if let PutState::Posted(last) = self.slots[at].state
                && !self.is_done(last)
            {
                self.slots[at].state = PutState::Lost;
                self.slots[at].from.clear();
            }
        }
        for at in 0..self.slots.len() {
            if self.slots[at].state == PutState::Lost {
                let _ = self.wqes.done(at).store(self.slots[at].serial);
                // A stream may wait for the report.
                if let Some(report) = self.wqes.report(at)
                    && let Err(e) = report.word().store(self.slots[at].end)
                {
                    tracing::debug!(target: "mp", "a stream may wait for a lost put: {e}");
                }
            }
        }
    }

    /// Whether the CPU has puts to copy.
    pub fn is_copying(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Checks that this rank has mapped the destinations of puts that are prepared and complete.
    ///
    /// # Errors
    /// `PeerFailed` if the peer has released the memory; the lane fails then.
    pub fn reach(&mut self, mut puts: impl Iterator<Item = Put>) -> Result<()> {
        let (slots, table) = (&self.slots, &self.copier.table);
        let is_gone = |put: Put| {
            let slot = &slots[put.slot()];
            table.find(slot.to, slot.len).is_err()
        };
        if puts.any(is_gone) {
            self.fail(Status::REMOTE_ACCESS);
        }
        self.check("post request")
    }

    /// Writes into `params` where kernels find the puts of a message, whose last is the stamp; see
    /// [`Stamp`].
    pub fn patch(
        &self,
        mut puts: impl DoubleEndedIterator<Item = Put>,
        large: bool,
        late: [bool; 2],
        params: &mut Stamp<MOST_CHUNKS>,
    ) {
        let Some(stamp) = puts.next_back() else {
            return;
        };
        params.stamp_control = self.wqes.addr(stamp.slot());
        for (patch, put) in params.patch.iter_mut().zip(puts) {
            *patch = self.wqes.patch(put.slot(), large, late);
            params.chunks += 1;
        }
    }

    /// Queues a put for the CPU; [`Lane::go_on`] executes it.
    pub fn post(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "post request";
        self.check(OPERATION)?;
        if put.reports() {
            let what = "a message to a flagged room is posted on a stream; post it there";
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        self.known(OPERATION, put)?.state = PutState::Posted(put);
        match on(Mutant::LocalWordFirst) && put.words {
            true => self.queue.push_front(put),
            false => self.queue.push_back(put),
        }
        Ok(())
    }

    /// Copies a message now, if it is short, the CPU has no earlier put to copy, and it reaches all of
    /// the memory: the pieces to `to`, then the words of the message to `pair`. `false`: the words are
    /// not stored, and puts are needed.
    ///
    /// # Errors
    /// `PeerFailed` if the lane has failed.
    #[inline]
    pub fn copy_now<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        mut to: Span,
        words: [u64; 2],
        pair: Span,
    ) -> Result<bool> {
        self.check("post request")?;
        if !self.queue.is_empty() || on(Mutant::LocalWordFirst) {
            return Ok(false);
        }
        let table = &self.copier.table;
        let Ok((shown, at)) = table.find(pair, size_of_val(&words) as u64) else {
            return Ok(false);
        };
        let mut left = AT_ONCE;
        for piece in pieces.filter(|piece| piece.len > 0) {
            let Ok((region, start)) = table.find(to, piece.len as u64) else {
                return Ok(false);
            };
            if piece.len > left
                || !region.copy_from(start, piece.region, piece.offset, piece.len)?
            {
                return Ok(false);
            }
            left -= piece.len;
            to.addr += piece.len as u64;
        }
        shown.store_words(at, &words)?;
        Ok(true)
    }

    /// Copies at most `left` bytes of the CPU's puts. Returns `true` if the queue had a put.
    pub fn go_on(&mut self, mut left: usize) -> bool {
        let any = !self.queue.is_empty();
        while left > 0
            && let Some(put) = self.queue.front().copied()
        {
            match self.copy(put, &mut left) {
                Ok(true) => {
                    self.complete(put);
                    if on(Mutant::LocalWordFirst) && put.words {
                        break;
                    }
                }
                Ok(false) => {}
                Err(e) => {
                    tracing::warn!(target: "mp", "a put by a copy failed: {e}");
                    self.fail(Status::LOCAL_ACCESS);
                }
            }
        }
        any
    }

    fn complete(&mut self, put: Put) {
        self.queue.pop_front();
        self.copied = 0;
        self.slots[put.slot()].from.clear();
        // As in `fail`. Release: a reader of the new value finds the bytes in place.
        let _ = self.wqes.done(put.slot()).store(put.serial);
    }

    /// Copies at most `left` bytes of the first put. Returns `true` if all of it is copied.
    fn copy(&mut self, put: Put, left: &mut usize) -> Result<bool> {
        let Lane {
            copier,
            slots,
            copied,
            buffer,
            ..
        } = self;
        let slot = &slots[put.slot()];
        let (to, start) = copier.table.find(slot.to, slot.len)?;
        let mut skip = *copied;
        for source in slot.from.iter() {
            if skip >= source.len {
                skip -= source.len;
                continue;
            }
            // The words of a put are stored in one step: a stream may take a message by the first
            // word, and the second is then the next message's.
            while skip < source.len && (*left > 0 || put.words) {
                let n = (source.len - skip).min(*left);
                let n = transfer(source, skip, &to, start + *copied, n, put.words, buffer)?;
                skip += n;
                *copied += n;
                *left = left.saturating_sub(n);
            }
            skip = skip.saturating_sub(source.len);
        }
        Ok(*copied as u64 == slot.len)
    }
}

/// Copies `n` bytes, at most as many as the buffer has if the bytes pass through it, or one word.
/// Returns the number of bytes.
fn transfer(
    from: &Source,
    at: usize,
    to: &Region,
    start: usize,
    n: usize,
    words: bool,
    buffer: &mut Vec<u8>,
) -> Result<usize> {
    if words {
        let mut word = [0; 8];
        from.region.read(from.offset + at, &mut word)?;
        to.word64(start)?.store(u64::from_ne_bytes(word))?;
        return Ok(8);
    }
    if to.copy_from(start, &from.region, from.offset + at, n)? {
        return Ok(n);
    }
    buffer.resize(BUFFER, 0);
    let n = n.min(BUFFER);
    from.region.read(from.offset + at, &mut buffer[..n])?;
    to.write(start, &buffer[..n])?;
    Ok(n)
}
