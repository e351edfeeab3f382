//! Compiles the kernel.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("own_kernel")
        .source("device/scale.cu")
        .ptx("device/ptx/own_kernel.ptx") // without this line, nvcc compiles it
        .code_objects("device/hip") // without this line, HIP compiles it when the program loads it
        .compile()
}
