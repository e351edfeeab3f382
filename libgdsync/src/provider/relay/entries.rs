//! The writer of one of the library's completion queues.

use mlx5_prm::cqe::{self, Cqe64, ErrCqe, Failure, Success};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};

use super::translate::Outcome;
use crate::gpu::Mapped;
use crate::ring::RingMemory;
use crate::ring::cq::ENTRY;

/// The side of an entry: send or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Kind {
    Send,
    Receive,
}

/// The writer of completion entries. It does not check whether entries were consumed: the rings
/// never have more requests outstanding than the queue has room for.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider) struct Entries {
    pub ring: Mapped,
    pub log: u8,
    pub kind: Kind,
    pub qpn: u32,
    /// The position to be written next.
    pub next: u32,
}

impl Entries {
    /// Writes the outcome of the request with this counter.
    pub fn put(&mut self, counter: u16, send_opcode: SendOpcode, outcome: &Outcome) {
        let owner = cqe::owner_of_lap(self.next, self.log);
        let (qpn, wqe_counter) = (self.qpn, counter);
        let receive = self.kind == Kind::Receive;
        let bytes = match outcome.failure {
            Some((syndrome, vendor_err)) => ErrCqe::new(
                &Failure {
                    opcode: match receive {
                        true => CqeOpcode::RESP_ERR,
                        false => CqeOpcode::REQ_ERR,
                    },
                    syndrome,
                    vendor_err,
                    qpn,
                    send_opcode,
                    wqe_counter,
                    ..Failure::default()
                },
                owner,
            )
            .to_bytes(),
            None => Cqe64::success(
                &Success {
                    opcode: match receive {
                        true => outcome.received,
                        false => CqeOpcode::REQ,
                    },
                    qpn,
                    send_opcode,
                    byte_cnt: outcome.len,
                    imm: outcome.imm,
                    wqe_counter,
                    source: outcome.source,
                    ..Success::default()
                },
                owner,
            )
            .to_bytes(),
        };
        let at = (self.next as usize & ((1 << self.log) - 1)) * ENTRY;
        let (body, last) = bytes.split_at(cqe::LAST_DWORD_OFFSET);
        self.ring.write(at, body);
        let mut word = [0; 4];
        word.copy_from_slice(last);
        // Releases the body, and the payload, to every reader that waits for this word.
        self.ring
            .store32(at + cqe::LAST_DWORD_OFFSET, u32::from_le_bytes(word));
        self.next = self.next.wrapping_add(1);
    }
}
