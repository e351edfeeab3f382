//! Work queue entries of any bytes, on connected queue pairs with regions of all kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::wqe::INVALID_LKEY;
use vmlx5::*;

use super::ledger::Ledger;
use super::others_are_served;
use super::watched::{self, Watched, may};
use crate::input::Input;
use crate::rig::*;

/// Most acts of one run.
const ACTS: usize = 96;
/// Bytes of a guarded region.
const GUARD: u64 = 4096;

/// Bytes that an entry may name.
#[derive(Clone, Copy)]
struct Place {
    key: u32,
    va: u64,
    len: u64,
}

/// A region on its own memory, which panics when the NIC does what the region forbids.
struct Region {
    place: Place,
    latch: Arc<AtomicBool>,
}

/// Registers `len` bytes of new memory, on which only the accesses in `rules` are allowed.
fn region(nic: &mut Nic, pd: PdId, access: Access, len: u64, watched: Watched) -> Region {
    let latch = watched.latch();
    let va = 0x1000_0000;
    let keys = nic.reg_mr(MrAttr {
        pd,
        va,
        len,
        access,
        mem: Arc::new(watched),
        mem_offset: 0,
    });
    let key = keys.expect("a region").lkey;
    Region {
        place: Place { key, va, len },
        latch,
    }
}

/// The allowed accesses of a region for an end that posts work itself.
fn guards(nic: &mut Nic, pd: PdId) -> Vec<Region> {
    let memory = |rules: &[_]| Watched::new(Arc::new(HostMemory::new(GUARD as usize)), rules);
    let (whole, half) = (0..GUARD, 0..GUARD / 2);
    let stranger = nic.alloc_pd().expect("a domain");
    let mut regions = vec![
        region(
            nic,
            pd,
            Access::NONE,
            GUARD,
            memory(&[(whole.clone(), may::READ)]),
        ),
        region(
            nic,
            pd,
            Access::REMOTE_READ,
            GUARD,
            memory(&[(whole.clone(), may::READ)]),
        ),
        region(nic, stranger, all_rights(), GUARD, memory(&[])),
        // The second half of this one is not registered, or is removed.
        region(
            nic,
            pd,
            all_rights(),
            GUARD / 2,
            memory(&[(half, may::ALL)]),
        ),
        region(
            nic,
            pd,
            all_rights(),
            GUARD,
            memory(&[(whole.clone(), may::ALL)]).gone_from(GUARD / 2),
        ),
        region(nic, pd, all_rights(), GUARD, memory(&[(whole, may::ALL)])),
    ];
    let dead = region(nic, pd, all_rights(), GUARD, memory(&[]));
    nic.dereg_mr(dead.place.key).expect("is there");
    regions.push(dead);
    regions
}

/// The region of [`guards`] that is removed during the run.
const MORTAL: usize = 5;

/// The allowed accesses of a region for remote ends only.
fn passive_guards(nic: &mut Nic, pd: PdId) -> Vec<Region> {
    let memory = |may| {
        Watched::new(
            Arc::new(HostMemory::new(GUARD as usize)),
            &[(0..GUARD, may)],
        )
    };
    vec![
        region(nic, pd, Access::LOCAL_WRITE, GUARD, memory(0)),
        region(
            nic,
            pd,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            GUARD,
            memory(may::WRITE),
        ),
        region(
            nic,
            pd,
            Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
            GUARD,
            memory(0),
        ),
    ]
}

fn places(end: &End, regions: &[Region]) -> Vec<Place> {
    let own = Place {
        key: end.keys.lkey,
        va: end.addr(0),
        len: watched::DATA as u64,
    };
    // The end's own region is named as often as all others together.
    let mut all = vec![own; regions.len()];
    all.extend(regions.iter().map(|r| r.place));
    all
}

/// An end that posts, with the regions that it may name.
struct Side {
    end: End,
    ledger: Ledger,
    local: Vec<Place>,
    remote: Vec<Place>,
}

struct Scene {
    world: World,
    /// `a` and `b` of a pair, and `p`, whose other end `q` never posts.
    sides: [Side; 3],
    q: End,
    c: End,
    d: End,
    /// The regions of `a` and of `b`.
    guards: [Vec<Region>; 2],
}

