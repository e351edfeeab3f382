//! Ranks as separate processes: this program runs once for each, and they meet over TCP. As the command of
//! `examples/ci/hosts`, the ranks with odd numbers are on the second host, a network namespace.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use gdsync::Gpu;
use gdsync::gpu::MemoryKind;
use mp::bootstrap::Secret;
use mp::bootstrap::tcp::{Join, Server, Tcp};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::super::CHANNELS;
use super::super::child::{self, Guarded};
use super::run::gpu_of;
use crate::rig::Runtime;
use crate::rig::limits::time_limit;
use crate::rig::verdict::Verdict;

/// The job's name.
const JOB: &str = "conformance";

/// The line that a rank prints when it is done.
pub const DONE: &str = "done";

/// Hardware channels for the contexts of all processes on one GPU together: with many more than
/// these, the driver of an H200 fails to create contexts ("out of memory").
const CHANNELS_OF_ALL: u32 = 256;

/// Channels of a context: each process has two, the application's and the library's.
fn channels(ranks: u32, gpus: u32) -> u32 {
    (CHANNELS_OF_ALL / (2 * ranks.div_ceil(gpus.max(1)))).clamp(8, 32)
}

/// The ranks, as their parent process handles them.
pub struct Ranks {
    /// Their processes.
    pub processes: Vec<Guarded>,
    stdin: Vec<ChildStdin>,
    lines: Receiver<(u32, String)>,
    _store: Server,
}

impl Ranks {
    /// Starts the ranks in a role, whose last argument is `more`, on `gpus` GPUs.
    ///
    /// # Errors
    /// A process or the store cannot be started.
    pub fn start(
        role: &str,
        runtime: Runtime,
        [ranks, gpus]: [u32; 2],
        more: &str,
    ) -> Verdict<Ranks> {
        // A secret, so that no process of another job can join.
        let secret = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let host: IpAddr = match std::env::var("GDS_FIRST_ADDRESS") {
            Ok(address) => address.parse()?,
            Err(_) => Ipv4Addr::LOCALHOST.into(),
        };
        let store = Server::start(
            SocketAddr::new(host, 0),
            &Secret::from_text(&secret)?,
            JOB,
            ranks,
        )?;
        let address = store.address().to_string();
        let (sender, lines) = mpsc::channel();
        let (mut processes, mut stdin) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let [me, of, on] = [rank, ranks, gpus].map(|n| n.to_string());
            let arguments = [runtime.name(), &on, &me, &of, &address, &secret, more];
            let mut command = child::command(role, &arguments)?;
            command
                .env("MP_RANK", &me)
                .envs(CHANNELS.map(|name| (name, channels(ranks, gpus).to_string())))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut process = Guarded(command.spawn()?);
            stdin.push(process.0.stdin.take().ok_or("no standard input")?);
            let output = process.0.stdout.take().ok_or("no standard output")?;
            let mut errors = process.0.stderr.take().ok_or("no standard error")?;
            processes.push(process);
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut over = false;
                // The send fails after the trial has ended early, which does no harm.
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    over |= line == DONE;
                    let _ = sender.send((rank, line));
                }
                let mut why = String::new();
                let _ = errors.read_to_string(&mut why);
                // The end of a rank that was done needs no report.
                if !over {
                    let _ = sender.send((rank, why));
                }
            });
        }
        Ok(Ranks {
            processes,
            stdin,
            lines,
            _store: store,
        })
    }

    /// The next line of a rank or, of a rank that has ended before it was done, its standard error.
    pub fn next_line(&self, deadline: Instant) -> Option<(u32, String)> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).ok()
    }

    /// Closes the standard input of the ranks, and returns their processes.
    pub fn release(self) -> Vec<Guarded> {
        drop(self.stdin);
        self.processes
    }
}

/// The GPU of a rank that was started, and its bootstrap.
pub fn join(arguments: &[String]) -> Verdict<(Gpu, Arc<Tcp>)> {
    let [runtime, gpus, rank, ranks, store, secret, _] = arguments else {
        return Err("a runtime, GPUs, a rank, ranks, a store, a secret and more".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    let rank: u32 = rank.parse()?;
    if rank % 2 == 1
        && let Some(other) = std::env::var_os("GDS_OTHER_NETNS")
    {
        let other = std::fs::File::open(other)?;
        // The threads that this one starts are there too.
        move_into_link_name_space(other.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    let gpu = gpu_of(runtime, rank, gpus.parse()?)?;
    let (secret, part) = (Secret::from_text(secret)?, (rank, ranks.parse()?));
    let join = Join::new(store, part, &secret, time_limit()).name(JOB);
    Ok((gpu, Arc::new(Tcp::join(&join)?)))
}

/// The kind of memory with this name.
pub fn kind_named(name: &str) -> MemoryKind {
    match name {
        "Device" => MemoryKind::Device,
        _ => MemoryKind::Pinned,
    }
}
