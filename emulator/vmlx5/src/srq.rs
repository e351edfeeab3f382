//! Shared receive queues: one queue of receives that many queue pairs take from.
//!
//! The entries form a list. Each begins with a segment of 16 bytes that names the one after it,
//! since they come free in another order than they were posted. The doorbell record counts what
//! was posted, modulo 2^16; the NIC counts what was taken. An entry that is posted has a
//! successor, so the NIC reads that name when it takes the entry, never before.

use std::sync::Arc;

use mlx5_prm::doorbell;
use mlx5_prm::wqe::SEGMENT;

use crate::config::NicConfig;
use crate::cq::check_span;
use crate::dma::Dma;
use crate::error::{NicError, Object, vendor};
use crate::object::PdId;

/// A shared receive queue to create.
#[derive(Clone)]
pub struct SrqAttr {
    /// Its protection domain: the regions that its receives name must belong to the same.
    pub pd: PdId,
    /// The memory of its ring.
    pub mem: Arc<dyn Dma>,
    /// Where in it the ring begins: a multiple of 16.
    pub offset: u64,
    /// It has 2 to this power entries.
    pub log_entries: u8,
    /// Bytes of an entry, with the segment that names the next: a power of two, 32 to 512.
    pub stride: u32,
    /// The memory of its doorbell record, of which the first 4 bytes are used (8 bytes, aligned).
    pub record: (Arc<dyn Dma>, u64),
    /// As in [`Nic::modify_srq`](crate::Nic::modify_srq).
    pub limit: u16,
    /// What its events carry; means nothing to the NIC.
    pub owner: u64,
}

/// How a shared receive queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// Its limit; zero if it has none, or no more.
    pub limit: u16,
    /// The entry that is taken next.
    pub next: u16,
    /// How many receives were taken so far, modulo 2^16.
    pub taken: u16,
    /// How many queue pairs take from it.
    pub users: u32,
    /// It is in error: nothing is taken any more.
    pub failed: bool,
}

/// The kinds of events of a shared receive queue, as bits; those that are told first are lower.
pub(crate) mod srq_event {
    pub const LIMIT: u8 = 1;
    pub const ERROR: u8 = 2;
}

pub(crate) struct Srq {
    /// As it was created; the limit is what it is now.
    pub attr: SrqAttr,
    /// The entry that is taken next.
    next: u16,
    taken: u16,
    /// The record as last read.
    posted: u16,
    failed: bool,
    /// What happened and was not told yet: bits of `srq_event`.
    pub events: u8,
    /// It is in the queue of those with something to tell.
    pub telling: bool,
}

/// Why a receive cannot be taken.
pub(crate) enum Refused {
    /// None is posted.
    Empty,
    /// The queue is in error; why, as a vendor syndrome.
    Failed(u8),
}

/// Bytes of an entry, at least and at most.
const STRIDES: (u32, u32) = (2 * SEGMENT as u32, 512);

/// Where in the first segment the next entry is named, in network order.
const NEXT: u64 = 2;

impl Srq {
    pub fn new(attr: SrqAttr, config: &NicConfig) -> Result<Srq, NicError> {
        let object = Object::Srq;
        let most = config.max_log_rq.min(15);
        NicError::within(object, "log_entries", attr.log_entries, most)?;
        let (least, most) = STRIDES;
        if !attr.stride.is_power_of_two() || attr.stride < least || attr.stride > most {
            return Err(NicError::Limit {
                object,
                what: "stride (a power of two of at least 32)",
                value: attr.stride.into(),
                limit: most.into(),
            });
        }
        let bytes = u64::from(attr.stride) << attr.log_entries;
        check_span(object, &*attr.mem, attr.offset, bytes, SEGMENT as u64)?;
        check_span(object, &*attr.record.0, attr.record.1, 8, 8)?;
        let limit = attr.limit;
        let mut srq = Srq {
            attr,
            next: 0,
            taken: 0,
            posted: 0,
            failed: false,
            events: 0,
            telling: false,
        };
        srq.arm(limit)?;
        Ok(srq)
    }

    pub fn info(&self, users: u32) -> SrqInfo {
        SrqInfo {
            limit: self.attr.limit,
            next: self.next,
            taken: self.taken,
            users,
            failed: self.failed,
        }
    }

    /// Sets the limit; says so at once if fewer are posted already.
    pub fn arm(&mut self, limit: u16) -> Result<(), NicError> {
        NicError::within(Object::Srq, "limit", limit, 1_u64 << self.attr.log_entries)?;
        self.attr.limit = limit;
        self.mind_limit();
        Ok(())
    }

    fn left(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    fn read_record(&mut self) {
        let (mem, offset) = &self.attr.record;
        if let Ok(word) = mem.load32(offset + doorbell::RCV as u64) {
            self.posted = doorbell::record_index(u32::from_le(word));
        }
    }

    /// Tells, once, that fewer are posted than the limit.
    fn mind_limit(&mut self) {
        if self.left() >= self.attr.limit {
            return;
        }
        self.read_record();
        if self.left() < self.attr.limit {
            self.attr.limit = 0;
            self.events |= srq_event::LIMIT;
        }
    }

    /// True if no receive is posted. A queue in error is not worth waiting for.
    pub fn is_empty(&mut self) -> bool {
        if self.left() == 0 {
            self.read_record();
        }
        self.left() == 0 && !self.failed
    }

    fn fail(&mut self, why: u8) -> Refused {
        self.failed = true;
        self.events |= srq_event::ERROR;
        Refused::Failed(why)
    }

    fn at(&self, entry: u16) -> u64 {
        self.attr.offset + u64::from(entry) * u64::from(self.attr.stride)
    }

    /// Takes the next receive; returns which entry it is.
    pub fn take(&mut self) -> Result<u16, Refused> {
        if self.failed {
            return Err(Refused::Failed(vendor::SRQ));
        }
        if self.is_empty() {
            return Err(Refused::Empty);
        }
        let entries = 1_u32 << self.attr.log_entries;
        if u32::from(self.left()) > entries {
            return Err(self.fail(vendor::RECORD));
        }
        let entry = self.next;
        let mut next = [0; 2];
        if self
            .attr
            .mem
            .read(self.at(entry) + NEXT, &mut next)
            .is_err()
        {
            return Err(self.fail(vendor::MEMORY));
        }
        let next = u16::from_be_bytes(next);
        if u32::from(next) >= entries {
            return Err(self.fail(vendor::WQE_INDEX));
        }
        self.next = next;
        self.taken = self.taken.wrapping_add(1);
        self.mind_limit();
        Ok(entry)
    }

    /// Copies the list of an entry, as long as `into`, which is all but its first segment.
    pub fn read(&self, entry: u16, into: &mut [u8]) -> Result<(), u8> {
        let at = self.at(entry) + SEGMENT as u64;
        self.attr.mem.read(at, into).map_err(|_| vendor::MEMORY)
    }
}
