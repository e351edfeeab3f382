//! Tests of the receiver's kernel ([`Unpack`]), which takes a message in.

use proptest::prelude::*;

use super::*;

/// Offsets in the bench's memory.
pub(super) const WORD: usize = 0x00;
pub(super) const CONSUMED: usize = 0x10;
pub(super) const RESULT: usize = 0x20;
pub(super) const ERROR: usize = 0x34;
/// The words in device memory of a receive that has them, and the number that comes with them.
pub(super) const ENDED: usize = 0x60;
pub(super) const DEVICE_RESULT: usize = 0x68;
pub(super) const VALUE: u64 = 7 << 44 | 1 << 37;
/// The count of blocks.
pub(super) const COUNT: usize = 0x70;
/// Payloads, in the slot and staged, of at most [`MOST`] bytes.
pub(super) const PAYLOAD: usize = 0x100;
const STAGING: usize = 0x3000;
/// The receive's memory.
pub(super) const MEMORY: usize = 0x6000;
const MOST: usize = 0x2800;

pub(super) const SEQ: u32 = 0x7_1234;
/// Block sizes: one thread, less than a warp, a warp, an odd number, the size on CUDA.
const THREADS: [u32; 5] = [1, 7, 32, 80, 256];

/// Byte `i` of the payload in the slot, and of the staged one.
pub(super) fn payload(i: usize) -> u8 {
    (i * 7 + i / 251) as u8
}

fn staged(i: usize) -> u8 {
    !payload(i)
}

/// A receive into segments with these offsets and lengths, and with a slot of this length.
pub(super) fn receive_into<const N: usize>(
    bench: &Bench,
    segments: &[(usize, usize)],
    slot: usize,
) -> Unpack<N> {
    let mut segment = [Segment::default(); N];
    for (to, &(at, len)) in segment.iter_mut().zip(segments) {
        (to.addr, to.len) = (bench.addr(at), len as u64);
    }
    Unpack {
        word: bench.addr(WORD),
        payload: bench.addr(PAYLOAD + 1),
        consumed: bench.addr(CONSUMED),
        result: bench.addr(RESULT),
        error: bench.addr(ERROR),
        capacity: segments.iter().map(|(_, len)| *len as u64).sum(),
        staging: 0,
        flagged: 0,
        long_room: 0,
        long_len: 0,
        credit: 0,
        ended: 0,
        value: 0,
        before: 0,
        count: 0,
        mark: 0,
        marked: 0,
        slot: slot as u32,
        shares: 1,
        segments: segments.len() as u32,
        waits: 0,
        number: u64::from(SEQ),
        segment,
    }
}

/// The receive with words in device memory.
pub(super) fn in_device<const N: usize>(bench: &Bench, receive: Unpack<N>) -> Unpack<N> {
    Unpack {
        ended: bench.addr(ENDED),
        value: VALUE,
        before: UNKNOWN,
        consumed: UNKNOWN,
        ..receive
    }
}

/// A receive into two segments, 10 and 30 bytes at odd addresses, with a slot of 64 bytes.
fn receive(bench: &Bench) -> Unpack<SEGMENTS> {
    receive_into(bench, &[(MEMORY + 3, 10), (MEMORY + 0x101, 30)], 64)
}

/// Puts `len` bytes of a payload, from `skip` on, into the segments of the image.
fn copy(bench: &mut Bench, len: usize, skip: usize, payload: fn(usize) -> u8) {
    for i in 0..len {
        let at = if i < 10 { 3 + i } else { 0x101 + i - 10 };
        bench.image[MEMORY + at] = payload(skip + i);
    }
}

/// Sets the memory before the kernel: words, payloads, and guard bytes.
fn lay_out(bench: &mut Bench, word: u64) {
    bench.clear();
    bench.put64(WORD, word);
    bench.put64(RESULT, 0);
    bench.put32(ERROR, 0);
    for i in 0..MOST {
        bench.image[PAYLOAD + i] = payload(i);
        bench.image[STAGING + i] = staged(i);
    }
}

/// Runs `params` and checks how it ends; the image has the copied bytes already.
fn expect<const N: usize>(
    bench: &mut Bench,
    params: &Unpack<N>,
    ends: (Status, u64, u64),
    what: &str,
) {
    // SAFETY: all addresses are within the bench's memory, which outlives the run; segments of the
    // tests are disjoint.
    unsafe { bench.kernels.unpack(&bench.stream, params, None) }.unwrap();
    bench.run();
    match params.ended {
        0 => ended(bench, ends, params.error != 0),
        _ => ended_in_device(bench, ends, params.error != 0),
    }
    bench.check(what);
}

/// Puts the words of a receive that ended with these values into the image.
pub(super) fn ended(bench: &mut Bench, (status, len, consumed): (Status, u64, u64), tells: bool) {
    bench.put64(CONSUMED, consumed);
    in_host(bench, (status, len), tells);
}

