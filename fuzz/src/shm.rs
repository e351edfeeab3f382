//! The fabric between processes: two honest NICs exchange messages while hostile peers connect,
//! accept and write into rings in any way.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use gds_step::{Bell, Time};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vmlx5::fabric::shm::{PROTOCOL_VERSION, ShmConfig, ShmFabric};
use vmlx5::fabric::{Budget, Fabric, LinkState, NodeId, PeerId};
use vmlx5::fuzzing::{Greeting, MIN_RING, Received, receive};
use vmlx5::{FrameError, FrameHeader, Kind, MAX_PAYLOAD};
use zerocopy::IntoBytes;

use crate::greeting::send;
use crate::input::Input;
use crate::ring::{Alias, spoil};

/// Most operations of one run, and most hostile peers in it.
const ACTS: usize = 96;
const STRANGERS: usize = 12;
/// Most links of an honest end.
const LINKS: usize = 6;

struct Honest {
    fabric: ShmFabric,
    got: Vec<u32>,
}

/// A peer that called, or that answered a call.
struct Stranger {
    socket: OwnedFd,
    /// A ring that the honest end reads or, if it called, writes.
    ring: Option<Alias>,
    /// The position of its writes.
    fill: u64,
    /// The file that it passed as a ring.
    file: Option<OwnedFd>,
}

/// The files that may arrive as descriptors.
struct Things {
    bell: Bell,
    small: OwnedFd,
    null: OwnedFd,
}

struct World {
    a: Honest,
    b: Honest,
    now: u64,
    strangers: Vec<Stranger>,
    /// The socket that the honest end calls, and where a hostile peer answers.
    doors: [OwnedFd; 2],
    things: Things,
}

fn open_descriptors() -> usize {
    let list = std::fs::read_dir("/proc/self/fd").expect("/proc");
    list.count()
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket")
}

fn address(node: NodeId) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("vmlx5-fabric-{node}").as_bytes()).expect("short")
}

/// The node number of a hostile peer, unique in this process.
fn stranger(i: u64) -> NodeId {
    NodeId(0x5eed << 48 | u64::from(std::process::id()) << 8 | i)
}

/// A memory file with this number of bytes.
fn file(len: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("fuzz", flags).expect("a memory file");
    rustix::fs::ftruncate(&file, len as u64).expect("truncated");
    rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
    file
}

/// A file that is accepted as a ring of that size or, if it is not sealed, is refused.
fn ring_file(size: usize, sealed: bool) -> OwnedFd {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    file(size + 4096, if sealed { all } else { SealFlags::GROW })
}

impl Honest {
    fn new() -> Honest {
        let config = ShmConfig {
            ring_bytes: MIN_RING,
            max_links: LINKS,
            ..ShmConfig::default()
        };
        let bell = Arc::new(Bell::new().expect("a bell"));
        Honest {
            fabric: ShmFabric::open(config, bell).expect("a fabric"),
            got: Vec::new(),
        }
    }

    /// Steps the links at `now`, and receives the available messages.
    fn step(&mut self, now: u64, refuse: bool) {
        self.fabric.step(Time::from_nanos(now));
        let budget = Budget {
            frames: 64,
            bytes: 1 << 20,
        };
        let got = &mut self.got;
        let taken = self.fabric.receive(budget, &mut |_, header, payload| {
            assert!(payload.len() <= MAX_PAYLOAD);
            let sum: u64 = payload.iter().copied().map(u64::from).sum();
            std::hint::black_box(sum);
            got.push(header.psn.get());
            match refuse {
                true => Err(FrameError::Kind(header.kind)),
                false => Ok(()),
            }
        });
        assert!(taken <= budget.frames);
        self.fabric.flush();
        let lost = std::iter::from_fn(|| self.fabric.lost()).count();
        let refused = std::iter::from_fn(|| self.fabric.refusal()).count();
        assert!(lost <= ACTS + 2 * STRANGERS && refused <= 32);
        assert_eq!(self.fabric.peer_node(PeerId(LINKS as u32)), None);
    }

