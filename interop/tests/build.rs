//! Checks whether this machine has libibverbs with a provider for the virtual NIC, and the headers of
//! HIP, for the tests.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(rdma_core, hip_headers)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let here = |name: &str| {
        let folders = [
            "/usr/lib64".to_owned(),
            "/usr/lib".to_owned(),
            "/usr/include".to_owned(),
            format!("/usr/lib/{target}-linux-gnu"),
        ];
        let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
        let found = paths.find(|path| path.exists());
        // Cargo treats a missing file as changed each time, so this names a file that the
        // installation of a library changes.
        let seen = found.clone().unwrap_or("/etc/ld.so.cache".into());
        println!("cargo::rerun-if-changed={}", seen.display());
        found.is_some()
    };
    if here("libibverbs.so.1") && here("libmlx5.so.1") {
        println!("cargo::rustc-cfg=rdma_core");
    }
    if here("hip/hip_runtime_api.h") {
        println!("cargo::rustc-cfg=hip_headers");
    }
}
