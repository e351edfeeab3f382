//! Completion queue entries: layout, owner bit, and the one word that says everything a waiting
//! stream needs.
//!
//! # Owner and preset
//! The NIC writes entry after entry, over and over; the lowest bit of the last byte (`op_own`)
//! tells the laps apart: 0 in the first lap, 1 in the second, and so on ([`owner_of_lap`]). The
//! high nibble of that byte is the [`CqeOpcode`], and the NIC writes it last.
//!
//! Before the NIC may use a queue the host marks every entry as not written, by the opcode
//! [`CqeOpcode::INVALID`]. Drivers commonly leave the owner bit of that mark at 0, which makes
//! it 0xf0: the owner bit then already has the value of the first lap. A CPU, which looks at
//! the opcode too, is not misled, but a GPU that waits for the owner bit alone passes at once.
//! [`OP_OWN_PRESET`] is therefore 0xf1, where nothing about the byte fits the first lap.
//!
//! # Errors have the right owner
//! An error entry belongs to its lap like any other, so owner alone lets it pass. All error
//! codes and `INVALID` have the highest bit of the last byte set, so a wait that demands
//! [`OWNER_BIT`] of the lap *and* a clear [`ERROR_BIT`] in the last dword passes on success only.

use zerocopy::big_endian::{U16, U32, U64};

use crate::opcode::{CqeOpcode, SendOpcode};
use crate::syndrome::Syndrome;

/// Size of an entry in bytes.
pub const SIZE: usize = 64;
/// Byte offset of `op_own` in an entry.
pub const OP_OWN_OFFSET: usize = 63;
/// Byte offset of the last dword (`wqe_counter`, `signature`, `op_own`) in an entry.
pub const LAST_DWORD_OFFSET: usize = 60;
/// What `op_own` shall hold before the NIC has ever written an entry: opcode
/// [`CqeOpcode::INVALID`], owner 1. See the module's text.
pub const OP_OWN_PRESET: u8 = 0xf1;
/// The owner bit in the last dword as a little-endian machine loads it.
pub const OWNER_BIT: u32 = 1 << 24;
/// The bit of the last dword, as a little-endian machine loads it, that is set in every error
/// entry and in one never written.
pub const ERROR_BIT: u32 = 1 << 31;

/// The bit of `op_own` that says that the entry begins with the payload itself, of at most
/// [`MAX_SCATTER`] bytes, which is not in the buffers then.
pub const SCATTER: u8 = 4;
/// Most bytes of payload in an entry.
pub const MAX_SCATTER: usize = 32;

layout! {
    /// A completion entry of 64 bytes, in the form that reports success.
    Cqe64: [u8; SIZE] {
        /// Not used by the operations of this crate.
        0 reserved0: [u8; 17],
        /// Of a datagram on InfiniBand: low bits of the LID it was sent to (7 bits).
        17 ml_path: u8,
        /// Not used.
        18 reserved1: [u8; 4],
        /// Of a datagram on InfiniBand: LID it was sent from.
        22 slid: U16,
        /// Of a datagram: whether a global route header came with it (bits 28 and 29), its service
        /// level or [kind of header](L3Header) (4 bits), and the queue pair it was sent from (24).
        24 flags_rqpn: U32,
        /// Checksums of IP packets; zero: none was looked at.
        28 checksums: [u8; 4],
        /// The user index given to the queue pair, or the number of the shared receive queue.
        32 srqn_uidx: U32,
        /// Immediate, in network order as the peer gave it; or the key that was invalidated.
        36 imm_inval_pkey: [u8; 4],
        /// Not used by the operations of this crate.
        40 app: [u8; 4],
        /// Bytes received, read or returned by an atomic.
        44 byte_cnt: U32,
        /// Free-running clock of the NIC.
        48 timestamp: U64,
        /// On send completions the opcode of the entry (high byte), then the queue pair (24 bits).
        56 sop_drop_qpn: U32,
        /// On send completions the index of the entry's first basic block; on receive completions
        /// the index of the receive. Modulo 2^16.
        60 wqe_counter: U16,
        /// Checksum; not used unless asked for.
        62 signature: u8,
        /// Opcode in the high nibble, [`SCATTER`] in bit 2, solicited in bit 1, owner in bit 0.
        /// Written last.
        63 op_own: u8,
    } means {
        /// Whether the payload lies in the entry: as many of its first bytes as it says.
        scattered(&self) -> bool = self.op_own & SCATTER != 0;
        /// The same bytes read as an error entry; meaningful if [`opcode`](Cqe64::opcode) is an error.
        as_error(&self) -> &ErrCqe = zerocopy::transmute_ref!(self);
        /// What the entry reports.
        opcode(&self) -> CqeOpcode = CqeOpcode(self.op_own >> 4);
        /// The owner bit.
        owner(&self) -> u8 = self.op_own & 1;
        /// Whether the sender asked for an event.
        solicited(&self) -> bool = self.op_own & 2 != 0;
        /// The queue pair.
        qpn(&self) -> u32 = self.sop_drop_qpn.get() & 0x00ff_ffff;
        /// The operation of the send queue entry that is done.
        send_opcode(&self) -> SendOpcode = SendOpcode((self.sop_drop_qpn.get() >> 24) as u8);
    }
}

