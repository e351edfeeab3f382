//! Tests of messages in flagged rooms: the kernel that writes them ([`Flag`]), and the receiver's
//! kernel that reads them ([`reads`]).

mod reads;

use super::unpack::{
    CONSUMED, COUNT, DEVICE_RESULT, ENDED, ERROR, MEMORY, RESULT, SEQ, VALUE, WORD, ended,
    ended_in_device, in_device, payload, receive_into,
};
use super::*;
use crate::wire::flag;
use crate::wire::word::TURN;

/// Offsets in the bench's memory.
pub(super) const REPORT: usize = 0x48;
pub(super) const CREDIT: usize = 0x50;
pub(super) const CREDIT_OF_HOST: usize = 0x58;
pub(super) const FROM: usize = 0x400;
pub(super) const ROOM: usize = 0x4c00;
pub(super) const LONG: usize = 0xa800;
/// Bytes of the slot, and of a message in the long room.
pub(super) const SLOT: usize = 1024;
pub(super) const LONG_LEN: usize = 0x2800;
/// The report before the message.
pub(super) const REPORTED: u64 = 40;

const THREADS: [u32; 4] = [1, 7, 32, 256];
/// The number of the message: its low half is that of the receive.
pub(super) const NUMBER: u64 = 5 << 32 | SEQ as u64;
/// The mark of a message in the long room.
const IN_LONG: u64 = 1 << 30;

/// A message of `len` bytes at an address with this `skew`.
#[derive(Clone, Copy, Debug)]
struct Message {
    number: u64,
    skew: usize,
    len: usize,
    long: bool,
    /// Lines that are written at least.
    lines: usize,
}

const PLAIN: Message = Message {
    number: NUMBER,
    skew: 0,
    len: 100,
    long: false,
    lines: 0,
};

impl Message {
    fn lines_at(&self) -> usize {
        if self.long { LONG } else { ROOM + 16 }
    }

    /// Lines that are written: they are written by twos.
    fn all_lines(&self) -> usize {
        self.len.div_ceil(4).max(self.lines).next_multiple_of(2)
    }
}

pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(payload).collect()
}

pub(super) fn line(number: u64, data: u64) -> u64 {
    number << 32 | data & 0xffff_ffff
}

/// The words and rooms before message `number`: those of an older message.
pub(super) fn lay_out_words(bench: &mut Bench, number: u64) {
    bench.clear();
    let old = number.wrapping_sub(16);
    bench.put64(WORD, word(old, EAGER, 3));
    bench.put64(WORD + 8, word(old, EAGER, 3));
    bench.put64(CONSUMED, word(old, TAKEN, 0));
    bench.put64(RESULT, 0);
    bench.put32(ERROR, 0);
    bench.put64(REPORT, REPORTED);
    bench.put64(CREDIT, credit_of(old.wrapping_sub(16)));
    bench.put64(CREDIT_OF_HOST, word(old.wrapping_sub(16), TAKEN, 0));
    // Of the receive before, of 5 bytes.
    bench.put64(ENDED, (6 << 44) + 5);
    bench.put64(DEVICE_RESULT, 77);
    bench.put32(COUNT, 0);
    bench.put(ROOM, &flag::before(number, flag::size(SLOT)));
    bench.put(LONG, &flag::before(number, flag::lines_len(LONG_LEN)));
}

/// Puts everything before the kernels into the memory.
fn lay_out(bench: &mut Bench, m: &Message) {
    lay_out_words(bench, m.number);
    bench.put(FROM + m.skew, &bytes(m.len));
    bench.load();
}

/// Puts a written message into the image; `shares`: those that are reported.
fn written(bench: &mut Bench, m: &Message, shares: u32) {
    let mark = if m.long { IN_LONG } else { 0 };
    bench.put64(ROOM, line(m.number, mark | m.len as u64));
    bench.put64(ROOM + 8, line(m.number, m.number >> 32));
    for at in 0..m.all_lines() {
        let data = (4 * at..m.len.min(4 * at + 4)).rev();
        let data = data.fold(0, |data, i| data << 8 | u64::from(payload(i)));
        bench.put64(m.lines_at() + 8 * at, line(m.number, data));
    }
    bench.put64(REPORT, REPORTED + u64::from(shares));
}

