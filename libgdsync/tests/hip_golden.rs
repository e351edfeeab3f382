//! The golden traces on HIP: the programs of `golden.rs` for HIP's capabilities run on a stand-in for
//! libamdhip64, and the calls of its table are compared with the same files. What the traces have
//! different from CUDA's is in the table of `docs/runtimes.md`, and follows from it here.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;
mod standin;
#[path = "standin/trace.rs"]
mod trace;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::Watch;
use standin::{Control, Driver, Variant};
use trace::Calls;

/// A GPU of the stand-in, and the recorder of its calls.
fn standin_gpu(caps: Caps) -> (Gpu, Box<dyn Watch>) {
    let gpu = Gpu::hip(0).unwrap();
    let got = *gpu.caps();
    // The software GPU has a fence, which HIP has in each write.
    assert_eq!(got.fence(true), caps.fence(true));
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
    let hip = golden_rig::hip();
    let mut ran = 0;
    for program in programs.iter().filter(|program| program.caps == hip) {
        let env = Box::leak(Box::new([(PROGRAM, program.name), ("STANDIN_HDP", "1")]));
        let variant = Variant::of(Driver::Hip6, None, env);
        standin::run(
            standin::child::test_name!(),
            &standin::build(&variant),
            &variant,
        );
        ran += 1;
    }
    assert!(ran >= 12, "{ran} programs for HIP");
}

/// Traces of programs that run on both: CUDA's and HIP's. Those of waits for words that the program
/// names (`waits-hip`, `words-hip`) depend on their values, and have no counterpart.
const BOTH: [(&str, &str); 5] = [
    ("laps-cuda", "laps-hip"),
    ("laps-cpu-thread", "laps-hip-cpu-thread"),
    ("flushes", "flushes-hip"),
    ("aborts-patches-limits", "aborts-patches-limits-hip"),
    ("row-memops", "row-hip"),
];

#[test]
fn traces_differ_from_those_of_cuda_as_the_table_says() {
    let read = |name: &str| {
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    for (cuda, hip) in BOTH {
        assert_eq!(as_hip(&read(cuda)), read(hip), "{hip}");
    }
}

/// The trace of a program on HIP, by the table of `docs/runtimes.md` from the trace on CUDA.
fn as_hip(cuda: &str) -> String {
    let mut text = String::new();
    let mut flushes = 0;
    let mut lines = cuda.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with(" operations") {
            text += &format!("{line}\n");
            continue;
        }
        let mut ops = Vec::new();
        while let Some(op) = lines.next_if(|line| line.starts_with("  ")) {
            let words: Vec<&str> = op.split_whitespace().collect();
            match words[..] {
                // The owner bit, in front of the test for errors, which the next line is.
                ["wait32", entry, "And" | "Nor", _] => {
                    let owner = if op.contains("And") { 1 } else { 0 };
                    assert!(lines.next().unwrap().contains(entry));
                    ops.push(completed(entry, owner));
                }
                ["wait32", entry, "Geq", "0x00000000", ..] => ops.push(completed(entry, 0)),
                ["wait32", count, "Geq", value] if count.ends_with("-done") => {
                    let value = value.trim_start_matches("0x");
                    ops.push(format!("  wait64 {count} Geq 0x00000000{value} {COUNT}"));
                }
                ["flush"] => {}
                _ => ops.push(op.to_owned()),
            }
            if words.last() == Some(&"flush") {
                flushes += 1;
                ops.push(format!("  write64 flush0.asked = {flushes:#018x} fenced"));
                ops.push(format!("  wait64 flush0.made Geq {flushes:#018x} {COUNT}"));
            }
        }
        let stream = line.split(':').next().unwrap();
        text += &format!("{stream}: {} operations\n{}\n", ops.len(), ops.join("\n"));
    }
    text
}

/// The mask of a count, which never has the highest bit.
const COUNT: &str = "mask 0x7fffffffffffffff";

/// The wait for a completion entry: owner bit and error bit in one comparison.
fn completed(entry: &str, owner: u32) -> String {
    format!("  wait32 {entry} Eq {:#010x} mask 0x81000000", owner << 24)
}
