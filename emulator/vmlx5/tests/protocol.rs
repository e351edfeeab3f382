//! Frame by frame: a port of the hub that is no NIC plays the other end.

mod rig;

use std::time::Duration;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::fabric::hub::HubPort;
use vmlx5::fabric::{Budget, Fabric, LinkError, LinkState, PeerId};
use vmlx5::*;

const FIRST: u8 = 1;
const LAST: u8 = 2;
const IMM: u8 = 4;
const ACKREQ: u8 = 32;
const FAKE: u32 = 3;

/// The other end, by hand.
struct Fake {
    world: World,
    end: End,
    port: HubPort,
    nic: PeerId,
}

impl Fake {
    /// A queue pair that is ready to send; packet numbers start at 1 both ways.
    fn new() -> Fake {
        let mut world = World::new(1);
        let mut port = world.hub.port();
        let end = world.end(0, EndConfig::default());
        world.init(&end);
        world.modify(&end, rtr(Path::to(port.node(), Qpn(FAKE)), 1, 2, 12));
        world.rts(&end, 1);
        let nic = port.connect(world.nics[0].node()).unwrap();
        let mut fake = Fake {
            world,
            end,
            port,
            nic,
        };
        assert_eq!(kinds(&fake.listen()), [(Kind::Hint, 1)]);
        fake
    }

    /// What the NIC says.
    fn listen(&mut self) -> Vec<(FrameHeader, Vec<u8>)> {
        let mut heard = Vec::new();
        self.world.settle();
        self.port.step(gds_step::Time::ZERO);
        let budget = Budget {
            frames: 1000,
            bytes: 1 << 24,
        };
        self.port.receive(budget, &mut |_, header, payload| {
            heard.push((*header, payload.to_vec()));
            Ok(())
        });
        self.port.flush();
        heard
    }

    /// Sends a frame and returns what the NIC says to it.
    fn tell(
        &mut self,
        kind: Kind,
        psn: u32,
        change: impl FnOnce(&mut FrameHeader),
    ) -> Vec<(FrameHeader, Vec<u8>)> {
        let mut header = FrameHeader {
            kind: kind as u8,
            dst_qpn: self.end.qpn.0.into(),
            src_qpn: FAKE.into(),
            psn: psn.into(),
            count: 1.into(),
            mtu_log: 12,
            ..FrameHeader::default()
        };
        change(&mut header);
        let value = header.code;
        let fill = &mut |room: &mut [u8]| {
            room.fill(value);
            true
        };
        self.port.send(self.nic, &header, fill).unwrap();
        self.port.flush();
        self.listen()
    }

    /// What the NIC says once its clocks have run for so long.
    fn after(&mut self, time: Duration) -> Vec<(FrameHeader, Vec<u8>)> {
        self.world.pass(time);
        self.listen()
    }

    fn nak(&mut self, psn: u32, code: u8) -> Vec<(FrameHeader, Vec<u8>)> {
        self.tell(Kind::Nak, psn, |h| h.code = code)
    }

    fn post_write(&mut self) -> u16 {
        let (to, list) = (self.end.remote(0), [self.end.sge(0, 8)]);
        self.end.post(&write(to, &list))
    }

    fn post_read(&mut self, len: u32) -> u16 {
        let (from, list) = (self.end.remote(0), [self.end.sge(64, len)]);
        self.end.post(&read(from, &list))
    }

    #[track_caller]
    fn done(&mut self, index: u16) {
        self.end.sent(index);
    }

    #[track_caller]
    fn failed(&mut self, index: u16, why: Syndrome) {
        self.end.send_failed(index, why);
        assert_eq!(self.world.state(&self.end), QpState::Err);
    }
}

fn kinds(heard: &[(FrameHeader, Vec<u8>)]) -> Vec<(Kind, u32)> {
    heard
        .iter()
        .map(|(h, _)| (Kind::from_u8(h.kind).unwrap(), h.psn.get()))
        .collect()
}

