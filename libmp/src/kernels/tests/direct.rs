//! Tests of the kernels that write a message into the memory of its receive ([`Direct`]), and of the
//! receiver's kernel, to which a flagged room shows the message.

use super::unpack::{CONSUMED, ERROR, MEMORY, RESULT, SEQ, WORD, ended, payload, receive_into};
use super::*;
use crate::wire::flag;

/// Offsets in the bench's memory.
const DONE: usize = 0x48;
const CREDIT: usize = 0x50;
const CREDIT_OF_HOST: usize = 0x58;
const END: usize = 0x60;
const SENT: usize = 0x68;
const SEND_ERROR: usize = 0x74;
const READY_WORD: usize = 0x80;
const INFO: usize = 0x88;
const PLACE: usize = 0xc0;
const LOST: usize = 0xf8;
const GO: usize = 0x100;
const FROM: usize = 0x200;
const ROOM: usize = 0x3000;

const THREADS: [u32; 3] = [1, 32, 256];
/// The number of the message: its low half is that of the receive.
const NUMBER: u64 = 5 << 32 | SEQ as u64;
const BEFORE: u64 = NUMBER - 16;

/// The kernels of a message: one, or one that waits and one that copies.
#[derive(Clone, Copy, Debug)]
enum By {
    One,
    Two,
}

/// A message of `len` bytes, whose slot is not free; `skew` is added to the address of its payload.
fn lay_out(bench: &mut Bench, skew: usize, len: usize) -> Direct {
    bench.clear();
    for at in [WORD, WORD + 8, RESULT, DONE, SENT, INFO] {
        bench.put64(at, 0);
    }
    bench.put32(ERROR, 0);
    bench.put32(SEND_ERROR, 0);
    bench.put64(CREDIT, BEFORE - 16);
    bench.put64(CREDIT_OF_HOST, word(BEFORE - 16, TAKEN, 0));
    bench.put64(END, 5);
    bench.put64(READY_WORD, word(BEFORE, READY, 1 << 20));
    bench.put(PLACE, &flag::place(BEFORE, 0xdead_0000, 1 << 20));
    bench.put64(LOST, 0);
    bench.put(GO, &[0; 32]);
    bench.put(ROOM, &flag::before(NUMBER, flag::size(8)));
    let bytes: Vec<u8> = (0..len).map(payload).collect();
    bench.put(FROM + skew, &bytes);
    bench.load();
    Direct {
        slot: Credit {
            credit: bench.addr(CREDIT),
            taken: bench.addr(CREDIT_OF_HOST),
            before: BEFORE,
            after: bench.addr(END),
            last: 5,
        },
        place: bench.addr(PLACE),
        ready: bench.addr(READY_WORD),
        info: bench.addr(INFO),
        go: bench.addr(GO),
        lost: bench.addr(LOST),
        to: 0,
        from: bench.addr(FROM + skew),
        len: len as u64,
        room: bench.addr(ROOM),
        lines: 0,
        pair: bench.addr(WORD),
        result: bench.addr(SENT),
        error: bench.addr(SEND_ERROR),
        done: bench.addr(DONE),
        serial: 9,
        number: NUMBER,
    }
}

fn send(bench: &Bench, stream: &Stream, message: &Direct, by: By) {
    let kernels = &bench.kernels;
    let waiting = || [message].into_iter().filter(|message| message.to == 0);
    // SAFETY: the addresses are within the bench's memory, which outlives the run.
    unsafe {
        match by {
            By::One => kernels.direct_all(stream, [message].into_iter(), Polls::None),
            By::Two => kernels
                .place_all(stream, waiting(), Polls::None)
                .and_then(|()| kernels.direct_large(stream, message)),
        }
    }
    .unwrap();
}

