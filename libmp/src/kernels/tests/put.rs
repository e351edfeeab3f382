//! Tests of the kernel that executes a rank's puts to itself ([`Puts`]).

use super::*;

/// Offsets in the bench's memory.
const FAILED: usize = 0x00;
const DONE: usize = 0x08;
const WORDS: usize = 0x10;
const WQES: usize = 0x1000;
/// Bytes of a WQE, and of its fields before the pieces.
const WQE: usize = 512;
const HEAD: usize = 32;
const FROM: usize = 0x3000;
const INTO: usize = 0x8000;

const THREADS: [u32; 3] = [1, 5, 32];

/// WQE `i`: the destination offset, and pieces that each have an offset and a length.
fn wqe(bench: &mut Bench, i: usize, opcode: u8, to: usize, pieces: &[(usize, usize)]) {
    let at = WQES + i * WQE;
    bench.put(at, &[0xff, 0xff, 0xff, opcode]);
    bench.put(at + 8, &bench.addr(to).to_be_bytes());
    bench.put32(at + 16, pieces.len() as u32);
    for (j, (from, len)) in pieces.iter().enumerate() {
        let piece = at + HEAD + 16 * j;
        bench.put(piece, &(*len as u32).to_be_bytes());
        bench.put(piece + 8, &bench.addr(*from).to_be_bytes());
    }
}

/// Runs two pieces, a WQE with a NOP opcode, and words from memory; `failed`: the lane has failed.
fn run(threads: u32, weak: Option<Weak>, len: usize, failed: bool) {
    let mut bench = Bench::with(threads, u64::from(threads) + len as u64, weak);
    bench.put32(FAILED, failed.into());
    bench.put64(DONE, 6);
    let bytes: Vec<u8> = (0..0x2000).map(|i| (i % 251) as u8).collect();
    bench.put(FROM, &bytes);
    wqe(
        &mut bench,
        0,
        8,
        INTO + 3,
        &[(FROM + 1, len), (FROM + 0x1000, 9)],
    );
    wqe(&mut bench, 1, 0, INTO, &[(FROM, 100)]);
    wqe(&mut bench, 2, 8, WORDS, &[(FROM, 40)]);
    let addr = |i: usize| bench.addr(WQES + i * WQE);
    let params = Puts {
        failed: bench.addr(FAILED),
        done: bench.addr(DONE),
        serial: 7,
        count: 3,
        words: 0b100,
        wqe: [addr(0), addr(1), addr(2), 0],
    };
    bench.load();
    // SAFETY: the addresses are within the bench's memory, which it checks.
    unsafe { bench.kernels.put(&bench.stream, &params, 0).unwrap() };
    bench.run();
    if !failed {
        bench.put64(DONE, 7);
        bench.put(INTO + 3, &bytes[1..=len]);
        bench.put(INTO + 3 + len, &bytes[0x1000..0x1009]);
        bench.put(WORDS, &bytes[..40]);
    }
    bench.check(&format!("{len} bytes, {threads} threads, failed {failed}"));
}

#[test]
fn puts_are_executed_except_nops() {
    for threads in THREADS {
        for len in [0, 1, 15, 16, 64, 777, 4000] {
            run(threads, None, len, false);
        }
        run(threads, Some(Weak::seeded(3)), 777, false);
    }
}

#[test]
fn failed_lane_executes_no_put_and_completes_none() {
    THREADS
        .iter()
        .for_each(|threads| run(*threads, None, 777, true));
}

/// A reader of the words finds the payload, whatever order the memory has.
#[test]
fn words_become_visible_after_the_payload() {
    for (seed, threads) in (0..40).flat_map(|seed| THREADS.map(|threads| (seed, threads))) {
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        bench.put32(FAILED, 0);
        bench.put64(DONE, 0);
        bench.put64(WORDS, 0);
        let bytes: Vec<u8> = (0..500).map(|i| i as u8 | 1).collect();
        bench.put(FROM, &bytes);
        wqe(&mut bench, 0, 8, INTO, &[(FROM, 500)]);
        wqe(&mut bench, 1, 8, WORDS, &[(FROM, 8)]);
        let addr = |i: usize| bench.addr(WQES + i * WQE);
        let params = Puts {
            failed: bench.addr(FAILED),
            done: 0,
            serial: 0,
            count: 2,
            words: 0b10,
            wqe: [addr(0), addr(1), 0, 0],
        };
        bench.load();
        // SAFETY: as above.
        unsafe { bench.kernels.put(&bench.stream, &params, 0).unwrap() };
        bench.run_until(WORDS);
        bench.put(INTO, &bytes);
        bench.put(WORDS, &bytes[..8]);
        bench.check(&format!("seed {seed}, {threads} threads"));
        bench.run();
    }
}

/// A lane that fails while the threads of a kernel run: either no word announces the payload, or
/// the whole payload is in place.
#[test]
fn words_of_a_lane_that_fails_meanwhile_announce_the_whole_payload() {
    for seed in 0..100 {
        let mut bench = Bench::with(256, seed, (seed % 2 == 0).then(|| Weak::seeded(seed)));
        bench.put32(FAILED, 0);
        bench.put64(DONE, 0);
        bench.put64(WORDS, 0);
        let bytes: Vec<u8> = (0..2000).map(|i| i as u8 | 1).collect();
        bench.put(FROM, &bytes);
        bench.put(INTO, &vec![0; 2000]);
        wqe(&mut bench, 0, 8, INTO, &[(FROM, 2000)]);
        wqe(&mut bench, 1, 8, WORDS, &[(FROM, 8)]);
        let addr = |i: usize| bench.addr(WQES + i * WQE);
        let params = Puts {
            failed: bench.addr(FAILED),
            done: bench.addr(DONE),
            serial: 9,
            count: 2,
            words: 0b10,
            wqe: [addr(0), addr(1), 0, 0],
        };
        bench.load();
        // SAFETY: as above.
        unsafe { bench.kernels.put(&bench.stream, &params, 0).unwrap() };
        let mut looks = 0;
        let mut fails = || {
            looks += 1;
            if looks == 1 + seed / 4 {
                bench.memory.write(FAILED, &1u32.to_le_bytes()).unwrap();
            }
            looks > 1 + seed / 4
        };
        // The kernel may end first.
        let _ = bench.sim.host().wait_until(None, &mut fails);
        bench.run();
        let (mut word, mut got) = ([0; 8], vec![0; 2000]);
        bench.memory.read(WORDS, &mut word).unwrap();
        bench.memory.read(INTO, &mut got).unwrap();
        assert!(word == [0; 8] || got == bytes, "seed {seed}");
    }
}
