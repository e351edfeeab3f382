//! Completion queue entries: layout, owner bit, and the one word that a waiting stream tests.
//!
//! # Owner and preset
//! The NIC writes the entries of the queue in turn, lap after lap. The lowest bit of the last byte
//! (`op_own`) is the owner bit, which alternates between laps: 0 in the first lap, 1 in the second,
//! and so on ([`owner_of_lap`]). The high nibble of that byte is the [`CqeOpcode`]. The NIC writes
//! that byte last.
//!
//! Before the NIC may use a queue, the host marks every entry as not written, with the opcode
//! [`CqeOpcode::INVALID`]. Most drivers leave the owner bit of that mark at 0, so the byte is 0xf0.
//! The owner bit then already has the value of the first lap. A CPU also tests the opcode and is
//! not misled. A GPU that waits for the owner bit alone passes at once. [`OP_OWN_PRESET`] is
//! therefore 0xf1, where neither the opcode nor the owner bit matches the first lap.
//!
//! # Error entries have the owner bit of their lap
//! The owner bit of an error entry is that of its lap, so a wait for the owner bit alone passes on
//! an error. All error codes and `INVALID` have the highest bit of the last byte set. A wait that
//! demands [`OWNER_BIT`] of the lap *and* a clear [`ERROR_BIT`] in the last dword therefore passes
//! on success only.

use zerocopy::big_endian::{U16, U32, U64};

use crate::opcode::{CqeOpcode, SendOpcode};
use crate::syndrome::Syndrome;

/// Size of an entry in bytes.
pub const SIZE: usize = 64;
/// Byte offset of `op_own` in an entry.
pub const OP_OWN_OFFSET: usize = 63;
/// Byte offset of the last dword (`wqe_counter`, `signature`, `op_own`) in an entry.
pub const LAST_DWORD_OFFSET: usize = 60;
/// The value of `op_own` before the NIC has written an entry: opcode [`CqeOpcode::INVALID`] and
/// owner 1. See the module's text.
pub const OP_OWN_PRESET: u8 = 0xf1;
/// The owner bit in the last dword, as a little-endian machine loads it.
pub const OWNER_BIT: u32 = 1 << 24;
/// The bit of the last dword that is set in every error entry and in every entry that was never
/// written, as a little-endian machine loads it.
pub const ERROR_BIT: u32 = 1 << 31;

/// The bit of `op_own` for inline scatter: the entry begins with the payload, at most
/// [`MAX_SCATTER`] bytes, and the buffers do not contain it.
pub const SCATTER: u8 = 4;
/// The maximal length of a payload in an entry, in bytes.
pub const MAX_SCATTER: usize = 32;

layout! {
    /// A completion entry of 64 bytes, in the form that reports success.
    Cqe64: [u8; SIZE] {
        /// Not used by the operations of this crate.
        0 reserved0: [u8; 17],
        /// For a datagram on InfiniBand: low bits of the destination LID (7 bits).
        17 ml_path: u8,
        /// Not used.
        18 reserved1: [u8; 4],
        /// For a datagram on InfiniBand: the source LID.
        22 slid: U16,
        /// For a datagram: whether it had a global route header (bits 28 and 29), its service level
        /// or [kind of header](L3Header) (4 bits), and the source QP (24 bits).
        24 flags_rqpn: U32,
        /// The checksum results of IP packets; zero: the NIC checked none.
        28 checksums: [u8; 4],
        /// The user index of the QP, or the number of the SRQ.
        32 srqn_uidx: U32,
        /// Immediate data in network order, or the key that was invalidated.
        36 imm_inval_pkey: [u8; 4],
        /// Not used by the operations of this crate.
        40 app: [u8; 4],
        /// Bytes received, read or returned by an atomic.
        44 byte_cnt: U32,
        /// Free-running clock of the NIC.
        48 timestamp: U64,
        /// In send completions the opcode of the WQE (high byte), then the QP number (24 bits).
        56 sop_drop_qpn: U32,
        /// In send completions the index of the WQE's first basic block; in receive completions the
        /// index of the receive. Modulo 2^16.
        60 wqe_counter: U16,
        /// Checksum; unused unless it was requested.
        62 signature: u8,
        /// Opcode in the high nibble, [`SCATTER`] in bit 2, solicited in bit 1, owner in bit 0.
        /// Written last.
        63 op_own: u8,
    } means {
        /// Whether the entry contains the payload (inline scatter). The entry's byte count is its
        /// length.
        scattered(&self) -> bool = self.op_own & SCATTER != 0;
        /// The same bytes read as an error entry; valid if [`opcode`](Cqe64::opcode) is an error.
        as_error(&self) -> &ErrCqe = zerocopy::transmute_ref!(self);
        /// The operation that the entry reports.
        opcode(&self) -> CqeOpcode = CqeOpcode(self.op_own >> 4);
        /// The owner bit.
        owner(&self) -> u8 = self.op_own & 1;
        /// Whether the sender set the solicited bit.
        solicited(&self) -> bool = self.op_own & 2 != 0;
        /// The QP number.
        qpn(&self) -> u32 = self.sop_drop_qpn.get() & 0x00ff_ffff;
        /// The opcode of the completed send WQE.
        send_opcode(&self) -> SendOpcode = SendOpcode((self.sop_drop_qpn.get() >> 24) as u8);
    }
}