fn config(input: &mut Input<'_>) -> EndConfig {
    let shape = input.byte();
    EndConfig {
        mtu: Mtu::from_verbs(1 + (shape >> 1 & 3)).expect("an MTU"),
        rnr_retry: if shape & 8 == 0 { 7 } else { 1 },
        sq_start: if shape & 16 == 0 { 0 } else { 0xfff0 },
        rq_start: if shape & 16 == 0 { 0 } else { 0xfffa },
        cq_start: if shape & 32 == 0 { 0 } else { 0xff_fff0 },
        max_rd_atomic: shape >> 6,
        ..watched::config(shape & 1 != 0)
    }
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Scene {
        let mut world = match input.byte() {
            seed @ 128.. => World::scheduled(2, seed.into()),
            _ => World::new(2),
        };
        let config = config(input);
        let (a, b) = world.pair(config.clone(), config.clone());
        let passive = config.clone().changed(|c| {
            (c.view, c.qp_access) = (
                watched::view_without_atomics,
                Access::REMOTE_WRITE | Access::REMOTE_READ,
            )
        });
        let (p, q) = world.pair(config.clone(), passive);
        let plain = EndConfig::default().changed(|c| c.data = 4096);
        let (c, d) = world.pair(plain.clone(), plain);
        let guards = [
            guards(&mut world.nics[0], a.pd),
            guards(&mut world.nics[1], b.pd),
        ];
        let passive = passive_guards(&mut world.nics[1], q.pd);
        let (of_a, of_b) = (places(&a, &guards[0]), places(&b, &guards[1]));
        let (of_p, of_q) = (places(&p, &guards[0]), places(&q, &passive));
        let side = |end: End, local: &[Place], remote: &[Place]| Side {
            ledger: Ledger::new(&end),
            end,
            local: local.to_vec(),
            remote: remote.to_vec(),
        };
        Scene {
            world,
            sides: [
                side(a, &of_a, &of_b),
                side(b, &of_b, &of_a),
                side(p, &of_p, &of_q),
            ],
            q,
            c,
            d,
            guards,
        }
    }

    /// One step of all components; hosts take their completions.
    fn step(&mut self) -> bool {
        let moved = self.world.step();
        for side in &mut self.sides {
            side.ledger.take(&mut side.end);
        }
        self.q.send.drain();
        self.q.recv.drain();
        for nic in &mut self.world.nics {
            while nic.next_event().is_some() {}
        }
        moved
    }

    /// Steps until no component makes progress; hosts take completions all along.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not settle");
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let act = input.byte();
        let which = usize::from(act) % 3;
        match act {
            0..0x70 => self.sides[which].post(&self.world, input),
            0x70..0x80 => self.sides[which].post_raw(&self.world, input),
            0x80..0xa8 => self.sides[which].receive(&self.world, input),
            0xa8..0xc8 => {
                for _ in 0..1 + (input.byte() & 7) {
                    self.step();
                }
            }
            0xc8..0xd0 => {
                self.settle();
                self.world.jump();
                self.step();
            }
            0xd0..0xd6 => self.sides[which].end.ring(),
            0xd6..0xd9 => self.sides[which].end.store_record(),
            0xd9..0xdc => self.sides[which].end.store_doorbell(),
            0xdc..0xe2 => {
                self.settle();
                let change = input.pick(&[Modify::Sqd, Modify::Resume, Modify::Error]);
                let side = &mut self.sides[which];
                let nic = &mut self.world.nics[side.end.nic];
                // The NIC refuses a transition that is not allowed.
                if nic.modify_qp(side.end.qpn, change).is_ok() && change == Modify::Resume {
                    side.ledger.resumed();
                }
            }
            0xe2..0xe5 => self.again(which),
            0xe5..0xe8 => {
                let nic = usize::from(act & 1);
                let mortal = &self.guards[nic][MORTAL];
                if self.world.nics[nic].dereg_mr(mortal.place.key).is_ok() {
                    // From now on no access is allowed.
                    mortal.latch.store(true, Ordering::Relaxed);
                }
            }
            _ => drop(self.step()),
        }
    }

    /// Resets and reconnects a pair.
    fn again(&mut self, which: usize) {
        self.settle();
        let [a, b, p] = &mut self.sides;
        let (x, y) = match which {
            0 | 1 => (&mut a.end, &mut b.end),
            _ => (&mut p.end, &mut self.q),
        };
        for end in [&mut *x, &mut *y] {
            self.world.reset(end);
        }
        self.world.connect(x, y);
        match which {
            0 | 1 => {
                a.ledger = Ledger::new(&a.end);
                b.ledger = Ledger::new(&b.end);
            }
            _ => p.ledger = Ledger::new(&p.end),
        }
    }

    /// Ends all work.
    fn fail_all(&mut self) {
        for side in &mut self.sides {
            side.end.ring();
            let nic = &mut self.world.nics[side.end.nic];
            nic.modify_qp(side.end.qpn, Modify::Error)
                .expect("not in RESET");
        }
        self.settle();
        for side in &self.sides {
            side.ledger.settled(&self.world, &side.end);
        }
    }

    /// Asserts that queue pairs can be used again after any run.
    fn use_again(&mut self) {
        self.again(0);
        let [a, b, _] = &mut self.sides;
        let s = a.end.post(&write(b.end.remote(8), &[a.end.sge(0, 8)]));
        self.world.settle();
        let entry = a.end.send.poll().expect("written");
        assert_ok(&entry, CqeOpcode::REQ, s);
        assert_eq!(a.end.get64(0), b.end.get64(8));
    }
}

