//! The requester's handling of answers, frame by frame: a port of the hub without a NIC acts as the
//! other end.

mod fake;
mod rig;

use std::time::Duration;

use fake::*;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::*;

#[test]
fn late_acknowledgement_ends_the_rnr_wait() {
    // The other end refused a message, then received a second copy that was in flight already.
    let mut fake = Fake::new();
    let s = fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 1)]);
    assert!(fake.nak(1, nak::RNR | 12).is_empty());
    fake.deliver(Kind::Ack, 1, |_| {});
    fake.done(s);
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 2)]);
}

#[test]
fn rnr_wait_ends_with_its_timeout_or_a_hint() {
    for hinted in [false, true] {
        let mut fake = Fake::new();
        let posted = [fake.post_write(), fake.post_write()];
        let sent = [(Kind::Write, 1), (Kind::Write, 2)];
        assert_eq!(kinds(&fake.listen()), sent);
        assert!(fake.nak(1, nak::RNR | 14).is_empty());
        assert!(
            fake.after(rnr_delay(14) - Duration::from_nanos(1000))
                .is_empty()
        );
        let frames = match hinted {
            true => fake.deliver(Kind::Hint, 1, |_| {}),
            false => fake.after(Duration::from_nanos(1000)),
        };
        assert_eq!(kinds(&frames), sent);
        // The wait is over: a hint has no effect.
        fake.answers(Kind::Hint, 1, |_| {}, &[]);
        fake.deliver(Kind::Ack, 2, |_| {});
        fake.done(posted[0]);
        fake.done(posted[1]);
    }
}

#[test]
fn not_ready_nak_acknowledges_nothing() {
    let mut fake = Fake::new();
    fake.post_write();
    fake.post_write();
    fake.listen();
    // The acknowledgement of the first message was lost.
    fake.deliver(Kind::Nak, 2, |h| {
        (h.code, h.vendor) = (nak::RNR | 12, vendor::NOT_READY);
    });
    assert_eq!(fake.end.send.poll(), None);
    let frames = fake.after(rnr_delay(12));
    assert_eq!(kinds(&frames), [(Kind::Write, 1), (Kind::Write, 2)]);
}

#[test]
fn sequence_nak_resends_from_its_packet() {
    let mut fake = Fake::new();
    let posted = [
        fake.post_write(),
        fake.post_read(8),
        fake.end.post(&nop()),
        fake.post_write(),
    ];
    let sent = [(Kind::Write, 1), (Kind::Read, 2), (Kind::Write, 3)];
    assert_eq!(kinds(&fake.listen()), sent);
    assert_eq!(kinds(&fake.nak(2, nak::PSN)), sent[1..]);
    fake.done(posted[0]);
    // A second report of the same loss has no effect.
    assert!(fake.nak(2, nak::PSN).is_empty());
    fake.deliver(Kind::ReadData, 2, data(8, 5));
    fake.deliver(Kind::Ack, 3, |_| {});
    for index in &posted[1..] {
        fake.done(*index);
    }
    assert_eq!(fake.end.get(64, 9), [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

#[test]
fn acknowledgement_stops_the_retransmission() {
    // The other end acknowledges all packets during the retransmission.
    let mut fake = Fake::new();
    let posted = [fake.post_write(), fake.end.post(&nop()), fake.post_write()];
    fake.listen();
    fake.nak(1, nak::RNR | 12);
    fake.deliver(Kind::Ack, 2, |_| {});
    for index in posted {
        fake.done(index);
    }
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 3)]);
}

#[test]
fn long_message_resumes_within() {
    let mut fake = Fake::new();
    let (to, list) = (fake.end.remote(0), [fake.end.sge(0, 100_000)]);
    let s = fake.end.post(&write(to, &list));
    let frames = fake.listen();
    assert_eq!(kinds(&frames), [1, 9, 17, 25].map(|p| (Kind::Write, p)));
    let counts: Vec<u16> = frames.iter().map(|(h, _)| h.count.get()).collect();
    assert_eq!(counts, [8, 8, 8, 1]);
    // Two frames arrived, the third did not.
    let frames = fake.nak(17, nak::PSN);
    assert_eq!(kinds(&frames), [(Kind::Write, 17), (Kind::Write, 25)]);
    assert_eq!(frames[0].0.offset.get(), 65536);
    // The same with packets smaller than a frame.
    let frames = fake.nak(19, nak::PSN);
    assert_eq!(kinds(&frames), [(Kind::Write, 19)]);
    let (h, _) = &frames[0];
    assert_eq!(
        (h.offset.get(), h.len.get()),
        (18 * 4096, 100_000 - 18 * 4096)
    );
    fake.deliver(Kind::Ack, 25, |_| {});
    fake.done(s);
}

#[test]
fn nak_reports_its_reason_and_acknowledges_earlier_packets() {
    for (code, why) in [
        (nak::INVALID, Syndrome::REMOTE_INVAL_REQ),
        (nak::ACCESS, Syndrome::REMOTE_ACCESS),
        (nak::OPERATION, Syndrome::REMOTE_OP),
    ] {
        let mut fake = Fake::new();
        let posted = [fake.post_write(), fake.post_write(), fake.post_write()];
        fake.listen();
        let frames = fake.deliver(Kind::Nak, 2, |h| {
            (h.code, h.vendor) = (code, 0x5a);
        });
        assert!(frames.is_empty());
        fake.done(posted[0]);
        assert_eq!(fake.end.send_failed(posted[1], why), 0x5a);
        fake.failed(posted[2], Syndrome::WR_FLUSH);
    }
}

