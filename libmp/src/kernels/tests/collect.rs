//! Tests of the kernel that ends a collective call ([`Collect`]).

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Offsets in the bench's memory.
const WORDS: usize = 0x00;
const FAULT: usize = 0x40;
const ERROR: usize = 0x60;
const PASSED: usize = 0x68;
const SLOTS: usize = 0x1000;
const OWN: usize = 0x3000;
const OUT: usize = 0x4000;
const STRIDE: usize = 0x200;

const THREADS: [u32; 4] = [1, 5, 32, 100];
const RANKS: u32 = 5;
const ME: u32 = 2;
const CALL: u64 = 9;
/// The word of the call, without a length.
const WORD: u64 = 0x0900_0000_0000;

fn byte(rank: u32, i: usize) -> u8 {
    (rank as usize * 50 + i * 7 + 3) as u8
}

/// The call of `RANKS` ranks, with contributions of `len` bytes in their slots.
fn params(bench: &mut Bench, shape: Shape, len: usize) -> Collect {
    for rank in 0..RANKS {
        let at = match rank {
            ME => OWN,
            rank => SLOTS + rank as usize * STRIDE,
        };
        let bytes: Vec<u8> = (0..len).map(|i| byte(rank, i)).collect();
        bench.put(at, &bytes);
        // The word of this rank is not compared.
        let word = if rank == ME { 0 } else { WORD | len as u64 };
        bench.put64(WORDS + 8 * rank as usize, word);
    }
    for at in [FAULT, FAULT + 8, FAULT + 16, PASSED] {
        bench.put64(at, 0);
    }
    bench.put32(ERROR, 0);
    Collect {
        words: bench.addr(WORDS),
        slots: bench.addr(SLOTS),
        stride: STRIDE as u64,
        own: bench.addr(OWN),
        out: bench.addr(OUT),
        len: len as u64,
        expected: WORD | len as u64,
        fault: bench.addr(FAULT),
        error: bench.addr(ERROR),
        passed: bench.addr(PASSED),
        call: CALL,
        ranks: RANKS,
        me: ME,
        count: RANKS,
        first: 0,
        shape: shape as u32,
        element: 0,
        op: 0,
        reserved: 0,
        lens: [0; LENS],
    }
}

fn run(bench: &Bench, params: &Collect) {
    bench.load();
    // SAFETY: the addresses are within the bench's memory, which it checks.
    unsafe { bench.kernels.collect(&bench.stream, params).unwrap() };
    bench.run();
}

#[test]
fn contributions_are_copied_one_after_the_other() {
    for threads in THREADS {
        for len in [0, 1, 8, 100, 300] {
            let mut bench = Bench::new(threads);
            let params = params(&mut bench, Shape::All, len);
            run(&bench, &params);
            for rank in 0..RANKS {
                let bytes: Vec<u8> = (0..len).map(|i| byte(rank, i)).collect();
                bench.put(OUT + rank as usize * len, &bytes);
            }
            bench.put64(PASSED, CALL);
            bench.check(&format!("{len} bytes, {threads} threads"));
        }
    }
}

#[test]
fn contributions_of_several_lengths_are_copied_by_several_launches() {
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let lens = [3, 0, 17, 130, 64];
        let mut params = params(&mut bench, Shape::Varied, 130);
        params.expected = WORD;
        for (rank, len) in (0..).zip(lens) {
            if rank != ME as usize {
                bench.put64(WORDS + 8 * rank, WORD | len);
            }
        }
        bench.load();
        let mut out = OUT;
        for (first, count) in [(0, 2), (2, 3)] {
            params.first = first as u32;
            params.count = count as u32;
            params.out = bench.addr(out);
            let these = &lens[first..first + count];
            for (to, len) in params.lens.iter_mut().zip(these) {
                *to = *len as u32;
            }
            params.passed = if first == 0 { 0 } else { bench.addr(PASSED) };
            // SAFETY: as in `run`.
            unsafe { bench.kernels.collect(&bench.stream, &params).unwrap() };
            out += these.iter().sum::<u64>() as usize;
        }
        bench.run();
        let all = (0..).zip(lens);
        let bytes: Vec<u8> = all
            .flat_map(|(rank, len)| (0..len as usize).map(move |i| byte(rank, i)))
            .collect();
        bench.put(OUT, &bytes);
        bench.put64(PASSED, CALL);
        bench.check(&format!("{threads} threads"));
    }
}

