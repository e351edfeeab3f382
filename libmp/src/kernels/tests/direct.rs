//! Tests of the kernels that write a message into the memory of its receive ([`Direct`]), of those that
//! name this memory ([`Name`], [`Relay`]), and of the receiver's kernel, to which a flagged room shows the
//! message. [`names`] is of the names, [`invalid`] of messages that a receiver refuses.

mod invalid;
mod names;

use super::flag::{
    self as flagged, CREDIT, FROM, LONG_LEN, NUMBER, REPORT, REPORTED, ROOM, SLOT, bytes,
    lay_out_words, line, not_ended, read, read_by, received, run_to_end, scattered, slot,
};
use super::unpack::{COUNT, ENDED, MEMORY, WORD, in_device};
use super::*;
use crate::wire::flag;
use crate::wire::record::Place;

/// Offsets in the bench's memory.
const SENT: usize = 0x78;
const SEND_ERROR: usize = 0x84;
const READY_WORD: usize = 0x88;
const INFO: usize = 0x90;
const PLACE: usize = 0xc0;
const LOST: usize = 0xf8;
const NAMED: usize = 0x100;
const RELAYED: usize = 0x108;
/// The staging memory of a receive.
const STAGING: usize = 0x10000;

const THREADS: [u32; 3] = [1, 32, 256];
const BEFORE: u64 = NUMBER - 16;
const KEY: u32 = 0x89ab_cdef;
/// Lines of the payload that the room has.
const LINES: usize = SLOT / 4;
const ELSEWHERE: u64 = 1 << 31;

/// The length of a message that this many blocks copy.
fn len_of(blocks: u32) -> usize {
    [777, 8193, 17_000][blocks as usize - 1]
}

/// A message of `len` bytes, whose slot is not free; `skew` is added to the address of its payload.
fn lay_out(bench: &mut Bench, number: u64, skew: usize, len: usize) -> Direct {
    let before = number.wrapping_sub(16);
    lay_out_words(bench, number);
    bench.put64(SENT, 0);
    bench.put32(SEND_ERROR, 0);
    bench.put64(READY_WORD, word(before, READY, MAX_LEN));
    bench.put(INFO, &[0; 28]);
    bench.put(PLACE, &flag::place(before, (0xdead_0000, 1), 1 << 40));
    bench.put64(LOST, 0);
    bench.put64(NAMED, REPORTED);
    bench.put64(RELAYED, REPORTED);
    bench.put(FROM + skew, &bytes(len));
    bench.load();
    Direct {
        slot: slot(bench, number),
        place: bench.addr(PLACE),
        found: bench.aside.addr().0,
        ready: bench.addr(READY_WORD),
        info: bench.addr(INFO),
        lost: bench.addr(LOST),
        from: bench.addr(FROM + skew),
        len: len as u64,
        room: bench.addr(ROOM),
        lines: 0,
        room_lines: LINES as u64,
        pair: bench.addr(WORD),
        result: bench.addr(SENT),
        error: bench.addr(SEND_ERROR),
        report: bench.addr(REPORT),
        number,
        shares: 1,
    }
}

/// A receive of the message, which polls. The announcement is in the other of both words.
fn receive(bench: &Bench, number: u64, segments: &[(usize, usize)]) -> Unpack<1> {
    Unpack {
        word: bench.addr(WORD + 8),
        ..flagged::receive(bench, number, segments)
    }
}

/// Enqueues a message of at most `shares` shares, with a block for each; returns their number.
fn send(bench: &mut Bench, stream: &Stream, message: &Direct, shares: u32) -> u32 {
    send_by(bench, stream, message, [shares, shares])
}

