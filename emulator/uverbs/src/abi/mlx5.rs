//! `mlx5-abi.h` and `mlx5_user_ioctl_cmds.h`.

use super::structures;

/// Flags of a queue pair to create.
pub mod qp_flag {
    pub const SCATTER_CQE: u32 = 1 << 1;
    pub const BFREG_INDEX: u32 = 1 << 3;
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}

/// Flags of a completion queue to create.
pub mod cq_flag {
    pub const UAR_PAGE_INDEX: u16 = 1 << 1;
}

/// Flags of the first command.
pub mod context_flag {
    pub const DEVX: u32 = 1 << 0;
}

/// The capabilities that the library reports.
pub mod lib_cap {
    pub const DYN_UAR: u64 = 1 << 1;
}

/// The meaning of an `mmap` offset.
pub mod map {
    pub const REGULAR_PAGE: u64 = 0;
    pub const WC_PAGE: u64 = 2;
    pub const ALLOC_WC: u64 = 6;
}

/// Objects, methods and attributes of the driver's own ioctls.
pub mod ioctl {
    crate::abi::ioctls! {
        OBJECT_UAR = 0x1008, "MLX5_IB_OBJECT_UAR";
        UAR_OBJ_ALLOC = 0x1000, "MLX5_IB_METHOD_UAR_OBJ_ALLOC";
        UAR_OBJ_DESTROY = 0x1001, "MLX5_IB_METHOD_UAR_OBJ_DESTROY";
        UAR_HANDLE = 0x1000;
        UAR_TYPE = 0x1001;
        UAR_MMAP_OFFSET = 0x1002;
        UAR_MMAP_LENGTH = 0x1003;
        UAR_PAGE_ID = 0x1004, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID";

        OBJECT_DEVX = 0x1000, "MLX5_IB_OBJECT_DEVX";
        DEVX_OTHER = 0x1000, "MLX5_IB_METHOD_DEVX_OTHER";
        DEVX_QUERY_UAR = 0x1001, "MLX5_IB_METHOD_DEVX_QUERY_UAR";
        DEVX_QUERY_EQN = 0x1002, "MLX5_IB_METHOD_DEVX_QUERY_EQN";
        OTHER_CMD_IN = 0x1000, "MLX5_IB_ATTR_DEVX_OTHER_CMD_IN";
        OTHER_CMD_OUT = 0x1001, "MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT";
        QUERY_UAR_USER_IDX = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX";
        QUERY_UAR_DEV_IDX = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX";
        QUERY_EQN_USER_VEC = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC";
        QUERY_EQN_DEV_EQN = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN";

        OBJECT_DEVX_OBJ = 0x1001, "MLX5_IB_OBJECT_DEVX_OBJ";
        DEVX_OBJ_CREATE = 0x1000, "MLX5_IB_METHOD_DEVX_OBJ_CREATE";
        DEVX_OBJ_DESTROY = 0x1001, "MLX5_IB_METHOD_DEVX_OBJ_DESTROY";
        DEVX_OBJ_MODIFY = 0x1002, "MLX5_IB_METHOD_DEVX_OBJ_MODIFY";
        DEVX_OBJ_QUERY = 0x1003, "MLX5_IB_METHOD_DEVX_OBJ_QUERY";
        DEVX_OBJ_HANDLE = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE", "MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE", "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE", "MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE";
        DEVX_OBJ_CMD_IN = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN", "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN", "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN";
        DEVX_OBJ_CMD_OUT = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT", "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT", "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT";

        OBJECT_DEVX_UMEM = 0x1002, "MLX5_IB_OBJECT_DEVX_UMEM";
        DEVX_UMEM_REG = 0x1000, "MLX5_IB_METHOD_DEVX_UMEM_REG";
        DEVX_UMEM_DEREG = 0x1001, "MLX5_IB_METHOD_DEVX_UMEM_DEREG";
        UMEM_HANDLE = 0x1000, "MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE", "MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE";
        UMEM_ADDR = 0x1001, "MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR";
        UMEM_LEN = 0x1002, "MLX5_IB_ATTR_DEVX_UMEM_REG_LEN";
        UMEM_ACCESS = 0x1003, "MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS";
        UMEM_OUT_ID = 0x1004, "MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID";
        UMEM_PGSZ_BITMAP = 0x1005, "MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP";
        UMEM_DMABUF_FD = 0x1006, "MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD";
    }
}

structures! {
    AllocUcontextReq = 8 { total_num_bfregs: u32, num_low_latency_bfregs: u32, }
    AllocUcontextReqV2 = 32 {
        total_num_bfregs: u32,
        num_low_latency_bfregs: u32,
        flags: u32,
        comp_mask: u32,
        max_cqe_version: u8,
        reserved0: u8,
        reserved1: u16,
        reserved2: u32,
        lib_caps: u64,
    }
    AllocUcontextResp = 72 {
        qp_tab_size: u32,
        bf_reg_size: u32,
        tot_bfregs: u32,
        cache_line_size: u32,
        max_sq_desc_sz: u16,
        max_rq_desc_sz: u16,
        max_send_wqebb: u32,
        max_recv_wr: u32,
        max_srq_recv_wr: u32,
        num_ports: u16,
        flow_action_flags: u16,
        comp_mask: u32,
        response_length: u32,
        cqe_version: u8,
        cmds_supp_uhw: u8,
        eth_min_inline: u8,
        clock_info_versions: u8,
        hca_core_clock_offset: u64,
        log_uar_size: u32,
        num_uars_per_page: u32,
        num_dyn_bfregs: u32,
        dump_fill_mkey: u32,
    }
    AllocPdResp = 4 { pdn: u32, }
    CreateCq = 32 {
        buf_addr: u64,
        db_addr: u64,
        cqe_size: u32,
        cqe_comp_en: u8,
        cqe_comp_res_format: u8,
        flags: u16,
        uar_page_index: u16,
        reserved0: u16,
        reserved1: u32,
    }
    CreateCqResp = 8 { cqn: u32, reserved: u32, }
    CreateSrq = 32 {
        buf_addr: u64,
        db_addr: u64,
        flags: u32,
        reserved0: u32,
        uidx: u32,
        reserved1: u32,
    }
    CreateSrqResp = 8 { srqn: u32, reserved: u32, }
    CreateQp = 56 {
        buf_addr: u64,
        db_addr: u64,
        sq_wqe_count: u32,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        flags: u32,
        uidx: u32,
        bfreg_index: u32,
        sq_buf_addr: u64,
        ece_options: u32,
        dci_streams: u16,
        reserved: u16,
    }
    CreateQpResp = 40 {
        bfreg_index: u32,
        ece_options: u32,
        comp_mask: u32,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        reserved1: u32,
        tir_icm_addr: u64,
    }
    CreateAhResp = 16 { response_length: u32, dmac: [u8; 6], reserved: [u8; 6], }
    ModifyQp = 16 { comp_mask: u32, burst_info: [u32; 2], ece_options: u32, }
    ModifyQpResp = 16 { response_length: u32, dctn: u32, ece_options: u32, reserved: u32, }
}

/// The length of the driver's part of the extended device query. All of it is zero: the device has
/// none of the offloads.
pub const QUERY_DEVICE_RESP: usize = 104;
