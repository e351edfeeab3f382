//! A NIC with a hostile peer: any frames, in any order, while its own host posts work.

use std::sync::Arc;

use gds_step::Time;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::wqe::{Atomic, SendWqe};
use vmlx5::fabric::hub::HubPort;
use vmlx5::fabric::{Budget, Fabric, NodeId, PeerId};
use vmlx5::fuzzing::recode;
use vmlx5::{
    Access, Dma, FrameHeader, HostMemory, MAX_PAYLOAD, Modify, MrAttr, Path, QpState, Qpn, Service,
};

use crate::hostile::{ledger::Ledger, others_are_served};
use crate::input::Input;
use crate::rig::{
    End, EndConfig, World, all_rights, assert_ok, atomic, fenced, nop, read, rtr, send, write,
};

/// Most operations of one run.
const ACTS: usize = 96;
/// The hostile end's queue pair number.
const THEIRS: Qpn = Qpn(3);
/// Bytes of registered memory of each end.
const LEN: usize = 48 * 1024;
/// Value of memory that the peer must not access. The peer's payloads consist of one repeated byte,
/// so the peer cannot produce this value.
const SECRET: [u8; 8] = [0xc3, 0x5a, 0x96, 0x0f, 0x69, 0xa5, 0x3c, 0xf0];
const GUARD: usize = 4096;

/// Memory that the peer must not access, with the key that it would need.
struct Guard {
    mem: Arc<HostMemory>,
    key: u32,
    /// Offset of the part that must stay unchanged.
    from: usize,
    readable: bool,
}

impl Guard {
    /// Memory whose first `open` bytes are not guarded; if `open` is not zero, the key covers them.
    fn new(world: &mut World, end: &End, access: Access, own_domain: bool, open: usize) -> Guard {
        let mem = Arc::new(HostMemory::new(GUARD));
        mem.write(0, &SECRET.repeat(GUARD / SECRET.len()))
            .expect("inside");
        let nic = &mut world.nics[end.nic];
        let pd = match own_domain {
            true => end.pd,
            false => nic.alloc_pd().expect("a domain"),
        };
        let keys = nic.reg_mr(MrAttr {
            pd,
            va: mem.addr(),
            len: if open > 0 { open } else { GUARD } as u64,
            access,
            mem: mem.clone(),
            mem_offset: 0,
        });
        Guard {
            key: keys.expect("a region").rkey,
            readable: own_domain && access.contains(Access::REMOTE_READ),
            from: open,
            mem,
        }
    }

    fn check(&self) {
        let mut bytes = vec![0; GUARD - self.from];
        self.mem.read(self.from as u64, &mut bytes).expect("inside");
        assert!(
            bytes == SECRET.repeat(bytes.len() / SECRET.len()),
            "written to"
        );
    }
}

struct Scene {
    world: World,
    port: HubPort,
    to: PeerId,
    a: End,
    /// An unreliable connection to the same peer, initially.
    other: End,
    /// The completions of both.
    ledgers: [Ledger; 2],
    c: End,
    d: End,
    guards: [Guard; 4],
    /// The last request to the peer without an answer: kind, number, length.
    asked: [(u8, u32, u32); 4],
    /// The sequence number of its next packet.
    psn: u32,
    /// Whether the peer read memory that it may read and that holds the secret.
    may_know: bool,
}

fn config() -> EndConfig {
    EndConfig {
        log_sq: 5,
        log_cq: 6,
        data: LEN,
        ..EndConfig::default()
    }
}

fn end(world: &mut World, nic: usize) -> End {
    world.end(nic, config())
}

