//! Builds the crate's own test kernels with the host compiler, and tells the build scripts of
//! dependent crates where the device headers are (`DEP_SOFTGPU_INCLUDE`).

use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let device = root.join("device");
    println!("cargo::metadata=include={}", device.display());
    println!("cargo::rerun-if-changed=device");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .flag("-ffp-contract=off")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .include(&device)
        .file("device/tests/kernels.cpp")
        .compile("softgpu_test_kernels");
}
