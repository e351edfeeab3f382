//! particles on ranks as threads: every grid, eager and rendezvous messages, compared with the
//! serial run.

#[path = "../../tests/shared/mod.rs"]
mod shared;

use mp::{Builder, Error, Kind};
use particles::{Config, Grid, Outcome};
use shared::{LIMIT, on_ranks};

/// Runs `config` on its grid and returns the results of the ranks, in their order.
fn run(
    ranks: u32,
    config: &Config,
    set: impl Fn(Builder) -> Builder + Sync,
) -> Vec<Result<Outcome, Error>> {
    on_ranks(ranks, set, |ctx| particles::run(ctx, config))
}

/// The outcome of a run that equals the serial run in every bit.
fn play(grid: [u32; 3], config: &Config, eager: usize) -> Outcome {
    let grid = Grid(grid);
    let config = Config {
        grid: Some(grid),
        limit: LIMIT,
        ..config.clone()
    };
    let outcomes = run(grid.product().unwrap(), &config, |b| b.eager_limit(eager));
    let outcomes: Vec<Outcome> = outcomes.into_iter().map(|o| o.unwrap()).collect();
    let first = outcomes[0].clone();
    assert_eq!(first.failures(), [""; 0], "{grid}");
    assert_eq!((first.differing, first.farthest), (0, 0.0), "{grid}");
    assert_eq!(first.serial_energy, first.totals.last().map(|t| t.energy()));
    assert!(outcomes.iter().all(|o| *o == first));
    first
}

fn config(cells: [u32; 3], steps: u64) -> Config {
    Config {
        cells: Grid(cells),
        steps,
        ..Config::default()
    }
}

/// The grids compute the same bits. Ranks are their own neighbours along some axes, and both
/// neighbours along others.
#[test]
fn every_grid_equals_the_serial_run() {
    for (cells, steps, grids) in [
        (
            [4, 4, 4],
            80,
            &[[1, 1, 1], [2, 1, 1], [1, 1, 2], [2, 2, 1], [2, 2, 2]][..],
        ),
        ([6, 3, 4], 40, &[[1, 1, 1], [3, 1, 1], [3, 1, 2]]),
    ] {
        let outcomes: Vec<_> = grids
            .iter()
            .map(|g| play(*g, &config(cells, steps), 4096))
            .collect();
        let first = &outcomes[0];
        assert!(
            outcomes
                .iter()
                .all(|o| o.checksum == first.checksum && o.totals == first.totals)
        );
    }
}

#[test]
fn eager_messages_equal_the_serial_run() {
    for grid in [[1, 1, 1], [2, 2, 1]] {
        play(grid, &config([4, 4, 4], 30), 256 << 10);
    }
}

#[test]
fn every_length_of_a_batch_equals_the_serial_run() {
    for (batch, steps) in [(1, 5), (3, 7), (20, 0), (20, 19)] {
        let config = Config {
            batch,
            seed: 7,
            ..config([4, 4, 4], steps)
        };
        play([2, 1, 1], &config, 4096);
    }
}

/// Each check fails by itself if its value is wrong at one time of the run.
#[test]
fn every_wrong_value_fails_its_check() {
    let good = play([2, 1, 1], &config([4, 4, 4], 10), 4096);
    let fails = |spoil: fn(&mut Outcome), words: &str| {
        let mut outcome = good.clone();
        spoil(&mut outcome);
        let failures = outcome.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains(words), "{failures:?}");
    };
    fails(|o| o.totals[3].count -= 1, "lost or doubled");
    fails(|o| o.totals[3].momentum[2] += 1, "the momentum changed");
    fails(|o| o.totals[3].kinetic += 1 << 30, "the energy changed by");
    fails(|o| o.farthest = 2e-12, "a position differs by 2.0e-12");
    fails(|o| o.serial_energy = Some(-1000.0), "the energy differs by");
}

#[test]
fn invalid_grids_cells_and_batches_are_refused() {
    let good = config([4, 4, 4], 1);
    let bad = [
        Config {
            grid: Some(Grid([3, 1, 1])),
            ..good.clone()
        },
        Config {
            grid: Some(Grid([u32::MAX, u32::MAX, 2])),
            ..good.clone()
        },
        Config {
            cells: Grid([5, 4, 4]),
            ..good.clone()
        },
        Config {
            cells: Grid([2, 4, 4]),
            ..good.clone()
        },
        Config {
            cells: Grid([4, 2, 4]),
            ..good.clone()
        },
        Config {
            cells: Grid([4, 4, 129]),
            ..good.clone()
        },
        Config { batch: 0, ..good },
    ];
    for config in &bad {
        for result in run(2, config, |b| b) {
            assert_eq!(result.unwrap_err().kind(), Kind::Invalid, "{config:?}");
        }
    }
}
