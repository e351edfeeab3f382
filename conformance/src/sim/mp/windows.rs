//! Random programs of one-sided operations: puts of every rank into its part of every other rank's
//! window and of its own, by the CPU and by streams, at once (with or without a request, some of
//! them inline) or prepared and posted together. Fences order puts that overlap. The target takes
//! the bytes after a signal, or after a quiet of the origin and a barrier, and compares them with
//! its own run of the program. Gets read back what was put, and fetch-adds count. A signal or a
//! ready word of the target lets the origin put again.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Stream;
use gdsync::gpu::{Condition, MemoryKind};
use mp::{Memory, Request, Window};

use super::job::{Job, Settings, Wire, process};
use crate::sim::world::{LIMIT, Pause, Rank, play};

/// Length in bytes of the part of a window that one rank puts to.
const ROOM: usize = 6000;
/// Most bytes of an inline put.
const INLINE: usize = 256;
/// Most puts to one rank in one round.
const PUTS: usize = 4;

/// The facts of a program that all ranks know.
struct Program {
    seed: u64,
    ranks: usize,
    rounds: u64,
    /// By rank: the memory of its window, and of its data.
    kinds: Vec<[MemoryKind; 2]>,
}

/// A put.
struct Put {
    at: usize,
    len: usize,
    /// Each byte.
    value: u8,
    /// It overlaps an earlier put: a fence precedes it.
    fence: bool,
}

impl Program {
    fn draw(seed: u64, rng: &mut Rng) -> Program {
        let ranks = rng.usize(1..=4);
        let mut kind = |_| [MemoryKind::Device, MemoryKind::Pinned][rng.usize(0..2)];
        Program {
            seed,
            ranks,
            rounds: 8,
            kinds: (0..ranks).map(|_| [0, 1].map(&mut kind)).collect(),
        }
    }

    /// The puts of a round from `from` to `to`, the same at both.
    fn puts(&self, from: usize, to: usize, round: u64) -> Vec<Put> {
        let key = (from as u64) << 40 | (to as u64) << 32 | round;
        let mut rng = Rng::with_seed(self.seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut puts: Vec<Put> = Vec::new();
        let mut free = 0;
        for _ in 0..rng.usize(1..=PUTS) {
            let at = rng.usize(0..ROOM);
            let len = match rng.u8(0..4) {
                0 => rng.usize(0..=8.min(ROOM - at)),
                _ => rng.usize(0..=ROOM - at),
            };
            let meets = |put: &Put| put.at < at + len && at < put.at + put.len;
            let fence = puts[free..].iter().any(meets);
            if fence {
                free = puts.len();
            }
            let value = rng.u8(..);
            puts.push(Put {
                at,
                len,
                value,
                fence,
            });
        }
        puts
    }

    /// Whether a round ends with signals; otherwise with quiet and a barrier.
    fn signals(&self, round: u64) -> bool {
        !(self.seed ^ round).is_multiple_of(3)
    }

    /// Whether the targets acknowledge a round by ready words; otherwise by signals.
    fn acks_by_ready_words(&self, round: u64) -> bool {
        (self.seed ^ round >> 1).is_multiple_of(2)
    }

    /// The offsets of the words of `rank`: its signal, its acknowledgement.
    fn words(&self, rank: usize) -> [usize; 2] {
        let start = self.ranks * ROOM;
        [start + 8 * rank, start + 8 * (self.ranks + rank)]
    }

    fn counter(&self) -> usize {
        self.ranks * ROOM + 16 * self.ranks
    }
}

/// Applies puts to a part.
fn apply(puts: &[Put], part: &mut [u8]) {
    for put in puts {
        part[put.at..put.at + put.len].fill(put.value);
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
        let [kind, data] = program.kinds[rank.me];
        let memory = member
            .ctx
            .alloc(kind, program.counter() + 8)
            .expect("memory");
        let part = Part {
            program: &program,
            rank: &rank,
            window: member.ctx.window(&memory).expect("a window"),
            data: (member.ctx.alloc(data, ranks * PUTS * ROOM)).expect("memory"),
            old: (member.ctx.alloc(MemoryKind::Pinned, 8 * ranks)).expect("memory"),
            seen: (member.ctx.alloc(MemoryKind::Pinned, ROOM)).expect("memory"),
            stream: member.ctx.gpu().stream().expect("a stream"),
            rng: Rng::with_seed(seed ^ (rank.me as u64) << 8),
            mine: vec![vec![0; ROOM]; ranks],
            theirs: vec![vec![0; ROOM]; ranks],
            member: &member.ctx,
        };
        part.play();
        drop(memory);
        member.leave();
    })
}

