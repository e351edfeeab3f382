//! Exchanges with neighbours, by streams and by the CPU: rings of several ranks, a rank as its own
//! neighbour and as several neighbours, pieces of every shape, double buffering.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Context, Kind, Memory, NULL_RANK, Neighbour, Neighbourhood, PathChoice, Strided};
use sim::{LIMIT, Rank, play};
use vmlx5::fabric::faults::Faults;

/// Bytes of every message, and room for its pieces.
const LEN: usize = 240;
const ROOM: usize = 2048;
/// Number of shapes.
const SHAPES: usize = 5;
const STEPS: usize = 10;

const LEFTWARDS: u32 = 3;
const RIGHTWARDS: u32 = 4;
const BOTH: u32 = u32::MAX;

/// The pieces of a shape: the first offset, the length, the distance and the number of each.
fn shape(shape: usize) -> Vec<[usize; 4]> {
    match shape % SHAPES {
        0 => vec![[5, LEN, LEN, 1]],
        // As many as the NIC gathers, and more.
        1 => vec![[0, 8, 24, 30]],
        2 => vec![[3, 4, 10, 60]],
        3 => vec![[16, 100, 100, 1], [200, 10, 20, 14]],
        _ => vec![[8, 0, 0, 3], [64, 1, 3, 40], [400, 25, 100, 8]],
    }
}

/// The offsets of the bytes of a shape, in the order of the message.
fn offsets(of: usize) -> impl Iterator<Item = usize> {
    shape(of)
        .into_iter()
        .flat_map(|[first, len, stride, count]| {
            (0..count).flat_map(move |i| (0..len).map(move |j| first + i * stride + j))
        })
}

fn pieces(memory: &Memory, at: usize, of: usize) -> Vec<Strided> {
    let piece = |[first, len, stride, count]: [usize; 4]| match count {
        1 => Strided::from(&memory.slice(at + first, len).unwrap()),
        _ => memory.strided(at + first, len, stride, count).unwrap(),
    };
    shape(of).into_iter().map(piece).collect()
}

