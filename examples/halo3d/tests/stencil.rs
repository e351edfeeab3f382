//! halo3d on ranks as threads, and as processes of which one is killed.

#[path = "../../tests/shared/mod.rs"]
mod shared;

use halo3d::Config;
use mp::{Kind, Result};
use mp_examples::grid::Grid;
use shared::{LIMIT, alone, killed_rank_is_named, launch, text};

const HALO3D: &str = env!("CARGO_BIN_EXE_halo3d");

/// Runs the stencil on this grid and returns the results of the ranks, in their order.
fn play(grid: [u32; 3], ranks: u32, cells: [u32; 3], steps: u64) -> Vec<Result<(usize, usize)>> {
    let config = Config {
        grid: Some(Grid(grid)),
        cells: Grid(cells),
        steps,
        limit: LIMIT,
    };
    shared::on_ranks(ranks, |b| b, |ctx| halo3d::run(ctx, &config))
}

/// Blocks of one cell and of one layer, uneven blocks; ranks that are their own neighbours, and the
/// same neighbour on both sides.
#[test]
fn every_grid_equals_the_serial_run() {
    for (grid, cells, steps) in [
        ([1, 1, 1], [5, 4, 3], 7),
        ([1, 1, 1], [1, 1, 1], 3),
        ([2, 1, 1], [8, 3, 3], 45),
        ([2, 1, 1], [4, 15, 4], 5),
        ([1, 3, 1], [4, 7, 2], 6),
        ([3, 1, 1], [3, 1, 1], 5),
        ([2, 2, 2], [9, 8, 7], 6),
    ] {
        let mut total = 0;
        for result in play(grid, grid.iter().product(), cells, steps) {
            let (mine, differing) = result.unwrap();
            assert_eq!(differing, 0, "{grid:?} {cells:?}");
            total += mine;
        }
        let all: u32 = cells.iter().product();
        assert_eq!(total, 2 * all as usize);
    }
}

#[test]
fn invalid_grids_are_refused() {
    for (grid, cells) in [([3, 1, 1], [9, 9, 9]), ([2, 1, 1], [1, 9, 9])] {
        for result in play(grid, 2, cells, 1) {
            assert_eq!(
                result.unwrap_err().kind(),
                Kind::Invalid,
                "{grid:?} {cells:?}"
            );
        }
    }
}

#[test]
fn halo3d_on_processes() {
    for ranks in [1, 2, 3, 8] {
        let output = launch(ranks, &[HALO3D]);
        assert!(output.status.success(), "{}", text(&output));
        let out = String::from_utf8_lossy(&output.stdout);
        let ok = out
            .lines()
            .filter(|line| line.ends_with("equal the serial run: ok"));
        assert_eq!(ok.count(), ranks as usize, "{}", text(&output));
    }
}

/// All ranks of three are neighbours. One of the others may first detect that the third one has
/// ended for this reason.
#[test]
fn killed_rank_ends_the_others_with_an_error_that_names_it() {
    let _alone = alone();
    let arguments = ["--steps", "1000000000"]; // more than can complete
    killed_rank_is_named(HALO3D, &arguments, 3, 1);
}