layout! {
    /// A completion entry of 64 bytes, in the form that reports an error. The error codes are at
    /// the offset of the timestamp of a success.
    ErrCqe: [u8; SIZE] {
        /// Not used.
        0 reserved0: [u8; 32],
        /// As in [`Cqe64`].
        32 srqn_uidx: U32,
        /// Not used.
        36 reserved1: [u8; 18],
        /// The vendor's error code.
        54 vendor_err: u8,
        /// The reason, a [`Syndrome`].
        55 syndrome: u8,
        /// The opcode of the failed send WQE (high byte), then the QP number (24 bits).
        56 s_wqe_opcode_qpn: U32,
        /// As in [`Cqe64`]: the index of the failed entry.
        60 wqe_counter: U16,
        /// As in [`Cqe64`].
        62 signature: u8,
        /// As in [`Cqe64`].
        63 op_own: u8,
    } means {
        /// The same bytes as the general form of an entry.
        as_cqe(&self) -> &Cqe64 = zerocopy::transmute_ref!(self);
        /// The reason of the failure.
        reason(&self) -> Syndrome = Syndrome(self.syndrome);
        /// The QP number.
        qpn(&self) -> u32 = self.s_wqe_opcode_qpn.get() & 0x00ff_ffff;
        /// The opcode of the failed send WQE.
        send_opcode(&self) -> SendOpcode = SendOpcode((self.s_wqe_opcode_qpn.get() >> 24) as u8);
    }
}

/// The content of a success entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// The operation.
    pub opcode: CqeOpcode,
    /// The QP number, 24 bits.
    pub qpn: u32,
    /// The user index of the QP.
    pub uidx: u32,
    /// In a send completion the opcode of the WQE; in a receive completion zero.
    pub send_opcode: SendOpcode,
    /// See [`Cqe64::byte_cnt`].
    pub byte_cnt: u32,
    /// Immediate or invalidated key, in network order.
    pub imm: [u8; 4],
    /// See [`Cqe64::wqe_counter`].
    pub wqe_counter: u16,
    /// Whether the sender set the solicited bit.
    pub solicited: bool,
    /// See [`Cqe64::timestamp`].
    pub timestamp: u64,
    /// The source of a datagram; zero for connections and in send completions.
    pub source: Source,
}

/// The source of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The QP number of the sender, 24 bits.
    pub qpn: u32,
    /// The LID of the sender's port; zero on Ethernet.
    pub slid: u16,
    /// On InfiniBand the service level, 4 bits; on Ethernet an [`L3Header`].
    pub sl: u8,
    /// Low bits of the destination LID.
    pub path_bits: u8,
    /// Whether the datagram had a global route header.
    pub grh: bool,
}

/// The kinds of headers that replace the global route header of a datagram on Ethernet. The entry
/// has the kind in place of the service level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum L3Header {
    /// A global route header: version 1 of RDMA over Ethernet.
    Grh = 0,
    /// IPv6.
    Ipv6 = 1,
    /// IPv4.
    Ipv4 = 2,
}

/// The content of an error entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// [`CqeOpcode::REQ_ERR`] or [`CqeOpcode::RESP_ERR`].
    pub opcode: CqeOpcode,
    /// The reason.
    pub syndrome: Syndrome,
    /// The vendor's error code.
    pub vendor_err: u8,
    /// The QP number, 24 bits.
    pub qpn: u32,
    /// The user index of the QP.
    pub uidx: u32,
    /// The opcode of the failed send WQE; zero for a receive.
    pub send_opcode: SendOpcode,
    /// See [`Cqe64::wqe_counter`].
    pub wqe_counter: u16,
}

impl Cqe64 {
    /// A success entry with the given owner bit.
    pub fn success(content: &Success, owner: u8) -> Cqe64 {
        let from = &content.source;
        Cqe64 {
            ml_path: from.path_bits & 0x7f,
            slid: from.slid.into(),
            flags_rqpn: flags_rqpn(from).into(),
            srqn_uidx: content.uidx.into(),
            imm_inval_pkey: content.imm,
            byte_cnt: content.byte_cnt.into(),
            timestamp: content.timestamp.into(),
            sop_drop_qpn: opcode_qpn(content.send_opcode, content.qpn).into(),
            wqe_counter: content.wqe_counter.into(),
            op_own: op_own(content.opcode, content.solicited, owner),
            ..Cqe64::preset()
        }
    }

