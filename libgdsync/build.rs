//! Compiles the library's kernels, and those of its tests, with the host compiler, for the
//! soft GPU.

const KERNELS: [&str; 4] = [
    "device/gds_copy.cu",
    "device/gds_pattern.cu",
    "device/gds_program.cu",
    "device/gds_trigger.cu",
];

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
