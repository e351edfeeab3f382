//! The types of libibverbs that posting and polling need, as its header lays them out.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::consts::{IBV_WC_GENERAL_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM};
use super::types::{ibv_ah, ibv_context, ibv_cq, ibv_qp_cap, ibv_srq};

/// A channel for completion events.
#[repr(C)]
pub struct ibv_comp_channel {
    /// Its device.
    pub context: *mut ibv_context,
    /// The descriptor that is readable when there is an event.
    pub fd: c_int,
    /// The library's own.
    pub refcnt: c_int,
}

/// What a device is like.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_device_attr {
    /// The firmware's version.
    pub fw_ver: [c_char; 64],
    /// The device's GUID, big-endian.
    pub node_guid: u64,
    /// That of the card, big-endian.
    pub sys_image_guid: u64,
    /// Bytes of the longest registration.
    pub max_mr_size: u64,
    /// Sizes of pages, a bit each.
    pub page_size_cap: u64,
    /// Who made it.
    pub vendor_id: u32,
    /// What the maker calls it.
    pub vendor_part_id: u32,
    /// The maker's version.
    pub hw_ver: u32,
    /// Queue pairs.
    pub max_qp: c_int,
    /// Requests outstanding on a work queue.
    pub max_qp_wr: c_int,
    /// What the device can do.
    pub device_cap_flags: c_uint,
    /// Segments of a request.
    pub max_sge: c_int,
    /// Segments of a READ.
    pub max_sge_rd: c_int,
    /// Completion queues.
    pub max_cq: c_int,
    /// Entries of one.
    pub max_cqe: c_int,
    /// Registrations.
    pub max_mr: c_int,
    /// Protection domains.
    pub max_pd: c_int,
    /// READs and atomics that a queue pair answers at once.
    pub max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    _max_res_rd_atom: c_int,
    /// READs and atomics that a queue pair keeps outstanding.
    pub max_qp_init_rd_atom: c_int,
    _max_ee_init_rd_atom: c_int,
    /// Against whom atomics are atomic.
    pub atomic_cap: c_int,
    _others: [c_int; 14],
    /// Partition keys of a port.
    pub max_pkeys: u16,
    /// How long it takes to acknowledge.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
}

/// How a queue pair is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_qp_init_attr {
    /// The program's own.
    pub qp_context: *mut c_void,
    /// Where its sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where its receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where its receives come from, or null.
    pub srq: *mut ibv_srq,
    /// Its sizes; those it has, which may be more, afterwards.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
    /// Whether every send raises an entry.
    pub sq_sig_all: c_int,
}

/// A piece of registered memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_sge {
    /// Its address, as the registration counts.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The registration's key.
    pub lkey: u32,
}

/// Where at the peer; which member it is depends on the opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_remote {
    /// Of READs and writes.
    pub rdma: ibv_send_rdma,
    /// Of atomics.
    pub atomic: ibv_send_atomic,
    /// Of datagrams.
    pub ud: ibv_send_ud,
}

/// Where a READ or write goes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_send_rdma {
    /// The peer's address.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Where an atomic goes, and its operands.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_send_atomic {
    /// The peer's address.
    pub remote_addr: u64,
    /// What is compared, or added.
    pub compare_add: u64,
    /// What is stored.
    pub swap: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// Where a datagram goes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ibv_send_ud {
    /// The route to the peer's port.
    pub ah: *mut ibv_ah,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// What the peer's queue pair wants to be told.
    pub remote_qkey: u32,
}

/// A request of a send queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    /// The program's own, which the completion carries.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_send_wr,
    /// Its data.
    pub sg_list: *mut ibv_sge,
    /// How many pieces that has.
    pub num_sge: c_int,
    /// `IBV_WR_*`.
    pub opcode: c_int,
    /// `IBV_SEND_*`.
    pub send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub imm_data: u32,
    /// Where at the peer.
    pub wr: ibv_send_remote,
    /// Of XRC: unused.
    pub qp_type: u32,
    /// Of memory windows and segmentation: unused.
    pub _others: [u64; 6],
}

/// A request of a receive queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_recv_wr {
    /// The program's own, which the completion carries.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_recv_wr,
    /// Where the message goes.
    pub sg_list: *mut ibv_sge,
    /// How many pieces that has.
    pub num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_wc {
    /// The request's.
    pub wr_id: u64,
    /// `IBV_WC_*`: how it ended. If not well, little else here means anything.
    pub status: c_int,
    /// What was done.
    pub opcode: c_int,
    /// A code for the vendor's support.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub imm_data: u32,
    /// The queue pair.
    pub qp_num: u32,
    /// The peer's queue pair, of datagrams.
    pub src_qp: u32,
    /// `IBV_WC_WITH_*`: what `imm_data` is.
    pub wc_flags: c_uint,
    /// The partition key's index.
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
        self.status == IBV_WC_SUCCESS
    }

    /// How a request failed, with the maker's own number; `None` if it did not.
    pub fn error(&self) -> Option<(c_int, u32)> {
        (!self.is_valid()).then_some((self.status, self.vendor_err))
    }

    /// What was done.
    pub fn opcode(&self) -> c_int {
        self.opcode
    }

    /// Immediate data in network order, if the request succeeded and brought some.
    pub fn imm_data(&self) -> Option<u32> {
        let brought = self.wc_flags & IBV_WC_WITH_IMM != 0;
        (self.is_valid() && brought).then_some(self.imm_data)
    }
}

impl Default for ibv_wc {
    /// A failure of which nothing is known, which no program takes for a completion.
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