/// A key and an address: usually of existing bytes.
fn name(input: &mut Input<'_>, places: &[Place]) -> (u32, u64) {
    let place = input.pick(places);
    let shape = input.byte();
    let va = match shape & 7 {
        0..4 => place.va.wrapping_add(u64::from(shape >> 3) * 8),
        4 => place
            .va
            .wrapping_add(place.len)
            .wrapping_sub((shape >> 3).into()),
        5 => place.va.wrapping_sub((shape >> 3).into()),
        6 => place
            .va
            .wrapping_add(place.len / 2)
            .wrapping_sub((shape >> 3).into()),
        _ => place.va.wrapping_add(input.number()),
    };
    let key = match shape {
        0xff => input.next(),
        0xfe => place.key ^ 1,
        0xfd => place.key.wrapping_add(0x100),
        _ => place.key,
    };
    (key, va)
}

fn length(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        n @ 0..0xc0 => [0, 1, 7, 8, 64, 100, 1000, 2048][usize::from(n & 7)],
        n @ 0xc0..0xf0 => [4096, 20_000, 40_000, 48 * 1024][usize::from(n & 3)],
        _ => input.next(),
    }
}

/// A pointer to memory.
fn pointer(len: u32, (key, va): (u32, u64)) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&key.to_be_bytes());
    segment[8..].copy_from_slice(&va.to_be_bytes());
    segment
}

/// Changes some of the bytes.
fn spoil(input: &mut Input<'_>, bytes: &mut [u8]) {
    let times = match input.byte() {
        n @ 0xe0.. => n & 3,
        _ => return,
    };
    for _ in 0..=times {
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] ^= input.byte();
    }
}

impl Side {
    /// Blocks that may be posted without overwriting entries that the NIC owns.
    fn room(&self, world: &World) -> u16 {
        let info = world.nics[self.end.nic]
            .query_qp(self.end.qpn)
            .expect("is there");
        let used = self.end.sq.wrapping_sub(info.sq_done);
        (1_u16 << watched::LOG_SQ).saturating_sub(used)
    }

    /// Asserts that the world has settled: all announced work is done, unless it waits for an
    /// answer, or for sends to resume.
    fn rests(&self, world: &World) {
        let info = world.nics[self.end.nic]
            .query_qp(self.end.qpn)
            .expect("is there");
        let waits = match info.state {
            QpState::Rts => info.outstanding > 0,
            state => state == QpState::Sqd,
        };
        assert!(waits || info.sq_done == info.sq_rung, "{info:?}");
    }