/// Puts what the sender's kernels have written into the image; `status`: how the send ended, if not
/// with success, and the kind of its words.
fn sent(bench: &mut Bench, len: usize, (status, kind): (Status, Option<u64>)) {
    if let Some(kind) = kind {
        bench.put64(WORD, word(NUMBER, kind, len as u64));
        bench.put64(WORD + 8, word(NUMBER, kind, len as u64));
    }
    if status == Status::SUCCESS {
        let line = |data: u64| NUMBER << 32 | data;
        let lines = [1 << 31, NUMBER >> 32, len as u64, 0];
        for (at, data) in lines.into_iter().enumerate() {
            bench.put64(ROOM + 8 * at, line(data));
        }
    } else {
        bench.put64(SENT, result(status, len as u64));
        bench.put32(SEND_ERROR, status.0);
    }
    bench.put64(DONE, 9);
}

/// All kinds of answers, before and after the message is enqueued.
#[test]
fn answer_of_the_receiver_ends_the_send() {
    use Status as S;
    const LEN: usize = 777;
    let sent_well = (S::SUCCESS, Some(DIRECT));
    let too_long = (S::TRUNCATED, Some(TOO_LONG));
    let room = |len: usize| word(NUMBER, READY, len as u64);
    // The length in the lines, or the ready word; how the send ends.
    let answers = [
        (Some(LEN), 0, sent_well),
        (Some(LEN + 5), 0, sent_well),
        (Some(LEN - 1), 0, too_long),
        (None, room(LEN), sent_well),
        (None, room(LEN - 1), too_long),
        (None, word(NUMBER, REFUSED, 0), (S::TRUNCATED, None)),
        (None, word(NUMBER + 16, READY, 5000), (S::TRUNCATED, None)),
        (None, word(NUMBER, FAILED, 13), (S(13), None)),
        (None, word(NUMBER, EAGER, 5), (S::BAD_RESPONSE, None)),
    ];
    for (threads, by) in THREADS.map(|t| [(t, By::One), (t, By::Two)]).concat() {
        for ((lines, ready, end), late) in answers.map(|a| [(a, false), (a, true)]).concat() {
            let what = format!("{threads} threads, {by:?}, {lines:?}, {ready:#x}, late {late}");
            let mut bench = Bench::new(threads);
            let message = lay_out(&mut bench, 3, LEN);
            let stream = bench.stream.clone();
            let to = bench.addr(MEMORY + 1);
            if late {
                send(&bench, &stream, &message, by);
                assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                // The announcement waits for the credit.
                bench.check(&what);
                bench.store64(CREDIT, BEFORE);
                assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                bench.put64(WORD, word(NUMBER, ANNOUNCE, LEN as u64));
                bench.check(&what);
            }
            match lines {
                Some(room) => {
                    let place = flag::place(NUMBER, to, room as u64);
                    for (at, line) in place.chunks_exact(8).enumerate() {
                        let last = u64::from_le_bytes(line.try_into().unwrap());
                        if late {
                            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                        }
                        bench.store64(PLACE + 8 * at, last);
                    }
                }
                None => {
                    bench.store64(INFO, to);
                    bench.store64(READY_WORD, ready);
                }
            }
            if !late {
                send(&bench, &stream, &message, by);
            }
            bench.run();
            if end.0 == S::SUCCESS {
                let bytes: Vec<u8> = (0..LEN).map(payload).collect();
                bench.put(MEMORY + 1, &bytes);
            }
            sent(&mut bench, LEN, end);
            let go: Vec<usize> = (GO..GO + 32).step_by(8).collect();
            bench.check_but(&go, &what);
        }
    }
}

/// The words of the message before are stored by another stream.
#[test]
fn message_is_behind_the_words_of_the_one_before() {
    for by in [By::One, By::Two] {
        let mut bench = Bench::new(32);
        let message = lay_out(&mut bench, 0, 100);
        let to = bench.addr(MEMORY);
        bench.store64(END, 4);
        let place = flag::place(NUMBER, to, 100);
        bench.put(PLACE, &place);
        bench.memory.write(PLACE, &place).unwrap();
        send(&bench, &bench.stream, &message, by);
        assert!(!bench.runs_within(Duration::from_millis(1)));
        bench.check("words of the message before");
        bench.store64(END, 5);
        bench.run();
    }
}

