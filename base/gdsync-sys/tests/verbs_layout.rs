//! The structures of libibverbs and libmlx5 have the layout of the headers on this machine.
//!
//! A program in C, made by the test, returns sizes and offsets of the headers. Without these
//! headers the test is shown as ignored.

mod shared;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;

use gdsync_sys::mlx5::*;
use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::*;

/// One comparison: a C expression, and its value here.
type Facts = Vec<(String, u64)>;

macro_rules! facts {
    ($facts:ident; $($kind:ty { $($field:ident $(. $inner:ident)* $(= $c:literal)?),* $(,)? })*) => { $(
        let name = stringify!($kind);
        $(
            #[allow(unused_mut, unused_assignments)]
            let mut field = concat!(stringify!($field) $(, ".", stringify!($inner))*).to_owned();
            $( field = $c.to_owned(); )?
            $facts.push((
                format!("offsetof(struct {name}, {field})"),
                offset_of!($kind, $field $(. $inner)*) as u64,
            ));
        )*
    )* };
}

macro_rules! sizes {
    ($facts:ident; $($kind:ident),* $(,)?) => { $(
        let name = stringify!($kind);
        $facts.push((format!("sizeof(struct {name})"), size_of::<$kind>() as u64));
        $facts.push((format!("_Alignof(struct {name})"), align_of::<$kind>() as u64));
    )* };
}

macro_rules! numbers {
    ($facts:ident; $($name:ident),* $(,)?) => { $(
        $facts.push((stringify!($name).to_owned(), $name as u64));
    )* };
}

fn facts() -> Facts {
    let mut all = Facts::new();
    sizes!(all; verbs_context, ibv_context, ibv_device, ibv_port_attr, ibv_gid_entry, ibv_pd,
        ibv_mr, ibv_cq_init_attr_ex, ibv_qp_cap, ibv_rx_hash_conf, ibv_qp_init_attr_ex,
        ibv_global_route, ibv_ah_attr, ibv_qp_attr, ibv_td_init_attr,
        ibv_parent_domain_init_attr, ibv_comp_channel, ibv_device_attr, ibv_qp_init_attr, ibv_sge,
        ibv_send_wr, ibv_recv_wr, ibv_wc, ibv_async_event, mlx5dv_cq_init_attr, mlx5dv_qp, mlx5dv_cq,
        mlx5dv_ah, mlx5dv_obj);
    facts!(all;
        verbs_context { query_port, alloc_parent_domain, dealloc_td, alloc_td, sz, context }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            pkey_tbl_len, lid, sm_lid, lmc, active_width, phys_state, link_layer, flags,
            port_cap_flags2 }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
            parent_domain }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf,
            source_qpn, send_ops_flags }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
            dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        ibv_td_init_attr { comp_mask }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        ibv_comp_channel { context, fd, refcnt }
        ibv_device_attr { fw_ver, node_guid, max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe,
            max_mr, max_qp_rd_atom, max_qp_init_rd_atom, atomic_cap, max_pkeys, phys_port_cnt }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.compare_add, wr.atomic.swap,
            wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey, qp_type, _others = "bind_mw" }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits }
        ibv_async_event { element, event_type }
        mlx5dv_cq_init_attr { comp_mask, cqe_comp_res_format, flags, cqe_size }
        mlx5dv_qp_init_attr { comp_mask, create_flags, dc_init_attr, send_ops_flags }
        mlx5dv_qp { dbrec, sq.buf, sq.wqe_cnt, sq.stride, rq.buf, rq.wqe_cnt, rq.stride,
            bf_reg = "bf.reg", bf_size = "bf.size", comp_mask, uar_mmap_offset, numbers = "tirn",
            tir_icm_addr }
        mlx5dv_cq { buf, dbrec, cqe_cnt, cqe_size, cq_uar, cqn, comp_mask }
        mlx5dv_obj { qp.object = "qp.in", qp.out, cq.object = "cq.in", cq.out, others = "srq",
            ah.object = "ah.in", ah.out, last = "pd" }
        mlx5dv_ah { av, comp_mask }
    );
    numbers!(all; IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET,
        IBV_QPF_GRH_REQUIRED, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_ACCESS_LOCAL_WRITE,
        IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC,
        IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_QPT_RC, IBV_QPT_UD, IBV_QP_INIT_ATTR_PD,
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE,
        IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_AV, IBV_QP_PATH_MTU,
        IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN, IBV_ALLOCATOR_USE_DEFAULT,
        MLX5DV_RES_TYPE_QP, MLX5DV_RES_TYPE_DBR, MLX5DV_RES_TYPE_CQ,
        MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_GENERAL_ERR,
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_GID_CHANGE,
        MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_OBJ_QP, MLX5DV_OBJ_CQ, MLX5DV_OBJ_AH);
    all.push((
        "(uintptr_t)__VERBS_ABI_IS_EXTENDED".into(),
        VERBS_ABI_IS_EXTENDED as u64,
    ));
    all
}

#[test]
fn headers_are_installed_where_they_are_required() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "virt");
    assert!(cfg!(rdma_headers) || !must, "no headers of rdma-core");
}

#[test]
#[cfg_attr(not(rdma_headers), ignore = "needs the headers of rdma-core")]
fn structures_have_the_layout_of_the_headers() {
    let facts = facts();
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n\
         #include <stddef.h>\n#include <stdint.h>\n\
         const uint64_t facts[] = {\n",
    );
    for (expression, _) in &facts {
        writeln!(source, "(uint64_t)({expression}),").expect("text grows");
    }
    source.push_str("};\nuint64_t fact(int i) { return facts[i]; }\n");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = shared::compile(folder, "verbs-layout.so", &source);
    gdsync_sys::dl_api! {
        struct Facts("facts") {
            sonames: ["libgdsync-no-such.so"],
            env: "GDSYNC_FACTS_LIB",
            required { fn fact(i: i32) -> u64; }
            optional {}
        }
    }
    // SAFETY: the library was made above, with this function.
    let library = unsafe { Facts::load_from([&path]) }.expect("just made");
    let mut wrong = BTreeMap::new();
    for (i, (expression, here)) in facts.iter().enumerate() {
        // SAFETY: an index of the array.
        let there = unsafe { (library.fact)(i as i32) };
        if there != *here {
            wrong.insert(expression, format!("{here} here, {there} there"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(facts.len() > 150, "{}", facts.len());
}
