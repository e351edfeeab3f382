//! A rank that is killed, or stopped, in the middle of exchanges with two others: they are told
//! who it was, their streams pass, and they go on with each other. Ranks are processes: of one
//! that is killed the connections of the bootstrap tell, of one that is stopped nobody.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gdsync::gpu::MemoryKind;
use mp::bootstrap::Secret;
use mp::bootstrap::tcp::{Join, Server, Tcp};
use mp::{Connect, Context, Kind, Memory};
use rustix::process::{Pid, Signal, kill_process};

use super::run::gpu_of;
use crate::live::child::{self, Guarded};
use crate::live::limits::{scaled, time_limit};
use crate::live::provider;
use crate::live::rig::{Runtime, finish};
use crate::live::verdict::{Verdict, ensure};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-lost";

const JOB: &str = "conformance-lost";
const RANKS: u32 = 3;
/// The rank that is killed.
const VICTIM: u32 = 1;
/// What a rank says when it exchanges, and at its end.
const GOING: &str = "going";
const DONE: &str = "done";

/// Messages of an exchange that are under way each way, and bytes of the longest.
const BATCH: usize = 4;
const SLOT: usize = 10_000;
/// Tags before the death and after it.
const BEFORE: u32 = 1;
const AFTER: u32 = 2;

/// After which a message is given up that no NIC and no rank answers.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What becomes of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is killed.
    Killed,
    /// It stands still.
    Stopped,
}

/// The parent's side.
///
/// # Errors
/// What the ranks that are left found.
pub fn lost(runtime: Runtime, gpus: u32, fate: Fate) -> Verdict {
    let secret = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let store = Server::start(anywhere, &Secret::from_text(&secret)?, JOB, RANKS)?;
    let address = store.address().to_string();
    let (tell, told) = mpsc::channel();
    let start = |rank: u32| -> Verdict<Guarded> {
        let arguments = [
            runtime.name(),
            &gpus.to_string(),
            &rank.to_string(),
            &address,
            &secret,
        ];
        let mut command = child::command(ROLE, &arguments)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Guarded(command.spawn()?);
        let hear = process.0.stdout.take().ok_or("no standard output")?;
        let mut errors = process.0.stderr.take().ok_or("no standard error")?;
        let tell = tell.clone();
        std::thread::spawn(move || {
            // Nobody listens any more once the trial has been given up.
            for line in BufReader::new(hear).lines().map_while(Result::ok) {
                let over = line == DONE;
                let _ = tell.send((rank, line));
                if over {
                    // Its end is no news.
                    return;
                }
            }
            let mut why = String::new();
            let _ = errors.read_to_string(&mut why);
            let _ = tell.send((rank, why));
        });
        Ok(process)
    };
    let mut processes = (0..RANKS).map(start).collect::<Verdict<Vec<_>>>()?;
    let deadline = Instant::now() + 3 * time_limit();
    // That all the ranks there are say so.
    let all_say = |wanted: &str, ranks: u32| -> Verdict {
        let mut said = 0;
        while said < ranks {
            let left = deadline.saturating_duration_since(Instant::now());
            let (rank, line) = told.recv_timeout(left).map_err(|_| {
                format!(
                    "{said} of {ranks} ranks say {wanted:?} within {:?}",
                    3 * time_limit()
                )
            })?;
            if rank == VICTIM && wanted == DONE {
                continue;
            }
            ensure(line == wanted, || format!("rank {rank}: {}", line.trim()))?;
            said += 1;
        }
        Ok(())
    };
    all_say(GOING, RANKS)?;
    let victim = &mut processes[VICTIM as usize].0;
    match fate {
        Fate::Killed => {
            victim.kill()?;
            victim.wait()?;
        }
        Fate::Stopped => kill_process(Pid::from_child(victim), Signal::STOP)?,
    }
    all_say(DONE, RANKS - 1)
}

