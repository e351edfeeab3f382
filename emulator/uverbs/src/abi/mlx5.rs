//! `mlx5-abi.h` and `mlx5_user_ioctl_cmds.h`.

use super::structures;

/// Flags of a queue pair to create.
pub mod qp_flag {
    pub const SIGNATURE: u32 = 1 << 0;
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

/// What the library says it can do.
pub mod lib_cap {
    pub const DYN_UAR: u64 = 1 << 1;
}

/// What an offset of `mmap` asks for.
pub mod map {
    pub const REGULAR_PAGE: u64 = 0;
    pub const WC_PAGE: u64 = 2;
    pub const ALLOC_WC: u64 = 6;
}

/// Objects, methods and attributes of the driver's own ioctls.
pub mod ioctl {
    pub const OBJECT_UAR: u16 = 0x1008;
    pub const UAR_OBJ_ALLOC: u16 = 0x1000;
    pub const UAR_OBJ_DESTROY: u16 = 0x1001;
    pub const UAR_HANDLE: u16 = 0x1000;
    pub const UAR_TYPE: u16 = 0x1001;
    pub const UAR_MMAP_OFFSET: u16 = 0x1002;
    pub const UAR_MMAP_LENGTH: u16 = 0x1003;
    pub const UAR_PAGE_ID: u16 = 0x1004;

    pub const OBJECT_DEVX: u16 = 0x1000;
    pub const DEVX_OTHER: u16 = 0x1000;
    pub const DEVX_QUERY_UAR: u16 = 0x1001;
    pub const DEVX_QUERY_EQN: u16 = 0x1002;
    pub const OTHER_CMD_IN: u16 = 0x1000;
    pub const OTHER_CMD_OUT: u16 = 0x1001;
    pub const QUERY_UAR_USER_IDX: u16 = 0x1000;
    pub const QUERY_UAR_DEV_IDX: u16 = 0x1001;
    pub const QUERY_EQN_USER_VEC: u16 = 0x1000;
    pub const QUERY_EQN_DEV_EQN: u16 = 0x1001;

    pub const OBJECT_DEVX_OBJ: u16 = 0x1001;
    pub const DEVX_OBJ_CREATE: u16 = 0x1000;
    pub const DEVX_OBJ_DESTROY: u16 = 0x1001;
    pub const DEVX_OBJ_MODIFY: u16 = 0x1002;
    pub const DEVX_OBJ_QUERY: u16 = 0x1003;
    pub const DEVX_OBJ_HANDLE: u16 = 0x1000;
    pub const DEVX_OBJ_CMD_IN: u16 = 0x1001;
    pub const DEVX_OBJ_CMD_OUT: u16 = 0x1002;

    pub const OBJECT_DEVX_UMEM: u16 = 0x1002;
    pub const DEVX_UMEM_REG: u16 = 0x1000;
    pub const DEVX_UMEM_DEREG: u16 = 0x1001;
    pub const UMEM_HANDLE: u16 = 0x1000;
    pub const UMEM_ADDR: u16 = 0x1001;
    pub const UMEM_LEN: u16 = 0x1002;
    pub const UMEM_ACCESS: u16 = 0x1003;
    pub const UMEM_OUT_ID: u16 = 0x1004;
    pub const UMEM_PGSZ_BITMAP: u16 = 0x1005;
    pub const UMEM_DMABUF_FD: u16 = 0x1006;
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

/// Bytes of what the driver adds to the extended query of a device; all of it zero: none of the
/// offloads is there.
pub const QUERY_DEVICE_RESP: usize = 104;
