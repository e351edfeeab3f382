//! A context with a hostile peer: any control messages, and any words and addresses in the memory
//! that it shares with that peer. Another peer is honest and is served throughout.
//!
//! All is simulated on one thread, so the same input gives the same run.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gds_sim::{Sim, SimConfig};
use gds_step::Host;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::{
    Access, Device, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory, RemoteSpan, Work,
};
use gdsync::{EmulatedOptions, Gpu};
use mp::bootstrap::Local;
use mp::fuzzing::CONTROL_VERSION;
use mp::{Bootstrap, Builder, Context, Memory, PathChoice, Progress, Request, Source};
use vmlx5::fabric::hub::{Hub, HubConfig};

use crate::input::Input;

const VICTIM: u32 = 0;
const HOSTILE: u32 = 1;
const HONEST: u32 = 2;
/// The tag that the honest ranks use, and the message that ends the run.
const OURS: u32 = 9;
const END: u8 = 0xff;
/// Most operations of the victim and of the hostile rank in one run.
const ACTS: usize = 24;
const HOSTILE_ACTS: usize = 64;
/// Layout of channels: slots, and bytes of an eager message.
const DEPTH: usize = 4;
const EAGER: usize = 128;
const MAILBOX: usize = DEPTH * 16;
const ROOMS: usize = DEPTH * EAGER;
const BLOCK: usize = DEPTH * (PLACE_ROOM + 16);
/// Distance in bytes between the places of receives in a return block, and the length in bytes of
/// an encoded place.
const PLACE_ROOM: usize = 64;
const PLACE_LEN: usize = 28;
/// Virtual time after which a pending honest operation counts as a hang.
const LIMIT: Duration = Duration::from_secs(100);
/// Time limit of the victim for operations with the hostile rank.
const SHORT_LIMIT: Duration = Duration::from_millis(4);

