//! The order of a work queue: requests are prepared, then posted in the order of their
//! preparation or aborted, then retired in order.
//!
//! ```text
//!   retired            posted             next
//!      |  in flight      |  prepared        |
//! -----+-----------------+------------------+----- tickets (64 bit, never wrap)
//! ```
//! A request occupies consecutive basic blocks; block indices are free-running 32-bit numbers whose
//! low 16 bits are the NIC's index. Aborting the newest request returns its blocks; aborting an
//! older one leaves a hole of equal size, which is removed when it becomes the newest.

use std::collections::VecDeque;

use super::Refusal;
use crate::mutant::{self, Mutant};
use crate::status::Status;

/// Number of aborts that are remembered.
const ABORTS: usize = 4096;

/// The number of a request within its queue, in order of preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The side that writes the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poster {
    /// This process's CPU.
    Cpu,
    /// A stream, by its id.
    Stream(u64),
}

/// The state of one request. Slots are reused from lap to lap.
#[derive(Debug)]
pub struct Slot<H> {
    /// First basic block, free-running.
    pub start: u32,
    /// Basic blocks.
    pub blocks: u32,
    /// Number of segments of 16 bytes.
    pub segments: u8,
    /// Aborted behind a newer request: a NOP takes its place.
    pub hole: bool,
    /// Its completion position, if it raises an entry on success.
    pub entry: Option<u64>,
    /// The known outcome of a request that failed or was aborted.
    pub status: Status,
    /// Number of requests prepared before, including those taken back: distinguishes the request
    /// from others that had its ticket.
    pub serial: u64,
    /// Blocks prepared without a completion entry up to and including this one.
    pub silent_run: u32,
    /// Objects that must stay alive while the NIC may access them.
    pub hold: H,
}

/// The order and the room of one work queue.
#[derive(Debug)]
pub struct Fifo<H> {
    slots: Box<[Slot<H>]>,
    next: u64,
    /// The highest `next` so far: slots were overwritten up to this index, also by requests that
    /// were taken back.
    high: u64,
    pushes: u64,
    /// Serials of the most recently aborted requests, oldest abort first.
    aborted: VecDeque<u64>,
    /// One more than the highest serial that was removed from `aborted`.
    forgotten: u64,
    posted: PostMark,
    retired: u64,
    head: u32,
    tail: u32,
    room: u32,
}

/// The part of a [`Fifo`] that a post changes, to be restored if the post does not happen.
#[derive(Clone, Copy, Debug)]
pub struct PostMark {
    posted: u64,
    head: u32,
    last_poster: Option<Poster>,
}

impl PostMark {
    /// Requests below this ticket had been posted.
    pub fn posted(&self) -> u64 {
        self.posted
    }
}

impl<H: Default> Fifo<H> {
    /// An empty queue of `room` basic blocks (a power of two) whose first block has index `start`.
    pub fn new(room: u32, start: u32) -> Fifo<H> {
        debug_assert!(room.is_power_of_two());
        let slot = || Slot {
            start: 0,
            blocks: 0,
            segments: 0,
            hole: false,
            entry: None,
            status: Status::PENDING,
            serial: 0,
            silent_run: 0,
            hold: H::default(),
        };
        Fifo {
            slots: (0..room).map(|_| slot()).collect(),
            next: 0,
            high: 0,
            pushes: 0,
            aborted: VecDeque::new(),
            forgotten: 0,
            posted: PostMark {
                posted: 0,
                head: start,
                last_poster: None,
            },
            retired: 0,
            head: start,
            tail: start,
            room,
        }
    }
}

impl<H> Fifo<H> {
    fn at(&self, ticket: u64) -> usize {
        (ticket & (self.slots.len() as u64 - 1)) as usize
    }

    /// The request's slot, if it has not been retired and overwritten.
    pub fn slot(&self, ticket: u64) -> Option<&Slot<H>> {
        self.knows(ticket).then(|| &self.slots[self.at(ticket)])
    }

    /// As [`Fifo::slot`], to change it.
    pub fn slot_mut(&mut self, ticket: u64) -> Option<&mut Slot<H>> {
        let at = self.at(ticket);
        self.knows(ticket).then(|| &mut self.slots[at])
    }

    fn knows(&self, ticket: u64) -> bool {
        ticket < self.next && ticket + self.slots.len() as u64 >= self.high
    }

    /// The next ticket to be given.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Requests below this ticket have been handed to a poster.
    pub fn posted(&self) -> u64 {
        self.posted.posted
    }

    /// Requests below this ticket are done; their blocks are free.
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// Index of the next block to be used.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Index behind the last block handed to a poster: the value of the doorbell record.
    pub fn posted_head(&self) -> u32 {
        self.posted.head
    }

    /// The number of blocks of the queue.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Blocks prepared without a completion entry since the last request with one.
    pub fn silent_run(&self) -> u32 {
        match self.next.checked_sub(1).filter(|t| *t >= self.retired) {
            Some(newest) => self.slots[self.at(newest)].silent_run,
            None => 0,
        }
    }

    /// Whether a request of `blocks` fits now. There is a slot for each block, and a request has at
    /// least one block, so slots do not run out first.
    pub fn has_room(&self, blocks: u32) -> bool {
        let used = self.head.wrapping_sub(self.tail);
        used + blocks <= self.room
    }

