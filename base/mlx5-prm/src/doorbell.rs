//! Doorbell records, doorbells and the page they are rung on.
//!
//! To hand work to the NIC a host writes the entries, then the queue's *doorbell record* (how
//! far the queue is filled, in ordinary memory), then rings the *doorbell* (eight bytes, the
//! first ones of the last entry, into a page of the NIC called UAR), with a store fence between
//! each of the three. Values of this module are for a store by a little-endian machine.

use crate::opcode::SendOpcode;

/// Byte offset of the receive counter in a queue pair's doorbell record.
pub const RCV: usize = 0;
/// Byte offset of the send counter in a queue pair's doorbell record.
pub const SND: usize = 4;
/// Byte offset of the consumer index in a completion queue's doorbell record.
pub const SET_CI: usize = 0;
/// Byte offset of the arm word in a completion queue's doorbell record.
pub const ARM: usize = 4;

/// Size of a UAR page in bytes.
pub const PAGE: usize = 4096;
/// Byte offset of the first BlueFlame register in a UAR page.
pub const BF_OFFSET: usize = 0x800;
/// Size in bytes of a BlueFlame register; two of them, side by side, are used in turn.
pub const BF_SIZE: usize = 256;
/// Byte offset of the doorbell that arms a completion queue in a UAR page.
pub const CQ_ARM: usize = 0x20;

const CI_MASK: u32 = 0x00ff_ffff;
const SOLICITED_ONLY: u32 = 1 << 24;

/// The value to store into a queue's doorbell record, where `index` counts what was ever
/// posted: 64-byte basic blocks on a send queue, entries on a receive queue.
#[inline]
pub const fn record_value(index: u32) -> u32 {
    (index & 0xffff).swap_bytes()
}

/// The counter in a doorbell record, from the word as loaded: inverse of [`record_value`].
#[inline]
pub const fn record_index(value: u32) -> u16 {
    (value.swap_bytes() & 0xffff) as u16
}

/// The value to store into a completion queue's [`SET_CI`] word, where `ci` counts the entries
/// ever consumed. 24 bits of it are kept.
#[inline]
pub const fn cq_ci_value(ci: u32) -> u32 {
    (ci & CI_MASK).swap_bytes()
}

/// The consumer index, 24 bits, from a [`SET_CI`] word as loaded: inverse of [`cq_ci_value`].
#[inline]
pub const fn cq_ci(value: u32) -> u32 {
    value.swap_bytes() & CI_MASK
}

/// The value to store into a completion queue's [`ARM`] word: `sequence` counts arms (two bits
/// are kept), `solicited_only` asks for an event on solicited completions and errors only.
#[inline]
pub const fn cq_arm_value(sequence: u32, solicited_only: bool, ci: u32) -> u32 {
    let command = if solicited_only { SOLICITED_ONLY } else { 0 };
    ((sequence & 3) << 28 | command | ci & CI_MASK).swap_bytes()
}

/// What the eight bytes of a send doorbell say. They are the start of a control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// Modifier of the opcode; zero for all that this crate encodes.
    pub opmod: u8,
    /// Index of the entry's first basic block, modulo 2^16.
    pub index: u16,
    /// The entry's operation.
    pub opcode: SendOpcode,
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// Size of the entry in segments of 16 bytes.
    pub ds: u8,
}

impl SendDoorbell {
    /// Takes the eight bytes apart, in the order they stand in memory.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 8]) -> SendDoorbell {
        let [opmod, i1, i0, opcode, q2, q1, q0, ds] = bytes;
        SendDoorbell {
            opmod,
            index: u16::from_be_bytes([i1, i0]),
            opcode: SendOpcode(opcode),
            qpn: u32::from_be_bytes([0, q2, q1, q0]),
            ds,
        }
    }

    /// The eight bytes, in the order they stand in memory. Of `qpn` 24 bits are kept.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 8] {
        let [i1, i0] = self.index.to_be_bytes();
        let [_, q2, q1, q0] = self.qpn.to_be_bytes();
        [self.opmod, i1, i0, self.opcode.0, q2, q1, q0, self.ds]
    }
}
