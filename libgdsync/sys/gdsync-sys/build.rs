//! Tells the tests of layouts whether this machine has the C headers to compare with.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(rdma_headers)");
    let headers =
        ["verbs.h", "mlx5dv.h"].map(|name| Path::new("/usr/include/infiniband").join(name));
    println!("cargo::rerun-if-changed=build.rs");
    // What does not exist is not named: cargo would take it for changed each time.
    for header in headers.iter().filter(|header| header.exists()) {
        println!("cargo::rerun-if-changed={}", header.display());
    }
    if headers.iter().all(|header| header.exists()) {
        println!("cargo::rustc-cfg=rdma_headers");
    }
}
