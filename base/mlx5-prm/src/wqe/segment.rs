//! The segments that entries are made of, as they lie in memory.

use core::mem::{offset_of, size_of};

use zerocopy::big_endian::{U16, U32, U64};

use super::{INVALID_LKEY, MAX_SGE_LEN, SEGMENT, Sge, WqeFlags};
use crate::opcode::SendOpcode;

layout! {
    /// Starts every send queue entry.
    CtrlSeg: [u8; SEGMENT] {
        /// Opcode modifier (8 bits), index of the first basic block (16), opcode (8).
        0 opmod_idx_opcode: U32,
        /// Queue pair (24 bits), size in segments (8, of which 6 count).
        4 qpn_ds: U32,
        /// Checksum; zero unless asked for.
        8 signature: u8,
        /// Stream or DCI channel; zero on RC.
        9 dci_stream: [u8; 2],
        /// Fence mode, completion, solicited: see [`WqeFlags`].
        11 fm_ce_se: u8,
        /// Immediate in network order, or the key to invalidate.
        12 imm: [u8; 4],
    } means {
        /// The opcode.
        opcode(&self) -> SendOpcode = SendOpcode(self.opmod_idx_opcode.get() as u8);
        /// Modifier of the opcode; zero for all that this crate encodes.
        opmod(&self) -> u8 = (self.opmod_idx_opcode.get() >> 24) as u8;
        /// Index of the entry's first basic block, modulo 2^16.
        index(&self) -> u16 = (self.opmod_idx_opcode.get() >> 8) as u16;
        /// The queue pair.
        qpn(&self) -> u32 = self.qpn_ds.get() >> 8;
        /// Size of the entry in segments, as written, also if it is more than there can be.
        ds(&self) -> u8 = self.qpn_ds.get() as u8;
        /// The flags.
        flags(&self) -> WqeFlags = WqeFlags::from_byte(self.fm_ce_se);
    }
}

impl CtrlSeg {
    /// A control segment. Of `qpn` 24 bits are kept.
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
    /// Where at the peer.
    RaddrSeg: [u8; SEGMENT] {
        /// Address in the peer's region.
        0 addr: U64,
        /// Key of the peer's region.
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
    /// tells an inline segment from a pointer.
    DataSeg: [u8; SEGMENT] {
        /// Length in bytes; 0 stands for 2 GiB.
        0 byte_count: U32,
        /// Key of the region.
        4 lkey: U32,
        /// Address in the region.
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

    /// Ends the list of a receive queue entry.
    pub const END: DataSeg = DataSeg {
        byte_count: U32::ZERO,
        lkey: U32::new(INVALID_LKEY),
        addr: U64::ZERO,
    };

    /// A pointer. Of the length 31 bits are kept, so that [`MAX_SGE_LEN`] becomes 0. A length
    /// of 0 must not come here: the NIC takes it for 2 GiB.
    #[inline]
    pub const fn new(sge: Sge) -> DataSeg {
        DataSeg {
            byte_count: U32::new(sge.len & (MAX_SGE_LEN - 1)),
            lkey: U32::new(sge.lkey),
            addr: U64::new(sge.addr),
        }
    }

    /// What the pointer means to the NIC.
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
    /// Operands of an atomic operation.
    AtomicSeg: [u8; SEGMENT] {
        /// What to store on a match, or what to add.
        0 swap_add: U64,
        /// What to compare with; zero on fetch and add.
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
    /// Address vector: where a UD message goes. Three segments.
    AvSeg: [[u8; SEGMENT]; 3] {
        /// Queue key of the destination.
        0 qkey: U32,
        /// Zero on UD.
        4 reserved0: [u8; 4],
        /// Destination queue pair (24 bits); the highest bit says that all 48 bytes are there.
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
        /// Whether there is a global route header ([`GRH`](AvSeg::GRH)), the index of the own GID (8
        /// bits), the flow label (20).
        28 grh_gid_fl: U32,
        /// GID of the destination.
        32 rgid: [u8; 16],
    } means {
        /// The destination queue pair.
        qpn(&self) -> u32 = self.dqp_dct.get() & 0x00ff_ffff;
        /// The service level; on Ethernet the priority and a bit below it.
        service_level(&self) -> u8 = self.stat_rate_sl & 0xf;
        /// Low bits of the own LID that the message is sent from.
        path_bits(&self) -> u8 = self.fl_mlid & 0x7f;
        /// On InfiniBand: whether the message carries a global route header. On Ethernet, where
        /// all do, the bit is clear.
        has_grh(&self) -> bool = self.grh_gid_fl.get() & AvSeg::GRH != 0;
        /// Which of the port's own GIDs the message is sent from.
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
    /// Segments of an address vector.
    pub const SEGMENTS: usize = size_of::<AvSeg>() / SEGMENT;

    /// The address of queue pair `qpn` behind `lid` in the own InfiniBand subnet.
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
