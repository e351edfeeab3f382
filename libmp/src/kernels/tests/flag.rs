//! Tests of messages in flagged rooms: the kernel that writes them ([`Flag`]), and the receiver's
//! kernel that reads them.

use super::unpack::{CONSUMED, ERROR, MEMORY, RESULT, SEQ, WORD, ended, payload, receive_into};
use super::*;
use crate::wire::flag;

/// Offsets in the bench's memory.
const DONE: usize = 0x48;
const CREDIT: usize = 0x50;
const CREDIT_OF_HOST: usize = 0x58;
const END: usize = 0x60;
const FROM: usize = 0x100;
const ROOM: usize = 0x3000;
/// Bytes of the slot.
const SLOT: usize = 4096;

const THREADS: [u32; 4] = [1, 7, 32, 256];
const FLAGGED: u64 = 8;
/// The number of the message: its low half is that of the receive.
const NUMBER: u64 = 5 << 32 | SEQ as u64;

/// Puts everything before the kernels into the image: an old message in the room.
fn lay_out(bench: &mut Bench, skew: usize, len: usize) {
    bench.clear();
    bench.put64(WORD, 0);
    bench.put64(WORD + 8, 0);
    bench.put64(CONSUMED, 0);
    bench.put64(RESULT, 0);
    bench.put32(ERROR, 0);
    bench.put64(DONE, 0);
    bench.put(ROOM, &flag::before(NUMBER, flag::size(SLOT)));
    let bytes: Vec<u8> = (0..len).map(payload).collect();
    bench.put(FROM + skew, &bytes);
}

fn message(bench: &Bench, skew: usize, len: usize) -> Flag {
    Flag {
        slot: Credit::default(),
        done: bench.addr(DONE),
        serial: 9,
        from: bench.addr(FROM + skew),
        room: bench.addr(ROOM),
        pair: bench.addr(WORD),
        len: len as u64,
        lines: 0,
        number: NUMBER,
    }
}

fn write(bench: &Bench, stream: &Stream, message: &Flag) {
    // SAFETY: the addresses are within the bench's memory, which outlives the run.
    unsafe { bench.kernels.flag_all(stream, &[*message], Polls::None) }.unwrap();
}

/// Enqueues the receive, which polls.
fn read<const N: usize>(bench: &Bench, segments: &[(usize, usize)]) {
    let receive: Unpack<N> = Unpack {
        flagged: bench.addr(ROOM),
        credit: bench.addr(CREDIT),
        number: NUMBER,
        waits: 1,
        ..receive_into(bench, segments, SLOT)
    };
    let passed = bench.memory.word64(CONSUMED).unwrap();
    // SAFETY: as above; the segments are disjoint.
    unsafe {
        let passed = Some((&passed, u64::from(SEQ) << 48));
        bench.kernels.unpack(&bench.stream, &receive, passed)
    }
    .unwrap();
}

fn word_of(kind: u64, len: usize) -> u64 {
    word(u64::from(SEQ), kind, len as u64)
}

#[test]
fn message_is_written_with_its_words() {
    for (threads, skew) in THREADS.into_iter().flat_map(|t| [(t, 0), (t, 1), (t, 2)]) {
        for (len, lines) in [(0, 0), (1, 0), (8, 0), (777, 1024), (SLOT, 0)] {
            let mut bench = Bench::new(threads);
            lay_out(&mut bench, skew, len);
            bench.load();
            let message = Flag {
                lines,
                ..message(&bench, skew, len)
            };
            write(&bench, &bench.stream, &message);
            bench.run();
            let mut room = vec![0; flag::size(SLOT)];
            bench.memory.read(ROOM, &mut room).unwrap();
            let bytes: Vec<u8> = (0..len).map(payload).collect();
            assert_eq!(flag::payload(&room, NUMBER, len), Some(bytes));
            // Lines behind the message are written only if that was requested.
            let last = flag::size(4 * (lines as usize).max(len.div_ceil(4)));
            let behind = flag::before(NUMBER, flag::size(SLOT) - last);
            assert_eq!(room[last..], behind, "{len} bytes");
            assert!(last < 8 || room[last - 4..last] == SEQ.to_le_bytes());
            written(&mut bench, len);
            bench.put(ROOM, &room);
            bench.check(&format!("{len} bytes, {threads} threads"));
        }
    }
}

/// Puts the words of a written message into the image.
fn written(bench: &mut Bench, len: usize) {
    bench.put64(WORD, word_of(FLAGGED, len));
    bench.put64(WORD + 8, word_of(FLAGGED, len));
    bench.put64(DONE, 9);
}

