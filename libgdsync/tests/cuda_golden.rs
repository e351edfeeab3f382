//! The golden traces on CUDA: the programs of `golden.rs` run on a stand-in for libcuda, and the
//! calls of its driver table are compared with the same files.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;
mod standin;
#[path = "standin/trace.rs"]
mod trace;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::{Watch, cuda};
use standin::{Control, Variant, cases, inside};
use trace::Calls;

/// The device attributes that determine the capabilities.
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

/// A GPU of the stand-in with these capabilities, and the recorder of its calls.
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

/// Selects the program that a process runs.
const PROGRAM: &str = "GOLDEN_PROGRAM";

/// Capabilities that no GPU of CUDA has are left out: masks, inline copies, no words of 64 bits;
/// and flushes by the NIC, which no attribute here selects. Each program runs in a separate
/// process, because attributes are read once.
#[test]
fn every_program_that_cuda_runs_has_its_trace() {
    let programs = golden_rig::programs();
    if let Ok(chosen) = std::env::var(PROGRAM) {
        let program = programs.iter().find(|program| program.name == chosen);
        return program.unwrap().run(&standin_gpu);
    }
    let able = |c: &Caps| !c.mask && c.cyclic && !c.inline_copy && c.memops64 && c.host_flush;
    for program in programs.iter().filter(|program| able(&program.caps)) {
        let variant = Variant::env(Box::leak(Box::new([(PROGRAM, program.name)])));
        let library = standin::build(&variant);
        standin::run(standin::child::test_name!(), &library, &variant);
    }
}

/// A GPU without 64-bit words is older than the driver supports; opening it fails.
#[test]
fn a_gpu_without_64_bits_is_refused() {
    inside!(Variant::default());
    let caps = cuda().memops64(false);
    set(&caps);
    refused(Gpu::cuda(0), Kind::Unsupported, None, &["64-bit"]);
}

cases! {
    a_long_list_is_cut_between_groups => golden_rig::long_list(&standin_gpu, 255);
}
