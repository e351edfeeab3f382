//! Memory with a rule for each of its bytes, which panics if the NIC breaks a rule.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmlx5::{Dma, DmaFault, HostMemory, Service};

use crate::rig::EndConfig;

/// The allowed accesses of bytes, as bits.
pub mod may {
    /// Bytes are read, or words loaded.
    pub const READ: u8 = 1;
    /// Bytes are written.
    pub const WRITE: u8 = 2;
    /// A word of 32 bits is stored.
    pub const STORE: u8 = 4;
    /// A doorbell is taken: the word becomes zero.
    pub const TAKE: u8 = 8;
    /// Atomic operations.
    pub const ATOMIC: u8 = 16;
    /// All accesses that rights on a region can allow.
    pub const ALL: u8 = READ | WRITE | ATOMIC;
}

/// Memory with rules.
pub struct Watched {
    mem: Arc<HostMemory>,
    rules: Vec<(Range<u64>, u8)>,
    /// The memory is removed from this offset on: accesses must be refused.
    gone: u64,
    /// No access is allowed any more. Relaxed: one thread.
    closed: Arc<AtomicBool>,
}

impl Watched {
    /// Rules for the bytes of `mem`; bytes without a rule may not be accessed.
    pub fn new(mem: Arc<HostMemory>, rules: &[(Range<u64>, u8)]) -> Watched {
        Watched {
            mem,
            rules: rules.to_vec(),
            gone: u64::MAX,
            closed: Arc::default(),
        }
    }

    /// Removes the memory from an offset on.
    pub fn gone_from(self, gone: u64) -> Watched {
        Watched { gone, ..self }
    }

    /// The flag that closes the memory.
    pub fn latch(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.closed)
    }

    #[track_caller]
    fn check(&self, offset: u64, len: u64, what: u8) -> Result<(), DmaFault> {
        let end = offset.checked_add(len).expect("an end");
        let limit = self.mem.len();
        let allowed = |(range, may): &&(Range<u64>, u8)| {
            range.start <= offset && end <= range.end && may & what != 0
        };
        let closed = self.closed.load(Ordering::Relaxed);
        assert!(
            len == 0 || !closed && self.rules.iter().any(|rule| allowed(&rule)),
            "the NIC did {what:#x} to {len} bytes at {offset:#x} (closed: {closed})"
        );
        if end > self.gone {
            return Err(DmaFault { offset, len, limit });
        }
        Ok(())
    }
}

impl Dma for Watched {
    fn len(&self) -> u64 {
        self.mem.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.check(offset, into.len() as u64, may::READ)?;
        self.mem.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.check(offset, from.len() as u64, may::WRITE)?;
        self.mem.write(offset, from)
    }

    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        self.check(offset, 4, may::READ)?;
        self.mem.load32(offset)
    }

    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8, may::READ)?;
        self.mem.load64(offset)
    }

    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        self.check(offset, 4, may::STORE)?;
        self.mem.store32(offset, value)
    }

    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8, may::TAKE)?;
        assert_eq!(value, 0, "a taken doorbell must become zero");
        self.mem.swap64(offset, value)
    }

    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8, may::ATOMIC)?;
        self.mem.compare_swap64(offset, current, new)
    }

    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        self.check(offset, 8, may::ATOMIC)?;
        self.mem.fetch_add64(offset, add)
    }
}

/// Sizes of the ends here; [`end`] has the rules for them.
pub const LOG_SQ: u8 = 5;
pub const LOG_RQ: u8 = 4;
pub const LOG_CQ: u8 = 8;
pub const DATA: usize = 48 * 1024;

const PAGE: u64 = 4096;
const SQ: u64 = PAGE;
const RQ: u64 = SQ + PAGE;
const CQ: u64 = RQ + PAGE;
const CQ_BYTES: u64 = 2 * (64 << LOG_CQ);
const RECORD: u64 = CQ + CQ_BYTES;

fn end(mem: Arc<HostMemory>, data: u8) -> Arc<dyn Dma> {
    let all = mem.len();
    let rules = [
        (0x800..0xc00, may::READ | may::TAKE),
        (SQ..SQ + (64 << LOG_SQ), may::READ),
        (RQ..RQ + (64 << LOG_RQ), may::READ),
        (CQ..RECORD, may::WRITE | may::STORE),
        // The queue pair's record, and those of its completion queues.
        (RECORD..RECORD + 8, may::READ),
        (RECORD + 64..RECORD + 72, may::READ),
        (RECORD + 128..RECORD + 136, may::READ),
        (RECORD + PAGE..all, data),
    ];
    Arc::new(Watched::new(mem, &rules))
}

/// The memory of an end of these sizes, as the NIC gets it.
pub fn view(mem: Arc<HostMemory>) -> Arc<dyn Dma> {
    end(mem, may::ALL)
}

/// A watched end of these sizes.
pub fn config(unreliable: bool) -> EndConfig {
    let service = if unreliable { Service::Uc } else { Service::Rc };
    EndConfig {
        log_sq: LOG_SQ,
        log_rq: LOG_RQ,
        log_cq: LOG_CQ,
        data: DATA,
        view,
        service,
        ..EndConfig::default()
    }
}

/// The memory of an end whose data no atomic operation may touch.
pub fn view_without_atomics(mem: Arc<HostMemory>) -> Arc<dyn Dma> {
    end(mem, may::READ | may::WRITE)
}
