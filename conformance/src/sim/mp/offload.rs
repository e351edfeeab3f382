//! Messages of streams are transferred without the thread that enqueued them. Two ranks enqueue a
//! program whose messages start at given times, and then wait, or sleep until the end. Every
//! message completes at the same time in both cases.
//!
//! A step takes no time here: the clock moves only from one event to the next. So the times of
//! completions do not depend on how often the simulation steps each machine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gds_sim::{SimConfig, SimError, When};
use gds_step::{Machine, Step, Thread, Time};
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, MemoryKind, Stream, Word64};
use gdsync::rdma::{Descriptor, QpConfig, post_on};
use mp::bootstrap::Local;
use mp::{Context, NicOptions};

use crate::mp::pair::message;
use crate::sim::world::{LIMIT, play_in};

/// Messages in each direction on each stream.
const MESSAGES: usize = 24;
/// Streams of a rank.
const STREAMS: usize = 2;
/// Messages in each direction.
const EACH: usize = STREAMS * MESSAGES;
/// Time for which the ranks sleep.
const SLEEP: Duration = Duration::from_millis(100);
/// Time at which everything is enqueued and the first message may start.
const ENQUEUED: Time = Time::from_nanos(20_000_000);

/// The CPU threads that sleep while the messages are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// None: the ranks wait for their streams.
    Nothing,
    /// The ranks.
    Ranks,
    /// The ranks, and all CPU threads of their contexts and queue pairs.
    All,
}

/// Sets words at given times, behind which the messages of a rank are sent, and records the times
/// when completed messages set other words.
struct Clockwork {
    gates: Vec<(Time, Word64)>,
    marks: Vec<Word64>,
    /// By rank and mark.
    times: Arc<Mutex<Vec<Option<Time>>>>,
    rank: usize,
}

impl Machine for Clockwork {
    fn step(&mut self, now: Time) -> Step {
        let mut times = self.times.lock().expect("no panic under the lock");
        let times = &mut times[self.rank * EACH..];
        for (mark, time) in self.marks.iter().zip(times) {
            if time.is_none() && mark.load().is_ok_and(|set| set == 1) {
                *time = Some(now);
            }
        }
        let before = self.gates.len();
        self.gates.retain(|(at, gate)| {
            let due = *at <= now;
            if due {
                gate.store(1).expect("a pinned word");
            }
            !due
        });
        match before == self.gates.len() {
            true => Step::IdleUntil(self.gates.iter().map(|gate| gate.0).min()),
            false => Step::Progress,
        }
    }

    fn name(&self) -> String {
        format!("clockwork{}", self.rank)
    }
}

/// The start time of message `i` of a stream of a rank.
fn gate(rank: usize, stream: usize, i: usize) -> Time {
    let pace = [1_100_000, 1_370_000, 1_930_000, 2_210_000][2 * rank + stream];
    ENQUEUED + Duration::from_nanos(pace * (1 + i as u64))
}

/// Sizes: small, large, and empty.
fn length(stream: usize, i: usize) -> usize {
    [64, 3000, 0, 200][(stream + i) % 4]
}

