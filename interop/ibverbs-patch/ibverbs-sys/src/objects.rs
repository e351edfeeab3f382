//! The structures, as the header lays them out: those of `gdsync-sys`, and where `ibverbs` names a
//! field otherwise, or an enum of C is signed there, one of the same layout.

use std::ffi::{c_int, c_uint, c_void};

use crate::*;

pub use gdsync_sys::verbs::types::{
    ibv_ah_attr, ibv_comp_channel, ibv_device, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mr,
    ibv_pd, ibv_port_attr, ibv_qp_attr, ibv_qp_cap, ibv_recv_wr, ibv_sge, ibv_srq, ibv_wc,
};

/// What [`ibv_query_port`] writes: the beginning of an [`ibv_port_attr`].
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}

/// An opened device: its beginning, which is all that is read.
#[repr(C)]
pub struct ibv_context {
    /// What was opened.
    pub device: *mut ibv_device,
    /// The provider's functions.
    pub ops: ibv_context_ops,
}

/// The provider's functions that programs call directly.
#[repr(C)]
pub struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    /// Takes completions off a queue: how many there were, negative for an error.
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int>,
    _before_post_send: [*mut c_void; 13],
    /// Posts sends; the first one refused is left in `bad`.
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    /// Posts receives; the first one refused is left in `bad`.
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    _others: [*mut c_void; 5],
}

/// A completion queue: its beginning, which is all that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its channel.
    pub channel: *mut ibv_comp_channel,
    /// The program's own.
    pub cq_context: *mut c_void,
    /// The kernel's handle.
    pub handle: u32,
    /// Its entries, less one.
    pub cqe: c_int,
}

/// A queue pair: its beginning, which is all that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp {
    /// Its device.
    pub context: *mut ibv_context,
    /// The program's own.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Where its sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where its receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where its receives come from, if not from its own queue.
    pub srq: *mut ibv_srq,
    /// The kernel's handle.
    pub handle: u32,
    /// Its number.
    pub qp_num: u32,
    /// Its state, as far as the library knows.
    pub state: ibv_qp_state::Type,
    /// What kind it is.
    pub qp_type: ibv_qp_type::Type,
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
    /// What kind it is.
    pub qp_type: ibv_qp_type::Type,
    /// Whether every send raises a completion.
    pub sq_sig_all: c_int,
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

/// Asserts that a structure lies as `gdsync-sys` has it, whose tests compare with the header.
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

// Its beginning alone.
const _: () = {
    use gdsync_sys::verbs::types::ibv_context as There;
    assert!(std::mem::offset_of!(ibv_context, device) == std::mem::offset_of!(There, device));
    assert!(std::mem::offset_of!(ibv_context, ops) == std::mem::offset_of!(There, ops));
};
