//! The segments of WQEs, in their memory layout.

use core::mem::{offset_of, size_of};

use zerocopy::big_endian::{U16, U32, U64};

use super::{INVALID_LKEY, MAX_SGE_LEN, SEGMENT, Sge, WqeFlags};
use crate::opcode::SendOpcode;

layout! {
    /// The control segment, the first of every send WQE.
    CtrlSeg: [u8; SEGMENT] {
        /// Opcode modifier (8 bits), index of the first basic block (16), opcode (8).
        0 opmod_idx_opcode: U32,
        /// QP number (24 bits), size in segments (8 bits, of which 6 are used).
        4 qpn_ds: U32,
        /// Checksum; zero unless it was requested.
        8 signature: u8,
        /// Stream or DCI channel; zero on RC.
        9 dci_stream: [u8; 2],
        /// Fence mode, completion, solicited: see [`WqeFlags`].
        11 fm_ce_se: u8,
        /// Immediate data in network order, or the key to invalidate.
        12 imm: [u8; 4],
    } means {
        /// The opcode.
        opcode(&self) -> SendOpcode = SendOpcode(self.opmod_idx_opcode.get() as u8);
        /// The opcode modifier; zero in all requests that this crate encodes.
        opmod(&self) -> u8 = (self.opmod_idx_opcode.get() >> 24) as u8;
        /// Index of the entry's first basic block, modulo 2^16.
        index(&self) -> u16 = (self.opmod_idx_opcode.get() >> 8) as u16;
        /// The QP number.
        qpn(&self) -> u32 = self.qpn_ds.get() >> 8;
        /// The size of the entry in segments as written, even if it is above the maximum.
        ds(&self) -> u8 = self.qpn_ds.get() as u8;
        /// The flags.
        flags(&self) -> WqeFlags = WqeFlags::from_byte(self.fm_ce_se);
    }
}

impl CtrlSeg {
    /// A control segment, with 24 bits of `qpn`.
    #[inline]
    pub const fn new(
        opcode: SendOpcode,
        index: u16,
        qpn: u32,
        ds: u8,
        flags: WqeFlags,
        imm: [u8; 4],
    ) -> CtrlSeg {
        CtrlSeg {
            opmod_idx_opcode: U32::new((index as u32) << 8 | opcode.0 as u32),
            qpn_ds: U32::new(qpn << 8 | ds as u32),
            signature: 0,
            dci_stream: [0; 2],
            fm_ce_se: flags.to_byte(),
            imm,
        }
    }
}

layout! {
    /// The remote address segment.
    RaddrSeg: [u8; SEGMENT] {
        /// The address in the MR of the peer.
        0 addr: U64,
        /// The rkey.
        8 rkey: U32,
        /// Zero.
        12 reserved: [u8; 4],
    }
}

impl RaddrSeg {
    /// Byte offset of the address in the segment.
    pub const ADDR: usize = offset_of!(RaddrSeg, addr);
    /// Byte offset of the key in the segment.
    pub const RKEY: usize = offset_of!(RaddrSeg, rkey);

    /// A remote address segment.
    #[inline]
    pub const fn new(addr: u64, rkey: u32) -> RaddrSeg {
        RaddrSeg {
            addr: U64::new(addr),
            rkey: U32::new(rkey),
            reserved: [0; 4],
        }
    }
}

layout! {
    /// A pointer to registered local memory. On a send queue the highest bit of the byte count
    /// distinguishes an inline segment from a pointer.
    DataSeg: [u8; SEGMENT] {
        /// The length in bytes; 0 stands for 2 GiB.
        0 byte_count: U32,
        /// The lkey.
        4 lkey: U32,
        /// The address in the MR.
        8 addr: U64,
    }
}

impl DataSeg {
    /// Byte offset of the byte count in the segment.
    pub const BYTE_COUNT: usize = offset_of!(DataSeg, byte_count);
    /// Byte offset of the key in the segment.
    pub const LKEY: usize = offset_of!(DataSeg, lkey);
    /// Byte offset of the address in the segment.
    pub const ADDR: usize = offset_of!(DataSeg, addr);

    /// The end mark of the list of a receive WQE.
    pub const END: DataSeg = DataSeg {
        byte_count: U32::ZERO,
        lkey: U32::new(INVALID_LKEY),
        addr: U64::ZERO,
    };

