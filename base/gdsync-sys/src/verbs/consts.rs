//! The numbers of libibverbs.

use std::ffi::{c_int, c_uint, c_void};

/// `ibv_context::abi_compat` of an extended context.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// The answer of an allocator that leaves an object to the provider.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;

/// A port that carries data.
pub const IBV_PORT_ACTIVE: c_int = 4;
/// A port of Ethernet.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// `ibv_port_attr::flags`: nothing goes without a global route header.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1 << 0;

/// A GID of InfiniBand.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// A GID of RoCE by Ethernet frames.
pub const IBV_GID_TYPE_ROCE_V1: u32 = 1;
/// A GID of RoCE by UDP.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// Receives and answers may write.
pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
/// Peers may write.
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
/// Peers may read.
pub const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
/// Peers may do atomics.
pub const IBV_ACCESS_REMOTE_ATOMIC: c_uint = 1 << 3;

/// `ibv_cq_init_attr_ex::flags` is set.
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1 << 0;
/// `ibv_cq_init_attr_ex::parent_domain` is set.
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
/// The NIC does not look whether entries are consumed.
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;

/// A reliable connection.
pub const IBV_QPT_RC: c_int = 2;
/// Unreliable datagrams.
pub const IBV_QPT_UD: c_int = 4;
/// `ibv_qp_init_attr_ex::pd` is set.
pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;

/// Allocators are given.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1 << 0;
/// A context for the allocators is given.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// A queue pair that does nothing.
pub const IBV_QPS_RESET: c_int = 0;
/// One whose receives may be posted.
pub const IBV_QPS_INIT: c_int = 1;
/// One that receives.
pub const IBV_QPS_RTR: c_int = 2;
/// One that receives and sends.
pub const IBV_QPS_RTS: c_int = 3;
/// One in error.
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

/// Writes at the peer.
pub const IBV_WR_RDMA_WRITE: c_int = 0;
/// Writes at the peer and takes a receive there.
pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
/// Sends.
pub const IBV_WR_SEND: c_int = 2;
/// Sends with immediate data.
pub const IBV_WR_SEND_WITH_IMM: c_int = 3;
/// Reads at the peer.
pub const IBV_WR_RDMA_READ: c_int = 4;
/// Compares and swaps at the peer.
pub const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
/// Adds at the peer.
pub const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
/// Sends and invalidates a key of the peer.
pub const IBV_WR_SEND_WITH_INV: c_int = 9;
/// After the READs and atomics before it.
pub const IBV_SEND_FENCE: c_uint = 1 << 0;
/// Raises a completion.
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
/// Raises an event at the peer.
pub const IBV_SEND_SOLICITED: c_uint = 1 << 2;
/// The data are copied as the request is posted; their keys mean nothing.
pub const IBV_SEND_INLINE: c_uint = 1 << 3;
/// A receive was filled by a send.
pub const IBV_WC_RECV: c_int = 128;
/// A receive was taken by a write with immediate data.
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;
/// A global route header lies before a datagram, or what stands for one.
pub const IBV_WC_GRH: c_uint = 1 << 0;
/// There is immediate data.
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;
/// A key was invalidated.
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;
/// Done.
pub const IBV_WC_SUCCESS: c_int = 0;
/// The message does not fit.
pub const IBV_WC_LOC_LEN_ERR: c_int = 1;
/// The request makes no sense.
pub const IBV_WC_LOC_QP_OP_ERR: c_int = 2;
/// A local key is wrong or does not cover the memory.
pub const IBV_WC_LOC_PROT_ERR: c_int = 4;
/// Flushed: the queue pair was in error already.
pub const IBV_WC_WR_FLUSH_ERR: c_int = 5;
/// A window could not be bound.
pub const IBV_WC_MW_BIND_ERR: c_int = 6;
/// The peer's answer makes no sense.
pub const IBV_WC_BAD_RESP_ERR: c_int = 7;
/// Local memory does not allow the access.
pub const IBV_WC_LOC_ACCESS_ERR: c_int = 8;
/// The peer finds the request malformed.
pub const IBV_WC_REM_INV_REQ_ERR: c_int = 9;
/// The peer refuses key, range or access.
pub const IBV_WC_REM_ACCESS_ERR: c_int = 10;
/// The peer failed.
pub const IBV_WC_REM_OP_ERR: c_int = 11;
/// The peer did not answer.
pub const IBV_WC_RETRY_EXC_ERR: c_int = 12;
/// The peer had no receive.
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_int = 13;
/// The peer gave up.
pub const IBV_WC_REM_ABORT_ERR: c_int = 16;
/// Anything else.
pub const IBV_WC_GENERAL_ERR: c_int = 21;
/// A completion queue takes no more entries.
pub const IBV_EVENT_CQ_ERR: c_int = 0;
/// A queue pair failed in a way that no completion tells.
pub const IBV_EVENT_QP_FATAL: c_int = 1;
/// A queue pair refused a malformed request of its peer.
pub const IBV_EVENT_QP_REQ_ERR: c_int = 2;
/// A queue pair refused its peer access to memory.
pub const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
/// A connection could not migrate to its alternate path.
pub const IBV_EVENT_PATH_MIG_ERR: c_int = 7;
/// The device failed, or was removed.
pub const IBV_EVENT_DEVICE_FATAL: c_int = 8;
/// A port is active.
pub const IBV_EVENT_PORT_ACTIVE: c_int = 9;
/// A port is down.
pub const IBV_EVENT_PORT_ERR: c_int = 10;
/// A port has another local identifier.
pub const IBV_EVENT_LID_CHANGE: c_int = 11;
/// A port has other partition keys.
pub const IBV_EVENT_PKEY_CHANGE: c_int = 12;
/// A port has other GIDs.
pub const IBV_EVENT_GID_CHANGE: c_int = 18;
