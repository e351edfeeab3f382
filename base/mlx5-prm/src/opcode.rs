//! Opcodes of work queue entries and completion entries.

codes! {
    /// The operation of a send WQE: the low byte of its first dword.
    SendOpcode {
        /// No operation, executed in order; a signaled NOP writes a completion.
        NOP = 0x00,
        /// SEND that invalidates a key of the receiver; the immediate field contains the key.
        SEND_INV = 0x01,
        /// RDMA WRITE.
        RDMA_WRITE = 0x08,
        /// RDMA WRITE that also consumes a receive; the receive completion contains four bytes of
        /// immediate data.
        RDMA_WRITE_IMM = 0x09,
        /// SEND.
        SEND = 0x0a,
        /// SEND whose receive completion contains four bytes of immediate data.
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
    /// The content of a completion entry: the high nibble of its last byte.
    CqeOpcode {
        /// A send WQE completed.
        REQ = 0,
        /// An RDMA WRITE with immediate consumed a receive.
        RESP_WR_IMM = 1,
        /// A SEND consumed a receive.
        RESP_SEND = 2,
        /// A SEND with immediate consumed a receive.
        RESP_SEND_IMM = 3,
        /// A SEND with invalidate consumed a receive.
        RESP_SEND_INV = 4,
        /// A send WQE failed.
        REQ_ERR = 13,
        /// A receive failed.
        RESP_ERR = 14,
        /// The NIC has not written the entry.
        INVALID = 15,
    }
}

impl CqeOpcode {
    /// Whether the code is in the upper half, 8 or more: no code of this half means success. One
    /// bit decides this, so a wait on a single word can refuse error entries.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 & 0x8 != 0
    }
}
