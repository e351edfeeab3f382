//! A scripted other end of a connection: a port of the hub without a NIC.
#![allow(dead_code, reason = "each test program uses its part")]

use std::time::Duration;

use mlx5_prm::syndrome::Syndrome;
use vmlx5::fabric::hub::HubPort;
use vmlx5::fabric::{Budget, Fabric, PeerId};
use vmlx5::*;

use crate::rig::*;

pub const FIRST: u8 = 1;
pub const LAST: u8 = 2;
pub const IMM: u8 = 4;
pub const ACKREQ: u8 = 32;
pub const FAKE: u32 = 3;

/// The scripted other end.
pub struct Fake {
    pub world: World,
    pub end: End,
    pub port: HubPort,
    pub nic: PeerId,
}

impl Fake {
    /// A queue pair that is ready to send; packet numbers start at 1 both ways.
    pub fn new() -> Fake {
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

    /// Returns the frames that the NIC sends.
    pub fn listen(&mut self) -> Vec<(FrameHeader, Vec<u8>)> {
        let mut frames = Vec::new();
        self.world.settle();
        self.port.step(gds_step::Time::ZERO);
        let budget = Budget {
            frames: 1000,
            bytes: 1 << 24,
        };
        self.port.receive(budget, &mut |_, header, payload| {
            frames.push((*header, payload.to_vec()));
            Ok(())
        });
        self.port.flush();
        frames
    }

    /// Writes a frame, which is not visible to the NIC yet.
    pub fn put(&mut self, kind: Kind, psn: u32, change: impl FnOnce(&mut FrameHeader)) {
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
    }

    /// Sends a frame and returns the NIC's answers.
    pub fn deliver(
        &mut self,
        kind: Kind,
        psn: u32,
        change: impl FnOnce(&mut FrameHeader),
    ) -> Vec<(FrameHeader, Vec<u8>)> {
        self.put(kind, psn, change);
        self.port.flush();
        self.listen()
    }

    /// As `deliver`, and asserts the kinds and numbers of the NIC's answers.
    #[track_caller]
    pub fn answers(
        &mut self,
        kind: Kind,
        psn: u32,
        change: impl FnOnce(&mut FrameHeader),
        expected: &[(Kind, u32)],
    ) -> Vec<(FrameHeader, Vec<u8>)> {
        let frames = self.deliver(kind, psn, change);
        assert_eq!(kinds(&frames), expected);
        frames
    }

    /// The frames that the NIC sends after this time has passed.
    pub fn after(&mut self, time: Duration) -> Vec<(FrameHeader, Vec<u8>)> {
        self.world.pass(time);
        self.listen()
    }

    pub fn nak(&mut self, psn: u32, code: u8) -> Vec<(FrameHeader, Vec<u8>)> {
        self.deliver(Kind::Nak, psn, |h| h.code = code)
    }

    pub fn post_write(&mut self) -> u16 {
        let (to, list) = (self.end.remote(0), [self.end.sge(0, 8)]);
        self.end.post(&write(to, &list))
    }

    pub fn post_read(&mut self, len: u32) -> u16 {
        let (from, list) = (self.end.remote(0), [self.end.sge(64, len)]);
        self.end.post(&read(from, &list))
    }

    #[track_caller]
    pub fn done(&mut self, index: u16) {
        self.end.sent(index);
    }

    #[track_caller]
    pub fn failed(&mut self, index: u16, why: Syndrome) {
        self.end.send_failed(index, why);
        assert_eq!(self.world.state(&self.end), QpState::Err);
        assert_eq!(self.world.events(0), []);
    }
}

pub fn kinds(frames: &[(FrameHeader, Vec<u8>)]) -> Vec<(Kind, u32)> {
    frames
        .iter()
        .map(|(h, _)| (Kind::from_u8(h.kind).unwrap(), h.psn.get()))
        .collect()
}

/// The whole answer to a READ of `len` bytes.
pub fn data(len: u32, value: u8) -> impl FnOnce(&mut FrameHeader) {
    move |h| {
        (h.len, h.total, h.code) = (len.into(), len.into(), value);
        h.flags = FIRST | LAST;
    }
}

/// Part of a message of two packets, 8 bytes in the second; all bytes have one value.
pub fn part(h: &mut FrameHeader, second: bool, value: u8) {
    h.total = 4104.into();
    h.code = value;
    match second {
        false => (h.len, h.flags) = (4096.into(), FIRST),
        true => (h.len, h.offset, h.flags) = (8.into(), 4096.into(), LAST),
    }
}

/// The whole message.
pub fn whole(h: &mut FrameHeader, value: u8) {
    data(4104, value)(h);
    h.count = 2.into();
}