fn params(bench: &Bench, m: &Message) -> Flag {
    Flag {
        slot: Credit::default(),
        report: bench.addr(REPORT),
        from: bench.addr(FROM + m.skew),
        room: bench.addr(ROOM),
        long_room: if m.long { bench.addr(LONG) } else { 0 },
        len: m.len as u64,
        lines: m.lines as u64,
        number: m.number,
        shares: 1,
    }
}

/// What the kernel of message `number` waits for.
pub(super) fn slot(bench: &Bench, number: u64) -> Credit {
    bench.credit(0, CREDIT, CREDIT_OF_HOST, number.wrapping_sub(16))
}

/// The shares of a message of `len` bytes, at most `most`.
fn shares_of(len: u64, most: u32) -> u32 {
    len.div_ceil(4096).clamp(1, most.into()) as u32
}

/// Enqueues a message of at most `shares` shares, with a block for each; returns their number.
fn write(bench: &Bench, stream: &Stream, message: &Flag, shares: u32) -> u32 {
    write_by(bench, stream, message, [shares, shares])
}

/// As [`write`], with so many blocks if there are several shares.
fn write_by(bench: &Bench, stream: &Stream, message: &Flag, [shares, blocks]: [u32; 2]) -> u32 {
    let kernels = &bench.kernels;
    let shares = match message.long_room {
        0 => 1,
        _ => shares_of(message.len, shares),
    };
    let message = Flag {
        shares: shares.into(),
        ..*message
    };
    // SAFETY: the addresses are within the bench's memory, which outlives the run.
    unsafe {
        if shares == 1 || shares == blocks {
            kernels
                .flag_all(stream, &[message], Polls::Several)
                .unwrap();
        } else {
            let block = kernels.block(message.len).grid([blocks, 1, 1]);
            stream.launch(&kernels.flag, block, &message).unwrap();
        }
    }
    shares
}

/// A receive of the message, which polls.
pub(super) fn receive<const N: usize>(
    bench: &Bench,
    number: u64,
    segments: &[(usize, usize)],
) -> Unpack<N> {
    Unpack {
        flagged: bench.addr(ROOM),
        long_room: bench.addr(LONG),
        long_len: LONG_LEN as u64,
        credit: bench.addr(CREDIT),
        count: bench.addr(COUNT),
        number,
        waits: POLLS,
        ..receive_into(bench, segments, SLOT)
    }
}

/// Enqueues a receive that polls, of at most `shares` shares, with a block for each; returns their number.
pub(super) fn read<const N: usize>(bench: &Bench, receive: &Unpack<N>, shares: u32) -> u32 {
    read_by(bench, receive, [shares, shares])
}

/// As [`read`], with so many blocks if there are several shares.
pub(super) fn read_by<const N: usize>(
    bench: &Bench,
    receive: &Unpack<N>,
    [shares, blocks]: [u32; 2],
) -> u32 {
    let (kernels, stream) = (&bench.kernels, &bench.stream);
    let wide = N == 1 && receive.capacity > receive.slot.into();
    let shares = match wide {
        true => shares_of(receive.capacity.min(receive.long_len), shares),
        false => 1,
    };
    let receive = Unpack { shares, ..*receive };
    let (at, value) = match receive.ended {
        0 => (CONSUMED, receive.number << 48),
        _ => (ENDED, VALUE),
    };
    let word = bench.memory.word64(at).unwrap();
    let passed = Some((&word, value));
    // SAFETY: as above; the segments are disjoint.
    unsafe {
        if shares == 1 || shares == blocks {
            kernels.unpack(stream, &receive, passed).unwrap();
        } else {
            let block = kernels.taking(&receive).grid([blocks, 1, 1]);
            let kernel = match receive.is_usual() {
                true => &kernels.take,
                false => &kernels.unpack_1,
            };
            let launched = stream.launch_waiting(kernel, block, receive.bytes(), passed);
            launched.unwrap();
        }
    }
    shares
}

/// Runs the stream. If the receive ends in device memory, its blocks store nothing behind the end.
pub(super) fn run_to_end(bench: &Bench, device: bool, what: &str) {
    let mut ended = || bench.read64(ENDED).wrapping_sub(VALUE) < TURN;
    assert!(!device || bench.sim.host().wait_until(None, &mut ended));
    let at_end = bench.bytes();
    bench.run();
    assert!(!device || bench.bytes() == at_end, "{what}");
}

