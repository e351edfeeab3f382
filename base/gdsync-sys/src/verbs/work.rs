//! The types of libibverbs for posting and polling, in the layout of its header.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::consts::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM};
use super::types::{ibv_ah, ibv_context, ibv_cq, ibv_qp_cap, ibv_srq};

/// A completion channel.
#[repr(C)]
pub struct ibv_comp_channel {
    /// Its context.
    pub context: *mut ibv_context,
    /// The descriptor; it is readable if an event is pending.
    pub fd: c_int,
    /// Private to the library.
    pub refcnt: c_int,
}

/// The attributes of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_device_attr {
    /// The firmware version.
    pub fw_ver: [c_char; 64],
    /// The GUID of the device, big-endian.
    pub node_guid: u64,
    /// The GUID of the system image, big-endian.
    pub sys_image_guid: u64,
    /// The maximal length of an MR in bytes.
    pub max_mr_size: u64,
    /// The supported page sizes, one bit each.
    pub page_size_cap: u64,
    /// The vendor ID.
    pub vendor_id: u32,
    /// The vendor's part ID.
    pub vendor_part_id: u32,
    /// The hardware version.
    pub hw_ver: u32,
    /// The maximal number of QPs.
    pub max_qp: c_int,
    /// The maximal number of outstanding requests of a work queue.
    pub max_qp_wr: c_int,
    /// The capabilities of the device.
    pub device_cap_flags: c_uint,
    /// The maximal number of SGEs of a request.
    pub max_sge: c_int,
    /// The maximal number of SGEs of a READ.
    pub max_sge_rd: c_int,
    /// The maximal number of CQs.
    pub max_cq: c_int,
    /// The maximal number of entries of a CQ.
    pub max_cqe: c_int,
    /// The maximal number of MRs.
    pub max_mr: c_int,
    /// The maximal number of PDs.
    pub max_pd: c_int,
    /// The maximal number of outstanding READs and atomics of a QP as responder.
    pub max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    _max_res_rd_atom: c_int,
    /// The maximal number of outstanding READs and atomics of a QP as requester.
    pub max_qp_init_rd_atom: c_int,
    _max_ee_init_rd_atom: c_int,
    /// The scope in which atomics are atomic.
    pub atomic_cap: c_int,
    _others: [c_int; 14],
    /// The length of a port's partition key table.
    pub max_pkeys: u16,
    /// The local acknowledgement delay.
    pub local_ca_ack_delay: u8,
    /// The number of physical ports.
    pub phys_port_cnt: u8,
}

/// The attributes of a new QP.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_qp_init_attr {
    /// The user's context pointer.
    pub qp_context: *mut c_void,
    /// The CQ of its sends.
    pub send_cq: *mut ibv_cq,
    /// The CQ of its receives.
    pub recv_cq: *mut ibv_cq,
    /// Its SRQ, or null.
    pub srq: *mut ibv_srq,
    /// The requested capacities; after the call the actual ones, which may be larger.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
    /// Whether every send is signaled.
    pub sq_sig_all: c_int,
}

/// A scatter/gather entry (SGE): a range of an MR.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_sge {
    /// Its address in the address space of the MR.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The lkey of the MR.
    pub lkey: u32,
}

/// The remote operand; the opcode selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_remote {
    /// For RDMA READs and WRITEs.
    pub rdma: ibv_send_rdma,
    /// For atomics.
    pub atomic: ibv_send_atomic,
    /// For datagrams.
    pub ud: ibv_send_ud,
}

/// The remote operand of an RDMA READ or WRITE.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_send_rdma {
    /// The remote address.
    pub remote_addr: u64,
    /// The rkey.
    pub rkey: u32,
}

/// The remote operand of an atomic, with its values.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_send_atomic {
    /// The remote address.
    pub remote_addr: u64,
    /// The value to compare, or to add.
    pub compare_add: u64,
    /// The value to store.
    pub swap: u64,
    /// The rkey.
    pub rkey: u32,
}

/// The destination of a datagram.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ibv_send_ud {
    /// The address handle.
    pub ah: *mut ibv_ah,
    /// The QP number of the destination.
    pub remote_qpn: u32,
    /// The queue key (Q_Key) of the destination.
    pub remote_qkey: u32,
}

/// A send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    /// The user's number of the request, which the completion contains.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_send_wr,
    /// The SGEs.
    pub sg_list: *mut ibv_sge,
    /// The number of SGEs.
    pub num_sge: c_int,
    /// `IBV_WR_*`.
    pub opcode: c_int,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// Immediate data in network order, or the rkey to invalidate.
    pub imm_data: u32,
    /// The remote operand.
    pub wr: ibv_send_remote,
    /// For XRC: unused.
    pub qp_type: u32,
    /// For memory windows and segmentation: unused.
    pub _others: [u64; 6],
}

/// A receive request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_recv_wr {
    /// The user's number of the request, which the completion contains.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_recv_wr,
    /// The SGEs.
    pub sg_list: *mut ibv_sge,
    /// The number of SGEs.
    pub num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_wc {
    /// The user's number of the request.
    pub wr_id: u64,
    /// The status, `IBV_WC_*`. On an error most other fields are invalid.
    pub status: c_int,
    /// The opcode of the completed request.
    pub opcode: c_int,
    /// The vendor's error code.
    pub vendor_err: u32,
    /// The number of bytes received.
    pub byte_len: u32,
    /// Immediate data in network order, or the rkey that was invalidated.
    pub imm_data: u32,
    /// The QP number.
    pub qp_num: u32,
    /// The QP number of the sender, for datagrams.
    pub src_qp: u32,
    /// Flags `IBV_WC_WITH_*`: the content of `imm_data`.
    pub wc_flags: c_uint,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The LID of the sender.
    pub slid: u16,
    /// The service level.
    pub sl: u8,
    /// The path bits of the local LID.
    pub dlid_path_bits: u8,
}

#[allow(clippy::len_without_is_empty)]
impl ibv_wc {
    /// The user's number of the request.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The number of bytes received, or read from the peer. For a datagram it includes the 40 bytes
    /// before the payload.
    pub fn len(&self) -> usize {
        self.byte_len as usize
    }

    /// Whether the request succeeded, and with it all earlier unsignaled requests.
    pub fn is_valid(&self) -> bool {
        self.status == IBV_WC_SUCCESS
    }

    /// The status and the vendor's error code of a failed request; `None` if it succeeded.
    pub fn error(&self) -> Option<(c_int, u32)> {
        (!self.is_valid()).then_some((self.status, self.vendor_err))
    }

    /// The opcode of the completed request.
    pub fn opcode(&self) -> c_int {
        self.opcode
    }

    /// The immediate data in network order, if the request succeeded and has immediate data.
    pub fn imm_data(&self) -> Option<u32> {
        let brought = self.wc_flags & IBV_WC_WITH_IMM != 0;
        (self.is_valid() && brought).then_some(self.imm_data)
    }
}

impl Default for ibv_wc {
    /// A failed completion without details, which no program takes for a success.
    fn default() -> ibv_wc {
        ibv_wc {
            wr_id: 0,
            status: IBV_WC_GENERAL_ERR,
            opcode: 0,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}
