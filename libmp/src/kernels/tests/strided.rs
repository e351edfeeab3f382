//! Tests of the kernel that gathers and scatters pieces ([`Pieces`]).

use zerocopy::IntoBytes;

use super::*;

/// Offsets in the bench's memory.
const ARRIVAL: usize = 0x00;
const RESULT: usize = 0x08;
const PACKED: usize = 0x100;
const OWN: usize = 0x3000;

const THREADS: [u32; 4] = [1, 5, 32, 100];

/// Block, pieces of a row, their distance, rows, their distance, and the offset of the first piece.
type Shape = (usize, usize, usize, usize, usize, usize);

/// Words of 16, 8, 4 bytes, and bytes; one row, and rows between each other.
const SHAPES: [Shape; 6] = [
    (16, 7, 48, 5, 480, 0),
    (24, 40, 32, 2, 1400, 8),
    (4, 33, 12, 9, 400, 4),
    (3, 31, 5, 4, 160, 1),
    (100, 37, 101, 1, 0, 7),
    (8, 5, 400, 40, 8, 16),
];

fn byte(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

/// The offset in the bench's memory of byte `i` of the message.
fn own((block, rows, row, _, plane, first): Shape, i: usize) -> usize {
    let piece = i / block;
    OWN + first + piece / rows * plane + piece % rows * row + i % block
}

fn params(bench: &Bench, shape: Shape, skew: usize, scatters: bool) -> Pieces {
    let (block, rows, row, planes, plane, first) = shape;
    Pieces {
        first: bench.addr(OWN + first),
        packed: bench.addr(PACKED + skew),
        len: (block * rows * planes) as u64,
        block: block as u64,
        row: row as u64,
        plane: plane as u64,
        arrival: if scatters { bench.addr(ARRIVAL) } else { 0 },
        result: if scatters { bench.addr(RESULT) } else { 0 },
        rows: rows as u32,
        scatters: 0,
    }
}

fn run(bench: &Bench, params: &Pieces) {
    bench.load();
    // SAFETY: the addresses are within the bench's memory, which it checks.
    unsafe { bench.kernels.strided(&bench.stream, params).unwrap() };
}

#[test]
fn pieces_are_gathered() {
    for threads in THREADS {
        for (shape, skew) in SHAPES
            .into_iter()
            .flat_map(|shape| [(shape, 0), (shape, 3)])
        {
            let mut bench = Bench::new(threads);
            let params = params(&bench, shape, skew, false);
            let len = params.len as usize;
            (0..len).for_each(|i| bench.put(own(shape, i), &[byte(i)]));
            run(&bench, &params);
            bench.run();
            (0..len).for_each(|i| bench.put(PACKED + skew + i, &[byte(i)]));
            bench.check(&format!("{shape:?}, {threads} threads"));
        }
    }
}

/// A message of `len` bytes, or one that failed, in the packed bytes; the result is stored or not.
fn scatter(threads: u32, shape: Shape, end: u64, len: usize, stores: bool) {
    let mut bench = Bench::new(threads);
    let mut params = params(&bench, shape, 0, true);
    if !stores {
        params.result = 0;
    }
    (0..params.len as usize).for_each(|i| bench.put(PACKED + i, &[byte(i)]));
    bench.put64(ARRIVAL, end);
    bench.put64(RESULT, 0);
    run(&bench, &params);
    bench.run();
    (0..len).for_each(|i| bench.put(own(shape, i), &[byte(i)]));
    bench.put64(RESULT, if stores { end } else { 0 });
    bench.check(&format!("{shape:?}, {threads} threads, {len} bytes"));
}

#[test]
fn bytes_of_the_message_are_scattered_and_others_stay() {
    for threads in THREADS {
        for shape in SHAPES {
            let (block, rows, _, planes, ..) = shape;
            let all = block * rows * planes;
            for len in [0, 1, block - 1, block, all / 2 + 1, all] {
                for stores in [true, false] {
                    let end = result(Status::SUCCESS, len as u64);
                    scatter(threads, shape, end, len, stores);
                }
            }
        }
    }
}

#[test]
fn failed_message_is_not_scattered_and_ends_the_request() {
    for threads in THREADS {
        for status in [Status::TRUNCATED, Status::BAD_RESPONSE, Status::TIMEOUT] {
            scatter(threads, SHAPES[0], result(status, 100), 0, true);
        }
    }
}

#[test]
fn result_becomes_visible_after_the_bytes() {
    for (seed, threads) in (0..40).flat_map(|seed| THREADS.map(|threads| (seed, threads))) {
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let shape = SHAPES[seed as usize % SHAPES.len()];
        let params = params(&bench, shape, 0, true);
        let len = params.len as usize;
        (0..len).for_each(|i| bench.put(PACKED + i, &[byte(i)]));
        let end = result(Status::SUCCESS, params.len);
        bench.put64(ARRIVAL, end);
        bench.put64(RESULT, 0);
        run(&bench, &params);
        bench.run_until(RESULT);
        (0..len).for_each(|i| bench.put(own(shape, i), &[byte(i)]));
        bench.put64(RESULT, end);
        bench.check(&format!("seed {seed}, {threads} threads"));
        bench.run();
    }
}

/// One launch gathers one message and scatters two, with any number of blocks for each.
#[test]
fn table_of_moves_is_executed_by_any_number_of_blocks() {
    const OTHER: usize = 0x7000;
    const TABLE: usize = 0xb000;
    for (blocks, groups, threads) in [(1, 1, 1), (1, 3, 5), (2, 2, 32), (3, 1, 7), (2, 5, 4)] {
        for (shape, skew) in SHAPES.into_iter().map(|shape| (shape, shape.5 % 2)) {
            let mut bench = Bench::new(threads);
            let gather = params(&bench, shape, skew, false);
            let len = gather.len as usize;
            let to = |bench: &Bench, from: usize, to: usize| Pieces {
                first: bench.addr(to),
                packed: bench.addr(from),
                len: 100,
                block: 100,
                row: 0,
                plane: 0,
                rows: 1,
                scatters: 1,
                ..gather
            };
            let table = [
                gather,
                to(&bench, OTHER, OTHER + 0x200),
                to(&bench, OTHER + 1, OTHER + 0x400),
            ];
            bench.put(TABLE, table.as_bytes());
            (0..len).for_each(|i| bench.put(own(shape, i), &[byte(i)]));
            (0..101).for_each(|i| bench.put(OTHER + i, &[byte(i) ^ 0x55]));
            bench.load();
            let moves = Moves {
                table: bench.addr(TABLE),
                count: 3,
                blocks,
            };
            let dims = Dims::linear(blocks * groups, threads);
            // SAFETY: the addresses are within the bench's memory, which it checks.
            unsafe { bench.kernels.moves(&bench.stream, &moves, dims).unwrap() };
            bench.run();
            (0..len).for_each(|i| bench.put(PACKED + skew + i, &[byte(i)]));
            for i in 0..100 {
                bench.put(OTHER + 0x200 + i, &[byte(i) ^ 0x55]);
                bench.put(OTHER + 0x400 + i, &[byte(i + 1) ^ 0x55]);
            }
            bench.check(&format!("{shape:?}, {groups} x {blocks} blocks"));
        }
    }
}