layout! {
    /// A completion entry of 64 bytes, in the form that reports an error. The error codes lie where
    /// a success has its timestamp.
    ErrCqe: [u8; SIZE] {
        /// Not used.
        0 reserved0: [u8; 32],
        /// As in [`Cqe64`].
        32 srqn_uidx: U32,
        /// Not used.
        36 reserved1: [u8; 18],
        /// A code for the vendor's support.
        54 vendor_err: u8,
        /// Why: a [`Syndrome`].
        55 syndrome: u8,
        /// The opcode of the failed send queue entry (high byte), then the queue pair (24 bits).
        56 s_wqe_opcode_qpn: U32,
        /// As in [`Cqe64`]: which entry failed.
        60 wqe_counter: U16,
        /// As in [`Cqe64`].
        62 signature: u8,
        /// As in [`Cqe64`].
        63 op_own: u8,
    } means {
        /// The same bytes as the general form of an entry.
        as_cqe(&self) -> &Cqe64 = zerocopy::transmute_ref!(self);
        /// Why the work failed.
        reason(&self) -> Syndrome = Syndrome(self.syndrome);
        /// The queue pair.
        qpn(&self) -> u32 = self.s_wqe_opcode_qpn.get() & 0x00ff_ffff;
        /// The operation of the send queue entry that failed.
        send_opcode(&self) -> SendOpcode = SendOpcode((self.s_wqe_opcode_qpn.get() >> 24) as u8);
    }
}

/// What a success entry shall say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// What is done.
    pub opcode: CqeOpcode,
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// The user index given to the queue pair.
    pub uidx: u32,
    /// The entry's operation on a send completion; zero on a receive completion.
    pub send_opcode: SendOpcode,
    /// See [`Cqe64::byte_cnt`].
    pub byte_cnt: u32,
    /// Immediate or invalidated key, in network order.
    pub imm: [u8; 4],
    /// See [`Cqe64::wqe_counter`].
    pub wqe_counter: u16,
    /// Whether the sender asked for an event.
    pub solicited: bool,
    /// See [`Cqe64::timestamp`].
    pub timestamp: u64,
    /// Where a datagram came from; zero on connections and on send completions.
    pub source: Source,
}

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The queue pair that sent it, 24 bits.
    pub qpn: u32,
    /// The LID of the port that sent it; zero on Ethernet.
    pub slid: u16,
    /// On InfiniBand the service level, 4 bits; on Ethernet an [`L3Header`].
    pub sl: u8,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// Whether a global route header came with it.
    pub grh: bool,
}

/// The kinds of headers that a datagram on Ethernet has in place of a global route header, as
/// an entry tells them in place of the service level.
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

/// What an error entry shall say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// [`CqeOpcode::REQ_ERR`] or [`CqeOpcode::RESP_ERR`].
    pub opcode: CqeOpcode,
    /// Why.
    pub syndrome: Syndrome,
    /// A code for the vendor's support.
    pub vendor_err: u8,
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// The user index given to the queue pair.
    pub uidx: u32,
    /// The operation of the failed send queue entry; zero for a receive.
    pub send_opcode: SendOpcode,
    /// See [`Cqe64::wqe_counter`].
    pub wqe_counter: u16,
}

impl Cqe64 {
    /// A success entry with the given owner bit.
    pub fn success(say: &Success, owner: u8) -> Cqe64 {
        let from = &say.source;
        Cqe64 {
            ml_path: from.path_bits & 0x7f,
            slid: from.slid.into(),
            flags_rqpn: flags_rqpn(from).into(),
            srqn_uidx: say.uidx.into(),
            imm_inval_pkey: say.imm,
            byte_cnt: say.byte_cnt.into(),
            timestamp: say.timestamp.into(),
            sop_drop_qpn: opcode_qpn(say.send_opcode, say.qpn).into(),
            wqe_counter: say.wqe_counter.into(),
            op_own: op_own(say.opcode, say.solicited, owner),
            ..Cqe64::preset()
        }
    }

    /// The same entry with `payload` in it; only the first [`MAX_SCATTER`] bytes have room.
    #[inline]
    pub fn with_scattered(self, payload: &[u8]) -> Cqe64 {
        let mut bytes = self.to_bytes();
        let len = payload.len().min(MAX_SCATTER);
        bytes[..len].copy_from_slice(&payload[..len]);
        bytes[OP_OWN_OFFSET] |= SCATTER;
        Cqe64::from_bytes(bytes)
    }

    /// An entry that the NIC has never written, as the host presets it.
    pub const fn preset() -> Cqe64 {
        Cqe64 {
            op_own: OP_OWN_PRESET,
            ..Cqe64::from_bytes([0; SIZE])
        }
    }

    /// Where a datagram came from; means something on its receive completion.
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
    pub fn new(say: &Failure, owner: u8) -> ErrCqe {
        ErrCqe {
            srqn_uidx: say.uidx.into(),
            vendor_err: say.vendor_err,
            syndrome: say.syndrome.0,
            s_wqe_opcode_qpn: opcode_qpn(say.send_opcode, say.qpn).into(),
            wqe_counter: say.wqe_counter.into(),
            op_own: op_own(say.opcode, false, owner),
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
        // A queue that long is never full once.
        None => 0,
    }
}

/// The last dword of an unsolicited entry, as a little-endian machine loads or stores it.
#[inline]
pub const fn last_dword(opcode: CqeOpcode, owner: u8, signature: u8, wqe_counter: u16) -> u32 {
    let [hi, lo] = wqe_counter.to_be_bytes();
    u32::from_le_bytes([hi, lo, signature, op_own(opcode, false, owner)])
}

/// The work queue index in a last dword, as a little-endian machine loads it.
#[inline]
pub const fn wqe_counter_of(last_dword_le: u32) -> u16 {
    ((last_dword_le & 0xffff) as u16).swap_bytes()
}

/// What the last dword of an entry tells about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The NIC has not written the entry in this lap.
    NotYet,
    /// The work is done. The code may be one this crate has no name for.
    Success(CqeOpcode),
    /// The work failed; the entry reads as an [`ErrCqe`].
    Error(CqeOpcode),
}

/// Judges entry number `index` (counted over all laps) of a queue of 2^`log_entries` entries
/// by its last dword, as a little-endian machine loads it.
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
