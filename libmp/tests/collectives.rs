//! Collective calls by the CPU and by streams, of any number of ranks, against the results that one
//! rank computes alone.

#[path = "common/sim.rs"]
mod sim;

use fastrand::Rng;
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Collectives, Context, Memory, Number, Op};
use sim::{LIMIT, Rank, play, secs};
use vmlx5::fabric::faults::Faults;

const _: () = {
    const fn moves_to_other_threads<T: Send + Sync>() {}
    moves_to_other_threads::<Collectives>();
};

/// Greatest length of a contribution in bytes.
const MOST: usize = 1000;

/// A context whose NIC delays this share of the pieces of WRITEs.
fn open(rank: &Rank, ooo: f64) -> Context {
    let faults = Faults {
        seed: rank.me.into(),
        ooo,
        ..Faults::default()
    };
    let place = rank.place_with(SoftOptions::default(), true, faults);
    rank.open_at(&place, |b| b)
}

/// A call, the same on all ranks.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Barrier,
    Broadcast(u32),
    AllGather,
    AllToAll,
    AllToAllV,
    F32(Op),
    F64(Op),
    I32(Op),
    I64(Op),
    U32(Op),
    U64(Op),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    seed: u64,
    kind: Kind,
    /// Elements of 8 bytes of a contribution.
    len: usize,
}

impl Call {
    fn draw(rng: &mut Rng, ranks: u32) -> Call {
        let all = [Op::Sum, Op::Product, Op::Min, Op::Max, Op::And, Op::Or];
        let (float, any) = (all[rng.usize(0..4)], all[rng.usize(0..6)]);
        let kind = match rng.u32(0..11) {
            0 => Kind::Barrier,
            1 => Kind::Broadcast(rng.u32(0..ranks)),
            2 => Kind::AllGather,
            3 => Kind::AllToAll,
            4 => Kind::AllToAllV,
            5 => Kind::F32(float),
            6 => Kind::F64(float),
            7 => Kind::I32(any),
            8 => Kind::I64(any),
            9 => Kind::U32(any),
            _ => Kind::U64(any),
        };
        let len = [0, 1, 3, rng.usize(0..=MOST / 8)][rng.usize(0..4)];
        let seed = rng.u64(..);
        Call { seed, kind, len }
    }

    fn rng(&self, from: u32, to: u32) -> Rng {
        Rng::with_seed(self.seed ^ u64::from(from) << 32 ^ u64::from(to))
    }

    /// The number of elements that `from` sends to `to` in an all-to-all of any lengths.
    fn count(&self, from: u32, to: u32) -> usize {
        self.rng(from, to).usize(0..=self.len)
    }

    /// The contribution of `from`, to `to`.
    fn data(&self, from: u32, to: u32, len: usize) -> Vec<u64> {
        let mut rng = self.rng(from, to);
        (0..len).map(|_| rng.u64(..)).collect()
    }

    /// The contribution of `from` to an all-reduce of floating-point numbers: of all magnitudes,
    /// and now and then a NaN, an infinity, or a zero with a sign.
    fn floats(&self, from: u32) -> Vec<f64> {
        let mut rng = self.rng(from, 0);
        let special = [
            f64::NAN,
            -f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
        ];
        let one = |_| match rng.u8(0..24) {
            i @ 0..6 => special[usize::from(i)],
            _ => (rng.f64() - 0.5) * f64::from(rng.i32(-20..20)).exp(),
        };
        (0..self.len).map(one).collect()
    }

    fn integers(&self, from: u32) -> Vec<u64> {
        self.data(from, 0, self.len)
    }
}

/// What a rank uses for its calls.
struct Part<'a> {
    rank: &'a Rank,
    ctx: &'a Context,
    all: Collectives,
    streams: [Stream; 2],
    from: Memory,
    into: Memory,
}

