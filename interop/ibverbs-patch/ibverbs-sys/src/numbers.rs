//! The numbers of libibverbs: C enums as integers, because a newer library may add values.

use std::ffi::c_uint;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign};

/// A number in network byte order.
pub type __be64 = u64;

/// The kind of a GID entry.
pub type ibv_gid_type = c_uint;
pub use gdsync_sys::verbs::consts::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};

/// C enums: a module for each, with its type and its numbers.
macro_rules! enums {
    ($($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $number:ident = $value:expr,)* })*) => { $(
        $(#[$meta])*
        pub mod $name {
            /// The numbers of this enum, and those of newer libraries.
            pub type Type = std::ffi::c_int;
            $($(#[$of])* pub const $number: Type = $value;)*
        }
    )* };
}

enums! {
    /// The state of a port.
    ibv_port_state {
        /// Set up.
        IBV_PORT_ARMED = 3,
        /// Carries data.
        IBV_PORT_ACTIVE = 4,
    }
    /// The type of a queue pair.
    ibv_qp_type {
        /// A reliable connection.
        IBV_QPT_RC = 2,
        /// An unreliable connection.
        IBV_QPT_UC = 3,
        /// Datagrams.
        IBV_QPT_UD = 4,
        /// Ethernet frames.
        IBV_QPT_RAW_PACKET = 8,
        /// The sending end of an extended reliable connection.
        IBV_QPT_XRC_SEND = 9,
        /// Its receiving end.
        IBV_QPT_XRC_RECV = 10,
        /// Specific to the manufacturer.
        IBV_QPT_DRIVER = 255,
    }
    /// The states of a queue pair.
    ibv_qp_state {
        /// Receives may be posted.
        IBV_QPS_INIT = 1,
        /// It receives.
        IBV_QPS_RTR = 2,
        /// It receives and sends.
        IBV_QPS_RTS = 3,
    }
    /// The operation of a send request.
    ibv_wr_opcode {
        /// A send.
        IBV_WR_SEND = 2,
    }
    /// The operation that completed.
    ibv_wc_opcode {
        /// A send.
        IBV_WC_SEND = 0,
        /// A write.
        IBV_WC_RDMA_WRITE = 1,
        /// A read.
        IBV_WC_RDMA_READ = 2,
        /// A compare-and-swap.
        IBV_WC_COMP_SWAP = 3,
        /// A fetch-and-add.
        IBV_WC_FETCH_ADD = 4,
        /// A memory window was bound.
        IBV_WC_BIND_MW = 5,
        /// A key was invalidated.
        IBV_WC_LOCAL_INV = 6,
        /// A send with segmentation offload.
        IBV_WC_TSO = 7,
        /// An atomic write of a word.
        IBV_WC_ATOMIC_WRITE = 9,
        /// A receive completed by a send. All receives have this bit.
        IBV_WC_RECV = 128,
        /// A receive consumed by a write with immediate data.
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        /// A tag was added.
        IBV_WC_TM_ADD = 130,
        /// A tag was taken away.
        IBV_WC_TM_DEL = 131,
        /// Tag matching is synchronised.
        IBV_WC_TM_SYNC = 132,
        /// A receive matched by a tag.
        IBV_WC_TM_RECV = 133,
        /// A receive without a tag.
        IBV_WC_TM_NO_TAG = 134,
        /// Specific to the manufacturer.
        IBV_WC_DRIVER1 = 135,
        /// Specific to the manufacturer.
        IBV_WC_DRIVER2 = 136,
        /// Specific to the manufacturer.
        IBV_WC_DRIVER3 = 137,
    }
    /// The status of a completed request.
    ibv_wc_status {
        /// Success.
        IBV_WC_SUCCESS = 0,
        /// The message does not fit into the memory of the request.
        IBV_WC_LOC_LEN_ERR = 1,
        /// The request is invalid.
        IBV_WC_LOC_QP_OP_ERR = 2,
        /// Unused.
        IBV_WC_LOC_EEC_OP_ERR = 3,
        /// A local key is wrong or does not cover the memory.
        IBV_WC_LOC_PROT_ERR = 4,
        /// The request was flushed, because the queue pair was in the error state.
        IBV_WC_WR_FLUSH_ERR = 5,
        /// The memory window cannot be bound.
        IBV_WC_MW_BIND_ERR = 6,
        /// The peer sent an invalid response.
        IBV_WC_BAD_RESP_ERR = 7,
        /// A peer's write with immediate data was not allowed by the local memory.
        IBV_WC_LOC_ACCESS_ERR = 8,
        /// The peer does not support the request.
        IBV_WC_REM_INV_REQ_ERR = 9,
        /// The peer's key is wrong or does not allow the access.
        IBV_WC_REM_ACCESS_ERR = 10,
        /// The peer failed.
        IBV_WC_REM_OP_ERR = 11,
        /// The retries are exhausted: the peer does not answer.
        IBV_WC_RETRY_EXC_ERR = 12,
        /// The RNR retries are exhausted: the peer has no receive.
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        /// Unused.
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        /// Unused.
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        /// The peer aborted the operation.
        IBV_WC_REM_ABORT_ERR = 16,
        /// Unused.
        IBV_WC_INV_EECN_ERR = 17,
        /// Unused.
        IBV_WC_INV_EEC_STATE_ERR = 18,
        /// The device failed.
        IBV_WC_FATAL_ERR = 19,
        /// The response timed out.
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        /// Another error.
        IBV_WC_GENERAL_ERR = 21,
        /// A tag matching error.
        IBV_WC_TM_ERR = 22,
        /// The program must complete the rest of a message with tag matching.
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
}

/// Sets of bits: a type for each, with its bits.
macro_rules! bits {
    ($($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $bit:ident = $value:expr,)* })*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Debug, Copy, Clone, Hash, PartialEq, Eq, Default)]
        pub struct $name(
            /// The bits of this set, and those of newer libraries.
            pub c_uint,
        );

        impl $name {
            $($(#[$of])* pub const $bit: $name = $name($value);)*
        }

        impl BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = $name;

            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }

        impl BitAndAssign for $name {
            fn bitand_assign(&mut self, other: $name) {
                self.0 &= other.0;
            }
        }
    )* };
}

