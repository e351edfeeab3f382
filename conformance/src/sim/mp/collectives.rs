//! Random programs of collective calls: of several objects at once, by the CPU and by streams that
//! run ahead of it, with skewed ranks. Each rank computes the results alone and compares. With a
//! loss, one rank stops at any moment, and every call of the others ends with a result or with an
//! error that names it.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Collectives, Kind, Memory, Op};

use super::job::{Job, Member, Settings, Wire, process};
use crate::sim::world::{LIMIT, Pause, Rank, play};

/// Greatest number of elements of a contribution.
const MOST: usize = 12;
/// Calls of a program.
const CALLS: usize = 24;
/// Time limit of waits for a rank that may be lost.
const PEER_LIMIT: Duration = Duration::from_millis(50);

/// What a call does.
#[derive(Clone, Copy, Debug)]
enum What {
    Barrier,
    Broadcast(u32),
    Gather,
    Exchange,
    Sum,
    Least,
}

/// A call, the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Call {
    seed: u64,
    object: usize,
    what: What,
    len: usize,
}

impl Call {
    fn draw(rng: &mut Rng, ranks: u32, objects: usize) -> Call {
        let what = match rng.u8(0..6) {
            0 => What::Barrier,
            1 => What::Broadcast(rng.u32(0..ranks)),
            2 => What::Gather,
            3 => What::Exchange,
            4 => What::Sum,
            _ => What::Least,
        };
        Call {
            seed: rng.u64(..),
            object: rng.usize(0..objects),
            what,
            len: rng.usize(0..=MOST),
        }
    }

    /// The number of elements from a rank to another.
    fn count(&self, from: u32, to: u32) -> usize {
        match self.what {
            What::Exchange => {
                Rng::with_seed(self.seed ^ u64::from(from << 8 | to)).usize(0..=self.len)
            }
            _ => self.len,
        }
    }

    /// The contribution of a rank to another.
    fn part(&self, from: u32, to: u32) -> Vec<f64> {
        let to = match self.what {
            What::Exchange => to,
            _ => 0,
        };
        let mut rng = Rng::with_seed(self.seed ^ u64::from(from << 16 | to));
        let count = self.count(from, to);
        (0..count)
            .map(|_| (rng.f64() - 0.5) * f64::from(rng.i32(-9..9)).exp())
            .collect()
    }

    /// What rank `me` contributes.
    fn data(&self, me: u32, ranks: u32) -> Vec<f64> {
        match self.what {
            What::Barrier => Vec::new(),
            What::Exchange => (0..ranks).flat_map(|to| self.part(me, to)).collect(),
            _ => self.part(me, 0),
        }
    }

    /// The result on rank `me`.
    fn due(&self, me: u32, ranks: u32) -> Vec<f64> {
        let fold = |both: fn(f64, f64) -> f64| {
            let mut sum = self.part(0, 0);
            for rank in 1..ranks {
                for (a, b) in sum.iter_mut().zip(self.part(rank, 0)) {
                    *a = both(*a, b);
                }
            }
            sum
        };
        match self.what {
            What::Barrier => Vec::new(),
            What::Broadcast(root) => self.part(root, 0),
            What::Gather | What::Exchange => {
                (0..ranks).flat_map(|from| self.part(from, me)).collect()
            }
            What::Sum => fold(|a, b| a + b),
            What::Least => fold(f64::min),
        }
    }
}

/// A loss that all ranks know of.
#[derive(Clone, Copy, Debug)]
struct Loss {
    rank: usize,
    /// The call before which the rank stops.
    before: usize,
    /// The launcher reports it, or the links end.
    reported: bool,
}

/// Runs the program of `seed` under the schedule of `seed`.
///
/// # Errors
/// The first deviation from the program, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    run_on(seed, Some(wire))
}

/// As [`run`], by the path that `MP_PATH` selects, with a rank that is lost.
///
/// # Errors
/// As [`run`].
pub fn run_with_loss(seed: u64) -> Result<SimReport, SimError> {
    run_on(seed, None)
}