/// As [`send`], with so many blocks if there are several shares.
fn send_by(
    bench: &mut Bench,
    stream: &Stream,
    message: &Direct,
    [shares, blocks]: [u32; 2],
) -> u32 {
    bench.kernels.shares = shares;
    let kernels = &bench.kernels;
    let shares = kernels.shares_of_direct(message.len, message.room_lines);
    let message = Direct {
        shares: shares.into(),
        ..*message
    };
    // SAFETY: the addresses are within the bench's memory, which outlives the run.
    unsafe {
        if shares == 1 || shares == blocks {
            kernels
                .direct_all(stream, &[message], Polls::Several)
                .unwrap();
        } else {
            let block = kernels.wide.grid([blocks, 1, 1]);
            stream.launch(&kernels.direct, block, &message).unwrap();
        }
    }
    shares
}

fn name(bench: &Bench, stream: &Stream, number: u64, (to, len): (u64, usize)) {
    let name = Name {
        place: bench.addr(PLACE),
        to,
        len: len as u64,
        key: KEY.into(),
        lost: bench.addr(LOST),
        number,
        report: bench.addr(NAMED),
    };
    // SAFETY: as above.
    unsafe { bench.kernels.name_all(stream, &[name]) }.unwrap();
}

/// Puts a name into the image.
fn named(bench: &mut Bench, number: u64, (to, len): (u64, usize)) {
    bench.put(PLACE, &flag::place(number, (to, KEY), len as u64));
    bench.put64(NAMED, REPORTED + 1);
}

/// Puts what the sender's kernel has written into the image, except for the bytes of the message; `end`:
/// how the send ended, and whether it stored words if that was a failure.
fn sent(bench: &mut Bench, message: &Direct, (status, tells): (Status, bool), blocks: u32) {
    let (number, len) = (message.number, message.len);
    if status == Status::SUCCESS {
        let shown = 4 + blocks as usize;
        let head = [ELSEWHERE | u64::from(blocks), number >> 32, len, len >> 32];
        for at in 0..shown.max(2 + message.lines as usize) {
            let data = head.get(at).copied().unwrap_or(0);
            bench.put64(ROOM + 8 * at, line(number, data));
        }
    } else {
        bench.put64(SENT, result(status, len));
        bench.put32(SEND_ERROR, status.0);
        if tells {
            bench.put64(WORD, word(number, TOO_LONG, len));
            bench.put64(WORD + 8, word(number, TOO_LONG, len));
        }
    }
    bench.put64(REPORT, REPORTED + u64::from(blocks));
}

/// Checks the lines in which the first block names a place to the others that it has found in the words of
/// host memory; `to`: 0 if there is no place.
fn passed_on(bench: &Bench, message: &Direct, to: u64, shares: u32) {
    if shares > 1 {
        let len = if to == 0 { 0 } else { message.len };
        let mut lines = [0; flag::PLACE];
        bench.aside.read(0, &mut lines).unwrap();
        assert_eq!(lines, flag::place(message.number, (to, 0), len));
    }
}

/// When the receiver answers: before the message is enqueued; before the message has a credit; when it
/// has one, and was announced.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Early,
    Late,
    Announced,
}