impl Scene {
    fn new() -> Scene {
        let mut world = World::new(2);
        let mut port = world.hub.port();
        let a = end(&mut world, 0);
        let (c, d) = (end(&mut world, 0), end(&mut world, 1));
        world.connect(&c, &d);
        world.init(&a);
        let unreliable = EndConfig {
            service: Service::Uc,
            ..config()
        };
        let other = world.end(0, unreliable);
        world.init(&other);
        for end in [&a, &other] {
            let change = rtr(Path::to(port.node(), THEIRS), 1, 4, 12);
            world.modify(end, change);
            world.rts(end, 1);
        }
        let guards = [
            Guard::new(&mut world, &a, Access::LOCAL_WRITE, true, 0),
            Guard::new(&mut world, &a, Access::REMOTE_READ, true, 0),
            Guard::new(&mut world, &a, all_rights(), false, 0),
            Guard::new(&mut world, &a, all_rights(), true, GUARD / 2),
        ];
        // The part that the peer may read contains no secret.
        guards[3].mem.write(0, &[0; GUARD / 2]).expect("inside");
        let to = port.connect(world.nics[0].node()).expect("a link");
        let mut scene = Scene {
            world,
            port,
            to,
            ledgers: [Ledger::new(&a), Ledger::new(&other)],
            a,
            other,
            c,
            d,
            guards,
            asked: [(0, 0, 0); 4],
            psn: 1,
            may_know: false,
        };
        scene.step();
        scene
    }

    /// One step of all NICs; the host polls its completions.
    fn step(&mut self) {
        self.world.step();
        let budget = Budget {
            frames: 512,
            bytes: 1 << 24,
        };
        let (may_know, asked) = (self.may_know, &mut self.asked);
        self.port.receive(budget, &mut |_, header, payload| {
            recode(header, payload.len()).expect("a NIC sends only valid frames");
            let leaked = payload.windows(SECRET.len()).any(|bytes| bytes == SECRET);
            assert!(
                may_know || !leaked,
                "the peer received memory that it may not read"
            );
            if header.kind <= 5 {
                asked.rotate_right(1);
                asked[0] = (header.kind, header.psn.get(), header.total.get());
            }
            Ok(())
        });
        self.port.flush();
        self.port.step(Time::ZERO);
        while self.port.lost().is_some() {}
        let ends = [&mut self.a, &mut self.other];
        for (end, ledger) in ends.into_iter().zip(&mut self.ledgers) {
            ledger.take(end);
        }
    }

    /// A frame with mostly valid fields.
    fn frame(&mut self, input: &mut Input<'_>) {
        let kinds = [1, 2, 3, 4, 5, 16, 17, 18, 19, 20];
        let kind = match input.byte() {
            kind @ 0xf8.. => kind & 31,
            kind => kinds[usize::from(kind) % kinds.len()],
        };
        let (shape, fields) = (input.byte(), input.byte());
        let sizes = [0, 8, 64, 1000, 40_000, MAX_PAYLOAD as u32, 1 << 31];
        let (_, number, length) = self.asked[usize::from(shape >> 6)];
        let len = match kind {
            1 | 2 => input.pick(&[0, 8, 64, 1000, MAX_PAYLOAD as u32]),
            18 if shape & 4 == 0 => length.min(MAX_PAYLOAD as u32),
            18 => input.pick(&[0, 8, 64, 1000, MAX_PAYLOAD as u32]),
            _ => u32::from(shape & 0x1f == 0),
        };
        // A message of one frame in most cases, or a part of a longer one.
        let (flags, total, offset) = match shape & 3 {
            0 | 1 => (3 | shape & 12, len, 0),
            2 => {
                let total = if kind == 18 { length } else { 40_000 };
                let offset = input.pick(&[0, len, MAX_PAYLOAD as u32]);
                let (first, last) = (offset == 0, offset.wrapping_add(len) == total);
                (u8::from(first) | u8::from(last) << 1, total, offset)
            }
            _ => (shape >> 2 & 15, input.pick(&sizes), input.pick(&sizes)),
        };
        let total = match kind {
            3..=5 => input.pick(&sizes),
            _ => total,
        };
        let (key, va) = match shape >> 3 & 7 {
            n @ 0..4 => {
                let guard = &self.guards[usize::from(n)];
                self.may_know |= guard.readable && guard.from == 0;
                (guard.key, guard.mem.addr())
            }
            4 if shape & 3 == 3 => (input.next(), input.next()),
            _ => (self.a.keys.rkey, self.a.addr(0)),
        };
        let va = match shape >> 6 {
            0 => va.wrapping_add(input.number()),
            1 => va.wrapping_add(GUARD as u64 / 2 - 8),
            _ => va.wrapping_add(8 * u64::from(shape & 1)),
        };
        let odd = |bit: u8| fields >> bit & 1 == 1 && fields & 0xc0 == 0;
        let psn = match (odd(0), kind < 16) {
            (true, _) => input.next::<u16>().into(),
            (false, true) => self.psn,
            (false, false) => number,
        };
        let mtu_log = if odd(4) { 8 + (shape & 7) } else { 12 };
        let packets = |len: u32| len.div_ceil(1 << mtu_log).max(1);
        let carries = matches!(kind, 1 | 2 | 18);
        let count = if carries { packets(len) } else { 1 } + u32::from(odd(5));
        let header = FrameHeader {
            len: len.into(),
            kind,
            flags,
            // NAKs have a valid code in most cases.
            code: if kind == 17 && !odd(5) {
                shape & 3
            } else {
                shape
            },
            vendor: shape,
            dst_qpn: match odd(1) {
                true => input.next(),
                false if odd(2) => self.c.qpn.0,
                false => self.a.qpn.0,
            }
            .into(),
            src_qpn: if odd(3) { input.next() } else { THEIRS.0 }.into(),
            psn: psn.into(),
            rkey: key.into(),
            total: total.into(),
            offset: offset.into(),
            va: va.into(),
            operand: u64::from(shape).into(),
            compare: u64::from(fields & 1).into(),
            imm: [shape; 4],
            count: (count as u16).into(),
            mtu_log,
            service: self.a.config.service as u8 ^ u8::from(odd(3) && odd(5)),
        };
        if kind < 16 && psn == self.psn && fields & 0xc0 != 0x40 {
            let taken = if kind == 3 { packets(total) } else { count };
            self.psn = (self.psn + taken) & 0xff_ffff;
        }
        self.deliver(&header, shape);
    }

