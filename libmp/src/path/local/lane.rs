//! A lane of a rank to itself: the puts that are prepared or under way, and those that the CPU
//! carries out.

use std::collections::VecDeque;

use gdsync::gpu::{Condition, Region};
use gdsync::rdma::{self, Descriptor};
use gdsync::{Status, Stream};

use super::record::{CAPTURED, RECORDS, Records};
use super::{Local, Piece, Span};
use crate::error::{Error, Kind, Result};
use crate::kernels::{STAMPS, Stamp};
use crate::mutant::{Mutant, on};

/// Bytes that the CPU copies at a time, under the context's lock.
const BURST: usize = 4 << 20;
/// Bytes on their way from memory to memory.
const BUFFER: usize = 4096;

/// A put that is prepared on a lane, under way, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    record: u16,
    serial: u64,
}

impl Put {
    pub(super) fn record(self) -> usize {
        self.record.into()
    }

    pub(super) fn serial(self) -> u64 {
        self.serial
    }
}

/// How far a put has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its record is free.
    Free,
    Prepared,
    /// It is done when this one is, the last of those that it was posted with.
    Posted(Put),
    /// The lane failed before it was done.
    Lost,
}

/// Where bytes come from.
struct Source {
    region: Region,
    offset: usize,
    len: usize,
}

/// A put.
pub(super) struct Slot {
    /// Its number, which no other put of the lane has.
    pub serial: u64,
    pub stage: Stage,
    /// Whole words, visible only after what was put before them.
    pub words: bool,
    /// Its bytes, at most.
    pub len: u64,
    to: Span,
    /// Held until it is done, or a stream has it.
    from: Vec<Source>,
}

impl Slot {
    /// Holds its memory no longer.
    pub fn let_go(&mut self) {
        self.from.clear();
    }
}

/// A lane.
pub(crate) struct Lane {
    pub(super) local: Local,
    pub(super) records: Records,
    pub(super) slots: Vec<Slot>,
    /// Where the next put looks for a free record.
    next: usize,
    /// Puts so far.
    count: u64,
    /// What the CPU carries out, the oldest first.
    queue: VecDeque<Put>,
    /// Bytes of the first that are copied.
    copied: usize,
    failed: Option<Status>,
}

impl Lane {
    pub fn new(local: &Local) -> Result<Lane> {
        let free = || Slot {
            serial: 0,
            stage: Stage::Free,
            words: false,
            len: 0,
            to: Span::default(),
            from: Vec::new(),
        };
        Ok(Lane {
            records: Records::new(&local.gpu)?,
            local: local.clone(),
            slots: (0..RECORDS).map(|_| free()).collect(),
            next: 0,
            count: 0,
            queue: VecDeque::with_capacity(RECORDS),
            copied: 0,
            failed: None,
        })
    }

    /// Whether a posted put is done, by what the last of its list says.
    fn is_done(&self, last: Put) -> bool {
        let done = self.records.done(last.record());
        // Pinned memory, which the CPU reaches: it cannot fail. Acquire: pairs with the release of
        // the kernel, or of the CPU in `end`.
        done.load().unwrap_or(0) >= last.serial
    }

    fn is_free(&self, at: usize) -> bool {
        match self.slots[at].stage {
            Stage::Free => true,
            Stage::Prepared | Stage::Lost => false,
            Stage::Posted(last) => self.is_done(last),
        }
    }

    fn take(&mut self) -> Result<usize> {
        const OPERATION: &str = "prepare put";
        if let Some(status) = self.failed {
            return Err(Error::new(
                OPERATION,
                Kind::PeerFailed(status),
                "the lane failed",
            ));
        }
        self.go_on();
        let mut places = (0..RECORDS).map(|i| (self.next + i) % RECORDS);
        places.find(|at| self.is_free(*at)).ok_or_else(|| {
            let what = "puts of this rank to itself under way";
            Error::new(OPERATION, Kind::QueueFull, what).with_limit(RECORDS)
        })
    }

