//! Compiles the library's kernels, and those of its tests, with the host compiler, for the
//! soft GPU. Tells the tests whether this machine has rdma-core.

use std::path::Path;

const KERNELS: [&str; 4] = [
    "device/gds_copy.cu",
    "device/gds_pattern.cu",
    "device/gds_program.cu",
    "device/gds_trigger.cu",
];

const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];

fn main() {
    println!("cargo::rerun-if-changed=device");
    println!("cargo::rerun-if-changed=tests/kernels");
    let include = std::env::var("DEP_SOFTGPU_INCLUDE").expect("softgpu exports its headers");
    compiler(&include)
        .flag("-x")
        .flag("c++")
        .include("device")
        .files(KERNELS)
        .compile("gds_kernels");
    compiler(&include)
        .file("tests/kernels/witness.cpp")
        .compile("gds_test_kernels");
    look_for_rdma_core();
}

/// Sets `rdma_core` for tests: what runs without is shown as ignored.
fn look_for_rdma_core() {
    println!("cargo::rustc-check-cfg=cfg(rdma_core)");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let folders = [
        "/usr/lib64".into(),
        "/usr/lib".into(),
        format!("/usr/lib/{target}-linux-gnu"),
    ];
    let place = |name: &&str| {
        let all = folders.iter().map(|folder| Path::new(folder).join(name));
        all.into_iter().find(|path| path.exists())
    };
    let found: Vec<_> = LIBRARIES.iter().filter_map(place).collect();
    for path in &found {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    if found.len() < LIBRARIES.len() {
        // Written anew when a library is installed. What is missing is not named itself: cargo
        // would build this crate and all behind it anew each time.
        println!("cargo::rerun-if-changed=/etc/ld.so.cache");
    } else {
        println!("cargo::rustc-cfg=rdma_core");
    }
}

fn compiler(include: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .opt_level(2)
        .include(include);
    build
}