#[test]
fn answers_without_a_request_are_refused() {
    type Answer = fn(&mut Fake);
    let wrong: [Answer; 6] = [
        // Another length, another offset, another message, another kind.
        |f| drop(f.deliver(Kind::ReadData, 1, data(8, 0))),
        |f| {
            f.deliver(Kind::ReadData, 1, |h| {
                (h.len, h.offset, h.total, h.flags) = (8.into(), 4096.into(), 4104.into(), LAST);
            });
        },
        |f| drop(f.deliver(Kind::ReadData, 2, data(16, 0))),
        |f| drop(f.deliver(Kind::AtomicData, 1, |_| {})),
        |f| drop(f.deliver(Kind::AtomicData, 2, |_| {})),
        // Another MTU.
        |f| {
            f.deliver(Kind::ReadData, 1, |h| {
                data(16, 0)(h);
                h.mtu_log = 9;
            });
        },
    ];
    for answer in wrong {
        let mut fake = Fake::new();
        let (first, second) = (fake.post_read(16), fake.post_write());
        fake.listen();
        answer(&mut fake);
        fake.failed(first, Syndrome::BAD_RESP);
        fake.failed(second, Syndrome::WR_FLUSH);
        assert_eq!(fake.end.get(64, 16), [0; 16]);
    }
}

#[test]
fn later_answer_reveals_a_lost_read() {
    type Answer = fn(&mut Fake) -> Vec<(FrameHeader, Vec<u8>)>;
    let later: [Answer; 4] = [
        |f| f.deliver(Kind::Ack, 2, |_| {}),
        |f| f.nak(2, nak::ACCESS),
        |f| f.nak(2, nak::RNR | 1),
        |f| f.deliver(Kind::ReadData, 3, data(8, 9)),
    ];
    for answer in later {
        let mut fake = Fake::new();
        let posted = [fake.post_read(16), fake.post_write(), fake.post_read(8)];
        let sent = [(Kind::Read, 1), (Kind::Write, 2), (Kind::Read, 3)];
        assert_eq!(kinds(&fake.listen()), sent);
        assert_eq!(kinds(&answer(&mut fake)), sent);
        fake.deliver(Kind::ReadData, 1, data(16, 7));
        fake.deliver(Kind::Ack, 2, |_| {});
        // Read into the same place.
        fake.deliver(Kind::ReadData, 3, data(8, 8));
        for index in posted {
            fake.done(index);
        }
        assert_eq!(fake.end.get(64, 16)[6..10], [8, 8, 7, 7]);
    }
}

#[test]
fn retried_read_requests_missing_bytes() {
    let mut fake = Fake::new();
    let s = fake.post_read(20_000);
    let after = fake.post_write();
    // Five packets belong to its answer.
    assert_eq!(kinds(&fake.listen()), [(Kind::Read, 1), (Kind::Write, 6)]);
    fake.deliver(Kind::ReadData, 1, |h| {
        (h.len, h.total, h.code) = (8192.into(), 20_000.into(), 1);
        (h.flags, h.count) = (FIRST, 2.into());
    });
    let frames = fake.answers(Kind::Ack, 6, |_| {}, &[(Kind::Read, 3), (Kind::Write, 6)]);
    let h = frames[0].0;
    assert_eq!(h.total.get(), 20_000 - 8192);
    assert_eq!(h.va.get(), fake.end.addr(8192));
    fake.deliver(Kind::ReadData, 3, |h| {
        data(20_000 - 8192, 2)(h);
        h.count = 3.into();
    });
    fake.done(s);
    fake.deliver(Kind::Ack, 6, |_| {});
    fake.done(after);
    assert_eq!(fake.end.get(64, 8192), [1; 8192]);
    assert_eq!(fake.end.get(64 + 8192, 20_000 - 8192), [2; 20_000 - 8192]);
}

#[test]
fn late_answers_have_no_effect() {
    let mut fake = Fake::new();
    let s = fake.post_write();
    fake.listen();
    for (kind, psn) in [
        (Kind::Ack, 2),
        (Kind::Ack, 0),
        (Kind::Nak, 7),
        (Kind::ReadData, 0),
        (Kind::AtomicData, 3),
        (Kind::Nak, 0xff_ffff),
        (Kind::Hint, 2),
    ] {
        let empty = |h: &mut FrameHeader| h.flags = FIRST | LAST;
        fake.answers(kind, psn, empty, &[]);
    }
    for kind in [Kind::Ack, Kind::Nak, Kind::Hint] {
        fake.deliver(kind, 1, |h| h.src_qpn = 8.into());
    }
    assert_eq!(fake.end.send.poll(), None);
    assert_eq!(fake.world.state(&fake.end), QpState::Rts);
    fake.deliver(Kind::Ack, 1, |_| {});
    fake.done(s);
}
