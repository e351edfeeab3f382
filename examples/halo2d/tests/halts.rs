//! A rank of a stencil dies, or is stopped, during the run. Ranks are processes, each another run
//! of this program: [`a_rank`] is their part.
//!
//! In grids of two by two and three by three some ranks exchange halos with the rank that halts.
//! The others wait for its neighbours. Every remaining rank gets an error that names the halted
//! rank. In the same context they then exchange messages in a ring, check that the lost rank stays
//! lost, and exchange messages again.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use clap::ValueEnum;
use halo2d::grid::Grid;
use halo2d::{Config, Model};
use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Gpu, Status};
use mp::{Context, Error, Full, Kind, Request, Slice};

/// The time limit of the contexts.
const TIMEOUT: Duration = Duration::from_secs(12);
/// The time without progress before a probe, and the limit for its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The time that a busy machine may add to a timeout.
const SLACK: Duration = Duration::from_secs(15);
/// The time after which the test reports a hang. Longer than every tested limit.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes [`a_rank`] a rank; its value is the model, the grid and the rank that halts.
const PLAYS: &str = "HALTS_RANK";

const TAG_RING: u32 = 1;
const TAG_PROBE: u32 = 2;
/// Bytes of the messages between survivors: an eager message, and one that is written in place.
const SIZES: [usize; 2] = [256, 100_000];

/// A job of the tests.
#[derive(Clone, Copy)]
struct Job {
    model: Model,
    grid: Grid,
    victim: u32,
    /// A rank that is killed while the others agree that `victim` is lost, and the time from the
    /// halt of that one in ms.
    second: Option<(u32, u64)>,
}

impl Job {
    fn to_text(self) -> String {
        let Grid { columns, rows } = self.grid;
        let second = self.second;
        let second = second.map_or(String::new(), |(rank, ms)| format!(" {rank} {ms}"));
        format!("{} {columns}x{rows} {}{second}", self.model, self.victim)
    }

    fn from_text(text: &str) -> Job {
        let mut words = text.split(' ');
        Job {
            model: Model::from_str(words.next().unwrap(), false).unwrap(),
            grid: words.next().unwrap().parse().unwrap(),
            victim: words.next().unwrap().parse().unwrap(),
            second: words.next().map(|rank| {
                let ms = words.next().unwrap();
                (rank.parse().unwrap(), ms.parse().unwrap())
            }),
        }
    }

    fn survivors(self) -> Vec<u32> {
        let ranks = 0..self.grid.ranks().unwrap();
        let second = self.second.map(|(second, _)| second);
        let lost = |rank: &u32| *rank == self.victim || Some(*rank) == second;
        ranks.filter(|rank| !lost(rank)).collect()
    }
}

/// Not a test: the part of each process of the tests.
#[test]
#[ignore = "a rank of the other tests"]
fn a_rank() {
    let Ok(job) = env::var(PLAYS) else { return };
    let job = Job::from_text(&job);
    let gpu = Gpu::open("soft").unwrap();
    let builder = Context::builder().gpu(&gpu).timeout(TIMEOUT);
    let ctx = builder.full(Full::Fail).build().unwrap();
    let config = |iterations| Config {
        grid: Some(job.grid),
        model: job.model,
        iterations,
        limit: TIMEOUT,
        answer_limit: ANSWER_LIMIT,
        ..Config::default()
    };
    let outcome = halo2d::run(&ctx, &config(50)).unwrap();
    assert_eq!(outcome.differing, 0);
    eprintln!("ready");

    // More than can complete: the run ends by the halt.
    let e = halo2d::run(&ctx, &config(1_000_000_000)).unwrap_err();
    say("halo", &e);

    exchange(&ctx, &job.survivors());
    let into = ctx.alloc(MemoryKind::Pinned, 8).unwrap().all();
    let probe = ctx.irecv(job.victim, TAG_PROBE, &into);
    let e = probe.and_then(|r| r.wait(LIMIT)).unwrap_err();
    say("probe", &e);
    // Only the halted rank is lost, not the remaining ones.
    exchange(&ctx, &job.survivors());
    eprintln!("done");
    // The send of another rank may have arrived before that rank has its completion: no rank leaves
    // before all report that they are done.
    let _ = std::io::read_to_string(std::io::stdin());
    // Requests whose handles were dropped have failed.
    if let Err(e) = ctx.close(LIMIT) {
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
    }
    ctx.close(LIMIT).unwrap();
}