/// One rank's part in a program.
struct Part<'a> {
    program: &'a Program,
    rank: &'a Rank,
    member: &'a mp::Context,
    window: Window,
    data: Memory,
    /// Where fetch-adds store former values.
    old: Memory,
    /// Where the stream copies what it takes.
    seen: Memory,
    stream: Stream,
    rng: Rng,
    /// By rank: what this rank has put there.
    mine: Vec<Vec<u8>>,
    /// By rank: what it has put here.
    theirs: Vec<Vec<u8>>,
}

impl Part<'_> {
    fn play(mut self) {
        let (ranks, me) = (self.program.ranks, self.rank.me);
        for round in 0..self.program.rounds {
            let by_stream = self.rng.bool();
            let mut requests = Vec::new();
            // They are posted together, unless a fence or a get needs them earlier.
            let mut prepared = Vec::new();
            for to in 0..ranks {
                self.put(to, round, by_stream, &mut requests, &mut prepared);
            }
            self.post(by_stream, &mut prepared, &mut requests);
            let signals = self.program.signals(round);
            match (signals, by_stream) {
                (true, _) => {}
                (false, true) => self.window.quiet_on(&self.stream).expect("quiet"),
                (false, false) => self.window.quiet(LIMIT).expect("quiet"),
            }
            if !signals {
                self.synchronize();
                self.rank.barrier();
                // No wait has made the bytes visible here.
                self.member.gpu().flush_remote_writes();
            }
            for from in 0..ranks {
                let puts = self.program.puts(from, me, round);
                apply(&puts, &mut self.theirs[from]);
                let copied = signals && self.take(from, round);
                let got = match copied {
                    true => self.read(&self.seen, 0, ROOM),
                    false => self.read(self.window.memory(), from * ROOM, ROOM),
                };
                assert!(
                    got == self.theirs[from],
                    "round {round}: bytes of rank {from}"
                );
            }
            let ready = self.program.acks_by_ready_words(round);
            for from in 0..ranks {
                if ready {
                    self.member.send_ready(from as u32).expect("ready word");
                    continue;
                }
                let ack = self.program.words(me)[1];
                drop(
                    self.window
                        .signal(from as u32, ack, round + 1)
                        .expect("signal"),
                );
            }
            for to in 0..ranks {
                match ready {
                    true => self.wait_ready(to as u32),
                    false => _ = self.wait(to, self.program.words(to)[1], round),
                }
            }
            self.synchronize();
            mp::wait_all(&requests, LIMIT).expect("ended");
        }
        self.rank.barrier();
        let mut count = [0; 8];
        let counter = self.program.counter();
        self.window
            .memory()
            .read(counter, &mut count)
            .expect("read");
        let counted = self.program.rounds * (ranks as u64 - 1);
        assert_eq!(u64::from_le_bytes(count), counted, "fetch-adds");
        self.rank.barrier();
    }

    /// Posts prepared operations, by the CPU or on the stream.
    fn post(&self, by_stream: bool, prepared: &mut Vec<Request>, requests: &mut Vec<Request>) {
        let posted = match by_stream {
            true => self.member.post_all_on(&self.stream, prepared),
            false => prepared.iter().try_for_each(Request::post),
        };
        posted.expect("posted");
        requests.append(prepared);
    }

    /// Puts to a rank, signals, counts and reads back.
    fn put(
        &mut self,
        to: usize,
        round: u64,
        by_stream: bool,
        requests: &mut Vec<Request>,
        prepared: &mut Vec<Request>,
    ) {
        let (window, stream, me) = (&self.window, &self.stream, self.rank.me);
        let puts = self.program.puts(me, to, round);
        let signal = self.program.words(me)[0];
        let signals = self.program.signals(round);
        let (joined, late) = (signals && self.rng.bool(), self.rng.bool());
        let target = to as u32;
        for (i, put) in puts.iter().enumerate() {
            let place = (to * PUTS + i) * ROOM;
            self.data
                .write(place, &vec![put.value; put.len])
                .expect("written");
            let from = self.data.slice(place, put.len).expect("a slice");
            if put.fence {
                self.post(by_stream, prepared, requests);
                let fenced = match by_stream {
                    true => window.fence_on(stream, target),
                    false => window.fence(target),
                };
                fenced.expect("fence");
            }
            let at = me * ROOM + put.at;
            let with_signal = joined && i + 1 == puts.len();
            if late {
                let put = match with_signal {
                    true => window.prepare_put_signal(target, at, &from, signal, round + 1),
                    false => window.prepare_put(target, at, &from),
                };
                prepared.push(put.expect("prepared"));
                continue;
            }
            if !with_signal && self.rng.u8(0..3) == 0 {
                let bytes = vec![put.value; put.len];
                let posted = match (put.len <= INLINE, by_stream) {
                    (true, true) => window.put_inline_on(stream, target, at, &bytes),
                    (true, false) => window.put_inline(target, at, &bytes),
                    (false, true) => window.put_nbi_on(stream, target, at, &from),
                    (false, false) => window.put_nbi(target, at, &from),
                };
                posted.expect("put");
                continue;
            }
            let posted = match (with_signal, by_stream) {
                (false, false) => window.put(target, at, &from),
                (false, true) => window.put_on(stream, target, at, &from),
                (true, false) => window.put_signal(target, at, &from, signal, round + 1),
                (true, true) => window.put_signal_on(stream, target, at, &from, signal, round + 1),
            };
            let posted = posted.expect("put");
            if self.rng.bool() {
                requests.push(posted);
            }
        }
        apply(&puts, &mut self.mine[to]);
        if signals && !joined && late {
            let signal = window.prepare_signal(target, signal, round + 1);
            prepared.push(signal.expect("prepared"));
        } else if signals && !joined {
            let signal = match by_stream {
                true => window.signal_on(stream, target, signal, round + 1),
                false => window.signal(target, signal, round + 1),
            };
            drop(signal.expect("signal"));
        }
        if to != me {
            let old = self.old.slice(8 * to, 8).expect("a slice");
            let counter = self.program.counter();
            let add = match by_stream {
                true => window.fetch_add_on(stream, target, counter, 1, &old),
                false => window.fetch_add(target, counter, 1, &old),
            };
            requests.push(add.expect("fetch-add"));
        }
        if self.rng.u8(0..3) == 0 {
            self.post(by_stream, prepared, requests);
            self.get(to, by_stream);
        }
    }

    /// Reads back what this rank has put to another.
    fn get(&mut self, to: usize, by_stream: bool) {
        let at = self.rng.usize(0..ROOM);
        let len = self.rng.usize(0..=ROOM - at);
        let kind = self.program.kinds[self.rank.me][1];
        let into = self.member.alloc(kind, ROOM).expect("memory");
        let (slice, place) = (
            into.slice(0, len).expect("a slice"),
            self.rank.me * ROOM + at,
        );
        let get = match by_stream {
            true => self.window.get_on(&self.stream, to as u32, place, &slice),
            false => self.window.get(to as u32, place, &slice),
        };
        let get = get.expect("get");
        if by_stream && self.rng.bool() {
            get.wait_on(&self.stream).expect("wait");
            self.synchronize();
        }
        get.wait(LIMIT).expect("ended");
        let got = self.read(&into, 0, len);
        assert!(got == self.mine[to][at..at + len], "get from rank {to}");
    }

    /// Waits for the signal of a rank. `true`: the stream waited, and has copied the rank's part to
    /// `seen`.
    fn take(&mut self, from: usize, round: u64) -> bool {
        let by_stream = self.wait(from, self.program.words(from)[0], round);
        if by_stream {
            let part = self.window.memory().region().span(from * ROOM, ROOM);
            let seen = self.seen.region().span(0, ROOM).expect("a span");
            let copied = self.stream.copy(&seen, &part.expect("a span"));
            copied.expect("enqueued");
            self.synchronize();
        }
        by_stream
    }

    /// Waits for a word of a round, by the CPU or the stream. `true`: by the stream, which may not
    /// have passed the wait yet.
    fn wait(&mut self, from: usize, word: usize, round: u64) -> bool {
        let condition = [Condition::Geq, Condition::Eq][self.rng.usize(0..2)];
        let (window, from, value) = (&self.window, from as u32, round + 1);
        let by_stream = self.rng.bool();
        let waited = match by_stream {
            true => window.wait_signal_on(&self.stream, from, word, condition, value),
            false => window.wait_signal(from, word, condition, value, LIMIT),
        };
        waited.expect("signal");
        by_stream
    }

    /// Takes the next ready word of a rank, in each way.
    fn wait_ready(&mut self, from: u32) {
        let taken = match self.rng.u8(0..3) {
            0 => self.member.wait_ready_on(&self.stream, from),
            1 => self.member.wait_ready(from, LIMIT),
            _ => match self.member.test_ready(from).expect("a test") {
                true => Ok(()),
                false => self.member.wait_ready(from, LIMIT),
            },
        };
        taken.expect("ready word");
    }

    fn synchronize(&self) {
        self.member
            .synchronize(&self.stream, LIMIT)
            .expect("the stream ends");
        assert!(self.stream.synchronize(Duration::ZERO).expect("asked"));
    }

    fn read(&self, memory: &Memory, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        memory.read(at, &mut bytes).expect("read");
        bytes
    }
}
