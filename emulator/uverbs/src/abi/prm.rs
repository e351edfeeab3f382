//! The commands of the device itself, which DEVX passes on. A mailbox has big-endian fields. Each
//! field is given by its first bit, counted from the most significant bit of byte 0, and its width.
//! Names are those of the programmer's reference manual (PRM).

/// A field of a mailbox, or of a context within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first bit.
    pub bit: u32,
    /// Its width: at most 64.
    pub bits: u32,
}

impl Field {
    /// Its value; bits beyond the end of `bytes` are zero.
    pub fn get(self, bytes: &[u8]) -> u64 {
        (self.bit..self.bit + self.bits).fold(0, |value, bit| {
            let byte = bytes.get(bit as usize / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// Changes it; bits beyond its width or the end of `bytes` are lost.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        for i in 0..self.bits {
            let bit = self.bit + self.bits - 1 - i;
            if let Some(byte) = bytes.get_mut(bit as usize / 8) {
                let mask = 0x80 >> (bit % 8);
                *byte = *byte & !mask | if value >> i & 1 != 0 { mask } else { 0 };
            }
        }
    }
}

/// Declares fields by their first bit and width.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident = $bit:literal, $bits:literal;)*) => {
        $($(#[$meta])* pub const $name: $crate::abi::prm::Field =
            $crate::abi::prm::Field { bit: $bit, bits: $bits };)*
    };
}

/// The numbers of commands.
pub mod opcode {
    pub const QUERY_HCA_CAP: u16 = 0x100;
    pub const CREATE_CQ: u16 = 0x400;
    pub const QUERY_CQ: u16 = 0x402;
    pub const CREATE_QP: u16 = 0x500;
    pub const RST2INIT_QP: u16 = 0x502;
    pub const INIT2RTR_QP: u16 = 0x503;
    pub const RTR2RTS_QP: u16 = 0x504;
    pub const RTS2RTS_QP: u16 = 0x505;
    pub const TO_ERR_QP: u16 = 0x507;
    pub const TO_RST_QP: u16 = 0x50a;
    pub const QUERY_QP: u16 = 0x50b;
    pub const INIT2INIT_QP: u16 = 0x50e;
    pub const QUERY_ROCE_ADDRESS: u16 = 0x760;
    pub const ALLOC_PD: u16 = 0x800;
}

/// The status codes of answers.
pub mod status {
    pub const BAD_PARAM: u8 = 0x3;
    pub const BAD_RES: u8 = 0x5;
    pub const RES_BUSY: u8 = 0x6;
    pub const LIMIT: u8 = 0x8;
    pub const BAD_QP_STATE: u8 = 0x10;
    pub const BAD_INPUT_LEN: u8 = 0x50;
    pub const BAD_OUTPUT_LEN: u8 = 0x51;
}

/// The header of every command.
pub mod input {
    /// The header's length in bytes.
    pub const HEADER: usize = 16;
    fields! {
        OPCODE = 0x00, 16;
        OP_MOD = 0x30, 16;
        /// The number of the command's object.
        NUMBER = 0x48, 24;
    }
}

/// The header of every answer.
pub mod output {
    /// The header's length in bytes.
    pub const HEADER: usize = 16;
    fields! {
        STATUS = 0x00, 8;
        SYNDROME = 0x20, 32;
        /// The number of the new object.
        NUMBER = 0x48, 24;
    }
}

/// The context of a CQ, and the commands that contain it.
pub mod cqc {
    /// The offset of the context in the command that creates a CQ and in the answer of a query.
    pub const AT: usize = 16;
    pub const SIZE: usize = 64;
    /// The length in bytes of the command that creates a CQ, and of the answer of a query.
    pub const MAILBOX: usize = 272;
    /// An entry of 64 bytes.
    pub const CQE_64: u64 = 0;
    fields! {
        CQE_SZ = 0x08, 3;
        CC = 0x0b, 1;
        OI = 0x0e, 1;
        CQE_COMP_EN = 0x11, 1;
        DBR_UMEM_ID = 0x20, 32;
        PAGE_OFFSET = 0x54, 6;
        LOG_CQ_SIZE = 0x63, 5;
        UAR_PAGE = 0x68, 24;
        C_EQN = 0xb8, 8;
        LOG_PAGE_SIZE = 0xc3, 5;
        CONSUMER_COUNTER = 0x148, 24;
        PRODUCER_COUNTER = 0x168, 24;
        DBR_ADDR = 0x1c0, 64;
    }
    /// The fields of the whole command.
    pub mod create {
        fields! {
            CQ_UMEM_OFFSET = 0x280, 64;
            CQ_UMEM_ID = 0x2c0, 32;
        }
    }
}

/// The context of a QP, and the commands that contain it.
pub mod qpc {
    /// The offset of the context in the commands that create and modify a QP and in the answer of a
    /// query.
    pub const AT: usize = 24;
    pub const SIZE: usize = 232;
    /// The length in bytes of these commands, and of the answer of a query.
    pub const MAILBOX: usize = 272;
    /// Reliable and unreliable connections.
    pub const ST_RC: u64 = 0;
    pub const ST_UC: u64 = 1;
    /// Its own receive queue, a shared one, or none.
    pub const RQ_REGULAR: u64 = 0;
    pub const RQ_SRQ: u64 = 1;
    pub const RQ_ZERO: u64 = 3;
    /// Inline scatter: up to 32 bytes of payload in a CQE.
    pub const CS_REQ_32: u64 = 0x11;
    pub const CS_RES_32: u64 = 0x1;
    fields! {
        STATE = 0x00, 4;
        ST = 0x08, 8;
        PM_STATE = 0x13, 2;
        WQ_SIGNATURE = 0x20, 1;
        PD = 0x28, 24;
        MTU = 0x40, 3;
        LOG_MSG_MAX = 0x43, 5;
        LOG_RQ_SIZE = 0x49, 4;
        LOG_RQ_STRIDE = 0x4d, 3;
        NO_SQ = 0x50, 1;
        LOG_SQ_SIZE = 0x51, 4;
        UAR_PAGE = 0x68, 24;
        SEND_DBR_MODE = 0x80, 2;
        USER_INDEX = 0x88, 24;
        LOG_PAGE_SIZE = 0xa3, 5;
        REMOTE_QPN = 0xa8, 24;
        LOG_ACK_REQ_FREQ = 0x380, 4;
        LOG_SRA_MAX = 0x388, 3;
        RETRY_COUNT = 0x38d, 3;
        RNR_RETRY = 0x390, 3;
        NEXT_SEND_PSN = 0x3c8, 24;
        CQN_SND = 0x3e8, 24;
        LOG_RRA_MAX = 0x488, 3;
        ATOMIC_MODE = 0x48c, 4;
        RRE = 0x490, 1;
        RWE = 0x491, 1;
        RAE = 0x492, 1;
        PAGE_OFFSET = 0x494, 6;
        MIN_RNR_NAK = 0x4a3, 5;
        NEXT_RCV_PSN = 0x4a8, 24;
        CQN_RCV = 0x4e8, 24;
        DBR_ADDR = 0x500, 64;
        Q_KEY = 0x540, 32;
        RQ_TYPE = 0x565, 3;
        SRQN = 0x568, 24;
        HW_SQ_WQEBB_COUNTER = 0x5a0, 16;
        SW_SQ_WQEBB_COUNTER = 0x5b0, 16;
        HW_RQ_COUNTER = 0x5c0, 32;
        CS_REQ = 0x630, 8;
        CS_RES = 0x638, 8;
        DBR_UMEM_ID = 0x720, 32;
    }
    /// The primary address path, as fields of the context.
    pub mod path {
        fields! {
            PKEY_INDEX = 0xd0, 16;
            GRH = 0xe8, 1;
            RLID = 0xf0, 16;
            ACK_TIMEOUT = 0x100, 5;
            SRC_ADDR_INDEX = 0x108, 8;
            HOP_LIMIT = 0x118, 8;
            TCLASS = 0x124, 8;
            FLOW_LABEL = 0x12c, 20;
            SL = 0x1e4, 4;
            VHCA_PORT_NUM = 0x1e8, 8;
        }
        /// The bytes of the remote GID in the context.
        pub const RGID: std::ops::Range<usize> = 0x28..0x38;
    }
    /// The fields of the whole command.
    pub mod create {
        fields! {
            WQ_UMEM_OFFSET = 0x800, 64;
            WQ_UMEM_ID = 0x840, 32;
        }
    }
    /// The fields of a command that changes a queue pair.
    pub mod modify {
        fields! {
            OPT_PARAM_MASK = 0x80, 32;
        }
    }
    /// Bits of `OPT_PARAM_MASK`.
    pub mod opt {
        pub const RRE: u64 = 1 << 1;
        pub const RAE: u64 = 1 << 2;
        pub const RWE: u64 = 1 << 3;
        pub const PKEY_INDEX: u64 = 1 << 4;
        pub const RNR_TIMEOUT: u64 = 1 << 6;
        pub const SRA_MAX: u64 = 1 << 8;
        pub const RRA_MAX: u64 = 1 << 9;
        pub const RETRY_COUNT: u64 = 1 << 12;
        pub const RNR_RETRY: u64 = 1 << 13;
        pub const ACK_TIMEOUT: u64 = 1 << 14;
    }
}

/// The device capabilities: fields of the structures that `QUERY_HCA_CAP` returns.
pub mod cap {
    /// The length of a structure in bytes, without the header.
    pub const SIZE: usize = 4096;
    /// The selector of the structure: bits of `OP_MOD` above the lowest bit, which selects
    /// "current" instead of "maximal".
    pub const GENERAL: u64 = 0x0;
    pub const ATOMIC: u64 = 0x3;
    pub const ROCE: u64 = 0x4;
    pub mod general {
        fields! {
            LOG_MAX_QP_SZ = 0x88, 8;
            LOG_MAX_QP = 0x9b, 5;
            LOG_MAX_CQ_SZ = 0xc8, 8;
            LOG_MAX_CQ = 0xdb, 5;
            LOG_MAX_MKEY = 0xea, 6;
            LOG_MAX_RA_REQ_QP = 0x14a, 6;
            LOG_MAX_RA_RES_QP = 0x15a, 6;
            LOCAL_CA_ACK_DELAY = 0x1ab, 5;
            PORT_TYPE = 0x1b6, 2;
            NUM_PORTS = 0x1b8, 8;
            LOG_MAX_MSG = 0x1c3, 5;
            CQE_VERSION = 0x1fc, 4;
            ROCE = 0x21d, 1;
            ATOMIC = 0x21e, 1;
            CQ_OI = 0x220, 1;
            UC = 0x23e, 1;
            RC = 0x23f, 1;
            UAR_4K = 0x240, 1;
            LOG_PG_SZ = 0x258, 8;
            BF = 0x260, 1;
            LOG_BF_REG_SIZE = 0x26b, 5;
            MAX_WQE_SZ_SQ = 0x290, 16;
            MAX_WQE_SZ_RQ = 0x2b0, 16;
            LOG_MAX_PD = 0x32b, 5;
            LOG_MAX_UCTX = 0x463, 5;
            LOG_MAX_UMEM = 0x46b, 5;
            NUM_OF_UARS_PER_PAGE = 0x520, 32;
        }
    }
    pub mod atomic {
        /// Compare and swap, fetch and add.
        pub const SWAP_AND_ADD: u64 = 3;
        /// Of 8 bytes.
        pub const BYTES_8: u64 = 8;
        fields! {
            /// 1: numbers are in the host's byte order.
            REQ_8B_ENDIANNESS_MODE = 0x40, 2;
            SUPPORTED_REQ_8B_ENDIANNESS_MODE_1 = 0x46, 1;
            OPERATIONS = 0x90, 16;
            SIZE_QP = 0xb0, 16;
        }
    }
    pub mod roce {
        /// Bits of `VERSION`: RoCE v1 and v2.
        pub const V1_AND_V2: u64 = 0x5;
        fields! {
            VERSION = 0x98, 8;
            DEST_UDP_PORT = 0xb0, 16;
            MAX_SRC_UDP_PORT = 0xc0, 16;
            MIN_SRC_UDP_PORT = 0xd0, 16;
            ADDRESS_TABLE_SIZE = 0xf0, 16;
        }
    }
}

/// `QUERY_ROCE_ADDRESS`.
pub mod roce_address {
    /// The length of the answer in bytes.
    pub const OUT: usize = 48;
    /// The bytes of the GID and of the MAC in the answer.
    pub const GID: std::ops::Range<usize> = 16..32;
    pub const MAC: std::ops::Range<usize> = 34..40;
    pub mod input {
        fields! {
            INDEX = 0x40, 16;
            VHCA_PORT_NUM = 0x5c, 4;
        }
    }
    pub mod output {
        fields! {
            /// 0: IPv4, 1: IPv6.
            L3_TYPE = 0x154, 4;
            /// 0: v1, 2: v2.
            VERSION = 0x158, 8;
        }
    }
}