/// The topic of contexts named `mp`.
fn topic() -> u64 {
    b"mp".iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The input from which all ranks draw, and whether the run is over.
#[derive(Clone)]
struct World {
    bytes: Rc<[u8]>,
    at: Rc<Cell<usize>>,
    /// Whether the victim has connected to its peers.
    begun: Rc<Cell<bool>>,
    over: Rc<Cell<bool>>,
    host: Arc<dyn Host>,
    hub: Hub,
    ranks: Rc<[Arc<dyn Bootstrap>]>,
}

impl World {
    fn draw<T>(&self, draw: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let mut input = Input(&self.bytes[self.at.get()..]);
        let drawn = draw(&mut input);
        self.at.set(self.bytes.len() - input.0.len());
        drawn
    }

    fn done(&self) -> bool {
        self.at.get() == self.bytes.len()
    }

    fn open(&self) -> (Gpu, Device) {
        let options = SoftOptions::default();
        let gpu = Gpu::soft_with(Arc::clone(&self.host), options).expect("a soft GPU");
        let options = EmulatedOptions::default().hub(self.hub.clone());
        let device = Device::emulated_with(&gpu, options).expect("a NIC");
        (gpu, device)
    }

    fn context(&self, rank: u32, progress: Progress) -> Context {
        let (gpu, device) = self.open();
        let limit = if rank == VICTIM { SHORT_LIMIT } else { LIMIT };
        Builder::default()
            .bootstrap(Arc::clone(&self.ranks[rank as usize]))
            .gpu(&gpu)
            .device(&device)
            .depth(DEPTH as u32)
            .eager_limit(EAGER)
            .channels(8)
            .timeout(limit)
            // The hostile rank names memory as a NIC does.
            .path(PathChoice::Nic)
            .progress(progress)
            .build()
            .expect("a context")
    }

    fn pass(&self, time: Duration) {
        let deadline = self.host.now() + time;
        self.host
            .wait_until(Some(deadline), &mut || self.over.get());
    }
}

/// The rank under attack.
struct Victim {
    world: World,
    ctx: Context,
    stream: Stream,
    memory: Memory,
    /// Memory of sends, never of receives.
    source: Memory,
    requests: Vec<Request>,
    count: u8,
}

/// A message length on either side of the eager limit.
const LENGTHS: [usize; 6] = [0, 8, 64, EAGER, EAGER + 1, 1000];

impl Victim {
    fn new(world: World) -> Victim {
        let progress = world.draw(|input| input.pick(&[Progress::Background, Progress::Manual]));
        let ctx = world.context(VICTIM, progress);
        let source = ctx.alloc(MemoryKind::Pinned, 2048).expect("memory");
        source.write(0, &[0x5a; 2048]).expect("inside");
        Victim {
            stream: ctx.gpu().stream().expect("a stream"),
            memory: ctx.alloc(MemoryKind::Pinned, 4096).expect("memory"),
            source,
            ctx,
            requests: Vec::new(),
            count: 0,
            world,
        }
    }

    /// Every operation completes. The hostile rank may decide the result.
    fn act(&mut self) {
        let (act, tag, len) = self.world.draw(|input| {
            let act = input.byte();
            (act & 15, u32::from(act >> 4 & 3), input.pick(&LENGTHS))
        });
        let ctx = &self.ctx;
        let into = self.memory.slice(512, len).expect("inside");
        let from = self.source.slice(512, len).expect("inside");
        let begun = match act {
            0..3 => ctx.irecv(HOSTILE, tag, &into),
            3..5 => ctx.isend(HOSTILE, tag, &from),
            5 => ctx.irecv(Source::Any, tag, &into),
            6 => ctx.irecv_on(&self.stream, HOSTILE, tag, &into),
            7 => ctx.isend_on(&self.stream, HOSTILE, tag, &from),
            8 | 9 => {
                if let Some(request) = self.requests.pop() {
                    let _ = request.wait(SHORT_LIMIT);
                }
                return;
            }
            10 => {
                for request in &self.requests {
                    let _ = request.test();
                }
                return;
            }
            11 => {
                if let Some(request) = self.requests.first() {
                    let _ = request.cancel();
                }
                return;
            }
            12 => {
                self.requests.pop();
                return;
            }
            13 => return self.exchange(self.count),
            14 => {
                ctx.progress();
                return;
            }
            _ => return self.world.pass(SHORT_LIMIT / 4),
        };
        if let Ok(request) = begun {
            self.requests.push(request);
        }
    }

    /// Exchanges a message with the honest rank, which sends it back.
    fn exchange(&mut self, mark: u8) {
        self.count = (self.count + 1) % END;
        let len = LENGTHS[usize::from(mark) % LENGTHS.len()].max(1);
        self.memory.write(2048, &vec![mark; len]).expect("inside");
        let (out, into) = (self.memory.slice(2048, len), self.memory.slice(3072, len));
        let (out, into) = (out.expect("inside"), into.expect("inside"));
        let recv = self.ctx.irecv(HONEST, OURS, &into).expect("a receive");
        let send = self.ctx.isend(HONEST, OURS, &out).expect("a send");
        send.wait(LIMIT).expect("sent");
        let done = recv.wait(LIMIT).expect("received");
        assert_eq!((done.source(), done.len), (HONEST, len as u64));
        let mut got = vec![0; len];
        self.memory.read(3072, &mut got).expect("inside");
        assert!(got.iter().all(|b| *b == mark));
    }

    fn run(mut self) {
        self.exchange(1);
        // While the hostile rank answers, it acts like any peer.
        let into = self.memory.slice(512, EAGER).expect("inside");
        if self.world.draw(|input| input.byte() & 3 != 0) {
            for tag in 0..2 {
                let recv = self.ctx.irecv(HOSTILE, tag, &into);
                self.requests.push(recv.expect("a receive"));
            }
            let send = self.ctx.isend(HOSTILE, 0, &into);
            self.requests.push(send.expect("a send"));
        }
        self.world.begun.set(true);
        for _ in 0..ACTS {
            if self.world.done() {
                break;
            }
            self.act();
        }
        self.exchange(END);
        let mut bytes = [0; 2048];
        self.source.read(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [0x5a; 2048]);
        self.requests.clear();
        self.world.over.set(true);
        // After the time limit, streams pass their waits for the hostile rank.
        let end = self.world.host.now() + LIMIT;
        while !self.stream.synchronize(SHORT_LIMIT / 16).expect("a stream") {
            self.ctx.progress();
            assert!(self.world.host.now() < end, "stuck");
        }
        // The hostile rank does not close its side.
        let _ = self.ctx.close(SHORT_LIMIT);
    }
}

fn honest(world: &World) {
    let ctx = world.context(HONEST, Progress::Background);
    let memory = ctx.alloc(MemoryKind::Pinned, 2048).expect("memory");
    loop {
        let all = memory.slice(0, 1024).expect("inside");
        let recv = ctx.irecv(VICTIM, OURS, &all).expect("a receive");
        let done = recv.wait(LIMIT).expect("received");
        let len = done.len as usize;
        let mut got = vec![0; len];
        memory.read(0, &mut got).expect("inside");
        let back = memory.slice(0, len).expect("inside");
        let send = ctx.isend(VICTIM, OURS, &back).expect("a send");
        send.wait(LIMIT).expect("sent");
        if got[0] == END {
            break;
        }
    }
    // The victim may have closed its side without waiting for this rank.
    let _ = ctx.close(SHORT_LIMIT);
}

/// The hostile rank: a bootstrap and a NIC, without a context.
struct Hostile {
    world: World,
    pd: Pd,
    memory: Mr,
    lanes: BTreeMap<u8, Qp>,
    /// The victim's mailboxes, its rooms and its return blocks, by tag.
    mailboxes: BTreeMap<u32, RemoteMemory>,
    rooms: BTreeMap<u32, RemoteMemory>,
    blocks: BTreeMap<u32, RemoteMemory>,
    /// Whether it answers requests.
    answers: bool,
    _device: Device,
}

fn head(kind: u8, small: u8) -> Vec<u8> {
    let mut bytes = b"mp01".to_vec();
    bytes.extend(CONTROL_VERSION.to_le_bytes());
    bytes.extend([kind, small]);
    bytes
}

/// One record of the path by a NIC.
fn record(bytes: &mut Vec<u8>, record: &[u8]) {
    bytes.extend([1, 1, record.len() as u8]);
    bytes.extend(record);
}

fn sends(tag: u32, block: &RemoteMemory, shape: &[u8], eager: bool) -> Vec<u8> {
    let mut bytes = head(3, eager.into());
    bytes.extend(tag.to_le_bytes());
    bytes.extend(shape);
    record(&mut bytes, &block.to_bytes());
    bytes
}

fn receives(
    tag: u32,
    mailbox: &RemoteMemory,
    shape: &[u8],
    rooms: Option<&RemoteMemory>,
) -> Vec<u8> {
    let mut bytes = head(4, 0);
    bytes.extend(tag.to_le_bytes());
    bytes.extend(shape);
    record(&mut bytes, &mailbox.to_bytes());
    match rooms {
        Some(rooms) => record(&mut bytes, &rooms.to_bytes()),
        None => bytes.push(0),
    }
    // No flagged rooms, and no long ones.
    bytes.extend([0; 42]);
    bytes
}

fn connect(lane: u8, address: &QpAddress, depth: u32) -> Vec<u8> {
    let mut bytes = head(1, lane);
    bytes.extend(shape(depth, 0));
    // Its NIC keeps the order of WRITEs.
    record(&mut bytes, &[&address.to_bytes()[..], &[1]].concat());
    bytes
}

fn shape(depth: u32, start: u64) -> Vec<u8> {
    let mut bytes = depth.to_le_bytes().to_vec();
    bytes.extend((EAGER as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    // No zero-SM messages by default.
    bytes.push(0);
    bytes
}

impl Hostile {
    fn new(world: World) -> Hostile {
        let (gpu, device) = world.open();
        let pd = device.alloc_pd().expect("a domain");
        let region = gpu.alloc(MemoryKind::Pinned, 4096).expect("memory");
        Hostile {
            memory: pd.register(&region, Access::ALL).expect("registered"),
            pd,
            lanes: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            rooms: BTreeMap::new(),
            blocks: BTreeMap::new(),
            answers: true,
            _device: device,
            world,
        }
    }

    fn send(&self, bytes: &[u8]) {
        // An error is expected: the window may be full, or the victim may have ended.
        let _ = self.world.ranks[HOSTILE as usize].send(VICTIM, topic(), bytes);
        self.world.host.ring();
    }

    /// Its own memory, as a mailbox, rooms or a return block.
    fn own(&self, len: usize) -> RemoteMemory {
        let mut memory = self.memory.remote();
        memory.len = len as u64;
        memory
    }

    fn receive(&mut self) {
        let bootstrap = Arc::clone(&self.world.ranks[HOSTILE as usize]);
        while let Ok(Some((_, bytes))) = bootstrap.receive(topic()) {
            let tag = || u32::from_le_bytes(bytes[8..12].try_into().expect("a tag"));
            let block = |at: usize| {
                let record = bytes.get(at..at + RemoteMemory::LEN)?;
                Some(RemoteMemory::from_bytes(record).expect("a record"))
            };
            let shape = shape(DEPTH as u32, 0);
            match bytes[6] {
                1 => {
                    let theirs =
                        QpAddress::from_bytes(&bytes[28..28 + QpAddress::LEN]).expect("a record");
                    self.lane(bytes[7], &theirs);
                }
                3 => {
                    self.blocks.insert(tag(), block(32).expect("a block"));
                    if self.answers {
                        let rooms = (bytes[7] == 1).then(|| self.own(ROOMS));
                        let mailbox = self.own(MAILBOX);
                        self.send(&receives(tag(), &mailbox, &shape, rooms.as_ref()));
                    }
                }
                4 => {
                    self.mailboxes.insert(tag(), block(32).expect("a mailbox"));
                    // Behind a record of one path.
                    self.rooms
                        .extend(block(35 + RemoteMemory::LEN).map(|rooms| (tag(), rooms)));
                    if self.answers {
                        self.send(&sends(tag(), &self.own(BLOCK), &shape, false));
                    }
                }
                _ => {}
            }
        }
    }

    fn lane(&mut self, lane: u8, theirs: &QpAddress) {
        let config = QpConfig::default().send_blocks(64).recv_entries(4);
        let Ok(mut qp) = self.pd.create_qp(&config) else {
            return;
        };
        if self.answers && qp.connect(theirs).is_ok() {
            self.send(&connect(lane, &qp.address(), DEPTH as u32));
            self.send(&head(2, lane));
            self.lanes.insert(lane, qp);
        }
    }

    /// Writes into the victim's memory.
    fn write(&mut self, to: RemoteSpan, bytes: &[u8]) {
        let Some(qp) = self.lanes.get_mut(&0) else {
            return;
        };
        let pieces = [bytes];
        // An error is expected: the queue may be full, or in error.
        if let Ok(request) = qp.prepare(&Work::write_inline(&pieces, to).signaled()) {
            let _ = qp.post(request);
        }
    }

    /// A word of a message, more or less valid.
    fn word(input: &mut Input<'_>) -> u64 {
        let shape = input.byte();
        let number = match shape >> 6 {
            0 => input.next::<u16>(),
            n => u16::from(n - 1),
        };
        let len = match shape >> 4 & 3 {
            0 => input.number() & ((1 << 44) - 1),
            1 => EAGER as u64,
            n => u64::from(n) * 8,
        };
        u64::from(number) << 48 | u64::from(shape & 15) << 44 | len
    }

    fn control(input: &mut Input<'_>, own: &RemoteMemory) -> Vec<u8> {
        let kind = input.byte();
        let tag = u32::from(input.byte() % 16);
        match kind % 9 {
            0 => {
                let (lane, depth) = (input.byte() % 10, DEPTH as u32);
                let address = QpAddress::default()
                    .node(input.number())
                    .qpn(input.next())
                    .psn(input.next())
                    .gpu(input.number())
                    .process(input.number());
                connect(lane, &address, depth + u32::from(kind >> 7))
            }
            1 => head(2, input.byte() % 10),
            2 | 3 => {
                let mut block = *own;
                block.len = input.pick(&[MAILBOX, BLOCK, 0, usize::MAX]) as u64;
                let depth = input.pick(&[DEPTH as u32, 0, u32::MAX]);
                let shape = shape(depth, u64::from(kind >> 7));
                let eager = input.byte() & 1 == 0;
                let mut rooms = *own;
                rooms.len = input.pick(&[ROOMS, MAILBOX, 0]) as u64;
                match kind & 1 {
                    0 => sends(tag, &block, &shape, eager),
                    _ => receives(tag, &block, &shape, eager.then_some(&rooms)),
                }
            }
            4 | 5 => {
                let long = kind & 1 == 0;
                let mut bytes = head(if long { 5 } else { 6 }, 0);
                bytes.extend(tag.to_le_bytes());
                bytes.extend(input.number().to_le_bytes());
                if long {
                    bytes.extend(input.number().to_le_bytes());
                }
                bytes
            }
            6 => {
                let mut bytes = head(7, kind >> 7);
                bytes.extend(tag.to_le_bytes());
                bytes
            }
            7 if kind & 1 == 0 => input.bytes(80).to_vec(),
            7 => head(8 + input.byte() % 4, 0),
            _ => [head(input.byte() % 25, tag as u8), input.bytes(60).to_vec()].concat(),
        }
    }

    fn act(&mut self) {
        let world = self.world.clone();
        let (act, slot) = world.draw(|input| {
            let act = input.byte();
            (act & 15, usize::from(act >> 6))
        });
        let tag = u32::from(act & 3);
        let mailbox = self.mailboxes.get(&tag).copied();
        let rooms = self.rooms.get(&tag).copied();
        let block = self.blocks.get(&tag).copied();
        let span = |memory: Option<RemoteMemory>, at: usize, len: usize| {
            memory.and_then(|memory| memory.span(at as u64, len as u64).ok())
        };
        let to = match act {
            // Both words of a message, as in an eager message.
            0..4 => span(mailbox, slot * 16, 16),
            4 => span(self.mailboxes.values().next().copied(), slot * 16, 8),
            // The place of a receive, the word that it is ready, and the credit of a message.
            5..7 => span(block, slot * PLACE_ROOM, PLACE_LEN),
            7..9 => span(block, DEPTH * PLACE_ROOM + slot * 8, 8),
            9 => span(block, DEPTH * (PLACE_ROOM + 8) + slot * 8, 8),
            10 => span(rooms, slot * EAGER, 16),
            11 => {
                let control = world.draw(|input| Hostile::control(input, &self.own(0)));
                return self.send(&control);
            }
            12 => {
                self.answers = world.draw(|input| input.byte() & 7 != 0);
                return;
            }
            13 => {
                let drop = world.draw(|input| input.byte() & 7 == 0);
                if drop {
                    self.lanes.pop_first();
                }
                return;
            }
            _ => return world.pass(Duration::from_micros(50 << slot)),
        };
        let Some(to) = to else { return };
        let bytes = world.draw(|input| match act {
            0..5 | 7..10 => {
                let word = Hostile::word(input).to_le_bytes();
                [word, word].concat()
            }
            5 => {
                let own = self.memory.remote();
                let mut place = [0; PLACE_LEN];
                place[..8].copy_from_slice(&own.addr.to_le_bytes());
                place[8..12].copy_from_slice(&own.rkeys[0].unwrap_or(0).to_le_bytes());
                place[24] = 1;
                place.to_vec()
            }
            6 => input.next::<[u8; PLACE_LEN]>().to_vec(),
            _ => input.next::<[u8; 16]>().to_vec(),
        });
        let len = match act {
            4 | 7..10 => 8,
            5 | 6 => PLACE_LEN,
            _ => 16,
        };
        self.write(to, &bytes[..len]);
    }

    fn run(mut self) {
        for i in 0.. {
            if self.world.over.get() {
                break;
            }
            self.receive();
            if i & 1 == 0 && i < 2 * HOSTILE_ACTS && self.world.begun.get() && !self.world.done() {
                self.act();
            } else {
                self.world
                    .pass(Duration::from_micros(20 + 20 * (i as u64 / 64)));
            }
        }
    }
}

/// Whatever its peer does, a context completes every call in time, serves other peers, and writes
/// only to the given memory.
pub fn run(data: &[u8]) {
    let mut sim = Sim::new(SimConfig {
        // Longer steps, so that a time limit expires after fewer of them.
        step_ns: 200..=2000,
        ..SimConfig::seed(1)
    });
    let world = World {
        bytes: data.into(),
        at: Rc::new(Cell::new(0)),
        begun: Rc::new(Cell::new(false)),
        over: Rc::new(Cell::new(false)),
        host: sim.host(),
        hub: Hub::new(HubConfig::default()),
        ranks: Local::ranks_of(1, 3).into(),
    };
    let (a, b) = (world.clone(), world.clone());
    sim.rank("victim", move || Victim::new(a).run());
    sim.rank("hostile", move || Hostile::new(b).run());
    sim.rank("honest", move || honest(&world));
    if let Err(e) = sim.run() {
        panic!("{e}");
    }
}
