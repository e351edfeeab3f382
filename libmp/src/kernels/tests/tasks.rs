//! Tests of launches of several tasks: each task ends as in a launch of its own.

use super::stamp::{GOOD, PLAIN, bad, silent};
use super::unpack::{CONSUMED, ERROR, MEMORY, PAYLOAD, RESULT, WORD, payload};
use super::*;
use crate::wire::flag;

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
            number: number(i),
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

/// Offsets of a message to a flagged room, or to the memory of its receive, from the layout of the task.
const SEND_STEP: usize = 0x300;
const REPORT: usize = 0x10;
const CREDIT: usize = 0x18;
const TAKEN_WORD: usize = 0x20;
const READY_WORD: usize = 0x28;
const LOST: usize = 0x30;
const SENT: usize = 0x38;
const SEND_ERROR: usize = 0x44;
const PLACE: usize = 0x50;
const COUNT: usize = 0x88;
const TAKE_ERROR: usize = 0x8c;
const FROM: usize = 0x100;
const SLOT: usize = 0x140;
const LONG: usize = 0x1c0;
const TO: usize = 0x240;
/// Bytes of a message.
const LEN: usize = 21;

/// Puts what is before message `i` into the image, and selects its layout.
fn send(bench: &mut Bench, i: usize) -> Credit {
    let before = number(i) - 16;
    bench.base = SEND_STEP * i;
    bench.put64(REPORT, 0);
    bench.put64(CREDIT, credit_of(before));
    bench.put64(TAKEN_WORD, word(before - 16, TAKEN, 0));
    bench.put64(READY_WORD, word(before, READY, 9));
    bench.put64(LOST, 0);
    bench.put64(SENT, 0);
    bench.put32(SEND_ERROR, 0);
    bench.put(SLOT, &flag::before(number(i), flag::size(LEN)));
    bench.put(LONG, &flag::before(number(i), flag::lines_len(LEN)));
    let bytes: Vec<u8> = (0..LEN).map(|at| payload(i + at)).collect();
    bench.put(FROM + i % 9, &bytes);
    bench.credit(i, CREDIT, TAKEN_WORD, before)
}

/// Puts the lines of message `i` into the image.
fn lines(bench: &mut Bench, i: usize, lines: impl IntoIterator<Item = u64>) {
    for (at, data) in lines.into_iter().enumerate() {
        bench.put64(SLOT + 8 * at, number(i) << 32 | data & 0xffff_ffff);
    }
}

/// The shares of message `i`.
fn shares(i: usize) -> u32 {
    1 + i as u32 % 3
}

/// The data in the lines of the payload of message `i`.
fn data(i: usize) -> Vec<u64> {
    let byte = |at: usize| if at < LEN { payload(i + at) } else { 0 };
    let four = |at: usize| u32::from_le_bytes([at, at + 1, at + 2, at + 3].map(byte));
    (0..24).step_by(4).map(|at| four(at).into()).collect()
}

/// The tests of launches of sends: blocks and threads.
const LAUNCHES: [(u32, u32); 5] = [(1, 1), (1, 7), (3, 1), (3, 32), (u32::MAX, 7)];

/// The peer of some messages is lost.
#[test]
fn each_message_of_a_launch_is_written_to_its_own_room() {
    for (blocks, threads) in LAUNCHES {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, FLAGS, FLAGS + 1] {
            bench.clear();
            let mut params = Vec::new();
            for i in 0..count {
                let slot = send(&mut bench, i);
                if i % 5 == 4 {
                    bench.put64(CREDIT, credit_of(number(i) - 32));
                    bench.put64(TAKEN_WORD, word(number(i) - 15, FAILED, 13));
                }
                params.push(Flag {
                    slot,
                    report: bench.addr(REPORT),
                    from: bench.addr(FROM + i % 9),
                    room: bench.addr(SLOT),
                    len: LEN as u64,
                    number: number(i),
                    shares: shares(i).into(),
                    ..Flag::default()
                });
            }
            bench.load();
            // SAFETY: all addresses are within the bench's memory, which outlives the run.
            unsafe { bench.kernels.flag_all(&bench.stream, &params, Polls::None) }.unwrap();
            bench.run();
            for i in (0..count).filter(|i| i % 5 != 4) {
                bench.base = SEND_STEP * i;
                lines(&mut bench, i, [&[LEN as u64, 0], &data(i)[..]].concat());
                bench.put64(REPORT, shares(i).into());
            }
            bench.base = 0;
            bench.check(&format!(
                "{count} messages, {blocks} blocks, {threads} threads"
            ));
        }
    }
}