/// An answer to a READ of `len` bytes, all of it.
fn data(len: u32, value: u8) -> impl FnOnce(&mut FrameHeader) {
    move |h| {
        (h.len, h.total, h.code) = (len.into(), len.into(), value);
        h.flags = FIRST | LAST;
    }
}

#[test]
fn a_message_that_was_taken_after_all_ends_the_wait() {
    // It turned a message away, then got a second copy of it that was under way already.
    let mut fake = Fake::new();
    let s = fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 1)]);
    assert!(fake.nak(1, nak::RNR | 12).is_empty());
    fake.tell(Kind::Ack, 1, |_| {});
    fake.done(s);
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 2)]);
}

#[test]
fn the_wait_for_a_receiver_ends_with_its_time_or_with_a_hint() {
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
        let said = match hinted {
            true => fake.tell(Kind::Hint, 1, |_| {}),
            false => fake.after(Duration::from_nanos(1000)),
        };
        assert_eq!(kinds(&said), sent);
        // Nobody waits: a hint means nothing.
        assert!(fake.tell(Kind::Hint, 1, |_| {}).is_empty());
        fake.tell(Kind::Ack, 2, |_| {});
        fake.done(posted[0]);
        fake.done(posted[1]);
    }
}

#[test]
fn who_is_not_ready_acknowledges_nothing() {
    let mut fake = Fake::new();
    fake.post_write();
    fake.post_write();
    fake.listen();
    // The one for the first message was lost.
    fake.tell(Kind::Nak, 2, |h| {
        (h.code, h.vendor) = (nak::RNR | 12, vendor::NOT_READY);
    });
    assert_eq!(fake.end.send.poll(), None);
    let said = fake.after(rnr_delay(12));
    assert_eq!(kinds(&said), [(Kind::Write, 1), (Kind::Write, 2)]);
}

#[test]
fn it_goes_back_to_where_it_was_told() {
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
    // The same loss, reported once more, is the same loss.
    assert!(fake.nak(2, nak::PSN).is_empty());
    fake.tell(Kind::ReadData, 2, data(8, 5));
    fake.tell(Kind::Ack, 3, |_| {});
    for index in &posted[1..] {
        fake.done(*index);
    }
    assert_eq!(fake.end.get(64, 9), [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

#[test]
fn an_answer_may_overtake_the_going_back() {
    // Everything is acknowledged while it is being sent again.
    let mut fake = Fake::new();
    let posted = [fake.post_write(), fake.end.post(&nop()), fake.post_write()];
    fake.listen();
    fake.nak(1, nak::RNR | 12);
    fake.tell(Kind::Ack, 2, |_| {});
    for index in posted {
        fake.done(index);
    }
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 3)]);
}

#[test]
fn a_long_message_goes_on_within() {
    let mut fake = Fake::new();
    let (to, list) = (fake.end.remote(0), [fake.end.sge(0, 100_000)]);
    let s = fake.end.post(&write(to, &list));
    let said = fake.listen();
    assert_eq!(kinds(&said), [1, 9, 17, 25].map(|p| (Kind::Write, p)));
    let counts: Vec<u16> = said.iter().map(|(h, _)| h.count.get()).collect();
    assert_eq!(counts, [8, 8, 8, 1]);
    // Two frames arrived, the third did not.
    let said = fake.nak(17, nak::PSN);
    assert_eq!(kinds(&said), [(Kind::Write, 17), (Kind::Write, 25)]);
    assert_eq!(said[0].0.offset.get(), 65536);
    // In packets smaller than a frame, too.
    let said = fake.nak(19, nak::PSN);
    assert_eq!(kinds(&said), [(Kind::Write, 19)]);
    let (h, _) = &said[0];
    assert_eq!(
        (h.offset.get(), h.len.get()),
        (18 * 4096, 100_000 - 18 * 4096)
    );
    fake.tell(Kind::Ack, 25, |_| {});
    fake.done(s);
}

