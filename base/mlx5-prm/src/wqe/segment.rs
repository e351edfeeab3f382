//! The segments that entries are made of, as they lie in memory.

use core::mem::{offset_of, size_of};

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{INVALID_LKEY, MAX_SGE_LEN, SEGMENT, Sge, WqeFlags};
use crate::opcode::SendOpcode;

/// Starts every send queue entry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CtrlSeg {
    /// Opcode modifier (8 bits), index of the first basic block (16), opcode (8).
    pub opmod_idx_opcode: U32,
    /// Queue pair (24 bits), size in segments (8, of which 6 count).
    pub qpn_ds: U32,
    /// Checksum; zero unless asked for.
    pub signature: u8,
    /// Stream or DCI channel; zero on RC.
    pub dci_stream: [u8; 2],
    /// Fence mode, completion, solicited: see [`WqeFlags`].
    pub fm_ce_se: u8,
    /// Immediate in network order, or the key to invalidate.
    pub imm: [u8; 4],
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

    /// The opcode.
    #[inline]
    pub const fn opcode(&self) -> SendOpcode {
        SendOpcode(self.opmod_idx_opcode.get() as u8)
    }

    /// Modifier of the opcode; zero for all that this crate encodes.
    #[inline]
    pub const fn opmod(&self) -> u8 {
        (self.opmod_idx_opcode.get() >> 24) as u8
    }

    /// Index of the entry's first basic block, modulo 2^16.
    #[inline]
    pub const fn index(&self) -> u16 {
        (self.opmod_idx_opcode.get() >> 8) as u16
    }

    /// The queue pair.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Size of the entry in segments, as written, also if it is more than there can be.
    #[inline]
    pub const fn ds(&self) -> u8 {
        self.qpn_ds.get() as u8
    }

    /// The flags.
    #[inline]
    pub const fn flags(&self) -> WqeFlags {
        WqeFlags::from_byte(self.fm_ce_se)
    }

    /// The bytes, in the order they stand in memory.
    #[inline]
    pub const fn to_bytes(self) -> [u8; SEGMENT] {
        zerocopy::transmute!(self)
    }
}

/// Where at the peer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RaddrSeg {
    /// Address in the peer's region.
    pub addr: U64,
    /// Key of the peer's region.
    pub rkey: U32,
    /// Zero.
    pub reserved: [u8; 4],
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

    /// The bytes, in the order they stand in memory.
    #[inline]
    pub const fn to_bytes(self) -> [u8; SEGMENT] {
        zerocopy::transmute!(self)
    }
}

/// A pointer to registered local memory. On a send queue the highest bit of the byte count
/// tells an inline segment from a pointer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DataSeg {
    /// Length in bytes; 0 stands for 2 GiB.
    pub byte_count: U32,
    /// Key of the region.
    pub lkey: U32,
    /// Address in the region.
    pub addr: U64,
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

    /// The bytes, in the order they stand in memory.
    #[inline]
    pub const fn to_bytes(self) -> [u8; SEGMENT] {
        zerocopy::transmute!(self)
    }
}

/// Operands of an atomic operation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AtomicSeg {
    /// What to store on a match, or what to add.
    pub swap_add: U64,
    /// What to compare with; zero on fetch and add.
    pub compare: U64,
}

impl AtomicSeg {
    /// Byte offset of the value to store or add in the segment.
    pub const SWAP_ADD: usize = offset_of!(AtomicSeg, swap_add);
    /// Byte offset of the value to compare with in the segment.
    pub const COMPARE: usize = offset_of!(AtomicSeg, compare);

    /// An atomic segment.
    #[inline]
    pub const fn new(swap_add: u64, compare: u64) -> AtomicSeg {
        AtomicSeg {
            swap_add: U64::new(swap_add),
            compare: U64::new(compare),
        }
    }

    /// The bytes, in the order they stand in memory.
    #[inline]
    pub const fn to_bytes(self) -> [u8; SEGMENT] {
        zerocopy::transmute!(self)
    }
}