/// Some receives are too short, and some peers are lost.
#[test]
fn each_message_of_a_launch_is_copied_to_its_own_receive() {
    for (blocks, threads) in LAUNCHES {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, DIRECTS, DIRECTS + 1] {
            bench.clear();
            let mut params = Vec::new();
            for i in 0..count {
                let slot = send(&mut bench, i);
                let room = if i % 5 == 3 { LEN - 1 } else { LEN };
                let to = (bench.addr(TO + i % 5), 7);
                bench.put(PLACE, &flag::place(number(i), to, room as u64));
                if i % 5 == 4 {
                    bench.put64(LOST, 13);
                    bench.put64(READY_WORD, word(number(i) + 1, FAILED, 13));
                }
                params.push(Direct {
                    slot,
                    place: bench.addr(PLACE),
                    found: bench.aside.addr().0,
                    ready: bench.addr(READY_WORD),
                    lost: bench.addr(LOST),
                    from: bench.addr(FROM + i % 9),
                    len: LEN as u64,
                    room: bench.addr(SLOT),
                    room_lines: 8,
                    pair: bench.addr(0),
                    result: bench.addr(SENT),
                    error: bench.addr(SEND_ERROR),
                    report: bench.addr(REPORT),
                    number: number(i),
                    shares: shares(i).into(),
                    ..Direct::default()
                });
            }
            bench.load();
            // SAFETY: as above.
            unsafe {
                bench
                    .kernels
                    .direct_all(&bench.stream, &params, Polls::None)
            }
            .unwrap();
            bench.run();
            for i in 0..count {
                bench.base = SEND_STEP * i;
                let status = [Status::TRUNCATED, Status(13)];
                if let Some(status) = status.get((i % 5).wrapping_sub(3)) {
                    bench.put64(SENT, result(*status, LEN as u64));
                    bench.put32(SEND_ERROR, status.0);
                    if *status == Status::TRUNCATED {
                        bench.put64(0, word(number(i), TOO_LONG, LEN as u64));
                        bench.put64(8, word(number(i), TOO_LONG, LEN as u64));
                    }
                } else {
                    let bytes: Vec<u8> = (0..LEN).map(|at| payload(i + at)).collect();
                    bench.put(TO + i % 5, &bytes);
                    let shown = vec![0; shares(i) as usize];
                    let head = [1 << 31 | u64::from(shares(i)), 0, LEN as u64, 0];
                    lines(&mut bench, i, [&head[..], &shown].concat());
                }
                bench.put64(REPORT, shares(i).into());
            }
            bench.base = 0;
            bench.check(&format!(
                "{count} messages, {blocks} blocks, {threads} threads"
            ));
        }
    }
}