/// Byte `i` of what `rank` sends under `tag` in a step.
fn byte(rank: u32, tag: u32, step: usize, i: usize) -> u8 {
    let seed = (u64::from(rank) << 40 | u64::from(tag) << 8 | step as u64) ^ (i as u64) << 20;
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The neighbours of a rank: two in a ring, itself, and none.
fn ring(rank: &Rank) -> Vec<(u32, u32, u32)> {
    let (right, left) = rank.neighbours();
    vec![
        (left, LEFTWARDS, RIGHTWARDS),
        (NULL_RANK, LEFTWARDS, RIGHTWARDS),
        (right, RIGHTWARDS, LEFTWARDS),
        (rank.me, BOTH, BOTH),
    ]
}

/// A rank's exchange, and the memory of it: what is sent, then what is received.
struct Part {
    me: u32,
    ctx: Context,
    halo: Neighbourhood,
    neighbours: Vec<(u32, u32, u32)>,
    shapes: [usize; 2],
    field: Memory,
}

impl Part {
    fn new(rank: &Rank, ctx: &Context, kind: MemoryKind, double: bool, shapes: [usize; 2]) -> Part {
        let neighbours = ring(rank);
        let field = ctx.alloc(kind, 2 * neighbours.len() * ROOM).unwrap();
        let named = neighbours
            .iter()
            .enumerate()
            .map(|(i, (rank, send, receive))| {
                let mut one = Neighbour::new(*rank, *send, *receive);
                for piece in pieces(&field, i * ROOM, shapes[0] + i) {
                    one = one.send(piece);
                }
                for piece in pieces(&field, (neighbours.len() + i) * ROOM, shapes[1] + i) {
                    one = one.receive(&piece);
                }
                assert_eq!((one.sends(), one.receives()), (LEN as u64, LEN as u64));
                one
            });
        let halo = ctx
            .neighbourhood()
            .neighbours(named)
            .double_buffered(double);
        let halo = halo.build().unwrap();
        Part {
            me: rank.me,
            ctx: ctx.clone(),
            halo,
            neighbours,
            shapes,
            field,
        }
    }

    fn half(&self) -> usize {
        self.neighbours.len() * ROOM
    }

    /// What is sent in a step, as the first half of the memory has it.
    fn sent(&self, step: usize) -> Vec<u8> {
        let mut image = vec![0xee; self.half()];
        for (i, (_, send, _)) in self.neighbours.iter().enumerate() {
            for (j, at) in offsets(self.shapes[0] + i).enumerate() {
                image[i * ROOM + at] = byte(self.me, *send, step, j);
            }
        }
        image
    }

    /// What is received in a step, as the second half of the memory has it.
    fn received(&self, step: usize) -> Vec<u8> {
        let mut image = vec![0; self.half()];
        for (i, (rank, _, receive)) in self.neighbours.iter().enumerate() {
            if *rank == NULL_RANK {
                continue;
            }
            for (j, at) in offsets(self.shapes[1] + i).enumerate() {
                image[i * ROOM + at] = byte(*rank, *receive, step, j);
            }
        }
        image
    }

    /// Executes all steps on a stream without a wait of the CPU. `step` enqueues one.
    fn stepped(&self, stream: &Stream, from: usize, steps: usize, step: impl Fn(usize)) {
        let half = self.half();
        let alloc = || self.ctx.alloc(MemoryKind::Device, half * steps).unwrap();
        let (script, log) = (alloc(), alloc());
        for i in 0..steps {
            script.write(i * half, &self.sent(from + i)).unwrap();
        }
        let span = |memory: &Memory, at: usize| memory.region().span(at, half).unwrap();
        for i in 0..steps {
            let (to, from) = (span(&self.field, 0), span(&script, i * half));
            stream.copy(&to, &from).unwrap();
            step(i);
            let (to, from) = (span(&log, i * half), span(&self.field, half));
            stream.copy(&to, &from).unwrap();
        }
        self.ctx.synchronize(stream, LIMIT).unwrap();
        let mut got = vec![0; half];
        for i in 0..steps {
            log.read(i * half, &mut got).unwrap();
            assert!(got == self.received(from + i), "step {}", from + i);
        }
    }

    /// Executes all steps by calls on a stream.
    fn on_stream(&self, stream: &Stream, from: usize, steps: usize, double: bool) {
        let halo = &self.halo;
        if double {
            halo.ready_on(stream).unwrap();
        }
        self.stepped(stream, from, steps, |step| {
            if !double || step + 1 < steps {
                halo.ready_on(stream).unwrap();
            }
            halo.send_on(stream).unwrap();
            halo.wait_on(stream).unwrap();
        });
    }

    /// Executes all steps by one call each.
    fn whole_on_stream(&self, stream: &Stream, from: usize, steps: usize) {
        let whole = |_| self.halo.exchange_on(stream).unwrap();
        self.stepped(stream, from, steps, whole);
    }

    /// Captures a step into a graph, by one call or by three, and launches it for all steps.
    fn replayed(&self, stream: &Stream, from: usize, steps: usize, whole: bool) {
        stream.begin_capture().unwrap();
        let e = self.halo.send_on(stream).unwrap_err();
        assert_eq!(e.kind(), Kind::NoSuchRequest, "{e}");
        if whole {
            self.halo.exchange_on(stream).unwrap();
        } else {
            self.halo.ready_on(stream).unwrap();
            assert_eq!(self.halo.ready_on(stream).unwrap_err().kind(), Kind::Busy);
            self.halo.send_on(stream).unwrap();
            self.halo.wait_on(stream).unwrap();
        }
        let graph = stream.end_capture().unwrap();
        self.stepped(stream, from, steps, |_| graph.launch(stream).unwrap());
    }

    /// Executes steps by the CPU.
    fn by_cpu(&self, from: usize, steps: usize, double: bool) {
        let half = self.half();
        if double {
            self.halo.ready().unwrap();
        }
        for step in from..from + steps {
            self.field.write(0, &self.sent(step)).unwrap();
            if !double || step + 1 < from + steps {
                self.halo.ready().unwrap();
            }
            self.halo.send(LIMIT).unwrap();
            self.halo.wait(LIMIT).unwrap();
            let mut got = vec![0; half];
            self.field.read(half, &mut got).unwrap();
            assert!(got == self.received(step), "step {step}");
        }
    }
}

fn open(rank: &Rank, ooo: f64) -> Context {
    let faults = Faults {
        seed: rank.me.into(),
        ooo,
        ..Faults::default()
    };
    rank.open_at(
        &rank.place_with(SoftOptions::default(), true, faults),
        |b| b,
    )
}

#[test]
fn every_step_has_the_data_of_all_neighbours() {
    for ranks in [1, 2, 3, 8] {
        for (i, (kind, double)) in [
            (MemoryKind::Device, false),
            (MemoryKind::Device, true),
            (MemoryKind::Pinned, false),
            (MemoryKind::Pinned, true),
        ]
        .into_iter()
        .enumerate()
        {
            for shapes in 0..if ranks == 8 { 1 } else { 3 } {
                let ooo = if (i + shapes) % 2 == 0 { 0.0 } else { 0.7 };
                let shapes = [shapes + i, 2 * shapes + i];
                println!("{ranks} {kind:?} {double} {shapes:?} {ooo}");
                play(i as u64, ranks, move |rank| {
                    let ctx = open(rank, ooo);
                    let part = Part::new(rank, &ctx, kind, double, shapes);
                    assert_eq!(part.halo.step(), 0);
                    let stream = ctx.gpu().stream().unwrap();
                    part.on_stream(&stream, 0, STEPS, double);
                    part.by_cpu(STEPS, 4, double);
                    // On another stream, and so on another lane.
                    let other = ctx.gpu().stream().unwrap();
                    part.on_stream(&other, STEPS + 4, 3, double);
                    part.whole_on_stream(&other, STEPS + 7, 3);
                    assert_eq!(part.halo.step(), STEPS as u64 + 10);
                    drop(part);
                    ctx.close(LIMIT).unwrap();
                    rank.leave();
                });
            }
        }
    }
}

/// Steps in graphs have tags and numbers of their own: they mix with steps outside, and with captured
/// messages under the same tags.
#[test]
fn every_replay_of_a_step_has_the_data_of_all_neighbours() {
    for (seed, ranks) in [1, 2, 3, 5].into_iter().enumerate() {
        for shapes in 0..SHAPES {
            let (double, shapes) = (shapes % 2 == 1, [shapes, shapes + seed]);
            let kind = [MemoryKind::Device, MemoryKind::Pinned][seed % 2];
            play(seed as u64, ranks, move |rank| {
                let ctx = rank.open(|b| b.path(PathChoice::Ipc).start(u64::from(u32::MAX) - 1));
                let part = Part::new(rank, &ctx, kind, double, shapes);
                let stream = ctx.gpu().stream().unwrap();
                part.replayed(&stream, 0, 4, false);
                part.on_stream(&stream, 4, 3, double);
                let (right, left) = rank.neighbours();
                if right != rank.me {
                    let memory = ctx.alloc(kind, 16).unwrap();
                    let (out, into) = (memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap());
                    let other = ctx.gpu().stream().unwrap();
                    other.begin_capture().unwrap();
                    ctx.sendrecv_on(&other, (right, LEFTWARDS, &out), (left, LEFTWARDS, &into))
                        .unwrap();
                    let graph = other.end_capture().unwrap();
                    graph.launch(&other).unwrap();
                    part.replayed(&stream, 7, 4, true);
                    graph.launch(&other).unwrap();
                    ctx.synchronize(&other, LIMIT).unwrap();
                }
                part.replayed(&stream, 11, 3, true);
                assert_eq!(part.halo.step(), 3);
                drop(part);
                ctx.close(LIMIT).unwrap();
                rank.barrier();
                rank.leave();
            });
        }
    }
}

/// Data that has no room in lines goes to the memory of the neighbour, in one piece or packed.
#[test]
fn replays_of_a_step_move_long_data() {
    const LONG: usize = 20_000;
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.path(PathChoice::Ipc));
        let (me, peer) = (rank.me, rank.peer());
        let memory = ctx.alloc(MemoryKind::Device, 6 * LONG).unwrap();
        let whole = |at: usize| memory.slice(at * LONG, LONG).unwrap();
        let packed = |at: usize| memory.strided(at * LONG, 10, 20, LONG / 10).unwrap();
        let one = Neighbour::new(peer, me, peer)
            .send(&whole(0))
            .receive(&whole(1));
        let two = Neighbour::new(peer, 2 + me, 2 + peer)
            .send(packed(2))
            .receive(packed(4));
        let halo = ctx.neighbourhood().neighbours([one, two]).build().unwrap();
        let stream = ctx.gpu().stream().unwrap();
        stream.begin_capture().unwrap();
        halo.ready_on(&stream).unwrap();
        halo.send_on(&stream).unwrap();
        halo.wait_on(&stream).unwrap();
        let graph = stream.end_capture().unwrap();
        for step in 0..4 {
            let bytes = |rank: u32, len: usize| -> Vec<u8> {
                (0..len).map(|i| byte(rank, 9, step, i)).collect()
            };
            memory.write(0, &bytes(me, LONG)).unwrap();
            memory.write(2 * LONG, &bytes(me, 2 * LONG)).unwrap();
            graph.launch(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let mut got = vec![0; 2 * LONG];
            memory.read(LONG, &mut got[..LONG]).unwrap();
            assert!(got[..LONG] == bytes(peer, LONG), "step {step}");
            memory.read(4 * LONG, &mut got).unwrap();
            let sent = bytes(peer, 2 * LONG);
            let wrong = (0..2 * LONG).filter(|i| i % 20 < 10 && got[*i] != sent[*i]);
            assert_eq!(wrong.count(), 0, "step {step}");
        }
        rank.barrier();
    });
}