fn in_host(bench: &mut Bench, (status, len): (Status, u64), tells: bool) {
    bench.put64(RESULT, result(status, len));
    if status != Status::SUCCESS && tells {
        bench.put32(ERROR, status.0);
    }
}

/// As [`ended`], of a receive with words in device memory: nothing is stored in `consumed`.
pub(super) fn ended_in_device(bench: &mut Bench, ends: (Status, u64, u64), tells: bool) {
    let (status, len, _) = ends;
    bench.put64(DEVICE_RESULT, result(status, len));
    if status == Status::SUCCESS {
        bench.put64(ENDED, VALUE + len);
    } else {
        in_host(bench, (status, len), tells);
        bench.put64(ENDED, VALUE);
    }
}

#[test]
fn every_word_ends_the_receive_with_its_status() {
    use Status as S;
    let seq = u64::from(SEQ);
    let bad = (S::BAD_RESPONSE, 0, word(seq, FAILED, 8));
    let long = |len| (S::TRUNCATED, len, word(seq, TOO_LONG, 0));
    let good = |len| (S::SUCCESS, len, word(seq, TAKEN, 0));
    let failed = |s: S| (s, 0, word(seq, FAILED, u64::from(s.0)));
    let eager = |len| word(seq, EAGER, len);
    let direct = |len| word(seq, DIRECT, len);
    let failure = |status| word(seq, FAILED, status);
    // Name, word, whether DIRECT is staged, how it ends.
    let cases = [
        ("eager", eager(33), false, good(33)),
        ("eager, full", eager(40), false, good(40)),
        ("eager, first segment", eager(10), false, good(10)),
        ("eager, a byte", eager(1), false, good(1)),
        ("eager, empty", eager(0), false, good(0)),
        ("eager, too long", eager(41), false, long(41)),
        ("eager, a slot", eager(64), false, long(64)),
        ("eager, more than a slot", eager(65), false, bad),
        ("eager, huge", eager(MAX_LEN), false, bad),
        ("direct", direct(40), false, good(40)),
        ("direct, empty", direct(0), false, good(0)),
        ("direct, too long", direct(41), false, bad),
        ("staged", direct(39), true, good(39)),
        ("staged, empty", direct(0), true, good(0)),
        ("staged, too long", direct(41), true, bad),
        ("too long", word(seq, TOO_LONG, 99), false, long(99)),
        (
            "announced",
            word(seq, ANNOUNCE, MAX_LEN),
            false,
            long(MAX_LEN),
        ),
        ("failed", failure(4), false, failed(S::TIMEOUT)),
        (
            "failed, unknown",
            failure(0x9_0999),
            false,
            failed(S(0x999)),
        ),
        ("failed, pending", failure(0), false, bad),
        ("failed, success", failure(0x1_0001), false, bad),
        ("ready", word(seq, READY, 1), false, bad),
        ("refused", word(seq, REFUSED, 1), false, bad),
        ("taken", word(seq, TAKEN, 1), false, bad),
        ("kind 0", word(seq, 0, 1), false, bad),
        ("kind 14", word(seq, 14, 1), false, bad),
        ("the next", word(seq + 1, EAGER, 3), false, bad),
        ("the last", word(seq - 1, EAGER, 4), false, bad),
        (
            "failed, by a later one",
            word(seq + 9, FAILED, 4),
            false,
            failed(S::TIMEOUT),
        ),
        ("nothing", 0, false, bad),
    ];
    let places = [(false, 0), (true, 0), (true, IN_HOST)];
    for (threads, (device, waits)) in THREADS.into_iter().flat_map(|t| places.map(|p| (t, p))) {
        let mut bench = Bench::new(threads);
        for (name, word, stage, ends) in cases {
            lay_out(&mut bench, word);
            bench.load();
            let mut params = receive(&bench);
            if device {
                params = in_device(&bench, params);
            }
            params.waits = waits;
            if stage {
                params.staging = bench.addr(STAGING + 5);
            }
            let copied = match (ends.0, word >> 44 & 0xf) {
                (S::SUCCESS, EAGER) => Some(1),
                (S::SUCCESS, DIRECT) if stage => Some(5),
                _ => None,
            };
            if let Some(skip) = copied {
                let byte = if stage { staged } else { payload };
                copy(&mut bench, ends.1 as usize, skip, byte);
            }
            let what = format!("{name}, {threads} threads, in device {device} {waits}");
            expect(&mut bench, &params, ends, &what);
        }
    }
}

