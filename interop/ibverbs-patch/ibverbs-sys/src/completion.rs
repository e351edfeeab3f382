//! Completions, which programs are handed as they are.

use crate::*;

/// A completion.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_wc {
    wr_id: u64,
    status: ibv_wc_status::Type,
    opcode: ibv_wc_opcode::Type,
    vendor_err: u32,
    byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated: `wc_flags` tells.
    pub imm_data: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// The peer's queue pair, of datagrams.
    pub src_qp: u32,
    /// What else it says.
    pub wc_flags: ibv_wc_flags,
    /// The partition key's place.
    pub pkey_index: u16,
    /// The peer's local identifier.
    pub slid: u16,
    /// The service level.
    pub sl: u8,
    /// The path among those of the own port.
    pub dlid_path_bits: u8,
}

#[allow(clippy::len_without_is_empty)]
impl ibv_wc {
    /// The number that the program gave the request.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Bytes received, or read from the peer. Of datagrams, with the 40 bytes before them.
    pub fn len(&self) -> usize {
        self.byte_len as usize
    }

    /// Whether the request succeeded, and with it all unsignaled ones before it.
    pub fn is_valid(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// How a request failed, with the maker's own number; `None` if it did not.
    pub fn error(&self) -> Option<(ibv_wc_status::Type, u32)> {
        (!self.is_valid()).then_some((self.status, self.vendor_err))
    }

    /// What was done.
    pub fn opcode(&self) -> ibv_wc_opcode::Type {
        self.opcode
    }

    /// Immediate data in network order, if the request succeeded and brought some.
    pub fn imm_data(&self) -> Option<u32> {
        let brought = self.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM != ibv_wc_flags(0);
        (self.is_valid() && brought).then_some(self.imm_data)
    }
}

impl Default for ibv_wc {
    /// A failure of which nothing is known, which nobody takes for a completion.
    fn default() -> ibv_wc {
        ibv_wc {
            wr_id: 0,
            status: ibv_wc_status::IBV_WC_GENERAL_ERR,
            opcode: ibv_wc_opcode::IBV_WC_LOCAL_INV,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: ibv_wc_flags(0),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

lies_as_there! {
    ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
        pkey_index, slid, sl, dlid_path_bits }
}