/// The other rank of two is many neighbours, as in a periodic box. All share one queue.
#[test]
fn rank_may_be_many_neighbours() {
    const MANY: u32 = 18;
    for (seed, ooo) in [(1, 0.0), (2, 0.7)] {
        play(seed, 2, move |rank| {
            let ctx = open(rank, ooo);
            let (me, peer) = (rank.me, rank.peer());
            let field = ctx
                .alloc(MemoryKind::Device, 2 * MANY as usize * ROOM)
                .unwrap();
            let at = |i: u32| i as usize * ROOM;
            let column = |at: usize| field.strided(at, 8, 24, 20).unwrap();
            let named = (0..MANY).map(|i| {
                let one = Neighbour::new(peer, 2 * i + me, 2 * i + peer);
                one.send(column(at(i))).receive(column(at(MANY + i)))
            });
            let halo = ctx.neighbourhood().neighbours(named).build().unwrap();
            let stream = ctx.gpu().stream().unwrap();
            for step in 0..8 {
                for i in 0..MANY {
                    let bytes = [byte(me, i, step, 0); ROOM];
                    field.write(at(i), &bytes).unwrap();
                }
                if step < 4 {
                    halo.ready_on(&stream).unwrap();
                    halo.send_on(&stream).unwrap();
                    halo.wait_on(&stream).unwrap();
                    ctx.synchronize(&stream, LIMIT).unwrap();
                } else {
                    halo.ready().unwrap();
                    halo.send(LIMIT).unwrap();
                    halo.wait(LIMIT).unwrap();
                }
                for i in 0..MANY {
                    let mut got = [0; 24 * 20];
                    field.read(at(MANY + i), &mut got).unwrap();
                    let expected = byte(peer, i, step, 0);
                    for (j, got) in got.iter().enumerate() {
                        let expected = if j % 24 < 8 { expected } else { 0 };
                        assert_eq!(*got, expected, "step {step}, neighbour {i}");
                    }
                }
            }
            drop(halo);
            ctx.close(LIMIT).unwrap();
            rank.leave();
        });
    }
}