fn say(what: &str, e: &Error) {
    let kind = match e.kind() {
        Kind::PeerFailed(Status::TIMEOUT) => "Silent",
        Kind::PeerFailed(_) => "PeerFailed",
        Kind::Timeout => "Timeout",
        _ => "other",
    };
    eprintln!("{what} {kind} {} {e}", e.rank().map_or(99, i64::from));
}

/// Sends messages around the ring of these ranks, by the CPU and on a stream, until each message
/// has returned to its rank.
fn exchange(ctx: &Context, ring: &[u32]) {
    let stream = ctx.gpu().stream().unwrap();
    let ranks = ring.len();
    let me = ring.iter().position(|rank| *rank == ctx.rank()).unwrap();
    let (to, from) = (ring[(me + 1) % ranks], ring[(me + ranks - 1) % ranks]);
    let isend = |on_stream: bool, data: &Slice| match on_stream {
        true => ctx.isend_on(&stream, to, TAG_RING, data),
        false => ctx.isend(to, TAG_RING, data),
    };
    let irecv = |on_stream: bool, into: &Slice| match on_stream {
        true => ctx.irecv_on(&stream, from, TAG_RING, into),
        false => ctx.irecv(from, TAG_RING, into),
    };
    for (len, on_stream) in SIZES
        .into_iter()
        .flat_map(|len| [(len, false), (len, true)])
    {
        let memory = ctx.alloc(MemoryKind::Pinned, 2 * len).unwrap();
        let (out, into) = (
            memory.slice(0, len).unwrap(),
            memory.slice(len, len).unwrap(),
        );
        let mut said = payload(ctx.rank(), len);
        for hop in 1..=ranks {
            memory.write(0, &said).unwrap();
            let recv: Request = irecv(on_stream, &into).unwrap();
            let send = isend(on_stream, &out);
            if on_stream {
                recv.wait_on(&stream).unwrap();
            }
            let done = recv.wait(LIMIT).unwrap();
            send.unwrap().wait(LIMIT).unwrap();
            assert_eq!((done.source(), done.len), (from, len as u64));
            memory.read(len, &mut said).unwrap();
            assert_eq!(said, payload(ring[(me + ranks - hop) % ranks], len));
        }
    }
}

/// A payload that identifies its rank.
fn payload(rank: u32, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1 ^ rank) >> 24;
    (0..len).map(|at| byte(at) as u8).collect()
}

/// The process of a rank; it is killed at the end of the test.
struct Rank {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Rank {
    fn start(job: Job, rank: u32, folder: &Path) -> Rank {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(PLAYS, job.to_text())
            .env("GDS_GPU", "soft")
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", job.grid.ranks().unwrap().to_string())
            .env("MP_STORE", format!("file://{}", folder.display()))
            .env("MP_SECRET", "not much of a secret")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Rank { child, lines }
    }

