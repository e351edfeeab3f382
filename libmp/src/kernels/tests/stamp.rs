//! Tests of the sender's kernel ([`Stamp`]), which completes the work requests of a message whose
//! destination or length is known only when the stream reaches it.

use proptest::prelude::*;

use super::*;

/// Offsets in the bench's memory.
const READY_AT: usize = 0x00;
const INFO: usize = 0x10;
const LENGTH: usize = 0x20;
const OFFSET: usize = 0x28;
const RESULT: usize = 0x30;
const ERROR: usize = 0x3c;
const STAMP: usize = 0x48;
const STAMP_CONTROL: usize = 0x80;
/// Work requests, [`STEP`] bytes each, and the offsets of their fields.
const REQUESTS: usize = 0x100;
const STEP: usize = 64;
const CONTROL: usize = 0;
const REMOTE_ADDRESS: usize = 16;
const REMOTE_KEY: usize = 24;
const BYTE_COUNT: usize = 32;
const ADDRESS: usize = 40;

/// The receiver's memory, and the source.
const REMOTE: u64 = 0x0102_0304_0506_0708;
const RKEY: u32 = 0x1122_3344;
const SOURCE: u64 = 0x7000_0000_1001;

pub(super) const SEQ: u32 = 0xf_fffe;
const THREADS: [u32; 3] = [1, 5, 32];

/// The state of a send when the stream reaches it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send {
    pub(super) ready: Option<u64>,
    pub(super) length: Option<u64>,
    pub(super) offset: Option<u64>,
    pub(super) size: u64,
    pub(super) chunk: u64,
    pub(super) chunks: u32,
    /// Whether lengths and addresses are patched.
    pub(super) fields: bool,
}

/// A send of 100 bytes in one piece.
pub(super) const PLAIN: Send = Send {
    ready: None,
    length: None,
    offset: None,
    size: 100,
    chunk: 100,
    chunks: 1,
    fields: true,
};

/// The expected end: the stamp's kind, and whether the stamp is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ends {
    pub(super) status: Status,
    pub(super) silent: bool,
}

pub(super) const GOOD: Ends = Ends {
    status: Status::SUCCESS,
    silent: false,
};

pub(super) fn bad(status: Status) -> Ends {
    Ends {
        status,
        silent: false,
    }
}

pub(super) fn silent(status: Status) -> Ends {
    Ends {
        status,
        silent: true,
    }
}

pub(super) fn params<const N: usize>(bench: &Bench, send: &Send) -> Stamp<N> {
    let given = |there: bool, at: usize| if there { bench.addr(at) } else { 0 };
    let mut patch = [Patch::default(); N];
    for (i, patch) in patch.iter_mut().enumerate() {
        let at = REQUESTS + STEP * i;
        *patch = Patch {
            control: bench.addr(at + CONTROL),
            remote_address: bench.addr(at + REMOTE_ADDRESS),
            remote_key: bench.addr(at + REMOTE_KEY),
            length: given(send.fields, at + BYTE_COUNT),
            address: given(send.fields, at + ADDRESS),
        };
    }
    Stamp {
        ready: given(send.ready.is_some(), READY_AT),
        info: given(send.ready.is_some(), INFO),
        stamp: bench.addr(STAMP),
        length: given(send.length.is_some(), LENGTH),
        offset: given(send.offset.is_some(), OFFSET),
        size: send.size,
        source: SOURCE,
        result: bench.addr(RESULT),
        error: bench.addr(ERROR),
        stamp_control: bench.addr(STAMP_CONTROL),
        chunk: send.chunk,
        chunks: send.chunks,
        seq: SEQ,
        patch,
    }
}

/// Sets the memory before the kernel.
fn lay_out(bench: &mut Bench, send: &Send) {
    bench.clear();
    place(bench, send);
    bench.load();
}

/// Puts the words of a send into the image.
pub(super) fn place(bench: &mut Bench, send: &Send) {
    bench.put64(RESULT, 0);
    bench.put32(ERROR, 0);
    bench.put64(READY_AT, send.ready.unwrap_or(0));
    bench.put64(LENGTH, send.length.unwrap_or(0));
    bench.put64(OFFSET, send.offset.unwrap_or(0));
    bench.put64(INFO, REMOTE);
    bench.put32(INFO + 8, RKEY);
    bench.put32(INFO + 12, 0);
}

