//! Doorbells, records and consumer indices of any value, in any order with steps.

use mlx5_prm::cqe::{Cqe64, SIZE, owner_of_lap};
use mlx5_prm::doorbell::{ARM, RCV, SET_CI, SND, record_index};
use vmlx5::*;

use super::others_are_served;
use super::watched;
use crate::input::Input;
use crate::rig::*;

/// Most acts of one run.
const ACTS: usize = 128;
/// The doorbell registers of a page.
const REGISTERS: [u64; 4] = [0x800, 0x900, 0xa00, 0xb00];

struct Scene {
    world: World,
    a: End,
    b: End,
    c: End,
    d: End,
    /// Number of entries of `a`'s two completion queues that were checked.
    seen: [u32; 2],
    /// The bytes of the page besides registers, as the host wrote them.
    page: Vec<u8>,
    failed: [bool; 2],
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Scene {
        let mut world = World::new(2);
        let shape = input.byte();
        let config = EndConfig {
            sq_start: [0, 0xfff0][usize::from(shape >> 1 & 1)],
            rq_start: [0, 0xfff8][usize::from(shape >> 2 & 1)],
            cq_start: [0, 0xff_fff0][usize::from(shape >> 3 & 1)],
            ignore_overrun: shape & 16 != 0,
            rnr_retry: 1,
            ..watched::config(shape & 1 != 0)
        };
        let (mut a, b) = world.pair(config.clone(), config);
        // Valid queue pairs on the same page, whose doorbells are written with those of the others.
        let neighbour = EndConfig::default().changed(|c| (c.uar, c.data) = (Some(a.uar), 4096));
        let plain = EndConfig::default().changed(|c| c.data = 4096);
        let (c, d) = world.pair(neighbour, plain);
        for i in 0..1_u64 << watched::LOG_SQ {
            match shape >> 5 {
                0 => a.prepare(&nop()),
                1 => a.prepare(&send(&[a.sge(8 * i, 8)])),
                _ => a.prepare(&write(b.remote(8 * i), &[a.sge(8 * i, 8)])),
            };
        }
        a.sq = a.config.sq_start;
        Scene {
            seen: [a.send.next, a.recv.next],
            page: vec![0; 4096],
            failed: [false; 2],
            world,
            a,
            b,
            c,
            d,
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            0..0x40 => self.ring(input),
            0x40..0x80 => self.record(input),
            0x80..0x90 => {
                let number = input.number() as u32;
                self.b
                    .mem
                    .store32(self.b.record + RCV as u64, number)
                    .expect("inside");
            }
            0x90..0x98 => {
                let s = &mut self.a;
                s.prepare(&nop());
                s.ring();
            }
            0x98..0x9c => {
                let change = input.pick(&[Modify::Error, Modify::Sqd, Modify::Resume]);
                // The NIC refuses a transition that is not allowed.
                let _ = self.world.nics[0].modify_qp(self.a.qpn, change);
            }
            0x9c..0xa0 => self.again(),
            _ => self.step(),
        }
    }

    /// A store into the page, of any width that the processor has.
    fn ring(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let at = match shape & 0xc0 {
            0xc0 => input.below(4096 / 8) * 8,
            _ => REGISTERS[usize::from(shape & 3)],
        };
        let mem = &self.a.mem;
        let value = input.number().max(1);
        match shape >> 2 & 3 {
            0 => mem.store64(at, value).expect("inside"),
            1 => mem.store32(at, value as u32).expect("inside"),
            2 => mem.store32(at + 4, value as u32).expect("inside"),
            _ => mem.write(at, &value.to_le_bytes()[..3]).expect("inside"),
        }
        let at = at as usize;
        let now = &mut self.page[at..at + 8];
        mem.read(at as u64, now).expect("inside");
    }

    /// A word of a record.
    fn record(&mut self, input: &mut Input<'_>) {
        let a = &self.a;
        let places = [
            a.record + SND as u64,
            a.record + SND as u64,
            a.record + RCV as u64,
            a.send.record + SET_CI as u64,
            a.send.record + ARM as u64,
            a.recv.record + SET_CI as u64,
            a.recv.record + ARM as u64,
        ];
        let at = input.pick(&places);
        let value = match input.byte() {
            n @ 0..0x80 => u32::from(a.sq.wrapping_add(n.into())).to_be(),
            n @ 0x80..0xc0 => (self.seen[usize::from(n & 1)] & 0xff_ffff).to_be(),
            _ => input.number() as u32,
        };
        a.mem.store32(at, value).expect("inside");
    }