    /// Sends a frame, over a new link if the old one was closed.
    fn deliver(&mut self, header: &FrameHeader, fill: u8) {
        let mut room = |room: &mut [u8]| {
            room.fill(fill);
            true
        };
        if self.port.send(self.to, header, &mut room).is_err() {
            self.port.step(Time::ZERO);
            let node = self.world.nics[0].node();
            self.to = self.port.connect(node).expect("a link");
        }
        self.port.flush();
    }

    /// Posts the host's work for the hostile end, if there is room.
    fn post(&mut self, input: &mut Input<'_>) {
        let a = &mut self.a;
        let info = self.world.nics[0].query_qp(a.qpn).expect("is there");
        let works = matches!(info.state, QpState::Rts | QpState::Err);
        if !works || a.sq.wrapping_sub(info.sq_done) > 24 {
            return;
        }
        let there = a.remote(0);
        let (list, big) = ([a.sge(0, 8)], [a.sge(0, 16), a.sge(16, 40_000)]);
        let add = Atomic::FetchAdd { add: 1 };
        match input.byte() % 7 {
            0 => a.post(&write(there, &big)),
            1 => a.post(&read(there, &big)),
            2 => a.post(&nop()),
            3 => a.post(&atomic(there, add, &list)),
            4 => a.post(&send(&list)),
            5 => a.post(&read(there, &list)),
            _ => {
                let flags = fenced();
                a.post(&SendWqe {
                    flags,
                    ..write(there, &list)
                })
            }
        };
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let a = &mut self.a;
        let info = self.world.nics[0].query_qp(a.qpn).expect("is there");
        if a.rq.wrapping_sub(info.rq_next) < 1 << a.config.log_rq {
            let len = input.pick(&[8, 64, 1000, 40_000]);
            let list = [a.sge(0, len / 2), a.sge(u64::from(len / 2), len - len / 2)];
            a.post_recv(&list);
        }
    }

    /// Connects to any address that a record may contain.
    fn connect(&mut self, input: &mut Input<'_>) {
        self.reset();
        self.world.init(&self.a);
        let nodes = [
            self.port.node(),
            self.port.node(),
            self.world.nics[0].node(),
            self.world.nics[1].node(),
            NodeId(input.next()),
        ];
        let (qpn, psn) = match input.byte() & 3 {
            0 => (input.next(), input.next()),
            _ => (THEIRS.0, 1),
        };
        let change = rtr(Path::to(input.pick(&nodes), Qpn(qpn)), psn, 4, 12);
        let nic = &mut self.world.nics[0];
        let done = nic.modify_qp(self.a.qpn, change);
        assert_eq!(done.is_ok(), (qpn | psn) >> 24 == 0, "{done:?}");
        if done.is_ok() {
            self.world.rts(&self.a, 1);
            self.psn = psn;
        }
    }

