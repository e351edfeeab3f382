//! Sets a cfg for the tests of layouts if this machine has the C headers to compare with.

use std::path::Path;

const HEADERS: [&str; 2] = ["infiniband/verbs.h", "infiniband/mlx5dv.h"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(rdma_headers)");
    println!("cargo::rerun-if-changed=build.rs");
    if cfg!(feature = "testing") {
        look_for_headers();
    }
}

fn look_for_headers() {
    let include = Path::new("/usr/include");
    let folder = include.join("infiniband");
    let mut all = true;
    for header in HEADERS.map(|name| include.join(name)) {
        // A file that is installed later changes its folder. The missing file itself is not named:
        // cargo would rebuild this crate and all that depend on it each time.
        let seen = [header.as_path(), &folder, include];
        let seen = seen.into_iter().find(|path| path.exists());
        println!(
            "cargo::rerun-if-changed={}",
            seen.unwrap_or(include).display()
        );
        all &= header.exists();
    }
    if all {
        println!("cargo::rustc-cfg=rdma_headers");
    }
}
