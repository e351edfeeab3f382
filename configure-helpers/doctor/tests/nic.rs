//! Which NIC would be used, by whom, and why, as machines, libraries and variables differ.

mod common;

use common::{H200, Libraries, Tree, libcuda, libibverbs, libmlx5, library, look, none, tree};
use gdsync_sys::mlx5::Mlx5;

/// libibverbs and libmlx5 with all that is required.
fn both(name: &str) -> Libraries {
    Libraries {
        ibverbs: vec![libibverbs(&format!("libibverbs-{name}.so"), &[]).into()],
        mlx5: vec![libmlx5(&format!("libmlx5-{name}.so")).into()],
        ..none()
    }
}

/// What is said of the NIC: choice, and reason.
fn nic(tree: &Tree, libraries: Libraries, variables: &[(&str, &str)]) -> (String, String) {
    let report = look(tree, libraries, variables);
    let found = report.uses.into_iter().find(|u| u.purpose == "NIC");
    let found = found.expect("it is said");
    (found.choice, found.because)
}

#[track_caller]
fn is(said: (String, String), choice: &str, because: &str) {
    assert!(said.0.starts_with(choice), "{said:?}");
    assert!(said.1.contains(because), "{said:?}");
}

const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1/state";

#[test]
fn a_connectx_goes_before_all() {
    let tree = tree("complete");
    let said = nic(&tree, both("first"), &[]);
    is(said, "rdma_core: mlx5_0", "software GPU ring it");
    let gpus = [("NVIDIA H200", H200)];
    let with_gpu = || Libraries {
        cuda: vec![libcuda("libcuda-nic.so", &gpus, ("", 0)).into()],
        ..both("gpu")
    };
    let said = nic(&tree, with_gpu(), &[]);
    is(said, "rdma_core: mlx5_0", "the GPU may ring it");
    tree.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    let said = nic(&tree, with_gpu(), &[]);
    is(said, "rdma_core: mlx5_0", "PeerMappingOverride is not set");
}

#[test]
fn without_direct_verbs_a_thread_drives_it() {
    let tree = tree("complete");
    let verbs = Libraries {
        mlx5: none().mlx5,
        ..both("verbs")
    };
    let said = nic(&tree, verbs, &[]);
    is(said, "proxy: mlx5_0", "there is no usable libmlx5");
    let old = library("libmlx5-few.so", &Mlx5::REQUIRED[1..]);
    let old = Libraries {
        mlx5: vec![old.into()],
        ..both("old")
    };
    let said = nic(&tree, old, &[]);
    is(said, "proxy: mlx5_0", "libmlx5 is too old");
}

#[test]
fn another_nic_is_driven_by_a_thread() {
    let tree = tree("bare");
    for (path, text) in [
        ("class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n"),
        ("class/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
    ] {
        tree.write(&format!("sys/{path}"), text);
    }
    tree.write("dev/infiniband/uverbs0", "device\n");
    let said = nic(&tree, both("rxe"), &[]);
    is(said, "proxy: rxe0", "rxe0 is no ConnectX");
}

#[test]
fn the_virtual_one_comes_last() {
    let tree = tree("complete");
    let said = nic(&tree, none(), &[]);
    is(said, "emulated", "there is no usable libibverbs");
    let lacking = library("libibverbs-few.so", &["ibv_get_device_list"]);
    let lacking = Libraries {
        ibverbs: vec![lacking.into()],
        ..both("lacking")
    };
    let said = nic(&tree, lacking, &[]);
    is(said, "emulated", "libibverbs is too old");
    tree.write(PORT, "1: DOWN\n");
    let said = nic(&tree, both("down"), &[]);
    is(said, "emulated", "mlx5_0 has no active port");
    let bare = common::tree("bare");
    let said = nic(&bare, both("bare"), &[]);
    is(said, "emulated", "there is no RDMA device");
}

#[test]
fn what_is_named_is_not_replaced() {
    let tree = tree("complete");
    for (name, value, choice, because) in [
        ("GDS_NIC", "mlx5_0:1", "rdma_core: mlx5_0", ""),
        ("GDS_NIC", "mlx5_0:1,mlx5_7", "rdma_core: mlx5_0", ""),
        (
            "GDS_NIC",
            "mlx5_7",
            "nothing",
            "no RDMA device is called mlx5_7",
        ),
        ("GDS_NIC", "mlx5_0:2", "nothing", "mlx5_0 has no port 2"),
        (
            "GDS_PROVIDER",
            "rdma_core",
            "rdma_core: mlx5_0",
            "GDS_PROVIDER=rdma_core",
        ),
        (
            "GDS_PROVIDER",
            "proxy",
            "proxy: mlx5_0",
            "GDS_PROVIDER=proxy",
        ),
        (
            "GDS_PROVIDER",
            "emulated",
            "emulated",
            "GDS_PROVIDER=emulated",
        ),
        (
            "GDS_PROVIDER",
            "mlx5",
            "nothing",
            "known are auto, rdma_core, proxy, emulated",
        ),
    ] {
        let said = nic(&tree, both("named"), &[(name, value)]);
        is(said, choice, because);
    }
    let said = nic(&tree, none(), &[("GDS_PROVIDER", "proxy")]);
    is(said, "nothing", "there is no usable libibverbs");
}
