//! Tests of the kernels of a neighbourhood's step ([`StepParts`], [`ReadyWords`]).

mod whole_step;

use zerocopy::IntoBytes;

use super::*;

/// Offsets in the bench's memory: the words of each part, the word of all parts, and the tables.
const WORDS: usize = 0;
const PASSED: usize = 0x200;
const GATES: usize = 0x280;
const TABLE: usize = 0x400;
const PIECES: usize = 0x800;
const FROM: usize = 0x2000;
const TO: usize = 0x8000;

/// Words of a part.
const WORD: usize = 0;
const CLOSED: usize = 8;
const ARRIVED: usize = 16;
const LEFT: usize = 24;
const EACH: usize = 64;

/// Bytes of a part: a strided piece and one in one piece, of another alignment.
const STRIDED: usize = 90;
const WHOLE: usize = 333;
const LEN: usize = STRIDED + WHOLE;
/// Bytes of the memory of a part.
const PLACE: usize = 0x400;

const PARTS: usize = 3;
/// More than any number of steps; the library stores it for a peer that was given up.
const RELEASED: u64 = 1 << 62;
/// The library stores it into `closed` when the context is dropped.
const DROPPED: u64 = 2;

fn byte(part: usize, i: usize) -> u8 {
    (part * 31 + i * 7 + i / 251) as u8
}

/// The offset of byte `i` of a part in the memory that it is gathered from.
fn own(part: usize, i: usize) -> usize {
    let at = match i.checked_sub(STRIDED) {
        None => i / 10 * 16 + i % 10,
        Some(i) => 0x201 + i,
    };
    FROM + part * PLACE + at
}

fn pieces(bench: &Bench, part: usize) -> [Pieces; 2] {
    let strided = Pieces {
        first: bench.addr(own(part, 0)),
        packed: bench.addr(TO + part * PLACE),
        len: STRIDED as u64,
        block: 10,
        row: 16,
        plane: 0,
        arrival: 0,
        result: 0,
        rows: (STRIDED / 10) as u32,
        scatters: 0,
    };
    let whole = Pieces {
        first: bench.addr(own(part, STRIDED)),
        packed: bench.addr(TO + part * PLACE + STRIDED),
        len: WHOLE as u64,
        block: (WHOLE as u64).next_multiple_of(16),
        rows: 1,
        ..strided
    };
    [strided, whole]
}

/// Writes the tables of a send, with words of the step before, and returns the parameters.
fn params(bench: &mut Bench, step: u64, shapes: [[u32; 2]; PARTS]) -> StepParts {
    let gate = size_of::<StepGate>();
    for (part, [split, shares]) in shapes.into_iter().enumerate() {
        let at = |word: usize| bench.addr(WORDS + part * EACH + word);
        let table = StepPart {
            word: at(WORD),
            closed: at(CLOSED),
            gate: bench.addr(GATES + part * gate),
            arrived: at(ARRIVED),
            left: at(LEFT),
            pieces: bench.addr(PIECES + part * 2 * size_of::<Pieces>()),
            count: 2,
            split,
            shares,
            reserved: 0,
        };
        let pieces = pieces(bench, part);
        bench.put(TABLE + part * size_of::<StepPart>(), table.as_bytes());
        bench.put(PIECES + part * 2 * size_of::<Pieces>(), pieces.as_bytes());
        bench.put64(WORDS + part * EACH + WORD, step.wrapping_sub(2));
        bench.put64(WORDS + part * EACH + CLOSED, 0);
        (0..LEN).for_each(|i| bench.put(own(part, i), &[byte(part, i)]));
    }
    bench.put(GATES, &[0; 64]);
    bench.put64(PASSED, step.wrapping_sub(1));
    StepParts {
        table: bench.addr(TABLE),
        step,
        awaited: step,
        passed: bench.addr(PASSED),
        ended: bench.addr(GATES + PARTS * gate + 8),
        count: PARTS as u32,
        shares: shapes.iter().map(|[_, shares]| shares).sum(),
    }
}

fn launch(bench: &Bench, params: &StepParts, grid: [u32; 2], threads: u32) {
    let passed = bench.memory.word64(bench.base + PASSED).unwrap();
    let dims = Dims::linear(1, threads).grid([grid[0], grid[1], 1]);
    // SAFETY: the addresses are within the bench's memory, which it checks.
    unsafe { bench.kernels.step(&bench.stream, params, dims, &passed) }.unwrap();
}

