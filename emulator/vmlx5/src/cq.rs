//! Completion queues: entries written with their owner bit, the last dword last.

use std::sync::Arc;

use mlx5_prm::cqe::{Cqe64, ErrCqe, Failure, LAST_DWORD_OFFSET, SIZE, Success, owner_of_lap};
use mlx5_prm::doorbell;

use crate::arm::Arm;
use crate::dma::Dma;
use crate::error::{NicError, Object};
use crate::object::UarId;

/// A completion queue to create. Its owner presets the entries (see [`mlx5_prm::cqe`]); the
/// NIC writes nothing but completions.
#[derive(Clone)]
pub struct CqAttr {
    /// The memory of its entries, 64 bytes each.
    pub mem: Arc<dyn Dma>,
    /// Where in it the entries begin: a multiple of 64.
    pub offset: u64,
    /// Their number is 2 to this power.
    pub log_entries: u8,
    /// Its doorbell record (8 bytes, aligned), where the consumer says how far it is. May be
    /// missing if overruns are ignored.
    pub record: Option<(Arc<dyn Dma>, u64)>,
    /// Write on, whether or not the consumer took the former entry.
    pub ignore_overrun: bool,
    /// The number of the first entry: 0, or a number near a wrap to test it. The consumer must
    /// start there too.
    pub start: u32,
    /// What its events carry; means nothing to the NIC.
    pub owner: u64,
    /// Its consumer asks for [`Event::Completion`](crate::Event::Completion)s in the second word
    /// of the record, and tells so by the completion register of this page, at 0x20. The NIC
    /// presets that word to ones, which ask for nothing. Needs a record.
    pub events: Option<UarId>,
    /// Every entry is written to the first slot, over the one before: a consumer that only wants
    /// to know how far the queue came. The memory and the owner bit are those of a whole queue.
    pub collapsed: bool,
}

impl CqAttr {
    /// A queue of 2 to the power of `log_entries` entries at `offset` of `mem`, from number 0,
    /// without a record: it ignores overruns.
    pub fn new(mem: Arc<dyn Dma>, offset: u64, log_entries: u8) -> CqAttr {
        CqAttr {
            mem,
            offset,
            log_entries,
            record: None,
            ignore_overrun: true,
            start: 0,
            owner: 0,
            events: None,
            collapsed: false,
        }
    }
}

/// How a completion queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInfo {
    /// Number of the entry written next, counted over all laps.
    pub producer: u32,
    /// How many entries it has.
    pub entries: u32,
    /// What made it useless, if anything did.
    pub failure: Option<CqFailure>,
    /// How many work queues complete into it.
    pub users: u32,
}

/// A completion queue that takes no more entries; the queue pairs that use it are in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFailure {
    /// An entry came up while the queue was full.
    Overrun,
    /// Its memory refused an access.
    Memory,
}

pub(crate) struct Cq {
    /// As it was created; it has no record if it ignores overruns.
    pub attr: CqAttr,
    /// Number of the next entry.
    producer: u32,
    /// The consumer as last seen: never ahead of the truth. Unused if overruns are ignored.
    consumer: u32,
    failure: Option<CqFailure>,
    /// The failure was not acted upon yet.
    pub fresh_failure: bool,
    /// Where its consumer asks for events, if it may.
    pub arm: Option<Arm>,
}

/// Most entries are numbered by 24 bits in the doorbell record.
const CI_BITS: u32 = 24;

impl Cq {
    pub fn new(attr: CqAttr, max_log: u8) -> Result<Cq, NicError> {
        let object = Object::Cq;
        NicError::within(object, "log_entries", attr.log_entries, max_log)?;
        check_span(
            object,
            &*attr.mem,
            attr.offset,
            (SIZE as u64) << attr.log_entries,
            64,
        )?;
        if let Some((mem, offset)) = &attr.record {
            check_span(object, &**mem, *offset, 8, 8)?;
        } else if !attr.ignore_overrun || attr.events.is_some() {
            return Err(NicError::NoRecord);
        }
        let arm = match (attr.events, &attr.record) {
            (Some(uar), Some((mem, offset))) => Some(Arm::new(uar, mem, *offset, attr.start)),
            _ => None,
        };
        Ok(Cq {
            producer: attr.start,
            consumer: attr.start,
            failure: None,
            fresh_failure: false,
            arm,
            attr: CqAttr {
                record: attr.record.filter(|_| !attr.ignore_overrun),
                ..attr
            },
        })
    }