    /// An entry whose bytes are mostly valid.
    fn post(&mut self, world: &World, input: &mut Input<'_>) {
        let ops = [0_u8, 8, 9, 0xa, 0xb, 0x10, 0x11, 0x12, 8, 0xa, 0x10, 1];
        let op = match input.byte() {
            op @ 0xf0.. => op & 15 | input.byte() & 0x30,
            op => ops[usize::from(op) % ops.len()],
        };
        let (flags, shape) = (input.byte(), input.byte());
        let mut bytes = vec![0; 16];
        if matches!(op, 8 | 9 | 0x10 | 0x11 | 0x12) || shape & 0xf0 == 0xf0 {
            let (key, va) = name(input, &self.remote);
            bytes.extend(va.to_be_bytes());
            bytes.extend(key.to_be_bytes());
            bytes.extend([0; 4]);
        }
        if matches!(op, 0x11 | 0x12) {
            bytes.extend(input.number().to_be_bytes());
            bytes.extend(u64::from(shape).to_be_bytes());
        }
        let pieces = match shape & 7 {
            _ if matches!(op, 0x11 | 0x12) => 1,
            n @ 0..3 => n,
            3..6 => 1,
            6 => shape >> 3,
            _ => {
                // Inline payload.
                let len = usize::from(input.byte()) * 2;
                bytes.extend((1_u32 << 31 | len as u32).to_be_bytes());
                bytes.extend(vec![shape; len]);
                bytes.resize(bytes.len().next_multiple_of(16), 0);
                0
            }
        };
        for _ in 0..pieces {
            let len = if op >= 0x11 && shape & 8 == 0 {
                8
            } else {
                length(input)
            };
            bytes.extend(pointer(len, name(input, &self.local)));
        }
        let ds = bytes.len() / 16;
        let index = self.end.sq;
        bytes[..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(op)).to_be_bytes());
        // Sometimes the entry claims more blocks than the doorbell announces.
        let says = if flags & 0x3c == 0x3c { ds + 4 } else { ds };
        bytes[4..8].copy_from_slice(&(self.end.qpn.0 << 8 | says as u32 & 0xff).to_be_bytes());
        // Usually signaled; sometimes fenced.
        bytes[11] = if flags & 0xc0 == 0xc0 { flags } else { 8 };
        bytes[12..16].copy_from_slice(&[shape; 4]);
        spoil(input, &mut bytes);
        let blocks = ds.div_ceil(4) as u16;
        if blocks <= self.room(world) {
            self.end.prepare_raw(&bytes, blocks);
            if flags & 3 != 3 {
                self.end.ring();
            }
        }
    }

    /// Random bytes in the ring, also in entries that the NIC owns.
    fn post_raw(&mut self, world: &World, input: &mut Input<'_>) {
        let (back, blocks) = (input.byte(), u16::from(input.byte() & 15));
        let len = usize::from(input.byte());
        let bytes = input.bytes(len);
        let blocks = blocks.min(self.room(world));
        let posted = self.end.sq;
        self.end.sq = posted.wrapping_sub(u16::from(back & 15));
        if self.end.sq.wrapping_sub(self.end.config.sq_start)
            > posted.wrapping_sub(self.end.config.sq_start)
        {
            self.end.sq = posted;
        }
        self.end.prepare_raw(bytes, 0);
        self.end.sq = posted.wrapping_add(blocks);
        self.end.ring();
    }

    /// A receive whose bytes are mostly valid.
    fn receive(&mut self, world: &World, input: &mut Input<'_>) {
        let end = &mut self.end;
        let info = world.nics[end.nic].query_qp(end.qpn).expect("is there");
        if end.rq.wrapping_sub(info.rq_next) >= 1 << watched::LOG_RQ {
            return;
        }
        let shape = input.byte();
        let pieces = if shape & 3 == 3 { shape >> 2 & 7 } else { 1 };
        let mut bytes = Vec::new();
        for _ in 0..pieces.min(4) {
            let len = if shape & 0xc0 == 0 {
                40_000
            } else {
                length(input)
            };
            bytes.extend(pointer(len, name(input, &self.local)));
        }
        bytes.extend(pointer(0, (INVALID_LKEY, 0)));
        bytes.truncate(64);
        spoil(input, &mut bytes);
        let slot = u64::from(end.rq) & ((1 << watched::LOG_RQ) - 1);
        end.mem
            .write(end.rq_at + slot * 64, &bytes)
            .expect("inside");
        end.rq = end.rq.wrapping_add(1);
        let value = mlx5_prm::doorbell::record_value(end.rq.into());
        end.mem.store32(end.record, value).expect("inside");
    }
}

/// Any bytes in the rings: the NIC accesses memory only as its regions allow, and every entry
/// completes once.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut scene = Scene::new(&mut input);
    for _ in 0..ACTS {
        if input.done() {
            break;
        }
        scene.act(&mut input);
    }
    scene.settle();
    // All timeouts expire, so work for a silent peer fails.
    for _ in 0..20 {
        scene.world.jump();
        scene.settle();
    }
    scene.sides.iter().for_each(|side| side.rests(&scene.world));
    scene.fail_all();
    let bell = Arc::clone(&scene.c.mem);
    others_are_served(&mut scene.world, &mut scene.c, &mut scene.d, &bell);
    scene.use_again();
}
