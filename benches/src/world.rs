//! Starts ranks as processes or as threads, and receives their notes. Every wait has a time limit:
//! a rank that dies or stops answering ends the run.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use mp::bootstrap::{Local, from_env};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::link::Link;
use crate::options::Ranks;
use crate::rank::{Job, Note, Outbox, Rank};
use crate::store::Store;

/// Time for the second rank to fail or end after the first one.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `job` on two ranks; calls `progress` with their notes of progress and parts. Returns the
/// result of each rank; `None` in the ranks of a launcher other than rank 0, which has the results.
///
/// # Errors
/// A rank failed or died, or the time limit expired. No process is left behind.
pub fn run(
    ranks: Ranks,
    job: &impl Job,
    limit: Duration,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Option<[Value; 2]>> {
    let results = match ranks {
        Ranks::Launched => launched(2, job, limit, progress)?,
        _ => {
            let (first, second) = UnixStream::pair().context("making a socket pair")?;
            Some(start(ranks, vec![first, second], job, limit, progress)?)
        }
    };
    let two = |results: Vec<Value>| {
        let two = <[Value; 2]>::try_from(results);
        two.map_err(|results| anyhow!("{} ranks instead of 2", results.len()))
    };
    results.map(two).transpose()
}

/// Starts one rank for each socket, as threads or as processes.
fn start(
    ranks: Ranks,
    sockets: Vec<UnixStream>,
    job: &impl Job,
    limit: Duration,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Vec<Value>> {
    match ranks {
        Ranks::Threads => threads(sockets, job, limit, progress),
        _ => processes(sockets, job, limit, progress),
    }
}

/// Runs `job` on `count` ranks, each a separate process; only mp connects them.
/// Returns the result of each rank.
///
/// # Errors
/// As [`run`].
pub fn run_many<R: DeserializeOwned>(
    count: usize,
    job: &impl Job,
    limit: Duration,
) -> Result<Vec<R>> {
    let results = run_ranks(Ranks::Processes, count, job, limit)?;
    results.context("no results")
}

/// As [`run`], on `count` ranks, which only mp connects.
///
/// # Errors
/// As [`run`].
pub fn run_ranks<R: DeserializeOwned>(
    ranks: Ranks,
    count: usize,
    job: &impl Job,
    limit: Duration,
) -> Result<Option<Vec<R>>> {
    let results = match ranks {
        Ranks::Launched => launched(count, job, limit, &mut |_, _| {})?,
        _ => {
            // The other ends of the sockets stay in this process.
            let pairs = (0..count).map(|_| UnixStream::pair());
            let pairs: Vec<_> = pairs
                .collect::<Result<_, _>>()
                .context("making a socket pair")?;
            let (_kept, given): (Vec<UnixStream>, Vec<UnixStream>) = pairs.into_iter().unzip();
            Some(start(ranks, given, job, limit, &mut |_, _| {})?)
        }
    };
    let read = |results: Vec<Value>| results.into_iter().map(serde_json::from_value).collect();
    let results = results.map(read).transpose();
    results.context("reading a rank's result")
}

/// Deadline for notes of ranks with the time limit `limit`. Ranks keep the limit themselves and
/// report their position; this deadline is for ranks that do not.
fn last(deadline: Instant) -> Instant {
    deadline + GRACE / 2
}

fn threads(
    sockets: Vec<UnixStream>,
    job: &impl Job,
    limit: Duration,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Vec<Value>> {
    let deadline = Instant::now() + limit;
    let count = sockets.len();
    let (sender, notes) = channel();
    let mut local = job
        .needs_mp()
        .then(|| Local::ranks(count as u32))
        .into_iter()
        .flatten();
    for (number, socket) in (0..).zip(sockets) {
        let (job, sender, bootstrap) = (job.clone(), sender.clone(), local.next());
        std::thread::Builder::new()
            .name(format!("rank{number}"))
            .spawn(move || {
                let link = Link::new(socket, deadline);
                let rank = Rank::new(number, link, deadline, Outbox::Channel(sender));
                rank.with_bootstrap(bootstrap).work(&job)
            })
            .context("starting a rank's thread")?;
    }
    drop(sender);
    listen(&notes, count, last(deadline), progress)
}

fn processes(
    sockets: Vec<UnixStream>,
    job: &impl Job,
    limit: Duration,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Vec<Value>> {
    let deadline = Instant::now() + limit;
    let (sender, notes) = channel();
    let count = sockets.len();
    let mut children = Vec::new();
    let store = job.needs_mp().then(|| Store::start(count as u32));
    let store = store.transpose()?;
    for (number, socket) in (0..).zip(sockets) {
        let (store, sender) = (store.as_ref(), sender.clone());
        children.push(Process::start(number, socket, store, job, limit, sender)?);
    }
    drop(sender);
    let result = listen(&notes, count, last(deadline), progress);
    // The status of a process that ended by itself is a better error than a missing note.
    let ends: Vec<Result<()>> = children.into_iter().map(Process::end).collect();
    let result = result.map_err(|e| match ends.iter().find_map(|end| end.as_ref().err()) {
        Some(end) => anyhow!("{e:#}; {end:#}"),
        None => e,
    })?;
    ends.into_iter().collect::<Result<()>>()?;
    Ok(result)
}

/// Runs as one of `count` ranks that a launcher started. Rank 0 returns the results of all; the other
/// ranks send it theirs and return `None`.
fn launched(
    count: usize,
    job: &impl Job,
    limit: Duration,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Option<Vec<Value>>> {
    let deadline = Instant::now() + limit;
    let bootstrap = from_env()?;
    let (number, size) = (bootstrap.rank(), bootstrap.size());
    ensure!(
        size as usize == count,
        "a job of {size} ranks: {count} are needed, named by a launcher or MP_RANK and MP_SIZE"
    );
    let (sender, notes) = channel();
    // Only jobs of two ranks use it.
    let link = Link::over(&bootstrap, number ^ 1, "mpbench", deadline);
    let rank = Rank::new(number, link, deadline, Outbox::Channel(sender));
    rank.with_bootstrap(Some(Arc::clone(&bootstrap))).work(job);
    let mut mine = None;
    for (rank, note) in notes {
        match note {
            Note::Result(value) => mine = Some(value),
            Note::Failed(why) => bail!("rank {rank}: {why}"),
            note => progress(rank, note),
        }
    }
    let mine = mine.context("no result")?;
    let bytes = serde_json::to_vec(&mine)?;
    let meet = |rank: u32, peer: u32| {
        let mut link = Link::over(
            &bootstrap,
            peer,
            &format!("mpbench result {rank}"),
            deadline,
        );
        let theirs = link.exchange(&bytes)?;
        // Neither rank ends before the other has the result.
        link.barrier()?;
        serde_json::from_slice(&theirs).context("reading another rank's result")
    };
    if number > 0 {
        return meet(number, 0).map(|_: Value| None);
    }
    let others = (1..size).map(|rank| meet(rank, rank));
    let all = std::iter::once(Ok(mine)).chain(others);
    all.collect::<Result<_>>().map(Some)
}

/// Receives notes of `count` ranks until each is done or one has failed.
fn listen(
    notes: &Receiver<(usize, Note)>,
    count: usize,
    mut deadline: Instant,
    progress: &mut dyn FnMut(usize, Note),
) -> Result<Vec<Value>> {
    let mut results = vec![None; count];
    let mut failures: Vec<String> = Vec::new();
    let fail = |failures: Vec<String>| Err(anyhow!("{}", failures.join("; ")));
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match notes.recv_timeout(left) {
            Ok((rank, Note::Result(value))) => {
                results[rank] = Some(value);
                if results.iter().all(Option::is_some) {
                    return Ok(results.into_iter().flatten().collect());
                }
            }
            Ok((rank, Note::Failed(why))) => {
                failures.push(format!("rank {rank}: {why}"));
                if failures.len() == count {
                    return fail(failures);
                }
                // The other ranks will fail as well, and their errors may be more precise.
                deadline = deadline.min(Instant::now() + GRACE);
            }
            Ok((rank, note)) => progress(rank, note),
            Err(e) if failures.is_empty() => bail!(match e {
                RecvTimeoutError::Timeout => "the time limit expired",
                RecvTimeoutError::Disconnected => "a rank ended without a result",
            }),
            Err(_) => return fail(failures),
        }
    }
}

/// A rank in a separate process.
struct Process {
    number: u32,
    child: Child,
}

impl Process {
    fn start(
        number: u32,
        socket: UnixStream,
        store: Option<&Store>,
        job: &impl Job,
        limit: Duration,
        sender: Sender<(usize, Note)>,
    ) -> Result<Process> {
        let mut command = Command::new("/proc/self/exe");
        // The number of the rank, for log lines and the trace file, also without a job of mp.
        command.env("MP_RANK", number.to_string());
        if let Some(store) = store {
            store.set_variables(&mut command, number);
        }
        let mut child = command
            .args(["--parent", &std::process::id().to_string(), "rank"])
            .args(["--number", &number.to_string()])
            .args(["--limit-ms", &limit.as_millis().to_string()])
            .args(["--job", name_of(job)])
            .args(["--options", &serde_json::to_string(job)?])
            // Its standard input is the socket to its peer.
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting rank {number}"))?;
        let stdout = child.stdout.take();
        let process = Process { number, child };
        let stdout = stdout.context("the rank has no output")?;
        std::thread::Builder::new()
            .name(format!("notes{number}"))
            .spawn(move || forward(number as usize, BufReader::new(stdout), &sender))
            .context("starting a thread")?;
        Ok(process)
    }

    /// Waits for the process, which has sent its last note, and kills it after a time limit.
    fn end(mut self) -> Result<()> {
        let number = self.number;
        let deadline = Instant::now() + GRACE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => bail!("rank {number} ended with {status}"),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Ok(None) => bail!("rank {number} had to be ended"),
                Err(e) => return Err(e).with_context(|| format!("waiting for rank {number}")),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forwards the notes of a rank's process, and reports its end if it sent no result.
fn forward(rank: usize, out: impl BufRead, sender: &Sender<(usize, Note)>) {
    let mut last_word = false;
    for line in out.lines() {
        let note = match line
            .map_err(anyhow::Error::from)
            .and_then(|l| Ok(serde_json::from_str(&l)?))
        {
            Ok(note) => note,
            Err(e) => Note::Failed(format!("printed an invalid note: {e:#}")),
        };
        last_word = matches!(note, Note::Result(_) | Note::Failed(_));
        if sender.send((rank, note)).is_err() || last_word {
            break;
        }
    }
    if !last_word {
        let _ = sender.send((rank, Note::Failed("died".to_owned())));
    }
}

/// Makes this process end when its parent ends for any reason.
pub fn end_with(parent: u32) -> Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() as u32 != parent) {
        bail!("the process that started this one has ended");
    }
    Ok(())
}

fn name_of<J: Job>(_: &J) -> &'static str {
    J::NAME
}

/// The options of a rank process.
#[derive(Debug, Args)]
pub struct RankSpec {
    /// Number of the rank.
    #[arg(long)]
    pub number: u32,
    /// Time limit in milliseconds.
    #[arg(long)]
    pub limit_ms: u64,
    /// Name of the job.
    #[arg(long)]
    pub job: String,
    /// Options of the job, as JSON.
    #[arg(long)]
    pub options: String,
}

/// A job by its name, and the function that runs one of its ranks in a process.
pub type Entry = (&'static str, fn(&RankSpec) -> Result<bool>);

/// The entry of a kind of job.
pub const fn entry<J: Job>() -> Entry {
    (J::NAME, rank_process::<J>)
}

/// The main function of a rank process.
pub fn rank_main(spec: &RankSpec, jobs: &[Entry]) -> ExitCode {
    let job = jobs.iter().find(|(name, _)| *name == spec.job);
    let played = job.context("no such job").and_then(|(_, play)| play(spec));
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("mpbench rank {}: {e:#}", spec.number);
            ExitCode::FAILURE
        }
    }
}

fn rank_process<J: Job>(spec: &RankSpec) -> Result<bool> {
    let name = std::ffi::CString::new(format!("rank{}", spec.number))?;
    rustix::thread::set_name(&name)?;
    let deadline = Instant::now() + Duration::from_millis(spec.limit_ms);
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let job: J = serde_json::from_str(&spec.options).context("reading the job")?;
    let bootstrap = job.needs_mp().then(from_env).transpose()?;
    let link = Link::new(socket, deadline);
    let rank = Rank::new(spec.number, link, deadline, Outbox::Stdout);
    Ok(rank.with_bootstrap(bootstrap).work(&job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_that_dies_or_prints_garbage_is_an_error() {
        let error = |text: &str| {
            let (sender, notes) = channel();
            forward(1, text.as_bytes(), &sender);
            drop(sender);
            listen(
                &notes,
                2,
                Instant::now() + Duration::from_secs(60),
                &mut |_, _| {},
            )
            .unwrap_err()
            .to_string()
        };
        assert_eq!(error(""), "rank 1: died");
        assert_eq!(error("{\"Progress\":3}\n"), "rank 1: died");
        assert_eq!(error("{\"Failed\":\"why\"}\n"), "rank 1: why");
        assert!(error("panic\n").starts_with("rank 1: printed an invalid note"));
        // The result counts only if both ranks have one.
        assert_eq!(error("{\"Result\":1}\n"), "a rank ended without a result");
    }

    #[test]
    fn missing_notes_are_an_error_at_the_time_limit() {
        let (_sender, notes) = channel();
        let soon = Instant::now() + Duration::from_millis(20);
        let e = listen(&notes, 2, soon, &mut |_, _| {}).unwrap_err();
        assert_eq!(e.to_string(), "the time limit expired");
    }
}
