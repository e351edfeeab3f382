//! Frame by frame: a port of the hub that is no NIC plays the other end.

mod rig;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::fabric::hub::HubPort;
use vmlx5::fabric::{Budget, Fabric, LinkError, LinkState, PeerId};
use vmlx5::*;

const FIRST: u8 = 1;
const LAST: u8 = 2;
const FAKE: u32 = 3;

/// The other end, by hand.
struct Fake {
    world: World,
    end: End,
    port: HubPort,
    nic: PeerId,
}

impl Fake {
    /// A queue pair that is ready to send; message numbers start at 1 both ways.
    fn new() -> Fake {
        let mut world = World::new(1);
        let mut port = world.hub.port();
        let end = world.end(0, EndConfig::default());
        world.init(&end);
        let change = Modify::Rtr {
            remote: port.node(),
            remote_qpn: Qpn(FAKE),
            rq_psn: 1,
            max_dest_rd_atomic: 2,
        };
        world.modify(&end, change);
        world.rts(&end, 1);
        let nic = port.connect(world.nics[0].node()).unwrap();
        let mut fake = Fake {
            world,
            end,
            port,
            nic,
        };
        let said = fake.tell(Kind::Resume, 1, |_| {});
        assert_eq!(kinds(&said), [(Kind::Resume, 1), (Kind::Hello, 0)]);
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
        seq: u32,
        change: impl FnOnce(&mut FrameHeader),
    ) -> Vec<(FrameHeader, Vec<u8>)> {
        let mut header = FrameHeader {
            kind: kind as u8,
            dst_qpn: self.end.qpn.0.into(),
            src_qpn: FAKE.into(),
            seq: seq.into(),
            life: 9.into(),
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
        assert_ok(&self.end.send.poll().unwrap(), CqeOpcode::REQ, index);
    }

    #[track_caller]
    fn failed(&mut self, index: u16, why: Syndrome) {
        assert_err(
            &self.end.send.poll().unwrap(),
            CqeOpcode::REQ_ERR,
            index,
            why,
        );
        assert_eq!(self.world.state(&self.end), QpState::Err);
    }
}

fn kinds(heard: &[(FrameHeader, Vec<u8>)]) -> Vec<(Kind, u32)> {
    heard
        .iter()
        .map(|(h, _)| (Kind::from_u8(h.kind).unwrap(), h.seq.get()))
        .collect()
}

#[test]
fn a_message_that_was_taken_after_all_ends_the_wait() {
    // It turned a message away, then got a second copy of it that was under way already. It
    // has no reason to say more: nothing else may need a receive.
    let mut fake = Fake::new();
    let s = fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 1)]);
    assert!(fake.tell(Kind::NotReady, 1, |_| {}).is_empty());
    fake.tell(Kind::Ack, 1, |_| {});
    fake.done(s);
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 2)]);
    // It may say so all the same, which sends what is not answered once more.
    assert_eq!(
        kinds(&fake.tell(Kind::Resume, 2, |_| {})),
        [(Kind::Write, 2)]
    );
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
    fake.tell(Kind::Ack, 1, |_| {});
    assert!(fake.tell(Kind::NotReady, 2, |_| {}).is_empty());
    assert_eq!(kinds(&fake.tell(Kind::Resume, 2, |_| {})), sent[1..]);
    fake.tell(Kind::ReadData, 2, |h| {
        (h.len, h.total, h.code) = (8.into(), 8.into(), 5);
        h.flags = FIRST | LAST;
    });
    fake.tell(Kind::Ack, 3, |_| {});
    for index in posted {
        fake.done(index);
    }
    assert_eq!(fake.end.get(64, 9), [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

#[test]
fn an_answer_may_overtake_the_going_back() {
    // Everything is acknowledged while it is being sent again.
    let mut fake = Fake::new();
    let posted = [fake.post_write(), fake.end.post(&nop()), fake.post_write()];
    fake.listen();
    fake.tell(Kind::NotReady, 1, |_| {});
    fake.tell(Kind::Ack, 2, |_| {});
    fake.tell(Kind::Resume, 3, |_| {});
    for index in posted {
        fake.done(index);
    }
    fake.post_write();
    assert_eq!(kinds(&fake.listen()), [(Kind::Write, 3)]);
}

#[test]
fn a_refusal_carries_its_reason_and_says_what_was_done() {
    let mut fake = Fake::new();
    let posted = [fake.post_write(), fake.post_write(), fake.post_write()];
    fake.listen();
    let said = fake.tell(Kind::Nak, 2, |h| {
        h.code = Syndrome::REMOTE_OP.0;
        h.vendor = 0x5a;
    });
    assert_eq!(kinds(&said), [(Kind::Gone, 1)]);
    fake.done(posted[0]);
    let error = fake.end.send.poll().unwrap();
    assert_err(&error, CqeOpcode::REQ_ERR, posted[1], Syndrome::REMOTE_OP);
    assert_eq!(error.as_error().vendor_err, 0x5a);
    fake.failed(posted[2], Syndrome::WR_FLUSH);
}

#[test]
fn answers_that_fit_no_request() {
    type Answer = fn(&mut Fake);
    let wrong: [Answer; 5] = [
        // A write after the read acknowledged, the read not answered.
        |f| drop(f.tell(Kind::Ack, 2, |_| {})),
        |f| drop(f.tell(Kind::Nak, 2, |h| h.code = 1)),
        // Another length, another place, another message.
        |f| {
            f.tell(Kind::ReadData, 1, |h| {
                (h.len, h.total, h.flags) = (8.into(), 8.into(), FIRST | LAST);
            });
        },
        |f| {
            f.tell(Kind::ReadData, 1, |h| {
                (h.len, h.offset, h.total, h.flags) = (8.into(), 8.into(), 16.into(), LAST);
            });
        },
        |f| {
            f.tell(Kind::ReadData, 2, |h| {
                (h.len, h.total, h.flags) = (16.into(), 16.into(), FIRST | LAST);
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
fn late_words_from_another_connection_change_nothing() {
    let mut fake = Fake::new();
    let s = fake.post_write();
    fake.listen();
    for (kind, seq) in [
        (Kind::Ack, 2),
        (Kind::Ack, 0),
        (Kind::Nak, 7),
        (Kind::Gone, 0xff_ffff),
        (Kind::NotReady, 2),
    ] {
        assert!(fake.tell(kind, seq, |_| {}).is_empty());
    }
    for kind in [Kind::Ack, Kind::Gone, Kind::Nak] {
        fake.tell(kind, 1, |h| h.life = 8.into());
    }
    assert_eq!(fake.end.send.poll(), None);
    assert_eq!(fake.world.state(&fake.end), QpState::Rts);
    fake.tell(Kind::Ack, 1, |_| {});
    fake.done(s);
}

#[test]
fn a_former_life_s_answers_do_not_count() {
    for (echo, fails) in [(1, false), (2, true)] {
        let mut fake = Fake::new();
        let (remote, max_rd_atomic) = (fake.port.node(), 1);
        fake.post_write();
        fake.listen();
        fake.world.modify(&fake.end, Modify::Reset);
        fake.end.sq = 0;
        fake.end.reset_records();
        fake.world.init(&fake.end);
        let rtr = Modify::Rtr {
            remote,
            remote_qpn: Qpn(FAKE),
            rq_psn: 1,
            max_dest_rd_atomic: 1,
        };
        let sq_psn = 1;
        fake.world.modify(&fake.end, rtr);
        fake.world.modify(
            &fake.end,
            Modify::Rts {
                sq_psn,
                max_rd_atomic,
            },
        );
        let s = fake.post_write();
        let said = fake.listen();
        let expect = [(Kind::Gone, 1), (Kind::Resume, 1), (Kind::Write, 1)];
        assert_eq!(kinds(&said), expect);
        let lives: Vec<u16> = said.iter().map(|(h, _)| h.life.get()).collect();
        assert_eq!(lives, [1, 2, 2]);
        // Nobody takes the write: which of the two?
        fake.tell(Kind::Gone, 1, |h| {
            (h.life, h.echo) = (0.into(), echo.into())
        });
        if fails {
            fake.failed(s, Syndrome::TRANSPORT_RETRY);
        } else {
            assert_eq!(fake.end.send.poll(), None);
            assert_eq!(fake.world.state(&fake.end), QpState::Rts);
        }
    }
}

#[test]
fn a_connection_that_waits_for_other_numbers_is_none() {
    let mut fake = Fake::new();
    let s = fake.post_write();
    fake.listen();
    fake.tell(Kind::Resume, 50, |h| h.life = 10.into());
    fake.failed(s, Syndrome::TRANSPORT_RETRY);
}

/// Part of a message of 8 bytes.
fn part(h: &mut FrameHeader, at: u32, value: u8) {
    (h.len, h.total, h.offset, h.code) = (4.into(), 8.into(), at.into(), value);
    h.flags = if at == 0 { FIRST } else { LAST };
}

#[test]
fn copies_of_messages_are_received_once() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 8)]);
    // Begun, begun again, finished; then all of it once more.
    for (at, value) in [(0, 1), (0, 2), (4, 3)] {
        fake.tell(Kind::Send, 1, |h| part(h, at, value));
    }
    for (at, value) in [(0, 7), (4, 7)] {
        assert!(fake.tell(Kind::Send, 1, |h| part(h, at, value)).is_empty());
    }
    assert_eq!(fake.end.get(0, 8), [2, 2, 2, 2, 3, 3, 3, 3]);
    assert_ok(&fake.end.recv.poll().unwrap(), CqeOpcode::RESP_SEND, r);
    assert_eq!(fake.end.recv.poll(), None);
    assert_eq!(fake.world.state(&fake.end), QpState::Rts);
}

#[test]
fn a_message_with_a_gap_is_not_received() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 12)]);
    let four = |at: u32| {
        move |h: &mut FrameHeader| {
            (h.len, h.total, h.offset, h.code) = (4.into(), 12.into(), at.into(), 1 + at as u8);
            h.flags = [FIRST, 0, LAST][at as usize / 4];
        }
    };
    // The middle is missing; then another kind, then another length go on.
    for at in [0, 8] {
        assert!(fake.tell(Kind::Send, 1, four(at)).is_empty());
    }
    assert!(fake.tell(Kind::Write, 1, four(4)).is_empty());
    assert!(fake.tell(Kind::Send, 1, |h| part(h, 4, 9)).is_empty());
    assert_eq!(
        (fake.end.recv.poll(), fake.end.get(0, 12)[4..].to_vec()),
        (None, vec![0; 8])
    );
    assert!(fake.tell(Kind::Send, 1, four(4)).is_empty());
    assert_eq!(kinds(&fake.tell(Kind::Send, 1, four(8))), [(Kind::Ack, 1)]);
    assert_ok(&fake.end.recv.poll().unwrap(), CqeOpcode::RESP_SEND, r);
    assert_eq!(fake.end.get(0, 12), [1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9]);
}

