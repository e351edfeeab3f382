//! Tests of the name of a receive's memory, and of the kernel that relays it.

use super::*;

/// The name has the lines that a kernel of the sender reads.
#[test]
fn memory_of_a_receive_is_named_by_six_lines() {
    for threads in THREADS {
        let mut bench = Bench::new(threads);
        let places = [
            (0x1234_5678_9abc_def0, 3 << 32 | 1),
            (1, 0),
            (u64::MAX, usize::MAX),
        ];
        for (number, place) in numbers_near_wraps().flat_map(|n| places.map(|p| (n, p))) {
            lay_out(&mut bench, number, 0, 0);
            name(&bench, &bench.stream, number, place);
            bench.run();
            named(&mut bench, number, place);
            bench.check(&format!("{threads} threads, {number:#x}, {place:?}"));
        }
    }
}

/// Enqueues the kernel that waits for the name of the receive.
fn relay(bench: &Bench, number: u64) {
    let relay = Relay {
        place: bench.addr(PLACE),
        ready: bench.addr(READY_WORD),
        info: bench.addr(INFO),
        number,
        report: bench.addr(RELAYED),
    };
    let report = bench.memory.word64(RELAYED).unwrap();
    let passed = (&report, REPORTED + 1);
    // SAFETY: as above.
    unsafe { bench.kernels.relay(&bench.stream, &relay, passed) }.unwrap();
}

/// Puts the words of a relayed place into the image.
fn relayed(bench: &mut Bench, number: u64, (addr, len): (u64, usize)) {
    let place = Place {
        addr,
        keys: [Some(KEY), None, None, None],
    };
    bench.put(INFO, &place.encode());
    bench.put64(READY_WORD, word(number, READY, len as u64));
    bench.put64(RELAYED, REPORTED + 1);
}

/// The place and its word in host memory are those of the CPU for the same receive. They come when the
/// last line does.
#[test]
fn name_of_a_receive_is_relayed_as_its_place_and_ready_word() {
    let place = (0x1234_5678_9abc_def0, 3 << 32 | 1);
    let mut bench = Bench::new(1);
    for (number, missing) in numbers_near_wraps().flat_map(|n| (0..7).map(move |m| (n, m))) {
        let what = format!("{number:#x}, line {missing}");
        lay_out(&mut bench, number, 0, 0);
        let mut lines = flag::place(number, (place.0, KEY), place.1 as u64);
        match missing {
            // Another high half.
            6 => lines[32] ^= 1,
            _ => lines[8 * missing + 4] ^= 1,
        }
        bench.store(PLACE, &lines);
        relay(&bench, number);
        assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
        bench.check(&what);
        bench.store(PLACE, &flag::place(number, (place.0, KEY), place.1 as u64));
        bench.run();
        relayed(&mut bench, number, place);
        bench.check(&what);
    }
}

/// A reader of the ready word finds the place, on memory of weak order. The name comes from a kernel.
#[test]
fn place_becomes_visible_before_its_ready_word() {
    let place = (0x1234_5678_9abc_def0, 777);
    for seed in 0..60 {
        let mut bench = Bench::with(1, seed, Some(Weak::seeded(seed)));
        lay_out(&mut bench, NUMBER, 0, 0);
        // The place of an older receive.
        bench.store(INFO, &[0xff; 12]);
        relay(&bench, NUMBER);
        let other = bench.stream.gpu().stream().unwrap();
        name(&bench, &other, NUMBER, place);
        named(&mut bench, NUMBER, place);
        relayed(&mut bench, NUMBER, place);
        bench.run_until_is(READY_WORD, word(NUMBER, READY, 777));
        bench.check(&format!("seed {seed}"));
        bench.run();
        assert!(other.synchronize(Duration::from_secs(60)).unwrap());
        bench.check(&format!("seed {seed}"));
    }
}

/// Words of the receive that are there, or come first, are kept; so is the failure of a lost peer.
#[test]
fn words_of_the_receive_are_not_relayed() {
    for number in numbers_near_wraps().chain([NUMBER]) {
        for w in [
            word(number, READY, 99),
            word(number, REFUSED, 0),
            word(number.wrapping_add(16), READY, 7),
            word(number.wrapping_add(1), FAILED, 13),
        ] {
            for early in [false, true] {
                let what = format!("{number:#x}, {w:#x}, early {early}");
                let mut bench = Bench::new(1);
                lay_out(&mut bench, number, 0, 0);
                if !early {
                    relay(&bench, number);
                    assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                    bench.check(&what);
                }
                bench.store64(READY_WORD, w);
                if early {
                    relay(&bench, number);
                }
                bench.run();
                bench.put64(RELAYED, REPORTED + 1);
                bench.check(&what);
            }
        }
    }
}
