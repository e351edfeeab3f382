//! Compiles the examples' kernels.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("examples_kernels")
        .source("device/add.cu")
        .source("device/halo2d.cu")
        .source("device/items.cu")
        .ptx("device/ptx/examples_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}