fn run_on(seed: u64, wire: Option<Wire>) -> Result<SimReport, SimError> {
    let loses = wire.is_none();
    let mut rng = Rng::with_seed(seed);
    let mut settings = Settings::draw(&mut rng);
    let ranks = rng.u32(1 + 2 * u32::from(loses)..=5);
    // After the first failure a rank makes no call, of another object neither.
    let objects = if loses { 1 } else { rng.usize(1..=2) };
    let loss = loses.then(|| Loss {
        rank: rng.usize(0..ranks as usize),
        before: rng.usize(0..CALLS),
        reported: rng.bool(),
    });
    // A call of the CPU waits longer than a stream: the failure of the stream's call comes first.
    let limit = if loses { 4 * PEER_LIMIT } else { LIMIT };
    if loses {
        settings.timeout = PEER_LIMIT;
    }
    let pauses: Rc<[Pause]> = (0..rng.usize(0..4) * usize::from(!loses))
        .map(|_| Pause::draw(&mut rng, ranks as usize))
        .collect();
    let calls: Rc<[Call]> = (0..CALLS)
        .map(|_| Call::draw(&mut rng, ranks, objects))
        .collect();
    let start = settings.start;
    let job = Job::new(seed, ranks, settings);
    let job = match wire {
        Some(wire) => job.over(wire),
        None => job,
    };
    let report = play(seed, ranks as usize, move |rank| {
        let member = job.join(&rank);
        rank.pauses(&pauses, &process(&rank, &member.devices));
        let mut own = Rng::with_seed(seed ^ (rank.me as u64) << 8);
        let kind = [MemoryKind::Device, MemoryKind::Pinned][own.usize(0..2)];
        let area = 8 * MOST * ranks as usize;
        let mut part = Part {
            me: rank.me as u32,
            ranks,
            area,
            limit,
            all: (0..objects)
                .map(|_| member.ctx.collectives(8 * MOST).expect("an object"))
                .collect(),
            streams: (0..=objects)
                .map(|_| member.ctx.gpu().stream().expect("a stream"))
                .collect(),
            memory: (member.ctx.alloc(kind, 2 * area * CALLS)).expect("memory"),
            calls: &calls,
            own,
        };
        // No rank is lost before all have joined.
        rank.barrier();
        match loss.filter(|loss| loss.rank == rank.me) {
            None => {
                let lost = loss.map(|loss| loss.rank as u32);
                part.play(&rank, &member, lost, start);
                match lost {
                    Some(lost) => member.leave_without(lost),
                    None => {
                        rank.barrier();
                        member.leave();
                    }
                }
            }
            Some(loss) => {
                let failures = part.start(&rank, loss.before).failures;
                assert!(failures.is_empty(), "all live: {failures:?}");
                let node = member.devices.node();
                for name in process(&rank, &member.devices) {
                    rank.control.kill(&name);
                }
                match loss.reported {
                    true => job.mark_gone(loss.rank),
                    false => rank.cut(node),
                }
                rank.pass(LIMIT);
                unreachable!("it is stopped");
            }
        }
    })?;
    let dead: Vec<String> = loss
        .iter()
        .map(|loss| format!("rank{}", loss.rank))
        .collect();
    assert_eq!(report.unfinished, dead, "{loss:?}");
    Ok(report)
}

/// The calls that a rank has made.
#[derive(Default)]
struct Made {
    /// Those of streams, with their places in the program: their results are not compared yet.
    enqueued: Vec<(usize, Call)>,
    /// The first that failed.
    failures: Vec<(usize, mp::Error)>,
}

/// One rank's part in a program.
struct Part<'a> {
    me: u32,
    ranks: u32,
    /// Bytes for what a call sends, and for its result.
    area: usize,
    limit: Duration,
    all: Vec<Collectives>,
    /// One for each object, and one that they share.
    streams: Vec<Stream>,
    memory: Memory,
    calls: &'a [Call],
    own: Rng,
}

