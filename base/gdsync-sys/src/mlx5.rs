//! Direct verbs of ConnectX NICs: [`Mlx5`], the table of libmlx5.so.1.

#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::verbs::types::*;

crate::dl_api! {
    /// The functions of libmlx5.
    ///
    /// The library must be the one that libibverbs loads as the NIC's provider.
    ///
    /// # Safety
    /// The manual page of each function applies; pointers must be valid, and objects alive.
    pub struct Mlx5("mlx5 direct verbs") {
        sonames: ["libmlx5.so.1"],
        env: "GDS_MLX5_LIB",
        required {
            /// Whether libmlx5 is the provider of the device.
            "MLX5_1.8" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
            /// Creates a CQ; returns null and sets `errno` on failure.
            "MLX5_1.1" fn mlx5dv_create_cq(
                context: *mut ibv_context,
                attr: *mut ibv_cq_init_attr_ex,
                own: *mut mlx5dv_cq_init_attr,
            ) -> *mut ibv_cq;
            /// Creates a QP; returns null and sets `errno` on failure.
            "MLX5_1.3" fn mlx5dv_create_qp(
                context: *mut ibv_context,
                attr: *mut ibv_qp_init_attr_ex,
                own: *mut mlx5dv_qp_init_attr,
            ) -> *mut ibv_qp;
            /// Returns the memory layout of objects; `kinds` is a set of `MLX5DV_OBJ_*`.
            "MLX5_1.2" fn mlx5dv_init_obj(object: *mut mlx5dv_obj, kinds: u64) -> c_int;
        }
        optional {}
    }
}

impl Mlx5 {
    /// The memory layout of a QP, from [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Errors
    /// The error of [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Safety
    /// `qp` is a live QP of this library.
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

    /// The memory layout of a CQ, from [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Errors
    /// The error of [`Mlx5::mlx5dv_init_obj`].
    ///
    /// # Safety
    /// `cq` is a live CQ of this library.
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
/// The NIC does not write small messages into CQEs (no inline scatter).
pub const MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;

/// The call returns the QP.
pub const MLX5DV_OBJ_QP: u64 = 1 << 0;
/// The call returns the CQ.
pub const MLX5DV_OBJ_CQ: u64 = 1 << 1;

/// The call returns the address handle.
pub const MLX5DV_OBJ_AH: u64 = 1 << 5;

/// The mlx5 attributes of a new CQ.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mlx5dv_cq_init_attr {
    /// `MLX5DV_CQ_INIT_ATTR_MASK_*`: the valid fields below.
    pub comp_mask: u64,
    /// The format of compressed CQEs.
    pub cqe_comp_res_format: u8,
    /// Further flags.
    pub flags: u32,
    /// The size of a CQE in bytes.
    pub cqe_size: u16,
}

/// The mlx5 attributes of a new QP.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct mlx5dv_qp_init_attr {
    /// `MLX5DV_QP_INIT_ATTR_MASK_*`: the valid fields below.
    pub comp_mask: u64,
    /// `MLX5DV_QP_CREATE_*`.
    pub create_flags: u32,
    /// For dynamically connected QPs: unused.
    pub dc_init_attr: [u64; 2],
    /// The requested functions for building sends.
    pub send_ops_flags: u64,
    /// Room for fields that newer libraries read.
    pub _later: [u64; 4],
}

/// The memory layout of a work queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_ring {
    /// The address of its first byte.
    pub buf: *mut c_void,
    /// The number of its entries.
    pub wqe_cnt: u32,
    /// The size of an entry in bytes.
    pub stride: u32,
}

/// The memory layout of a QP.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_qp {
    /// Its doorbell record.
    pub dbrec: *mut u32,
    /// Its send queue.
    pub sq: mlx5dv_ring,
    /// Its receive queue.
    pub rq: mlx5dv_ring,
    /// The UAR register of its doorbell.
    pub bf_reg: *mut c_void,
    /// The bytes of the register for BlueFlame writes; 0: the register has no BlueFlame.
    pub bf_size: u32,
    /// The requested fields below; after the call, the valid ones.
    pub comp_mask: u64,
    /// The mmap offset of the register.
    pub uar_mmap_offset: i64,
    /// The numbers of its TIR, TIS, RQ and SQ (`tirn`, `tisn`, `rqn`, `sqn`), for raw packet QPs.
    pub numbers: [u32; 4],
    /// An address in the NIC.
    pub tir_icm_addr: u64,
}

/// The memory layout of a CQ.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_cq {
    /// The address of its first CQE.
    pub buf: *mut c_void,
    /// Its doorbell record.
    pub dbrec: *mut u32,
    /// The number of its CQEs.
    pub cqe_cnt: u32,
    /// The size of a CQE in bytes.
    pub cqe_size: u32,
    /// The UAR page on which the CQ is armed.
    pub cq_uar: *mut c_void,
    /// The CQ number.
    pub cqn: u32,
    /// The requested further fields.
    pub comp_mask: u64,
}

/// The address vector of an address handle.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct mlx5dv_ah {
    /// An address vector, as WQEs contain it (48 bytes), without the QP number and its key.
    pub av: *mut c_void,
    /// The requested further fields.
    pub comp_mask: u64,
}

/// One argument of [`mlx5dv_init_obj`](Mlx5::mlx5dv_init_obj): an object and the structure to fill.
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_question<I, O> {
    /// The object.
    pub object: *mut I,
    /// The structure to fill.
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

/// All arguments of one call.
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5dv_obj {
    /// A queue pair.
    pub qp: mlx5dv_question<ibv_qp, mlx5dv_qp>,
    /// A completion queue.
    pub cq: mlx5dv_question<ibv_cq, mlx5dv_cq>,
    /// Objects that the call does not use.
    pub others: [mlx5dv_question<c_void, c_void>; 3],
    /// An address handle.
    pub ah: mlx5dv_question<ibv_ah, mlx5dv_ah>,
    /// An object that the call does not use.
    pub last: mlx5dv_question<c_void, c_void>,
}
