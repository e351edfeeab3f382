//! Completion queues: entries written with their owner bit, the last dword last.

use std::sync::Arc;

use mlx5_prm::cqe::{Cqe64, ErrCqe, Failure, LAST_DWORD_OFFSET, SIZE, Success, owner_of_lap};
use mlx5_prm::doorbell;

use crate::arm::Arm;
use crate::dma::Dma;
use crate::error::{NicError, Object};
use crate::object::UarId;

/// The attributes of a completion queue to create. Its owner presets the entries (see
/// [`mlx5_prm::cqe`]); the NIC writes only completions.
#[derive(Clone)]
pub struct CqAttr {
    /// The memory of its entries, 64 bytes each.
    pub mem: Arc<dyn Dma>,
    /// Offset of the entries in this memory: a multiple of 64.
    pub offset: u64,
    /// Logarithm of the number of entries.
    pub log_entries: u8,
    /// Its doorbell record (8 bytes, aligned), where the consumer writes its consumer index. `None`
    /// is allowed if overruns are ignored.
    pub record: Option<(Arc<dyn Dma>, u64)>,
    /// Ignores overruns: the NIC writes an entry whether or not the consumer took the former one.
    pub ignore_overrun: bool,
    /// The number of the first entry: 0, or a number near a wrap to test the wrap. The consumer
    /// must start there too.
    pub start: u32,
    /// The owner value in its events; the NIC does not interpret it.
    pub owner: u64,
    /// The page of its completion register, at offset 0x20. The consumer requests
    /// [`Event::Completion`](crate::Event::Completion)s in the second word of the record, then
    /// writes that register. The NIC presets the word to ones, which request nothing. Events need a
    /// record.
    pub events: Option<UarId>,
    /// The NIC writes every entry to the first slot, over the former entry, for a consumer that
    /// needs only the progress of the queue. The memory and the owner bit are those of a whole
    /// queue.
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

/// The status of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInfo {
    /// Number of the next entry, counted over all laps.
    pub producer: u32,
    /// Number of entries in the ring.
    pub entries: u32,
    /// The failure of the queue, if it failed.
    pub failure: Option<CqFailure>,
    /// Number of work queues that complete into it.
    pub users: u32,
}

/// The reason why a completion queue takes no more entries. Queue pairs that use it are in ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFailure {
    /// The NIC had an entry to write while the queue was full (overrun).
    Overrun,
    /// The queue's memory refused an access.
    Memory,
}

pub(crate) struct Cq {
    /// The attributes of its creation, without a record if it ignores overruns.
    pub attr: CqAttr,
    /// Number of the next entry.
    producer: u32,
    /// The consumer index as last read, never ahead of the true one. Unused if overruns are
    /// ignored.
    consumer: u32,
    failure: Option<CqFailure>,
    /// The NIC has not handled the failure yet.
    pub fresh_failure: bool,
    /// Where its consumer requests events, if events are enabled.
    pub arm: Option<Arm>,
}

/// The doorbell record holds the low 24 bits of an entry's number, which limits the entries.
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

    /// Writes the entry of completed work, with the payload if one is given.
    pub fn succeed(&mut self, content: &Success, payload: Option<&[u8]>) {
        let owner = owner_of_lap(self.producer, self.attr.log_entries);
        let entry = Cqe64::success(content, owner);
        match payload {
            Some(payload) => self.push(&entry.with_scattered(payload), content.solicited),
            None => self.push(&entry, content.solicited),
        }
    }

    pub fn fail(&mut self, content: &Failure) {
        let owner = owner_of_lap(self.producer, self.attr.log_entries);
        self.push(ErrCqe::new(content, owner).as_cqe(), true);
    }

    /// Returns true once per request, when there is an entry to report.
    #[inline]
    pub fn raises_event(&mut self) -> bool {
        match &mut self.arm {
            None => false,
            Some(arm) => arm.fires(self.producer),
        }
    }

    /// Writes an entry. `solicited`: the entry also counts for a consumer that waits for solicited
    /// entries only.
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
        // A release store: a consumer that observes the new owner bit also observes the rest of the
        // entry, and the payload as far as the memory keeps that promise.
        self.attr
            .mem
            .store32(last, entry.last_dword().to_le())
            .map_err(|_| CqFailure::Memory)?;
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Returns true if the next entry would overwrite one that the consumer did not take.
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

/// Checks that an object's bytes are inside the memory and aligned.
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