    fn again(&mut self) {
        self.world.settle();
        self.look();
        self.world.reset(&mut self.a);
        self.world.reset(&mut self.b);
        if !self.failed.contains(&true) {
            self.world.connect(&self.a, &self.b);
        }
    }

    /// A step: the NIC reads the announced work of the queue pairs concerned, up to the counts in
    /// their records, and no other work.
    fn step(&mut self) {
        let before = self.world.nics[0].query_qp(self.a.qpn).expect("is there");
        let load = |at| self.a.mem.load64(at).expect("inside");
        let rung = REGISTERS.iter().any(|&at| load(at) != 0);
        let record = self
            .a
            .mem
            .load32(self.a.record + SND as u64)
            .expect("inside");
        self.world.step();
        let after = self.world.nics[0].query_qp(self.a.qpn).expect("is there");
        let listens = matches!(
            before.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        );
        let expected = if rung && listens {
            record_index(u32::from_le(record))
        } else {
            before.sq_rung
        };
        assert_eq!(after.sq_rung, expected, "{before:?} {after:?}");
        for at in REGISTERS {
            assert_eq!(self.a.mem.load64(at).expect("inside"), 0);
            self.page[at as usize..at as usize + 8].fill(0);
        }
        let mut page = vec![0; 4096];
        self.a.mem.read(0, &mut page).expect("inside");
        assert!(page == self.page, "other bytes of the page changed");
        self.look();
    }

    /// Checks that completion queues contain what the NIC wrote there, with the owner bit of the
    /// lap.
    fn look(&mut self) {
        let nic = &mut self.world.nics[0];
        for (i, queue) in [&self.a.send, &self.a.recv].into_iter().enumerate() {
            let info = nic.query_cq(queue.cqn).expect("is there");
            let fresh = info.producer.wrapping_sub(self.seen[i]);
            // Newer entries may have overwritten older ones.
            for n in fresh.saturating_sub(info.entries)..fresh {
                let number = self.seen[i].wrapping_add(n);
                let slot = u64::from(number & (info.entries - 1));
                let mut bytes = [0; SIZE];
                queue
                    .mem
                    .read(queue.offset + slot * 64, &mut bytes)
                    .expect("inside");
                let entry = Cqe64::from_bytes(bytes);
                assert_eq!(entry.op_own & 1, owner_of_lap(number, queue.log));
                assert_eq!(entry.srqn_uidx.get(), 0x77);
                let error = entry.opcode().is_error();
                let qpn = if error {
                    entry.as_error().qpn()
                } else {
                    entry.qpn()
                };
                assert_eq!(qpn, self.a.qpn.0);
            }
            self.seen[i] = info.producer;
            if let Some(failure) = info.failure {
                assert_eq!(failure, CqFailure::Overrun);
                assert!(!self.a.config.ignore_overrun);
                let state = nic.query_qp(self.a.qpn).expect("is there").state;
                assert!(matches!(state, QpState::Err | QpState::Reset), "{state:?}");
                self.failed[i] = true;
            }
        }
        // Each event is raised once.
        let mut count = 0;
        while let Some(event) = nic.next_event() {
            count += 1;
            assert!(count < 100, "the events do not end");
            if let Event::CqError { cq, .. } = event {
                let failed = nic.query_cq(cq).expect("is there").failure;
                assert_eq!(failed, Some(CqFailure::Overrun));
            }
        }
    }
}

/// Any doorbells with any records.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut scene = Scene::new(&mut input);
    for _ in 0..ACTS {
        if input.done() {
            break;
        }
        scene.act(&mut input);
    }
    scene.step();
    scene.world.settle();
    scene.look();
    // In ERR the NIC flushes all announced work, so none stays outstanding.
    let _ = scene.world.nics[0].modify_qp(scene.a.qpn, Modify::Error);
    scene.world.settle();
    scene.look();
    let info = scene.world.nics[0].query_qp(scene.a.qpn).expect("is there");
    if info.state == QpState::Err {
        assert_eq!((info.sq_done, info.outstanding), (info.sq_rung, 0));
    }
    let (world, bell) = (&mut scene.world, &scene.a.mem);
    others_are_served(world, &mut scene.c, &mut scene.d, bell);
}
