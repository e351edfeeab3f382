//! Compiles the kernels.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("particles_kernels")
        .source("device/particles.cu")
        .ptx("device/ptx/particles_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}
