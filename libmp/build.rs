//! Compiles the library's kernels.

fn main() -> Result<(), gdsync_build::Error> {
    gdsync_build::Kernels::new("mp_kernels")
        .source("device/mp_collect.cu")
        .source("device/mp_flag.cu")
        .source("device/mp_direct.cu")
        .source("device/mp_put.cu")
        .source("device/mp_replay.cu")
        .source("device/mp_stamp.cu")
        .source("device/mp_step.cu")
        .source("device/mp_strided.cu")
        .source("device/mp_take.cu")
        .source("device/mp_unpack.cu")
        .include("device")
        .ptx("device/ptx/mp_kernels.ptx")
        .code_objects("device/hip")
        .compile()
}