    fn prepared(&mut self, at: usize, to: Span, words: bool) -> Result<Put> {
        self.count += 1;
        self.next = (at + 1) % RECORDS;
        let slot = &mut self.slots[at];
        slot.serial = self.count;
        slot.stage = Stage::Prepared;
        slot.words = words;
        slot.to = to;
        slot.len = slot.from.iter().map(|source| source.len as u64).sum();
        self.records.write(at, to, slot.from.len())?;
        Ok(Put {
            record: at as u16,
            serial: self.count,
        })
    }

    /// Prepares a put of pieces of memory, one behind the other.
    #[inline]
    pub fn put<'a>(
        &mut self,
        pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
    ) -> Result<Put> {
        let at = self.take()?;
        self.slots[at].from.clear();
        for (index, piece) in pieces.enumerate() {
            self.source(at, index, piece)?;
        }
        self.prepared(at, to, false)
    }

    fn source(&mut self, at: usize, index: usize, piece: Piece<'_>) -> Result<()> {
        self.records.write_piece(at, index, piece)?;
        self.slots[at].from.push(Source {
            region: piece.region.clone(),
            offset: piece.offset,
            len: piece.len,
        });
        Ok(())
    }

    /// Prepares a put of words of memory, behind all that was put earlier.
    pub fn put_words(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        let at = self.take()?;
        self.slots[at].from.clear();
        self.source(at, 0, words)?;
        self.prepared(at, to, true)
    }

    /// Prepares a put of words, captured now, behind all that was put earlier.
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.capture(words, to, true)
    }

    /// Prepares a put of a few bytes, which are captured now.
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        self.capture(bytes, to, false)
    }

    fn capture(&mut self, bytes: &[u8], to: Span, words: bool) -> Result<Put> {
        let at = self.take()?;
        debug_assert!(bytes.len() <= CAPTURED);
        self.records.capture(at, bytes)?;
        let piece = self.records.captured(at, bytes.len());
        self.records.write_piece(at, 0, piece)?;
        let source = Source {
            region: piece.region.clone(),
            offset: piece.offset,
            len: piece.len,
        };
        let from = &mut self.slots[at].from;
        from.clear();
        from.push(source);
        self.prepared(at, to, words)
    }

    fn known(&mut self, operation: &'static str, put: Put) -> Result<&mut Slot> {
        let slot = self.slots.get_mut(put.record());
        let known = slot.filter(|slot| slot.serial == put.serial && slot.stage != Stage::Free);
        known.ok_or_else(|| Error::new(operation, Kind::Invalid, "no such put"))
    }

    /// What has become of a put; `None`: it is under way.
    ///
    /// # Errors
    /// It was not posted, or is so old that the lane has forgotten it.
    pub fn poll(&mut self, put: Put) -> Result<Option<Status>> {
        const OPERATION: &str = "poll put";
        self.go_on();
        match self.known(OPERATION, put)?.stage {
            Stage::Posted(last) => Ok(self.is_done(last).then_some(Status::SUCCESS)),
            Stage::Lost => Ok(Some(self.failed.unwrap_or(Status::FLUSHED))),
            Stage::Free | Stage::Prepared => {
                Err(Error::new(OPERATION, Kind::Invalid, "it was not posted"))
            }
        }
    }

    /// Takes a put back that was prepared and not posted.
    pub fn abort(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "abort put";
        let slot = self.known(OPERATION, put)?;
        if slot.stage != Stage::Prepared {
            return Err(Error::new(OPERATION, Kind::Invalid, "it was posted"));
        }
        slot.stage = Stage::Free;
        slot.from.clear();
        self.next = put.record();
        Ok(())
    }

    /// Has `stream` wait until a put is done.
    pub fn wait_on(&mut self, stream: &Stream, put: Put) -> Result<()> {
        let Ok(slot) = self.known("wait for put", put) else {
            return Ok(());
        };
        let Stage::Posted(last) = slot.stage else {
            return Ok(());
        };
        let done = self.records.done(last.record());
        let list = [Descriptor::wait_value(done, Condition::Geq, last.serial)];
        Ok(rdma::post_on(stream, &mut [], &list)?)
    }

    /// Whether nothing that was posted is under way.
    pub fn is_quiet(&mut self) -> bool {
        self.go_on();
        let under_way = |slot: &Slot| match slot.stage {
            Stage::Posted(last) => !self.is_done(last),
            _ => false,
        };
        !self.slots.iter().any(under_way)
    }

    pub fn error(&self) -> Option<Status> {
        self.failed
    }

    /// Nothing is put any more; who waits for a put goes on.
    pub fn fail(&mut self, status: Status) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(status);
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.records.failed().store(status.0);
        self.queue.clear();
        for at in 0..RECORDS {
            if let Stage::Posted(last) = self.slots[at].stage
                && !self.is_done(last)
            {
                self.slots[at].stage = Stage::Lost;
                self.slots[at].from.clear();
            }
        }
        for at in 0..RECORDS {
            if self.slots[at].stage == Stage::Lost {
                let _ = self.records.done(at).store(self.slots[at].serial);
            }
        }
    }

    /// Where kernels find the puts of a message, whose last is the stamp; see
    /// [`Stamp`].
    pub fn patch(
        &self,
        mut puts: impl DoubleEndedIterator<Item = Put>,
        large: bool,
        late: [bool; 2],
        params: &mut Stamp<STAMPS>,
    ) {
        let Some(stamp) = puts.next_back() else {
            return;
        };
        params.stamp_control = self.records.addr(stamp.record());
        for (patch, put) in params.patch.iter_mut().zip(puts) {
            *patch = self.records.patch(put.record(), large, late);
            params.chunks += 1;
        }
    }

    /// Hands a put to the CPU; [`Lane::go_on`] carries it out.
    pub fn post(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "post put";
        if let Some(status) = self.failed {
            return Err(Error::new(
                OPERATION,
                Kind::PeerFailed(status),
                "the lane failed",
            ));
        }
        self.known(OPERATION, put)?.stage = Stage::Posted(put);
        match on(Mutant::LocalWordFirst) && self.slots[put.record()].words {
            true => self.queue.push_front(put),
            false => self.queue.push_back(put),
        }
        Ok(())
    }

    /// Carries out what the CPU posted, a part at a time if it is much.
    pub fn go_on(&mut self) {
        let mut left = BURST;
        while left > 0
            && let Some(put) = self.queue.front().copied()
        {
            match self.copy(put.record(), &mut left) {
                Ok(true) => {
                    self.end(put);
                    if on(Mutant::LocalWordFirst) && self.slots[put.record()].words {
                        return;
                    }
                }
                Ok(false) => {}
                Err(e) => {
                    tracing::warn!(target: "mp", "a put of a rank to itself failed: {e}");
                    return self.fail(Status::LOCAL_ACCESS);
                }
            }
        }
    }

    fn end(&mut self, put: Put) {
        self.queue.pop_front();
        self.copied = 0;
        self.slots[put.record()].from.clear();
        // As in `fail`. Release: who sees it finds the bytes.
        let _ = self.records.done(put.record()).store(put.serial);
    }

    /// Copies at most `left` bytes of the first put. `true`: that was the last.
    fn copy(&mut self, at: usize, left: &mut usize) -> Result<bool> {
        let Lane {
            local,
            slots,
            copied,
            ..
        } = self;
        let slot = &slots[at];
        let (to, start) = local.table.find(slot.to, slot.len)?;
        let mut skip = *copied;
        for source in &slot.from {
            if skip >= source.len {
                skip -= source.len;
                continue;
            }
            while skip < source.len && *left > 0 {
                let n = (source.len - skip).min(BUFFER).min(*left);
                let n = transfer(source, skip, &to, start + *copied, n, slot.words)?;
                skip += n;
                *copied += n;
                *left -= n;
            }
            skip = skip.saturating_sub(source.len);
        }
        Ok(*copied as u64 == slot.len)
    }
}

/// Copies `n` bytes, or a word.
fn transfer(
    from: &Source,
    at: usize,
    to: &Region,
    start: usize,
    n: usize,
    words: bool,
) -> Result<usize> {
    if words {
        let mut word = [0; 8];
        from.region.read(from.offset + at, &mut word)?;
        to.word64(start)?.store(u64::from_ne_bytes(word))?;
        return Ok(8);
    }
    let mut buffer = [0; BUFFER];
    let buffer = &mut buffer[..n];
    from.region.read(from.offset + at, buffer)?;
    to.write(start, buffer)?;
    Ok(n)
}