#[test]
fn a_message_turned_away_is_dropped_to_its_end() {
    let mut fake = Fake::new();
    let said = fake.tell(Kind::Send, 1, |h| part(h, 0, 1));
    assert_eq!(kinds(&said), [(Kind::NotReady, 1)]);
    assert!(fake.tell(Kind::Send, 1, |h| part(h, 4, 1)).is_empty());
    assert!(fake.tell(Kind::Write, 2, |h| part(h, 0, 1)).is_empty());
    fake.end.post_recv(&[fake.end.sge(0, 8)]);
    assert_eq!(kinds(&fake.listen()), [(Kind::Resume, 1)]);
    fake.tell(Kind::Send, 1, |h| part(h, 0, 4));
    let said = fake.tell(Kind::Send, 1, |h| part(h, 4, 5));
    assert_eq!(kinds(&said), [(Kind::Ack, 1)]);
    assert_eq!(fake.end.get(0, 8), [4, 4, 4, 4, 5, 5, 5, 5]);
}

#[test]
fn strangers_are_told_that_nobody_is_there() {
    let mut fake = Fake::new();
    let said = fake.tell(Kind::Read, 1, |h| h.src_qpn = 99.into());
    assert_eq!(kinds(&said), [(Kind::Gone, 1)]);
    assert_eq!((said[0].0.dst_qpn.get(), said[0].0.echo.get()), (99, 9));
    let said = fake.tell(Kind::FetchAdd, 4, |h| h.dst_qpn = 0x42.into());
    assert_eq!(kinds(&said), [(Kind::Gone, 4)]);
    assert!(
        fake.tell(Kind::Ack, 1, |h| h.dst_qpn = 0x42.into())
            .is_empty()
    );
    // And a message is answered once, not for each of its frames.
    let end = |h: &mut FrameHeader| {
        part(h, 4, 0);
        h.src_qpn = 99.into();
    };
    assert!(fake.tell(Kind::Write, 1, end).is_empty());
}