/// Neither word of a receive that has not ended in device memory shows its end.
pub(super) fn not_ended(bench: &Bench, what: &str) {
    for (at, end) in [(CREDIT, credit_of(NUMBER)), (ENDED, VALUE)] {
        let missing = end.wrapping_sub(bench.read64(at)) as i64;
        assert!(missing > 0, "{what}: {at:#x}, {missing}");
    }
}

/// Puts the words of a receive of message `number` into the image.
pub(super) fn received(bench: &mut Bench, number: u64, (status, len): (Status, u64), device: bool) {
    let kind = match status {
        Status::SUCCESS => TAKEN,
        Status::TRUNCATED => TOO_LONG,
        _ => FAILED,
    };
    let told = if kind == FAILED {
        u64::from(status.0)
    } else {
        0
    };
    let ends = (status, len, word(number, kind, told));
    bench.put64(CREDIT, credit_of(number));
    match device {
        true => ended_in_device(bench, ends, true),
        false => ended(bench, ends, true),
    }
}

/// Puts the payload into the segments of the image.
pub(super) fn scattered(bench: &mut Bench, segments: &[(usize, usize)], len: usize) {
    let (payload, mut taken) = (bytes(len), 0);
    for &(at, most) in segments {
        let n = most.min(len - taken);
        bench.put(at, &payload[taken..taken + n]);
        taken += n;
    }
}

/// Messages in the room, and in the long room by one to three blocks.
#[test]
fn message_is_written_with_its_head() {
    let short = [
        (0, 0),
        (1, 0),
        (8, 0),
        (13, 7),
        (777, 255),
        (777, 256),
        (SLOT, 0),
    ];
    let long = [
        (0, 5),
        (3, 0),
        (4096, 0),
        (4099, 1031),
        (9001, 0),
        (9001, 2560),
    ];
    let all = |list: &[(usize, usize)], long| {
        let message = move |&(len, lines)| Message {
            len,
            lines,
            long,
            ..PLAIN
        };
        list.iter().map(message).collect::<Vec<_>>()
    };
    let cases = [all(&short, false), all(&long, true)].concat();
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        for (skew, case) in (0..9).flat_map(|skew| cases.iter().map(move |c| (skew, c))) {
            let m = Message { skew, ..*case };
            for by in [[1, 1], [2, 2], [3, 3], [3, 1], [3, 2], [2, 5]] {
                let shares = by[0];
                // The soft GPU runs each thread as a fiber, which is slow.
                let turn = skew + m.len + by[0] as usize + by[1] as usize;
                if threads > 7 && !turn.is_multiple_of(7) {
                    continue;
                }
                lay_out(&mut bench, &m);
                let (message, stream) = (params(&bench, &m), bench.stream.clone());
                let got = write_by(&bench, &stream, &message, by);
                let most = if m.long {
                    m.len.div_ceil(4096).max(1)
                } else {
                    1
                };
                assert_eq!(got, shares.min(most as u32));
                bench.run();
                written(&mut bench, &m, got);
                bench.check(&format!(
                    "{m:?}, {threads} threads, shares and blocks {by:?}"
                ));
            }
        }
    }
}

/// Checks how a message ends that waits for its credit: the word that is stored, its value, and whether
/// the message is then written (`None`: it still waits).
fn credited(
    bench: &mut Bench,
    m: &Message,
    shares: u32,
    (at, value, free): (usize, u64, Option<bool>),
) {
    let what = format!("{m:?}, {shares} shares, {at:#x} = {value:#x}");
    lay_out(bench, m);
    let message = Flag {
        slot: slot(bench, m.number),
        ..params(bench, m)
    };
    let stream = bench.stream.clone();
    let blocks = write(bench, &stream, &message, shares);
    assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
    bench.check(&what);
    bench.store64(at, value);
    let ends = bench.runs_within(Duration::from_millis(1));
    assert_eq!(ends, free.is_some(), "{what}");
    if free == Some(true) {
        written(bench, m, blocks);
    }
    bench.check(&what);
    if free.is_none() {
        // The stream may end.
        bench.store64(CREDIT_OF_HOST, word(m.number, FAILED, 13));
        bench.run();
        bench.check(&what);
    }
}

