//! The structures have the sizes that the C headers give them, and their last fields lie where
//! those say.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use vmlx5_uverbs::abi::{core, mlx5};

/// A structure here, and its name in C.
macro_rules! sizes {
    ($($ours:ty = $theirs:literal,)*) => {
        vec![$((stringify!($ours), size_of::<$ours>(), $theirs),)*]
    };
}

/// A field here, and its place in C.
macro_rules! offsets {
    ($($ours:ty, $field:ident = $theirs:literal, $name:literal;)*) => {
        vec![$((
            concat!(stringify!($ours), ".", stringify!($field)),
            std::mem::offset_of!($ours, $field),
            $theirs,
            $name,
        ),)*]
    };
}

#[test]
fn structures_are_those_of_the_headers() {
    let sizes = sizes! {
        core::CmdHdr = "ib_uverbs_cmd_hdr",
        core::ExCmdHdr = "ib_uverbs_ex_cmd_hdr",
        core::AsyncEventDesc = "ib_uverbs_async_event_desc",
        core::GetContext = "ib_uverbs_get_context",
        core::GetContextResp = "ib_uverbs_get_context_resp",
        core::QueryDevice = "ib_uverbs_query_device",
        core::QueryDeviceResp = "ib_uverbs_query_device_resp",
        core::ExQueryDevice = "ib_uverbs_ex_query_device",
        core::ExQueryDeviceResp = "ib_uverbs_ex_query_device_resp",
        core::QueryPort = "ib_uverbs_query_port",
        core::QueryPortResp = "ib_uverbs_query_port_resp",
        core::QueryPortRespEx = "ib_uverbs_query_port_resp_ex",
        core::GidEntry = "ib_uverbs_gid_entry",
        core::AllocPd = "ib_uverbs_alloc_pd",
        core::AllocPdResp = "ib_uverbs_alloc_pd_resp",
        core::Handle = "ib_uverbs_dealloc_pd",
        core::RegMr = "ib_uverbs_reg_mr",
        core::RegMrResp = "ib_uverbs_reg_mr_resp",
        core::ReregMr = "ib_uverbs_rereg_mr",
        core::ReregMrResp = "ib_uverbs_rereg_mr_resp",
        core::CreateCompChannel = "ib_uverbs_create_comp_channel",
        core::CreateCompChannelResp = "ib_uverbs_create_comp_channel_resp",
        core::CreateCq = "ib_uverbs_create_cq",
        core::CreateCqResp = "ib_uverbs_create_cq_resp",
        core::ExCreateCq = "ib_uverbs_ex_create_cq",
        core::ExCreateCqResp = "ib_uverbs_ex_create_cq_resp",
        core::DestroyCq = "ib_uverbs_destroy_cq",
        core::DestroyCqResp = "ib_uverbs_destroy_cq_resp",
        core::GlobalRoute = "ib_uverbs_global_route",
        core::AhAttr = "ib_uverbs_ah_attr",
        core::CreateAh = "ib_uverbs_create_ah",
        core::CreateAhResp = "ib_uverbs_create_ah_resp",
        core::CreateQp = "ib_uverbs_create_qp",
        core::ExCreateQp = "ib_uverbs_ex_create_qp",
        core::CreateQpResp = "ib_uverbs_create_qp_resp",
        core::ExCreateQpResp = "ib_uverbs_ex_create_qp_resp",
        core::QpDest = "ib_uverbs_qp_dest",
        core::QueryQp = "ib_uverbs_query_qp",
        core::QueryQpResp = "ib_uverbs_query_qp_resp",
        core::ModifyQp = "ib_uverbs_modify_qp",
        core::ExModifyQp = "ib_uverbs_ex_modify_qp",
        core::ExModifyQpResp = "ib_uverbs_ex_modify_qp_resp",
        core::DestroyQp = "ib_uverbs_destroy_qp",
        core::DestroyQpResp = "ib_uverbs_destroy_qp_resp",
        core::CreateSrq = "ib_uverbs_create_srq",
        core::CreateSrqResp = "ib_uverbs_create_srq_resp",
        core::ModifySrq = "ib_uverbs_modify_srq",
        core::QuerySrq = "ib_uverbs_query_srq",
        core::QuerySrqResp = "ib_uverbs_query_srq_resp",
        core::DestroySrq = "ib_uverbs_destroy_srq",
        core::DestroySrqResp = "ib_uverbs_destroy_srq_resp",
        core::McastAttach = "ib_uverbs_attach_mcast",
        core::IoctlHdr = "ib_uverbs_ioctl_hdr",
        core::IoctlAttr = "ib_uverbs_attr",
        mlx5::AllocUcontextReq = "mlx5_ib_alloc_ucontext_req",
        mlx5::AllocUcontextReqV2 = "mlx5_ib_alloc_ucontext_req_v2",
        mlx5::AllocUcontextResp = "mlx5_ib_alloc_ucontext_resp",
        mlx5::AllocPdResp = "mlx5_ib_alloc_pd_resp",
        mlx5::CreateCq = "mlx5_ib_create_cq",
        mlx5::CreateCqResp = "mlx5_ib_create_cq_resp",
        mlx5::CreateSrq = "mlx5_ib_create_srq",
        mlx5::CreateSrqResp = "mlx5_ib_create_srq_resp",
        mlx5::CreateQp = "mlx5_ib_create_qp",
        mlx5::CreateQpResp = "mlx5_ib_create_qp_resp",
        mlx5::CreateAhResp = "mlx5_ib_create_ah_resp",
        mlx5::ModifyQp = "mlx5_ib_modify_qp",
        mlx5::ModifyQpResp = "mlx5_ib_modify_qp_resp",
    };
    let offsets = offsets! {
        core::QueryDeviceResp, phys_port_cnt = "ib_uverbs_query_device_resp", "phys_port_cnt";
        core::ExQueryDeviceResp, timestamp_mask = "ib_uverbs_ex_query_device_resp", "timestamp_mask";
        core::ExQueryDeviceResp, xrc_odp_caps = "ib_uverbs_ex_query_device_resp", "xrc_odp_caps";
        core::QueryPortResp, link_layer = "ib_uverbs_query_port_resp", "link_layer";
        core::QueryPortResp, flags = "ib_uverbs_query_port_resp", "flags";
        core::CreateQp, init = "ib_uverbs_create_qp", "pd_handle";
        core::ExCreateQp, create_flags = "ib_uverbs_ex_create_qp", "create_flags";
        core::ExCreateQp, source_qpn = "ib_uverbs_ex_create_qp", "source_qpn";
        core::QueryQpResp, qp_state = "ib_uverbs_query_qp_resp", "qp_state";
        core::QueryQpResp, sq_sig_all = "ib_uverbs_query_qp_resp", "sq_sig_all";
        core::ModifyQp, qp_handle = "ib_uverbs_modify_qp", "qp_handle";
        core::ModifyQp, qp_state = "ib_uverbs_modify_qp", "qp_state";
        core::ModifyQp, alt_timeout = "ib_uverbs_modify_qp", "alt_timeout";
        core::QpDest, port_num = "ib_uverbs_qp_dest", "port_num";
        core::CreateAh, attr = "ib_uverbs_create_ah", "attr";
        core::IoctlAttr, data = "ib_uverbs_attr", "data";
        mlx5::AllocUcontextReqV2, lib_caps = "mlx5_ib_alloc_ucontext_req_v2", "lib_caps";
        mlx5::AllocUcontextResp, cqe_version = "mlx5_ib_alloc_ucontext_resp", "cqe_version";
        mlx5::AllocUcontextResp, dump_fill_mkey = "mlx5_ib_alloc_ucontext_resp", "dump_fill_mkey";
        mlx5::CreateCq, uar_page_index = "mlx5_ib_create_cq", "uar_page_index";
        mlx5::CreateQp, bfreg_index = "mlx5_ib_create_qp", "bfreg_index";
        mlx5::CreateQp, ece_options = "mlx5_ib_create_qp", "ece_options";
        mlx5::CreateAhResp, dmac = "mlx5_ib_create_ah_resp", "dmac";
    };
    let mut source = String::from(
        "#include <stddef.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/mlx5-abi.h>\n\
         #include <rdma/rdma_user_ioctl_cmds.h>\n",
    );
    for (ours, size, theirs) in &sizes {
        let _ = writeln!(
            source,
            "_Static_assert(sizeof(struct {theirs}) == {size}, \"{ours}\");"
        );
    }
    for (ours, offset, theirs, name) in &offsets {
        let _ = writeln!(
            source,
            "_Static_assert(offsetof(struct {theirs}, {name}) == {offset}, \"{ours}\");"
        );
    }
    let query = mlx5::QUERY_DEVICE_RESP;
    let _ = writeln!(
        source,
        "_Static_assert(sizeof(struct mlx5_ib_query_device_resp) == {query}, \"query\");"
    );
    compile(&source);
}

