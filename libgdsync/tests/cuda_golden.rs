//! The golden traces once more, on CUDA: the programs of `golden.rs` run on a stand-in for
//! libcuda, and what its driver table was called with is compared with the very same files.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;
mod standin;
#[path = "standin/trace.rs"]
mod trace;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::{Watch, by_kernel, by_proxy, cuda, small};
use standin::{Control, Variant, cases, inside};
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

cases! {
    a_message_in_each_lap => golden_rig::laps("laps-cuda", &standin_gpu, cuda(), small());
    a_message_in_each_lap_without_nor => {
        let caps = Caps { nor: false, ..cuda() };
        golden_rig::laps("laps-no-nor", &standin_gpu, caps, small());
    };
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
    refused(Gpu::cuda(0), Kind::Unsupported, None, &["64-bit"]);
}

cases! {
    a_message_in_each_lap_by_kernel =>
        golden_rig::laps("laps-kernel", &standin_gpu, cuda(), by_kernel());
    a_message_in_each_lap_by_proxy =>
        golden_rig::laps("laps-proxy", &standin_gpu, cuda(), by_proxy());
    a_change_of_stream => golden_rig::edges("edges-ring", &standin_gpu, small());
    a_change_of_stream_by_kernel => golden_rig::edges("edges-kernel", &standin_gpu, by_kernel());
    a_change_of_stream_by_proxy => golden_rig::edges("edges-proxy", &standin_gpu, by_proxy());
    flushes => golden_rig::flushes("flushes", &standin_gpu, cuda(), small());
    flushes_by_the_cpu => {
        let caps = Caps { flush: false, ..cuda() };
        golden_rig::flushes("flushes-host", &standin_gpu, caps, small());
    };
    word_operations => golden_rig::words("words-cuda", &standin_gpu, cuda());
    a_long_list_is_cut_between_groups => golden_rig::long_list(&standin_gpu, 255);
    aborts_holes_patches_and_time_limits =>
        golden_rig::aborts_holes_patches_and_time_limits(&standin_gpu);
    sends_in_a_row_ring_once => golden_rig::row("row-memops", &standin_gpu, Lowering::MemOps);
    sends_in_a_row_ring_once_by_kernel =>
        golden_rig::row("row-kernel", &standin_gpu, Lowering::Kernel);
}
