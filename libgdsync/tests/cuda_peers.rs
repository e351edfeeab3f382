//! What CUDA GPUs are to each other, by a stand-in for libcuda: their names in other processes, the
//! access to each other's memory, and launches that overlap with the work in front of them.

mod common;
mod standin;

use common::*;
use gdsync::gpu::{GpuIdentity, KERNELS, Unreachable};
use gdsync::internals::Fill;
use standin::{Control, Driver, Variant, cases, inside};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const COMPUTE_MAJOR: i32 = 75;

/// Two GPUs, in a stand-in that lacks a function.
const fn two_without(function: &'static str) -> Variant {
    Variant::of(Driver::Cuda, Some(function), &[("STANDIN_DEVICES", "2")])
}

/// The first GPU and the name of the second one; each reaches itself.
fn two() -> (Gpu, GpuIdentity) {
    let (first, second) = (Gpu::cuda(0).unwrap(), Gpu::cuda(1).unwrap());
    let there = GpuIdentity::from_bytes(&second.identity().to_bytes()).unwrap();
    assert!(there == second.identity() && there != first.identity());
    assert_eq!(first.reaches(&first.identity()), Ok(()));
    (first, there)
}

/// The text of the reason why the first GPU does not reach the second one.
fn refusal() -> String {
    let (first, there) = two();
    first.reaches(&there).unwrap_err().to_string()
}

cases! {
    gpus_with_peer_access_reach_each_other in Variant::env(&[("STANDIN_DEVICES", "2")]) => {
        let (first, there) = two();
        assert_eq!(first.reaches(&there), Ok(()));
    };
    gpus_without_peer_access_do_not
        in Variant::env(&[("STANDIN_DEVICES", "2"), ("STANDIN_PEERS", "0")]) => {
        let text = refusal();
        assert!(text.contains("gpu0") && text.contains("no peer access to cuda gpu1"), "{text}");
    };
    driver_that_cannot_say_so in two_without("cuDeviceCanAccessPeer") =>
        assert_eq!(refusal(), "the driver has no cuDeviceCanAccessPeer");
    gpus_without_a_uuid_have_their_pci_address in two_without("cuDeviceGetUuid_v2") => {
        let (first, there) = two();
        assert!(there.to_string().contains("0000:41:01.0"), "{there}");
        assert_eq!(first.reaches(&there), Ok(()));
    };
    gpu_that_is_not_visible_is_not_reached => {
        let there = GpuIdentity::from_bytes(&[&[1, 2][..], &[9; 16]].concat()).unwrap();
        let refused = Gpu::cuda(0).unwrap().reaches(&there);
        assert_eq!(refused, Err(Unreachable::NotVisible { there }));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("09090909-0909-") && text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    };
    driver_without_descriptors_reaches_nothing
        in Variant::without("cuMemImportFromShareableHandle") => {
        let gpu = Gpu::cuda(0).unwrap();
        let refused = gpu.reaches(&gpu.identity());
        assert!(matches!(refused, Err(Unreachable::NoDescriptors { .. })), "{refused:?}");
    };
    gpus_of_two_runtimes_do_not_reach_each_other => {
        let (cuda, soft) = (Gpu::cuda(0).unwrap(), Gpu::soft().unwrap());
        for (here, there) in [(&cuda, &soft), (&soft, &cuda)] {
            let refused = here.reaches(&there.identity());
            assert!(matches!(refused, Err(Unreachable::Runtime { .. })), "{refused:?}");
        }
    };
    dependent_launches => assert_eq!(launched_by(9), ["cuLaunchKernel", "cuLaunchKernelEx"]);
    dependent_launches_of_an_older_gpu =>
        assert_eq!(launched_by(8), ["cuLaunchKernel", "cuLaunchKernel"]);
    dependent_launches_of_an_older_driver in Variant::without("cuLaunchKernelEx") =>
        assert_eq!(launched_by(9), ["cuLaunchKernel", "cuLaunchKernel"]);
}

/// The calls of a plain launch and of a dependent one, on a GPU of this compute capability. Both
/// kernels run.
fn launched_by(major: i32) -> Vec<String> {
    let control = Control::open();
    control.set_attribute(COMPUTE_MAJOR, major);
    let gpu = Gpu::cuda(0).unwrap();
    let fill = gpu.load(&KERNELS).unwrap().kernel("gds_fill").unwrap();
    let memory = gpu.alloc(MemoryKind::Device, 128).unwrap();
    let stream = gpu.stream().unwrap();
    let params = |at| Fill {
        at: memory.addr().offset(at),
        len: 64,
        seed: 3,
    };
    control.record(true);
    // SAFETY: the memory is kept until the stream is done, and each kernel has its own part.
    unsafe {
        let dims = Dims::linear(1, 32);
        stream.launch(&fill, dims, params(0).bytes()).unwrap();
        stream
            .launch_dependent(&fill, dims, params(64).bytes())
            .unwrap();
    }
    control.record(false);
    passes(&stream);
    let bytes = memory.vec(0, 128);
    assert!(bytes[..64] == bytes[64..] && bytes[..64] != [0; 64]);
    let calls = control.calls();
    let names = calls.lines().filter_map(|line| line.split(' ').nth(1));
    let launches = names.filter(|name| name.starts_with("cuLaunchKernel"));
    launches.map(str::to_owned).collect()
}

/// An error of the driver's call is the launch's.
#[test]
fn refused_dependent_launch_is_an_error() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let fill = gpu.load(&KERNELS).unwrap().kernel("gds_fill").unwrap();
    let stream = gpu.stream().unwrap();
    control.fail("cuLaunchKernelEx", 4242, 0);
    let (dims, params) = (Dims::linear(1, 32), Fill::default());
    // SAFETY: fills nothing.
    let launched = unsafe { stream.launch_dependent(&fill, dims, params.bytes()) };
    let error = launched.unwrap_err();
    assert!(error.to_string().contains("4242"), "{error}");
}