/// Notes that a part has been sent.
fn sent(bench: &mut Bench, part: usize, step: u64) {
    (0..LEN).for_each(|i| bench.put(TO + part * PLACE + i, &[byte(part, i)]));
    bench.put64(WORDS + part * EACH + ARRIVED, step);
    bench.put64(WORDS + part * EACH + LEFT, step);
}

/// The gates, which only the blocks of a launch use.
const INNER: Range<usize> = GATES..GATES + 64;
const WAIT: Duration = Duration::from_millis(10);

const SHAPES: [[[u32; 2]; PARTS]; 3] = [
    [[1, 1], [1, 2], [2, 4]],
    [[2, 2], [1, 1], [1, 2]],
    [[1, 2], [3, 6], [2, 2]],
];

/// Parts with any number of shares, blocks and threads: each waits for its own word alone if it has
/// blocks of its own, and the sums of shares are 0 again for the next step.
#[test]
fn every_part_is_copied_behind_its_word_and_announced_once_by_its_last_share() {
    let grids = [[1, 1], [2, 1], [1, 3], [4, 3], [6, 2]];
    let all = SHAPES
        .into_iter()
        .flat_map(|shapes| grids.map(|grid| (shapes, grid)));
    for (shapes, grid) in all {
        for threads in [1, 5, 32, 64] {
            let mut bench = Bench::new(threads);
            let mut params = params(&mut bench, 5, shapes);
            bench.load();
            for step in [5, 6] {
                let what = format!("{shapes:?}, {grid:?} blocks of {threads}, step {step}");
                (params.step, params.awaited) = (step, step);
                launch(&bench, &params, grid, threads);
                assert!(!bench.runs_within(WAIT), "{what}: too early");
                bench.check_outside(&[INNER], &what);
                // In the order of the parts: some grids have one row.
                for part in 0..PARTS {
                    bench.store64(WORDS + part * EACH + WORD, step);
                    assert_eq!(bench.runs_within(WAIT), part + 1 == PARTS, "{what}: {part}");
                    sent(&mut bench, part, step);
                    if part + 1 == PARTS {
                        bench.put64(PASSED, step);
                    }
                    bench.check_outside(&[INNER], &what);
                }
            }
        }
    }
}

/// The rank of a part was given up: before its word came, or although it came.
#[test]
fn closed_rank_is_written_nothing_and_the_other_parts_end() {
    for (seed, word) in (0..20).flat_map(|seed| [(seed, RELEASED), (seed, 5)]) {
        let threads = [1, 32, 64][seed as usize % 3];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let params = params(&mut bench, 5, SHAPES[seed as usize % SHAPES.len()]);
        bench.load();
        launch(&bench, &params, [4, 3], threads);
        for part in [0, 2] {
            bench.store64(WORDS + part * EACH + WORD, 5);
        }
        // As the library: closed before the wait is released.
        if word == 5 || seed % 2 == 0 {
            bench.store64(WORDS + EACH + CLOSED, 1);
        }
        bench.store64(WORDS + EACH + WORD, word);
        bench.run();
        sent(&mut bench, 0, 5);
        sent(&mut bench, 2, 5);
        bench.put64(PASSED, 5);
        bench.check_outside(&[INNER], &format!("seed {seed}, {word:#x}"));
    }
}

#[test]
fn arrival_becomes_visible_behind_the_data() {
    for seed in 0..60 {
        let threads = [1, 5, 32, 64][seed as usize % 4];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let params = params(&mut bench, 1, SHAPES[seed as usize % SHAPES.len()]);
        let watched = seed as usize % PARTS;
        bench.load();
        launch(&bench, &params, [3, 3], threads);
        bench.store64(WORDS + watched * EACH + WORD, 1);
        bench.run_until_is(WORDS + watched * EACH + ARRIVED, 1);
        sent(&mut bench, watched, 1);
        let left = WORDS + watched * EACH + LEFT;
        bench.check_outside(&[INNER, left..left + 8], &format!("seed {seed}"));
        for part in 0..PARTS {
            bench.store64(WORDS + part * EACH + WORD, 1);
        }
        bench.run();
    }
}

/// Words are compared cyclically: those of step 0 are before those of step 1 although they are greater.
#[test]
fn words_wrap() {
    for step in [0, 1, u64::MAX] {
        let mut bench = Bench::new(32);
        let params = params(&mut bench, step, SHAPES[0]);
        bench.load();
        launch(&bench, &params, [1, 3], 32);
        assert!(!bench.runs_within(WAIT), "step {step}");
        bench.check_outside(&[INNER], "too early");
    }
}