/// The credits of a message in a slot whose message before is `before`, and whether it is then written.
fn credits(before: u64) -> [(usize, u64, Option<bool>); 16] {
    let host = |number: u64, kind, len, free| (CREDIT_OF_HOST, word(number, kind, len), free);
    let device = |ahead: u64, blocks: u64, free| {
        let credit = credit_of(before.wrapping_add(ahead));
        (CREDIT, credit.wrapping_add(blocks), free)
    };
    [
        device(0, 0, Some(true)),
        device(16, 0, Some(true)),
        device(0_u64.wrapping_sub(16), 0, None),
        device(u64::MAX, 0, None),
        device(1 << 57, 0, None),
        // Some blocks of the receiver have not returned it, or all but the first one have.
        device(0, u64::MAX, None),
        device(0, 0_u64.wrapping_sub(31), None),
        device(0_u64.wrapping_sub(16), 31, None),
        host(before, TAKEN, 0, Some(true)),
        host(before.wrapping_add(1), TAKEN, 0, Some(true)),
        host(before.wrapping_add(16), TOO_LONG, 0, Some(true)),
        host(before.wrapping_sub(1), TAKEN, MAX_LEN, None),
        // The receive before has failed.
        host(before, FAILED, 13, Some(true)),
        // The peer is lost.
        host(before.wrapping_add(17), FAILED, 13, Some(false)),
        host(before.wrapping_add(1), FAILED, 13, Some(false)),
        device((1 << 57) - 1, 0, Some(true)),
    ]
}

/// The slot is free once either word has the number of the message before, or a later one.
#[test]
fn message_waits_for_the_credit_of_its_slot() {
    let long = Message {
        len: 8200,
        long: true,
        ..PLAIN
    };
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        for credit in credits(NUMBER - 16) {
            credited(&mut bench, &PLAIN, 1, credit);
            if threads < 256 {
                credited(&mut bench, &long, 3, credit);
            }
        }
    }
}

#[test]
fn credits_of_messages_near_wraps_are_of_their_numbers() {
    let mut bench = Bench::new(1);
    for number in numbers_near_wraps() {
        let m = Message { number, ..PLAIN };
        for credit in credits(number.wrapping_sub(16)) {
            credited(&mut bench, &m, 1, credit);
        }
    }
}

/// A slot that was never used needs no credit; one without a device word waits for the word in host
/// memory.
#[test]
fn message_waits_for_the_words_that_it_has() {
    let mut bench = Bench::new(1);
    lay_out(&mut bench, &PLAIN);
    let message = Flag {
        slot: Credit {
            credit: 0,
            ..slot(&bench, NUMBER)
        },
        ..params(&bench, &PLAIN)
    };
    let stream = bench.stream.clone();
    write(&bench, &stream, &message, 1);
    bench.store64(CREDIT, credit_of(NUMBER));
    assert!(!bench.runs_within(Duration::from_millis(1)));
    bench.store64(CREDIT_OF_HOST, word(NUMBER - 16, TAKEN, 0));
    bench.run();
    written(&mut bench, &PLAIN, 1);
    bench.check("a word in host memory alone");
}

/// Once all blocks have reported, the source may be overwritten.
#[test]
fn report_is_behind_the_reads_of_the_source() {
    for seed in 0..60 {
        let threads = THREADS[1 + seed as usize % 3];
        let shares = 1 + seed as u32 / 3 % 3;
        let m = Message {
            len: if shares == 1 { SLOT } else { 9001 },
            skew: seed as usize % 2,
            long: shares > 1,
            ..PLAIN
        };
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        lay_out(&mut bench, &m);
        let (message, stream) = (params(&bench, &m), bench.stream.clone());
        let blocks = write(&bench, &stream, &message, shares);
        assert_eq!(blocks, shares);
        bench.run_until_is(REPORT, REPORTED + u64::from(blocks));
        bench.store(FROM, &vec![0xee; m.len + 1]);
        bench.run();
        written(&mut bench, &m, blocks);
        bench.check(&format!("seed {seed}, {threads} threads, {blocks} blocks"));
    }
}
