//! The choice of NIC and provider, with its reason, for different machines, libraries and
//! variables.

mod common;

use common::{
    H200, Libraries, Tree, libcuda, libibverbs, libmlx5, library, look, none, tree, used,
};
use gdsync_sys::mlx5::Mlx5;

/// libibverbs and libmlx5 with all required functions.
fn both(name: &str) -> Libraries {
    Libraries {
        ibverbs: vec![libibverbs(&format!("libibverbs-{name}.so"), &[]).into()],
        mlx5: vec![libmlx5(&format!("libmlx5-{name}.so")).into()],
        ..none()
    }
}

/// The choice for `purpose`, and its reason.
fn choice(
    tree: &Tree,
    libraries: Libraries,
    variables: &[(&str, &str)],
    purpose: &str,
) -> (String, String) {
    let report = look(tree, libraries, variables);
    let used = used(&report, purpose);
    (used.choice.clone(), used.because.clone())
}

/// The choice of the NIC.
fn nic(tree: &Tree, libraries: Libraries, variables: &[(&str, &str)]) -> (String, String) {
    choice(tree, libraries, variables, "NIC")
}

/// The choice of how `mp` orders the announcing word behind a message's payload.
fn word_order(tree: &Tree, libraries: Libraries) -> (String, String) {
    choice(tree, libraries, &[], "mp announces a message by")
}

#[track_caller]
fn is(found: (String, String), choice: &str, because: &str) {
    assert!(found.0.starts_with(choice), "{found:?}");
    assert!(found.1.contains(because), "{found:?}");
}

const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1/state";

#[test]
fn connectx_is_preferred() {
    let tree = tree("complete");
    let found = nic(&tree, both("first"), &[]);
    is(
        found,
        "mlx5: mlx5_0",
        "software GPU can write its doorbells",
    );
    let gpus = [("NVIDIA H200", H200)];
    let with_gpu = || Libraries {
        cuda: vec![libcuda("libcuda-nic.so", &gpus, ("", 0)).into()],
        ..both("gpu")
    };
    let found = nic(&tree, with_gpu(), &[]);
    is(found, "mlx5: mlx5_0", "the GPU may write its doorbells;");
    tree.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    let found = nic(&tree, with_gpu(), &[]);
    is(found, "mlx5: mlx5_0", "PeerMappingOverride is not set");
}

#[test]
fn without_libmlx5_a_cpu_thread_drives_the_nic() {
    let tree = tree("complete");
    let verbs = Libraries {
        mlx5: none().mlx5,
        ..both("verbs")
    };
    let found = nic(&tree, verbs, &[]);
    is(found, "verbs: mlx5_0", "there is no usable libmlx5");
    let old = library("libmlx5-few.so", &Mlx5::REQUIRED[1..]);
    let old = Libraries {
        mlx5: vec![old.into()],
        ..both("old")
    };
    let found = nic(&tree, old, &[]);
    is(found, "verbs: mlx5_0", "libmlx5 is too old");
}

