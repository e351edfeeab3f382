//! The structures in the layout of the header. Most are those of `gdsync-sys`; a structure of the
//! same layout replaces one in which `ibverbs` uses another field name or a signed C enum.

use std::ffi::{c_int, c_uint, c_void};

use crate::*;

pub use gdsync_sys::verbs::types::{
    ibv_ah_attr, ibv_comp_channel, ibv_device, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mr,
    ibv_pd, ibv_port_attr, ibv_qp_attr, ibv_qp_cap, ibv_recv_wr, ibv_sge, ibv_srq, ibv_wc,
};

/// The part of an [`ibv_port_attr`] that [`ibv_query_port`] writes: its beginning.
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}

/// An open device: the beginning of the structure, which is the only part that is read.
#[repr(C)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// The provider's functions.
    pub ops: ibv_context_ops,
}

/// The provider's functions that programs call directly.
#[repr(C)]
pub struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    /// Polls a completion queue: returns the number of completions, negative for an error.
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int>,
    _before_post_send: [*mut c_void; 13],
    /// Posts sends; stores the first refused one in `bad`.
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    /// Posts receives; stores the first refused one in `bad`.
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    _others: [*mut c_void; 5],
}

/// A completion queue: the beginning of the structure, which is the only part that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its completion channel.
    pub channel: *mut ibv_comp_channel,
    /// A value of the program.
    pub cq_context: *mut c_void,
    /// The kernel's handle.
    pub handle: u32,
    /// The number of its entries, less one.
    pub cqe: c_int,
}

/// A queue pair: the beginning of the structure, which is the only part that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp {
    /// Its device.
    pub context: *mut ibv_context,
    /// A value of the program.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// The completion queue of its sends.
    pub send_cq: *mut ibv_cq,
    /// The completion queue of its receives.
    pub recv_cq: *mut ibv_cq,
    /// The shared receive queue, if it has one.
    pub srq: *mut ibv_srq,
    /// The kernel's handle.
    pub handle: u32,
    /// Its number.
    pub qp_num: u32,
    /// The state that the library last set.
    pub state: ibv_qp_state::Type,
    /// Its type.
    pub qp_type: ibv_qp_type::Type,
}

/// The attributes with which a queue pair is created.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_qp_init_attr {
    /// A value of the program.
    pub qp_context: *mut c_void,
    /// The completion queue of its sends.
    pub send_cq: *mut ibv_cq,
    /// The completion queue of its receives.
    pub recv_cq: *mut ibv_cq,
    /// The shared receive queue, or null.
    pub srq: *mut ibv_srq,
    /// The requested sizes; after the call, the actual ones, which may be larger.
    pub cap: ibv_qp_cap,
    /// Its type.
    pub qp_type: ibv_qp_type::Type,
    /// Whether every send produces a completion.
    pub sq_sig_all: c_int,
}

/// A request of a send queue. Fields that only other requests than SEND use have no names here.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr {
    /// A value of the program, which the completion contains.
    pub wr_id: u64,
    /// The next request, or null.
    pub next: *mut ibv_send_wr,
    /// The scatter/gather list.
    pub sg_list: *mut ibv_sge,
    /// The number of its entries.
    pub num_sge: c_int,
    /// The operation.
    pub opcode: ibv_wr_opcode::Type,
    /// Options: [`ibv_send_flags`].
    pub send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub __bindgen_anon_1: u32,
    /// The target at the peer.
    pub wr: [u64; 4],
    /// Used by extended connections.
    pub qp_type: u32,
    /// Used by memory windows and segmentation.
    pub __bindgen_anon_2: [u64; 6],
}

/// Asserts that a structure has the layout of `gdsync-sys`, whose tests compare it with the header.
macro_rules! lies_as_there {
    ($($kind:ident { $($field:ident $(= $there:ident)?),* $(,)? })*) => { $(
        const _: () = {
            use gdsync_sys::verbs::types::$kind as There;
            assert!(size_of::<$kind>() == size_of::<There>());
            assert!(align_of::<$kind>() == align_of::<There>());
            $(assert!(
                std::mem::offset_of!($kind, $field)
                    == lies_as_there!(@there There $field $($there)?)
            );)*
        };
    )* };
    (@there $kind:ident $field:ident) => { std::mem::offset_of!($kind, $field) };
    (@there $kind:ident $field:ident $there:ident) => { std::mem::offset_of!($kind, $there) };
}

lies_as_there! {
    ibv_context_ops { poll_cq, post_send, post_recv }
    ibv_cq { context, channel, cq_context, handle, cqe }
    ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1 = imm_data,
        wr, qp_type, __bindgen_anon_2 = _others }
}

// Only the beginning is compared.
const _: () = {
    use gdsync_sys::verbs::types::ibv_context as There;
    assert!(std::mem::offset_of!(ibv_context, device) == std::mem::offset_of!(There, device));
    assert!(std::mem::offset_of!(ibv_context, ops) == std::mem::offset_of!(There, ops));
};
