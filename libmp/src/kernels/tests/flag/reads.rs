//! Tests of the receiver's kernel.

use super::*;

/// The reader polls before, while and after the message is written, on memory of weak order.
#[test]
fn polling_receive_takes_in_the_whole_message() {
    let mut seen = [[0; 4]; 2];
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let threads = THREADS[rng.usize(..THREADS.len())];
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let long = rng.bool();
        let most = if long { LONG_LEN } else { SLOT };
        // Around the width of two lines, or any.
        let len = match rng.bool() {
            true => (8 * rng.usize(..most / 8) + rng.usize(..5)).saturating_sub(2),
            false => rng.usize(..=most),
        };
        let m = Message {
            len,
            skew: rng.usize(..9),
            long,
            ..PLAIN
        };
        // Large receives have several blocks.
        let least = if rng.bool() { len } else { 9000.max(len) };
        let (capacity, device) = (rng.usize(least..=LONG_LEN), rng.bool());
        let cuts = [rng.usize(..=capacity), rng.usize(..=capacity)];
        let (low, high) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
        let at = MEMORY + rng.usize(..9);
        let whole = [(at, capacity)];
        let parts = [
            (at, low),
            (at + low + 3, high - low),
            (at + high + 8, capacity - high),
        ];
        lay_out(&mut bench, &m);
        let message = params(&bench, &m);
        let other = bench.stream.gpu().stream().unwrap();
        let (mut writers, writes_first) = (0, rng.bool());
        let mut by = || [rng.u32(1..4), rng.u32(1..5)];
        let (writer, reader) = (by(), by());
        if writes_first {
            writers = write_by(&bench, &other, &message, writer);
            // Both run, or the reader starts late.
            bench.runs_within(Duration::from_nanos(rng.u64(..2000)));
        }
        let readers = match rng.bool() {
            true => {
                let mut receive: Unpack<1> = receive(&bench, NUMBER, &whole);
                if device {
                    receive = in_device(&bench, receive);
                }
                scattered(&mut bench, &whole, len);
                read_by(&bench, &receive, reader)
            }
            false => {
                let mut receive: Unpack<SEGMENTS> = receive(&bench, NUMBER, &parts);
                if device {
                    receive = in_device(&bench, receive);
                }
                scattered(&mut bench, &parts, len);
                read_by(&bench, &receive, reader)
            }
        };
        if !writes_first {
            writers = write_by(&bench, &other, &message, writer);
        }
        bench.run();
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        seen[usize::from(long)][readers as usize] += 1;
        written(&mut bench, &m, writers);
        received(&mut bench, NUMBER, (Status::SUCCESS, len as u64), device);
        bench.check(&format!(
            "seed {seed}, {m:?}, {threads} threads, {writers} to {readers} shares, blocks {writer:?} {reader:?}"
        ));
    }
    let seldom = seen.iter().flat_map(|seen| &seen[1..]).min();
    assert!(seldom >= Some(&3), "{seen:?}");
}

/// A reader of the word that ends a receive finds the result, whatever blocks take its shares.
#[test]
fn device_result_becomes_visible_before_the_end_of_a_message_in_lines() {
    for seed in 0..120 {
        let by = [[1, 1], [3, 1], [3, 2], [3, 3]][seed as usize % 4];
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        let m = Message {
            len: 9001,
            long: true,
            ..PLAIN
        };
        lay_out(&mut bench, &m);
        written(&mut bench, &m, 0);
        bench.load();
        let segment = [(MEMORY + 3, LONG_LEN)];
        let receive: Unpack<1> = in_device(&bench, receive(&bench, NUMBER, &segment));
        read_by(&bench, &receive, by);
        bench.run_until_is(ENDED, VALUE + 9001);
        scattered(&mut bench, &segment, m.len);
        received(&mut bench, NUMBER, (Status::SUCCESS, 9001), true);
        let what = format!("seed {seed}, shares and blocks {by:?}");
        bench.check_but(&[CREDIT, COUNT], &what);
        bench.run();
        bench.check(&what);
    }
}

