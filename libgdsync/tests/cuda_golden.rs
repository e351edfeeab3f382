//! The golden traces once more, on CUDA: the programs of `golden.rs` run on a stand-in for
//! libcuda, and what its driver table was called with is compared with the very same files.

#[path = "common/golden_rig.rs"]
mod golden_rig;
mod standin;
#[path = "standin/trace.rs"]
mod trace;

use gdsync::memop::Caps;
use gdsync::rdma::Lowering;
use gdsync::{Gpu, Kind};
use golden_rig::{Watch, by_kernel, by_proxy, cuda, small};
use standin::{Control, Variant, inside};
use trace::Calls;

/// The device attributes that capabilities are read from.
const FLUSH: i32 = 98;
const ORDERING: i32 = 118;
const MEMOPS_64: i32 = 122;
const NOR: i32 = 123;

fn set(caps: &Caps) -> Control {
    let control = Control::open();
    control.set_attribute(FLUSH, caps.flush.into());
    control.set_attribute(ORDERING, if caps.ordered_writes { 100 } else { 0 });
    control.set_attribute(MEMOPS_64, caps.memops64.into());
    control.set_attribute(NOR, caps.nor.into());
    control
}

/// A GPU of the stand-in with these capabilities, and who notes its calls.
fn standin_gpu(caps: Caps) -> (Gpu, Box<dyn Watch>) {
    let control = set(&caps);
    let gpu = Gpu::cuda(0).unwrap();
    assert_eq!(gpu.runtime_name(), "cuda");
    let got = gpu.caps();
    assert_eq!(
        (got.flush, got.ordered_writes, got.nor, got.batch_limit),
        (caps.flush, caps.ordered_writes, caps.nor, 255)
    );
    (gpu, Box::new(Calls::new(control)))
}

#[test]
fn a_message_in_each_lap() {
    inside!(Variant::default());
    golden_rig::laps("laps-cuda", &standin_gpu, cuda(), small());
}

#[test]
fn a_message_in_each_lap_without_nor() {
    inside!(Variant::default());
    let caps = Caps {
        nor: false,
        ..cuda()
    };
    golden_rig::laps("laps-no-nor", &standin_gpu, caps, small());
}

/// Such a GPU is older than what the driver still supports, and is refused as a whole.
#[test]
fn a_gpu_without_64_bits_is_refused() {
    inside!(Variant::default());
    let caps = Caps {
        memops64: false,
        ..cuda()
    };
    set(&caps);
    let refused = Gpu::cuda(0).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains("64-bit"), "{refused}");
}

#[test]
fn a_message_in_each_lap_by_kernel() {
    inside!(Variant::default());
    golden_rig::laps("laps-kernel", &standin_gpu, cuda(), by_kernel());
}

#[test]
fn a_message_in_each_lap_by_proxy() {
    inside!(Variant::default());
    golden_rig::laps("laps-proxy", &standin_gpu, cuda(), by_proxy());
}

#[test]
fn a_change_of_stream() {
    inside!(Variant::default());
    golden_rig::edges("edges-ring", &standin_gpu, small());
}

#[test]
fn a_change_of_stream_by_kernel() {
    inside!(Variant::default());
    golden_rig::edges("edges-kernel", &standin_gpu, by_kernel());
}

#[test]
fn a_change_of_stream_by_proxy() {
    inside!(Variant::default());
    golden_rig::edges("edges-proxy", &standin_gpu, by_proxy());
}

#[test]
fn flushes() {
    inside!(Variant::default());
    golden_rig::flushes("flushes", &standin_gpu, cuda(), small());
}

#[test]
fn flushes_by_the_cpu() {
    inside!(Variant::default());
    let caps = Caps {
        flush: false,
        ..cuda()
    };
    golden_rig::flushes("flushes-host", &standin_gpu, caps, small());
}

#[test]
fn word_operations() {
    inside!(Variant::default());
    golden_rig::words("words-cuda", &standin_gpu, cuda());
}

#[test]
fn a_long_list_is_cut_between_groups() {
    inside!(Variant::default());
    golden_rig::long_list(&standin_gpu, 255);
}

#[test]
fn aborts_holes_patches_and_time_limits() {
    inside!(Variant::default());
    golden_rig::aborts_holes_patches_and_time_limits(&standin_gpu);
}

#[test]
fn sends_in_a_row_ring_once() {
    inside!(Variant::default());
    golden_rig::row("row-memops", &standin_gpu, Lowering::MemOps);
}

#[test]
fn sends_in_a_row_ring_once_by_kernel() {
    inside!(Variant::default());
    golden_rig::row("row-kernel", &standin_gpu, Lowering::Kernel);
}
