//! Compiles the kernels.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("halo3d_kernels")
        .source("device/halo3d.cu")
        .ptx("device/ptx/halo3d_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}
