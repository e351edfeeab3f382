//! `ib_user_verbs.h` and `rdma_user_ioctl_cmds.h`.

use super::structures;

/// The numbers of commands.
pub mod command {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;

    /// Set in the number of an extended command.
    pub const EXTENDED: u32 = 0x8000_0000;
    /// The bits that number a command.
    pub const MASK: u32 = 0xff;
}

/// The attributes of a modification of a QP.
pub mod attr {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// Kinds of asynchronous events.
pub mod async_event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
}

/// Access rights of memory.
pub mod access {
    /// The four access rights that the NIC implements.
    pub const RIGHTS: u32 = 0xf;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    /// Rights that a kernel may ignore without an error.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Objects, methods and attributes of ioctls.
pub mod ioctl {
    crate::abi::ioctls! {
        OBJECT_DEVICE = 0, "UVERBS_OBJECT_DEVICE";
        QUERY_PORT = 2, "UVERBS_METHOD_QUERY_PORT";
        QUERY_PORT_NUM = 0, "UVERBS_ATTR_QUERY_PORT_PORT_NUM";
        QUERY_PORT_RESP = 1, "UVERBS_ATTR_QUERY_PORT_RESP";
        QUERY_GID_TABLE = 5, "UVERBS_METHOD_QUERY_GID_TABLE";
        GID_TABLE_ENTRY_SIZE = 0, "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE";
        GID_TABLE_FLAGS = 1, "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS";
        GID_TABLE_RESP_ENTRIES = 2, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES";
        GID_TABLE_RESP_NUM = 3, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES";
        QUERY_GID_ENTRY = 6, "UVERBS_METHOD_QUERY_GID_ENTRY";
        GID_ENTRY_PORT = 0, "UVERBS_ATTR_QUERY_GID_ENTRY_PORT";
        GID_ENTRY_INDEX = 1, "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX";
        GID_ENTRY_FLAGS = 2, "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS";
        GID_ENTRY_RESP = 3, "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY";

        OBJECT_MR = 7, "UVERBS_OBJECT_MR";
        QUERY_MR = 3, "UVERBS_METHOD_QUERY_MR";
        QUERY_MR_HANDLE = 0, "UVERBS_ATTR_QUERY_MR_HANDLE";
        QUERY_MR_LKEY = 1, "UVERBS_ATTR_QUERY_MR_RESP_LKEY";
        QUERY_MR_RKEY = 2, "UVERBS_ATTR_QUERY_MR_RESP_RKEY";
        QUERY_MR_LENGTH = 3, "UVERBS_ATTR_QUERY_MR_RESP_LENGTH";
        QUERY_MR_IOVA = 4, "UVERBS_ATTR_QUERY_MR_RESP_IOVA";
        REG_DMABUF_MR = 4, "UVERBS_METHOD_REG_DMABUF_MR";
        DMABUF_HANDLE = 0, "UVERBS_ATTR_REG_DMABUF_MR_HANDLE";
        DMABUF_PD = 1, "UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE";
        DMABUF_OFFSET = 2, "UVERBS_ATTR_REG_DMABUF_MR_OFFSET";
        DMABUF_LENGTH = 3, "UVERBS_ATTR_REG_DMABUF_MR_LENGTH";
        DMABUF_IOVA = 4, "UVERBS_ATTR_REG_DMABUF_MR_IOVA";
        DMABUF_FD = 5, "UVERBS_ATTR_REG_DMABUF_MR_FD";
        DMABUF_ACCESS = 6, "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS";
        DMABUF_LKEY = 7, "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY";
        DMABUF_RKEY = 8, "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY";
    }
}

structures! {
    /// The header of every command.
    CmdHdr = 8 { command: u32, in_words: u16, out_words: u16, }
    /// The second header of an extended command.
    ExCmdHdr = 16 {
        response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32,
    }
    AsyncEventDesc = 16 { element: u64, event_type: u32, reserved: u32, }
    GetContext = 8 { response: u64, }
    GetContextResp = 8 { async_fd: u32, num_comp_vectors: u32, }
    QueryDevice = 8 { response: u64, }
    /// `node_guid` and `sys_image_guid` are big endian.
    QueryDeviceResp = 176 {
        fw_ver: u64,
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }
    ExQueryDevice = 8 { comp_mask: u32, reserved: u32, }
    ExQueryDeviceResp = 304 {
        base: QueryDeviceResp,
        comp_mask: u32,
        response_length: u32,
        odp_general_caps: u64,
        odp_transport_caps: [u32; 3],
        odp_reserved: u32,
        timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        rss_caps: [u32; 4],
        max_wq_type_rq: u32,
        raw_packet_caps: u32,
        tm_caps: [u32; 6],
        max_cq_moderation_count: u16,
        max_cq_moderation_period: u16,
        cq_moderation_reserved: u32,
        max_dm_size: u64,
        xrc_odp_caps: u32,
        reserved: u32,
    }
    QueryPort = 16 { response: u64, port_num: u8, reserved: [u8; 7], }
    QueryPortResp = 40 {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }
    QueryPortRespEx = 48 {
        legacy_resp: QueryPortResp,
        port_cap_flags2: u16,
        reserved: [u8; 6],
    }
    GidEntry = 32 {
        gid: [u8; 16],
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        netdev_ifindex: u32,
    }
    AllocPd = 8 { response: u64, }
    AllocPdResp = 4 { pd_handle: u32, }
    /// The commands that name an object only and have no answer.
    Handle = 4 { handle: u32, }
    RegMr = 40 {
        response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    RegMrResp = 12 { mr_handle: u32, lkey: u32, rkey: u32, }
    ReregMr = 48 {
        response: u64,
        mr_handle: u32,
        flags: u32,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }
    ReregMrResp = 8 { lkey: u32, rkey: u32, }
    CreateCompChannel = 8 { response: u64, }
    CreateCompChannelResp = 4 { fd: u32, }
    CreateCq = 32 {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        reserved: u32,
    }
    CreateCqResp = 8 { cq_handle: u32, cqe: u32, }
    ExCreateCq = 32 {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        comp_mask: u32,
        flags: u32,
        reserved: u32,
    }
    ExCreateCqResp = 16 { base: CreateCqResp, comp_mask: u32, response_length: u32, }
    DestroyCq = 16 { response: u64, cq_handle: u32, reserved: u32, }
    DestroyCqResp = 8 { comp_events_reported: u32, async_events_reported: u32, }
    GlobalRoute = 24 {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }
    AhAttr = 32 {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }
    CreateAh = 56 {
        response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: AhAttr,
    }
    CreateAhResp = 4 { ah_handle: u32, }
    /// The common part of the two commands that create a QP.
    QpInit = 40 {
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }
    CreateQp = 56 { response: u64, user_handle: u64, init: QpInit, }
    ExCreateQp = 64 {
        user_handle: u64,
        init: QpInit,
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }
    CreateQpResp = 32 {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }
    ExCreateQpResp = 40 { base: CreateQpResp, comp_mask: u32, response_length: u32, }
    QpDest = 32 {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    QueryQp = 16 { response: u64, qp_handle: u32, attr_mask: u32, }
    QueryQpResp = 128 {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }
    ModifyQp = 112 {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }
    ExModifyQp = 120 { base: ModifyQp, rate_limit: u32, reserved: u32, }
    ExModifyQpResp = 8 { comp_mask: u32, response_length: u32, }
    DestroyQp = 16 { response: u64, qp_handle: u32, reserved: u32, }
    DestroyQpResp = 4 { events_reported: u32, }
    CreateSrq = 32 {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    CreateSrqResp = 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32, }
    ModifySrq = 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32, }
    QuerySrq = 16 { response: u64, srq_handle: u32, reserved: u32, }
    QuerySrqResp = 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32, }
    DestroySrq = 16 { response: u64, srq_handle: u32, reserved: u32, }
    DestroySrqResp = 4 { events_reported: u32, }
    McastAttach = 24 { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16, }
    IoctlHdr = 24 {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
    IoctlAttr = 16 { attr_id: u16, len: u16, flags: u16, attr_data: u16, data: u64, }
}
