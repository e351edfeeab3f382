//! Random neighbourhoods: ranks with any number of edges between them, also to themselves and
//! several to one rank, with pieces of any shape at both ends, in any kind of memory, with and
//! without double buffering. Streams run ahead of the CPU and make some steps by one call, and some steps are by the
//! CPU. What has arrived in each step is compared with a serial run of the program.

use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Context, Memory, NULL_RANK, Neighbour, Neighbourhood};

use super::job::{Job, Settings, Wire, process};
use crate::sim::world::{LIMIT, Pause, Rank, play};

/// Length in bytes of the memory of one end of an edge, in each direction.
const ROOM: usize = 1600;

/// Pieces of one length at one distance: the first offset, length, distance, number.
type Piece = [usize; 4];

/// One end of an edge.
struct End {
    rank: usize,
    send: u32,
    receive: u32,
    sent: Vec<Piece>,
    received: Vec<Piece>,
}

/// Two ends, each with the index of the other.
type Edge = [End; 2];

/// The facts of a program that all ranks know.
struct Program {
    seed: u64,
    ranks: usize,
    steps: usize,
    edges: Vec<Edge>,
    /// By rank.
    kinds: Vec<MemoryKind>,
    double: Vec<bool>,
}

/// Pieces of `len` bytes together, in a room.
fn pieces(len: usize, rng: &mut Rng) -> Vec<Piece> {
    if len == 0 {
        return Vec::new();
    }
    let (mut at, mut left) = (rng.usize(0..20), len);
    let mut all = Vec::new();
    while left > 0 {
        let (len, count) = match rng.u8(0..4) {
            0 => (left, 1),
            1 => (left.div_ceil(2), 1),
            2 => (1, left),
            _ => {
                let block = rng.usize(1..=left);
                (block, left / block)
            }
        };
        // The rest of the memory is for contiguous bytes.
        let free = ROOM - at - left;
        let gap = match count {
            1 => 0,
            count => rng.usize(0..=3.min(free / count)),
        };
        all.push([at, len, len + gap, count]);
        at += (len + gap) * count;
        left -= len * count;
    }
    all
}

impl Program {
    fn draw(seed: u64, rng: &mut Rng) -> Program {
        let ranks = rng.usize(1..=5);
        let mut edge = |at: usize| {
            let lens = [(); 2].map(|()| match rng.u8(0..5) {
                0 => 0,
                1 => rng.usize(0..=16),
                _ => rng.usize(1..=ROOM / 2),
            });
            let [one, other] = [(); 2].map(|()| rng.usize(0..ranks));
            let tag = 2 * at as u32;
            let mut end = |rank, send, [sent, received]: [usize; 2]| End {
                rank,
                send: tag + send,
                receive: tag + 1 - send,
                sent: pieces(sent, rng),
                received: pieces(received, rng),
            };
            [end(one, 0, lens), end(other, 1, [lens[1], lens[0]])]
        };
        let mut program = Program {
            seed,
            ranks,
            steps: 8,
            edges: Vec::new(),
            kinds: Vec::new(),
            double: Vec::new(),
        };
        program.edges = (0..6).map(&mut edge).collect();
        program.kinds = (0..ranks)
            .map(|_| [MemoryKind::Device, MemoryKind::Pinned][rng.usize(0..2)])
            .collect();
        program.double = (0..ranks).map(|_| rng.bool()).collect();
        program
    }

    /// The ends of a rank, and those at the other side.
    fn ends(&self, rank: usize) -> Vec<[&End; 2]> {
        let both = self.edges.iter().flat_map(|[a, b]| [[a, b], [b, a]]);
        both.filter(|[mine, _]| mine.rank == rank).collect()
    }

    /// Writes what `end` sends in a step into the memory of these pieces.
    fn write(&self, end: &End, step: usize, pieces: &[Piece], room: &mut [u8]) {
        let key = self.seed ^ (u64::from(end.send) << 32) ^ (step as u64 + 1);
        let mut rng = Rng::with_seed(key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for [first, len, stride, count] in pieces {
            for i in 0..*count {
                let block = &mut room[first + i * stride..][..*len];
                // Byte by byte, so that the pieces do not matter.
                block.iter_mut().for_each(|byte| *byte = rng.u8(..));
            }
        }
    }
}

/// Runs the program of `seed` under the schedule of `seed`.
///
/// # Errors
/// The first deviation from the program, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings::draw(&mut rng);
    let program = Rc::new(Program::draw(seed, &mut rng));
    let ranks = program.ranks;
    let pauses = Pause::draw_some(&mut rng, ranks);
    let job = Job::new(seed, ranks as u32, settings).over(wire);
    play(seed, ranks, move |rank| {
        let member = job.join(&rank);
        rank.pauses(&pauses, &process(&rank, &member.devices));
        let part = Part::new(&program, &rank, &member.ctx);
        part.play();
        drop(part);
        rank.barrier();
        member.leave();
    })
}