    /// A pointer with 31 bits of the length, so that [`MAX_SGE_LEN`] becomes 0. The caller must not
    /// pass a length of 0: the NIC reads it as 2 GiB.
    #[inline]
    pub const fn new(sge: Sge) -> DataSeg {
        DataSeg {
            byte_count: U32::new(sge.len & (MAX_SGE_LEN - 1)),
            lkey: U32::new(sge.lkey),
            addr: U64::new(sge.addr),
        }
    }

    /// The pointer as the NIC reads it.
    #[inline]
    pub const fn sge(&self) -> Sge {
        Sge {
            addr: self.addr.get(),
            lkey: self.lkey.get(),
            len: match self.byte_count.get() & (MAX_SGE_LEN - 1) {
                0 => MAX_SGE_LEN,
                len => len,
            },
        }
    }
}

layout! {
    /// The operands of an atomic operation.
    AtomicSeg: [u8; SEGMENT] {
        /// The value to store on a match, or to add.
        0 swap_add: U64,
        /// The value to compare; zero for fetch and add.
        8 compare: U64,
    }
}

impl AtomicSeg {
    /// An atomic segment.
    #[inline]
    pub const fn new(swap_add: u64, compare: u64) -> AtomicSeg {
        AtomicSeg {
            swap_add: U64::new(swap_add),
            compare: U64::new(compare),
        }
    }
}

layout! {
    /// The address vector: the destination of a UD message. Three segments.
    AvSeg: [[u8; SEGMENT]; 3] {
        /// The queue key (Q_Key) of the destination.
        0 qkey: U32,
        /// Zero on UD.
        4 reserved0: [u8; 4],
        /// The QP number of the destination (24 bits); the highest bit is set if the address vector
        /// has 48 bytes.
        8 dqp_dct: U32,
        /// Static rate (4 bits), service level (4 bits).
        12 stat_rate_sl: u8,
        /// Force loopback (1 bit), source path bits of the LID (7 bits).
        13 fl_mlid: u8,
        /// LID of the destination, on InfiniBand.
        14 rlid: U16,
        /// Zero.
        16 reserved1: [u8; 4],
        /// MAC of the destination, on Ethernet.
        20 rmac: [u8; 6],
        /// Traffic class.
        26 tclass: u8,
        /// Hop limit.
        27 hop_limit: u8,
        /// Whether the message has a global route header ([`GRH`](AvSeg::GRH)), the index of the
        /// local GID (8 bits), the flow label (20 bits).
        28 grh_gid_fl: U32,
        /// GID of the destination.
        32 rgid: [u8; 16],
    } means {
        /// The QP number of the destination.
        qpn(&self) -> u32 = self.dqp_dct.get() & 0x00ff_ffff;
        /// The service level; on Ethernet the priority and the bit below it.
        service_level(&self) -> u8 = self.stat_rate_sl & 0xf;
        /// Low bits of the local source LID.
        path_bits(&self) -> u8 = self.fl_mlid & 0x7f;
        /// On InfiniBand: whether the message has a global route header. On Ethernet every message
        /// has one, and the bit is clear.
        has_grh(&self) -> bool = self.grh_gid_fl.get() & AvSeg::GRH != 0;
        /// The index of the local source GID.
        sgid_index(&self) -> u8 = (self.grh_gid_fl.get() >> 20) as u8;
        /// The flow label, 20 bits.
        flow_label(&self) -> u32 = self.grh_gid_fl.get() & 0x000f_ffff;
    }
}

impl AvSeg {
    /// In [`dqp_dct`](AvSeg::dqp_dct): the address vector has all its 48 bytes.
    pub const EXTENDED: u32 = 1 << 31;
    /// In [`grh_gid_fl`](AvSeg::grh_gid_fl): the message carries a global route header.
    pub const GRH: u32 = 1 << 30;
    /// The number of segments of an address vector.
    pub const SEGMENTS: usize = size_of::<AvSeg>() / SEGMENT;

    /// The address of QP `qpn` at `lid` in the local InfiniBand subnet.
    #[inline]
    pub const fn infiniband(qkey: u32, qpn: u32, lid: u16, service_level: u8) -> AvSeg {
        AvSeg {
            qkey: U32::new(qkey),
            dqp_dct: U32::new(AvSeg::EXTENDED | qpn & 0x00ff_ffff),
            stat_rate_sl: service_level & 0xf,
            rlid: U16::new(lid),
            ..AvSeg::from_bytes([[0; SEGMENT]; AvSeg::SEGMENTS])
        }
    }
}
