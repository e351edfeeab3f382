//! Compiles the library's kernels with the host compiler, for the soft GPU.

fn main() {
    println!("cargo::rerun-if-changed=device");
    let include = std::env::var("DEP_SOFTGPU_INCLUDE").expect("softgpu exports its headers");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .opt_level(2)
        .flag("-x")
        .flag("c++")
        .include(include)
        .include("device")
        .files(["device/mp_stamp.cu", "device/mp_unpack.cu"])
        .compile("mp_kernels");
}
