//! The types of libibverbs in the layout of its header. Fields that gdsync uses have names; the
//! rest is padding.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub use super::work::*;

/// An opaque object of the library, identified by its address.
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
    /// A thread domain: its queues are used by one thread at a time.
    ibv_td;
    /// An XRC domain.
    ibv_xrcd;
    /// An address handle: the route of datagrams to a port.
    ibv_ah;
    /// A receive work queue indirection table.
    ibv_rwq_ind_table;
}

/// Two functions that only the library calls.
#[repr(C)]
#[derive(Debug)]
pub struct _ibv_device_ops {
    _dummies: [*mut c_void; 2],
}

/// A device that is not open.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_device {
    /// Private to the library.
    pub _ops: _ibv_device_ops,
    /// `IBV_NODE_CA` for NICs.
    pub node_type: c_int,
    /// `IBV_TRANSPORT_IB` for devices with the transport of InfiniBand.
    pub transport_type: c_int,
    /// The name of the kernel device, such as `mlx5_0`.
    pub name: [c_char; 64],
    /// The name of the verbs device, such as `uverbs0`.
    pub dev_name: [c_char; 64],
    /// The sysfs path of the verbs device.
    pub dev_path: [c_char; 256],
    /// The sysfs path of the device.
    pub ibdev_path: [c_char; 256],
}

/// The old operations of the provider, which inline verbs call directly.
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

/// An open device.
#[repr(C)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// The operations of the provider.
    pub ops: ibv_context_ops,
    /// The descriptor for commands.
    pub cmd_fd: c_int,
    /// The descriptor for asynchronous events.
    pub async_fd: c_int,
    /// The number of completion vectors.
    pub num_comp_vectors: c_int,
    /// Private to the library.
    pub mutex: libc::pthread_mutex_t,
    /// [`VERBS_ABI_IS_EXTENDED`](super::consts::VERBS_ABI_IS_EXTENDED) if this is the end of a
    /// [`verbs_context`].
    pub abi_compat: *mut c_void,
}

/// The extended context, which ends with an [`ibv_context`]. New fields are added at its front:
/// `sz` is its size, counted back from the end.
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
    /// The size of the extended context in bytes.
    pub sz: usize,
    /// The context that programs use.
    pub context: ibv_context,
}

/// The object of an asynchronous event; the event's type selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    /// The CQ, in events of CQs.
    pub cq: *mut ibv_cq,
    /// The QP, in events of QPs.
    pub qp: *mut ibv_qp,
    /// The port, in events of ports.
    pub port_num: c_int,
}

/// An asynchronous event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    /// The object of the event.
    pub element: ibv_async_event_element,
    /// `IBV_EVENT_*`.
    pub event_type: c_int,
}

/// The attributes of a port.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_port_attr {
    /// The port state, `IBV_PORT_*`.
    pub state: c_int,
    /// The largest supported MTU, as `IBV_MTU_*`.
    pub max_mtu: c_uint,
    /// The active MTU.
    pub active_mtu: c_uint,
    /// The length of the GID table.
    pub gid_tbl_len: c_int,
    /// The capabilities of the port.
    pub port_cap_flags: u32,
    /// The maximal message length in bytes.
    pub max_msg_sz: u32,
    /// The count of packets with a wrong partition key.
    pub bad_pkey_cntr: u32,
    /// The count of packets with a wrong queue key.
    pub qkey_viol_cntr: u32,
    /// The length of the partition key table.
    pub pkey_tbl_len: u16,
    /// The LID of the port.
    pub lid: u16,
    /// The LID of the subnet manager.
    pub sm_lid: u16,
    /// The LID mask count: the number of LID bits that select a path.
    pub lmc: u8,
    /// The maximal number of virtual lanes.
    pub max_vl_num: u8,
    /// The service level of the subnet manager.
    pub sm_sl: u8,
    /// The subnet's propagation delay.
    pub subnet_timeout: u8,
    /// The initialisation type that the subnet manager set.
    pub init_type_reply: u8,
    /// The active link width.
    pub active_width: u8,
    /// The active speed of a lane.
    pub active_speed: u8,
    /// The physical state.
    pub phys_state: u8,
    /// `IBV_LINK_LAYER_*`.
    pub link_layer: u8,
    /// Further flags.
    pub flags: u8,
    /// Further capabilities of the port.
    pub port_cap_flags2: u16,
}