/// The slot is free once either word has the number of the message before, or a later one. Then the
/// words of that message may still have to be stored by another stream.
#[test]
fn message_waits_for_the_credit_of_its_slot_and_for_the_words_before_its_own() {
    const BEFORE: u64 = NUMBER - 16;
    // The word that is stored, its value, and whether the message is then written.
    let credits = [
        (CREDIT, BEFORE, Some(true)),
        (CREDIT, BEFORE + 16, Some(true)),
        (CREDIT, BEFORE - 16, None),
        (CREDIT_OF_HOST, word(BEFORE, TAKEN, 0), Some(true)),
        (CREDIT_OF_HOST, word(BEFORE + 1, TAKEN, 0), Some(true)),
        (CREDIT_OF_HOST, word(BEFORE - 1, TAKEN, 0), None),
        // The receive before has failed; the peer is lost.
        (CREDIT_OF_HOST, word(BEFORE, FAILED, 13), Some(true)),
        (CREDIT_OF_HOST, word(NUMBER + 1, FAILED, 13), Some(false)),
        (END, 0, None),
    ];
    for (threads, (at, value, free)) in THREADS.into_iter().flat_map(|t| credits.map(|c| (t, c))) {
        for after in [false, true] {
            let what = format!("{threads} threads, {at:#x} = {value:#x}, after {after}");
            let mut bench = Bench::new(threads);
            lay_out(&mut bench, 0, 100);
            bench.put64(CREDIT, BEFORE - 16);
            bench.put64(CREDIT_OF_HOST, word(BEFORE - 16, TAKEN, 0));
            bench.put64(END, 4);
            bench.load();
            let message = Flag {
                slot: Credit {
                    credit: bench.addr(CREDIT),
                    taken: bench.addr(CREDIT_OF_HOST),
                    before: BEFORE,
                    after: if after { bench.addr(END) } else { 0 },
                    last: 5,
                },
                ..message(&bench, 0, 100)
            };
            write(&bench, &bench.stream, &message);
            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
            if at != END {
                bench.store64(at, value);
            }
            let ends = free.is_some_and(|written| !(written && after));
            assert_eq!(bench.runs_within(Duration::from_millis(1)), ends, "{what}");
            if free == Some(true) {
                if after {
                    bench.check(&what);
                    bench.store64(END, 5);
                    bench.run();
                }
                written(&mut bench, 100);
                let mut room = vec![0; flag::size(SLOT)];
                bench.memory.read(ROOM, &mut room).unwrap();
                let bytes: Vec<u8> = (0..100).map(payload).collect();
                assert_eq!(flag::payload(&room, NUMBER, 100), Some(bytes), "{what}");
                bench.put(ROOM, &room);
            }
            bench.check(&what);
            if free.is_none() {
                // The stream may end.
                bench.store64(CREDIT_OF_HOST, word(NUMBER, FAILED, 13));
                bench.run();
            }
        }
    }
}

/// The reader polls before, while and after the message is written, on memory of weak order.
#[test]
fn polling_receive_takes_in_the_whole_message() {
    for seed in 0..60 {
        let threads = THREADS[seed as usize % THREADS.len()];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let (len, skew) = (seed as usize * 67 % SLOT, seed as usize % 5);
        let cut = len / 3;
        lay_out(&mut bench, skew, len);
        bench.load();
        let (first, rest) = ((MEMORY + 1, cut), (MEMORY + 0x2000, len - cut));
        match seed % 2 {
            0 => read::<1>(&bench, &[(MEMORY + skew, len)]),
            _ => read::<SEGMENTS>(&bench, &[first, rest]),
        }
        let other = bench.stream.gpu().stream().unwrap();
        write(&bench, &other, &message(&bench, skew, len));
        bench.run();
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        let bytes: Vec<u8> = (0..len).map(payload).collect();
        match seed % 2 {
            0 => bench.put(MEMORY + skew, &bytes),
            _ => {
                bench.put(first.0, &bytes[..cut]);
                bench.put(rest.0, &bytes[cut..]);
            }
        }
        written(&mut bench, len);
        bench.put64(CREDIT, NUMBER);
        let taken = word_of(TAKEN, 0);
        ended(&mut bench, (Status::SUCCESS, len as u64, taken), true);
        let mut room = vec![0; flag::size(SLOT)];
        bench.memory.read(ROOM, &mut room).unwrap();
        bench.put(ROOM, &room);
        bench.check(&format!("seed {seed}, {len} bytes, {threads} threads"));
    }
}

/// A message that is too long, and one whose sender failed while it wrote: the word ends the wait.
#[test]
fn message_that_is_too_long_or_torn_ends_the_receive_with_its_status() {
    for (threads, torn) in THREADS.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        let (len, room) = (200, if torn { 200 } else { 150 });
        let mut bench = Bench::new(threads);
        lay_out(&mut bench, 0, len);
        bench.load();
        write(&bench, &bench.stream, &message(&bench, 0, len));
        bench.run();
        let last = ROOM + flag::size(len) - 8;
        if torn {
            bench.memory.write(last, &[0; 8]).unwrap();
        }
        read::<1>(&bench, &[(MEMORY, room)]);
        if torn {
            assert!(!bench.runs_within(Duration::from_millis(1)));
            let failed = word_of(FAILED, 13);
            bench.store64(WORD, failed);
        }
        bench.run();
        let end = |at: usize| {
            let mut bytes = [0; 8];
            bench.memory.read(at, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        let expected = match torn {
            true => (result(Status(13), 0), word_of(FAILED, 13)),
            false => (result(Status::TRUNCATED, 200), word_of(TOO_LONG, 0)),
        };
        assert_eq!((end(RESULT), end(CONSUMED)), expected, "{threads} threads");
        assert_eq!(end(CREDIT), NUMBER);
        assert!(torn || end(MEMORY) == u64::from_le_bytes([GUARD; 8]));
    }
}
