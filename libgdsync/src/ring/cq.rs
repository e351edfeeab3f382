//! A completion ring: positions, reuse, and the counts of passed waits.
//!
//! Every request that raises an entry gets the next *position* when it is prepared; the NIC fills
//! entries in that order. The buffer has four quarters, and positions of at most two consecutive
//! quarters are outstanding. A position in a new quarter is given only when the quarter before the
//! last is finished: its entries are written and every stream that waits for one of them has
//! *passed*. The other half of the buffer is room for the entries that a failing queue pair writes
//! beyond the positions (unsignaled work that fails or is flushed raises entries too), so that no
//! entry is overwritten unseen.
//!
//! Each waiter has a word in which its stream counts: the stream increments it at the end of each
//! submission that contained waits. So completed work retires without a call by the user.

use mlx5_prm::cqe::{self, EntryState, ErrCqe, Failure};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;

use super::fifo::Fifo;
use super::{Refusal, RingMemory};
use crate::mutant::{self, Mutant};

/// Bytes of an entry.
pub const ENTRY: usize = 64;
/// Streams that may wait on one completion queue at the same time.
pub const WAITERS: usize = 8;
const QUARTERS: u64 = 4;

/// The positions of one completion queue.
#[derive(Debug)]
pub struct CompletionRing<M> {
    memory: M,
    /// One word for each waiter, incremented by its stream.
    passed: M,
    log_entries: u8,
    start: u64,
    next: u64,
    completed: u64,
    tickets: Box<[u64]>,
    waiters: [Waiter; WAITERS],
    /// For each quarter and waiter: the count that the waiter's stream must have reached.
    needed: [[Option<u32>; WAITERS]; QUARTERS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Waiter {
    stream: Option<u64>,
    /// Number of increments that the waiter's stream was given.
    marks: u32,
}

/// The test by which a stream waits for a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpot {
    /// Offset of the entry's last dword in the ring.
    pub offset: usize,
    /// Owner bit of a new entry.
    pub owner: u8,
    /// Whether the buffer is in its first lap.
    pub first_lap: bool,
}

impl<M: RingMemory> CompletionRing<M> {
    /// A ring of `1 << log_entries` entries (at least 8) whose first position is `start`. Presets
    /// the buffer: in the first lap no entry looks new or like a success.
    pub fn new(memory: M, passed: M, log_entries: u8, start: u64) -> CompletionRing<M> {
        debug_assert!(log_entries >= 3);
        let ring = CompletionRing {
            memory,
            passed,
            log_entries,
            start,
            next: start,
            completed: start,
            tickets: vec![0; 1 << log_entries].into(),
            waiters: [Waiter::default(); WAITERS],
            needed: [[None; WAITERS]; QUARTERS as usize],
        };
        let op_own = match mutant::on(Mutant::PresetF0) {
            true => 0xf0,
            false => cqe::OP_OWN_PRESET,
        };
        for position in start..start + ring.entries() {
            // The owner bit is that of the previous lap, in whichever lap the ring starts.
            let stale = 1 ^ ring.owner(position);
            let op_own = (op_own & 0xf0) | (op_own & 1 & stale);
            ring.memory
                .store32(ring.offset(position), u32::from(op_own) << 24);
        }
        for waiter in 0..WAITERS {
            ring.passed.store32(4 * waiter, 0);
        }
        ring
    }

    fn entries(&self) -> u64 {
        1 << self.log_entries
    }

    fn quarter_len(&self) -> u64 {
        self.entries() / QUARTERS
    }

    fn quarter(&self, position: u64) -> u64 {
        position / self.quarter_len()
    }

    fn index(&self, position: u64) -> usize {
        (position & (self.entries() - 1)) as usize
    }

    fn owner(&self, position: u64) -> u8 {
        cqe::owner_of_lap(position as u32, self.log_entries)
    }

    /// Offset of the last dword of the position's entry.
    pub fn offset(&self, position: u64) -> usize {
        self.index(position) * ENTRY + cqe::LAST_DWORD_OFFSET
    }

    /// Positions that may be outstanding at once.
    pub fn window(&self) -> u32 {
        (self.entries() / 2) as u32
    }

