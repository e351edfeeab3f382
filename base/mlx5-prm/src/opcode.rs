//! Operation codes of work queue entries and completion entries.

codes! {
    /// What a send queue entry asks for: the low byte of its first dword.
    SendOpcode {
        /// Does nothing, in order; completes like any other entry if it is signaled.
        NOP = 0x00,
        /// SEND that invalidates a key of the receiver; the key travels in the immediate field.
        SEND_INV = 0x01,
        /// RDMA WRITE.
        RDMA_WRITE = 0x08,
        /// RDMA WRITE that also consumes a receive and delivers four bytes with its completion.
        RDMA_WRITE_IMM = 0x09,
        /// SEND.
        SEND = 0x0a,
        /// SEND that delivers four bytes with the receive completion.
        SEND_IMM = 0x0b,
        /// RDMA READ.
        RDMA_READ = 0x10,
        /// Compare and swap of eight bytes.
        ATOMIC_CS = 0x11,
        /// Fetch and add of eight bytes.
        ATOMIC_FA = 0x12,
    }
}

codes! {
    /// What a completion entry reports: the high nibble of its last byte.
    CqeOpcode {
        /// A send queue entry is done.
        REQ = 0,
        /// A receive was consumed by an RDMA WRITE with immediate.
        RESP_WR_IMM = 1,
        /// A receive was filled by a SEND.
        RESP_SEND = 2,
        /// A receive was filled by a SEND with immediate.
        RESP_SEND_IMM = 3,
        /// A receive was filled by a SEND with invalidate.
        RESP_SEND_INV = 4,
        /// A send queue entry failed.
        REQ_ERR = 13,
        /// A receive failed.
        RESP_ERR = 14,
        /// The entry was never written by the NIC.
        INVALID = 15,
    }
}

impl CqeOpcode {
    /// Whether the code is one of the upper half, all of which mean anything but success. One
    /// bit tells, which is what lets a wait on a single word refuse error entries.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 & 0x8 != 0
    }
}
