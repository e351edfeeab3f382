//! Compiles the kernels of the crate's tests with the host compiler; for anything else, nothing.

fn main() {
    #[cfg(feature = "testing")]
    compile();
}

#[cfg(feature = "testing")]
fn compile() {
    println!("cargo::rerun-if-changed=tests/kernels.cpp");
    println!(
        "cargo::rerun-if-changed={}",
        gdsync_build::include_dir().display()
    );
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .flag("-ffp-contract=off")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .include(gdsync_build::include_dir())
        .file("tests/kernels.cpp")
        .compile("softgpu_test_kernels");
}