#[test]
fn other_nic_is_driven_by_a_cpu_thread() {
    let tree = tree("bare");
    for (path, text) in [
        ("class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n"),
        ("class/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
    ] {
        tree.write(&format!("sys/{path}"), text);
    }
    tree.write("dev/infiniband/uverbs0", "device\n");
    let found = nic(&tree, both("rxe"), &[]);
    is(found, "verbs: rxe0", "rxe0 is not a ConnectX");
    let found = word_order(&tree, both("other"));
    is(
        found,
        "a WRITE of a word that waits for a READ",
        "on a fabric",
    );
    tree.write("sys/class/infiniband/rxe0/parent", "eth0\n");
    let found = word_order(&tree, both("soft-roce"));
    is(found, "a plain WRITE", "soft-RoCE places WRITEs in order");
}

#[test]
fn virtual_nic_is_the_last_choice() {
    let tree = tree("complete");
    let found = nic(&tree, none(), &[]);
    is(found, "emulated", "there is no usable libibverbs");
    let lacking = library("libibverbs-few.so", &["ibv_get_device_list"]);
    let lacking = Libraries {
        ibverbs: vec![lacking.into()],
        ..both("lacking")
    };
    let found = nic(&tree, lacking, &[]);
    is(found, "emulated", "libibverbs is too old");
    tree.write(PORT, "1: DOWN\n");
    let found = nic(&tree, both("down"), &[]);
    is(found, "emulated", "mlx5_0 has no active port");
    let bare = common::tree("bare");
    let found = nic(&bare, both("bare"), &[]);
    is(found, "emulated", "there is no RDMA device");
}

#[test]
fn named_nic_or_provider_is_not_replaced() {
    let tree = tree("complete");
    for (name, value, choice, because) in [
        ("GDS_NIC", "mlx5_0:1", "mlx5: mlx5_0", ""),
        ("GDS_NIC", "mlx5_0:1,mlx5_7", "mlx5: mlx5_0", ""),
        (
            "GDS_NIC",
            "mlx5_7",
            "nothing",
            "no RDMA device is called mlx5_7",
        ),
        ("GDS_NIC", "mlx5_0:2", "nothing", "mlx5_0 has no port 2"),
        ("GDS_PROVIDER", "mlx5", "mlx5: mlx5_0", "GDS_PROVIDER=mlx5"),
        (
            "GDS_PROVIDER",
            "verbs",
            "verbs: mlx5_0",
            "GDS_PROVIDER=verbs",
        ),
        (
            "GDS_PROVIDER",
            "emulated",
            "emulated",
            "GDS_PROVIDER=emulated",
        ),
        ("GDS_PROVIDER", "tcp", "tcp: no NIC", "GDS_PROVIDER=tcp"),
        (
            "GDS_PROVIDER",
            "connectx",
            "nothing",
            "the known values are auto, mlx5, verbs, emulated",
        ),
    ] {
        let found = nic(&tree, both("named"), &[(name, value)]);
        is(found, choice, because);
    }
    let found = nic(&tree, none(), &[("GDS_PROVIDER", "verbs")]);
    is(found, "nothing", "there is no usable libibverbs");
}

#[test]
fn gds_nic_accepts_a_guid() {
    let tree = tree("complete");
    let guid = |file: &str, text: &str| {
        tree.write(&format!("sys/class/infiniband/{file}/node_guid"), text);
    };
    guid("mlx5_0", "0002:c903:002f:1190\n");
    // A NIC without a port, which has no GUID either.
    guid("mlx5_1", "0000:0000:0000:0000\n");
    for (value, choice, because) in [
        ("0x0002c903002f1190", "mlx5: mlx5_0", ""),
        ("0x2c903002F1190:1", "mlx5: mlx5_0", ""),
        ("0x0002c903002f1190:2", "nothing", "mlx5_0 has no port 2"),
        (
            "0x2c903002f1191",
            "nothing",
            "no RDMA device is called 0x0002c903002f1191",
        ),
    ] {
        let found = nic(&tree, both("guid"), &[("GDS_NIC", value)]);
        is(found, choice, because);
    }
}

#[test]
fn invalid_gds_nic_is_an_error_for_every_provider() {
    let tree = tree("complete");
    for value in ["", "mlx5_0:x", "mlx5_0:0", "0x0", "0x+1", "mlx5_0,,mlx5_1"] {
        for provider in ["auto", "mlx5", "verbs", "emulated"] {
            let set = [("GDS_NIC", value), ("GDS_PROVIDER", provider)];
            let found = nic(&tree, both("invalid"), &set);
            is(
                found,
                "nothing",
                &format!("GDS_NIC={value} does not name a NIC"),
            );
        }
    }
}

#[test]
fn gds_gid_index_excludes_the_virtual_nic() {
    let bare = common::tree("bare");
    let set = [("GDS_GID_INDEX", "3")];
    let found = nic(&bare, both("gid"), &set);
    is(
        found,
        "nothing",
        "GDS_GID_INDEX=3, but there is no RDMA device",
    );
    let found = nic(&bare, none(), &[set[0], ("GDS_PROVIDER", "emulated")]);
    is(found, "emulated", "GDS_PROVIDER=emulated");
    let found = nic(&tree("complete"), both("gid"), &set);
    is(found, "mlx5: mlx5_0", "");
}

/// Writes NICs into the tree of devices, each below its bridge, and a GPU below the second bridge.
fn bridges(tree: &Tree, nics: &[(&str, &str)]) {
    use std::os::unix::fs::symlink;
    let sys = tree.0.join("sys");
    let place = |bridge: &str, device: &str| {
        let place = sys.join(format!("devices/pci0000:00/{bridge}/{device}"));
        std::fs::create_dir_all(&place).unwrap();
        place
    };
    let gpu = sys.join("bus/pci/devices/0000:1b:00.0");
    std::fs::create_dir_all(gpu.parent().unwrap()).unwrap();
    symlink(place("0000:00:02.0", "0000:1b:00.0"), gpu).unwrap();
    for (i, (name, bridge)) in nics.iter().enumerate() {
        let folder = format!("sys/class/infiniband/{name}");
        let uverbs = format!("uverbs{}", i + 1);
        tree.write(&format!("{folder}/ports/1/state"), "4: ACTIVE\n");
        let ibdev = format!("sys/class/infiniband_verbs/{uverbs}/ibdev");
        tree.write(&ibdev, &format!("{name}\n"));
        tree.write(&format!("dev/infiniband/{uverbs}"), "device\n");
        let device = place(bridge, &format!("0000:a{i}:00.0"));
        symlink(device, tree.0.join(folder).join("device")).unwrap();
    }
}

#[test]
fn nic_nearest_to_the_gpu_is_preferred() {
    let tree = tree("bare");
    let (far, near) = ("0000:00:01.0", "0000:00:02.0");
    bridges(
        &tree,
        &[("mlx5_1", far), ("mlx5_20", near), ("mlx5_3", near)],
    );
    let gpus = [("NVIDIA H200", H200)];
    let with_gpu = || Libraries {
        cuda: vec![libcuda("libcuda-near.so", &gpus, ("", 0)).into()],
        ..both("near")
    };
    let choice = |set: &[(&str, &str)]| nic(&tree, with_gpu(), set).0;
    // Of two names, the shorter one is first.
    assert!(choice(&[]).starts_with("mlx5: mlx5_3,"));
    // No NIC is nearer to a software GPU than another.
    assert!(choice(&[("GDS_GPU", "soft")]).starts_with("mlx5: mlx5_1,"));
    tree.write("sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
    assert!(choice(&[]).starts_with("mlx5: mlx5_20,"));
    assert!(choice(&[("GDS_NIC", "mlx5_1")]).starts_with("mlx5: mlx5_1,"));
}
