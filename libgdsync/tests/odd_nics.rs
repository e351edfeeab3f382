//! NICs that do what no virtual one does: that cannot be opened, cannot be reached by what this
//! library speaks, say of themselves what is not so, or vanish. A stand-in of libibverbs has them.

mod verbs_device;
mod virtual_nic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gdsync::Gpu;
use gdsync::rdma::{Device, QpConfig};
use verbs_device::Pair;
use virtual_nic::outside;

/// The stand-in, built once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/odd_nics");
        let versions = sources.join("verbs.map");
        let part = folder.join(format!("odd_nics.{}.so", std::process::id()));
        let done = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-shared", "-fPIC", "-D_GNU_SOURCE"])
            .arg(format!("-Wl,--version-script={}", versions.display()))
            .arg("-o")
            .args([&part, &sources.join("verbs.c")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        // Processes that run beside this one put the same there.
        let path = folder.join("libodd_nics.so");
        std::fs::rename(&part, &path).unwrap();
        path
    })
}

/// Goes on in a process of its own with these NICs.
macro_rules! with_nics {
    ($nics:expr) => {
        outside!(&[
            ("GDS_IBVERBS_LIB", library().to_str().unwrap()),
            ("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1"),
            ("GDS_PROXY_THREAD", "own"),
            ("ODD_NICS", $nics),
        ]);
    };
}

/// Some drivers say 1 there, which means nothing.
#[test]
fn a_port_on_ethernet_has_no_local_identifier() {
    with_nics!("roce0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::proxy(&gpu).unwrap();
    let pair = Pair::of(gpu, &device, &QpConfig::default());
    let port = pair.a.address().port.unwrap();
    assert_eq!((port.lid, port.gid), (0, [7; 16]));
}
