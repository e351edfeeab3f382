//! The trials on stand-ins for libcuda and libamdhip64, so that the code for GPUs runs where no GPU is:
//! few laps, everything required.

#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use conformance::hardware::child;
use standin::{HIP_7, HIP_LIBRARY, LIBRARY, Variant};

/// Time limit against hangs.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the trials that the words select, with a stand-in as the driver of `runtime`. Tests wait for each
/// other, because many trials start processes that need the processors.
fn run(runtime: &str, variant: &Variant, words: &[&str], env: &[(&str, &str)]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = standin::build(variant);
    let mut trials = Command::new(env!("CARGO_BIN_EXE_conformance"));
    for name in [
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "GPU_MAX_HW_QUEUES",
        "GDS_LOWER",
        "GDS_PROVIDER",
        "GDS_DOORBELL",
        "GDS_ENDPOINT",
    ] {
        trials.env_remove(name);
    }
    let path = match runtime {
        "cuda" => LIBRARY,
        _ => HIP_LIBRARY,
    };
    trials
        .args(words)
        .args(["--color", "never"])
        .env(path, library)
        .env("GDS_REQUIRE", runtime)
        .env("GDS_LAPS", "5")
        .envs(env.iter().copied());
    child::tie(&mut trials);
    if let Err(failed) = child::run(trials, LIMIT) {
        panic!("{}", failed.message().unwrap_or("no reason given"));
    }
}

/// A hardware queue for each stream of a trial.
const QUEUES: (&str, &str) = ("GPU_MAX_HW_QUEUES", "16");

#[test]
fn cuda_trials_pass_on_a_stand_in() {
    run("cuda", &Variant::default(), &["cuda "], &[]);
}

#[test]
fn hip_trials_pass_on_a_stand_in() {
    run("hip", &Variant::HIP7, &["hip "], &[HIP_7, QUEUES]);
}

/// HIP 6 has no memory that GPUs share by `Path::Ipc`.
#[test]
fn hip_6_trials_of_memory_and_kernels_pass_on_a_stand_in() {
    run("hip", &Variant::HIP6, &["hip kernel"], &[QUEUES]);
    run("hip", &Variant::HIP6, &["hip memory"], &[QUEUES]);
}

/// The stand-in copies slowly, and the ranks of these trials have time limits.
const PATIENT: (&str, &str) = ("GDS_TIMEOUT_SCALE", "4");

#[test]
fn mp_trials_pass_on_a_stand_in_for_hip() {
    let words = ["mp", "--gpu", "hip", "--few"];
    run("hip", &Variant::HIP7, &words, &[HIP_7, QUEUES, PATIENT]);
}

/// All but the longest messages under which a rank dies, which take two minutes.
#[test]
fn mp_trials_by_kernels_pass_on_a_stand_in_for_hip() {
    let words = ["mp", "--gpu", "hip", "--few", "--skip", "16777216"];
    let by_kernels = [HIP_7, QUEUES, PATIENT, ("GDS_LOWER", "kernel")];
    run("hip", &Variant::HIP7, &words, &by_kernels);
}