/// Sources and destinations of every alignment, and lengths around those of a line and of two. The
/// message is in one segment, or in two, of which the first ends in any part of the lines.
#[test]
fn bytes_are_read_for_every_alignment() {
    let lens = [0, 1, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33, 64, 100];
    for threads in [1, 7] {
        let mut bench = Bench::new(threads);
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            for (len, long) in lens.into_iter().flat_map(|len| [(len, false), (len, true)]) {
                if threads > 1 && (from + to + len) % 3 != 0 {
                    continue;
                }
                let m = Message {
                    skew: from,
                    len,
                    long,
                    ..PLAIN
                };
                lay_out(&mut bench, &m);
                let (message, stream) = (params(&bench, &m), bench.stream.clone());
                write(&bench, &stream, &message, 1);
                let cut = from.min(len);
                let parts = [(MEMORY + to, cut), (MEMORY + 0x100 + to, len - cut)];
                match long {
                    true => {
                        let receive = receive::<1>(&bench, NUMBER, &[(MEMORY + to, len)]);
                        scattered(&mut bench, &[(MEMORY + to, len)], len);
                        read(&bench, &receive, 1);
                    }
                    false => {
                        let receive = receive::<SEGMENTS>(&bench, NUMBER, &parts);
                        scattered(&mut bench, &parts, len);
                        read(&bench, &receive, 1);
                    }
                }
                bench.run();
                written(&mut bench, &m, 1);
                received(&mut bench, NUMBER, (Status::SUCCESS, len as u64), false);
                bench.check(&format!("{m:?} to {to}, {threads} threads"));
            }
        }
    }
}

/// Puts the end of a failed receive into the image: its first block may have found the message, and added its length.
fn put_len_of_first(bench: &mut Bench, m: &Message, device: bool) {
    if device && bench.read64(ENDED) == VALUE + m.len as u64 {
        bench.put64(ENDED, VALUE + m.len as u64);
    }
}

/// A message is complete when every line has its flag. Until then the receive changes nothing but its
/// memory; in particular, the sender gets no credit. The failure of the sender ends it.
#[test]
fn message_without_one_line_is_no_message() {
    let short = Message { len: 203, ..PLAIN };
    let long = Message {
        len: 9001,
        long: true,
        ..PLAIN
    };
    let cases = [(short, 1), (short, 3), (long, 1), (long, 2), (long, 3)];
    for (threads, (m, shares)) in THREADS.into_iter().flat_map(|t| cases.map(|c| (t, c))) {
        let mut bench = Bench::new(threads);
        let last = m.lines_at() + 8 * (m.all_lines() - 1);
        let middle = m.lines_at() + 8 * (2 * (m.all_lines() / 4) + 1);
        let head = [ROOM, ROOM + 8];
        let lines = [
            m.lines_at(),
            m.lines_at() + 8,
            middle,
            middle + 8,
            last - 8,
            last,
        ];
        for (i, at) in [&head[..], &lines[..]].concat().into_iter().enumerate() {
            for failed in [false, true] {
                let what = format!(
                    "{m:?}, {threads} threads, {shares} shares, line {at:#x}, failed {failed}"
                );
                let device = (i + shares as usize).is_multiple_of(2);
                lay_out(&mut bench, &m);
                written(&mut bench, &m, 0);
                let whole = u64::from_le_bytes(bench.image[at..at + 8].try_into().unwrap());
                // An old message of another flag, or of another high half.
                let old = match at == ROOM + 8 {
                    true => whole - 1,
                    false => whole ^ [1 << 32, 1 << 63][i % 2],
                };
                bench.put64(at, old);
                bench.load();
                let capacity = if shares > 1 { LONG_LEN } else { m.len };
                let segment = [(MEMORY + 5, capacity)];
                let mut receive: Unpack<1> = receive(&bench, NUMBER, &segment);
                if device {
                    receive = in_device(&bench, receive);
                }
                assert_eq!(read(&bench, &receive, shares), shares);
                assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                // Without the head, no byte is copied, and no block is done.
                let copied = if head.contains(&at) { 0 } else { m.len };
                let in_device = 8 * usize::from(device && copied > 0);
                let counted = if device { 0 } else { copied.min(4) };
                let changed = [
                    MEMORY + 5..MEMORY + 5 + copied,
                    COUNT..COUNT + counted,
                    DEVICE_RESULT..DEVICE_RESULT + in_device,
                    ENDED..ENDED + in_device,
                    CREDIT..CREDIT + in_device,
                ];
                bench.check_outside(&changed, &what);
                not_ended(&bench, &what);
                if failed {
                    bench.store64(WORD, word(NUMBER, FAILED, 13));
                    run_to_end(&bench, device, &what);
                    received(&mut bench, NUMBER, (Status(13), 0), device);
                    put_len_of_first(&mut bench, &m, device);
                    bench.check_outside(&changed[..1], &what);
                } else {
                    bench.store64(at, whole);
                    bench.run();
                    scattered(&mut bench, &segment, m.len);
                    received(&mut bench, NUMBER, (Status::SUCCESS, m.len as u64), device);
                }
                bench.check_outside(&changed[..usize::from(failed)], &what);
            }
        }
    }
}

