//! Steps of neighbourhoods on streams by mapped memory: the submissions of a step, neighbours of several
//! paths, the CPU and streams by turns, and a neighbour that is late.

#[path = "common/sim.rs"]
mod sim;

use std::sync::{Arc, Mutex};

use gds_step::Time;
use gdsync::gpu::{MemoryKind, Observer, Passed, Stream, Work};
use mp::{Context, Memory, Neighbour, Neighbourhood, Path, PathChoice};
use sim::gate::Gate;
use sim::{LIMIT, Rank, play, secs, step_on};

/// Bytes that a rank sends to each other rank, and room for its pieces.
const LEN: usize = 600;
const ROOM: usize = 2048;

/// A rank's exchange with all other ranks and with itself: by rank, what is sent and what is received.
struct Part {
    me: u32,
    ranks: u32,
    ctx: Context,
    halo: Neighbourhood,
    sent: Memory,
    received: Memory,
}

fn byte(from: u32, to: u32, step: usize, i: usize) -> u8 {
    let seed = u64::from(from) << 40 | u64::from(to) << 32 | (step as u64) << 16 | i as u64;
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Whether a rank receives strided pieces from another one, or from itself: odd ranks do, so that their steps unpack
/// what they send themselves.
fn receives_strided(from: u32, to: u32) -> bool {
    match from == to {
        true => !to.is_multiple_of(2),
        false => (from + to).is_multiple_of(2),
    }
}

impl Part {
    /// `mapped`: others can map the memory of what is received.
    fn new(rank: &Rank, ctx: &Context, mapped: bool, double: bool) -> Part {
        let (me, ranks) = (rank.me, rank.ranks);
        let len = ranks as usize * ROOM;
        let sent = ctx.alloc(MemoryKind::Device, len).unwrap();
        let received = match mapped {
            true => ctx.alloc(MemoryKind::Device, len).unwrap(),
            false => ctx.adopt_vec(vec![0; len]).unwrap(),
        };
        let all = (0..ranks).map(|other| {
            let at = other as usize * ROOM;
            let one = Neighbour::new(other, 100 * me + other, 100 * other + me);
            let one = one.send(sent.strided(at, 10, 20, LEN / 10).unwrap());
            match receives_strided(other, me) {
                true => one.receive(received.strided(at, 6, 7, LEN / 6).unwrap()),
                false => one.receive(&received.slice(at, LEN).unwrap()),
            }
        });
        let halo = ctx.neighbourhood().double_buffered(double);
        let halo = halo.neighbours(all).build().unwrap();
        Part {
            me,
            ranks,
            ctx: ctx.clone(),
            halo,
            sent,
            received,
        }
    }

    fn write(&self, step: usize) {
        for other in 0..self.ranks {
            let mut bytes = [0; 2 * LEN];
            for i in 0..LEN {
                bytes[i / 10 * 20 + i % 10] = byte(self.me, other, step, i);
            }
            self.sent.write(other as usize * ROOM, &bytes).unwrap();
        }
    }

    fn check(&self, step: usize) {
        for other in 0..self.ranks {
            let mut got = [0; ROOM];
            let at = other as usize * ROOM;
            self.received.read(at, &mut got).unwrap();
            let packed = receives_strided(other, self.me);
            let of = |i: usize| if packed { i / 6 * 7 + i % 6 } else { i };
            let wrong = (0..LEN).find(|i| got[of(*i)] != byte(other, self.me, step, *i));
            assert_eq!(wrong, None, "step {step}, from rank {other}");
        }
    }

    /// Enqueues a step, by one call or by three.
    fn enqueue(&self, stream: &Stream, whole: bool) {
        step_on(&self.halo, stream, whole).unwrap();
    }

    fn on(&self, stream: &Stream, whole: bool) {
        self.enqueue(stream, whole);
        self.ctx.synchronize(stream, LIMIT).unwrap();
    }

    fn by_cpu(&self) {
        self.halo.ready().unwrap();
        self.halo.send(LIMIT).unwrap();
        self.halo.wait(LIMIT).unwrap();
    }
}

/// The submissions on the streams of a GPU.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Observer for Seen {
    fn enqueued(&self, _: u64, work: Work<'_>, _: Time, _: Option<Passed>) {
        let text = match work {
            Work::Kernel(name) => name.to_owned(),
            Work::Operations { all, waits } => format!("{all} operations, {waits} waits"),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(text);
    }
}

/// By mapped memory a step is three kernels, or one by one call unless it unpacks what the rank sends to itself; by a
/// NIC it has lists.
#[test]
fn whole_step_is_one_kernel_unless_it_unpacks_its_own_data() {
    for (path, ranks) in [(PathChoice::Ipc, 6), (PathChoice::Nic, 4)] {
        for (whole, double) in [(false, false), (true, false), (false, true), (true, true)] {
            play(1, ranks, move |rank| submissions(rank, path, whole, double));
        }
    }
}

fn submissions(rank: &Rank, path: PathChoice, whole: bool, double: bool) {
    let ctx = rank.open(|b| b.path(path));
    let part = Part::new(rank, &ctx, true, double);
    let stream = ctx.gpu().stream().unwrap();
    part.write(0);
    part.on(&stream, false);
    let seen = Arc::new(Seen::default());
    let observer: Arc<dyn Observer> = seen.clone();
    ctx.gpu().observe(&observer).unwrap();
    for step in 1..4 {
        part.write(step);
        let has_begun = step == 3;
        if has_begun {
            part.halo.ready_on(&stream).unwrap();
        }
        match whole || !has_begun {
            true => part.on(&stream, whole),
            false => {
                part.halo.send_on(&stream).unwrap();
                part.halo.wait_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
            }
        }
        part.check(step);
        let seen = std::mem::take(&mut *seen.0.lock().unwrap());
        let unpacks_its_own = double || receives_strided(part.me, part.me);
        match path {
            PathChoice::Ipc if whole && !unpacks_its_own && !has_begun => {
                assert_eq!(seen, ["mp_whole_step"]);
            }
            PathChoice::Ipc => assert_eq!(seen, ["mp_ready", "mp_step", "mp_step"]),
            _ => assert!(seen.iter().any(|one| one.contains("operations"))),
        }
    }
    drop(observer);
    rank.barrier();
}

/// One of the ranks has memory that no other can map: its neighbours reach it by the NIC, and each
/// other by mapped memory.
#[test]
fn step_may_mix_mapped_memory_and_a_nic() {
    for seed in 0..12 {
        play(seed, 4, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let part = Part::new(rank, &ctx, rank.me != 2, seed % 2 == 0);
            let stream = ctx.gpu().stream().unwrap();
            assert_eq!(ctx.path((rank.me + 1) % 4).unwrap().0, Path::Ipc);
            for step in 0..8 {
                part.write(step);
                part.on(&stream, step % 3 == 0);
                part.check(step);
            }
            let other = ctx.gpu().stream().unwrap();
            part.write(8);
            part.on(&other, true);
            part.check(8);
            drop(part);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}

/// Each rank executes each step by a stream or by the CPU, whatever the others do.
#[test]
fn streams_and_the_cpu_take_turns_without_an_agreement() {
    for seed in 0..12 {
        play(seed, 3, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let part = Part::new(rank, &ctx, true, seed % 2 == 0);
            let stream = ctx.gpu().stream().unwrap();
            let mut rng = fastrand::Rng::with_seed(seed << 8 | u64::from(rank.me));
            for step in 0..16 {
                part.write(step);
                match rng.u32(0..3) {
                    0 => part.on(&stream, false),
                    1 => part.on(&stream, true),
                    _ => part.by_cpu(),
                }
                part.check(step);
            }
            drop(part);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}

/// Steps are enqueued far ahead of the neighbour, which finds its memory as it left it until it is ready.
#[test]
fn late_neighbour_is_sent_nothing_before_it_is_ready() {
    for whole in [false, true] {
        play(1, 2, move |rank| late_neighbour(rank, whole));
    }
}

fn late_neighbour(rank: &Rank, whole: bool) {
    let ctx = rank.open(|b| b.path(PathChoice::Ipc).timeout(secs(60)));
    let part = Part::new(rank, &ctx, true, false);
    let stream = ctx.gpu().stream().unwrap();
    for step in 0..6 {
        part.write(step);
        if rank.me == 1 {
            let image = vec![step as u8 ^ 0x5a; 2 * ROOM];
            part.received.write(0, &image).unwrap();
            rank.pass(secs(2));
            let mut got = vec![0; 2 * ROOM];
            part.received.read(0, &mut got).unwrap();
            assert!(got == image, "step {step}");
            part.on(&stream, whole);
        } else {
            part.enqueue(&stream, whole);
            rank.pass(secs(1));
            assert!(!stream.is_idle().unwrap());
            ctx.synchronize(&stream, LIMIT).unwrap();
        }
        part.check(step);
        rank.barrier();
    }
}

/// A rank that is absent is given up: the stream of the other one ends within the limit, with the error of
/// the step. Nothing is written to its memory later, although its words would allow it.
#[test]
fn rank_that_was_given_up_is_sent_nothing() {
    for whole in [false, true] {
        play(1, 2, move |rank| absent_neighbour(rank, whole));
    }
}

fn absent_neighbour(rank: &Rank, whole: bool) {
    let limit = secs(3);
    let ctx = rank.open(|b| b.path(PathChoice::Ipc).timeout(limit));
    let part = Part::new(rank, &ctx, true, false);
    let stream = ctx.gpu().stream().unwrap();
    part.write(0);
    part.on(&stream, false);
    part.check(0);
    rank.barrier();
    if rank.me == 1 {
        // Its stream does not take part in the step until rank 0 has given it up, and is ready then.
        let gate = Gate::new(ctx.gpu());
        gate.hold(&stream);
        part.halo.ready_on(&stream).unwrap();
        rank.barrier();
        let image = vec![0x77; ROOM];
        part.received.write(0, &image).unwrap();
        gate.open();
        let _ = stream.synchronize(secs(1));
        rank.barrier();
        rank.barrier();
        let mut got = vec![0; ROOM];
        part.received.read(0, &mut got).unwrap();
        assert!(got == image, "rank 0 has written");
        return;
    }
    part.write(1);
    let start = rank.host.now();
    part.enqueue(&stream, whole);
    sim::peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
    assert!(rank.host.now().since(start) < limit + secs(2));
    rank.barrier();
    rank.barrier();
    // The rank is ready: its words are not those of a rank that was given up any more. Two steps later the stream
    // waits for the same words.
    for _ in 0..4 {
        part.enqueue(&stream, whole);
        sim::peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
    }
    rank.barrier();
}

/// A rank that has waited for its last step releases its memory; its neighbour, which has sent already,
/// waits later.
#[test]
fn neighbour_may_drop_its_side_before_this_rank_waits() {
    for seed in 0..6 {
        play(seed, 2, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let part = Part::new(rank, &ctx, true, false);
            let stream = ctx.gpu().stream().unwrap();
            part.write(0);
            part.halo.ready_on(&stream).unwrap();
            part.halo.send_on(&stream).unwrap();
            if rank.me == 1 {
                part.halo.wait_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                part.check(0);
                drop(part);
                rank.barrier();
            } else {
                rank.barrier();
                rank.pass(secs(1));
                part.halo.wait_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                part.check(0);
            }
            rank.barrier();
            sim::exchange(&ctx, rank.peer(), 5);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}

/// Of a step that has begun, a call makes the missing parts.
#[test]
fn call_of_a_whole_step_completes_a_step_that_has_begun() {
    for double in [false, true] {
        play(1, 3, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let part = Part::new(rank, &ctx, true, double);
            let stream = ctx.gpu().stream().unwrap();
            for step in 0..4 {
                part.write(step);
                if step % 2 == 1 {
                    part.halo.ready_on(&stream).unwrap();
                }
                if step == 3 {
                    part.halo.send_on(&stream).unwrap();
                }
                part.on(&stream, true);
                part.check(step);
            }
            assert_eq!(part.halo.step(), 4);
            rank.barrier();
        });
    }
}