/// One rank's part in a program.
struct Part<'a> {
    program: &'a Program,
    me: usize,
    ctx: &'a Context,
    halo: Neighbourhood,
    /// What is sent by all ends, then what is received.
    field: Memory,
    /// What is sent in all steps, and what was received in all steps.
    script: Memory,
    log: Memory,
    stream: Stream,
    half: usize,
}

impl<'a> Part<'a> {
    fn new(program: &'a Program, rank: &Rank, ctx: &'a Context) -> Part<'a> {
        let me = rank.me;
        let ends = program.ends(me);
        let half = (ends.len() * ROOM).max(8);
        let field = ctx.alloc(program.kinds[me], 2 * half).expect("memory");
        let strided = |at: usize, [first, len, stride, count]: Piece| {
            let made = field.strided(at + first, len, stride, count);
            made.expect("inside the memory")
        };
        let none = Neighbour::new(NULL_RANK, 0, 0);
        let named = ends.iter().enumerate().map(|(i, [mine, theirs])| {
            let mut one = Neighbour::new(theirs.rank as u32, mine.send, mine.receive);
            for piece in &mine.sent {
                one = one.send(strided(i * ROOM, *piece));
            }
            for piece in &mine.received {
                one = one.receive(strided(half + i * ROOM, *piece));
            }
            one
        });
        let named: Vec<Neighbour> = named.chain([none]).collect();
        let alloc = || {
            ctx.alloc(MemoryKind::Pinned, half * program.steps)
                .expect("memory")
        };
        let halo = ctx.neighbourhood().neighbours(named);
        let halo = halo.double_buffered(program.double[me]);
        Part {
            program,
            me,
            ctx,
            halo: halo.build().expect("a neighbourhood"),
            script: alloc(),
            log: alloc(),
            stream: ctx.gpu().stream().expect("a stream"),
            field,
            half,
        }
    }

    fn play(&self) {
        let Program {
            seed,
            steps,
            ref double,
            ..
        } = *self.program;
        let double = double[self.me];
        let mut rng = Rng::with_seed(seed ^ (self.me as u64) << 8);
        for step in 0..steps {
            let mut image = vec![0; self.half];
            for (i, [mine, _]) in self.program.ends(self.me).iter().enumerate() {
                let room = &mut image[i * ROOM..][..ROOM];
                self.program.write(mine, step, &mine.sent, room);
            }
            self.script
                .write(step * self.half, &image)
                .expect("written");
        }
        let mut ready = 0;
        for step in 0..steps {
            let by_stream = rng.u8(0..4) > 0;
            if !by_stream || rng.u8(0..6) == 0 {
                self.synchronize();
            }
            let ahead = double && rng.bool() && step + 1 < steps;
            // One call executes the calls that are missing.
            let whole = by_stream && rng.bool();
            let left_out = whole && !ahead && rng.u8(0..4) > 0;
            let due = step + 1 + usize::from(ahead) - usize::from(left_out);
            while ready < due {
                self.send_ready(by_stream);
                ready += 1;
            }
            ready = ready.max(step + 1);
            match by_stream {
                true => self.on_stream(step, whole),
                false => self.by_cpu(step),
            }
        }
        self.synchronize();
        let mut got = vec![0; self.half];
        let mut expected = vec![0; self.half];
        for step in 0..steps {
            for (i, [mine, theirs]) in self.program.ends(self.me).iter().enumerate() {
                let room = &mut expected[i * ROOM..][..ROOM];
                self.program.write(theirs, step, &mine.received, room);
            }
            self.log.read(step * self.half, &mut got).expect("read");
            let wrong = (0..self.half).find(|at| got[*at] != expected[*at]);
            assert_eq!(wrong.map(|at| (at / ROOM, at % ROOM)), None, "step {step}");
        }
    }

    fn send_ready(&self, by_stream: bool) {
        let sent = match by_stream {
            true => self.halo.ready_on(&self.stream),
            false => self.halo.ready(),
        };
        sent.expect("ready");
    }

    fn on_stream(&self, step: usize, whole: bool) {
        let (stream, half) = (&self.stream, self.half);
        let span = |memory: &Memory, at: usize| memory.region().span(at, half).expect("a span");
        let copy = |to, from| stream.copy(&to, &from).expect("enqueued");
        copy(span(&self.field, 0), span(&self.script, step * half));
        if whole {
            self.halo.exchange_on(stream).expect("exchange");
        } else {
            self.halo.send_on(stream).expect("send");
            self.halo.wait_on(stream).expect("wait");
        }
        copy(span(&self.log, step * half), span(&self.field, half));
    }

    fn by_cpu(&self, step: usize) {
        let mut bytes = vec![0; self.half];
        self.script
            .read(step * self.half, &mut bytes)
            .expect("read");
        self.field.write(0, &bytes).expect("written");
        self.halo.send(LIMIT).expect("send");
        self.halo.wait(LIMIT).expect("wait");
        self.field.read(self.half, &mut bytes).expect("read");
        self.log.write(step * self.half, &bytes).expect("written");
    }

    fn synchronize(&self) {
        let ended = self.ctx.synchronize(&self.stream, LIMIT);
        ended.expect("the stream ends");
    }
}
