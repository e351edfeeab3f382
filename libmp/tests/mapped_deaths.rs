//! A rank dies in the middle of a random program whose messages go by mapped memory. The streams of the
//! other rank continue, its requests end, and no message is written outside its receive.
#[path = "common/sim.rs"]
mod sim;

use fastrand::Rng;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Memory, PathChoice, RecvOp, Request, SendOp, SizeSource, Slice};
use sim::{Death, LIMIT, Rank, millis, play, secs};

const LENS: [usize; 10] = [0, 1, 64, 65, 4096, 6144, 6145, 7000, 20_000, 300_000];
const ROUNDS: usize = 12;
/// The tag of zero-SM messages.
const ZERO_SM: u32 = 3;
/// Value of the bytes that no message writes.
const GUARD: u8 = 0xee;

/// A request, and the memory of a receive with the number of bytes that the message may write.
struct Kept {
    request: Option<Request>,
    receive: Option<(Memory, usize)>,
}

/// The program of a rank.
struct Program<'a> {
    rank: &'a Rank,
    ctx: &'a Context,
    streams: [Stream; 3],
    /// Draws what this rank alone decides.
    own: Rng,
    kept: Vec<Kept>,
    /// Steps until the rank dies.
    left: usize,
}

impl Program<'_> {
    /// Whether the rank dies now.
    fn dies(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Memory of guard bytes for `len` bytes, which are in one slice or, except for zero-SM messages, in two.
    fn memory(&mut self, tag: u32, len: usize) -> (Memory, Vec<Slice>) {
        let kind = [MemoryKind::Device, MemoryKind::Pinned][self.own.usize(0..2)];
        let memory = self.ctx.alloc(kind, len + 16).unwrap();
        memory.write(0, &vec![GUARD; len + 16]).unwrap();
        let first = match self.own.u8(0..6) {
            0 if tag != ZERO_SM => len / 3,
            _ => len,
        };
        let mut slices = vec![memory.slice(0, first).unwrap()];
        if first < len {
            slices.push(memory.slice(first, len - first).unwrap());
        }
        (memory, slices)
    }

    /// Posts a receive by the CPU or a stream. `None`: the peer is lost.
    fn receive(&mut self, tag: u32, room: usize) -> Option<()> {
        let (memory, slices) = self.memory(tag, room);
        let op = RecvOp::new(self.rank.peer(), tag, &slices).zero_sm(tag == ZERO_SM);
        let op = match self.own.usize(0..4) {
            3 => op,
            at => op.on(&self.streams[at]),
        };
        let request = Some(self.ctx.post_recv(&op).ok()?);
        let receive = Some((memory, room));
        self.kept.push(Kept { request, receive });
        Some(())
    }

    /// As `receive`, of a send, some of which have a length word.
    fn send(&mut self, tag: u32, len: usize) -> Option<()> {
        let (_, slices) = self.memory(tag, len);
        let word = self.ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let word = word.region().word64(0).unwrap();
        word.store(len as u64).unwrap();
        let mut op = SendOp::new(self.rank.peer(), tag, &slices).zero_sm(tag == ZERO_SM);
        if slices.len() == 1 && tag != ZERO_SM && self.own.u8(0..5) == 0 {
            let (len, offset) = (&word, None);
            op = op.size(SizeSource::Word { len, offset });
        }
        let at = self.own.usize(0..4);
        if at < 3 {
            op = op.on(&self.streams[at]);
        }
        let request = Some(self.ctx.post_send(&op).ok()?);
        let receive = None;
        self.kept.push(Kept { request, receive });
        Some(())
    }

    /// Waits for the receives from number `from` on, by the CPU, by streams, and by one call for several.
    fn wait(&mut self, from: usize) -> Option<()> {
        let mut order: Vec<usize> = (from..self.kept.len()).collect();
        order.retain(|at| self.kept[*at].receive.is_some());
        self.own.shuffle(&mut order);
        let mut together = [(); 3].map(|()| Vec::new());
        for at in order {
            if self.dies() {
                return None;
            }
            let request = self.kept[at].request.as_ref().unwrap();
            match self.own.usize(0..8) {
                stream @ 0..3 => together[stream].push(at),
                stream @ 3..6 => _ = request.wait_on(&self.streams[stream - 3]),
                _ => _ = request.wait(LIMIT),
            }
        }
        for (stream, list) in self.streams.iter().zip(together) {
            let taken = list.iter().map(|at| self.kept[*at].request.take().unwrap());
            let requests: Vec<Request> = taken.collect();
            let _ = self.ctx.wait_all_on(stream, &requests);
            for (at, request) in list.into_iter().zip(requests) {
                self.kept[at].request = Some(request);
            }
        }
        Some(())
    }

    /// Runs the rounds, which `rng` draws alike on both ranks. `None`: a rank is lost.
    fn run(&mut self, mut rng: Rng, most: usize) -> Option<()> {
        for _ in 0..ROUNDS {
            let mut messages = [(); 2].map(|()| Vec::new());
            for messages in &mut messages {
                for tag in 0..=ZERO_SM {
                    for _ in 0..rng.usize(0..=most) {
                        let len = LENS[rng.usize(0..LENS.len())];
                        let room = match rng.u8(0..9) {
                            0 => len / 2,
                            _ => len + rng.usize(0..2) * 99,
                        };
                        messages.push((tag, len, room));
                    }
                }
            }
            let from = self.kept.len();
            let me = self.rank.me as usize;
            for (tag, _, room) in &messages[1 - me] {
                (!self.dies()).then(|| self.receive(*tag, *room))??;
            }
            for (tag, len, _) in &messages[me] {
                (!self.dies()).then(|| self.send(*tag, *len))??;
            }
            self.wait(from)?;
            for kept in &mut self.kept {
                if self.own.u8(0..9) == 0 {
                    kept.request = None;
                }
            }
        }
        Some(())
    }

    /// Checks the rank that remains.
    fn check(&self) {
        for (at, stream) in self.streams.iter().enumerate() {
            let through = stream.synchronize(secs(20)).unwrap();
            assert!(through, "stream {at} waits: {:?}", self.ctx.stuck());
        }
        self.rank.pass(millis(2500));
        for Kept { request, receive } in &self.kept {
            if let Some(request) = request
                && let Ok(None) = request.test()
                && let Err(e) = request.wait(secs(20))
            {
                // A rank that is stopped is found by the time limit alone.
                let unknown = e.to_string().contains("not known whether");
                assert!(unknown || e.kind() != mp::Kind::Timeout, "{e}");
            }
            if let Some((memory, room)) = receive {
                let mut got = vec![0; memory.len()];
                memory.read(0, &mut got).unwrap();
                assert!(got[*room..].iter().all(|byte| *byte == GUARD));
            }
        }
    }
}