    /// The rest of the line that begins with `word`. Every wait of a rank has a time limit, so this
    /// ends.
    fn expect(&mut self, word: &str) -> String {
        let mut said = String::new();
        for line in &mut self.lines {
            let line = line.unwrap();
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim_start().to_owned();
            }
            said += &(line + "\n");
        }
        panic!("no {word:?} in {said}");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Both calls fail only for a process that has ended. A stopped process dies, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a job, halts a rank during the run, and checks the output of the others.
fn survive(job: Job, halt: fn(&mut Child)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let name = job.to_text();
    let folder = env::temp_dir().join(format!("mp-halts-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let ranks = 0..job.grid.ranks().unwrap();
    let mut ranks: Vec<Rank> = ranks.map(|rank| Rank::start(job, rank, &folder)).collect();
    for rank in &mut ranks {
        rank.expect("ready");
    }
    thread::sleep(Duration::from_millis(500));
    for rank in &mut ranks {
        let ended = rank.child.try_wait().unwrap();
        assert!(ended.is_none(), "a rank ended by itself");
    }
    halt(&mut ranks[job.victim as usize].child);
    let halted = Instant::now();
    if let Some((second, ms)) = job.second {
        thread::sleep(Duration::from_millis(ms));
        kill(&mut ranks[second as usize].child);
    }
    let second = job.second.map(|(second, _)| second);
    let lost = || [Some(job.victim), second].into_iter().flatten();
    let kinds = ["PeerFailed", "Silent", "Timeout"];
    let named = |said: &str| {
        let mut names = kinds
            .iter()
            .flat_map(|kind| lost().map(move |rank| format!("{kind} {rank} ")));
        names.any(|name| said.starts_with(&name))
    };
    for what in ["halo", "probe"] {
        for rank in job.survivors() {
            let said = ranks[rank as usize].expect(what);
            let took = halted.elapsed();
            println!("{name}: rank {rank}, {what}, after {took:?}: {said}");
            assert!(named(&said), "{name}: rank {rank}: {said}");
            assert!(took < TIMEOUT + SLACK, "{name}: rank {rank}: {took:?}");
        }
    }
    for rank in job.survivors() {
        ranks[rank as usize].expect("done");
    }
    for rank in job.survivors() {
        drop(ranks[rank as usize].child.stdin.take());
    }
    for rank in job.survivors() {
        assert!(ranks[rank as usize].child.wait().unwrap().success());
    }
    drop(ranks);
    fs::remove_dir_all(&folder).unwrap();
}

/// Two by two, where one rank is not a neighbour of the halted one.
const OF_FOUR: (u32, u32) = (2, 3);
/// Three by three, where four ranks are not neighbours of it.
const OF_NINE: (u32, u32) = (3, 4);

fn one_of(
    (side, victim): (u32, u32),
    second: Option<(u32, u64)>,
    models: &[Model],
    halt: fn(&mut Child),
) {
    for model in models.iter().copied() {
        let grid = Grid {
            columns: side,
            rows: side,
        };
        let job = Job {
            model,
            grid,
            victim,
            second,
        };
        survive(job, halt);
    }
}

fn kill(victim: &mut Child) {
    victim.kill().unwrap();
}

fn freeze(victim: &mut Child) {
    let stop = format!("kill -STOP {}", victim.id());
    let status = Command::new("sh").args(["-c", &stop]).status().unwrap();
    assert!(status.success());
}

#[test]
fn survivors_of_four_name_the_killed_rank() {
    one_of(OF_FOUR, None, &Model::ALL, kill);
}

#[test]
fn survivors_of_four_name_the_stopped_rank() {
    one_of(OF_FOUR, None, &Model::ALL, freeze);
}

#[test]
fn survivors_of_nine_name_the_killed_rank() {
    one_of(OF_NINE, None, &[Model::Stream], kill);
}

#[test]
fn survivors_of_nine_name_the_stopped_rank() {
    one_of(OF_NINE, None, &[Model::Stream], freeze);
}

/// The second rank, a neighbour of the first or not, dies shortly before the others call for an
/// agreement, or while they wait in it for the first rank.
#[test]
fn survivors_name_a_lost_rank_if_another_is_killed_during_the_agreement() {
    for second in [(7, 995), (8, 1030), (7, 1060)] {
        one_of(OF_NINE, Some(second), &[Model::Stream], freeze);
    }
    one_of(OF_FOUR, Some((0, 1020)), &[Model::Cpu], freeze);
}
