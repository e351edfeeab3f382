//! A rank is killed, or stopped, in the middle of exchanges with two others. Their requests fail
//! with an error that names the rank, their streams pass, and they agree that it is lost and
//! continue with each other. Ranks are processes: the bootstrap's connections report a killed rank,
//! and nothing reports a stopped one. [`killed`](super::killed) uses the common parts.

use std::time::{Duration, Instant};

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Connect, Context, Kind};
use rustix::process::{Pid, Signal, kill_process};

use super::launch::{DONE, Ranks, join};
use crate::mp::pair::{AHEAD, Pair};
use crate::rig::limits::{scaled, time_limit};
use crate::rig::provider;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{Runtime, finish};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-lost";

pub(super) const RANKS: u32 = 3;
/// The rank that is killed.
pub(super) const VICTIM: u32 = 1;
/// The line that a rank prints when it exchanges messages.
pub(super) const GOING: &str = "going";

/// Tags before and after the loss.
pub(super) const BEFORE: u32 = 100;
pub(super) const AFTER: u32 = 200;

/// Timeout of a message that neither a NIC nor a rank answers.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);

/// How a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is killed.
    Killed,
    /// It is stopped (SIGSTOP).
    Stopped,
}

/// The side of the parent process.
///
/// # Errors
/// The failures of the remaining ranks.
pub fn lost(runtime: Runtime, gpus: u32, failure: Failure) -> Verdict {
    fail(Ranks::start(ROLE, runtime, [RANKS, gpus], "")?, failure)
}

/// Starts two ranks in a role with this kind of memory, kills the second one when it says that messages flow,
/// and waits until the first one is done.
///
/// # Errors
/// The failures of the ranks.
pub(super) fn kill_second(role: &str, runtime: Runtime, gpus: u32, kind: MemoryKind) -> Verdict {
    let mut all = Ranks::start(role, runtime, [2, gpus], &format!("{kind:?}:{gpus}"))?;
    let deadline = Instant::now() + 3 * time_limit();
    let line = |all: &Ranks| {
        let late = || format!("no rank prints a line within {:?}", 3 * time_limit());
        all.next_line(deadline).ok_or_else(late)
    };
    let (rank, going) = line(&all)?;
    ensure(rank == 1 && going == GOING, || {
        format!("rank {rank}: {going}")
    })?;
    let victim = &mut all.processes[1].0;
    victim.kill()?;
    victim.wait()?;
    loop {
        match line(&all)? {
            (0, done) => return ensure(done == DONE, || format!("rank 0: {done}")),
            // The standard error of rank 1.
            _ => continue,
        }
    }
}

/// Makes a rank fail when all exchange messages, and waits until the others are done.
pub(super) fn fail(mut all: Ranks, failure: Failure) -> Verdict {
    let deadline = Instant::now() + 3 * time_limit();
    // Waits until `ranks` ranks have printed the line.
    let await_lines = |all: &Ranks, wanted: &str, ranks: u32| -> Verdict {
        let mut count = 0;
        while count < ranks {
            let (rank, line) = all.next_line(deadline).ok_or_else(|| {
                let limit = 3 * time_limit();
                format!("{count} of {ranks} ranks print {wanted:?} within {limit:?}")
            })?;
            if rank == VICTIM && wanted == DONE {
                continue;
            }
            ensure(line == wanted, || format!("rank {rank}: {}", line.trim()))?;
            count += 1;
        }
        Ok(())
    };
    await_lines(&all, GOING, RANKS)?;
    let victim = &mut all.processes[VICTIM as usize].0;
    match failure {
        Failure::Killed => {
            victim.kill()?;
            victim.wait()?;
        }
        Failure::Stopped => kill_process(Pid::from_child(victim), Signal::STOP)?,
    }
    await_lines(&all, DONE, RANKS - 1)
}

/// The context of a rank that was started.
pub(super) fn open(arguments: &[String], timeout: Duration) -> Verdict<Context> {
    let (gpu, bootstrap) = join(arguments)?;
    let ctx = Context::builder()
        .bootstrap(bootstrap)
        .gpu(&gpu)
        .connect(Connect::UpFront)
        .timeout(scaled(timeout))
        .build()?;
    provider::check(ctx.device())?;
    Ok(ctx)
}

/// Runs one rank.
pub fn child_main(arguments: &[String]) -> Verdict {
    let ctx = open(arguments, TIMEOUT)?;
    let rank = ctx.rank();
    let others = (0..RANKS).filter(|other| *other != rank);
    let needed = |other: &u32| rank == VICTIM || *other == VICTIM;
    let pairs = Pair::all(&ctx, others.clone().filter(needed), BEFORE)?;
    let mut batch = 0;
    let failed = loop {
        match exchange(&pairs, batch) {
            Ok(()) => batch += 1,
            Err(failed) => break failed,
        }
        if batch == 3 {
            println!("{GOING}");
        }
    };
    continues(&ctx, &failed, &pairs[0].stream, true)?;
    let friends = Pair::all(&ctx, others.filter(|other| *other != VICTIM), AFTER)?;
    for batch in 0..8 {
        exchange(&friends, batch)?;
    }
    leave(&ctx)
}

/// The failure names the victim, the stream of its messages passes, and the survivors agree.
/// `in_flight`: a request has failed, not a call.
pub(super) fn continues(
    ctx: &Context,
    failed: &mp::Error,
    stream: &Stream,
    in_flight: bool,
) -> Verdict {
    let named = (failed.rank(), matches!(failed.kind(), Kind::PeerFailed(_)));
    ensure(named == (Some(VICTIM), true), || format!("{failed:?}"))?;
    finish(stream, "the stream of the one that died")?;
    ensure(ctx.error().is_some() || !in_flight, || {
        "no error word".to_owned()
    })?;
    ensure(ctx.stuck().is_empty(), || format!("{:?}", ctx.stuck()))?;
    let agreed = ctx.agree(ctx.rank().into(), time_limit())?;
    ensure((&agreed.lost[..], agreed.value) == (&[VICTIM], 2), || {
        format!("{agreed:?}")
    })
}

/// Closes the context of a survivor.
pub(super) fn leave(ctx: &Context) -> Verdict {
    // Requests that were dropped have failed.
    if let Err(e) = ctx.close(time_limit()) {
        ensure(e.rank() == Some(VICTIM), || format!("{e:?}"))?;
    }
    ctx.close(time_limit())?;
    println!("{DONE}");
    Ok(())
}

/// Enqueues as many rounds with each pair as may be in flight, on their streams.
fn exchange(pairs: &[Pair<'_>], batch: usize) -> mp::Result<()> {
    let mut posted = Vec::new();
    for pair in pairs {
        for round in (0..AHEAD).map(|i| batch * AHEAD + i) {
            posted.push((pair, round, pair.post(round, false)?));
        }
    }
    let mut posted = posted.iter();
    posted.try_for_each(|(pair, round, requests)| pair.check(*round, requests, time_limit()))
}
