//! Compiles the kernels of messages for the model: the shipped sources, with the device layer of this
//! package.

fn main() {
    let kernels = "../../libmp/device";
    let sources = [
        "mp_flag.cu",
        "mp_take.cu",
        "mp_direct.cu",
        "mp_replay.cu",
        "mp_step.cu",
    ];
    println!("cargo::rerun-if-changed=device");
    println!("cargo::rerun-if-changed={kernels}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        // Unwinding passes the frames of kernels, which have nothing to destroy.
        .flag("-fno-exceptions")
        // Each plain access calls a function of this package. Nothing of the sanitizer is linked.
        .flag("-fsanitize=thread")
        .opt_level(1)
        .flag("-x")
        .flag("c++")
        // Loom tries few turns of a loop that waits.
        .define("REPLAY_LOOKS", "1")
        .include("device")
        .files(sources.map(|name| format!("{kernels}/{name}")))
        .compile("kernel_model");
}