/// One rank.
///
/// # Errors
/// Whatever goes wrong.
pub fn child_main(arguments: &[String]) -> Verdict {
    let [runtime, gpus, rank, store, secret] = arguments else {
        return Err("a runtime, GPUs, a rank, a store and a secret".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    let rank: u32 = rank.parse()?;
    let gpu = gpu_of(runtime, rank, gpus.parse()?)?;
    let (secret, part) = (Secret::from_text(secret)?, (rank, RANKS));
    let join = Join::new(store, part, &secret, time_limit()).name(JOB);
    let ctx = Context::builder()
        .bootstrap(Arc::new(Tcp::join(&join)?))
        .gpu(&gpu)
        .connect(Connect::UpFront)
        .timeout(scaled(TIMEOUT))
        .build()?;
    provider::check(ctx.device())?;
    let others: Vec<u32> = (0..RANKS).filter(|other| *other != rank).collect();
    if rank == VICTIM {
        let mut exchanges = Exchanges::new(&ctx, &others, BEFORE)?;
        for round in 0.. {
            exchanges.round(round)?;
            if round == 2 {
                println!("{GOING}");
            }
        }
    }
    let mut exchanges = Exchanges::new(&ctx, &[VICTIM], BEFORE)?;
    let mut round = 0;
    let failed = loop {
        match exchanges.round(round) {
            Ok(()) => round += 1,
            Err(Trouble::Told(failed)) => break failed,
            Err(Trouble::Wrong(failed)) => return Err(failed),
        }
        if round == 3 {
            println!("{GOING}");
        }
    };
    let named = (failed.rank(), matches!(failed.kind(), Kind::PeerFailed(_)));
    ensure(named == (Some(VICTIM), true), || format!("{failed:?}"))?;
    finish(&exchanges.stream, "the stream of the one that died")?;
    ensure(ctx.error().is_some(), || "no error word".to_owned())?;
    ensure(ctx.stuck().is_empty(), || format!("{:?}", ctx.stuck()))?;
    let friends: Vec<u32> = others.into_iter().filter(|o| *o != VICTIM).collect();
    let mut exchanges = Exchanges::new(&ctx, &friends, AFTER)?;
    for round in 0..8 {
        exchanges.round(round)?;
    }
    // Requests that were dropped have failed.
    if let Err(e) = ctx.close(time_limit()) {
        ensure(e.rank() == Some(VICTIM), || format!("{e:?}"))?;
    }
    ctx.close(time_limit())?;
    println!("{DONE}");
    Ok(())
}

/// Why an exchange did not go on.
enum Trouble {
    /// The library says so.
    Told(mp::Error),
    /// What came is wrong.
    Wrong(libtest_mimic::Failed),
}

impl From<mp::Error> for Trouble {
    fn from(e: mp::Error) -> Trouble {
        Trouble::Told(e)
    }
}

impl From<gdsync::Error> for Trouble {
    fn from(e: gdsync::Error) -> Trouble {
        Trouble::Wrong(e.into())
    }
}

impl From<Trouble> for libtest_mimic::Failed {
    fn from(trouble: Trouble) -> libtest_mimic::Failed {
        match trouble {
            Trouble::Told(e) => format!("{e:?}").into(),
            Trouble::Wrong(failed) => failed,
        }
    }
}

/// Messages to and from some ranks, on one stream.
struct Exchanges<'a> {
    ctx: &'a Context,
    with: Vec<u32>,
    tag: u32,
    stream: gdsync::Stream,
    memory: Memory,
}

impl Exchanges<'_> {
    fn new<'a>(ctx: &'a Context, with: &[u32], tag: u32) -> Verdict<Exchanges<'a>> {
        Ok(Exchanges {
            ctx,
            with: with.to_vec(),
            tag,
            stream: ctx.gpu().stream()?,
            memory: ctx.alloc(MemoryKind::Pinned, 2 * BATCH * with.len() * SLOT)?,
        })
    }

    /// Some messages with each of them, whose bytes are looked at.
    fn round(&mut self, round: u32) -> Result<(), Trouble> {
        // Short ones, and such as go by a handshake.
        let len = |i: usize| if i.is_multiple_of(2) { 64 } else { SLOT };
        let byte = |rank: u32, i: usize| (rank * 89 + round * 7 + i as u32) as u8;
        let mut requests = Vec::new();
        for (at, with) in self.with.iter().copied().enumerate() {
            for i in 0..BATCH {
                let slot = 2 * (at * BATCH + i) * SLOT;
                let bytes = vec![byte(self.ctx.rank(), i); len(i)];
                self.memory.write(slot, &bytes)?;
                self.memory.write(slot + SLOT, &vec![0; len(i)])?;
                let out = self.memory.slice(slot, len(i))?;
                let into = self.memory.slice(slot + SLOT, len(i))?;
                let recv = self.ctx.irecv_on(&self.stream, with, self.tag, &into)?;
                let send = self.ctx.isend_on(&self.stream, with, self.tag, &out)?;
                recv.wait_on(&self.stream)?;
                send.wait_on(&self.stream)?;
                requests.push((with, i, slot, recv, send));
            }
        }
        finish(&self.stream, "an exchange").map_err(Trouble::Wrong)?;
        for (with, i, slot, recv, send) in requests {
            recv.wait(time_limit())?;
            send.wait(time_limit())?;
            let mut got = vec![0; len(i)];
            self.memory.read(slot + SLOT, &mut got)?;
            let right = got.iter().all(|b| *b == byte(with, i));
            ensure(right, || {
                format!("round {round}: not what rank {with} sent")
            })
            .map_err(Trouble::Wrong)?;
        }
        Ok(())
    }
}
