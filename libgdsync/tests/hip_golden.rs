//! The golden traces on HIP: the programs of `golden.rs` for HIP's capabilities run on a stand-in for
//! libamdhip64, and the calls of its table are compared with the same files.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;
mod standin;
#[path = "standin/trace.rs"]
mod trace;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::{Program, Watch};
use standin::{Control, Driver, Variant};
use trace::Calls;

/// A GPU of the stand-in, and the recorder of its calls.
fn standin_gpu(caps: Caps) -> (Gpu, Box<dyn Watch>) {
    let gpu = Gpu::hip(0).unwrap();
    let got = *gpu.caps();
    let batch = got.batch_limit;
    // The software GPU has a fence, which HIP has in each write, and flushes by the CPU, for which the
    // stand-in has no register.
    assert_eq!(
        got.fence(true).host_flush(true),
        caps.fence(true).batch_limit(batch)
    );
    (gpu, Box::new(Calls::new(Control::open())))
}

/// Selects the program that a process runs.
const PROGRAM: &str = "GOLDEN_PROGRAM";

#[test]
fn every_program_for_hip_has_its_trace() {
    let programs = golden_rig::programs();
    if let Ok(chosen) = std::env::var(PROGRAM) {
        let program = programs.iter().find(|program| program.name == chosen);
        return program.unwrap().run(&standin_gpu);
    }
    let hip = SoftOptions::hip().caps;
    let mut ran = 0;
    let runs = |program: &&Program| program.caps == hip && !program.name.starts_with("flushes");
    for program in programs.iter().filter(runs) {
        let env = Box::leak(Box::new([(PROGRAM, program.name)]));
        let variant = Variant::of(Driver::Hip6, None, env);
        standin::run(
            standin::child::test_name!(),
            &standin::build(&variant),
            &variant,
        );
        ran += 1;
    }
    assert!(ran >= 4, "{ran} programs for HIP");
}
