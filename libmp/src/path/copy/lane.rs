//! A lane of copies: the puts that are prepared or in flight.

use std::collections::VecDeque;

use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{self, Descriptor};
use gdsync::{Status, Stream};

use super::put::{Put, PutState, Slot, Target};
use super::stream::{LARGE, Tasks};
use super::wqe::{BLOCK, MOST, Wqes};
use super::{Copier, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Await, Credit, Direct, Flag, MOST_CHUNKS, Name, PUTS, Relay, Stamp};
use crate::mutant::{Mutant, on};
use crate::path::INLINE;

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
    pub(super) queue: VecDeque<Put>,
    /// Number of copied bytes of the first put.
    pub(super) copied: usize,
    /// The buffer of copies to or from memory that the CPU cannot access; empty before the first.
    pub(super) buffer: Vec<u8>,
    /// Buffers of lists.
    pub(super) tasks: Tasks,
    pub(super) run: Vec<Put>,
    pub(super) failed: Option<Status>,
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
    pub(super) fn is_done(&self, last: Put) -> bool {
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
        let kernels = self.copier.kernels.as_deref();
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

    pub(super) fn known(&mut self, operation: &'static str, put: Put) -> Result<&mut Slot> {
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

    /// Checks that this rank has mapped the destinations of puts that are prepared and complete.
    ///
    /// # Errors
    /// As [`Lane::reach_all`].
    pub fn reach(&mut self, puts: impl Iterator<Item = Put>) -> Result<()> {
        let of = |put: Put| (self.slots[put.slot()].to, self.slots[put.slot()].len);
        let all = self.copier.table.reaches(puts.map(of));
        self.fail_unless(all)
    }

    /// Checks that this rank has mapped these spans of the peer's memory.
    ///
    /// # Errors
    /// `PeerFailed` if the peer has released the memory; the lane fails then.
    pub fn reach_all(&mut self, spans: impl Iterator<Item = (Span, u64)>) -> Result<()> {
        let all = self.copier.table.reaches(spans);
        self.fail_unless(all)
    }

    /// Fails the lane unless all memory is mapped.
    fn fail_unless(&mut self, mapped: bool) -> Result<()> {
        if !mapped {
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
}