    fn send(&mut self, to: PeerId, seq: u32, len: usize) -> bool {
        let header = FrameHeader {
            len: (len as u32).into(),
            kind: Kind::Send as u8,
            psn: seq.into(),
            ..FrameHeader::default()
        };
        let sent = self.fabric.send(to, &header, &mut |room| {
            room.fill(seq as u8);
            true
        });
        sent.is_ok()
    }
}

impl World {
    fn new() -> World {
        let door = |i| {
            let door = socket();
            rustix::net::bind(&door, &address(stranger(i))).expect("bound");
            rustix::net::listen(&door, 8).expect("listening");
            door
        };
        let mut world = World {
            a: Honest::new(),
            b: Honest::new(),
            now: 0,
            strangers: Vec::new(),
            doors: [door(0), door(1)],
            things: Things {
                bell: Bell::new().expect("a bell"),
                small: file(64, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
                null: std::fs::File::open("/dev/null").expect("/dev/null").into(),
            },
        };
        world.meet();
        world
    }

    /// The honest ends connect after any events, and exchange messages.
    fn meet(&mut self) {
        // By then, silent callers are disconnected.
        self.now += 3_000_000_000;
        for mark in 0xf0_0000.. {
            assert!(mark < 0xf0_0040, "the honest ends cannot connect any more");
            for _ in 0..4 {
                self.now += 2_000_000;
                self.a.step(self.now, false);
                self.b.step(self.now, false);
            }
            let to_b = self.a.fabric.connect(self.b.fabric.node());
            let to_a = self.b.fabric.connect(self.a.fabric.node());
            let (Ok(to_b), Ok(to_a)) = (to_b, to_a) else {
                panic!("no room for an existing link");
            };
            for honest in [&mut self.a, &mut self.b] {
                honest.got.clear();
            }
            let sent = self.a.send(to_b, mark, 100) && self.b.send(to_a, mark, 0);
            for _ in 0..4 {
                self.now += 2_000_000;
                self.a.step(self.now, false);
                self.b.step(self.now, false);
            }
            let up = self.a.fabric.state(to_b) == LinkState::Up
                && self.b.fabric.state(to_a) == LinkState::Up;
            if sent && up && self.a.got.contains(&mark) && self.b.got.contains(&mark) {
                return;
            }
        }
    }

    fn call(&mut self) {
        let socket = socket();
        let to = address(self.a.fabric.node());
        if self.strangers.len() < STRANGERS && rustix::net::connect(&socket, &to).is_ok() {
            self.strangers.push(Stranger {
                socket,
                ring: None,
                fill: 0,
                file: None,
            });
        }
    }

    /// A hostile peer sends a greeting, valid or not.
    fn greet(&mut self, i: usize, input: &mut Input<'_>) {
        let (a, b) = (self.a.fabric.node(), self.b.fabric.node());
        let shape = input.byte();
        let version = match shape & 15 {
            0 => input.next(),
            1 => PROTOCOL_VERSION + 1,
            _ => PROTOCOL_VERSION,
        };
        let from = match input.byte() % 16 {
            0 => a,
            // The caller pretends to be another node.
            1 => b,
            n => stranger(u64::from(n) % 8),
        };
        let to = if input.byte() & 15 == 0 { b } else { a };
        let size = match input.byte() & 15 {
            0 => input.next::<u32>() as usize,
            1 => 2 * MIN_RING,
            2 => MIN_RING + 64 * usize::from(input.byte()),
            3 => MIN_RING / 2,
            _ => MIN_RING,
        };
        // Most files have the right length.
        let held = match input.byte() & 15 {
            0 => MIN_RING,
            1 => 0,
            _ => size.min(4 * MIN_RING),
        };
        let mut bytes = Greeting::new(version, from, to, size).as_bytes().to_vec();
        match input.byte() & 31 {
            0 => bytes.truncate(usize::from(input.byte())),
            1 => bytes.extend(input.bytes(40)),
            2 => {
                let at = usize::from(input.byte()) % bytes.len();
                bytes[at] ^= input.byte();
            }
            _ => {}
        }
        // A ring and a bell, or a bell alone, like an honest peer; or any descriptors.
        let ring = ring_file(held, input.byte() & 15 != 0);
        let things = &self.things;
        let bell = things.bell.fd();
        let (ring_fd, bell) = (ring.as_fd(), bell.as_fd());
        let other: [BorrowedFd<'_>; 5] = [
            ring_fd,
            bell,
            things.small.as_fd(),
            things.null.as_fd(),
            self.strangers[i].socket.as_fd(),
        ];
        let fds = match shape >> 4 {
            0..8 => vec![ring_fd, bell],
            8..12 => vec![bell],
            12 => Vec::new(),
            13 => vec![bell, ring_fd],
            _ => (0..input.byte() % 6).map(|_| input.pick(&other)).collect(),
        };
        send(&self.strangers[i].socket, &bytes, &fds);
        let both = fds.len() == 2;
        let stranger = &mut self.strangers[i];
        if stranger.ring.is_none() && both {
            stranger.ring = Some(Alias::map(&ring, held));
            stranger.file = Some(ring);
        }
    }

    /// A hostile peer accepts a call of the honest end, and gets the ring that it passed.
    fn open_door(&mut self, i: usize) {
        if self.strangers.len() >= STRANGERS {
            return;
        }
        let Ok(socket) = rustix::net::accept_with(&self.doors[i], SocketFlags::CLOEXEC) else {
            return;
        };
        let ring = match receive(socket.as_fd()) {
            Ok(Received::Greeting(_, fds)) => fds.first().map(|ring| Alias::map(ring, MIN_RING)),
            _ => None,
        };
        self.strangers.push(Stranger {
            socket,
            ring,
            fill: 0,
            file: None,
        });
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let act = input.byte();
        let pick = usize::from(act >> 4);
        let some = |n: usize| (n > 0).then(|| pick % n);
        match act & 15 {
            0 => self.call(),
            1 | 2 => {
                if some(self.strangers.len()).is_none() || act & 15 == 1 {
                    self.call();
                }
                if let Some(i) = self.strangers.len().checked_sub(1) {
                    let i = if act & 15 == 1 { i } else { pick % (i + 1) };
                    self.greet(i, input);
                }
            }
            3 if input.byte() & 7 == 0 => {
                if let Some(i) = some(self.strangers.len()) {
                    let stranger = &mut self.strangers[i];
                    if let Some(file) = &stranger.file
                        && rustix::fs::ftruncate(file, 0).is_ok()
                    {
                        stranger.ring = None;
                    }
                }
            }
            3..=6 => {
                if let Some(i) = some(self.strangers.len()) {
                    let Stranger { ring, fill, .. } = &mut self.strangers[i];
                    if let Some(ring) = ring {
                        let near = *fill;
                        spoil(ring, input, near, fill);
                    }
                }
            }
            7 => {
                if let Some(i) = some(self.strangers.len())
                    && let Some(ring) = &self.strangers[i].ring
                {
                    ring.store_head(input.number());
                }
            }
            8 => {
                if let Some(i) = some(self.strangers.len()) {
                    self.strangers.swap_remove(i);
                }
            }
            9 => {
                let node = stranger(u64::from(act >> 4) % 8);
                // There may be no room for another link.
                let _ = self.a.fabric.connect(node);
            }
            10 => self.open_door(pick % 2),
            11 => {
                let seq = 0x100 + u32::from(input.byte());
                let len = input.pick(&[0, 1, 1000, MAX_PAYLOAD]);
                self.a.send(PeerId(pick as u32 % 8), seq, len);
            }
            12 => self.b.step(self.now, false),
            _ => {
                self.now += input.pick(&[0, 60_000, 2_000_000, 2_500_000_000]);
                self.a.step(self.now, input.byte() & 15 == 0);
            }
        }
    }
}

/// The honest ends exchange messages in spite of any hostile peers, and at the end no resource is
/// left.
pub fn run(data: &[u8]) {
    let before = open_descriptors();
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..ACTS {
        if input.done() {
            break;
        }
        world.act(&mut input);
    }
    world.meet();
    drop(world);
    assert_eq!(open_descriptors(), before, "descriptors are left over");
}