/// Runs the program under the schedule of `seed`; the times at which its messages complete, by
/// rank, stream and number.
///
/// # Errors
/// The finding of the simulation.
pub fn times(seed: u64, sleep: Sleep) -> Result<Vec<Time>, SimError> {
    let config = SimConfig {
        step_ns: 0..=0,
        ..SimConfig::seed(seed)
    };
    let times = Arc::new(Mutex::new(vec![None; 2 * EACH]));
    let (jobs, noted) = (Local::ranks_of(seed, 2), Arc::clone(&times));
    play_in(config, None, 2, move |rank| {
        let me = rank.me;
        let devices = rank.open(SoftOptions::default());
        let words = devices.gpu.alloc(MemoryKind::Pinned, 16 * EACH);
        let words = words.expect("words");
        let word = |at: usize| words.word64(8 * at).expect("a word");
        let mine: Vec<[Word64; 2]> = (0..EACH)
            .map(|at| [word(2 * at), word(2 * at + 1)])
            .collect();
        let due = |at: usize| gate(me, at / MESSAGES, at % MESSAGES);
        let clockwork = Clockwork {
            gates: (0..EACH).map(|at| (due(at), mine[at][0].clone())).collect(),
            marks: mine.iter().map(|[_, mark]| mark.clone()).collect(),
            times: Arc::clone(&noted),
            rank: me,
        };
        rank.host.attach(Thread::Device, Box::new(clockwork));
        let ctx = Context::builder()
            .bootstrap(Arc::clone(&jobs[me]))
            .gpu(&devices.gpu)
            .device(&devices.device)
            .eager_limit(256)
            .timeout(LIMIT)
            .nic(NicOptions::default().queues(QpConfig::default().send_blocks(1024)))
            .build()
            .expect("a context");
        let check = enqueue(&ctx, &mine);
        let now = rank.host.now();
        assert!(now < ENQUEUED, "enqueued only at {now:?}");
        let parts = [
            format!("mp{me}.progress"),
            devices.nic() + ".watcher",
            format!("rank{me}"),
        ];
        let asleep = match sleep {
            Sleep::Nothing => &[][..],
            Sleep::Ranks => &parts[2..],
            Sleep::All => &parts[..],
        };
        for name in asleep {
            rank.control.freeze(name);
            let wakes = When::Time(ENQUEUED + SLEEP);
            rank.control.unfreeze_at(wakes, name);
        }
        check();
        ctx.close(LIMIT).expect("closed");
    })?;
    let times = times.lock().expect("no panic under the lock");
    let moved = |time: &Option<Time>| time.expect("every message moved");
    Ok(times.iter().map(moved).collect())
}

/// Enqueues all messages of a rank; the returned function waits for them and checks them.
fn enqueue(ctx: &Context, words: &[[Word64; 2]]) -> impl FnOnce() + use<> {
    const ROOM: usize = 4096;
    let peer = 1 - ctx.rank();
    let memory = |kind| ctx.alloc(kind, ROOM * words.len()).expect("memory");
    let (out, into) = (memory(MemoryKind::Pinned), memory(MemoryKind::Device));
    let streams: Vec<Stream> = (0..STREAMS).map(|_| ctx.gpu().stream().unwrap()).collect();
    let name = |rank: u32, at: usize| rank as usize * words.len() + at;
    for (at, [gate, mark]) in words.iter().enumerate() {
        let (s, i) = (at / MESSAGES, at % MESSAGES);
        let (stream, tag, len) = (&streams[s], s as u32, length(s, i));
        out.write(ROOM * at, &message(name(ctx.rank(), at), len))
            .unwrap();
        let hold = [Descriptor::wait_value(gate, Condition::Geq, 1)];
        post_on(stream, &mut [], &hold).unwrap();
        let slice = |memory: &mp::Memory| memory.slice(ROOM * at, len).unwrap();
        let recv = ctx.irecv_on(stream, peer, tag, &slice(&into)).unwrap();
        let send = ctx.isend_on(stream, peer, tag, &slice(&out)).unwrap();
        recv.wait_on(stream).unwrap();
        send.wait_on(stream).unwrap();
        let done = [Descriptor::write_value(mark, 1)];
        post_on(stream, &mut [], &done).unwrap();
    }
    let expected: Vec<Vec<u8>> = (0..words.len())
        .map(|at| message(name(peer, at), length(at / MESSAGES, at % MESSAGES)))
        .collect();
    move || {
        for stream in &streams {
            assert!(stream.synchronize(LIMIT).unwrap(), "a stream hangs");
        }
        for (at, want) in expected.iter().enumerate() {
            let mut got = vec![0; want.len()];
            into.read(ROOM * at, &mut got).unwrap();
            assert_eq!(got, *want, "message {at}");
        }
    }
}

/// Runs the program with no thread, the ranks, and all their CPU threads asleep. The times are the
/// same, and all waits but the last complete before any thread wakes.
///
/// # Errors
/// The finding of the simulation.
pub fn run(seed: u64) -> Result<(), SimError> {
    let awake = times(seed, Sleep::Nothing)?;
    assert!(awake.iter().all(|t| *t < ENQUEUED + SLEEP), "{awake:?}");
    for sleep in [Sleep::Ranks, Sleep::All] {
        let asleep = times(seed, sleep)?;
        assert_eq!(asleep, awake, "with {sleep:?} asleep");
    }
    Ok(())
}
