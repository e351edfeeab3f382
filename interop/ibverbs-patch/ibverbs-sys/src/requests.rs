//! Requests of send and receive queues.

use std::ffi::{c_int, c_uint};

use crate::*;

/// A piece of registered memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_sge {
    /// Its address.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The registration's key.
    pub lkey: u32,
}

/// A request of a send queue. What only other requests than SEND need has no names here.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr {
    /// The program's own, which the completion carries.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_send_wr,
    /// Its data.
    pub sg_list: *mut ibv_sge,
    /// How many pieces that has.
    pub num_sge: c_int,
    /// What is asked for.
    pub opcode: ibv_wr_opcode::Type,
    /// How it is done: [`ibv_send_flags`].
    pub send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub __bindgen_anon_1: u32,
    /// Where at the peer.
    pub wr: [u64; 4],
    /// Of extended connections.
    pub qp_type: u32,
    /// Of memory windows and segments.
    pub __bindgen_anon_2: [u64; 6],
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

lies_as_there! {
    ibv_sge { addr, length, lkey }
    ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1 = imm_data,
        wr, qp_type, __bindgen_anon_2 = _others }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
}
