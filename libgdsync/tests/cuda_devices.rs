//! Which GPU of several is taken, and GPUs whose compute mode allows one context, or none, by a
//! stand-in for libcuda.

mod standin;

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::memop::Condition;
use gdsync::rdma::{Descriptor, Device, QpConfig};
use gdsync::{Gpu, Kind};
use standin::{Control, Variant, inside, until};

const LIMIT: Duration = Duration::from_secs(60);
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

#[test]
fn without_a_launcher_the_first_gpu_is_taken() {
    inside!(Variant {
        env: &[("STANDIN_DEVICES", "4")],
        ..Variant::default()
    });
    taken(0);
}

#[test]
fn the_gpu_is_taken_by_the_local_rank() {
    inside!(Variant {
        env: &[("STANDIN_DEVICES", "4"), ("MP_LOCAL_RANK", "2")],
        ..Variant::default()
    });
    taken(2);
}

#[test]
fn more_ranks_than_gpus_share_in_turn() {
    inside!(Variant {
        env: &[
            ("STANDIN_DEVICES", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "5"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "6"),
        ],
        ..Variant::default()
    });
    taken(1);
}

#[test]
fn a_local_rank_that_is_no_number_is_an_error() {
    inside!(Variant {
        env: &[("STANDIN_DEVICES", "2"), ("MP_LOCAL_RANK", "first")],
        ..Variant::default()
    });
    for name in ["auto", "cuda"] {
        let error = Gpu::open(name).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(error.to_string().contains("MP_LOCAL_RANK"), "{error}");
    }
    Gpu::open("cuda:1").unwrap();
}

/// A GPU that allows one context is used with the application's only. Memory that is given back
/// while a stream waits is freed when all streams are idle, because its free would block.
#[test]
fn an_exclusive_gpu_is_used_with_one_context() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    let gpu = Gpu::cuda(0).unwrap();
    assert_eq!(control.live()["contexts"], 1);
    let gate = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let gate = gate.word32(0).unwrap();
    let memory = [MemoryKind::Device, MemoryKind::Pinned].map(|kind| {
        let memory = gpu.alloc(kind, 4096).unwrap();
        memory.write(0, &[7; 64]).unwrap();
        memory
    });
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let live = control.live();
    let wait = Descriptor::WaitValue32 {
        word: &gate,
        condition: Condition::Geq,
        value: 1,
        flush: false,
    };
    qp.post_on(&stream, &[wait]).unwrap();
    until("it waits", || control.waiting() == 1);
    let mut got = [0; 64];
    memory[0].read(0, &mut got).unwrap();
    assert_eq!(got, [7; 64]);
    // Without the other stream, memory of an idle stream would be freed at once.
    assert!(other.synchronize(LIMIT).unwrap());
    drop(memory);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(control.live()["host"], live["host"]);
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap());
    until("it is freed", || control.live()["host"] == live["host"] - 1);
}

#[test]
fn an_exclusive_gpu_of_another_process_says_so() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    control.fail("cuDevicePrimaryCtxRetain", 46, 0);
    // Nor is a software GPU taken in its place.
    let error = Gpu::open("auto").unwrap_err();
    assert_eq!(error.kind(), Kind::System, "{error:?}");
    for word in ["EXCLUSIVE_PROCESS", "another process", "nvidia-smi"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_prohibited_gpu_says_so() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, PROHIBITED);
    // Nor is a software GPU taken in its place.
    let error = Gpu::open("auto").unwrap_err();
    assert_eq!(error.kind(), Kind::System, "{error:?}");
    for word in ["PROHIBITED", "nvidia-smi"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}