#[test]
fn the_error_word_keeps_the_first_failure_and_may_be_absent() {
    let mut bench = Bench::new(1);
    let seq = u64::from(SEQ);
    let ends = (Status::TIMEOUT, 0, word(seq, FAILED, 4));
    lay_out(&mut bench, word(seq, FAILED, 4));
    bench.put32(ERROR, Status::FLUSHED.0);
    bench.load();
    let mut params = receive(&bench);
    params.error = 0;
    expect(&mut bench, &params, ends, "no error word");
    params.error = bench.addr(ERROR);
    // SAFETY: as in `expect`.
    unsafe { bench.kernels.unpack(&bench.stream, &params, None) }.unwrap();
    bench.run();
    bench.check("an error word that is set");
}

#[test]
fn numbers_of_messages_wrap() {
    let mut bench = Bench::new(1);
    for seq in [0, 1, 0x7fff, 0x8000, 0xffff, 0x1_0000, 0x1_0001, u32::MAX] {
        lay_out(&mut bench, word(u64::from(seq), DIRECT, 7));
        bench.load();
        let params = Unpack {
            number: seq.into(),
            ..receive(&bench)
        };
        let ends = (Status::SUCCESS, 7, word(u64::from(seq), TAKEN, 0));
        expect(&mut bench, &params, ends, &format!("message {seq:#x}"));
    }
}

/// The kind and length of a word, and how it ends the receive. The cases are a message that fills
/// the receive, and the failure of its sender.
type Case = (u64, u64, (Status, u64, u64));

const RECEIVED: Case = (EAGER, 40, (Status::SUCCESS, 40, word(SEQ as u64, TAKEN, 0)));
const LATE: Case = (FAILED, 4, (Status::TIMEOUT, 0, word(SEQ as u64, FAILED, 4)));

/// On a GPU whose stores become visible late and in any order, with a check after every step: a
/// reader of one of the words finds the payload, and for a failure the result is stored last.
#[test]
fn payload_becomes_visible_before_the_words() {
    let seq = u64::from(SEQ);
    for seed in 0..100 {
        for ((kind, len, ends), seen) in [(RECEIVED, RESULT), (RECEIVED, CONSUMED), (LATE, RESULT)]
        {
            let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
            lay_out(&mut bench, word(seq, kind, len));
            bench.put64(CONSUMED, 0);
            bench.load();
            // SAFETY: as in `expect`.
            unsafe { bench.kernels.unpack(&bench.stream, &receive(&bench), None) }.unwrap();
            bench.run_until(seen);
            if kind == EAGER {
                copy(&mut bench, 40, 1, payload);
                bench.check_but(&[CONSUMED, RESULT], &format!("seed {seed}"));
                bench.run();
            }
            ended(&mut bench, ends, true);
            bench.check(&format!("seed {seed}"));
        }
    }
}

/// As above, of a receive with words in device memory: a reader of `ended` finds all other words.
#[test]
fn device_result_and_the_words_of_a_failure_become_visible_before_the_end() {
    let seq = u64::from(SEQ);
    for (seed, waits) in (0..100).flat_map(|seed| [(seed, 0), (seed, IN_HOST)]) {
        for (kind, len, ends) in [RECEIVED, LATE] {
            let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
            lay_out(&mut bench, word(seq, kind, len));
            bench.put64(ENDED, 0);
            bench.load();
            let params = Unpack {
                waits,
                ..in_device(&bench, receive(&bench))
            };
            // SAFETY: as in `expect`.
            unsafe { bench.kernels.unpack(&bench.stream, &params, None) }.unwrap();
            bench.run_until(ENDED);
            if kind == EAGER {
                copy(&mut bench, 40, 1, payload);
            }
            ended_in_device(&mut bench, ends, true);
            bench.check(&format!("seed {seed}, kind {kind}"));
        }
    }
}

/// The place of a payload is known when the message is there.
#[test]
fn payload_is_read_from_the_place_that_a_word_names() {
    const PLACE: usize = 0x40;
    let seq = u64::from(SEQ);
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let params = Unpack {
            payload: bench.addr(PLACE),
            waits: LATER,
            ..receive(&bench)
        };
        for place in [bench.addr(PAYLOAD + 1), 0] {
            for (kind, len, ends) in [RECEIVED, LATE] {
                lay_out(&mut bench, word(seq, kind, len));
                bench.put64(PLACE, place);
                bench.load();
                let ends = match (kind, place) {
                    (EAGER, 0) => (Status::BAD_RESPONSE, 0, word(seq, FAILED, 8)),
                    _ => ends,
                };
                if ends.0 == Status::SUCCESS {
                    copy(&mut bench, 40, 1, payload);
                }
                expect(&mut bench, &params, ends, &format!("{threads} threads"));
            }
        }
    }
}