/// All kinds of answers, at all times.
#[test]
fn answer_of_the_receiver_ends_the_send() {
    use Status as S;
    let good = (S::SUCCESS, false);
    let too_long = (S::TRUNCATED, true);
    let silent = |status| (status, false);
    for (threads, blocks) in THREADS.into_iter().flat_map(|t| [1, 2, 3].map(|b| (t, b))) {
        let len = len_of(blocks);
        let room = |len: usize| word(NUMBER, READY, len as u64);
        // The length in the lines, or the ready word; how the send ends.
        let answers = [
            (Some(len), 0, good),
            (Some(len + 5), 0, good),
            (Some(1 << 40), 0, good),
            (Some(len - 1), 0, too_long),
            (Some(0), 0, too_long),
            (None, room(len), good),
            (None, room(1 << 40), good),
            (None, room(len - 1), too_long),
            (None, word(NUMBER, REFUSED, 0), silent(S::TRUNCATED)),
            (
                None,
                word(NUMBER + 16, READY, 1 << 40),
                silent(S::TRUNCATED),
            ),
            (None, word(NUMBER, FAILED, 13), silent(S(13))),
            (None, word(NUMBER + 1, FAILED, 13), silent(S(13))),
            (None, word(NUMBER, EAGER, 5), silent(S::BAD_RESPONSE)),
            (None, word(NUMBER + 16, REFUSED, 5), silent(S::BAD_RESPONSE)),
        ];
        let times = [When::Early, When::Late, When::Announced];
        for ((lines, ready, end), when) in answers.into_iter().flat_map(|a| times.map(|t| (a, t))) {
            let what =
                format!("{threads} threads, {blocks} blocks, {lines:?}, {ready:#x}, {when:?}");
            let mut bench = Bench::new(threads);
            let message = lay_out(&mut bench, NUMBER, 3, len);
            let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY + 1));
            let waits = |bench: &Bench| {
                if when != When::Early {
                    assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                    bench.check(&what);
                }
            };
            if when != When::Early {
                assert_eq!(send(&mut bench, &stream, &message, 3), blocks);
                waits(&bench);
            }
            if when == When::Announced {
                bench.store64(CREDIT, credit_of(BEFORE));
                bench.put64(WORD, word(NUMBER, ANNOUNCE, len as u64));
                waits(&bench);
            }
            match lines {
                Some(room) => {
                    // The high half of another number first, and then line by line.
                    let place = flag::place(NUMBER, (to, KEY), room as u64);
                    bench.store(PLACE, &place);
                    bench.store64(PLACE + 32, line(NUMBER, (NUMBER >> 32) - 1));
                    waits(&bench);
                    let old = flag::place(BEFORE, (to, KEY), room as u64);
                    for at in (0..flag::PLACE).step_by(8) {
                        bench.store(PLACE, &place);
                        bench.store(PLACE + at, &old[at..at + 8]);
                        waits(&bench);
                    }
                    bench.store(PLACE, &place);
                }
                None => {
                    bench.store64(INFO, to);
                    bench.store64(READY_WORD, ready);
                }
            }
            if when == When::Early {
                assert_eq!(send(&mut bench, &stream, &message, 3), blocks);
            }
            assert!(bench.runs_within(Duration::from_secs(1)), "{what}");
            let good = end.0 == S::SUCCESS;
            if good {
                bench.put(MEMORY + 1, &bytes(len));
            }
            if lines.is_none() {
                passed_on(&bench, &message, if good { to } else { 0 }, blocks);
            }
            sent(&mut bench, &message, end, blocks);
            bench.check(&what);
        }
    }
}

/// The message is announced without a credit.
#[test]
fn message_in_a_slot_that_was_not_used_waits_for_its_receive_alone() {
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY));
        let message = Direct {
            slot: Credit::default(),
            ..lay_out(&mut bench, NUMBER, 0, 100)
        };
        send(&mut bench, &stream, &message, 1);
        assert!(!bench.runs_within(Duration::from_millis(1)));
        bench.put64(WORD, word(NUMBER, ANNOUNCE, 100));
        bench.check("an announcement");
        bench.store(PLACE, &flag::place(NUMBER, (to, KEY), 100));
        bench.run();
        bench.put(MEMORY, &bytes(100));
        sent(&mut bench, &message, (Status::SUCCESS, false), 1);
        bench.check("the message");
    }
}

/// All lines of the room get the flag of the message.
#[test]
fn lines_of_the_room_are_written_behind_those_of_the_message() {
    for (threads, blocks) in THREADS.into_iter().flat_map(|t| [1, 2, 3].map(|b| (t, b))) {
        for lines in [4, 5, 6, LINES] {
            let mut bench = Bench::new(threads);
            let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY));
            let message = Direct {
                lines: lines as u64,
                ..lay_out(&mut bench, NUMBER, 0, len_of(blocks))
            };
            bench.store(PLACE, &flag::place(NUMBER, (to, KEY), message.len));
            send(&mut bench, &stream, &message, 3);
            bench.run();
            bench.put(MEMORY, &bytes(message.len as usize));
            sent(&mut bench, &message, (Status::SUCCESS, false), blocks);
            bench.check(&format!(
                "{threads} threads, {blocks} blocks, {lines} lines"
            ));
        }
    }
}

