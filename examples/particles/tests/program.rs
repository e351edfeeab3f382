//! The program as users run it: by mprun as processes, and as threads of one process. One test at a
//! time: each test starts processes that use all processors.

#[path = "../../tests/shared/mod.rs"]
mod shared;

use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use shared::{alone, fails, killed_rank_is_named, launch, threads, well};

const PARTICLES: &str = env!("CARGO_BIN_EXE_particles");

/// The checksum of 200 steps of 512 particles with seed 1.
const CHECKSUM: &str = "checksum 0x504ab6ae4cf2b63c";

#[test]
fn particles_on_processes() {
    for ranks in [1, 2, 4, 8] {
        let output = launch(ranks, &[PARTICLES]);
        let words = [
            "count exact, momentum exact",
            CHECKSUM,
            "; 0 differ from the serial run: ok",
        ];
        well(&output, &words);
    }
    let grid = [
        "--grid", "1x3x1", "--cells", "3x6x4", "--steps", "50", "--batch", "7",
    ];
    well(
        &launch(3, &[&[PARTICLES][..], &grid].concat()),
        &["grid 1x3x1", "; 0 differ"],
    );
}

#[test]
fn particles_on_threads() {
    let output = threads(PARTICLES, 8, &["--grid", "2x2x2"]);
    well(&output, &["grid 2x2x2", CHECKSUM, ": ok"]);
}

#[test]
fn wrong_grids_and_cells_are_refused() {
    let output = launch(2, &[PARTICLES, "--grid", "3x1x1"]);
    fails(&output, "a grid of 3x1x1 does not fit 2 ranks");
    fails(
        &launch(2, &[PARTICLES, "--cells", "2x4x4"]),
        "2 cells along an axis of 2 ranks",
    );
}

/// Most memory that the program has used, in KiB.
fn peak(steps: &str) -> u64 {
    let mut command = Command::new(PARTICLES);
    command.args(["--ranks-as-threads", "8", "--no-serial", "--steps", steps]);
    let mut child = command
        .env("GDS_GPU", "soft")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok());
        peak = number.unwrap_or(peak);
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    well(&output, &["count exact, momentum exact", ": ok"]);
    peak
}

/// Ten times the steps need no more memory, and keep particles, momentum and energy.
#[test]
fn ten_thousand_steps_run_in_bounded_memory() {
    let _alone = alone();
    let (short, long) = (peak("1000"), peak("10000"));
    println!("{short} KiB for 1000 steps, {long} KiB for 10000");
    assert!(
        short > 0 && long < short + (8 << 10),
        "{short} KiB, {long} KiB"
    );
}

/// In a cube of eight, four ranks exchange no message with the one that is killed. All name it.
#[test]
fn killed_rank_ends_the_others_with_an_error_that_names_it() {
    let _alone = alone();
    let arguments = ["--steps", "1000000000", "--no-serial"]; // more than can complete
    killed_rank_is_named(PARTICLES, &arguments, 8, 5);
}
