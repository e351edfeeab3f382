//! Tests of the kernel that executes a whole step ([`WholeStep`]).

use super::*;

/// The words, the gates and the tables of the half that receives.
const RECEIVE_WORDS: usize = 0x1000;
const RECEIVE_GATES: usize = 0x1180;
const RECEIVE_TABLE: usize = 0x1200;
const RECEIVE_PIECES: usize = 0x1300;
/// The table of the ready words, and the words.
const READY_TABLE: usize = 0x1400;
const READY: usize = 0x1500;
/// The data that is received, packed, and where it is scattered.
const ARRIVED_AT: usize = 0x10000;
const DESTINATION: usize = 0x11000;

/// The parts of the half that receives: one with data to scatter, one with data in place.
const RECEIVES: usize = 2;
/// The gates of both halves, which only the blocks of a launch use.
const ALL_INNER: [Range<usize>; 2] = [INNER, RECEIVE_GATES..RECEIVE_GATES + 64];

/// Writes all tables, with words of the step before, and returns the parameters.
fn whole(
    bench: &mut Bench,
    step: u64,
    shapes: [[u32; 2]; PARTS],
    [split, shares]: [u32; 2],
) -> WholeStep {
    let send = params(bench, step, shapes);
    let piece = Pieces {
        first: bench.addr(DESTINATION),
        packed: bench.addr(ARRIVED_AT),
        scatters: 1,
        ..pieces(bench, 0)[0]
    };
    bench.put(RECEIVE_PIECES, piece.as_bytes());
    (0..STRIDED).for_each(|i| bench.put(ARRIVED_AT + i, &[byte(9, i)]));
    let gate = size_of::<StepGate>();
    for part in 0..RECEIVES {
        let word = RECEIVE_WORDS + part * EACH;
        let (count, [split, shares]) = match part {
            0 => (1, [split, shares]),
            _ => (0, [1, 1]),
        };
        let entry = StepPart {
            word: bench.addr(word + WORD),
            closed: bench.addr(word + CLOSED),
            gate: bench.addr(RECEIVE_GATES + part * gate),
            pieces: bench.addr(RECEIVE_PIECES),
            count,
            split,
            shares,
            ..StepPart::default()
        };
        let at = RECEIVE_TABLE + part * size_of::<StepPart>();
        bench.put(at, entry.as_bytes());
        bench.put64(word + WORD, step.wrapping_sub(2));
        bench.put64(word + CLOSED, 0);
    }
    bench.put(RECEIVE_GATES, &[0; 64]);
    for part in 0..PARTS {
        let entry = ReadyWord {
            closed: bench.addr(WORDS + part * EACH + CLOSED),
            to: bench.addr(READY + part * EACH),
        };
        bench.put(
            READY_TABLE + part * size_of::<ReadyWord>(),
            entry.as_bytes(),
        );
    }
    WholeStep {
        ready: ReadyWords {
            table: bench.addr(READY_TABLE),
            step,
            count: PARTS as u32,
            reserved: 0,
        },
        send,
        receive: StepParts {
            table: bench.addr(RECEIVE_TABLE),
            step,
            awaited: step,
            passed: bench.addr(PASSED),
            ended: bench.addr(RECEIVE_GATES + RECEIVES * gate + 8),
            count: RECEIVES as u32,
            shares: shares + 1,
        },
    }
}

fn launch(bench: &Bench, params: &WholeStep, grids: [[u32; 2]; 2], threads: u32) {
    let passed = bench.memory.word64(bench.base + PASSED).unwrap();
    let dims = grids.map(|[shares, rows]| Dims::linear(1, threads).grid([shares, rows, 1]));
    // SAFETY: the addresses are within the bench's memory, which it checks.
    unsafe {
        bench
            .kernels
            .whole_step(&bench.stream, params, dims, &passed)
    }
    .unwrap();
}

/// Stores `value` in the words of these parts.
fn store_words(
    bench: &mut Bench,
    words: usize,
    parts: impl IntoIterator<Item = usize>,
    value: u64,
) {
    for part in parts {
        bench.store64(words + part * EACH + WORD, value);
    }
}

/// Notes that a step has ended, and what it has scattered.
fn ended(bench: &mut Bench, step: u64, scattered: bool) {
    for i in (0..STRIDED).filter(|_| scattered) {
        bench.put(DESTINATION + i / 10 * 16 + i % 10, &[byte(9, i)]);
    }
    bench.put64(PASSED, step);
}