    /// The next position to be given.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Positions below this one hold successes.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Gives the next position to `ticket`.
    pub fn reserve(&mut self, ticket: u64) -> Result<u64, Refusal> {
        let position = self.next;
        if position.is_multiple_of(self.quarter_len()) {
            self.enter_quarter(self.quarter(position))?;
        }
        let index = self.index(position);
        self.tickets[index] = ticket;
        self.next += 1;
        Ok(position)
    }

    fn enter_quarter(&mut self, quarter: u64) -> Result<(), Refusal> {
        let full = Refusal::CompletionQueueFull {
            limit: self.window(),
        };
        if let Some(old) = quarter.checked_sub(2) {
            self.advance();
            // The whole quarter has to be written: the work queue has room as soon as its oldest
            // request is done, but `is_behind` reports each position of the quarter as done.
            let end = old + u64::from(!mutant::on(Mutant::QuarterWrittenEarly));
            let written = self.completed >= end * self.quarter_len();
            let passed = self.everyone_passed(old) || mutant::on(Mutant::EntryReusedEarly);
            if !(written && passed) {
                return Err(full);
            }
        }
        self.needed[(quarter % QUARTERS) as usize] = [None; WAITERS];
        Ok(())
    }

    fn everyone_passed(&self, quarter: u64) -> bool {
        let needed = &self.needed[(quarter % QUARTERS) as usize];
        needed
            .iter()
            .enumerate()
            .all(|(waiter, count)| match count {
                Some(count) => self.has_counted(waiter, *count),
                None => true,
            })
    }

    fn has_counted(&self, waiter: usize, count: u32) -> bool {
        (self.passed.load32(4 * waiter).wrapping_sub(count) as i32) >= 0
    }

    /// Takes back the newest position, which was given to a request that was never posted.
    pub fn unreserve(&mut self, position: u64) {
        debug_assert_eq!(position + 1, self.next);
        self.next = position;
    }

    /// The ticket that `position` was given to.
    pub fn ticket(&self, position: u64) -> u64 {
        self.tickets[self.index(position)]
    }

    /// The state of the entry of an outstanding position.
    pub fn state(&self, position: u64) -> EntryState {
        let word = self.memory.load32(self.offset(position));
        cqe::classify(word, position as u32, self.log_entries)
    }

    /// Reads new entries; returns the position below which all are successes. Stops at the next
    /// position to be given, even if the entry there is not a success: an idle queue does not read
    /// its memory, which may be the GPU's.
    pub fn advance(&mut self) -> u64 {
        while self.completed < self.next
            && matches!(self.state(self.completed), EntryState::Success(_))
        {
            self.completed += 1;
        }
        self.completed
    }

    /// The position that the NIC writes next, from the state of the entries: behind the newest one,
    /// given to a request or not. Correct while no more than one buffer has been written since the
    /// newest known success.
    pub fn written(&self) -> u64 {
        let mut position = self.completed;
        // The loop ends within one buffer: there the owner bit is that of the other lap.
        while self.state(position) != EntryState::NotYet {
            position += 1;
        }
        position
    }

    /// Retires the requests of `fifo` that new entries cover, and passes each retired hold to
    /// `empty`.
    pub fn retire<H>(&mut self, fifo: &mut Fifo<H>, empty: impl FnMut(&mut H)) {
        if self.advance() > self.start {
            fifo.retire(self.ticket(self.completed - 1), empty);
        }
    }

    /// Whether `position` is so old that its entry is known to be a success that all streams have
    /// passed: no wait is needed.
    pub fn is_behind(&self, position: u64) -> bool {
        self.quarter(position) + 2 <= self.quarter(self.next.saturating_sub(1))
    }

    /// The test for `position`.
    pub fn spot(&self, position: u64) -> WaitSpot {
        WaitSpot {
            offset: self.offset(position),
            owner: self.owner(position),
            first_lap: position - self.start < self.entries(),
        }
    }

