//! Sets a cfg for the tests of layouts if this machine has the headers to compare with.

use std::path::Path;

/// A cfg, and the files below /usr that it needs.
const HEADERS: [(&str, &[&str]); 2] = [
    (
        "rdma_headers",
        &["include/infiniband/verbs.h", "include/infiniband/mlx5dv.h"],
    ),
    (
        "hip_headers",
        &[
            "include/hip/hip_runtime_api.h",
            "include/hip/hiprtc.h",
            "include/hsa/hsa.h",
        ],
    ),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (cfg, files) in HEADERS {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if cfg!(feature = "testing") && files.iter().all(|file| is_here(file)) {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
}

/// Whether a file exists; this script runs again if that changes.
fn is_here(file: &str) -> bool {
    let path = Path::new("/usr").join(file);
    // A file that is installed later changes its folder. The missing file itself is not named:
    // cargo would rebuild this crate and all that depend on it each time.
    let seen = path.ancestors().find(|path| path.exists());
    let seen = seen.expect("/ exists").display();
    println!("cargo::rerun-if-changed={seen}");
    path.exists()
}