    /// Appends a request for which [`Fifo::has_room`] found room.
    pub fn push(
        &mut self,
        blocks: u32,
        segments: u8,
        entry: Option<u64>,
        fill: impl FnOnce(&mut H),
    ) -> u64 {
        let silent_run = if entry.is_some() {
            0
        } else {
            self.silent_run() + blocks
        };
        let ticket = self.next;
        let at = self.at(ticket);
        let slot = &mut self.slots[at];
        slot.start = self.head;
        slot.blocks = blocks;
        slot.segments = segments;
        slot.hole = false;
        slot.entry = entry;
        slot.status = Status::PENDING;
        slot.serial = self.pushes;
        slot.silent_run = silent_run;
        fill(&mut slot.hold);
        self.head = self.head.wrapping_add(blocks);
        self.next += 1;
        self.pushes += 1;
        self.high = self.high.max(self.next);
        ticket
    }

    /// The serial of the request that has this ticket now; 0 if it is forgotten.
    pub fn serial(&self, ticket: u64) -> u64 {
        self.slot(ticket).map_or(0, |slot| slot.serial)
    }

    /// Whether `ticket` still belongs to the request with this serial: a request that was taken
    /// back leaves its ticket to the next. For old tickets whose serial is forgotten nothing is
    /// known.
    pub fn check_serial(&self, ticket: u64, serial: u64) -> Result<(), Refusal> {
        match self.slot(ticket) {
            Some(slot) if slot.serial != serial => Err(Refusal::Aborted),
            _ => Ok(()),
        }
    }

    /// Whether the request with this serial was aborted. `None`: it is no longer known.
    pub fn was_aborted(&self, serial: u64) -> Option<bool> {
        let aborted = self.aborted.contains(&serial);
        (aborted || serial >= self.forgotten).then_some(aborted)
    }

    fn note_abort(&mut self, serial: u64) {
        if self.aborted.len() == ABORTS
            && let Some(oldest) = self.aborted.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest + 1);
        }
        self.aborted.push_back(serial);
    }

    /// Replaces a prepared request by a hole; returns its slot.
    pub fn make_hole(&mut self, ticket: u64, empty: impl FnOnce(&mut H)) -> &Slot<H> {
        let at = self.at(ticket);
        let slot = &mut self.slots[at];
        slot.hole = true;
        slot.status = Status::ABORTED;
        empty(&mut slot.hold);
        let serial = slot.serial;
        self.note_abort(serial);
        &self.slots[at]
    }

    /// Whether `ticket` is prepared, neither posted nor aborted.
    pub fn check_prepared(&self, ticket: u64) -> Result<(), Refusal> {
        let prepared = ticket >= self.posted() && ticket < self.next;
        if !prepared || self.slots[self.at(ticket)].hole {
            return Err(self.not_prepared(ticket));
        }
        Ok(())
    }

    /// The reason why `ticket` is not prepared.
    #[cold]
    fn not_prepared(&self, ticket: u64) -> Refusal {
        match self.slot(ticket) {
            None if ticket < self.next => Refusal::Forgotten,
            Some(slot) if !slot.hole => Refusal::AlreadyPosted,
            _ => Refusal::Aborted,
        }
    }

    /// Whether `ticket` is the newest request.
    pub fn is_newest(&self, ticket: u64) -> bool {
        ticket + 1 == self.next
    }

    /// Takes the newest request back; returns its completion position.
    pub fn pop(&mut self, empty: impl FnOnce(&mut H)) -> Option<u64> {
        let at = self.at(self.next - 1);
        let slot = &mut self.slots[at];
        empty(&mut slot.hold);
        let (serial, start) = (slot.serial, slot.start);
        let entry = slot.entry.take();
        self.note_abort(serial);
        if !mutant::on(Mutant::LostRollback) {
            self.head = start;
        }
        self.next -= 1;
        entry
    }

    /// The newest request, if it has not been posted.
    pub fn newest_prepared(&self) -> Option<u64> {
        (self.next > self.posted()).then(|| self.next - 1)
    }

    /// Whether the newest request is a hole that has not been posted.
    pub fn newest_is_hole(&self) -> bool {
        self.next > self.posted() && self.slots[self.at(self.next - 1)].hole
    }

    /// Hands every request up to and including `ticket` to `poster`. The result is the record value
    /// that `poster` must see first: the value of another stream that posted last and whose work is
    /// not known to be done.
    pub fn post(&mut self, ticket: u64, poster: Poster) -> Result<Option<u32>, Refusal> {
        self.check_prepared(ticket)?;
        if let Some(first) = (self.posted()..ticket).find(|t| !self.slots[self.at(*t)].hole) {
            return Err(Refusal::OutOfOrder { first });
        }
        let in_flight = self.retired < self.posted();
        let edge = match self.posted.last_poster {
            Some(Poster::Stream(s)) if poster != Poster::Stream(s) && in_flight => {
                Some(self.posted.head)
            }
            _ => None,
        };
        let slot = &self.slots[self.at(ticket)];
        self.posted = PostMark {
            posted: ticket + 1,
            head: slot.start.wrapping_add(slot.blocks),
            last_poster: Some(poster),
        };
        Ok(edge)
    }

    /// The state that [`Fifo::restore`] needs to take back later posts.
    pub fn mark(&self) -> PostMark {
        self.posted
    }

    /// Takes back every post since `mark`: the submission failed, so no doorbell will be written.
    pub fn restore(&mut self, mark: PostMark) {
        self.posted = mark;
    }

    /// Retires every request up to and including `ticket`, which must have been posted.
    pub fn retire(&mut self, ticket: u64, mut empty: impl FnMut(&mut H)) {
        debug_assert!(ticket < self.posted());
        while self.retired <= ticket {
            let at = self.at(self.retired);
            let slot = &mut self.slots[at];
            self.tail = slot.start.wrapping_add(slot.blocks);
            empty(&mut slot.hold);
            self.retired += 1;
        }
    }

    /// The request in flight whose first block has the NIC's index `counter`.
    pub fn by_counter(&self, counter: u16) -> Option<u64> {
        (self.retired..self.posted()).find(|t| self.slots[self.at(*t)].start as u16 == counter)
    }
}