/// A polling kernel waits as long as the word belongs to an earlier message.
#[test]
fn polling_kernel_takes_the_message_when_it_arrives() {
    let seq = u64::from(SEQ);
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        for (kind, len, ends) in [RECEIVED, LATE] {
            lay_out(&mut bench, word(seq - 16, kind, len));
            bench.load();
            let params = Unpack {
                waits: 1,
                ..receive(&bench)
            };
            // SAFETY: as in `expect`.
            unsafe { bench.kernels.unpack(&bench.stream, &params, None) }.unwrap();
            assert!(!bench.runs_within(Duration::from_millis(5)));
            bench.check("before the message");
            bench.store64(WORD, word(seq, kind, len));
            bench.run();
            if kind == EAGER {
                copy(&mut bench, 40, 1, payload);
            }
            ended(&mut bench, ends, true);
            bench.check(&format!("{threads} threads"));
        }
    }
}

/// One segment, copied from and to every alignment.
#[test]
fn bytes_are_copied_for_every_alignment() {
    for threads in [1, 32, 256] {
        let mut bench = Bench::new(threads);
        for to in [0, 1, 2, 4, 8, 15] {
            for from in 0..16 {
                for len in [1, 3, 8, 15, 16, 17, 63, 255, 4096, 9001] {
                    // With more than one thread, a third of the cases: the software GPU runs each
                    // thread as a fiber, which is slow.
                    if threads > 1 && (to + from + len) % 3 != 0 {
                        continue;
                    }
                    lay_out(&mut bench, word(u64::from(SEQ), EAGER, len as u64));
                    bench.load();
                    for i in 0..len {
                        bench.image[MEMORY + to + i] = payload(from + i);
                    }
                    let mut params = receive_into::<1>(&bench, &[(MEMORY + to, len)], len);
                    params.payload = bench.addr(PAYLOAD + from);
                    let ends = (Status::SUCCESS, len as u64, word(u64::from(SEQ), TAKEN, 0));
                    let what = format!("{len} bytes from {from} to {to}, {threads} threads");
                    expect(&mut bench, &params, ends, &what);
                }
            }
        }
    }
}

/// A receive of random shape: gap before and bytes of each segment.
#[derive(Clone, Debug)]
struct Shape {
    segments: Vec<(usize, usize)>,
    from: usize,
    /// In 1/256 of the capacity.
    fill: usize,
    stage: bool,
    threads: usize,
}

fn shapes() -> impl Strategy<Value = Shape> {
    // Short segments, and sometimes one that all threads share.
    let len = prop_oneof![8 => 0..80_usize, 2 => 200..330_usize, 1 => Just(2100_usize)];
    let segment = (0..24_usize, len);
    let count = prop_oneof![Just(SEGMENTS), 0..=SEGMENTS];
    let segments = count.prop_flat_map(move |n| prop::collection::vec(segment.clone(), n));
    (
        segments,
        0..32_usize,
        0..=256_usize,
        any::<bool>(),
        0..THREADS.len(),
    )
        .prop_map(|(segments, from, fill, stage, threads)| Shape {
            segments,
            from,
            fill,
            stage,
            threads,
        })
}

#[test]
fn a_payload_is_scattered_over_any_segments() {
    let mut benches = THREADS.map(Bench::new);
    let mut runner = proptest::test_runner::TestRunner::new(cases());
    let run = |shape: Shape| {
        let bench = &mut benches[shape.threads];
        // As many segments as the memory has room for.
        let mut capacity = 0;
        let mut room = MOST - 32;
        let mut segments = shape.segments;
        segments.retain(|&(gap, len)| {
            let fits = room >= gap + len;
            if fits {
                room -= gap + len;
                capacity += len;
            }
            fits
        });
        let len = capacity * shape.fill / 256;
        let kind = if shape.stage { DIRECT } else { EAGER };
        lay_out(bench, word(u64::from(SEQ), kind, len as u64));
        bench.load();
        let byte = if shape.stage { staged } else { payload };
        let (mut at, mut taken) = (MEMORY, 0);
        for (gap, bytes) in &mut segments {
            at += *gap;
            let copied = (*bytes).min(len - taken);
            for i in 0..copied {
                bench.image[at + i] = byte(shape.from + taken + i);
            }
            taken += copied;
            // From here on, the offset of the segment.
            *gap = at;
            at += *bytes;
        }
        let mut params = receive_into::<SEGMENTS>(bench, &segments, capacity);
        params.payload = bench.addr(PAYLOAD + shape.from);
        if shape.stage {
            params.staging = bench.addr(STAGING + shape.from);
        }
        let ends = (Status::SUCCESS, len as u64, word(u64::from(SEQ), TAKEN, 0));
        expect(bench, &params, ends, "scattered");
        Ok(())
    };
    // The runner takes an `Fn`, and this closure changes its captures.
    let run = std::cell::RefCell::new(run);
    runner
        .run(&shapes(), |shape| (run.borrow_mut())(shape))
        .unwrap();
}
