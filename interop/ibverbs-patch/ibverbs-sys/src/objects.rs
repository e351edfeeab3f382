//! Devices, ports, domains, registrations, queues: their structures as the header lays them out.

use std::ffi::{c_int, c_uint, c_void};

use crate::*;

/// Objects of the library that are known by their address alone.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident;)*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )* };
}

opaque! {
    /// A device, before it is opened.
    ibv_device;
    /// A channel for completion events.
    ibv_comp_channel;
    /// A shared receive queue.
    ibv_srq;
    /// What [`ibv_query_port`] writes: the beginning of an [`ibv_port_attr`].
    _compat_ibv_port_attr;
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

/// What a port is like.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_port_attr {
    /// How it is.
    pub state: ibv_port_state::Type,
    /// The largest packet it can be set to.
    pub max_mtu: ibv_mtu,
    /// The largest packet now.
    pub active_mtu: ibv_mtu,
    /// Places in its table of GIDs.
    pub gid_tbl_len: c_int,
    /// What it can do.
    pub port_cap_flags: u32,
    /// The longest message in bytes.
    pub max_msg_sz: u32,
    /// Packets with a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// Packets with a wrong queue key.
    pub qkey_viol_cntr: u32,
    /// Places in its table of partition keys.
    pub pkey_tbl_len: u16,
    /// Its local identifier.
    pub lid: u16,
    /// That of the subnet manager.
    pub sm_lid: u16,
    /// Bits of `lid` that choose a path.
    pub lmc: u8,
    /// Virtual lanes.
    pub max_vl_num: u8,
    /// The service level to the subnet manager.
    pub sm_sl: u8,
    /// The subnet's propagation delay.
    pub subnet_timeout: u8,
    /// What the subnet manager set.
    pub init_type_reply: u8,
    /// Lanes.
    pub active_width: u8,
    /// Speed of a lane.
    pub active_speed: u8,
    /// The physical state.
    pub phys_state: u8,
    /// InfiniBand (1) or Ethernet (2).
    pub link_layer: u8,
    /// Further properties.
    pub flags: u8,
    /// What else it can do.
    pub port_cap_flags2: u16,
}

/// A GID.
///
/// Its alignment is that of bytes: `ibverbs` looks at its own bytes as one of these.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    /// Subnet prefix and interface, each in network order.
    pub raw: [u8; 16],
}

impl Default for ibv_gid {
    fn default() -> ibv_gid {
        ibv_gid { raw: [0; 16] }
    }
}

impl std::fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: the only member, of which any bytes are a value.
        write!(f, "{:02x?}", unsafe { self.raw })
    }
}

/// An entry of a device's table of GIDs.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_gid_entry {
    /// The identifier.
    pub gid: ibv_gid,
    /// Its place.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// An [`ibv_gid_type`].
    pub gid_type: u32,
    /// The network interface.
    pub ndev_ifindex: u32,
}

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_pd {
    /// Its device.
    pub context: *mut ibv_context,
    /// The kernel's handle.
    pub handle: u32,
}

/// A registration.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mr {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// What was registered.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub length: usize,
    /// The kernel's handle.
    pub handle: u32,
    /// The key for requests of this side.
    pub lkey: u32,
    /// The key for requests of peers.
    pub rkey: u32,
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

/// Sizes of a queue pair.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_qp_cap {
    /// Sends outstanding.
    pub max_send_wr: u32,
    /// Receives outstanding.
    pub max_recv_wr: u32,
    /// Segments of a send.
    pub max_send_sge: u32,
    /// Segments of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
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

/// The global part of an address.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_global_route {
    /// The peer's identifier.
    pub dgid: ibv_gid,
    /// The flow.
    pub flow_label: u32,
    /// The place of the own identifier in the port's table.
    pub sgid_index: u8,
    /// Routers on the way, at most.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
}

/// An address.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_ah_attr {
    /// The global part, if `is_global`.
    pub grh: ibv_global_route,
    /// The peer's local identifier.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The path among those of the own port.
    pub src_path_bits: u8,
    /// The rate.
    pub static_rate: u8,
    /// Whether there is a global part.
    pub is_global: u8,
    /// The own port.
    pub port_num: u8,
}

/// What a queue pair is set to.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_qp_attr {
    /// The state.
    pub qp_state: ibv_qp_state::Type,
    /// The state it is thought to be in.
    pub cur_qp_state: ibv_qp_state::Type,
    /// The largest packet.
    pub path_mtu: ibv_mtu,
    /// The state of its second path.
    pub path_mig_state: c_uint,
    /// The queue key.
    pub qkey: u32,
    /// The number of the first packet that comes.
    pub rq_psn: u32,
    /// The number of the first packet that goes.
    pub sq_psn: u32,
    /// The peer's number.
    pub dest_qp_num: u32,
    /// What peers may do: [`ibv_access_flags`].
    pub qp_access_flags: c_uint,
    /// Its sizes.
    pub cap: ibv_qp_cap,
    /// Where the peer is.
    pub ah_attr: ibv_ah_attr,
    /// Where it is by the second path.
    pub alt_ah_attr: ibv_ah_attr,
    /// The place of the partition key in the port's table.
    pub pkey_index: u16,
    /// The same for the second path.
    pub alt_pkey_index: u16,
    /// Whether an event tells that it is drained.
    pub en_sqd_async_notify: u8,
    /// Whether it drains.
    pub sq_draining: u8,
    /// Reads and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Reads and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits that found no receive.
    pub min_rnr_timer: u8,
    /// The own port.
    pub port_num: u8,
    /// How long an answer is waited for.
    pub timeout: u8,
    /// How often is asked again.
    pub retry_cnt: u8,
    /// How often is asked again where there was no receive.
    pub rnr_retry: u8,
    /// The port of the second path.
    pub alt_port_num: u8,
    /// The time limit of the second path.
    pub alt_timeout: u8,
    /// The most it sends, in kbit/s.
    pub rate_limit: u32,
}

lies_as_there! {
    ibv_context_ops { poll_cq, post_send, post_recv }
    ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
        bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl,
        subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
        flags, port_cap_flags2 }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_pd { context, handle }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_cq { context, channel, cq_context, handle, cqe }
    ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
}

// Its beginning alone.
const _: () = {
    use gdsync_sys::verbs::types::ibv_context as There;
    assert!(std::mem::offset_of!(ibv_context, device) == std::mem::offset_of!(There, device));
    assert!(std::mem::offset_of!(ibv_context, ops) == std::mem::offset_of!(There, ops));
};