fn program(rank: &Rank, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let depth = [2, 4, 16][rng.usize(0..3)];
    let eager = [64, 4096][rng.usize(0..2)];
    let start = [0, 65_530, (1 << 32) - 5][rng.usize(0..3)];
    let death = [Death::Leaves, Death::Closes, Death::Freezes][rng.usize(0..3)];
    let dies_at = rng.usize(1..120);
    let build = |b: Builder| {
        let b = b.path(PathChoice::Ipc).timeout(secs(1));
        b.depth(depth).eager_limit(eager).start(start)
    };
    let ctx = rank.open(build);
    let mut program = Program {
        rank,
        ctx: &ctx,
        streams: [(); 3].map(|()| ctx.gpu().stream().unwrap()),
        own: Rng::with_seed(seed ^ (u64::from(rank.me) + 1) << 32),
        kept: Vec::new(),
        left: if rank.me == 1 { dies_at } else { usize::MAX },
    };
    let finished = program.run(rng, (depth as usize / 2).min(2)).is_some();
    if rank.me == 0 {
        program.check();
        drop(program);
        let _ = ctx.close(secs(10));
        rank.come();
        return;
    }
    drop(program);
    if finished {
        let _ = ctx.close(secs(5));
    }
    death.end(rank, ctx, 1);
}

#[test]
fn streams_of_the_rank_that_remains_continue() {
    for seed in 0..100 {
        play(seed, 2, move |rank| program(rank, seed));
    }
}