/// The receiver's kernel polls before, while and after the message is written, on memory of weak order.
#[test]
fn polling_receive_ends_when_the_whole_message_is_in_place() {
    for seed in 0..80 {
        let threads = THREADS[seed as usize % THREADS.len()];
        let by = [By::One, By::Two][seed as usize / 3 % 2];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let (len, skew) = (1 + seed as usize * 131 % 0x2000, seed as usize % 5);
        let known = seed % 7 == 0;
        let message = lay_out(&mut bench, skew, len);
        let staged = seed % 2 == 1;
        // Staged messages are copied once more.
        let staging = bench.addr(MEMORY + 0x2800);
        let to = if staged { staging } else { bench.addr(MEMORY) };
        let message = Direct {
            to: if known { to } else { 0 },
            ..message
        };
        let receive: Unpack<1> = Unpack {
            word: bench.addr(WORD + 8),
            flagged: bench.addr(ROOM),
            credit: bench.addr(CREDIT),
            staging: if staged { staging } else { 0 },
            number: NUMBER,
            waits: POLLS,
            ..receive_into(&bench, &[(MEMORY, len)], 64)
        };
        let passed = bench.memory.word64(CONSUMED).unwrap();
        // SAFETY: the addresses are within the bench's memory, and source and segment are disjoint.
        unsafe {
            let passed = Some((&passed, u64::from(SEQ) << 48));
            bench.kernels.unpack(&bench.stream, &receive, passed)
        }
        .unwrap();
        let other = bench.stream.gpu().stream().unwrap();
        send(&bench, &other, &message, by);
        let place = flag::place(NUMBER, to, len as u64);
        bench.put(PLACE, &place);
        bench.memory.write(PLACE, &place).unwrap();
        bench.run();
        let mut bytes = vec![0; len];
        bench.memory.read(MEMORY, &mut bytes).unwrap();
        let expected: Vec<u8> = (0..len).map(payload).collect();
        assert!(bytes == expected, "seed {seed}, {len} bytes, {by:?}");
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        bench.put(MEMORY, &bytes);
        if staged {
            bench.put(MEMORY + 0x2800, &bytes);
        }
        sent(&mut bench, len, (Status::SUCCESS, Some(DIRECT)));
        bench.put64(CREDIT, NUMBER);
        ended(
            &mut bench,
            (Status::SUCCESS, len as u64, word(NUMBER, TAKEN, 0)),
            true,
        );
        let go: Vec<usize> = (GO..GO + 32).step_by(8).collect();
        bench.check_but(&go, &format!("seed {seed}, {len} bytes, {by:?}"));
    }
}

/// The memory of the receive may be another's by now.
#[test]
fn message_to_a_lost_peer_writes_no_receive() {
    for (by, known) in [By::One, By::Two]
        .map(|by| [(by, false), (by, true)])
        .concat()
    {
        let mut bench = Bench::new(32);
        let message = lay_out(&mut bench, 0, 100);
        let to = bench.addr(MEMORY);
        let place = flag::place(NUMBER, to, 100);
        bench.put(PLACE, &place);
        bench.memory.write(PLACE, &place).unwrap();
        bench.store64(READY_WORD, word(NUMBER + 1, FAILED, 13));
        bench.store64(LOST, 1);
        let message = Direct {
            to: if known { to } else { 0 },
            ..message
        };
        send(&bench, &bench.stream, &message, by);
        bench.run();
        sent(&mut bench, 100, (Status(13), None));
        let go: Vec<usize> = (GO..GO + 32).step_by(8).collect();
        bench.check_but(&go, &format!("{by:?}, known {known}"));
    }
}
