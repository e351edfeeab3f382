//! The types of libibverbs as its header lays them out: what is used of them by name, the rest
//! as room.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub use super::work::*;

/// An opaque object of the library, known by its address alone.
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
    /// A shared receive queue.
    ibv_srq;
    /// A thread domain: queues of which one thread at a time makes use.
    ibv_td;
    /// An XRC domain.
    ibv_xrcd;
    /// An address handle: the route of datagrams to a port.
    ibv_ah;
    /// A table of receive work queues.
    ibv_rwq_ind_table;
}

/// Two functions that only the library calls.
#[repr(C)]
#[derive(Debug)]
pub struct _ibv_device_ops {
    _dummies: [*mut c_void; 2],
}

/// A device, before it is opened.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_device {
    /// The library's own.
    pub _ops: _ibv_device_ops,
    /// `IBV_NODE_CA` for NICs.
    pub node_type: c_int,
    /// `IBV_TRANSPORT_IB` for what speaks InfiniBand's transport.
    pub transport_type: c_int,
    /// The kernel's name, such as `mlx5_0`.
    pub name: [c_char; 64],
    /// The name of its verbs device, such as `uverbs0`.
    pub dev_name: [c_char; 64],
    /// Where sysfs has the verbs device.
    pub dev_path: [c_char; 256],
    /// Where sysfs has the device.
    pub ibdev_path: [c_char; 256],
}

/// The provider's functions that programs call directly, among those of old.
#[repr(C)]
pub struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    /// See [`poll_cq`](super::Ibverbs::poll_cq).
    pub poll_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int>,
    /// See [`req_notify_cq`](super::Ibverbs::req_notify_cq).
    pub req_notify_cq:
        Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
    _before_post_send: [*mut c_void; 12],
    /// See [`post_send`](super::Ibverbs::post_send).
    pub post_send: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad: *mut *mut ibv_send_wr,
        ) -> c_int,
    >,
    /// See [`post_recv`](super::Ibverbs::post_recv).
    pub post_recv: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad: *mut *mut ibv_recv_wr,
        ) -> c_int,
    >,
    _others: [*mut c_void; 5],
}

/// An opened device.
#[repr(C)]
pub struct ibv_context {
    /// What was opened.
    pub device: *mut ibv_device,
    /// The provider's functions.
    pub ops: ibv_context_ops,
    /// The descriptor of its commands.
    pub cmd_fd: c_int,
    /// The descriptor on which asynchronous events are read.
    pub async_fd: c_int,
    /// Completion vectors.
    pub num_comp_vectors: c_int,
    /// The library's own.
    pub mutex: libc::pthread_mutex_t,
    /// [`VERBS_ABI_IS_EXTENDED`](super::consts::VERBS_ABI_IS_EXTENDED) if this is the end of a
    /// [`verbs_context`].
    pub abi_compat: *mut c_void,
}

/// What providers of today put before their [`ibv_context`]. It grows at its front: `sz` says
/// how much of it there is, counted from the end.
#[repr(C)]
pub struct verbs_context {
    /// See [`ibv_query_port`](super::Ibverbs::query_port).
    pub query_port: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port: u8,
            attr: *mut ibv_port_attr,
            len: usize,
        ) -> c_int,
    >,
    _before_parent_domain: [*mut c_void; 13],
    /// See [`alloc_parent_domain`](super::Ibverbs::alloc_parent_domain).
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    /// See [`dealloc_td`](super::Ibverbs::dealloc_td).
    pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
    /// See [`alloc_td`](super::Ibverbs::alloc_td).
    pub alloc_td: Option<
        unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td,
    >,
    _others: [*mut c_void; 22],
    /// Bytes that the provider knows of this.
    pub sz: usize,
    /// The context that programs hold.
    pub context: ibv_context,
}

/// What an asynchronous event names, by its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    /// Of events of completion queues.
    pub cq: *mut ibv_cq,
    /// Of events of queue pairs.
    pub qp: *mut ibv_qp,
    /// Of events of ports.
    pub port_num: c_int,
}

/// An asynchronous event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    /// What it names.
    pub element: ibv_async_event_element,
    /// `IBV_EVENT_*`.
    pub event_type: c_int,
}

/// What a port is like.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_port_attr {
    /// `IBV_PORT_*`.
    pub state: c_int,
    /// The largest packet it can be set to, as verbs number it.
    pub max_mtu: c_uint,
    /// The largest packet now.
    pub active_mtu: c_uint,
    /// Entries of its table of GIDs.
    pub gid_tbl_len: c_int,
    /// What the port can do.
    pub port_cap_flags: u32,
    /// The longest message in bytes.
    pub max_msg_sz: u32,
    /// Packets with a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// Packets with a wrong queue key.
    pub qkey_viol_cntr: u32,
    /// Entries of its table of partition keys.
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
    /// `IBV_LINK_LAYER_*`.
    pub link_layer: u8,
    /// Further properties.
    pub flags: u8,
    /// What else the port can do.
    pub port_cap_flags2: u16,
}

