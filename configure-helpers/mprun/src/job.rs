//! A job from its first process to its last: one event loop for output, ends of ranks and signals.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use gds_step::{after, deadline};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::lines::Lines;
use crate::rank::{Launch, Rank, Start, failure};
use crate::remains::sweep;
use crate::writer::{To, Writer};

/// Time limit for processes that cannot be killed, and for a reader that does not read.
const LAST: Duration = Duration::from_secs(2);

/// Pause between two polls of the writer while it is full.
const FULL: Duration = Duration::from_millis(5);

/// Time between two polls of the writer, to detect a broken output if nothing else happens.
const IDLE: Duration = Duration::from_secs(1);

/// Additional time to end ranks on other hosts.
const THERE: Duration = Duration::from_secs(1);

/// Time limits of a job.
#[derive(Debug)]
pub struct Limits {
    /// For the whole job.
    pub timeout: Option<Duration>,
    /// Between the request to ranks to end (SIGTERM) and SIGKILL.
    pub grace: Duration,
}

/// Runs a job. Returns its exit code.
///
/// # Errors
/// A system call fails. No process is left in this case either.
pub fn run(launch: &Launch, starts: &[Start], limits: &Limits) -> anyhow::Result<u8> {
    let mut job = Job::new(limits)?;
    if let Err(e) = job.start(launch, starts) {
        // The exit code of a shell for a command that is not found.
        job.end(127, &format!("{e:#}"));
    }
    let code = job.supervise();
    let Job { ranks, writer, .. } = job;
    // Kills the ranks that still run.
    drop(ranks);
    sweep(LAST);
    writer.finish(LAST);
    code
}

fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

/// A stream of a rank.
struct Stream {
    fd: std::fs::File,
    to: To,
    lines: Lines,
}

struct Job<'a> {
    limits: &'a Limits,
    begun: Instant,
    ranks: Vec<Rank>,
    streams: Vec<Stream>,
    writer: Writer,
    /// Readable after a signal: a byte for each one, with the signal's number beside its socket.
    signals: Vec<(i32, UnixStream)>,
    /// The exit code while all ranks are being ended, and the time when ranks are killed.
    ending: Option<(u8, Option<Instant>)>,
    /// The time when all ranks had ended: output that other processes keep open is not waited for.
    ended: Option<Instant>,
}