    /// The waiter of `stream`: its own, or one whose streams have all passed.
    pub fn waiter(&mut self, stream: u64) -> Result<usize, Refusal> {
        if let Some(waiter) = self.waiters.iter().position(|w| w.stream == Some(stream)) {
            return Ok(waiter);
        }
        let idle = |i: &usize| match self.waiters[*i] {
            Waiter { stream: None, .. } => true,
            Waiter { marks, .. } => self.has_counted(*i, marks),
        };
        let waiter = (0..WAITERS).find(idle).ok_or(Refusal::TooManyWaiters {
            limit: WAITERS as u32,
        })?;
        self.waiters[waiter].stream = Some(stream);
        Ok(waiter)
    }

    /// The count that the waiter's stream must write after its next waits.
    pub fn next_mark(&self, waiter: usize) -> u32 {
        self.waiters[waiter].marks.wrapping_add(1)
    }

    /// Records that the waiter's stream was given a wait for `position` and then an increment to
    /// [`CompletionRing::next_mark`].
    pub fn note_wait(&mut self, waiter: usize, position: u64) {
        let mark = self.next_mark(waiter);
        let quarter = (self.quarter(position) % QUARTERS) as usize;
        self.needed[quarter][waiter] = Some(mark);
    }

    /// Records that the mark was enqueued.
    pub fn commit_mark(&mut self, waiter: usize) {
        self.waiters[waiter].marks = self.next_mark(waiter);
    }

    /// As if the stream had been given so many waits and had passed them all.
    #[cfg(test)]
    pub fn age(&mut self, stream: u64, marks: u32) -> Result<(), Refusal> {
        let waiter = self.waiter(stream)?;
        self.waiters[waiter].marks = marks;
        self.passed.store32(4 * waiter, marks);
        Ok(())
    }

    /// Whether every stream has passed all the waits that it was given.
    pub fn all_passed(&self) -> bool {
        (0..WAITERS).all(|w| self.has_counted(w, self.waiters[w].marks))
    }

    /// The body of an entry, for its syndrome and counter.
    pub fn entry(&self, position: u64) -> [u8; ENTRY] {
        let base = self.index(position) * ENTRY;
        let mut entry = [0; ENTRY];
        for (i, segment) in entry.chunks_exact_mut(16).enumerate() {
            segment.copy_from_slice(&self.memory.load_segment(base + 16 * i));
        }
        entry
    }

    /// Writes the entry at `position` in place of a lost NIC: the request with this `counter` was
    /// flushed. `opcode` is that of an error entry, of a send or a receive.
    pub fn put_flushed(&self, position: u64, opcode: CqeOpcode, counter: u16) {
        let failure = Failure {
            opcode,
            syndrome: Syndrome::WR_FLUSH,
            wqe_counter: counter,
            ..Failure::default()
        };
        let bytes = ErrCqe::new(&failure, self.owner(position)).to_bytes();
        // The segments may be stored in any order: streams test the last dword alone, and no wait
        // passes on an error.
        let base = self.index(position) * ENTRY;
        for (i, segment) in bytes.as_chunks().0.iter().enumerate() {
            self.memory.store_segment(base + 16 * i, segment);
        }
    }

    /// Overwrites an error entry so that streams that wait for it pass. The caller has stored the
    /// status before.
    pub fn release(&self, position: u64) {
        let word = cqe::last_dword(CqeOpcode::REQ, self.owner(position), 0, position as u16);
        self.memory.store32(self.offset(position), word);
    }
}

/// The `op_own` byte of an entry in a new completion buffer.
#[cfg(feature = "mutants")]
pub fn preset_byte() -> u8 {
    use std::cell::Cell;

    /// Remembers the first word stored: the first entry's last dword.
    struct First<'a>(&'a Cell<Option<u32>>);

    impl RingMemory for First<'_> {
        fn store_segment(&self, _: usize, _: &[u8; 16]) {}
        fn load_segment(&self, _: usize) -> [u8; 16] {
            [0; 16]
        }
        fn load32(&self, _: usize) -> u32 {
            0
        }
        fn store32(&self, _: usize, value: u32) {
            self.0.set(self.0.get().or(Some(value)));
        }
    }

    let first = Cell::new(None);
    CompletionRing::new(First(&first), First(&Cell::new(None)), 3, 0);
    (first.get().unwrap_or(0) >> 24) as u8
}