/// The peer fails while the message comes: some blocks find the failure, the others the message.
#[test]
fn message_that_some_blocks_do_not_find_is_no_success() {
    let mut raced = 0;
    for seed in 0..200 {
        let (threads, shares) = ([1, 7, 32][seed as usize % 3], 2 + seed as u32 / 3 % 2);
        let elsewhere = seed % 5 == 0;
        let device = seed % 2 == 0;
        let mut bench = Bench::with(threads, seed, Some(Weak::seeded(seed)));
        let m = Message {
            len: 9001,
            long: true,
            ..PLAIN
        };
        lay_out(&mut bench, &m);
        bench.store64(WORD, word(NUMBER, FAILED, 13));
        let segment = [(MEMORY, LONG_LEN)];
        let mut receive: Unpack<1> = receive(&bench, NUMBER, &segment);
        if device {
            receive = in_device(&bench, receive);
        }
        let blocks = read(&bench, &receive, shares);
        let older = bench.read64(CREDIT);
        let mut some = || bench.read64(COUNT) as u32 != 0 || bench.read64(CREDIT) != older;
        assert!(bench.sim.host().wait_until(None, &mut some));
        let credit = bench.read64(CREDIT);
        // In device memory, the blocks that have added to the credit: the first one subtracts the others.
        let done = match (device, credit.wrapping_sub(older)) {
            (false, _) => bench.read64(COUNT) as u32 & 0xffff,
            (true, others) if others < 64 => others as u32,
            (true, _) => ((credit as u32 & 63) + blocks) & 63,
        };
        raced += u32::from(done > 0 && done < blocks);
        // The sender has no kernel here, so nothing else is written.
        written(&mut bench, &m, 0);
        if elsewhere {
            // The line of the block is missing.
            bench.put64(ROOM, line(NUMBER, 1 << 31 | 1));
            bench.put64(ROOM + 16, line(NUMBER, 9001));
            bench.put64(ROOM + 24, line(NUMBER, 0));
        }
        let (rooms, lines) = (
            bench.image[ROOM..][..32].to_vec(),
            bench.image[LONG..][..8 * m.all_lines()].to_vec(),
        );
        bench.store(LONG, &lines);
        bench.store(ROOM, &rooms);
        let what = format!("seed {seed}, {threads} threads, {done} of {blocks} blocks");
        run_to_end(&bench, device, &what);
        received(&mut bench, NUMBER, (Status(13), 0), device);
        put_len_of_first(&mut bench, &m, device);
        bench.check_outside(std::slice::from_ref(&(MEMORY..MEMORY + m.len)), &what);
    }
    assert!(raced >= 20, "{raced}");
}

/// A message that is longer than its receive, or than its room can be.
#[test]
fn message_that_is_too_long_ends_the_receive_with_its_status() {
    use Status as S;
    let too_long = |len: usize| (S::TRUNCATED, len as u64);
    let bad = (S::BAD_RESPONSE, 0);
    // The length in the head and where, the room of the receive, and how it ends.
    let cases = [
        (200, false, 150, too_long(200)),
        (1, false, 0, too_long(1)),
        (SLOT, false, SLOT - 1, too_long(SLOT)),
        (SLOT + 1, false, LONG_LEN, bad),
        (2000, true, 1999, too_long(2000)),
        (LONG_LEN, true, 9000, too_long(LONG_LEN)),
        (LONG_LEN + 1, true, LONG_LEN, bad),
    ];
    for (threads, (len, long, room, ends)) in
        THREADS.into_iter().flat_map(|t| cases.map(|c| (t, c)))
    {
        for (shares, device) in [(1, false), (1, true), (3, false), (3, true)] {
            let mut bench = Bench::new(threads);
            lay_out(&mut bench, &PLAIN);
            let mark = if long { IN_LONG } else { 0 };
            bench.store64(ROOM, line(NUMBER, mark | len as u64));
            bench.store64(ROOM + 8, line(NUMBER, NUMBER >> 32));
            if ends != bad {
                // The receive ends when no line of the message comes any more.
                let lines = if long { LONG } else { ROOM + 16 };
                for at in 0..2 * len.div_ceil(8) {
                    bench.store64(lines + 8 * at, line(NUMBER, 7));
                }
            }
            let mut receive: Unpack<1> = receive(&bench, NUMBER, &[(MEMORY, room)]);
            if device {
                receive = in_device(&bench, receive);
            }
            read(&bench, &receive, shares);
            let what = format!("{threads} threads, {shares} shares, {len} bytes");
            run_to_end(&bench, device, &what);
            received(&mut bench, NUMBER, ends, device);
            bench.check(&what);
        }
    }
}