impl Job<'_> {
    fn new(limits: &Limits) -> anyhow::Result<Job<'_>> {
        let mut signals = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let (read, write) = UnixStream::pair().context("cannot create a socket pair")?;
            let set = read.set_nonblocking(true);
            set.context("cannot make the socket for signals non-blocking")?;
            let registered = signal_hook::low_level::pipe::register(signal, write);
            registered.context("cannot handle a signal")?;
            signals.push((signal, read));
        }
        Ok(Job {
            limits,
            begun: Instant::now(),
            ranks: Vec::new(),
            streams: Vec::new(),
            writer: Writer::start().context("cannot start the thread for output")?,
            signals,
            ending: None,
            ended: None,
        })
    }

    fn start(&mut self, launch: &Launch, starts: &[Start]) -> anyhow::Result<()> {
        for start in starts {
            let mut rank = Rank::start(launch, start.clone())?;
            let prefix = format!("[{}] ", start.rank);
            for (fd, to) in rank.streams().into_iter().zip([To::Out, To::Err]) {
                self.streams.extend(fd.map(|fd: OwnedFd| Stream {
                    fd: fd.into(),
                    to,
                    lines: Lines::new(&prefix),
                }));
            }
            self.ranks.push(rank);
        }
        Ok(())
    }

    fn supervise(&mut self) -> anyhow::Result<u8> {
        loop {
            let ready = self.wait()?;
            for i in ready.into_iter().rev() {
                self.read(i);
            }
            self.handle_signals();
            self.reap()?;
            let now = Instant::now();
            let late = |limit| now.duration_since(self.begun) >= limit;
            if self.limits.timeout.is_some_and(late) && self.ending.is_none() {
                let running = self.ranks.iter().filter(|r| r.runs());
                let running = running.map(|r| r.start.rank.to_string());
                let running = running.collect::<Vec<_>>().join(", ");
                let why = format!("the time limit has passed; these ranks still run: {running}");
                self.end(124, &why);
            }
            if self.writer.is_broken() && self.ending.is_none() {
                // The status of a process that SIGPIPE killed.
                self.end(141, "the reader of the output has closed it");
            }
            if let Some((_, kill)) = &mut self.ending
                && kill.is_some_and(|at| at <= now)
            {
                *kill = None;
                self.ranks.iter_mut().for_each(Rank::kill);
            }
            if self.ranks.iter().all(|r| !r.runs()) {
                if self.ended.is_none() {
                    self.ended = Some(now);
                    // Processes that ranks left running keep their output open.
                    sweep(LAST);
                }
                let waited = self.ended.is_some_and(|at| now.duration_since(at) > LAST);
                if self.streams.is_empty() || waited {
                    return Ok(self.ending.map_or(0, |(code, _)| code));
                }
            }
        }
    }

    /// Waits for an event. Returns the streams that can be read.
    fn wait(&mut self) -> anyhow::Result<Vec<usize>> {
        let now = Instant::now();
        let room = self.writer.has_room();
        let timeout = match (self.ending, self.ended) {
            (_, Some(at)) => Some(at + LAST + FULL),
            (Some((_, kill)), None) => kill,
            (None, None) => self.limits.timeout.map(|limit| after(self.begun, limit)),
        };
        let timeout = timeout.map(|at| at.saturating_duration_since(now) + FULL);
        let timeouts = timeout.into_iter().chain((!room).then_some(FULL));
        let timeout = timeouts.fold(IDLE, Duration::min);
        let timeout =
            Timespec::try_from(timeout).context("the time limit does not fit a timespec")?;

        let mut fds: Vec<PollFd<'_>> = Vec::new();
        if room {
            fds.extend(self.streams.iter().map(|s| readable(&s.fd)));
        }
        let streams = fds.len();
        fds.extend(self.signals.iter().map(|(_, s)| readable(s)));
        let running = self.ranks.iter().filter(|r| r.runs());
        fds.extend(running.map(|r| readable(&r.ended)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("the call poll failed"),
        }
        let ready = fds[..streams].iter().enumerate();
        let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(i, _)| i).collect())
    }

    /// Reads from a stream, if the writer has room.
    fn read(&mut self, i: usize) {
        if !self.writer.has_room() {
            return;
        }
        let stream = &mut self.streams[i];
        let mut bytes = [0; 1 << 15];
        match stream.fd.read(&mut bytes) {
            Ok(n) if n > 0 => {
                let shown = stream.lines.push(&bytes[..n]);
                self.writer.push(stream.to, shown);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            _ => {
                let shown = stream.lines.end();
                self.writer.push(stream.to, shown);
                self.streams.swap_remove(i);
            }
        }
    }

    fn handle_signals(&mut self) {
        for i in 0..self.signals.len() {
            let (signal, stream) = &mut self.signals[i];
            let (signal, mut bytes) = (*signal, [0; 16]);
            let times = stream.read(&mut bytes).unwrap_or(0);
            for _ in 0..times {
                if self.ending.is_none() {
                    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                    self.end(
                        128 + signal as u8,
                        &format!("{name} arrived; all ranks are ended"),
                    );
                } else {
                    // The second signal kills at once.
                    self.ending = self.ending.map(|(code, _)| (code, Some(Instant::now())));
                }
            }
        }
    }

    fn reap(&mut self) -> anyhow::Result<()> {
        for i in 0..self.ranks.len() {
            let rank = &mut self.ranks[i];
            if !rank.runs() {
                continue;
            }
            let Some(status) = rank.reap()? else {
                continue;
            };
            let (start, failed) = (&rank.start, failure(&rank.start, status));
            if let (Some((how, code)), None) = (failed, self.ending) {
                let host = start.host.as_ref().map(|host| format!(" on {host}"));
                let rank = format!("rank {}{}", start.rank, host.unwrap_or_default());
                self.end(code, &format!("{rank} {how}"));
            }
        }
        Ok(())
    }

    /// Begins to end all ranks, with this exit code and for this reason.
    fn end(&mut self, code: u8, why: &str) {
        // The other hosts kill their ranks; the connections stay open to report their ends.
        let away = self.ranks.iter().any(|r| r.start.host.is_some());
        let there = if away { THERE } else { Duration::ZERO };
        let grace = self.limits.grace.saturating_add(there);
        self.ending = Some((code, Some(deadline(grace))));
        self.ranks.iter_mut().for_each(Rank::terminate);
        self.writer.push(To::Err, format!("mprun: {why}\n").into());
    }
}