#[test]
fn elements_are_combined_in_the_order_of_the_ranks() {
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let params = params(&mut bench, Shape::Reduced, 80);
        // In another order the sum of the first elements has other bits.
        let value = |rank: u32, i: u32| match (rank, i) {
            (0, 0) => 1e16,
            (4, 0) => -1e16,
            (3, 1) => f64::NAN.copysign(-1.0),
            _ => 0.1 * f64::from(rank + 1) + f64::from(i),
        };
        for rank in 0..RANKS {
            let at = if rank == ME {
                OWN
            } else {
                SLOTS + rank as usize * STRIDE
            };
            for i in 0..10 {
                bench.put64(at + 8 * i as usize, value(rank, i).to_bits());
            }
        }
        let params = Collect {
            element: 1,
            ..params
        };
        run(&bench, &params);
        for i in 0..10 {
            let sum = (1..RANKS).fold(value(0, i), |sum, rank| sum + value(rank, i));
            let sum = if sum.is_nan() { f64::NAN } else { sum };
            bench.put64(OUT + 8 * i as usize, sum.to_bits());
        }
        bench.put64(PASSED, CALL);
        bench.check(&format!("{threads} threads"));
    }
}

#[test]
fn word_of_another_call_is_a_fault_and_nothing_is_copied() {
    for threads in THREADS {
        for shape in [Shape::Nothing, Shape::All, Shape::Reduced] {
            let mut bench = Bench::new(threads);
            let params = params(&mut bench, shape, 8);
            bench.put64(WORDS + 8 * 3, WORD | 7);
            bench.put64(WORDS + 8 * 4, WORD | 6);
            run(&bench, &params);
            bench.put64(FAULT, CALL);
            bench.put64(FAULT + 8, 3);
            bench.put64(FAULT + 16, WORD | 7);
            bench.put32(ERROR, Status::BAD_RESPONSE.0);
            bench.put64(PASSED, CALL);
            bench.check(&format!("{shape:?}, {threads} threads"));
            // A later call copies nothing either, and the first fault stays.
            let later = Collect {
                call: CALL + 1,
                ..params
            };
            // SAFETY: as in `run`.
            unsafe { bench.kernels.collect(&bench.stream, &later).unwrap() };
            bench.run();
            bench.put64(PASSED, CALL + 1);
            bench.check(&format!("later: {shape:?}, {threads} threads"));
        }
    }
}

/// The library releases a stream while the word of the rank arrives: the kernel copies all or, with a
/// fault, nothing.
#[test]
fn word_that_changes_during_the_kernel_is_the_same_for_all_threads() {
    const LEN: usize = 300;
    let gpu = Gpu::soft().unwrap();
    let mut kernels = Kernels::of(&gpu).unwrap();
    kernels.copying = Dims::linear(1, 100);
    let (stream, memory) = (
        gpu.stream().unwrap(),
        gpu.alloc(MemoryKind::Pinned, BYTES).unwrap(),
    );
    let addr = |at: usize| memory.addr().0 + at as u64;
    let mut bench = Bench::new(1);
    let params = params(&mut bench, Shape::All, LEN);
    memory.write(0, &bench.image).unwrap();
    let params = Collect {
        words: addr(WORDS),
        slots: addr(SLOTS),
        own: addr(OWN),
        out: addr(OUT),
        fault: addr(FAULT),
        error: addr(ERROR),
        passed: addr(PASSED),
        ..params
    };
    let all: Vec<u8> = (0..RANKS)
        .flat_map(|rank| (0..LEN).map(move |i| byte(rank, i)))
        .collect();
    let word = memory.word64(WORDS + 8 * 3).unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for value in [0xf << 36, LEN as u64] {
                    word.store(WORD | value).unwrap();
                }
            }
        });
        let mut seen = [false; 2];
        for _ in 0..2000 {
            memory.write(FAULT, &[0; 24]).unwrap();
            memory.write(OUT, &vec![GUARD; all.len()]).unwrap();
            // SAFETY: the addresses are within the memory.
            unsafe { kernels.collect(&stream, &params).unwrap() };
            assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
            let failed = memory.word64(FAULT).unwrap().load().unwrap() != 0;
            let mut got = vec![0; all.len()];
            memory.read(OUT, &mut got).unwrap();
            let copied = got.iter().zip(&all).filter(|(got, all)| got == all).count();
            let whole = if failed {
                got.iter().all(|byte| *byte == GUARD)
            } else {
                got == all
            };
            if !whole {
                end.store(true, Ordering::Relaxed);
            }
            assert!(
                whole,
                "fault: {failed}, {copied} of {} bytes are copied",
                all.len()
            );
            seen[usize::from(failed)] = true;
        }
        end.store(true, Ordering::Relaxed);
        println!("with and without a fault: {seen:?}");
    });
}
