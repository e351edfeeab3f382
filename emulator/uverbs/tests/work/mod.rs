//! Work requests of QPs as a program makes them: entries posted, completions read.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test uses a part of the harness"
)]

use mlx5_prm::doorbell;
use mlx5_prm::wqe::{BASIC_BLOCK, SendWqe, Sge, SliceSink, encode_recv};
use vmlx5::Dma;
use vmlx5_uverbs::abi::core::RegMrResp;

use crate::rig::*;

/// The address of a slot of a queue of four.
fn slot(queue: u64, index: u32) -> u64 {
    queue + u64::from(index % 4) * BASIC_BLOCK as u64
}

/// Bytes of a region.
pub fn sge(mr: &RegMrResp, addr: u64, len: u32) -> Sge {
    let lkey = mr.lkey;
    Sge { addr, len, lkey }
}

impl Rig {
    /// Writes as the program does.
    pub fn put(&self, addr: u64, bytes: &[u8]) {
        let memory = &self.process.memory;
        memory.write(addr - memory.addr(), bytes).unwrap();
    }

    /// Writes a word as the program does.
    pub fn put32(&self, addr: u64, value: u32) {
        let memory = &self.process.memory;
        memory.store32(addr - memory.addr(), value).unwrap();
    }

    /// Posts a send of at most two blocks, and rings the doorbell.
    pub fn post(&self, qp: &Qp, index: u32, wqe: &SendWqe<'_>) {
        let mut entry = [0; 2 * BASIC_BLOCK];
        let mut sink = SliceSink::new(&mut entry);
        let encoded = wqe.encode(index as u16, qp.qpn, &mut sink).unwrap();
        let bytes = usize::from(encoded.basic_blocks) * BASIC_BLOCK;
        self.put(slot(qp.sends, index), &entry[..bytes]);
        self.put32(qp.db + doorbell::SND as u64, encoded.record_value(index));
        self.ring();
    }

    /// Posts a receive.
    pub fn post_receive(&self, qp: &Qp, index: u32, sge: Sge) {
        let mut entry = [0; BASIC_BLOCK];
        encode_recv(&[sge], BASIC_BLOCK, &mut SliceSink::new(&mut entry)).unwrap();
        self.put(slot(qp.receives, index), &entry);
        self.put32(qp.db, doorbell::record_value(index + 1));
    }

    /// The bytes of a completion.
    pub fn entry(&self, cq: &Cq, index: u64) -> [u8; 64] {
        self.read_bytes(cq.buf + index % 16 * 64)
    }
}
