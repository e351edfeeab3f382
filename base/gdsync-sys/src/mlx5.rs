//! Direct verbs of ConnectX NICs: [`Mlx5`], the table of libmlx5.so.1.

#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::verbs::types::*;

crate::dl_api! {
    /// The functions of libmlx5.
    ///
    /// It has to be the library that libibverbs loads as the NIC's provider.
    ///
    /// # Safety
    /// Every function is as its manual page has it; pointers must be valid, objects alive.
    pub struct Mlx5("mlx5 direct verbs") {
        sonames: ["libmlx5.so.1"],
        env: "GDS_MLX5_LIB",
        required {
            /// Whether the device is one of this library's.
            "MLX5_1.8" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
            /// Makes a completion queue; null and `errno` if it cannot.
            "MLX5_1.1" fn mlx5dv_create_cq(
                context: *mut ibv_context,
                attr: *mut ibv_cq_init_attr_ex,
                own: *mut mlx5dv_cq_init_attr,
            ) -> *mut ibv_cq;
            /// Makes a queue pair; null and `errno` if it cannot.
            "MLX5_1.3" fn mlx5dv_create_qp(
                context: *mut ibv_context,
                attr: *mut ibv_qp_init_attr_ex,
                own: *mut mlx5dv_qp_init_attr,
            ) -> *mut ibv_qp;
            /// Says where objects lie; `kinds` is of `MLX5DV_OBJ_*`.
            "MLX5_1.2" fn mlx5dv_init_obj(object: *mut mlx5dv_obj, kinds: u64) -> c_int;
        }
        optional {}
    }
}

impl Mlx5 {
    /// Where a queue pair lies, by [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Errors
    /// What that answers.
    ///
    /// # Safety
    /// A live queue pair of this library's.
    pub unsafe fn qp(&self, qp: *mut ibv_qp) -> Result<mlx5dv_qp, c_int> {
        let none = mlx5dv_ring {
            buf: ptr::null_mut(),
            wqe_cnt: 0,
            stride: 0,
        };
        let mut out = mlx5dv_qp {
            dbrec: ptr::null_mut(),
            sq: none,
            rq: none,
            bf_reg: ptr::null_mut(),
            bf_size: 0,
            comp_mask: 0,
            uar_mmap_offset: 0,
            numbers: [0; 4],
            tir_icm_addr: 0,
        };
        let mut question = mlx5dv_obj::default();
        question.qp.object = qp;
        question.qp.out = &mut out;
        // SAFETY: a live queue pair, as the caller says, and memory to write to.
        match unsafe { (self.mlx5dv_init_obj)(&mut question, MLX5DV_OBJ_QP) } {
            0 => Ok(out),
            answer => Err(answer),
        }
    }

    /// Where a completion queue lies, by [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Errors
    /// What that answers.
    ///
    /// # Safety
    /// A live completion queue of this library's.
    pub unsafe fn cq(&self, cq: *mut ibv_cq) -> Result<mlx5dv_cq, c_int> {
        let mut out = mlx5dv_cq {
            buf: ptr::null_mut(),
            dbrec: ptr::null_mut(),
            cqe_cnt: 0,
            cqe_size: 0,
            cq_uar: ptr::null_mut(),
            cqn: 0,
            comp_mask: 0,
        };
        let mut question = mlx5dv_obj::default();
        question.cq.object = cq;
        question.cq.out = &mut out;
        // SAFETY: a live completion queue, as the caller says, and memory to write to.
        match unsafe { (self.mlx5dv_init_obj)(&mut question, MLX5DV_OBJ_CQ) } {
            0 => Ok(out),
            answer => Err(answer),
        }
    }
}

/// Memory of a queue pair's rings.
pub const MLX5DV_RES_TYPE_QP: u64 = 1 << 32 | 1;
/// Memory of a doorbell record.
pub const MLX5DV_RES_TYPE_DBR: u64 = 1 << 32 | 3;
/// Memory of a completion queue.
pub const MLX5DV_RES_TYPE_CQ: u64 = 1 << 32 | 5;