bits! {
    /// The accesses that memory, or a queue pair, allows.
    ibv_access_flags {
        /// Local receives and responses may write.
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        /// Peers may write.
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        /// Peers may read.
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        /// Peers may do atomics.
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        /// Memory windows may be bound to it.
        IBV_ACCESS_MW_BIND = 1 << 4,
        /// Addresses begin at 0.
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        /// On-demand paging: pages are made resident when they are used.
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        /// The memory has huge pages.
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// Relaxed ordering: its writes may overtake others.
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }
    /// Options of a send.
    ibv_send_flags {
        /// The request produces a completion.
        IBV_SEND_SIGNALED = 1 << 1,
    }
    /// The fields of an [`ibv_qp_attr`](crate::ibv_qp_attr) that are set.
    ibv_qp_attr_mask {
        /// `qp_state`.
        IBV_QP_STATE = 1 << 0,
        /// `qp_access_flags`.
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        IBV_QP_PKEY_INDEX = 1 << 4,
        /// `port_num`.
        IBV_QP_PORT = 1 << 5,
        /// `ah_attr`.
        IBV_QP_AV = 1 << 7,
        /// `path_mtu`.
        IBV_QP_PATH_MTU = 1 << 8,
        /// `timeout`.
        IBV_QP_TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        IBV_QP_RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        IBV_QP_RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        IBV_QP_RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        /// `min_rnr_timer`.
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        IBV_QP_SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `dest_qp_num`.
        IBV_QP_DEST_QPN = 1 << 20,
    }
}
