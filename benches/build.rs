//! Compiles the benchmark's kernels.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("mpbench_kernels")
        .source("device/mpbench_batch.cu")
        .source("device/mpbench_turn.cu")
        .source("device/mpbench_compute.cu")
        .include("device")
        .ptx("device/ptx/mpbench_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}
