//! The trials on a stand-in for libcuda, so that the CUDA code runs where no GPU is: few laps,
//! everything required.

#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::process::Command;
use std::time::Duration;

use conformance::hardware::child;
use standin::{LIBRARY, Variant};

/// Time limit against hangs.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn cuda_trials_pass_on_a_stand_in() {
    let library = standin::build(&Variant::default());
    let mut trials = Command::new(env!("CARGO_BIN_EXE_conformance"));
    trials
        .args(["--color", "never", "cuda "])
        .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
        .env_remove("GDS_LOWER")
        .env_remove("GDS_PROVIDER")
        .env_remove("GDS_DOORBELL")
        .env_remove("GDS_ENDPOINT")
        .env(LIBRARY, library)
        .env("GDS_REQUIRE", "cuda")
        .env("GDS_LAPS", "5");
    child::tie(&mut trials);
    if let Err(failed) = child::run(trials, LIMIT) {
        panic!("{}", failed.message().unwrap_or("no reason given"));
    }
}