/// `mlx5dv_cq_init_attr::cqe_size` is set.
pub const MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE: u64 = 1 << 2;
/// `mlx5dv_qp_init_attr::create_flags` is set.
pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: u64 = 1 << 0;
/// Small messages are not put into completion entries.
pub const MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;

/// The queue pair is asked for.
pub const MLX5DV_OBJ_QP: u64 = 1 << 0;
/// The completion queue is asked for.
pub const MLX5DV_OBJ_CQ: u64 = 1 << 1;

/// The address handle is asked for.
pub const MLX5DV_OBJ_AH: u64 = 1 << 5;

/// What a completion queue has beyond verbs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mlx5dv_cq_init_attr {
    /// `MLX5DV_CQ_INIT_ATTR_MASK_*`: which of the fields below are set.
    pub comp_mask: u64,
    /// The form of compressed entries.
    pub cqe_comp_res_format: u8,
    /// Further properties.
    pub flags: u32,
    /// Bytes of an entry.
    pub cqe_size: u16,
}

/// What a queue pair has beyond verbs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mlx5dv_qp_init_attr {
    /// `MLX5DV_QP_INIT_ATTR_MASK_*`: which of the fields below are set.
    pub comp_mask: u64,
    /// `MLX5DV_QP_CREATE_*`.
    pub create_flags: u32,
    /// Of dynamic connections: unused.
    pub dc_init_attr: [u64; 2],
    /// Which builders of sends are to be had.
    pub send_ops_flags: u64,
    /// Room for what newer libraries read here.
    pub _later: [u64; 4],
}

/// Where a work queue lies.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_ring {
    /// Its first byte.
    pub buf: *mut c_void,
    /// Its entries.
    pub wqe_cnt: u32,
    /// Bytes of each.
    pub stride: u32,
}

/// Where a queue pair lies.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_qp {
    /// Its doorbell record.
    pub dbrec: *mut u32,
    /// Its send queue.
    pub sq: mlx5dv_ring,
    /// Its receive queue.
    pub rq: mlx5dv_ring,
    /// The register its doorbell is rung on.
    pub bf_reg: *mut c_void,
    /// Bytes of that for entries written with the doorbell; 0: none.
    pub bf_size: u32,
    /// Which of the fields below are asked for, and then given.
    pub comp_mask: u64,
    /// Where the register is mapped from.
    pub uar_mmap_offset: i64,
    /// Numbers of its transports and queues.
    pub numbers: [u32; 4],
    /// An address in the NIC.
    pub tir_icm_addr: u64,
}

/// Where a completion queue lies.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_cq {
    /// Its first entry.
    pub buf: *mut c_void,
    /// Its doorbell record.
    pub dbrec: *mut u32,
    /// Its entries.
    pub cqe_cnt: u32,
    /// Bytes of each.
    pub cqe_size: u32,
    /// Where it is armed.
    pub cq_uar: *mut c_void,
    /// Its number.
    pub cqn: u32,
    /// Which further fields are asked for.
    pub comp_mask: u64,
}

/// How requests name the port that an address handle leads to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_ah {
    /// An address vector, as entries of a send queue have it (48 bytes), without the queue pair and
    /// its key.
    pub av: *mut c_void,
    /// Which further fields are asked for.
    pub comp_mask: u64,
}

/// One question of [`mlx5dv_init_obj`](Mlx5::mlx5dv_init_obj): an object and where to write.
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_question<I, O> {
    /// The object.
    pub object: *mut I,
    /// What it is like.
    pub out: *mut O,
}

impl<I, O> Default for mlx5dv_question<I, O> {
    fn default() -> Self {
        mlx5dv_question {
            object: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
        }
    }
}

/// All questions of one call.
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5dv_obj {
    /// A queue pair.
    pub qp: mlx5dv_question<ibv_qp, mlx5dv_qp>,
    /// A completion queue.
    pub cq: mlx5dv_question<ibv_cq, mlx5dv_cq>,
    /// Objects that are not asked about.
    pub others: [mlx5dv_question<c_void, c_void>; 3],
    /// An address handle.
    pub ah: mlx5dv_question<ibv_ah, mlx5dv_ah>,
    /// An object that is not asked about.
    pub last: mlx5dv_question<c_void, c_void>,
}