/// Compiles a source without an error.
fn compile(source: &str) {
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-std=gnu11", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut input = compiler.stdin.take().unwrap();
    input.write_all(source.as_bytes()).unwrap();
    drop(input);
    let done = compiler.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

/// A number here, and its name in C.
macro_rules! numbers {
    ($($ours:path = $theirs:literal,)*) => {
        vec![$((stringify!($ours), u32::from($ours), $theirs),)*]
    };
}

#[test]
fn methods_and_attributes_of_ioctls_are_those_of_the_headers() {
    use core::ioctl as verbs;
    use mlx5::ioctl as own;
    let numbers = numbers! {
        verbs::OBJECT_DEVICE = "UVERBS_OBJECT_DEVICE",
        verbs::QUERY_PORT = "UVERBS_METHOD_QUERY_PORT",
        verbs::QUERY_PORT_NUM = "UVERBS_ATTR_QUERY_PORT_PORT_NUM",
        verbs::QUERY_PORT_RESP = "UVERBS_ATTR_QUERY_PORT_RESP",
        verbs::QUERY_GID_TABLE = "UVERBS_METHOD_QUERY_GID_TABLE",
        verbs::GID_TABLE_ENTRY_SIZE = "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE",
        verbs::GID_TABLE_FLAGS = "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS",
        verbs::GID_TABLE_RESP_ENTRIES = "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES",
        verbs::GID_TABLE_RESP_NUM = "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES",
        verbs::QUERY_GID_ENTRY = "UVERBS_METHOD_QUERY_GID_ENTRY",
        verbs::GID_ENTRY_PORT = "UVERBS_ATTR_QUERY_GID_ENTRY_PORT",
        verbs::GID_ENTRY_INDEX = "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX",
        verbs::GID_ENTRY_FLAGS = "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS",
        verbs::GID_ENTRY_RESP = "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY",
        verbs::OBJECT_MR = "UVERBS_OBJECT_MR",
        verbs::QUERY_MR = "UVERBS_METHOD_QUERY_MR",
        verbs::QUERY_MR_HANDLE = "UVERBS_ATTR_QUERY_MR_HANDLE",
        verbs::QUERY_MR_LKEY = "UVERBS_ATTR_QUERY_MR_RESP_LKEY",
        verbs::QUERY_MR_RKEY = "UVERBS_ATTR_QUERY_MR_RESP_RKEY",
        verbs::QUERY_MR_LENGTH = "UVERBS_ATTR_QUERY_MR_RESP_LENGTH",
        verbs::QUERY_MR_IOVA = "UVERBS_ATTR_QUERY_MR_RESP_IOVA",
        verbs::REG_DMABUF_MR = "UVERBS_METHOD_REG_DMABUF_MR",
        verbs::DMABUF_HANDLE = "UVERBS_ATTR_REG_DMABUF_MR_HANDLE",
        verbs::DMABUF_PD = "UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE",
        verbs::DMABUF_OFFSET = "UVERBS_ATTR_REG_DMABUF_MR_OFFSET",
        verbs::DMABUF_LENGTH = "UVERBS_ATTR_REG_DMABUF_MR_LENGTH",
        verbs::DMABUF_IOVA = "UVERBS_ATTR_REG_DMABUF_MR_IOVA",
        verbs::DMABUF_FD = "UVERBS_ATTR_REG_DMABUF_MR_FD",
        verbs::DMABUF_ACCESS = "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS",
        verbs::DMABUF_LKEY = "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY",
        verbs::DMABUF_RKEY = "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY",
        own::OBJECT_UAR = "MLX5_IB_OBJECT_UAR",
        own::UAR_OBJ_ALLOC = "MLX5_IB_METHOD_UAR_OBJ_ALLOC",
        own::UAR_OBJ_DESTROY = "MLX5_IB_METHOD_UAR_OBJ_DESTROY",
        own::UAR_PAGE_ID = "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID",
        own::OBJECT_DEVX = "MLX5_IB_OBJECT_DEVX",
        own::DEVX_OTHER = "MLX5_IB_METHOD_DEVX_OTHER",
        own::DEVX_QUERY_UAR = "MLX5_IB_METHOD_DEVX_QUERY_UAR",
        own::DEVX_QUERY_EQN = "MLX5_IB_METHOD_DEVX_QUERY_EQN",
        own::OTHER_CMD_IN = "MLX5_IB_ATTR_DEVX_OTHER_CMD_IN",
        own::OTHER_CMD_OUT = "MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT",
        own::QUERY_UAR_USER_IDX = "MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX",
        own::QUERY_UAR_DEV_IDX = "MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX",
        own::QUERY_EQN_USER_VEC = "MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC",
        own::QUERY_EQN_DEV_EQN = "MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN",
        own::OBJECT_DEVX_OBJ = "MLX5_IB_OBJECT_DEVX_OBJ",
        own::DEVX_OBJ_CREATE = "MLX5_IB_METHOD_DEVX_OBJ_CREATE",
        own::DEVX_OBJ_DESTROY = "MLX5_IB_METHOD_DEVX_OBJ_DESTROY",
        own::DEVX_OBJ_MODIFY = "MLX5_IB_METHOD_DEVX_OBJ_MODIFY",
        own::DEVX_OBJ_QUERY = "MLX5_IB_METHOD_DEVX_OBJ_QUERY",
        own::DEVX_OBJ_HANDLE = "MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE",
        own::DEVX_OBJ_CMD_IN = "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN",
        own::DEVX_OBJ_CMD_OUT = "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT",
        own::DEVX_OBJ_HANDLE = "MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE",
        own::DEVX_OBJ_HANDLE = "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE",
        own::DEVX_OBJ_CMD_IN = "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN",
        own::DEVX_OBJ_CMD_OUT = "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT",
        own::DEVX_OBJ_HANDLE = "MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE",
        own::DEVX_OBJ_CMD_IN = "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN",
        own::DEVX_OBJ_CMD_OUT = "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT",
        own::OBJECT_DEVX_UMEM = "MLX5_IB_OBJECT_DEVX_UMEM",
        own::DEVX_UMEM_REG = "MLX5_IB_METHOD_DEVX_UMEM_REG",
        own::DEVX_UMEM_DEREG = "MLX5_IB_METHOD_DEVX_UMEM_DEREG",
        own::UMEM_HANDLE = "MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE",
        own::UMEM_HANDLE = "MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE",
        own::UMEM_ADDR = "MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR",
        own::UMEM_LEN = "MLX5_IB_ATTR_DEVX_UMEM_REG_LEN",
        own::UMEM_ACCESS = "MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS",
        own::UMEM_OUT_ID = "MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID",
        own::UMEM_PGSZ_BITMAP = "MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP",
        own::UMEM_DMABUF_FD = "MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD",
    };
    let mut source = String::from(
        "#include <rdma/ib_user_ioctl_cmds.h>\n#include <rdma/mlx5_user_ioctl_cmds.h>\n",
    );
    for (ours, number, theirs) in &numbers {
        let _ = writeln!(source, "_Static_assert({theirs} == {number}, \"{ours}\");");
    }
    compile(&source);
}
