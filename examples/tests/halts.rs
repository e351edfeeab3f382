//! A rank of a stencil dies, or stands still, in the middle. Ranks are processes, each this
//! program again: [`a_rank`] is what they do.
//!
//! Four ranks make a grid of two by two, where ranks 1 and 2 exchange halos with rank 3, and rank 0
//! only with those two. So ranks 1 and 2 find rank 3 gone, and stop by closing their context; rank
//! 0, which wants nothing of rank 3, finds that one of them has closed. All three then talk in another context, which the loss of rank 3 is nothing to, say
//! whom they miss, and see there that rank 3 is gone as soon as they want something of it.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Gpu, Status};
use mp::{Context, Error, Kind, Recv};
use mp_examples::halo2d::{self, Config};

/// The rank that halts.
const VICTIM: u32 = 3;
const SURVIVORS: [u32; 3] = [0, 1, 2];
/// How long ranks 1, 2 and 3 wait for each other.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long rank 0 waits: long enough for its neighbours to be the first who give somebody up.
const TIMEOUT_OF_0: Duration = Duration::from_secs(20);
/// What a busy machine may add to a timeout.
const SLACK: Duration = Duration::from_secs(15);
/// After which something that should have happened counts as hung. Longer than what is tested.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes [`a_rank`] one.
const PLAYS: &str = "HALTS_RANK";

const TAG_TALK: u32 = 1;
const TAG_PROBE: u32 = 2;
/// Bytes of what survivors tell each other: a short message, and one that is written in place.
const SIZES: [usize; 2] = [256, 100_000];

/// Not a test: what each process of the tests does.
#[test]
#[ignore = "a rank of the other tests"]
fn a_rank() {
    if env::var_os(PLAYS).is_none() {
        return;
    }
    let gpu = Gpu::open("soft").unwrap();
    let bootstrap = mp::bootstrap::from_env().unwrap();
    let timeout = match bootstrap.rank() {
        0 => TIMEOUT_OF_0,
        _ => TIMEOUT,
    };
    let open = |name: &str, timeout: Duration| {
        let builder = Context::builder().bootstrap(bootstrap.clone()).gpu(&gpu);
        builder.name(name).timeout(timeout).build().unwrap()
    };
    let ctx = open("halo", timeout);
    let other = open("other", TIMEOUT);
    let config = |iterations| Config {
        iterations,
        limit: LIMIT,
        ..Config::default()
    };
    let outcome = halo2d::run(&ctx, &config(50)).unwrap();
    assert_eq!(outcome.differing, 0);
    eprintln!("ready");

    // As many as nobody waits for.
    let e = halo2d::run(&ctx, &config(1_000_000_000)).unwrap_err();
    say("halo", &e);
    // Tells those who wait for this rank that it stops.
    drop(ctx);

    talk(&other, e.rank().unwrap());
    let into = other.alloc(MemoryKind::Pinned, 8).unwrap().all();
    let one = [into];
    let recv = Recv::new(VICTIM, TAG_PROBE, &one).timeout(TIMEOUT);
    let e = other.recv(&recv).and_then(|r| r.wait(LIMIT)).unwrap_err();
    say("probe", &e);
    // Whoever is missed, those who are left are not.
    talk(&other, VICTIM);
    eprintln!("done");
    // A send of another's may have come, and that rank not know yet: nobody leaves before all say
    // that they are done.
    let _ = std::io::read_to_string(std::io::stdin());
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

/// Exchanges messages with the other survivors and says what each misses.
fn talk(ctx: &Context, missed: u32) {
    let others = SURVIVORS.into_iter().filter(|rank| *rank != ctx.rank());
    for (peer, len) in others.flat_map(|rank| SIZES.map(|len| (rank, len))) {
        let memory = ctx.alloc(MemoryKind::Pinned, 2 * len).unwrap();
        memory.write(0, &payload(ctx.rank(), missed, len)).unwrap();
        let into = memory.slice(len, len).unwrap();
        let recv = ctx.irecv(peer, TAG_TALK, &into).unwrap();
        let send = ctx.isend(peer, TAG_TALK, &memory.slice(0, len).unwrap());
        let done = recv.wait(LIMIT).unwrap();
        send.unwrap().wait(LIMIT).unwrap();
        assert_eq!((done.source(), done.len), (peer, len as u64));
        let mut got = vec![0; len];
        memory.read(len, &mut got).unwrap();
        let theirs = u32::from(got[0]);
        assert_eq!(got, payload(peer, theirs, len));
        let neighbours = [1, 2].contains(&peer);
        assert!(!neighbours || theirs == VICTIM, "{peer} misses {theirs}");
    }
}

/// Whom a rank misses, then bytes that are that rank's.
fn payload(rank: u32, missed: u32, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1 ^ rank) >> 24;
    let mut bytes: Vec<u8> = (0..len).map(|at| byte(at) as u8).collect();
    bytes[0] = missed as u8;
    bytes
}