/// The words of a CPU that sends, and the failure of the sender, to a receive of several blocks.
#[test]
fn words_end_a_receive_of_several_blocks() {
    use Status as S;
    let cases = [
        (word(NUMBER, EAGER, 700), (S::SUCCESS, 700)),
        (word(NUMBER, EAGER, 0), (S::SUCCESS, 0)),
        (word(NUMBER, TOO_LONG, 99_999), (S::TRUNCATED, 99_999)),
        (word(NUMBER, FAILED, 13), (S(13), 0)),
        (word(NUMBER + 1, FAILED, 13), (S(13), 0)),
        (word(NUMBER, READY, 7), (S::BAD_RESPONSE, 0)),
    ];
    for (threads, (w, ends)) in THREADS.into_iter().flat_map(|t| cases.map(|c| (t, c))) {
        for (by, device) in [
            ([1, 1], true),
            ([2, 2], false),
            ([3, 3], true),
            ([3, 2], false),
            ([3, 5], true),
        ] {
            let what = format!("{threads} threads, shares and blocks {by:?}, {w:#x}");
            let mut bench = Bench::new(threads);
            lay_out(&mut bench, &Message { len: 700, ..PLAIN });
            let mut receive: Unpack<1> = receive(&bench, NUMBER, &[(MEMORY + 1, LONG_LEN)]);
            receive.payload = bench.addr(FROM);
            if device {
                receive = in_device(&bench, receive);
            }
            read_by(&bench, &receive, by);
            assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
            bench.check(&what);
            bench.store64(WORD, w);
            // The first of both words has the message as well, which the credit lets the sender
            // overwrite.
            if w >> 44 & 0xf != FAILED {
                assert_eq!(
                    bench.runs_within(Duration::from_millis(1)),
                    w >> 44 & 0xf == READY,
                    "{what}"
                );
                bench.store64(WORD + 8, w);
            }
            bench.run();
            if ends.0 == S::SUCCESS {
                scattered(&mut bench, &[(MEMORY + 1, LONG_LEN)], ends.1 as usize);
            }
            received(&mut bench, NUMBER, ends, device);
            bench.check(&what);
        }
    }
}

/// Sender and receiver of numbers before and after wraps, with the credit of the message before.
#[test]
fn messages_near_wraps_are_taken_in() {
    let mut bench = Bench::new(1);
    for (number, long) in numbers_near_wraps().flat_map(|n| [(n, false), (n, true)]) {
        let m = Message {
            number,
            len: if long { 9001 } else { 100 },
            long,
            ..PLAIN
        };
        let what = format!("{m:?}");
        lay_out(&mut bench, &m);
        let message = Flag {
            slot: slot(&bench, number),
            ..params(&bench, &m)
        };
        let segment = [(MEMORY, m.len)];
        let receive: Unpack<1> = in_device(&bench, receive(&bench, number, &segment));
        read(&bench, &receive, 2);
        let other = bench.stream.gpu().stream().unwrap();
        let blocks = write(&bench, &other, &message, 2);
        assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
        bench.check(&what);
        bench.store64(CREDIT, credit_of(number.wrapping_sub(16)));
        bench.run();
        scattered(&mut bench, &segment, m.len);
        written(&mut bench, &m, blocks);
        received(&mut bench, number, (Status::SUCCESS, m.len as u64), true);
        bench.check(&what);
    }
}