/// A GID: subnet prefix and interface, each in network order. Its alignment is that of bytes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// Its bytes.
    pub raw: [u8; 16],
}

/// An entry of a port's GID table.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_gid_entry {
    /// The GID.
    pub gid: ibv_gid,
    /// Its index in the table.
    pub gid_index: u32,
    /// The port.
    pub port_num: u32,
    /// `IBV_GID_TYPE_*`.
    pub gid_type: u32,
    /// The index of the network interface.
    pub ndev_ifindex: u32,
}

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_pd {
    /// Its context.
    pub context: *mut ibv_context,
    /// The kernel's handle.
    pub handle: u32,
}

/// A memory region (MR).
#[repr(C)]
#[derive(Debug)]
pub struct ibv_mr {
    /// Its context.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// The address of the memory.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub length: usize,
    /// The kernel's handle.
    pub handle: u32,
    /// The lkey, for local requests.
    pub lkey: u32,
    /// The rkey, for requests of peers.
    pub rkey: u32,
}

/// A CQ: the beginning of the structure, the only part that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_cq {
    /// Its context.
    pub context: *mut ibv_context,
    /// Its completion channel.
    pub channel: *mut ibv_comp_channel,
    /// The user's context pointer.
    pub cq_context: *mut c_void,
    /// The kernel's handle.
    pub handle: u32,
    /// The index of its last entry: the number of entries less one.
    pub cqe: c_int,
}

/// A QP: the beginning of the structure, the only part that is read.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_qp {
    /// Its context.
    pub context: *mut ibv_context,
    /// The user's context pointer.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// The CQ of its sends.
    pub send_cq: *mut ibv_cq,
    /// The CQ of its receives.
    pub recv_cq: *mut ibv_cq,
    /// Its SRQ, or null.
    pub srq: *mut ibv_srq,
    /// The kernel's handle.
    pub handle: u32,
    /// The QP number.
    pub qp_num: u32,
    /// The state that the library has recorded.
    pub state: c_int,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
}

/// The attributes of a new CQ.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_cq_init_attr_ex {
    /// The minimal number of entries.
    pub cqe: u32,
    /// The user's context pointer.
    pub cq_context: *mut c_void,
    /// The completion channel, or null.
    pub channel: *mut ibv_comp_channel,
    /// The completion vector.
    pub comp_vector: u32,
    /// The optional fields of completions.
    pub wc_flags: u64,
    /// `IBV_CQ_INIT_ATTR_MASK_*`: the valid fields below.
    pub comp_mask: u32,
    /// `IBV_CREATE_CQ_ATTR_*`.
    pub flags: u32,
    /// A parent domain with allocators.
    pub parent_domain: *mut ibv_pd,
}

/// The capacities of a QP.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_qp_cap {
    /// The maximal number of outstanding sends.
    pub max_send_wr: u32,
    /// The maximal number of outstanding receives.
    pub max_recv_wr: u32,
    /// The maximal number of SGEs of a send.
    pub max_send_sge: u32,
    /// The maximal number of SGEs of a receive.
    pub max_recv_sge: u32,
    /// The maximal number of inline bytes.
    pub max_inline_data: u32,
}

/// The configuration of receive side scaling.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_rx_hash_conf {
    /// The hash function.
    pub rx_hash_function: u8,
    /// The length of the hash key in bytes.
    pub rx_hash_key_len: u8,
    /// The hash key.
    pub rx_hash_key: *mut u8,
    /// The hashed header fields.
    pub rx_hash_fields_mask: u64,
}

