//! Compiles the library's kernels for the software GPU, if that is in the build. For the tests of
//! this package, compiles the tests' kernels and looks for rdma-core and LLVM.

use gdsync_build::Kernels;

fn main() -> Result<(), gdsync_build::Error> {
    println!("cargo::rustc-check-cfg=cfg(rdma_core, llvm)");
    #[cfg(feature = "testing")]
    testing::prepare();
    Kernels::new("gds_kernels")
        .source("device/gds_copy.cu")
        .source("device/gds_pattern.cu")
        .source("device/gds_program.cu")
        .source("device/gds_trigger.cu")
        .include("device")
        .ptx("device/ptx/gds_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}

#[cfg(feature = "testing")]
mod testing {
    use std::path::Path;

    const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];

    pub fn prepare() {
        println!("cargo::rerun-if-changed=tests/kernels");
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .cpp_link_stdlib(None)
            .flag("-fno-exceptions")
            .opt_level(2)
            .include(gdsync_build::include_dir())
            .file("tests/kernels/witness.cpp")
            .compile("gds_test_kernels");
        look_for_rdma_core();
        look_for_llvm();
    }

    /// Sets `llvm` for tests that disassemble code objects, as `rdma_core` below.
    fn look_for_llvm() {
        let tools =
            ["llvm-objdump-19", "llvm-readelf-19"].map(|name| Path::new("/usr/bin").join(name));
        if tools.iter().all(|path| path.exists()) {
            println!("cargo::rustc-cfg=llvm");
            for path in &tools {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        } else {
            println!("cargo::rerun-if-changed=/etc/ld.so.cache");
        }
    }

    /// Sets `rdma_core` for tests: tests that need it are shown as ignored without it.
    fn look_for_rdma_core() {
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
            // This file is rewritten when a library is installed. A missing library is not listed
            // itself: cargo would rebuild this crate and all its dependents each time.
            println!("cargo::rerun-if-changed=/etc/ld.so.cache");
        } else {
            println!("cargo::rustc-cfg=rdma_core");
        }
    }
}