/// A GID: subnet prefix and interface, each in network order. Its alignment is that of bytes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// Its bytes.
    pub raw: [u8; 16],
}

/// An entry of a port's table of GIDs.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_gid_entry {
    /// The identifier.
    pub gid: ibv_gid,
    /// Its index.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// `IBV_GID_TYPE_*`.
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
    pub state: c_int,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
}

/// How a completion queue is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_cq_init_attr_ex {
    /// Entries at least.
    pub cqe: u32,
    /// The program's own.
    pub cq_context: *mut c_void,
    /// Where events go, or null.
    pub channel: *mut ibv_comp_channel,
    /// The vector that raises them.
    pub comp_vector: u32,
    /// What entries are to say beyond the usual.
    pub wc_flags: u64,
    /// `IBV_CQ_INIT_ATTR_MASK_*`: which of the fields below are set.
    pub comp_mask: u32,
    /// `IBV_CREATE_CQ_ATTR_*`.
    pub flags: u32,
    /// A parent domain, for its allocators.
    pub parent_domain: *mut ibv_pd,
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

/// How received packets are spread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_rx_hash_conf {
    /// Which function.
    pub rx_hash_function: u8,
    /// Bytes of the key.
    pub rx_hash_key_len: u8,
    /// The key.
    pub rx_hash_key: *mut u8,
    /// What is hashed.
    pub rx_hash_fields_mask: u64,
}

/// How a queue pair is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_qp_init_attr_ex {
    /// The program's own.
    pub qp_context: *mut c_void,
    /// Where its sends complete.
    pub send_cq: *mut ibv_cq,
    /// Where its receives complete.
    pub recv_cq: *mut ibv_cq,
    /// Where its receives come from, or null.
    pub srq: *mut ibv_srq,
    /// Its sizes.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
    /// Whether every send raises an entry.
    pub sq_sig_all: c_int,
    /// `IBV_QP_INIT_ATTR_*`: which of the fields below are set.
    pub comp_mask: u32,
    /// Its protection or parent domain.
    pub pd: *mut ibv_pd,
    /// Its XRC domain.
    pub xrcd: *mut ibv_xrcd,
    /// `IBV_QP_CREATE_*`.
    pub create_flags: u32,
    /// The longest header of segmented sends.
    pub max_tso_header: u16,
    /// Where packets are spread to.
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    /// How packets are spread.
    pub rx_hash_conf: ibv_rx_hash_conf,
    /// The source's number, for underlays.
    pub source_qpn: u32,
    /// Which builders of sends are to be had.
    pub send_ops_flags: u64,
}

/// The global part of an address.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_global_route {
    /// The peer's identifier.
    pub dgid: ibv_gid,
    /// The flow.
    pub flow_label: u32,
    /// The index of the own identifier in the port's table.
    pub sgid_index: u8,
    /// Routers on the path, at most.
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
    /// `IBV_QPS_*`.
    pub qp_state: c_int,
    /// The state it is thought to be in.
    pub cur_qp_state: c_int,
    /// The largest packet, as verbs number it.
    pub path_mtu: c_uint,
    /// The state of its second path.
    pub path_mig_state: c_int,
    /// The queue key.
    pub qkey: u32,
    /// The number of the first packet that comes.
    pub rq_psn: u32,
    /// The number of the first packet that goes.
    pub sq_psn: u32,
    /// The peer's number.
    pub dest_qp_num: u32,
    /// What peers may do: `IBV_ACCESS_*`.
    pub qp_access_flags: c_uint,
    /// Its sizes.
    pub cap: ibv_qp_cap,
    /// Where the peer is.
    pub ah_attr: ibv_ah_attr,
    /// Where it is by the second path.
    pub alt_ah_attr: ibv_ah_attr,
    /// The index of the partition key in the port's table.
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

/// How a thread domain is made.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_td_init_attr {
    /// 0.
    pub comp_mask: u32,
}

/// Gives memory for an object of a parent domain; `resource_type` says for what. Null refuses,
/// [`IBV_ALLOCATOR_USE_DEFAULT`](super::consts::IBV_ALLOCATOR_USE_DEFAULT) leaves it to the
/// provider.
pub type ParentAlloc = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void;

/// Takes such memory back.
pub type ParentFree = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    memory: *mut c_void,
    resource_type: u64,
);

/// How a parent domain is made.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_parent_domain_init_attr {
    /// The protection domain.
    pub pd: *mut ibv_pd,
    /// The thread domain, or null.
    pub td: *mut ibv_td,
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_*`: which of the fields below are set.
    pub comp_mask: u32,
    /// Where objects' memory comes from.
    pub alloc: Option<ParentAlloc>,
    /// Where it goes.
    pub free: Option<ParentFree>,
    /// What both are handed.
    pub pd_context: *mut c_void,
}