/// The ready words are stored at once, and the step has ended when both halves have, whichever comes first. The
/// sums of shares are 0 again for the next step.
#[test]
fn whole_step_ends_when_both_halves_have_ended() {
    let grids = [[[1, 1]; 2], [[2, 1], [1, 2]], [[4, 3], [6, 2]], [[1, 3]; 2]];
    let cases = SHAPES
        .into_iter()
        .zip([[1, 1], [1, 4], [3, 6]])
        .flat_map(|shapes| grids.map(|grids| (shapes, grids)));
    for ((shapes, receive), grids) in cases {
        for threads in [1, 5, 32, 64] {
            let mut bench = Bench::new(threads);
            let mut params = whole(&mut bench, 5, shapes, receive);
            bench.load();
            for step in [5, 6] {
                let what = format!("{shapes:?}, {receive:?}, {grids:?} of {threads}, step {step}");
                params.ready.step = step;
                for half in [&mut params.send, &mut params.receive] {
                    (half.step, half.awaited) = (step, step);
                }
                // What the step before has copied.
                bench.store(TO, &[GUARD; PARTS * PLACE]);
                bench.store(DESTINATION, &[GUARD; STRIDED / 10 * 16]);
                launch(&bench, &params, grids, threads);
                assert!(!bench.runs_within(WAIT), "{what}: too early");
                (0..PARTS).for_each(|part| bench.put64(READY + part * EACH, step));
                bench.check_outside(&ALL_INNER, &what);
                if step == 5 {
                    store_words(&mut bench, WORDS, 0..PARTS, step);
                    assert!(!bench.runs_within(WAIT), "{what}: nothing has arrived");
                    (0..PARTS).for_each(|part| sent(&mut bench, part, step));
                    bench.check_outside(&ALL_INNER, &what);
                    store_words(&mut bench, RECEIVE_WORDS, 0..RECEIVES, step);
                } else {
                    store_words(&mut bench, RECEIVE_WORDS, 0..RECEIVES, step);
                    assert!(!bench.runs_within(WAIT), "{what}: no rank is ready");
                    let scattered = DESTINATION..DESTINATION + STRIDED / 10 * 16;
                    let [sends, receives] = ALL_INNER;
                    bench.check_outside(&[sends, receives, scattered], &what);
                    store_words(&mut bench, WORDS, 0..PARTS, step);
                }
                bench.run();
                (0..PARTS).for_each(|part| sent(&mut bench, part, step));
                ended(&mut bench, step, true);
                bench.check_outside(&ALL_INNER, &what);
            }
        }
    }
}

/// A rank was given up, before the launch or while the kernel waits: no data is written to it, what it should have
/// sent is not unpacked, and the step ends.
#[test]
fn whole_step_ends_without_a_rank_that_was_given_up() {
    for seed in 0..20 {
        let threads = [1, 32, 64][seed as usize % 3];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let shapes = SHAPES[seed as usize % SHAPES.len()];
        let params = whole(&mut bench, 5, shapes, [2, 4]);
        let is_known = seed % 2 == 0;
        bench.put64(WORDS + EACH + CLOSED, u64::from(is_known));
        bench.load();
        launch(&bench, &params, [[4, 3], [4, 2]], threads);
        if !is_known {
            assert!(!bench.runs_within(WAIT), "seed {seed}: no word");
            bench.store64(WORDS + EACH + CLOSED, 1);
            bench.put64(READY + EACH, 5);
        }
        store_words(&mut bench, RECEIVE_WORDS, [0, 1], RELEASED);
        store_words(&mut bench, WORDS, [0, 2], 5);
        assert!(!bench.runs_within(WAIT), "seed {seed}: not released");
        store_words(&mut bench, WORDS, [1], RELEASED);
        bench.run();
        for part in [0, 2] {
            bench.put64(READY + part * EACH, 5);
            sent(&mut bench, part, 5);
        }
        ended(&mut bench, 5, false);
        bench.check_outside(&ALL_INNER, &format!("seed {seed}"));
    }
}

#[test]
fn end_of_a_whole_step_becomes_visible_behind_all_data() {
    for seed in 0..60 {
        let threads = [1, 5, 32, 64][seed as usize % 4];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let shapes = SHAPES[seed as usize % SHAPES.len()];
        let params = whole(&mut bench, 5, shapes, [1, 2]);
        bench.load();
        launch(&bench, &params, [[3, 3], [2, 2]], threads);
        store_words(&mut bench, WORDS, 0..PARTS, 5);
        store_words(&mut bench, RECEIVE_WORDS, 0..RECEIVES, 5);
        bench.run_until_is(PASSED, 5);
        for part in 0..PARTS {
            bench.put64(READY + part * EACH, 5);
            sent(&mut bench, part, 5);
        }
        ended(&mut bench, 5, true);
        bench.check_outside(&ALL_INNER, &format!("seed {seed}"));
        bench.run();
    }
}

/// Nothing is written to a rank that was given up, but its data is here.
#[test]
fn data_of_a_closed_rank_that_has_arrived_is_unpacked() {
    let mut bench = Bench::new(32);
    let params = whole(&mut bench, 5, SHAPES[0], [2, 4]);
    bench.put64(RECEIVE_WORDS + CLOSED, 1);
    bench.load();
    launch(&bench, &params, [[4, 3], [4, 2]], 32);
    store_words(&mut bench, WORDS, 0..PARTS, 5);
    store_words(&mut bench, RECEIVE_WORDS, 1..RECEIVES, 5);
    assert!(!bench.runs_within(WAIT), "the data has not arrived");
    store_words(&mut bench, RECEIVE_WORDS, [0], 5);
    bench.run();
    for part in 0..PARTS {
        bench.put64(READY + part * EACH, 5);
        sent(&mut bench, part, 5);
    }
    ended(&mut bench, 5, true);
    bench.check_outside(&ALL_INNER, "all");
}

#[test]
fn step_of_a_dropped_context_waits_for_no_word() {
    for threads in [1, 32, 64] {
        let mut bench = Bench::new(threads);
        let params = whole(&mut bench, 5, SHAPES[0], [2, 4]);
        (0..PARTS).for_each(|part| bench.put64(WORDS + part * EACH + CLOSED, DROPPED));
        (0..RECEIVES).for_each(|part| bench.put64(RECEIVE_WORDS + part * EACH + CLOSED, DROPPED));
        bench.load();
        launch(&bench, &params, [[4, 3], [4, 2]], threads);
        bench.run();
        ended(&mut bench, 5, false);
        bench.check_outside(&ALL_INNER, &format!("{threads} threads"));
    }
}