/// The expected memory after the kernel.
pub(super) fn expect(bench: &mut Bench, send: &Send, ends: Ends) {
    let len = send.length.unwrap_or(send.size);
    let good = ends.status == Status::SUCCESS;
    for i in 0..send.chunks as usize {
        let at = REQUESTS + STEP * i;
        let from = i as u64 * send.chunk;
        if !good || len <= from {
            bench.put(at + CONTROL + 3, &[0]);
            continue;
        }
        if send.ready.is_some() {
            bench.put(at + REMOTE_ADDRESS, &(REMOTE + from).to_be_bytes());
            bench.put(at + REMOTE_KEY, &RKEY.to_be_bytes());
        }
        if send.fields {
            let n = (len - from).min(send.chunk) as u32;
            bench.put(at + BYTE_COUNT, &n.to_be_bytes());
            let local = SOURCE + send.offset.unwrap_or(0) + from;
            bench.put(at + ADDRESS, &local.to_be_bytes());
        }
    }
    let kind = match (good, send.ready) {
        (false, _) => TOO_LONG,
        (true, Some(_)) => DIRECT,
        (true, None) => EAGER,
    };
    if ends.silent {
        bench.put(STAMP_CONTROL + 3, &[0]);
    } else {
        let stamp = word(u64::from(SEQ), kind, len.min(MAX_LEN));
        bench.put64(STAMP, stamp);
        bench.put64(STAMP + 8, stamp);
    }
    if !good {
        bench.put64(RESULT, result(ends.status, len.min(MAX_LEN)));
        bench.put32(ERROR, ends.status.0);
    }
}

fn run<const N: usize>(bench: &mut Bench, send: &Send, ends: Ends, what: &str) {
    lay_out(bench, send);
    let params = params::<N>(bench, send);
    // SAFETY: all addresses are within the bench's memory, which outlives the run; no NIC reads it.
    unsafe { bench.kernels.stamp(&bench.stream, &params) }.unwrap();
    bench.run();
    expect(bench, send, ends);
    bench.check(what);
}

#[test]
fn every_answer_and_length_decides_the_send() {
    use Status as S;
    let seq = u64::from(SEQ);
    let answer = |kind, len| Some(word(seq, kind, len));
    let (next, last) = (word(seq + 1, READY, 100), word(seq - 1, READY, 100));
    let (long, short) = (bad(S::LOCAL_LENGTH), bad(S::TRUNCATED));
    let (refused, late) = (silent(S::TRUNCATED), silent(S::TIMEOUT));
    let garbage = silent(S::BAD_RESPONSE);
    const WIDE: u64 = (1 << 44) + 5;
    // Name, the receiver's answer, length, offset, how it ends.
    let cases = [
        ("whole", None, None, None, GOOD),
        ("some", None, Some(60), None, GOOD),
        ("some of the middle", None, Some(60), Some(40), GOOD),
        ("one byte at the end", None, Some(1), Some(99), GOOD),
        ("nothing", None, Some(0), None, GOOD),
        ("nothing at the end", None, Some(0), Some(100), GOOD),
        ("beyond", None, Some(101), None, long),
        ("past the end", None, Some(60), Some(41), long),
        ("whole, moved", None, None, Some(1), long),
        ("far off", None, Some(1), Some(u64::MAX), long),
        ("more than a word says", None, Some(WIDE), None, long),
        ("endless", None, Some(u64::MAX), None, long),
        ("endless, wrapped", None, Some(u64::MAX), Some(2), long),
        ("ready", answer(READY, 100), None, None, GOOD),
        (
            "ready for all",
            answer(READY, MAX_LEN),
            Some(3),
            Some(7),
            GOOD,
        ),
        ("ready for less", answer(READY, 99), None, None, short),
        ("ready for enough", answer(READY, 60), Some(60), None, GOOD),
        ("nothing for nothing", answer(READY, 0), Some(0), None, GOOD),
        ("ready, beyond", answer(READY, 50), Some(101), None, long),
        ("refused", answer(REFUSED, 0), None, None, refused),
        (
            "refused, beyond",
            answer(REFUSED, 0),
            Some(101),
            None,
            refused,
        ),
        ("failed", answer(FAILED, 4), None, None, late),
        ("failed, beyond", answer(FAILED, 4), Some(101), None, late),
        ("failed, success", answer(FAILED, 1), None, None, garbage),
        ("failed, pending", answer(FAILED, 0), None, None, garbage),
        (
            "failed, wide",
            answer(FAILED, 0x3_0012),
            None,
            None,
            refused,
        ),
        ("eager", answer(EAGER, 100), None, None, garbage),
        ("taken", answer(TAKEN, 100), None, None, garbage),
        ("the next", Some(next), None, None, refused),
        ("the last", Some(last), None, None, garbage),
        ("no word", Some(0), None, None, garbage),
    ];
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        for (name, ready, length, offset, ends) in cases {
            let send = Send {
                ready,
                length,
                offset,
                ..PLAIN
            };
            let what = format!("{name}, {threads} threads");
            run::<1>(&mut bench, &send, ends, &what);
            run::<MOST_CHUNKS>(&mut bench, &send, ends, &what);
            // Fields that are not patched keep their values.
            let bare = Send {
                fields: false,
                ..send
            };
            run::<1>(&mut bench, &bare, ends, &format!("{what}, no fields"));
        }
    }
}