#[test]
fn a_frame_that_no_nic_sends_closes_the_link() {
    type Spoil = fn(&mut FrameHeader);
    let spoils: [Spoil; 8] = [
        |h| h.kind = 0,
        |h| h.kind = 200,
        |h| h.dst_qpn = (1 << 24).into(),
        |h| h.seq = u32::MAX.into(),
        |h| h.total = u32::MAX.into(),
        // Not first, and begins at 0; last, and does not end the message; nothing of something.
        |h| (h.len, h.total, h.flags) = (4.into(), 4.into(), LAST),
        |h| (h.len, h.total, h.flags) = (4.into(), 8.into(), FIRST | LAST),
        |h| (h.total, h.flags) = (8.into(), FIRST),
    ];
    for (i, spoil) in spoils.into_iter().enumerate() {
        let mut fake = Fake::new();
        let s = fake.post_write();
        fake.listen();
        fake.tell(Kind::Send, 1, spoil);
        fake.failed(s, Syndrome::TRANSPORT_RETRY);
        let state = fake.world.nics[0].link_state(fake.end.qpn).unwrap();
        assert!(
            matches!(state, Some(LinkState::Lost(LinkError::Garbage(_)))),
            "{i} {state:?}"
        );
        assert_eq!(
            fake.port.state(fake.nic),
            LinkState::Lost(LinkError::Closed)
        );
    }
}

#[test]
fn one_acknowledgement_for_many_messages() {
    let mut fake = Fake::new();
    for seq in 1..20 {
        let header = FrameHeader {
            kind: Kind::Write as u8,
            flags: FIRST | LAST,
            dst_qpn: fake.end.qpn.0.into(),
            src_qpn: FAKE.into(),
            seq: seq.into(),
            life: 9.into(),
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
    let remote = vmlx5::fabric::NodeId(2);
    let rtr = Modify::Rtr {
        remote,
        remote_qpn: Qpn(FAKE),
        rq_psn: 1,
        max_dest_rd_atomic: 1,
    };
    // There is no such node; then there is.
    world.init(&end);
    world.modify(&end, rtr);
    let mut port = world.hub.port();
    assert_eq!(port.node(), remote);
    world.modify(&end, Modify::Reset);
    world.init(&end);
    world.modify(&end, rtr);
    let nic = port.connect(world.nics[0].node()).unwrap();
    let mut fake = Fake {
        world,
        end,
        port,
        nic,
    };
    let said = fake.listen();
    assert_eq!(kinds(&said).last(), Some(&(Kind::Resume, 1)));
}