    /// The same entry with `payload` in it, cut to the first [`MAX_SCATTER`] bytes.
    #[inline]
    pub fn with_scattered(self, payload: &[u8]) -> Cqe64 {
        let mut bytes = self.to_bytes();
        let len = payload.len().min(MAX_SCATTER);
        bytes[..len].copy_from_slice(&payload[..len]);
        bytes[OP_OWN_OFFSET] |= SCATTER;
        Cqe64::from_bytes(bytes)
    }

    /// An entry that the NIC has not written, as the host presets it.
    pub const fn preset() -> Cqe64 {
        Cqe64 {
            op_own: OP_OWN_PRESET,
            ..Cqe64::from_bytes([0; SIZE])
        }
    }

    /// The source of a datagram; valid in its receive completion only.
    #[inline]
    pub fn source(&self) -> Source {
        let flags = self.flags_rqpn.get();
        Source {
            qpn: flags & 0x00ff_ffff,
            slid: self.slid.get(),
            sl: (flags >> 24) as u8 & 0xf,
            path_bits: self.ml_path & 0x7f,
            grh: flags >> 28 & 3 != 0,
        }
    }

    /// The last dword as a little-endian machine loads or stores it.
    #[inline]
    pub const fn last_dword(&self) -> u32 {
        let [hi, lo] = self.wqe_counter.to_bytes();
        u32::from_le_bytes([hi, lo, self.signature, self.op_own])
    }
}

impl ErrCqe {
    /// An error entry with the given owner bit.
    pub fn new(content: &Failure, owner: u8) -> ErrCqe {
        ErrCqe {
            srqn_uidx: content.uidx.into(),
            vendor_err: content.vendor_err,
            syndrome: content.syndrome.0,
            s_wqe_opcode_qpn: opcode_qpn(content.send_opcode, content.qpn).into(),
            wqe_counter: content.wqe_counter.into(),
            op_own: op_own(content.opcode, false, owner),
            ..ErrCqe::from_bytes([0; SIZE])
        }
    }
}

const fn flags_rqpn(from: &Source) -> u32 {
    (from.grh as u32) << 28 | (from.sl as u32 & 0xf) << 24 | from.qpn & 0x00ff_ffff
}

const fn opcode_qpn(opcode: SendOpcode, qpn: u32) -> u32 {
    (opcode.0 as u32) << 24 | qpn & 0x00ff_ffff
}

/// The last byte of an entry.
#[inline]
pub const fn op_own(opcode: CqeOpcode, solicited: bool, owner: u8) -> u8 {
    opcode.0 << 4 | (solicited as u8) << 1 | owner & 1
}

/// The owner bit of the entry number `index` (counted over all laps) in a queue of
/// 2^`log_entries` entries.
#[inline]
pub const fn owner_of_lap(index: u32, log_entries: u8) -> u8 {
    match index.checked_shr(log_entries as u32) {
        Some(lap) => (lap & 1) as u8,
        // A queue of 2^32 or more entries never completes a lap of a 32-bit index.
        None => 0,
    }
}

/// The last dword of an unsolicited entry, as a little-endian machine loads or stores it.
#[inline]
pub const fn last_dword(opcode: CqeOpcode, owner: u8, signature: u8, wqe_counter: u16) -> u32 {
    let [hi, lo] = wqe_counter.to_be_bytes();
    u32::from_le_bytes([hi, lo, signature, op_own(opcode, false, owner)])
}

/// The work queue index in the last dword, as a little-endian machine loads it.
#[inline]
pub const fn wqe_counter_of(last_dword_le: u32) -> u16 {
    ((last_dword_le & 0xffff) as u16).swap_bytes()
}

/// The state of an entry, derived from its last dword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The NIC has not written the entry in this lap.
    NotYet,
    /// The work completed successfully. The code may be one without a name in this crate.
    Success(CqeOpcode),
    /// The work failed; the entry is an [`ErrCqe`].
    Error(CqeOpcode),
}

/// Classifies entry number `index` (counted over all laps) of a queue of 2^`log_entries` entries by
/// its last dword, as a little-endian machine loads it.
#[inline]
pub const fn classify(last_dword_le: u32, index: u32, log_entries: u8) -> EntryState {
    let opcode = CqeOpcode((last_dword_le >> 28) as u8);
    let owner = (last_dword_le & OWNER_BIT != 0) as u8;
    if owner != owner_of_lap(index, log_entries) || opcode.0 == CqeOpcode::INVALID.0 {
        EntryState::NotYet
    } else if opcode.is_error() {
        EntryState::Error(opcode)
    } else {
        EntryState::Success(opcode)
    }
}
