//! Tests of messages that are not whole, not valid or not for this receive any more.

use super::*;

/// The message is in place when every block has shown its part. Until then the receive changes nothing.
#[test]
fn message_without_the_line_of_one_block_is_no_message() {
    use Status as S;
    for (threads, shares) in THREADS.into_iter().flat_map(|t| [1, 2, 3].map(|b| (t, b))) {
        // The lines of the head, of the length, and of 1 and of 5 blocks.
        for (blocks, missing) in [1, 5]
            .into_iter()
            .flat_map(|b| (0..4 + b).map(move |m| (b, m)))
        {
            for failed in [false, true] {
                let what = format!(
                    "{threads} threads, {shares} shares, {blocks} blocks, {missing}, {failed}"
                );
                let (len, device) = (5000, (missing + shares as usize).is_multiple_of(2));
                let mut bench = Bench::new(threads);
                let message = lay_out(&mut bench, NUMBER, 0, len);
                sent(&mut bench, &message, (S::SUCCESS, false), blocks as u32);
                let at = ROOM + 8 * missing;
                let whole = u64::from_le_bytes(bench.image[at..at + 8].try_into().unwrap());
                let old = if missing == 1 {
                    whole - 1
                } else {
                    whole ^ 1 << 32
                };
                bench.put64(at, old);
                bench.load();
                let mut receive: Unpack<1> = Unpack {
                    staging: bench.addr(FROM),
                    ..receive(&bench, NUMBER, &[(MEMORY + 1, LONG_LEN)])
                };
                if device {
                    receive = in_device(&bench, receive);
                }
                assert_eq!(read(&bench, &receive, shares), shares);
                assert!(!bench.runs_within(Duration::from_millis(1)), "{what}");
                // Blocks that wait for no line are done.
                bench.check_but(&[COUNT, CREDIT, ENDED], &what);
                not_ended(&bench, &what);
                if failed {
                    bench.store64(WORD + 8, word(NUMBER, FAILED, 13));
                } else {
                    bench.store64(at, whole);
                    bench.put(MEMORY + 1, &bytes(len));
                }
                run_to_end(&bench, device, &what);
                let ends = if failed {
                    (S(13), 0)
                } else {
                    (S::SUCCESS, len as u64)
                };
                received(&mut bench, NUMBER, ends, device);
                bench.check(&what);
            }
        }
    }
}

/// The head shows a message that is longer than its receive: the sender has obeyed no answer.
#[test]
fn message_elsewhere_that_is_too_long_is_invalid() {
    for (threads, shares) in THREADS.into_iter().flat_map(|t| [1, 2, 3].map(|b| (t, b))) {
        for len in [LONG_LEN + 1, 1 << 33] {
            let mut bench = Bench::new(threads);
            let message = lay_out(&mut bench, NUMBER, 0, 0);
            let message = Direct {
                len: len as u64,
                ..message
            };
            sent(&mut bench, &message, (Status::SUCCESS, false), 2);
            bench.load();
            let receive: Unpack<1> = receive(&bench, NUMBER, &[(MEMORY, LONG_LEN)]);
            read(&bench, &receive, shares);
            bench.run();
            received(&mut bench, NUMBER, (Status::BAD_RESPONSE, 0), false);
            bench.check(&format!("{threads} threads, {shares} shares, {len} bytes"));
        }
    }
}

/// The memory of the receive may be another's by now.
#[test]
fn message_to_a_lost_peer_writes_no_receive() {
    for (threads, blocks) in THREADS.into_iter().flat_map(|t| [1, 2, 3].map(|b| (t, b))) {
        for (early, posted) in [(true, true), (true, false), (false, false)] {
            let mut bench = Bench::new(threads);
            let message = lay_out(&mut bench, NUMBER, 0, len_of(blocks));
            let (stream, to) = (bench.stream.clone(), bench.addr(MEMORY));
            if posted {
                bench.store(PLACE, &flag::place(NUMBER, (to, KEY), message.len));
            }
            if !early {
                send(&mut bench, &stream, &message, 3);
                assert!(!bench.runs_within(Duration::from_millis(1)));
            }
            bench.store64(LOST, 13);
            if early {
                send(&mut bench, &stream, &message, 3);
            }
            if posted {
                // The library has not stored the failure in host memory yet.
                bench.run();
            }
            bench.store64(READY_WORD, word(NUMBER + 1, FAILED, 13));
            bench.run();
            if !posted {
                passed_on(&bench, &message, 0, blocks);
            }
            sent(&mut bench, &message, (Status(13), false), blocks);
            bench.check(&format!(
                "{threads} threads, {blocks} blocks, {early}, {posted}"
            ));
        }
    }
}

/// The lines behind those of the room are not its own.
#[test]
fn message_of_more_blocks_than_a_room_shows_is_refused() {
    for (threads, blocks) in THREADS
        .into_iter()
        .flat_map(|t| [LINES - 1, 4000, (1 << 30) - 1].map(|b| (t, b)))
    {
        let mut bench = Bench::new(threads);
        let message = lay_out(&mut bench, NUMBER, 0, 5000);
        let head = [ELSEWHERE | blocks as u64, NUMBER >> 32, message.len, 0];
        let behind = (0..LINES - 2).map(|_| 0);
        for (at, data) in head.into_iter().chain(behind).enumerate() {
            bench.store64(ROOM + 8 * at, line(NUMBER, data));
        }
        let receive: Unpack<1> = receive(&bench, NUMBER, &[(MEMORY, 5000)]);
        read(&bench, &in_device(&bench, receive), 1);
        bench.run();
        received(&mut bench, NUMBER, (Status::BAD_RESPONSE, 0), true);
        bench.check(&format!("{threads} threads, {blocks} blocks"));
    }
}

/// As above, of a room with fewer lines than a block has threads.
#[test]
fn message_of_more_blocks_than_a_small_room_shows_is_refused() {
    const SMALL: usize = 64;
    for (threads, blocks) in THREADS
        .into_iter()
        .flat_map(|t| [SMALL / 4 - 1, 32, 64, 65].map(|b| (t, b)))
    {
        let mut bench = Bench::new(threads);
        let message = lay_out(&mut bench, NUMBER, 0, 5000);
        let head = [ELSEWHERE | blocks as u64, NUMBER >> 32, message.len, 0];
        let behind = (0..SMALL / 4 - 2).map(|_| 0);
        for (at, data) in head.into_iter().chain(behind).enumerate() {
            bench.store64(ROOM + 8 * at, line(NUMBER, data));
        }
        let receive: Unpack<1> = Unpack {
            slot: SMALL as u32,
            ..receive(&bench, NUMBER, &[(MEMORY, 5000)])
        };
        read(&bench, &in_device(&bench, receive), 1);
        let what = format!("{threads} threads, {blocks} blocks");
        assert!(bench.runs_within(Duration::from_secs(60)), "{what}");
        received(&mut bench, NUMBER, (Status::BAD_RESPONSE, 0), true);
        bench.check(&what);
    }
}