impl Part<'_> {
    /// Makes the first `count` calls, up to the first failure.
    fn start(&mut self, rank: &Rank, count: usize) -> Made {
        let mut made = Made::default();
        for at in 0..count {
            let call = self.calls[at];
            if self.own.u8(0..6) == 0 {
                rank.pass(Duration::from_micros(self.own.u64(0..200)));
            }
            let by_stream = self.own.u8(0..3) != 0;
            let called = match by_stream {
                true => self.call_on(at, call),
                false => self.call(call),
            };
            if let Err(e) = called {
                made.failures.push((at, e));
                break;
            }
            made.enqueued.extend(by_stream.then_some((at, call)));
        }
        made
    }

    /// Makes all calls and compares their results. If a rank is lost, ends with a failure that
    /// names it.
    fn play(mut self, rank: &Rank, member: &Member, lost: Option<u32>, start: u64) {
        let Made {
            enqueued,
            mut failures,
        } = self.start(rank, CALLS);
        for stream in &self.streams {
            let failed = member.ctx.synchronize(stream, LIMIT).err();
            failures.extend(failed.map(|e| (index(&e, start), e)));
            let through = stream.synchronize(Duration::ZERO).expect("asked");
            assert!(through, "a stream is left");
        }
        for (_, e) in &failures {
            let kind = matches!(
                e.kind(),
                Kind::PeerFailed(_) | Kind::Failed(_) | Kind::Timeout
            );
            assert!(
                kind && e.rank() == lost && lost.is_some(),
                "{lost:?} is lost: {e:?}"
            );
        }
        assert_eq!(failures.is_empty(), lost.is_none(), "the loss fails a call");
        // The calls before the first failure have their results.
        let first = failures.iter().map(|(at, _)| *at).min().unwrap_or(CALLS);
        for (at, call) in enqueued.into_iter().filter(|(at, _)| *at < first) {
            let due = call.due(self.me, self.ranks);
            let mut got = vec![0.0; due.len()];
            let place = (2 * at + 1) * self.area / 8;
            self.memory.read_slice(place, &mut got).expect("read");
            same(&got, &due, call);
        }
    }

    fn counts(&self, call: Call) -> [Vec<usize>; 2] {
        let (me, ranks) = (self.me, self.ranks);
        [
            (0..ranks).map(|to| call.count(me, to)).collect(),
            (0..ranks).map(|from| call.count(from, me)).collect(),
        ]
    }

    fn call(&mut self, call: Call) -> mp::Result<()> {
        let [sends, receives] = self.counts(call);
        let (me, ranks, limit) = (self.me, self.ranks, self.limit);
        let all = &mut self.all[call.object];
        let mut data = call.data(me, ranks);
        let due = call.due(me, ranks);
        let mut got = vec![0.0; due.len()];
        match call.what {
            What::Barrier => all.barrier(limit)?,
            What::Broadcast(root) => all.broadcast(root, &mut data, limit)?,
            What::Gather => all.all_gather(&data, &mut got, limit)?,
            What::Exchange => all.all_to_all_v(&data, &sends, &mut got, &receives, limit)?,
            What::Sum => all.all_reduce(&mut data, Op::Sum, limit)?,
            What::Least => all.all_reduce(&mut data, Op::Min, limit)?,
        }
        match call.what {
            What::Gather | What::Exchange => same(&got, &due, call),
            _ => same(&data, &due, call),
        }
        Ok(())
    }

    fn call_on(&mut self, at: usize, call: Call) -> mp::Result<()> {
        let (me, ranks) = (self.me, self.ranks);
        let [sends, receives] = self
            .counts(call)
            .map(|counts| -> Vec<usize> { counts.into_iter().map(|count| 8 * count).collect() });
        let stream = match self.own.u8(0..3) {
            0 => &self.streams[self.all.len()],
            _ => &self.streams[call.object],
        };
        let all = &mut self.all[call.object];
        let (data, due) = (call.data(me, ranks), call.due(me, ranks).len());
        let [from, into] = [2 * at, 2 * at + 1].map(|area| area * self.area / 8);
        let moves = matches!(call.what, What::Gather | What::Exchange);
        let place = if moves { from } else { into };
        self.memory.write_slice(place, &data).expect("written");
        let from = &self
            .memory
            .slice_of::<f64>(from, data.len())
            .expect("a slice");
        let into = &self.memory.slice_of::<f64>(into, due).expect("a slice");
        match call.what {
            What::Barrier => all.barrier_on(stream),
            What::Broadcast(root) => all.broadcast_on(stream, root, into),
            What::Gather => all.all_gather_on(stream, from, into),
            What::Exchange => all.all_to_all_v_on(stream, from, &sends, into, &receives),
            What::Sum => all.all_reduce_on::<f64>(stream, into, Op::Sum),
            What::Least => all.all_reduce_on::<f64>(stream, into, Op::Min),
        }
    }
}

/// The place in the program of the call that a stream's failure names.
fn index(e: &mp::Error, start: u64) -> usize {
    let text = e.to_string();
    let number = text
        .split_once(", call ")
        .and_then(|(_, rest)| rest.split_once(' '));
    let number = number.and_then(|(number, _)| number.parse::<u64>().ok());
    let number = number.unwrap_or_else(|| panic!("no call is named: {e}"));
    (number - u64::from(start as u32) - 1) as usize
}

/// Checks that results have the same bits.
fn same(got: &[f64], due: &[f64], call: Call) {
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(due), "{call:?}");
}