/// A part without a word waits for nothing and announces nothing; one without pieces waits.
#[test]
fn parts_without_a_word_and_without_pieces() {
    for threads in [1, 64] {
        let mut bench = Bench::new(threads);
        let params = params(&mut bench, 7, [[1, 1]; PARTS]);
        let none = 0_u64.to_le_bytes();
        for field in [0, 1, 3, 4] {
            bench.put(TABLE + 8 * field, &none);
        }
        // `arrived` and `count` of the second part, as of a receive that is in place.
        let second = TABLE + size_of::<StepPart>();
        bench.put(second + 24, &none);
        bench.put32(second + 48, 0);
        bench.load();
        launch(&bench, &params, [1, 3], threads);
        bench.store64(WORDS + 2 * EACH + WORD, 7);
        assert!(!bench.runs_within(WAIT));
        (0..LEN).for_each(|i| bench.put(TO + i, &[byte(0, i)]));
        sent(&mut bench, 2, 7);
        bench.check_outside(&[INNER], "before the word of the second part");
        bench.store64(WORDS + EACH + WORD, 8);
        bench.run();
        bench.put64(PASSED, 7);
        bench.check_outside(&[INNER], "all");
    }
}

#[test]
fn ready_words_are_stored_at_ranks_that_are_not_closed() {
    for (count, threads) in [(1, 1), (5, 1), (40, 32), (40, 64)] {
        let mut bench = Bench::new(threads);
        let word = |i: usize| 0x4000 + 64 * i;
        for i in 0..count {
            let entry = ReadyWord {
                closed: bench.addr(word(i)),
                to: bench.addr(word(i) + 8),
            };
            bench.put(TABLE + i * size_of::<ReadyWord>(), entry.as_bytes());
            bench.put64(word(i), u64::from(i % 3 == 1));
        }
        bench.load();
        let params = ReadyWords {
            table: bench.addr(TABLE),
            step: 9,
            count: count as u32,
            reserved: 0,
        };
        // SAFETY: the addresses are within the bench's memory, which it checks.
        unsafe { bench.kernels.ready(&bench.stream, &params) }.unwrap();
        bench.run();
        let open = (0..count).filter(|i| i % 3 != 1);
        open.for_each(|i| bench.put64(word(i) + 8, 9));
        bench.check(&format!("{count} words"));
    }
}

/// All shares together have all pieces, and no more blocks wait than a launch may have.
#[test]
fn parts_are_divided_into_shares() {
    let bench = Bench::new(32);
    let piece = |len: u64| Pieces {
        len,
        ..pieces(&bench, 0)[0]
    };
    let gpus = [(1, 2), (u32::MAX, u32::MAX)];
    for (blocks, shares) in gpus {
        let mut kernels = bench.kernels.clone();
        (kernels.blocks, kernels.shares) = (blocks, shares);
        for parts in [1, 2, 26, 100] {
            for lens in [
                vec![],
                vec![8],
                vec![4096; 20],
                vec![1 << 20, 8, 8],
                vec![1 << 30],
            ] {
                let all: Vec<Pieces> = lens.iter().map(|len| piece(*len)).collect();
                let mut part = StepPart::default();
                let longest = kernels.divide(&mut part, &all, parts);
                let what = format!("{lens:?} of {parts}: {part:?}");
                assert_eq!(part.count as usize, lens.len(), "{what}");
                assert!(part.split >= 1 && part.shares >= part.split, "{what}");
                assert!(part.shares.is_multiple_of(part.split), "{what}");
                assert!(
                    part.shares <= shares.min((48 / parts as u32).max(1)),
                    "{what}"
                );
                let most = lens.iter().max().copied().unwrap_or(0);
                assert!(longest * u64::from(part.split) >= most, "{what}");
            }
        }
    }
    let mut part = StepPart::default();
    let mut kernels = bench.kernels.clone();
    (kernels.blocks, kernels.shares) = (u32::MAX, u32::MAX);
    kernels.divide(&mut part, &[piece(4096); 20], 1);
    assert_eq!((part.split, part.shares), (1, 20));
    kernels.divide(&mut part, &[piece(1 << 20)], 1);
    assert_eq!((part.split, part.shares), (48, 48));
}