impl Part<'_> {
    fn new<'a>(rank: &'a Rank, ctx: &'a Context) -> Part<'a> {
        let len = rank.ranks as usize * MOST;
        let kind = [MemoryKind::Device, MemoryKind::Pinned];
        let memory = |i: u32| ctx.alloc(kind[(rank.me + i) as usize % 2], len).unwrap();
        Part {
            rank,
            ctx,
            all: ctx.collectives(MOST).unwrap(),
            streams: [(); 2].map(|()| ctx.gpu().stream().unwrap()),
            from: memory(0),
            into: memory(1),
        }
    }

    /// Makes a call by the CPU, or by a stream, and checks its result.
    fn call(&mut self, call: &Call, by: Option<usize>) {
        let (me, ranks) = (self.rank.me, self.rank.ranks);
        let stream = by.map(|at| self.streams[at].clone());
        let stream = stream.as_ref();
        match call.kind {
            Kind::Barrier => match stream {
                Some(stream) => self.all.barrier_on(stream).unwrap(),
                None => self.all.barrier(LIMIT).unwrap(),
            },
            Kind::Broadcast(root) => {
                let due = call.data(root, 0, call.len);
                let mut data = call.data(me, 0, call.len);
                match stream {
                    Some(stream) => {
                        self.from.write_slice(0, &data).unwrap();
                        let slice = self.from.slice_of::<u64>(0, call.len).unwrap();
                        self.all.broadcast_on(stream, root, &slice).unwrap();
                        self.ctx.synchronize(stream, LIMIT).unwrap();
                        self.from.read_slice(0, &mut data).unwrap();
                    }
                    None => self.all.broadcast(root, &mut data, LIMIT).unwrap(),
                }
                assert_eq!(data, due, "{call:?}");
            }
            Kind::AllGather | Kind::AllToAll | Kind::AllToAllV => self.gather(call, stream),
            Kind::F32(op) => {
                let data = |rank| call.floats(rank).iter().map(|x| *x as f32).collect();
                let due = serial(ranks, data, |a: f32, b| {
                    float(op, a.into(), b.into()) as f32
                });
                let due: Vec<u32> = due
                    .into_iter()
                    .map(|x| plain(x.into()) as f32)
                    .map(f32::to_bits)
                    .collect();
                let got: Vec<u32> = self
                    .reduce(data(me), op, stream)
                    .into_iter()
                    .map(f32::to_bits)
                    .collect();
                // The serial run rounds to f32 after each step, as sums and products of f32 do.
                assert_eq!(got, due, "{call:?}");
            }
            Kind::F64(op) => {
                let data = |rank| call.floats(rank);
                let due = serial(ranks, data, |a, b| float(op, a, b));
                let due: Vec<u64> = due.into_iter().map(|x| plain(x).to_bits()).collect();
                let got: Vec<u64> = self
                    .reduce(data(me), op, stream)
                    .into_iter()
                    .map(f64::to_bits)
                    .collect();
                assert_eq!(got, due, "{call:?}");
            }
            Kind::I32(op) => {
                let data = |rank| call.integers(rank).iter().map(|x| *x as i32).collect();
                let wide = |op, a: i32, b: i32| match op {
                    Op::Min => a.min(b),
                    Op::Max => a.max(b),
                    op => integer(op, a as u64, b as u64) as i32,
                };
                let due = serial(ranks, data, |a, b| wide(op, a, b));
                assert_eq!(self.reduce(data(me), op, stream), due, "{call:?}");
            }
            Kind::I64(op) => {
                let data = |rank| call.integers(rank).iter().map(|x| *x as i64).collect();
                let wide = |op, a: i64, b: i64| match op {
                    Op::Min => a.min(b),
                    Op::Max => a.max(b),
                    op => integer(op, a as u64, b as u64) as i64,
                };
                let due = serial(ranks, data, |a, b| wide(op, a, b));
                assert_eq!(self.reduce(data(me), op, stream), due, "{call:?}");
            }
            Kind::U32(op) => {
                let data = |rank| call.integers(rank).iter().map(|x| *x as u32).collect();
                let due = serial(ranks, data, |a: u32, b| {
                    integer(op, a.into(), b.into()) as u32
                });
                assert_eq!(self.reduce(data(me), op, stream), due, "{call:?}");
            }
            Kind::U64(op) => {
                let due = serial(ranks, |rank| call.integers(rank), |a, b| integer(op, a, b));
                assert_eq!(self.reduce(call.integers(me), op, stream), due, "{call:?}");
            }
        }
    }

    fn reduce<T: Number>(&mut self, mut data: Vec<T>, op: Op, on: Option<&Stream>) -> Vec<T> {
        let Some(stream) = on else {
            self.all.all_reduce(&mut data, op, LIMIT).unwrap();
            return data;
        };
        self.from.write_slice(0, &data).unwrap();
        let slice = self.from.slice_of::<T>(0, data.len()).unwrap();
        self.all.all_reduce_on::<T>(stream, &slice, op).unwrap();
        self.ctx.synchronize(stream, LIMIT).unwrap();
        self.from.read_slice(0, &mut data).unwrap();
        data
    }

    fn gather(&mut self, call: &Call, on: Option<&Stream>) {
        let (me, ranks) = (self.rank.me, self.rank.ranks);
        let count = |from, to| match call.kind {
            Kind::AllToAllV => call.count(from, to),
            _ => call.len,
        };
        let to = |to| match call.kind {
            Kind::AllGather => 0,
            _ => to,
        };
        let part = |from, rank| call.data(from, to(rank), count(from, rank));
        let due: Vec<u64> = (0..ranks).flat_map(|from| part(from, me)).collect();
        let data: Vec<u64> = match call.kind {
            Kind::AllGather => part(me, me),
            _ => (0..ranks).flat_map(|rank| part(me, rank)).collect(),
        };
        let sends: Vec<usize> = (0..ranks).map(|rank| count(me, rank)).collect();
        let receives: Vec<usize> = (0..ranks).map(|rank| count(rank, me)).collect();
        let mut got = vec![0; due.len()];
        if let Some(stream) = on {
            self.from.write_slice(0, &data).unwrap();
            let from = &self.from.slice_of::<u64>(0, data.len()).unwrap();
            let into = &self.into.slice_of::<u64>(0, due.len()).unwrap();
            let bytes = |counts: &[usize]| counts.iter().map(|n| 8 * n).collect::<Vec<_>>();
            let called = match call.kind {
                Kind::AllGather => self.all.all_gather_on(stream, from, into),
                Kind::AllToAll => self.all.all_to_all_on(stream, from, into),
                _ => {
                    let (sends, receives) = (bytes(&sends), bytes(&receives));
                    (self.all).all_to_all_v_on(stream, from, &sends, into, &receives)
                }
            };
            called.unwrap();
            self.ctx.synchronize(stream, LIMIT).unwrap();
            self.into.read_slice(0, &mut got).unwrap();
        } else {
            let called = match call.kind {
                Kind::AllGather => self.all.all_gather(&data, &mut got, LIMIT),
                Kind::AllToAll => self.all.all_to_all(&data, &mut got, LIMIT),
                _ => (self.all).all_to_all_v(&data, &sends, &mut got, &receives, LIMIT),
            };
            called.unwrap();
        }
        assert_eq!(got, due, "{call:?}");
    }
}

