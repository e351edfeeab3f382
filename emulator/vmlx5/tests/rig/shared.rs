//! A shared receive queue from its host's side: the host takes entries from the head of a list and
//! frees them at its tail, as libmlx5 does.

use std::sync::Arc;

use mlx5_prm::doorbell;
use mlx5_prm::wqe::{Sge, encode_recv};
use vmlx5::{Dma, HostMemory, Nic, PdId, SrqAttr, Srqn};

use super::register;

pub struct SharedQueue {
    pub srqn: Srqn,
    pub pd: PdId,
    pub mem: Arc<HostMemory>,
    pub log: u8,
    pub stride: u32,
    pub lkey: u32,
    head: u16,
    tail: u16,
    pub counter: u16,
}

const RECORD: u64 = 0;
const RING: u64 = 4096;
const DATA: u64 = 1 << 20;
/// Bytes of data.
pub const ROOM: u64 = 1 << 20;

impl SharedQueue {
    pub fn new(nic: &mut Nic, log: u8) -> SharedQueue {
        SharedQueue::with(nic, log, |_| {})
    }

    /// A queue with changed attributes.
    pub fn with(nic: &mut Nic, log: u8, change: impl FnOnce(&mut SrqAttr)) -> SharedQueue {
        let mem = Arc::new(HostMemory::new((DATA + ROOM) as usize));
        let pd = nic.alloc_pd().unwrap();
        let dma: Arc<dyn Dma> = mem.clone();
        let keys = register(nic, pd, &mem, DATA, ROOM);
        let mut attr = SrqAttr {
            pd,
            mem: dma.clone(),
            offset: RING,
            log_entries: log,
            stride: 64,
            record: (dma, RECORD),
            limit: 0,
            owner: 5,
        };
        change(&mut attr);
        let mut queue = SharedQueue {
            srqn: Srqn(0),
            pd,
            mem,
            log,
            stride: attr.stride,
            lkey: keys.lkey,
            head: 0,
            tail: (1 << log) - 1,
            counter: 0,
        };
        for entry in 0..queue.tail {
            queue.link(entry, entry + 1);
        }
        queue.srqn = nic.create_srq(attr).unwrap();
        queue
    }

    fn at(&self, entry: u16) -> u64 {
        RING + u64::from(entry) * u64::from(self.stride)
    }

    /// Links the entry to the next one.
    pub fn link(&self, entry: u16, next: u16) {
        self.mem
            .write(self.at(entry) + 2, &next.to_be_bytes())
            .unwrap();
    }

    pub fn sge(&self, at: u64, len: u32) -> Sge {
        Sge {
            addr: self.mem.addr() + DATA + at,
            lkey: self.lkey,
            len,
        }
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read(DATA + at, &mut bytes).unwrap();
        bytes
    }

    /// Returns true if no entry is free.
    pub fn is_full(&self) -> bool {
        self.head == self.tail
    }

    /// Posts a receive; returns the number of its entry.
    pub fn post(&mut self, sges: &[Sge]) -> u16 {
        assert!(!self.is_full());
        let entry = self.head;
        let mut next = [0; 2];
        self.mem.read(self.at(entry) + 2, &mut next).unwrap();
        self.head = u16::from_be_bytes(next);
        let mut at = self.at(entry) + 16;
        encode_recv(
            sges,
            self.stride as usize - 16,
            &mut |segment: &[u8; 16]| {
                self.mem.write(at, segment).unwrap();
                at += 16;
            },
        )
        .unwrap();
        self.count(self.counter.wrapping_add(1));
        entry
    }

    /// Stores the number of posted receives into the record.
    pub fn count(&mut self, posted: u16) {
        self.counter = posted;
        let value = doorbell::record_value(posted.into());
        self.mem.store32(RECORD, value).unwrap();
    }

    /// Frees a completed entry: it may be posted again.
    pub fn free(&mut self, entry: u16) {
        self.link(self.tail, entry);
        self.tail = entry;
    }
}