/// A room shows so many shares as it has lines for.
#[test]
fn shares_of_a_message_have_lines_in_its_room() {
    for (len, lines, blocks) in [
        (1, 16, 1),
        (8192, 16, 1),
        (8193, 16, 2),
        (1 << 30, 16, 14),
        (1 << 30, 33, 31),
        (1 << 30, 34, 32),
        (1 << 30, 4096, 48),
        ((8 << 20) - 1, 4096, 32),
        (8 << 20, 4096, 48),
        (1 << 30, 0, 1),
    ] {
        assert_eq!(
            Direct::shares_of(len, lines),
            blocks,
            "{len} bytes, {lines} lines"
        );
    }
}

/// The soft GPU shows copied bytes at once. The head, which is stored before the fence too, is the proof
/// of the fence.
#[test]
fn line_of_a_block_is_behind_what_it_has_stored() {
    for seed in 0..100 {
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY));
        let message = Direct {
            lines: 12,
            ..lay_out(&mut bench, NUMBER, 0, 777)
        };
        bench.store(PLACE, &flag::place(NUMBER, (to, KEY), message.len));
        send(&mut bench, &stream, &message, 1);
        bench.run_until_is(ROOM + 32, line(NUMBER, 0));
        bench.put(MEMORY, &bytes(777));
        sent(&mut bench, &message, (Status::SUCCESS, false), 1);
        bench.check_but(&[REPORT], &format!("seed {seed}"));
        bench.run();
        bench.check(&format!("seed {seed}"));
    }
}

/// A reader of the report finds the result of a message that was not sent.
#[test]
fn failure_becomes_visible_before_the_report() {
    for seed in 0..100 {
        let blocks = 1 + seed as u32 % 3;
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY));
        let message = lay_out(&mut bench, NUMBER, 0, len_of(blocks));
        bench.store(PLACE, &flag::place(NUMBER, (to, KEY), 9));
        send(&mut bench, &stream, &message, 3);
        bench.run_until_is(REPORT, REPORTED + u64::from(blocks));
        sent(&mut bench, &message, (Status::TRUNCATED, true), blocks);
        bench.check(&format!("seed {seed}, {blocks} blocks"));
    }
}