/// The attributes of a new QP.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_qp_init_attr_ex {
    /// The user's context pointer.
    pub qp_context: *mut c_void,
    /// The CQ of its sends.
    pub send_cq: *mut ibv_cq,
    /// The CQ of its receives.
    pub recv_cq: *mut ibv_cq,
    /// Its SRQ, or null.
    pub srq: *mut ibv_srq,
    /// Its capacities.
    pub cap: ibv_qp_cap,
    /// `IBV_QPT_*`.
    pub qp_type: c_int,
    /// Whether every send is signaled.
    pub sq_sig_all: c_int,
    /// `IBV_QP_INIT_ATTR_*`: the valid fields below.
    pub comp_mask: u32,
    /// Its protection domain or parent domain.
    pub pd: *mut ibv_pd,
    /// Its XRC domain.
    pub xrcd: *mut ibv_xrcd,
    /// `IBV_QP_CREATE_*`.
    pub create_flags: u32,
    /// The maximal header length of segmented sends (TSO) in bytes.
    pub max_tso_header: u16,
    /// The receive work queue indirection table.
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    /// The configuration of receive side scaling.
    pub rx_hash_conf: ibv_rx_hash_conf,
    /// The source QP number, for underlay QPs.
    pub source_qpn: u32,
    /// The requested functions for building sends.
    pub send_ops_flags: u64,
}

/// The global route of an address.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_global_route {
    /// The GID of the peer.
    pub dgid: ibv_gid,
    /// The flow label.
    pub flow_label: u32,
    /// The index of the local GID in the port's table.
    pub sgid_index: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
}

/// An address vector.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_ah_attr {
    /// The global route, if `is_global`.
    pub grh: ibv_global_route,
    /// The LID of the peer.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The source path bits of the local LID.
    pub src_path_bits: u8,
    /// The static rate.
    pub static_rate: u8,
    /// Whether the address has a global route.
    pub is_global: u8,
    /// The local port.
    pub port_num: u8,
}

/// The attributes of a QP.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_qp_attr {
    /// The new state, `IBV_QPS_*`.
    pub qp_state: c_int,
    /// The assumed current state.
    pub cur_qp_state: c_int,
    /// The path MTU, as `IBV_MTU_*`.
    pub path_mtu: c_uint,
    /// The path migration state.
    pub path_mig_state: c_int,
    /// The queue key (Q_Key).
    pub qkey: u32,
    /// The packet sequence number of the first received packet.
    pub rq_psn: u32,
    /// The packet sequence number of the first sent packet.
    pub sq_psn: u32,
    /// The QP number of the peer.
    pub dest_qp_num: u32,
    /// The permitted remote accesses: `IBV_ACCESS_*`.
    pub qp_access_flags: c_uint,
    /// Its capacities.
    pub cap: ibv_qp_cap,
    /// The address of the peer.
    pub ah_attr: ibv_ah_attr,
    /// The address of the peer on the alternate path.
    pub alt_ah_attr: ibv_ah_attr,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The same index for the alternate path.
    pub alt_pkey_index: u16,
    /// Whether an event reports that the send queue is drained (SQD).
    pub en_sqd_async_notify: u8,
    /// Whether the send queue is draining.
    pub sq_draining: u8,
    /// The maximal number of outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// The maximal number of outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// The minimal RNR NAK timer, as the peer receives it.
    pub min_rnr_timer: u8,
    /// The local port.
    pub port_num: u8,
    /// The acknowledgement timeout.
    pub timeout: u8,
    /// The retry count.
    pub retry_cnt: u8,
    /// The RNR retry count.
    pub rnr_retry: u8,
    /// The port of the alternate path.
    pub alt_port_num: u8,
    /// The acknowledgement timeout of the alternate path.
    pub alt_timeout: u8,
    /// The rate limit of sends in kbit/s.
    pub rate_limit: u32,
}

/// The attributes of a new thread domain.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_td_init_attr {
    /// 0.
    pub comp_mask: u32,
}

/// Allocates memory for an object of a parent domain; `resource_type` is the kind of memory. Null
/// refuses the object. [`IBV_ALLOCATOR_USE_DEFAULT`](super::consts::IBV_ALLOCATOR_USE_DEFAULT)
/// leaves the allocation to the provider.
pub type ParentAlloc = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void;

/// Frees memory of the allocator.
pub type ParentFree = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    memory: *mut c_void,
    resource_type: u64,
);

/// The attributes of a new parent domain.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_parent_domain_init_attr {
    /// The protection domain.
    pub pd: *mut ibv_pd,
    /// The thread domain, or null.
    pub td: *mut ibv_td,
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_*`: the valid fields below.
    pub comp_mask: u32,
    /// The allocator of objects' memory.
    pub alloc: Option<ParentAlloc>,
    /// The function that frees it.
    pub free: Option<ParentFree>,
    /// The context pointer of both functions.
    pub pd_context: *mut c_void,
}
