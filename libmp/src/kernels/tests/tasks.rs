//! Tests of launches of several tasks: each task ends as in a launch of its own.

use super::stamp::{GOOD, PLAIN, bad, silent};
use super::unpack::{CONSUMED, ERROR, MEMORY, PAYLOAD, RESULT, WORD, payload};
use super::*;

/// Bytes from the layout of a task to that of the next.
const STEP: usize = 0x200;
/// Bytes of a receive, and the place of a staged message.
const ROOM: usize = 40;
const STAGED: usize = PAYLOAD + 0x80;

/// A bench whose launches have at most `blocks` blocks.
fn bench(blocks: u32, threads: u32) -> Bench {
    let mut bench = Bench::new(threads);
    bench.kernels.blocks = blocks;
    bench
}

/// The number of message `i`.
fn number(i: usize) -> u64 {
    u64::from(unpack::SEQ) + i as u64
}

/// The word of message `i`, and how it ends the receive. All kinds of ends are in turn.
fn message(i: usize) -> (u64, (Status, u64, u64)) {
    let seq = number(i);
    let ends = |status, len, kind, told| (status, len, word(seq, kind, told));
    let good = |len| ends(Status::SUCCESS, len, TAKEN, 0);
    let invalid = ends(Status::BAD_RESPONSE, 0, FAILED, 8);
    match i % 7 {
        0 => (word(seq, EAGER, 40), good(40)),
        1 => (word(seq, FAILED, 4), ends(Status::TIMEOUT, 0, FAILED, 4)),
        2 => (
            word(seq, EAGER, 41),
            ends(Status::TRUNCATED, 41, TOO_LONG, 0),
        ),
        3 => (word(seq + 1, EAGER, 9), invalid),
        4 => (word(seq, DIRECT, 39), good(39)),
        5 => (word(seq, EAGER, 0), good(0)),
        _ => (word(seq, 0, 7), invalid),
    }
}

/// Puts the words and payloads of `count` messages into the image; returns their receives.
fn receives(bench: &mut Bench, count: usize) -> Vec<Unpack<1>> {
    bench.clear();
    let receive = |i| {
        bench.base = STEP * i;
        bench.put64(WORD, message(i).0);
        bench.put64(RESULT, 0);
        bench.put64(CONSUMED, 0);
        bench.put32(ERROR, 0);
        let bytes: Vec<u8> = (0..ROOM).map(|at| payload(i + at)).collect();
        bench.put(PAYLOAD + 1, &bytes);
        bench.put(STAGED, &bytes);
        Unpack {
            seq: number(i) as u32,
            staging: bench.addr(STAGED),
            ..unpack::receive_into(bench, &[(MEMORY + 3, ROOM)], 64)
        }
    };
    let all = (0..count).map(receive).collect();
    bench.base = 0;
    all
}

/// Puts the end of message `i` into the image.
fn received(bench: &mut Bench, i: usize) {
    bench.base = STEP * i;
    let ends = message(i).1;
    if ends.0 == Status::SUCCESS {
        let bytes: Vec<u8> = (0..ends.1 as usize).map(|at| payload(i + at)).collect();
        bench.put(MEMORY + 3, &bytes);
    }
    unpack::ended(bench, ends, true);
    bench.base = 0;
}

/// One message, the sizes of the kernel, and a second launch. A message that is too long, has
/// failed or is invalid changes nothing of the others.
#[test]
fn each_message_of_a_launch_ends_its_own_receive() {
    for (blocks, threads) in [
        (1, 1),
        (1, 7),
        (3, 1),
        (3, 32),
        (u32::MAX, 1),
        (u32::MAX, 7),
    ] {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, UNPACKS, UNPACKS + 1] {
            let params = receives(&mut bench, count);
            bench.load();
            // SAFETY: all addresses are within the bench's memory, which outlives the run; the
            // memory of each receive is its own.
            unsafe {
                bench
                    .kernels
                    .unpack_all(&bench.stream, params.iter(), Polls::None)
            }
            .unwrap();
            bench.run();
            (0..count).for_each(|i| received(&mut bench, i));
            bench.check(&format!(
                "{count} messages, {blocks} blocks, {threads} threads"
            ));
        }
    }
}

/// On a GPU whose stores become visible late and in any order, with a check after every step.
#[test]
fn payload_of_each_message_becomes_visible_before_its_words() {
    const COUNT: usize = 9;
    for seed in 0..100 {
        let (i, seen) = [(0, RESULT), (7, CONSUMED), (8, RESULT), (4, RESULT)][seed % 4];
        let seed = seed as u64;
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        let params = receives(&mut bench, COUNT);
        bench.load();
        // SAFETY: as above.
        unsafe {
            bench
                .kernels
                .unpack_all(&bench.stream, params.iter(), Polls::None)
        }
        .unwrap();
        bench.run_until(STEP * i + seen);
        (0..COUNT).for_each(|i| received(&mut bench, i));
        let mut got = [0; ROOM];
        bench.memory.read(STEP * i + MEMORY + 3, &mut got).unwrap();
        let own = &bench.image[STEP * i + MEMORY + 3..][..ROOM];
        assert_eq!(got, own, "seed {seed}");
        if message(i).1.0 != Status::SUCCESS {
            let mut told = [0; 8];
            bench.memory.read(STEP * i + CONSUMED, &mut told).unwrap();
            assert_eq!(told, message(i).1.2.to_le_bytes(), "seed {seed}");
        }
        bench.run();
        bench.check(&format!("seed {seed}"));
    }
}

/// A launch of sends whose receivers are ready, have less room, have refused, and of a length that
/// exceeds its source.
#[test]
fn each_send_of_a_launch_is_completed_by_its_own_answer() {
    let seq = u64::from(stamp::SEQ);
    let send = |i: usize| {
        let answer = |kind, len| Some(word(seq, kind, len));
        let (ready, length, ends) = match i % 5 {
            0 => (answer(READY, 100), None, GOOD),
            1 => (answer(READY, 99), None, bad(Status::TRUNCATED)),
            2 => (answer(REFUSED, 0), None, silent(Status::TRUNCATED)),
            3 => (None, Some(101), bad(Status::LOCAL_LENGTH)),
            _ => (answer(READY, 100), Some(i as u64), GOOD),
        };
        let send = stamp::Send {
            ready,
            length,
            ..PLAIN
        };
        (send, ends)
    };
    for (blocks, threads) in [(1, 1), (1, 5), (3, 1), (u32::MAX, 32)] {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, STAMPS, STAMPS + 1] {
            bench.clear();
            let mut params = Vec::new();
            for i in 0..count {
                bench.base = STEP * i;
                stamp::place(&mut bench, &send(i).0);
                params.push(stamp::params::<1>(&bench, &send(i).0));
            }
            bench.load();
            // SAFETY: all addresses are within the bench's memory, which outlives the run; no NIC
            // reads it.
            unsafe { bench.kernels.stamp_all(&bench.stream, params.iter()) }.unwrap();
            bench.run();
            for i in 0..count {
                bench.base = STEP * i;
                let (send, ends) = send(i);
                stamp::expect(&mut bench, &send, ends);
            }
            bench.base = 0;
            bench.check(&format!(
                "{count} sends, {blocks} blocks, {threads} threads"
            ));
        }
    }
}