    pub fn info(&self, users: u32) -> CqInfo {
        CqInfo {
            producer: self.producer,
            entries: 1 << self.attr.log_entries,
            failure: self.failure,
            users,
        }
    }

    /// Writes the entry of work that is done, which has the payload if one is given.
    pub fn succeed(&mut self, say: &Success, payload: Option<&[u8]>) {
        let owner = owner_of_lap(self.producer, self.attr.log_entries);
        let entry = Cqe64::success(say, owner);
        match payload {
            Some(payload) => self.push(&entry.with_scattered(payload), say.solicited),
            None => self.push(&entry, say.solicited),
        }
    }

    pub fn fail(&mut self, say: &Failure) {
        let owner = owner_of_lap(self.producer, self.attr.log_entries);
        self.push(ErrCqe::new(say, owner).as_cqe(), true);
    }

    /// True, once for each time it was asked for, when there is an entry to tell of.
    #[inline]
    pub fn tells(&mut self) -> bool {
        match &mut self.arm {
            None => false,
            Some(arm) => arm.fires(self.producer),
        }
    }

    /// Writes an entry; `solicited`: it also counts for who waits for such only.
    fn push(&mut self, entry: &Cqe64, solicited: bool) {
        if self.failure.is_some() {
            return;
        }
        let done = if self.full() {
            Err(CqFailure::Overrun)
        } else {
            self.write(entry)
        };
        if let Some(arm) = self.arm.as_mut().filter(|_| solicited && done.is_ok()) {
            arm.solicited = Some(self.producer.wrapping_sub(1));
        }
        if let Err(failure) = done {
            self.failure = Some(failure);
            self.fresh_failure = true;
        }
    }

    fn write(&mut self, entry: &Cqe64) -> Result<(), CqFailure> {
        let slots = if self.attr.collapsed {
            1
        } else {
            1 << self.attr.log_entries
        };
        let slot = self.producer & (slots - 1);
        let at = self.attr.offset + u64::from(slot) * SIZE as u64;
        let body = &entry.to_bytes()[..LAST_DWORD_OFFSET];
        let last = at + LAST_DWORD_OFFSET as u64;
        self.attr
            .mem
            .write(at, body)
            .map_err(|_| CqFailure::Memory)?;
        // A release store: whoever sees the owner bit change sees the rest of the entry, and
        // the payload it speaks of as far as the memory keeps that promise.
        self.attr
            .mem
            .store32(last, entry.last_dword().to_le())
            .map_err(|_| CqFailure::Memory)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// True if the next entry would fall on one that the consumer did not take.
    fn full(&mut self) -> bool {
        let Some((mem, offset)) = &self.attr.record else {
            return false;
        };
        let used = |producer: u32, consumer: u32| producer.wrapping_sub(consumer) << (32 - CI_BITS);
        let limit = 1 << self.attr.log_entries << (32 - CI_BITS);
        if used(self.producer, self.consumer) < limit {
            return false;
        }
        let Ok(word) = mem.load32(offset + doorbell::SET_CI as u64) else {
            return true;
        };
        self.consumer = doorbell::cq_ci(u32::from_le(word));
        used(self.producer, self.consumer) >= limit
    }
}

/// Checks that an object's bytes lie in memory, aligned.
pub(crate) fn check_span(
    object: Object,
    mem: &dyn Dma,
    offset: u64,
    len: u64,
    align: u64,
) -> Result<(), NicError> {
    let limit = mem.len();
    let fits = offset.checked_add(len).is_some_and(|end| end <= limit);
    if fits && offset.is_multiple_of(align) {
        return Ok(());
    }
    Err(NicError::Span {
        object,
        offset,
        len,
        align,
        limit,
    })
}