/// Messages in rooms and in long rooms, of which the last part comes late, to receives of one to three
/// shares.
#[test]
fn each_message_in_the_rooms_of_a_launch_is_taken_in() {
    for (blocks, threads) in LAUNCHES {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, UNPACKS, UNPACKS + 1] {
            let what = format!("{count} messages, {blocks} blocks, {threads} threads");
            bench.clear();
            let mut params = Vec::new();
            for i in 0..count {
                send(&mut bench, i);
                let (long, rest) = (i % 2 == 1, data(i));
                bench.put64(0, word(number(i) - 16, EAGER, 1));
                bench.put32(COUNT, 0);
                bench.put32(TAKE_ERROR, 0);
                if long {
                    lines(&mut bench, i, [1 << 30 | LEN as u64, 0]);
                    bench.base += LONG - SLOT;
                    lines(&mut bench, i, rest);
                    bench.base -= LONG - SLOT;
                } else {
                    lines(&mut bench, i, [&[LEN as u64, 0], &rest[..]].concat());
                }
                // The library knows the values before, or not.
                let before = match i % 4 {
                    0 | 1 => [CREDIT, TAKEN_WORD].map(|at| bench.image_word(at)),
                    _ => [UNKNOWN; 2],
                };
                params.push(Unpack {
                    word: bench.addr(0),
                    consumed: before[0],
                    before: before[1],
                    result: bench.addr(SENT),
                    error: bench.addr(TAKE_ERROR),
                    flagged: bench.addr(SLOT),
                    long_room: bench.addr(LONG),
                    long_len: LEN as u64,
                    credit: bench.addr(CREDIT),
                    ended: bench.addr(TAKEN_WORD),
                    value: 3 << 44,
                    count: bench.addr(COUNT),
                    shares: shares(i),
                    waits: POLLS,
                    number: number(i),
                    ..unpack::receive_into(&bench, &[(TO + i % 9, LEN)], 24)
                });
            }
            // The message in the last task, without a line.
            let line = match count % 2 {
                _ if count == 0 => 0,
                0 => SEND_STEP * (count - 1) + LONG + 40,
                _ => SEND_STEP * (count - 1) + SLOT + 56,
            };
            bench.base = 0;
            bench.load();
            if count > 0 {
                bench.memory.write(line, &[0xff; 8]).unwrap();
            }
            // SAFETY: as above.
            unsafe {
                let kernels = &bench.kernels;
                kernels.unpack_all(&bench.stream, params.iter(), Polls::Several)
            }
            .unwrap();
            assert_eq!(
                bench.runs_within(Duration::from_millis(1)),
                count == 0,
                "{what}"
            );
            if count > 0 {
                let whole = u64::from_le_bytes(bench.image[line..line + 8].try_into().unwrap());
                bench.store64(line, whole);
            }
            bench.run();
            for i in 0..count {
                bench.base = SEND_STEP * i;
                let bytes: Vec<u8> = (0..LEN).map(|at| payload(i + at)).collect();
                bench.put(TO + i % 9, &bytes);
                bench.put64(CREDIT, credit_of(number(i)));
                bench.put64(TAKEN_WORD, 3 << 44 | LEN as u64);
                bench.put64(READY_WORD, result(Status::SUCCESS, LEN as u64));
            }
            bench.base = 0;
            bench.check(&what);
        }
    }
}

#[test]
fn each_receive_of_a_launch_is_named_by_its_own_lines() {
    for (blocks, threads) in LAUNCHES {
        let mut bench = bench(blocks, threads);
        for count in [0, 1, 2, 8, 9, NAMES, NAMES + 1] {
            bench.clear();
            let mut params = Vec::new();
            for i in 0..count {
                send(&mut bench, i);
                params.push(Name {
                    place: bench.addr(PLACE),
                    to: 0x1234_5678_9abc + i as u64,
                    len: 1 << 40 | i as u64,
                    key: i as u64,
                    lost: bench.addr(LOST),
                    number: number(i),
                    report: bench.addr(REPORT),
                });
            }
            bench.load();
            // SAFETY: as above.
            unsafe { bench.kernels.name_all(&bench.stream, &params) }.unwrap();
            bench.run();
            for (i, name) in params.iter().enumerate() {
                bench.base = SEND_STEP * i;
                let lines = flag::place(name.number, (name.to, name.key as u32), name.len);
                bench.put(PLACE, &lines);
                bench.put64(REPORT, 1);
            }
            bench.base = 0;
            bench.check(&format!(
                "{count} names, {blocks} blocks, {threads} threads"
            ));
        }
    }
}