/// A rank's process, ended with the test.
struct Rank {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Rank {
    fn start(rank: u32, folder: &Path) -> Rank {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(PLAYS, "1")
            .env("GDS_GPU", "soft")
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", "4")
            .env("MP_STORE", format!("file://{}", folder.display()))
            .env("MP_SECRET", "not much of a secret")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Rank { child, lines }
    }

    /// What follows `word` on the line that begins with it. Every wait of a rank is limited, so
    /// that this ends.
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
        // Both fail only for a process that is gone. One that stands still dies, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs four ranks, does `halt` to rank 3 in the middle, and checks what the others say of it.
fn survives(name: &str, halt: impl FnOnce(&mut Child)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = env::temp_dir().join(format!("mp-halts-{name}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::start(rank, &folder)).collect();
    for rank in &mut ranks {
        rank.expect("ready");
    }
    thread::sleep(Duration::from_millis(500));
    for rank in &mut ranks {
        let ended = rank.child.try_wait().unwrap();
        assert!(ended.is_none(), "a rank ended by itself");
    }
    let mut victim = ranks.pop().unwrap();
    halt(&mut victim.child);
    let halted = Instant::now();
    // Its neighbours first: rank 0 has more time.
    for rank in [1, 2, 0] {
        let said = ranks[rank].expect("halo");
        let took = halted.elapsed();
        println!("{name}: rank {rank} after {took:?}: {said}");
        // Rank 0 is told, and need not wait out its time.
        let (names, timeout) = match rank {
            0 => (&["PeerFailed 1 ", "PeerFailed 2 "][..], TIMEOUT_OF_0),
            _ => (&["PeerFailed 3 ", "Silent 3 "][..], TIMEOUT),
        };
        let named = names.iter().any(|name| said.starts_with(name));
        assert!(named, "rank {rank}: {said}");
        assert!(took < timeout + SLACK, "rank {rank}: {took:?}");
    }
    for rank in [0, 1, 2] {
        let said = ranks[rank].expect("probe");
        println!("{name}: rank {rank} wants something of rank 3: {said}");
        let kinds = ["PeerFailed 3 ", "Silent 3 ", "Timeout 3 "];
        let named = kinds.iter().any(|name| said.starts_with(name));
        assert!(named, "rank {rank}: {said}");
    }
    for rank in &mut ranks {
        rank.expect("done");
    }
    for rank in &mut ranks {
        drop(rank.child.stdin.take());
        assert!(rank.child.wait().unwrap().success());
    }
    drop(victim);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_killed_rank_is_named_and_the_others_go_on() {
    survives("killed", |victim| victim.kill().unwrap());
}

#[test]
fn a_frozen_rank_is_named_and_the_others_go_on() {
    survives("frozen", |victim| {
        let stop = format!("kill -STOP {}", victim.id());
        let status = Command::new("sh").args(["-c", &stop]).status().unwrap();
        assert!(status.success());
    });
}
