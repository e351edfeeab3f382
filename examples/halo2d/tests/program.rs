//! The program as users run it: by mprun as processes, and as threads of one process. One test at a
//! time: each test starts processes that use all processors.

#[path = "../../tests/shared/mod.rs"]
mod shared;

use shared::{alone, fails, killed_rank_is_named, launch, threads, well};

const HALO2D: &str = env!("CARGO_BIN_EXE_halo2d");

/// The checksum of 100 iterations of a field of 64x48 cells with seed 1.
const CHECKSUM: &str = "checksum 0x3781b767bfbfbc76";

#[test]
fn halo2d_on_processes() {
    for (ranks, model) in [
        (1, "stream"),
        (2, "cpu-thread"),
        (3, "cpu"),
        (4, "stream"),
        (4, "cpu"),
    ] {
        let output = launch(ranks, &[HALO2D, "--model", model]);
        well(
            &output,
            &[
                " 0 of 3072 cells differ from the serial run: ok",
                CHECKSUM,
                model,
            ],
        );
    }
    let grid = ["--grid", "1x3", "--eager", "64", "--batch", "3"];
    let command = [&[HALO2D][..], &grid].concat();
    well(&launch(3, &command), &["grid 1x3", "0 of 3072", CHECKSUM]);
}

#[test]
fn halo2d_on_threads() {
    let output = threads(HALO2D, 9, &["--grid", "3x3"]);
    well(&output, &["grid 3x3", "0 of 3072", CHECKSUM]);
}

/// Every rank's exit status reports a difference, and the one line reports the number of differing
/// cells.
#[test]
fn differing_cells_fail_every_rank() {
    let script = format!("exec {HALO2D} --seed $MP_RANK --iters 2");
    let output = launch(2, &["sh", "-c", &script]);
    fails(&output, "of this rank's cells differ");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        out.contains("cells differ from the serial run: failed"),
        "{out}"
    );
    assert!(!out.contains(" 0 of 3072"), "{out}");
}

#[test]
fn wrong_grids_and_fields_are_refused() {
    fails(
        &launch(2, &[HALO2D, "--grid", "3x1"]),
        "a grid of 3x1 does not fit 2 ranks",
    );
    fails(
        &launch(2, &[HALO2D, "--size", "1x8"]),
        "a field of 1x8 cells",
    );
}

/// In a row of three, all ranks are neighbours: the two remaining ranks end, and name the dead
/// rank. One of them may first detect that the other has ended for this reason.
#[test]
fn killed_rank_ends_the_others_with_an_error_that_names_it() {
    let _alone = alone();
    // More iterations than can complete.
    let arguments = ["--iters", "1000000000", "--size", "96x16"];
    killed_rank_is_named(HALO2D, &arguments, 3, 1);
}