/// The combination of the contributions of all ranks, in their order.
fn serial<T: Copy>(ranks: u32, data: impl Fn(u32) -> Vec<T>, both: impl Fn(T, T) -> T) -> Vec<T> {
    let mut sum = data(0);
    for rank in 1..ranks {
        for (a, b) in sum.iter_mut().zip(data(rank)) {
            *a = both(*a, b);
        }
    }
    sum
}

fn float(op: Op, a: f64, b: f64) -> f64 {
    match op {
        Op::Sum => a + b,
        Op::Product => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Op::Min if b < a => b,
        Op::Max if b > a => b,
        _ => a,
    }
}

fn plain(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { x }
}

fn integer(op: Op, a: u64, b: u64) -> u64 {
    match op {
        Op::Sum => a.wrapping_add(b),
        Op::Product => a.wrapping_mul(b),
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::And => a & b,
        _ => a | b,
    }
}

/// Random calls; each rank makes each by the CPU or a stream, as it likes, and pauses now and then.
fn program(seed: u64, ranks: u32, calls: usize, ooo: f64) {
    play(seed, ranks, move |rank| {
        let ctx = open(rank, ooo);
        let mut part = Part::new(rank, &ctx);
        let (mut shared, mut own) = (
            Rng::with_seed(seed),
            Rng::with_seed(seed ^ u64::from(rank.me) << 8),
        );
        for _ in 0..calls {
            let call = Call::draw(&mut shared, ranks);
            let by = [None, Some(0), Some(1)][own.usize(0..3)];
            if own.u8(0..8) == 0 {
                rank.pass(secs(1) / 1000 * own.u32(0..4));
            }
            part.call(&call, by);
        }
        drop(part);
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn results_equal_those_of_one_rank_bit_for_bit() {
    for ranks in [1, 2, 3, 5, 8] {
        for (seed, ooo) in [(1, 0.0), (2, 0.0), (3, 0.8)] {
            println!("{ranks} ranks, seed {seed}");
            program(seed, ranks, 60, ooo);
        }
    }
}
