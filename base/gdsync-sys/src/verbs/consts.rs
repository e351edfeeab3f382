//! Constants of libibverbs.

use std::ffi::{c_int, c_uint, c_void};

/// `ibv_context::abi_compat` of an extended context.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// The return value of an allocator that leaves the allocation to the provider.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;

/// The port state in which a port transfers data.
pub const IBV_PORT_ACTIVE: c_int = 4;
/// The link layer of an Ethernet port.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// `ibv_port_attr::flags`: every packet needs a global route header.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1 << 0;

/// The type of an InfiniBand GID.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// The type of a GID of RoCE v1 (Ethernet frames).
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// The type of a GID of RoCE v2 (UDP).
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Local writes: receives, and responses of READs and atomics.
pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
/// Remote writes.
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
/// Remote READs.
pub const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
/// Remote atomics.
pub const IBV_ACCESS_REMOTE_ATOMIC: c_uint = 1 << 3;

/// `ibv_cq_init_attr_ex::flags` is set.
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
/// `ibv_cq_init_attr_ex::parent_domain` is set.
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
/// The NIC does not check for an overrun of the CQ.
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;

/// A reliable connection (RC).
pub const IBV_QPT_RC: c_int = 2;
/// Unreliable datagrams (UD).
pub const IBV_QPT_UD: c_int = 4;
/// `ibv_qp_init_attr_ex::pd` is set.
pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;

/// The allocator functions are set.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
/// The context of the allocators is set.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// RESET: the QP processes nothing.
pub const IBV_QPS_RESET: c_int = 0;
/// INIT: receives may be posted.
pub const IBV_QPS_INIT: c_int = 1;
/// RTR: the QP receives.
pub const IBV_QPS_RTR: c_int = 2;
/// RTS: the QP receives and sends.
pub const IBV_QPS_RTS: c_int = 3;
/// ERR: the QP is in error.
pub const IBV_QPS_ERR: c_int = 6;

/// `qp_state` is set.
pub const IBV_QP_STATE: c_int = 1 << 0;
/// `qp_access_flags` is set.
pub const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
/// `pkey_index` is set.
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
/// `port_num` is set.
pub const IBV_QP_PORT: c_int = 1 << 5;
/// `qkey` is set.
pub const IBV_QP_QKEY: c_int = 1 << 6;
/// `ah_attr` is set.
pub const IBV_QP_AV: c_int = 1 << 7;
/// `path_mtu` is set.
pub const IBV_QP_PATH_MTU: c_int = 1 << 8;
/// `timeout` is set.
pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
/// `retry_cnt` is set.
pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
/// `rnr_retry` is set.
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
/// `rq_psn` is set.
pub const IBV_QP_RQ_PSN: c_int = 1 << 12;
/// `max_rd_atomic` is set.
pub const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// `min_rnr_timer` is set.
pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// `sq_psn` is set.
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
/// `max_dest_rd_atomic` is set.
pub const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// `dest_qp_num` is set.
pub const IBV_QP_DEST_QPN: c_int = 1 << 20;

/// RDMA WRITE.
pub const IBV_WR_RDMA_WRITE: c_int = 0;
/// RDMA WRITE with immediate data, which consumes a receive of the peer.
pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
/// SEND.
pub const IBV_WR_SEND: c_int = 2;
/// SEND with immediate data.
pub const IBV_WR_SEND_WITH_IMM: c_int = 3;
/// RDMA READ.
pub const IBV_WR_RDMA_READ: c_int = 4;
/// Compare and swap at the peer.
pub const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
/// Fetch and add at the peer.
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
/// SEND that invalidates a key of the peer.
pub const IBV_WR_SEND_WITH_INV: c_int = 9;
/// Fence: the request starts after the earlier READs and atomics are complete.
pub const IBV_SEND_FENCE: c_uint = 1 << 0;
/// The request writes a completion.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// The request raises a completion event at the peer.
pub const IBV_SEND_SOLICITED: c_uint = 1 << 2;
/// Inline: the post copies the data, and the lkeys are ignored.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;
/// A receive was consumed by a SEND.
pub const IBV_WC_RECV: c_int = 128;
/// A receive was consumed by an RDMA WRITE with immediate data.
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;
/// The first 40 bytes of the receive contain the global route header of the datagram, or the IP
/// header that RoCE v2 has in its place.
pub const IBV_WC_GRH: c_uint = 1 << 0;
/// The completion has immediate data.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;
/// A key was invalidated.
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;
/// Success.
pub const IBV_WC_SUCCESS: c_int = 0;
/// The message is longer than the local buffers.
pub const IBV_WC_LOC_LEN_ERR: c_int = 1;
/// The request is invalid.
pub const IBV_WC_LOC_QP_OP_ERR: c_int = 2;
/// The lkey is invalid or does not cover the memory.
pub const IBV_WC_LOC_PROT_ERR: c_int = 4;
/// Flushed: the QP was already in error.
pub const IBV_WC_WR_FLUSH_ERR: c_int = 5;
/// A memory window could not be bound.
pub const IBV_WC_MW_BIND_ERR: c_int = 6;
/// The response of the peer is invalid.
pub const IBV_WC_BAD_RESP_ERR: c_int = 7;
/// The local memory does not permit the access.
pub const IBV_WC_LOC_ACCESS_ERR: c_int = 8;
/// The responder rejects the request as malformed.
pub const IBV_WC_REM_INV_REQ_ERR: c_int = 9;
/// The responder rejects the rkey, the range or the access.
pub const IBV_WC_REM_ACCESS_ERR: c_int = 10;
/// The responder could not complete the request.
pub const IBV_WC_REM_OP_ERR: c_int = 11;
/// The peer did not acknowledge: the transport retries are exhausted.
pub const IBV_WC_RETRY_EXC_ERR: c_int = 12;
/// The peer had no receive posted: the RNR retries are exhausted.
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
/// The peer aborted the operation.
pub const IBV_WC_REM_ABORT_ERR: c_int = 16;
/// Any other error.
pub const IBV_WC_GENERAL_ERR: c_int = 21;
/// A CQ overflowed.
pub const IBV_EVENT_CQ_ERR: c_int = 0;
/// A QP failed, and no completion can report the error.
pub const IBV_EVENT_QP_FATAL: c_int = 1;
/// A QP rejected a malformed request of its peer.
pub const IBV_EVENT_QP_REQ_ERR: c_int = 2;
/// A QP rejected an access of its peer to memory.
pub const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
/// Path migration of a connection failed.
pub const IBV_EVENT_PATH_MIG_ERR: c_int = 7;
/// The device failed, or was removed.
pub const IBV_EVENT_DEVICE_FATAL: c_int = 8;
/// A port is active.
pub const IBV_EVENT_PORT_ACTIVE: c_int = 9;
/// A port is down.
pub const IBV_EVENT_PORT_ERR: c_int = 10;
/// The LID of a port changed.
pub const IBV_EVENT_LID_CHANGE: c_int = 11;
/// The partition keys of a port changed.
pub const IBV_EVENT_PKEY_CHANGE: c_int = 12;
/// The GIDs of a port changed.
pub const IBV_EVENT_GID_CHANGE: c_int = 18;
