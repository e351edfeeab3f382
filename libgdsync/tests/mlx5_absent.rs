//! Libraries and NICs that are absent, incomplete, or not the named ones: a typed error with the
//! reason, and the virtual NIC is used.

#[path = "common/shim.rs"]
mod shim;
mod virtual_nic;

use std::path::{Path, PathBuf};

use gdsync::rdma::{Device, Provider};
use gdsync::{Gpu, Kind};
use virtual_nic::{cases, outside};

#[track_caller]
fn refused(kind: Kind, names: &[&str]) {
    let gpu = Gpu::soft().unwrap();
    let error = Device::mlx5(&gpu).expect_err("it cannot be opened");
    assert_eq!(error.kind(), kind, "{error:?}");
    for name in names {
        let text = error.to_string();
        assert!(text.contains(name), "{text:?} does not name {name:?}");
    }
    // A caller that names a NIC gets no other.
    let named = ["GDS_NIC", "GDS_GID_INDEX"].map(std::env::var_os);
    if named != [None, None] {
        assert_eq!(Device::from_env(&gpu).unwrap_err().kind(), kind);
        Device::emulated(&gpu).unwrap();
        return;
    }
    let device = Device::from_env(&gpu).unwrap();
    assert_eq!(device.provider(), Provider::Emulated);
    let why = &device.passed_over()[0];
    for name in names {
        assert!(why.contains(name), "{why:?} does not name {name:?}");
    }
}

/// A library that exports functions which are never called, one version of each.
fn standin(name: &str, functions: &[(&str, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let part = folder.join(format!("{name}.{}", std::process::id()));
    let (c, map) = (part.with_extension("c"), part.with_extension("map"));
    let (mut source, mut script) = (String::new(), String::new());
    let mut versions: Vec<&str> = functions.iter().map(|(_, version)| *version).collect();
    versions.sort_unstable();
    versions.dedup();
    for version in versions {
        script += &format!("{version} {{ global:");
        for (function, _) in functions.iter().filter(|(_, v)| *v == version) {
            source += &format!("void {function}(void) {{}}\n");
            script += &format!(" {function};");
        }
        script += " };\n";
    }
    std::fs::write(&c, source).unwrap();
    std::fs::write(&map, script).unwrap();
    shim::compile(name, &c, &[&shim::exports(&map)])
}

/// The functions that the table of libibverbs requires.
const VERBS: &[(&str, &str)] = &[
    ("ibv_get_device_list", "IBVERBS_1.1"),
    ("ibv_free_device_list", "IBVERBS_1.1"),
    ("ibv_get_device_name", "IBVERBS_1.1"),
    ("ibv_get_device_guid", "IBVERBS_1.1"),
    ("ibv_open_device", "IBVERBS_1.1"),
    ("ibv_close_device", "IBVERBS_1.1"),
    ("ibv_query_port", "IBVERBS_1.1"),
    ("ibv_query_gid", "IBVERBS_1.1"),
    ("ibv_query_pkey", "IBVERBS_1.1"),
    ("ibv_query_qp", "IBVERBS_1.1"),
    ("ibv_get_async_event", "IBVERBS_1.1"),
    ("ibv_ack_async_event", "IBVERBS_1.1"),
    ("ibv_alloc_pd", "IBVERBS_1.1"),
    ("ibv_dealloc_pd", "IBVERBS_1.1"),
    ("ibv_reg_mr_iova", "IBVERBS_1.7"),
    ("ibv_dereg_mr", "IBVERBS_1.1"),
    ("ibv_query_device", "IBVERBS_1.1"),
    ("ibv_create_comp_channel", "IBVERBS_1.0"),
    ("ibv_destroy_comp_channel", "IBVERBS_1.0"),
    ("ibv_get_cq_event", "IBVERBS_1.1"),
    ("ibv_ack_cq_events", "IBVERBS_1.1"),
    ("ibv_create_cq", "IBVERBS_1.1"),
    ("ibv_create_qp", "IBVERBS_1.1"),
    ("ibv_destroy_cq", "IBVERBS_1.1"),
    ("ibv_modify_qp", "IBVERBS_1.1"),
    ("ibv_destroy_qp", "IBVERBS_1.1"),
    ("ibv_create_ah", "IBVERBS_1.1"),
    ("ibv_destroy_ah", "IBVERBS_1.1"),
];

#[test]
fn no_library() {
    outside!(&[("GDS_IBVERBS_LIB", "/nowhere/libibverbs.so.1")]);
    refused(Kind::Absent, &["verbs", "/nowhere/libibverbs.so.1"]);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn no_direct_verbs() {
    outside!(&[("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1")]);
    refused(Kind::Absent, &["mlx5", "/nowhere/libmlx5.so.1"]);
}

#[test]
fn a_library_that_lacks_a_symbol() {
    let some: Vec<_> = VERBS
        .iter()
        .copied()
        .filter(|(f, _)| *f != "ibv_reg_mr_iova")
        .collect();
    let path = standin("libibverbs-lacking.so", &some);
    outside!(&[("GDS_IBVERBS_LIB", path.to_str().unwrap())]);
    refused(
        Kind::Unsupported,
        &["libibverbs-lacking.so", "ibv_reg_mr_iova"],
    );
}

#[test]
fn a_library_that_is_too_old() {
    let old: Vec<_> = VERBS
        .iter()
        .map(|(function, _)| (*function, "IBVERBS_1.0"))
        .collect();
    let path = standin("libibverbs-old.so", &old);
    outside!(&[("GDS_IBVERBS_LIB", path.to_str().unwrap())]);
    refused(
        Kind::Unsupported,
        &["libibverbs-old.so", "ibv_get_device_list", "IBVERBS_1.1"],
    );
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn direct_verbs_that_are_too_old() {
    let old = ["is_supported", "create_cq", "create_qp", "init_obj"];
    let old = old.map(|name| format!("mlx5dv_{name}"));
    let mut all: Vec<_> = old.iter().map(|name| (name.as_str(), "MLX5_1.0")).collect();
    all[0].1 = "MLX5_1.8";
    let path = standin("libmlx5-old.so", &all);
    outside!(&[("GDS_MLX5_LIB", path.to_str().unwrap())]);
    refused(
        Kind::Unsupported,
        &["libmlx5-old.so", "mlx5dv_create_cq", "MLX5_1.1"],
    );
}

cases! {
    a_nic_of_another_name in &[("GDS_NIC", "mlx5_7")] => refused(Kind::Absent, &["mlx5_7"]);
    a_port_that_is_not_there in &[("GDS_NIC", "mlx5_0:3")] => refused(Kind::Absent, &["mlx5_0:3"]);
    invalid_nic_name_is_refused in &[("GDS_NIC", "mlx5_0:zero")] =>
        refused(Kind::Invalid, &["GDS_NIC", "mlx5_0:zero"]);
    the_second_port_of_the_second_nic
        in &[("VMLX5_DEVICES", "2"), ("VMLX5_PORTS", "2"), ("GDS_NIC", "mlx5_1:2")] => {
        let device = Device::mlx5(&Gpu::soft().unwrap()).unwrap();
        assert_eq!(device.name(), "mlx5 mlx5_1:2");
    };
    missing_gid_index_is_refused in &[("VMLX5_LINK", "roce"), ("GDS_GID_INDEX", "200")] =>
        refused(Kind::Invalid, &["GDS_GID_INDEX=200"]);
}

#[test]
fn rdma_core_is_here_where_it_must_be() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "virt");
    assert!(cfg!(rdma_core) || !must, "rdma-core is not installed");
}