#[test]
fn the_error_word_keeps_the_first_failure_and_may_be_absent() {
    let mut bench = Bench::new(1);
    let send = Send {
        length: Some(101),
        ..PLAIN
    };
    for error in [false, true] {
        lay_out(&mut bench, &send);
        expect(&mut bench, &send, bad(Status::LOCAL_LENGTH));
        bench.put32(ERROR, Status::FLUSHED.0);
        let flushed = Status::FLUSHED.0.to_le_bytes();
        bench.memory.write(ERROR, &flushed).unwrap();
        let mut params = params::<1>(&bench, &send);
        if !error {
            params.error = 0;
        }
        // SAFETY: as in `run`.
        unsafe { bench.kernels.stamp(&bench.stream, &params) }.unwrap();
        bench.run();
        bench.check("kept");
    }
}

/// On a GPU whose stores become visible late and in any order, with a check after every step.
#[test]
fn result_becomes_visible_last() {
    let send = Send {
        ready: Some(word(u64::from(SEQ), REFUSED, 0)),
        ..PLAIN
    };
    for seed in 0..100 {
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        lay_out(&mut bench, &send);
        let params = params::<1>(&bench, &send);
        // SAFETY: as in `run`.
        unsafe { bench.kernels.stamp(&bench.stream, &params) }.unwrap();
        bench.run_until(RESULT);
        expect(&mut bench, &send, silent(Status::TRUNCATED));
        bench.check(&format!("seed {seed}"));
    }
}

#[test]
fn message_without_work_requests_has_its_stamp() {
    let mut bench = Bench::new(1);
    let empty = Send {
        size: 0,
        chunk: 0,
        chunks: 0,
        ..PLAIN
    };
    run::<1>(&mut bench, &empty, GOOD, "empty");
}

/// Pieces of 1 GiB: lengths and addresses beyond 32 bits.
#[test]
fn sixteen_work_requests_share_a_long_message() {
    let chunk = 1 << 30;
    let size = 16 * chunk;
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let edges = [chunk - 1, chunk, chunk + 1, 5 * chunk + 3, size - 1];
        for len in [0, 1].into_iter().chain(edges).chain([size]) {
            let send = Send {
                ready: Some(word(u64::from(SEQ), READY, size)),
                length: Some(len),
                offset: Some(size - len),
                size,
                chunk,
                chunks: 16,
                fields: true,
            };
            let what = format!("{len} bytes, {threads} threads");
            run::<MOST_CHUNKS>(&mut bench, &send, GOOD, &what);
            let send = Send {
                ready: Some(word(u64::from(SEQ), READY, len.saturating_sub(1))),
                ..send
            };
            let ends = match len {
                0 => GOOD,
                _ => bad(Status::TRUNCATED),
            };
            run::<MOST_CHUNKS>(&mut bench, &send, ends, &format!("{len} bytes for less"));
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_message_is_cut_into_its_work_requests(
        chunk in 1..5000_u64,
        chunks in 1..=16_u32,
        short in 0..5000_u64,
        part in (0..=1000_u64, 0..=1000_u64),
        room in any::<Option<u16>>(),
        threads in 0..THREADS.len(),
    ) {
        let size = chunk * u64::from(chunks) - short % chunk;
        // Sometimes more than the source has.
        let (len, offset) = (size * part.0 / 900, size * part.1 / 2000);
        let send = Send {
            ready: room.map(|room| word(u64::from(SEQ), READY, room.into())),
            length: Some(len),
            offset: Some(offset),
            size,
            chunk,
            chunks,
            fields: true,
        };
        let ends = match room {
            _ if len + offset > size => bad(Status::LOCAL_LENGTH),
            Some(room) if len > room.into() => bad(Status::TRUNCATED),
            _ => GOOD,
        };
        let mut bench = Bench::new(THREADS[threads]);
        run::<MOST_CHUNKS>(&mut bench, &send, ends, &format!("{send:?}"));
    }
}
