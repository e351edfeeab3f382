//! halo2d on ranks as threads: every grid, every model, eager and rendezvous messages, tiles of
//! every shape, compared with the serial run.

#[path = "../../tests/shared/mod.rs"]
mod shared;

use halo2d::grid::{Grid, Size};
use halo2d::{Config, Model, Outcome, STRIDED_MAX};
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Kind};
use shared::{LIMIT, on_ranks};

/// Runs `config` on a grid and sums the outcomes.
fn play(columns: u32, rows: u32, eager: usize, config: &Config) -> Outcome {
    let config = Config {
        grid: Some(Grid { columns, rows }),
        limit: LIMIT,
        ..config.clone()
    };
    let body = |ctx: &Context| {
        let mine = halo2d::run(ctx, &config).unwrap();
        (mine, mine.sum(ctx, LIMIT).unwrap())
    };
    let outcomes = on_ranks(columns * rows, |b| b.eager_limit(eager), body);
    let sum = outcomes[0].1;
    assert_eq!(sum.cells, outcomes.iter().map(|(mine, _)| mine.cells).sum());
    assert!(outcomes.iter().all(|(_, all)| *all == sum));
    sum
}

/// Every grid must compute the same field as the serial run.
fn every_grid(eager: usize, config: &Config) {
    let mut checksums = Vec::new();
    for (columns, rows) in (1..=3).flat_map(|c| (1..=3).map(move |r| (c, r))) {
        let outcome = play(columns, rows, eager, config);
        assert_eq!(outcome.differing, 0, "{columns}x{rows} {config:?}");
        assert_eq!(
            outcome.cells,
            u64::from(config.size.width) * u64::from(config.size.height)
        );
        checksums.push(outcome.checksum);
    }
    assert!(
        checksums.iter().all(|c| *c == checksums[0]),
        "{checksums:x?}"
    );
}

fn config(model: Model) -> Config {
    Config {
        size: Size {
            width: 31,
            height: 23,
        },
        iterations: 30,
        model,
        ..Config::default()
    }
}

#[test]
fn cpu() {
    every_grid(4096, &config(Model::Cpu));
}

#[test]
fn stream() {
    every_grid(4096, &config(Model::Stream));
}

#[test]
fn cpu_thread() {
    every_grid(4096, &config(Model::CpuThread));
}

#[test]
fn cpu_by_rendezvous() {
    every_grid(16, &config(Model::Cpu));
}

#[test]
fn stream_by_rendezvous() {
    every_grid(16, &config(Model::Stream));
}

#[test]
fn cpu_thread_by_rendezvous() {
    every_grid(16, &config(Model::CpuThread));
}

/// Tiles of one cell, one row, one column; columns short enough to be sent in place, and longer
/// ones; halos as large as half the tile.
#[test]
fn tiles_of_every_shape_equal_the_serial_run() {
    let heights = [1, 2, 3, STRIDED_MAX, STRIDED_MAX + 1];
    for (width, height) in [1, 2, 3, 9].iter().flat_map(|w| heights.map(|h| (*w, h))) {
        for (columns, rows) in [(1, 1), (2, 1), (1, 2)] {
            let config = Config {
                size: Size {
                    width: width * columns,
                    height: height * rows,
                },
                iterations: 7,
                ..Config::default()
            };
            let outcome = play(columns, rows, 64, &config);
            assert_eq!(outcome.differing, 0, "{columns}x{rows} of {width}x{height}");
        }
    }
}

#[test]
fn pinned_memory_equals_the_serial_run() {
    let config = Config {
        memory: MemoryKind::Pinned,
        ..config(Model::Stream)
    };
    assert_eq!(play(2, 2, 64, &config).differing, 0);
}

/// In the stream model the CPU waits once per batch and once at the end.
#[test]
fn cpu_waits_once_per_batch() {
    for (batch, in_flight) in [(1, 1), (2, 3), (5, 2), (7, 4)] {
        let config = Config {
            iterations: 40,
            batch,
            batches_in_flight: in_flight,
            ..config(Model::Stream)
        };
        let outcome = play(2, 1, 4096, &config);
        assert_eq!(outcome.differing, 0);
        assert!(outcome.waits <= 40 / batch + 1, "{outcome:?} of {config:?}");
    }
}

/// A rank that computes a wrong cell is detected, by itself and by every rank that the error
/// reaches.
#[test]
fn wrong_cell_is_detected_by_every_rank_it_reaches() {
    let outcomes = on_ranks(
        4,
        |b| b,
        |ctx| {
            let config = Config {
                // The serial run that rank 3 compares with has another seed than the others'.
                seed: 1 + u64::from(ctx.rank() == 3),
                iterations: 3,
                ..config(Model::Stream)
            };
            halo2d::run(ctx, &config).unwrap()
        },
    );
    assert!(outcomes.iter().all(|o| o.differing > 0), "{outcomes:?}");
    assert!(
        outcomes.iter().all(|o| o.differing < o.cells),
        "{outcomes:?}"
    );
}

#[test]
fn zero_iterations_return_the_initial_field() {
    let config = Config {
        iterations: 0,
        ..config(Model::Stream)
    };
    let outcome = play(2, 1, 4096, &config);
    assert_eq!((outcome.differing, outcome.waits), (0, 1));
}

#[test]
fn invalid_grids_sizes_and_batches_are_refused() {
    let refuse = |config: &Config| {
        let kinds = on_ranks(2, |b| b, |ctx| halo2d::run(ctx, config).unwrap_err().kind());
        assert_eq!(kinds, [Kind::Invalid; 2], "{config:?}");
    };
    let good = config(Model::Stream);
    let grid = |columns, rows| Config {
        grid: Some(Grid { columns, rows }),
        ..good.clone()
    };
    refuse(&grid(3, 1));
    refuse(&grid(u32::MAX, u32::MAX));
    refuse(&Config {
        size: Size {
            width: 1,
            height: 5,
        },
        ..good.clone()
    });
    refuse(&Config {
        batch: 0,
        ..good.clone()
    });
    refuse(&Config {
        batches_in_flight: 0,
        ..good
    });
}