    /// Brings the QP to INIT or RTR, where frames arrive early.
    fn halfway(&mut self, input: &mut Input<'_>) {
        self.reset();
        self.world.init(&self.a);
        if input.byte() & 1 == 0 {
            let change = rtr(Path::to(self.port.node(), THEIRS), 1, 4, 12);
            self.world.modify(&self.a, change);
            self.psn = 1;
        }
    }

    /// From now on the hostile end sends to the connection of the other kind.
    fn swap(&mut self) {
        std::mem::swap(&mut self.a, &mut self.other);
        self.ledgers.swap(0, 1);
        self.psn = 1;
    }

    fn reset(&mut self) {
        self.world.modify(&self.a, Modify::Reset);
        // The completions of earlier entries are reported now; after the reset all entries are new.
        self.step();
        (self.a.sq, self.a.rq) = (0, 0);
        self.a.reset_records();
        self.ledgers[0] = Ledger::new(&self.a);
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x90 => {
                self.frame(input);
                // Several entries may be pending for one step.
                if input.byte() & 3 != 0 {
                    self.step();
                }
            }
            0x90..0xa0 => {
                let mut header: FrameHeader = input.next();
                header.len = (header.len.get() % (MAX_PAYLOAD as u32 + 1)).into();
                header.dst_qpn = self.a.qpn.0.into();
                self.deliver(&header, 0x11);
                self.step();
            }
            0xa0..0xc0 => self.post(input),
            0xc0..0xe0 => self.receive(input),
            0xe0..0xe8 => self.connect(input),
            0xe8..0xec => {
                // Refused in RESET, as it must be.
                let _ = self.world.nics[0].modify_qp(self.a.qpn, Modify::Error);
            }
            0xec..0xf0 => {
                // To SQD, where sends pause, and back; refused in an invalid state.
                for _ in 0..4 {
                    self.step();
                }
                let change = input.pick(&[Modify::Sqd, Modify::Resume]);
                let done = self.world.nics[0].modify_qp(self.a.qpn, change);
                if done.is_ok() && change == Modify::Resume {
                    self.ledgers[0].resumed();
                }
            }
            0xf0..0xf4 => self.halfway(input),
            0xf4..0xf8 => self.swap(),
            _ => self.step(),
        }
    }

    /// Checks that the queue pair can be used again after any run.
    fn use_again(&mut self) {
        self.reset();
        let service = self.a.config.service;
        let config = EndConfig {
            service,
            ..config()
        };
        let mut fresh = self.world.end(1, config);
        self.world.connect(&self.a, &fresh);
        let (a, b) = (&mut self.a, &mut fresh);
        let s = a.post(&write(b.remote(8), &[a.sge(0, 8)]));
        self.world.settle();
        let mut entries = a.send.drain();
        // Earlier flushed entries come first.
        let last = entries.pop().expect("written");
        assert_ok(&last, CqeOpcode::REQ, s);
        assert_eq!(a.get64(0), b.get64(8));
    }
}

/// Any frames of a peer access only the memory that it may access, and other peers are served.
pub fn run(data: &[u8]) {
    let mut scene = Scene::new();
    let mut input = Input(data);
    // Unused; in earlier versions it selected whether the peer identifies itself.
    input.byte();
    for _ in 0..ACTS {
        if input.done() {
            break;
        }
        scene.act(&mut input);
    }
    scene.step();
    for _ in 0..1000 {
        if !scene.world.step() {
            break;
        }
        scene.step();
    }
    scene.world.settle();
    scene.step();
    for guard in &scene.guards {
        guard.check();
    }
    for queue in [&scene.a.send, &scene.a.recv] {
        let info = scene.world.nics[0].query_cq(queue.cqn).expect("is there");
        assert_eq!(info.failure, None);
    }
    let info = scene.world.nics[0].query_qp(scene.a.qpn).expect("is there");
    // Every posted request has been executed or flushed, or waits for the peer.
    let waits = info.state == QpState::Rts || info.sq_done == scene.a.sq;
    assert!(waits || info.state != QpState::Err, "{info:?}");
    let bell = Arc::clone(&scene.c.mem);
    others_are_served(&mut scene.world, &mut scene.c, &mut scene.d, &bell);
    scene.use_again();
}
