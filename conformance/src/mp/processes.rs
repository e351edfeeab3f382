//! The ranks of a cell as processes: this program again for each, which meet over TCP.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mp::bootstrap::tcp::{Join, Server};
use mp::bootstrap::{Secret, Tcp};

use super::cells;
use super::run::{gpu_of, play, summary};
use super::setup::Setup;
use crate::cover::Cell;
use crate::live::CHANNELS;
use crate::live::child::{self, Guarded};
use crate::live::limits::{scaled, time_limit};
use crate::live::rig::Runtime;
use crate::live::verdict::{Verdict, ensure};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp";

/// The job's name.
const JOB: &str = "conformance";

/// What a rank says when it is at its end.
const DONE: &str = "done";

/// Ends what hangs: every wait inside has its own limit.
const LONG: Duration = Duration::from_secs(150);

/// Hardware channels that the contexts of all processes on one GPU get together: of many more the
/// driver of an H200 makes no contexts ("out of memory").
const CHANNELS_OF_ALL: u32 = 256;

/// Channels of a context: each process has two, the application's and the library's.
fn channels(ranks: u32, gpus: u32) -> u32 {
    (CHANNELS_OF_ALL / (2 * ranks.div_ceil(gpus.max(1)))).clamp(8, 32)
}

/// Runs a cell, its ranks processes on `gpus` GPUs.
///
/// # Errors
/// What the ranks found, with how to see it again.
pub fn processes(runtime: Runtime, cell: &Cell, gpus: u32) -> Verdict {
    let setup = Setup::of(cell);
    // No stranger comes in by chance.
    let secret = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let key = Secret::from_text(&secret)?;
    let store = Server::start(anywhere, &key, JOB, setup.ranks)?;
    let address = store.address().to_string();
    let (cell_word, ranks) = (cells::word(cell), setup.ranks.to_string());
    let (tell, told) = mpsc::channel();
    let channels = channels(setup.ranks, gpus).to_string();
    let start = |rank: u32| -> Verdict<(Guarded, ChildStdin)> {
        let (rank, gpus) = (rank.to_string(), gpus.to_string());
        let arguments = [
            runtime.name(),
            &gpus,
            &rank,
            &ranks,
            &address,
            &secret,
            &cell_word,
        ];
        let mut command = child::command(ROLE, &arguments)?;
        command
            .env("MP_RANK", &rank)
            .env(CHANNELS, &channels)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Guarded(command.spawn()?);
        let say = process.0.stdin.take().ok_or("no standard input")?;
        let hear = process.0.stdout.take().ok_or("no standard output")?;
        let mut errors = process.0.stderr.take().ok_or("no standard error")?;
        let tell = tell.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(hear).read_line(&mut line);
            let mut why = String::new();
            if line.trim() != DONE {
                let _ = errors.read_to_string(&mut why);
            }
            // Nobody listens any more once the cell has been given up.
            let _ = tell.send((line, why));
            let _ = errors.read_to_string(&mut String::new());
        });
        Ok((process, say))
    };
    let started = (0..setup.ranks).map(start).collect::<Verdict<Vec<_>>>()?;
    let long = scaled(LONG);
    let deadline = Instant::now() + long;
    let mut verdicts = Vec::new();
    while verdicts.len() < started.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((line, why)) = told.recv_timeout(left) else {
            verdicts.push(Err(format!("a rank is not done within {long:?}").into()));
            break;
        };
        verdicts.push(ensure(line.trim() == DONE, || why.trim().to_owned()));
    }
    // All have come to their end: they may leave.
    let mut processes = Vec::new();
    for (process, say) in started {
        drop(say);
        processes.push(process);
    }
    if verdicts.iter().all(Verdict::is_ok) {
        for mut process in processes {
            let status = process.0.wait()?;
            verdicts.push(ensure(status.success(), || {
                format!("a rank left with {status}")
            }));
        }
    }
    summary(&setup, cell, verdicts.into_iter())
}

/// One rank.
///
/// # Errors
/// Whatever goes wrong.
pub fn child_main(arguments: &[String]) -> Verdict {
    let [runtime, gpus, rank, ranks, store, secret, cell] = arguments else {
        return Err("a runtime, GPUs, a rank, ranks, a store, a secret and a cell".into());
    };
    let runtime = Runtime::named(runtime).ok_or("no such runtime")?;
    let cell = cells::parse(cell).ok_or("no such cell")?;
    let setup = Setup::of(&cell);
    let rank: u32 = rank.parse()?;
    let gpu = gpu_of(runtime, rank, gpus.parse()?)?;
    let (secret, part) = (Secret::from_text(secret)?, (rank, ranks.parse()?));
    let join = Join::new(store, part, &secret, time_limit()).name(JOB);
    let bootstrap = Arc::new(Tcp::join(&join)?);
    // Set by the thread that waits for the end; relaxed: nothing else hangs on it.
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        ended.store(true, Ordering::Relaxed);
    });
    play(
        &setup,
        bootstrap,
        &gpu,
        || println!("{DONE}"),
        || over.load(Ordering::Relaxed),
    )
}