/// The receiver's kernel polls before, while and after the message is written, on memory of weak order.
/// The place comes from a kernel, or from the CPU.
#[test]
fn polling_receive_ends_when_the_whole_message_is_in_place() {
    let mut seen = [[0; 4]; 4];
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let threads = THREADS[rng.usize(..THREADS.len())];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        // Of one block to three.
        let len = match rng.usize(..4) {
            0 => rng.usize(1..900),
            1 => rng.usize(8193..LONG_LEN),
            2 => rng.usize(16_385..17_000),
            _ => rng.usize(1..17_000),
        };
        let (skew, staged, device) = (rng.usize(..9), rng.bool(), rng.bool());
        let message = lay_out(&mut bench, NUMBER, skew, len);
        let message = Direct {
            lines: if rng.bool() { LINES as u64 } else { 0 },
            ..message
        };
        let at = MEMORY + rng.usize(..9);
        let (mine, staging) = (bench.addr(at), bench.addr(STAGING + skew));
        // Staged messages are copied once more.
        let to = if staged { staging } else { mine };
        let mut by = || [rng.u32(1..4), rng.u32(1..5)];
        let (writer, reader) = (by(), by());
        let other = bench.stream.gpu().stream().unwrap();
        let third = bench.stream.gpu().stream().unwrap();
        let (mut order, by_kernel) = ([0, 1, 2], rng.bool());
        rng.shuffle(&mut order);
        let (mut writers, mut readers) = (0, 0);
        for step in order {
            match step {
                0 => writers = send_by(&mut bench, &other, &message, writer),
                1 => {
                    let staging = if staged { staging } else { 0 };
                    let mut receive: Unpack<1> = Unpack {
                        staging,
                        ..receive(&bench, NUMBER, &[(at, len)])
                    };
                    if device {
                        receive = in_device(&bench, receive);
                    }
                    readers = read_by(&bench, &receive, reader);
                }
                _ if by_kernel => name(&bench, &third, NUMBER, (to, len)),
                _ => bench.store(PLACE, &flag::place(NUMBER, (to, KEY), len as u64)),
            }
            bench.runs_within(Duration::from_nanos(rng.u64(..500)));
        }
        assert!(bench.runs_within(Duration::from_secs(60)));
        let what = format!(
            "seed {seed}, {len} bytes, {threads} threads, {writers} to {readers} shares, blocks {writer:?} {reader:?}"
        );
        let mut got = vec![0; len];
        bench.memory.read(at, &mut got).unwrap();
        assert!(got == bytes(len), "{what}");
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        assert!(third.synchronize(Duration::from_secs(60)).unwrap());
        seen[writers as usize][readers as usize] += 1;
        bench.put(at, &got);
        if staged {
            bench.put(STAGING + skew, &got);
        }
        match by_kernel {
            true => named(&mut bench, NUMBER, (to, len)),
            false => bench.put(PLACE, &flag::place(NUMBER, (to, KEY), len as u64)),
        }
        sent(&mut bench, &message, (Status::SUCCESS, false), writers);
        received(&mut bench, NUMBER, (Status::SUCCESS, len as u64), device);
        // The slot was never free.
        bench.check(&what);
    }
    // Two or three blocks write for two or three that read.
    let seldom = (1..4).flat_map(|w| (1..4).map(move |r| (w, r)));
    assert!(seldom.clone().all(|(w, r)| seen[w][r] > 0), "{seen:?}");
}

/// Of numbers before and after wraps: the kernels of both sides, by the name that one of them stores, or
/// by the words.
#[test]
fn messages_near_wraps_are_copied() {
    let mut bench = Bench::new(1);
    for (number, by_words) in numbers_near_wraps().flat_map(|n| [(n, false), (n, true)]) {
        let (len, what) = (len_of(2), format!("{number:#x}, {by_words}"));
        let message = lay_out(&mut bench, number, 0, len);
        let (other, to) = (bench.stream.gpu().stream().unwrap(), bench.addr(MEMORY));
        let receive: Unpack<1> = in_device(&bench, receive(&bench, number, &[(MEMORY, len)]));
        if !by_words {
            name(&bench, &bench.stream, number, (to, len));
        }
        read(&bench, &receive, 2);
        let blocks = if by_words {
            let blocks = send(&mut bench, &other, &message, 2);
            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
            bench.check(&what);
            bench.store64(CREDIT, credit_of(number.wrapping_sub(16)));
            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
            // The receiver does not take the announcement of a message that it waits for.
            bench.store64(INFO, to);
            bench.store64(READY_WORD, word(number, READY, len as u64));
            blocks
        } else {
            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
            send(&mut bench, &other, &message, 2)
        };
        bench.run();
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        scattered(&mut bench, &[(MEMORY, len)], len);
        if by_words {
            bench.put64(WORD, word(number, ANNOUNCE, len as u64));
            passed_on(&bench, &message, to, blocks);
        } else {
            named(&mut bench, number, (to, len));
        }
        sent(&mut bench, &message, (Status::SUCCESS, false), blocks);
        received(&mut bench, number, (Status::SUCCESS, len as u64), true);
        bench.check(&what);
    }
}