#[test]
fn a_refusal_carries_its_reason_and_says_what_was_done() {
    for (code, why) in [
        (nak::INVALID, Syndrome::REMOTE_INVAL_REQ),
        (nak::ACCESS, Syndrome::REMOTE_ACCESS),
        (nak::OPERATION, Syndrome::REMOTE_OP),
    ] {
        let mut fake = Fake::new();
        let posted = [fake.post_write(), fake.post_write(), fake.post_write()];
        fake.listen();
        let said = fake.tell(Kind::Nak, 2, |h| {
            (h.code, h.vendor) = (code, 0x5a);
        });
        assert!(said.is_empty());
        fake.done(posted[0]);
        assert_eq!(fake.end.send_failed(posted[1], why), 0x5a);
        fake.failed(posted[2], Syndrome::WR_FLUSH);
    }
}

#[test]
fn answers_that_fit_no_request() {
    type Answer = fn(&mut Fake);
    let wrong: [Answer; 6] = [
        // Another length, another place, another message, another kind.
        |f| drop(f.tell(Kind::ReadData, 1, data(8, 0))),
        |f| {
            f.tell(Kind::ReadData, 1, |h| {
                (h.len, h.offset, h.total, h.flags) = (8.into(), 4096.into(), 4104.into(), LAST);
            });
        },
        |f| drop(f.tell(Kind::ReadData, 2, data(16, 0))),
        |f| drop(f.tell(Kind::AtomicData, 1, |_| {})),
        |f| drop(f.tell(Kind::AtomicData, 2, |_| {})),
        // Other packets.
        |f| {
            f.tell(Kind::ReadData, 1, |h| {
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
fn an_answer_to_what_came_later_tells_that_a_read_was_lost() {
    type Answer = fn(&mut Fake) -> Vec<(FrameHeader, Vec<u8>)>;
    let later: [Answer; 4] = [
        |f| f.tell(Kind::Ack, 2, |_| {}),
        |f| f.nak(2, nak::ACCESS),
        |f| f.nak(2, nak::RNR | 1),
        |f| f.tell(Kind::ReadData, 3, data(8, 9)),
    ];
    for answer in later {
        let mut fake = Fake::new();
        let posted = [fake.post_read(16), fake.post_write(), fake.post_read(8)];
        let sent = [(Kind::Read, 1), (Kind::Write, 2), (Kind::Read, 3)];
        assert_eq!(kinds(&fake.listen()), sent);
        assert_eq!(kinds(&answer(&mut fake)), sent);
        fake.tell(Kind::ReadData, 1, data(16, 7));
        fake.tell(Kind::Ack, 2, |_| {});
        // Read into the same place.
        fake.tell(Kind::ReadData, 3, data(8, 8));
        for index in posted {
            fake.done(index);
        }
        assert_eq!(fake.end.get(64, 16)[6..10], [8, 8, 7, 7]);
    }
}

#[test]
fn a_read_asks_for_what_is_missing() {
    let mut fake = Fake::new();
    let s = fake.post_read(20_000);
    let after = fake.post_write();
    // Five packets are its answer's.
    assert_eq!(kinds(&fake.listen()), [(Kind::Read, 1), (Kind::Write, 6)]);
    fake.tell(Kind::ReadData, 1, |h| {
        (h.len, h.total, h.code) = (8192.into(), 20_000.into(), 1);
        (h.flags, h.count) = (FIRST, 2.into());
    });
    let said = fake.tell(Kind::Ack, 6, |_| {});
    assert_eq!(kinds(&said), [(Kind::Read, 3), (Kind::Write, 6)]);
    let h = said[0].0;
    assert_eq!(h.total.get(), 20_000 - 8192);
    assert_eq!(h.va.get(), fake.end.addr(8192));
    fake.tell(Kind::ReadData, 3, |h| {
        data(20_000 - 8192, 2)(h);
        h.count = 3.into();
    });
    fake.done(s);
    fake.tell(Kind::Ack, 6, |_| {});
    fake.done(after);
    assert_eq!(fake.end.get(64, 8192), [1; 8192]);
    assert_eq!(fake.end.get(64 + 8192, 20_000 - 8192), [2; 20_000 - 8192]);
}

#[test]
fn late_words_change_nothing() {
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
        assert!(fake.tell(kind, psn, empty).is_empty());
    }
    for kind in [Kind::Ack, Kind::Nak, Kind::Hint] {
        fake.tell(kind, 1, |h| h.src_qpn = 8.into());
    }
    assert_eq!(fake.end.send.poll(), None);
    assert_eq!(fake.world.state(&fake.end), QpState::Rts);
    fake.tell(Kind::Ack, 1, |_| {});
    fake.done(s);
}

/// Part of a message of two packets, 8 bytes in the second, of one byte repeated.
fn part(h: &mut FrameHeader, second: bool, value: u8) {
    h.total = 4104.into();
    h.code = value;
    match second {
        false => (h.len, h.flags) = (4096.into(), FIRST),
        true => (h.len, h.offset, h.flags) = (8.into(), 4096.into(), LAST),
    }
}

/// All of that message.
fn whole(h: &mut FrameHeader, value: u8) {
    data(4104, value)(h);
    h.count = 2.into();
}

#[test]
fn copies_of_messages_are_received_once() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.end.post_recv(&[fake.end.sge(5000, 5000)]);
    assert!(fake.tell(Kind::Send, 1, |h| part(h, false, 1)).is_empty());
    assert!(fake.tell(Kind::Send, 1, |h| part(h, false, 2)).is_empty());
    let said = fake.tell(Kind::Send, 2, |h| part(h, true, 3));
    assert_eq!(kinds(&said), [(Kind::Ack, 2)]);
    // Once more, in the same pieces and as one: acknowledged at its end, and nothing else.
    assert!(fake.tell(Kind::Send, 1, |h| part(h, false, 7)).is_empty());
    let asked = fake.tell(Kind::Send, 1, |h| {
        part(h, false, 7);
        h.flags |= ACKREQ;
    });
    assert_eq!(kinds(&asked), [(Kind::Ack, 2)]);
    let said = fake.tell(Kind::Send, 2, |h| part(h, true, 7));
    assert_eq!(kinds(&said), [(Kind::Ack, 2)]);
    assert_eq!(
        kinds(&fake.tell(Kind::Send, 1, |h| whole(h, 7))),
        [(Kind::Ack, 2)]
    );
    assert_eq!(fake.end.get(4095, 10), [1, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
    fake.end.received(r);
    assert_eq!(fake.end.recv.poll(), None);
    assert_eq!(
        fake.world.nics[0].query_qp(fake.end.qpn).unwrap().rq_next,
        1
    );
}

#[test]
fn what_is_new_in_a_copy_is_taken() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.tell(Kind::Send, 1, |h| part(h, false, 1));
    let said = fake.tell(Kind::Send, 1, |h| whole(h, 2));
    assert_eq!(kinds(&said), [(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4094, 4), [1, 1, 2, 2]);
    fake.end.received(r);
}

#[test]
fn a_gap_is_reported_once() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.tell(Kind::Send, 1, |h| part(h, false, 1));
    // The second packet is missing; then all after it as well.
    let said = fake.tell(Kind::Write, 3, |h| h.flags = FIRST | LAST);
    assert_eq!(kinds(&said), [(Kind::Nak, 2)]);
    assert_eq!(said[0].0.code, nak::PSN);
    assert!(
        fake.tell(Kind::Write, 4, |h| h.flags = FIRST | LAST)
            .is_empty()
    );
    assert!(fake.tell(Kind::Read, 5, |_| {}).is_empty());
    assert_eq!(
        kinds(&fake.tell(Kind::Send, 2, |h| part(h, true, 2))),
        [(Kind::Ack, 2)]
    );
    fake.end.received(r);
    let said = fake.tell(Kind::Write, 4, |h| h.flags = FIRST | LAST);
    assert_eq!(kinds(&said), [(Kind::Nak, 3)]);
}

#[test]
fn frames_that_do_not_go_on_are_refused() {
    type Spoil = fn(&mut FrameHeader);
    // Another kind, another length, another place, the beginning of another; other packets.
    let spoils: [(Kind, Spoil); 6] = [
        (Kind::Write, |h| part(h, true, 1)),
        (Kind::Send, |h| {
            (h.len, h.total, h.offset, h.flags) = (4.into(), 4100.into(), 4096.into(), LAST);
        }),
        (Kind::Send, |h| {
            (h.len, h.total, h.offset, h.flags) = (8.into(), 8200.into(), 8192.into(), LAST);
        }),
        (Kind::Send, |h| part(h, false, 1)),
        (Kind::Read, |h| h.total = 0.into()),
        (Kind::Send, |h| {
            part(h, true, 1);
            h.mtu_log = 8;
        }),
    ];
    for (kind, spoil) in spoils {
        let mut fake = Fake::new();
        fake.end.post_recv(&[fake.end.sge(0, 9000)]);
        fake.tell(Kind::Send, 1, |h| part(h, false, 1));
        let said = fake.tell(kind, 2, spoil);
        assert_eq!(kinds(&said), [(Kind::Nak, 2)]);
        assert_eq!(said[0].0.code, nak::INVALID);
        assert_eq!(fake.world.state(&fake.end), QpState::Err);
        // From now on it is silent.
        assert!(fake.tell(Kind::Read, 2, |_| {}).is_empty());
    }
}

#[test]
fn a_message_turned_away_is_dropped_to_its_end() {
    let mut fake = Fake::new();
    for _ in 0..2 {
        let said = fake.tell(Kind::Send, 1, |h| part(h, false, 1));
        assert_eq!(kinds(&said), [(Kind::Nak, 1)]);
        assert_eq!(said[0].0.code, nak::RNR | 12);
        assert!(fake.tell(Kind::Send, 2, |h| part(h, true, 1)).is_empty());
        assert!(fake.tell(Kind::Write, 3, |h| part(h, false, 1)).is_empty());
    }
    fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    assert_eq!(kinds(&fake.listen()), [(Kind::Hint, 1)]);
    fake.tell(Kind::Send, 1, |h| part(h, false, 4));
    let said = fake.tell(Kind::Send, 2, |h| part(h, true, 5));
    assert_eq!(kinds(&said), [(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4095, 3), [4, 5, 5]);
}

#[test]
fn a_write_with_immediate_waits_at_its_end() {
    let mut fake = Fake::new();
    let (va, rkey) = (fake.end.addr(0), fake.end.keys.rkey);
    let imm = |second, value| {
        move |h: &mut FrameHeader| {
            part(h, second, value);
            (h.va, h.rkey) = (va.into(), rkey.into());
            h.flags |= IMM;
        }
    };
    assert!(fake.tell(Kind::Write, 1, imm(false, 1)).is_empty());
    let said = fake.tell(Kind::Write, 2, imm(true, 2));
    assert_eq!(kinds(&said), [(Kind::Nak, 2)]);
    assert_eq!(said[0].0.code, nak::RNR | 12);
    assert_eq!(fake.end.get(4095, 2), [1, 0]);
    let r = fake.end.post_recv(&[]);
    assert_eq!(kinds(&fake.listen()), [(Kind::Hint, 2)]);
    assert_eq!(
        kinds(&fake.tell(Kind::Write, 2, imm(true, 3))),
        [(Kind::Ack, 2)]
    );
    assert_eq!(fake.end.get(4095, 2), [1, 3]);
    assert_ok(&fake.end.recv.poll().unwrap(), CqeOpcode::RESP_WR_IMM, r);
}

#[test]
fn reads_and_atomics_that_come_again() {
    let mut fake = Fake::new();
    let (va, rkey) = (fake.end.addr(0), fake.end.keys.rkey);
    let at = |total: u32| {
        move |h: &mut FrameHeader| {
            (h.va, h.rkey, h.total, h.operand) = (va.into(), rkey.into(), total.into(), 5.into());
        }
    };
    fake.end.put64(0, 70);
    let found = |said: Vec<(FrameHeader, Vec<u8>)>| {
        assert_eq!(said.len(), 1);
        assert_eq!(Kind::from_u8(said[0].0.kind), Some(Kind::AtomicData));
        (said[0].0.psn.get(), said[0].0.operand.get())
    };
    for psn in 1..4 {
        let before = 65 + 5 * u64::from(psn);
        assert_eq!(found(fake.tell(Kind::FetchAdd, psn, at(8))), (psn, before));
    }
    // Carried out once, however often it comes; two are kept, since no more can be asked for.
    for psn in [3, 2, 3] {
        let before = 65 + 5 * u64::from(psn);
        assert_eq!(found(fake.tell(Kind::FetchAdd, psn, at(8))), (psn, before));
    }
    assert!(fake.tell(Kind::FetchAdd, 1, at(8)).is_empty());
    assert_eq!(fake.end.get64(0), 85);
    // A read is carried out again, and may ask for its end only.
    let said = fake.tell(Kind::Read, 4, at(8200));
    assert_eq!(kinds(&said), [(Kind::ReadData, 4)]);
    fake.end.put64(0, 1);
    let said = fake.tell(Kind::Read, 5, at(4104));
    assert_eq!(kinds(&said), [(Kind::ReadData, 5)]);
    assert_eq!((said[0].0.count.get(), said[0].1[0]), (2, 1));
    // One that reaches past what was asked for did not come before.
    assert!(fake.tell(Kind::Read, 6, at(8200)).is_empty());
    assert_eq!(
        kinds(&fake.tell(Kind::Read, 7, at(8))),
        [(Kind::ReadData, 7)]
    );
    // Its key is gone by now.
    fake.world.nics[0].dereg_mr(rkey).unwrap();
    let said = fake.tell(Kind::Read, 4, at(8200));
    assert_eq!(said[0].0.code, nak::ACCESS);
}

#[test]
fn nobody_answers_strangers() {
    let mut fake = Fake::new();
    let before = fake.world.nics[0].stats().frames_dropped;
    assert!(
        fake.tell(Kind::Read, 1, |h| h.src_qpn = 99.into())
            .is_empty()
    );
    assert!(
        fake.tell(Kind::FetchAdd, 4, |h| h.dst_qpn = 0x42.into())
            .is_empty()
    );
    assert!(
        fake.tell(Kind::Ack, 1, |h| h.dst_qpn = 0x42.into())
            .is_empty()
    );
    assert_eq!(fake.world.nics[0].stats().frames_dropped, before + 3);
}

#[test]
fn who_is_not_connected_yet_puts_off_or_is_silent() {
    for strict in [false, true] {
        let mut world = World::new(0);
        let config = NicConfig::default().changed(|n| n.strict = strict);
        world
            .nics
            .push(Nic::new(config, Box::new(world.hub.port())));
        let mut port = world.hub.port();
        let end = world.end(0, EndConfig::default());
        let nic = port.connect(world.nics[0].node()).unwrap();
        let mut fake = Fake {
            world,
            end,
            port,
            nic,
        };
        // Once for a message, not for each of its frames.
        let said = [
            fake.tell(Kind::Send, 1, |h| part(h, false, 0)),
            fake.tell(Kind::Send, 2, |h| part(h, true, 0)),
        ];
        if strict {
            assert!(said.iter().all(Vec::is_empty));
            continue;
        }
        assert_eq!(kinds(&said[0]), [(Kind::Nak, 1)]);
        let h = said[0][0].0;
        assert_eq!((h.code & nak::RNR, h.vendor), (nak::RNR, vendor::NOT_READY));
        assert!(said[1].is_empty());
    }
}

#[test]
fn a_frame_that_no_nic_sends_closes_the_link() {
    type Spoil = fn(&mut FrameHeader);
    let spoils: [Spoil; 16] = [
        |h| h.kind = 0,
        |h| h.kind = 200,
        |h| h.dst_qpn = (1 << 24).into(),
        |h| h.psn = u32::MAX.into(),
        |h| h.total = u32::MAX.into(),
        // Not first, and begins at 0; last, and does not end the message; nothing of something.
        |h| (h.len, h.total, h.flags) = (4.into(), 4.into(), LAST),
        |h| (h.len, h.total, h.flags) = (4.into(), 8.into(), FIRST | LAST),
        |h| (h.total, h.flags) = (8.into(), FIRST),
        // Packets that are not full, that begin amid one, too few, too many, of no size.
        |h| (h.len, h.total, h.flags) = (8.into(), 16.into(), FIRST),
        |h| (h.len, h.offset, h.total, h.flags) = (8.into(), 8.into(), 16.into(), LAST),
        |h| {
            whole(h, 0);
            h.count = 1.into();
        },
        |h| {
            data(8, 0)(h);
            h.count = 2.into();
        },
        |h| h.count = 0.into(),
        |h| h.mtu_log = 7,
        |h| h.service = 3,
        |h| (h.kind, h.code) = (Kind::Nak as u8, 4),
    ];
    for (i, spoil) in spoils.into_iter().enumerate() {
        let mut fake = Fake::new();
        let s = fake.post_write();
        fake.listen();
        fake.tell(Kind::Send, 1, |h| {
            h.flags = FIRST | LAST;
            spoil(h);
        });
        let state = fake.world.nics[0].link_state(fake.end.qpn).unwrap();
        assert!(
            matches!(state, Some(LinkState::Lost(LinkError::Garbage(_)))),
            "{i} {state:?}"
        );
        assert_eq!(
            fake.port.state(fake.nic),
            LinkState::Lost(LinkError::Closed)
        );
        fake.world.outlast();
        fake.failed(s, Syndrome::TRANSPORT_RETRY);
    }
}

#[test]
fn one_acknowledgement_for_many_messages() {
    let mut fake = Fake::new();
    for psn in 1..20 {
        let header = FrameHeader {
            kind: Kind::Write as u8,
            flags: FIRST | LAST,
            dst_qpn: fake.end.qpn.0.into(),
            src_qpn: FAKE.into(),
            psn: psn.into(),
            count: 1.into(),
            mtu_log: 12,
            ..FrameHeader::default()
        };
        fake.port.send(fake.nic, &header, &mut |_| true).unwrap();
    }
    fake.port.flush();
    assert_eq!(kinds(&fake.listen()), [(Kind::Ack, 19)]);
}

#[test]
fn a_loss_before_does_not_hit_the_connection_made_after() {
    let mut world = World::new(1);
    let end = world.end(0, EndConfig::default());
    let to = rtr(Path::to(vmlx5::fabric::NodeId(2), Qpn(FAKE)), 1, 1, 12);
    // There is no such node; then there is.
    world.init(&end);
    world.modify(&end, to);
    let mut port = world.hub.port();
    world.modify(&end, Modify::Reset);
    world.init(&end);
    world.modify(&end, to);
    let nic = port.connect(world.nics[0].node()).unwrap();
    let mut fake = Fake {
        world,
        end,
        port,
        nic,
    };
    let said = fake.listen();
    assert_eq!(kinds(&said).last(), Some(&(Kind::Hint, 1)));
}
