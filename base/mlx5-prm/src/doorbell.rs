//! Doorbell records, doorbells and the UAR page.
//!
//! To post work, a host writes the entries. Then it writes the queue's *doorbell record*, the fill
//! level of the queue in ordinary memory. Then it writes the *doorbell*, the first eight bytes of
//! the last entry, to a page of the NIC called UAR. A store fence separates each of the three
//! steps. The values of this module are for a store by a little-endian machine.

use crate::opcode::SendOpcode;

/// Byte offset of the receive counter in a QP's doorbell record.
pub const RCV: usize = 0;
/// Byte offset of the send counter in a QP's doorbell record.
pub const SND: usize = 4;
/// Byte offset of the consumer index in a CQ's doorbell record.
pub const SET_CI: usize = 0;
/// Byte offset of the arm word in a CQ's doorbell record.
pub const ARM: usize = 4;

/// Size of a UAR page in bytes.
pub const PAGE: usize = 4096;
/// Byte offset of the first BlueFlame register in a UAR page.
pub const BF_OFFSET: usize = 0x800;
/// Size in bytes of a BlueFlame register; two adjacent registers are used in turn.
pub const BF_SIZE: usize = 256;
/// Byte offset of the doorbell that arms a CQ in a UAR page.
pub const CQ_ARM: usize = 0x20;

const CI_MASK: u32 = 0x00ff_ffff;
const SOLICITED_ONLY: u32 = 1 << 24;

/// The value to store into a queue's doorbell record. `index` counts all posted units: 64-byte
/// basic blocks on a send queue, entries on a receive queue.
#[inline]
pub const fn record_value(index: u32) -> u32 {
    (index & 0xffff).swap_bytes()
}

/// The counter in a doorbell record, from the word as loaded: inverse of [`record_value`].
#[inline]
pub const fn record_index(value: u32) -> u16 {
    (value.swap_bytes() & 0xffff) as u16
}

/// The value to store into a CQ's [`SET_CI`] word. `ci` counts all consumed entries; the word keeps
/// 24 bits of it.
#[inline]
pub const fn cq_ci_value(ci: u32) -> u32 {
    (ci & CI_MASK).swap_bytes()
}

/// The consumer index, 24 bits, from a [`SET_CI`] word as loaded: inverse of [`cq_ci_value`].
#[inline]
pub const fn cq_ci(value: u32) -> u32 {
    value.swap_bytes() & CI_MASK
}

/// The value to store into a CQ's [`ARM`] word. `sequence` counts arms (the word keeps two bits).
/// `solicited_only` requests an event only for solicited completions and errors.
#[inline]
pub const fn cq_arm_value(sequence: u32, solicited_only: bool, ci: u32) -> u32 {
    let command = if solicited_only { SOLICITED_ONLY } else { 0 };
    ((sequence & 3) << 28 | command | ci & CI_MASK).swap_bytes()
}

/// The content of a send doorbell of eight bytes, which is the start of a control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// The opcode modifier; zero in all requests that this crate encodes.
    pub opmod: u8,
    /// The index of the WQE's first basic block, modulo 2^16.
    pub index: u16,
    /// The opcode of the WQE.
    pub opcode: SendOpcode,
    /// The QP number, 24 bits.
    pub qpn: u32,
    /// The size of the WQE in segments of 16 bytes.
    pub ds: u8,
}

impl SendDoorbell {
    /// Parses the eight bytes, in the order of memory.
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

    /// The eight bytes in the order of memory, with 24 bits of `qpn`.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 8] {
        let [i1, i0] = self.index.to_be_bytes();
        let [_, q2, q1, q0] = self.qpn.to_be_bytes();
        [self.opmod, i1, i0, self.opcode.0, q2, q1, q0, self.ds]
    }
}
