//! Shared receive queues: one queue of receives for many queue pairs.
//!
//! The entries form a list, since receives complete in another order than they were posted. Each
//! entry begins with a segment of 16 bytes that names the next entry. The doorbell record counts
//! posted receives modulo 2^16; the NIC counts taken receives. A posted entry has a successor, so
//! the NIC reads the name of the successor when it takes the entry, never before.

use std::sync::Arc;

use mlx5_prm::doorbell;
use mlx5_prm::wqe::SEGMENT;

use crate::config::NicConfig;
use crate::cq::check_span;
use crate::dma::Dma;
use crate::error::{NicError, Object, vendor};
use crate::object::PdId;

/// The attributes of a shared receive queue to create.
#[derive(Clone)]
pub struct SrqAttr {
    /// The protection domain. The regions that its receives name must belong to the same domain.
    pub pd: PdId,
    /// The memory of its ring.
    pub mem: Arc<dyn Dma>,
    /// Offset of the ring in this memory: a multiple of 16.
    pub offset: u64,
    /// Logarithm of the number of entries.
    pub log_entries: u8,
    /// Bytes of an entry, with the segment that names the next entry: a power of two, 32 to 512.
    pub stride: u32,
    /// The memory of its doorbell record (8 bytes, aligned; only the first 4 bytes are used).
    pub record: (Arc<dyn Dma>, u64),
    /// The limit, as in [`Nic::modify_srq`](crate::Nic::modify_srq).
    pub limit: u16,
    /// The owner value in its events; the NIC does not interpret it.
    pub owner: u64,
}

/// The status of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// Its limit; zero if no limit is set, or the limit event was raised.
    pub limit: u16,
    /// The entry that the NIC takes next.
    pub next: u16,
    /// Number of receives taken so far, modulo 2^16.
    pub taken: u16,
    /// Number of queue pairs that use it.
    pub users: u32,
    /// True in the error state: the NIC takes no more receives.
    pub failed: bool,
}

/// The kinds of events of a shared receive queue, as bits; lower bits are reported first.
pub(crate) mod srq_event {
    pub const LIMIT: u8 = 1;
    pub const ERROR: u8 = 2;
}

pub(crate) struct Srq {
    /// The attributes of its creation, with the present limit.
    pub attr: SrqAttr,
    /// The entry that the NIC takes next.
    next: u16,
    taken: u16,
    /// The record as last read.
    posted: u16,
    failed: bool,
    /// Events that are not reported yet: bits of `srq_event`.
    pub events: u8,
    /// True if the queue of sources with events contains it.
    pub telling: bool,
}

/// The reason why the NIC cannot take a receive.
pub(crate) enum Refused {
    /// No receive is posted.
    Empty,
    /// The queue is in error; the vendor syndrome is the reason.
    Failed(u8),
}

/// Least and most bytes of an entry.
const STRIDES: (u32, u32) = (2 * SEGMENT as u32, 512);

/// Offset of the next entry's number in the first segment, in network order.
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

    /// Sets the limit; raises the event at once if fewer receives are posted.
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

    /// Raises the limit event, once, when fewer receives are posted than the limit.
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

    /// Returns true if no receive is posted. False for a queue in error, so that no message waits
    /// for it.
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

    /// Takes the next receive; returns the number of its entry.
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

    /// Copies the scatter list of an entry: `into` is as long as the entry without its first
    /// segment.
    pub fn read(&self, entry: u16, into: &mut [u8]) -> Result<(), u8> {
        let at = self.at(entry) + SEGMENT as u64;
        self.attr.mem.read(at, into).map_err(|_| vendor::MEMORY)
    }
}