/// Address vector: where a UD message goes. Three segments.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AvSeg {
    /// Queue key of the destination.
    pub qkey: U32,
    /// Zero on UD.
    pub reserved0: [u8; 4],
    /// Destination queue pair (24 bits); the highest bit says that all 48 bytes are there.
    pub dqp_dct: U32,
    /// Static rate (4 bits), service level (4 bits).
    pub stat_rate_sl: u8,
    /// Force loopback (1 bit), source path bits of the LID (7 bits).
    pub fl_mlid: u8,
    /// LID of the destination, on InfiniBand.
    pub rlid: U16,
    /// Zero.
    pub reserved1: [u8; 4],
    /// MAC of the destination, on Ethernet.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Whether there is a global route header ([`GRH`](AvSeg::GRH)), the index of the own GID (8
    /// bits), the flow label (20).
    pub grh_gid_fl: U32,
    /// GID of the destination.
    pub rgid: [u8; 16],
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
            reserved0: [0; 4],
            dqp_dct: U32::new(AvSeg::EXTENDED | qpn & 0x00ff_ffff),
            stat_rate_sl: service_level & 0xf,
            fl_mlid: 0,
            rlid: U16::new(lid),
            reserved1: [0; 4],
            rmac: [0; 6],
            tclass: 0,
            hop_limit: 0,
            grh_gid_fl: U32::ZERO,
            rgid: [0; 16],
        }
    }

    /// The destination queue pair.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.dqp_dct.get() & 0x00ff_ffff
    }

    /// The service level; on Ethernet the priority and a bit below it.
    #[inline]
    pub const fn service_level(&self) -> u8 {
        self.stat_rate_sl & 0xf
    }

    /// Low bits of the own LID that the message is sent from.
    #[inline]
    pub const fn path_bits(&self) -> u8 {
        self.fl_mlid & 0x7f
    }

    /// On InfiniBand: whether the message carries a global route header. On Ethernet, where
    /// all do, the bit is clear.
    #[inline]
    pub const fn has_grh(&self) -> bool {
        self.grh_gid_fl.get() & AvSeg::GRH != 0
    }

    /// Which of the port's own GIDs the message is sent from.
    #[inline]
    pub const fn sgid_index(&self) -> u8 {
        (self.grh_gid_fl.get() >> 20) as u8
    }

    /// The flow label, 20 bits.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.grh_gid_fl.get() & 0x000f_ffff
    }

    /// The bytes as segments, in the order they stand in memory.
    #[inline]
    pub const fn to_segments(self) -> [[u8; SEGMENT]; AvSeg::SEGMENTS] {
        zerocopy::transmute!(self)
    }

    /// The address vector with these bytes.
    #[inline]
    pub const fn from_segments(segments: [[u8; SEGMENT]; AvSeg::SEGMENTS]) -> AvSeg {
        zerocopy::transmute!(segments)
    }
}

const _: () = {
    assert!(size_of::<CtrlSeg>() == SEGMENT);
    assert!(offset_of!(CtrlSeg, opmod_idx_opcode) == 0);
    assert!(offset_of!(CtrlSeg, qpn_ds) == 4);
    assert!(offset_of!(CtrlSeg, signature) == 8);
    assert!(offset_of!(CtrlSeg, dci_stream) == 9);
    assert!(offset_of!(CtrlSeg, fm_ce_se) == 11);
    assert!(offset_of!(CtrlSeg, imm) == 12);
    assert!(size_of::<RaddrSeg>() == SEGMENT);
    assert!(RaddrSeg::ADDR == 0 && RaddrSeg::RKEY == 8);
    assert!(size_of::<DataSeg>() == SEGMENT);
    assert!(DataSeg::BYTE_COUNT == 0 && DataSeg::LKEY == 4 && DataSeg::ADDR == 8);
    assert!(size_of::<AtomicSeg>() == SEGMENT);
    assert!(AtomicSeg::SWAP_ADD == 0 && AtomicSeg::COMPARE == 8);
    assert!(size_of::<AvSeg>() == 48);
    assert!(offset_of!(AvSeg, dqp_dct) == 8);
    assert!(offset_of!(AvSeg, stat_rate_sl) == 12);
    assert!(offset_of!(AvSeg, rlid) == 14);
    assert!(offset_of!(AvSeg, rmac) == 20);
    assert!(offset_of!(AvSeg, tclass) == 26);
    assert!(offset_of!(AvSeg, grh_gid_fl) == 28);
    assert!(offset_of!(AvSeg, rgid) == 32);
};
