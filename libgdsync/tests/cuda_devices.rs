//! The choice among several GPUs, and GPUs whose compute mode allows one context, or none, by a
//! stand-in for libcuda.

mod common;
mod standin;

use common::*;
use standin::{Control, Variant, cases, inside, until};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` and its values.
const COMPUTE_MODE: i32 = 20;
const PROHIBITED: i32 = 2;
const EXCLUSIVE_PROCESS: i32 = 3;

/// Each way to open a GPU without a number opens the GPU of this index.
#[track_caller]
fn taken(index: u32) {
    let wanted = Gpu::cuda(index).unwrap();
    for gpu in [Gpu::open("auto"), Gpu::open("cuda"), Gpu::from_env()] {
        let gpu = gpu.unwrap();
        assert!(gpu.is(&wanted), "{gpu:?} in place of {wanted:?}");
    }
    assert!(Gpu::open("cuda:0").unwrap().is(&Gpu::cuda(0).unwrap()));
}

cases! {
    without_a_launcher_the_first_gpu_is_taken in Variant::env(&[("STANDIN_DEVICES", "4")]) =>
        taken(0);
    the_gpu_is_taken_by_the_local_rank
        in Variant::env(&[("STANDIN_DEVICES", "4"), ("MP_LOCAL_RANK", "2")]) =>
        taken(2);
    more_ranks_than_gpus_share_in_turn
        in Variant::env(&[("STANDIN_DEVICES", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "5"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "6")]) =>
        taken(1);
}

#[test]
fn local_rank_that_is_not_a_number_is_an_error() {
    inside!(Variant::env(&[
        ("STANDIN_DEVICES", "2"),
        ("MP_LOCAL_RANK", "first")
    ]));
    for name in ["auto", "cuda"] {
        refused(Gpu::open(name), Kind::Invalid, None, &["MP_LOCAL_RANK"]);
    }
    Gpu::open("cuda:1").unwrap();
}

/// A GPU that allows one context is used only with the application's context. Memory that is freed
/// while a stream waits is released when all streams are idle, because its free would block.
#[test]
fn an_exclusive_gpu_is_used_with_one_context() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    let gpu = Gpu::cuda(0).unwrap();
    assert_eq!(control.live()["contexts"], 1);
    let gate = gpu.word();
    let memory = [MemoryKind::Device, MemoryKind::Pinned].map(|kind| {
        // With a registration of its own, if it is pinned.
        let memory = gpu.alloc(kind, 1 << 20).unwrap();
        memory.write(0, &[7; 64]).unwrap();
        memory
    });
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let live = control.live();
    let wait = geq(&gate, 1);
    qp.post_on(&stream, &[wait]).unwrap();
    until("it waits", || control.waiting() == 1);
    let got = memory[0].bytes::<64>(0);
    assert_eq!(got, [7; 64]);
    // Without the other stream, memory of an idle stream would be freed at once.
    passes(&other);
    drop(memory);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(control.live()["registered"], live["registered"]);
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    passes(&stream);
    until("it is freed", || {
        control.live()["registered"] == live["registered"] - 1
    });
}

#[test]
fn exclusive_gpu_of_another_process_is_an_error() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    control.fail("cuDevicePrimaryCtxRetain", 46, 0);
    // A software GPU does not replace it.
    let names = &["EXCLUSIVE_PROCESS", "another process", "nvidia-smi"];
    refused(Gpu::open("auto"), Kind::System, None, names);
}

#[test]
fn prohibited_gpu_is_an_error() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, PROHIBITED);
    // A software GPU does not replace it.
    let names = &["PROHIBITED", "nvidia-smi"];
    refused(Gpu::open("auto"), Kind::System, None, names);
}
