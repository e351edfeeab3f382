//! Runs the ranks of a cell as processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::cover::Cell;
use super::cells;
use super::launch::{DONE, Ranks, join};
use super::run::{play, summary};
use crate::mp::setup::Setup;
use crate::rig::Runtime;
use crate::rig::limits::scaled;
use crate::rig::verdict::{Verdict, ensure};

/// The role of a process that is a rank.
pub const ROLE: &str = "mp";

/// Time limit against hangs; every wait inside has its own limit.
const LONG: Duration = Duration::from_secs(150);

/// Runs a cell with its ranks as processes on `gpus` GPUs.
///
/// # Errors
/// The failures of the ranks, with the command that repeats the cell.
pub fn processes(runtime: Runtime, cell: &Cell, gpus: u32) -> Verdict {
    let setup = Setup::of(cell);
    let ranks = Ranks::start(ROLE, runtime, [setup.ranks, gpus], &cells::word(cell))?;
    summary(&setup, cell, ended(ranks).into_iter())
}

/// Waits for the ends of all ranks, and returns their verdicts.
pub(super) fn ended(ranks: Ranks) -> Vec<Verdict> {
    let long = scaled(LONG);
    let deadline = Instant::now() + long;
    let mut verdicts = Vec::new();
    for _ in 0..ranks.processes.len() {
        let Some((rank, line)) = ranks.next_line(deadline) else {
            verdicts.push(Err(format!("a rank is not done within {long:?}").into()));
            break;
        };
        verdicts.push(ensure(line == DONE, || {
            format!("rank {rank}: {}", line.trim())
        }));
    }
    // All ranks are done, so their processes may end.
    let processes = ranks.release();
    if verdicts.iter().all(Verdict::is_ok) {
        for mut process in processes {
            verdicts.push(process.0.wait().map_err(Into::into).and_then(|status| {
                ensure(status.success(), || format!("a rank exited with {status}"))
            }));
        }
    }
    verdicts
}

/// Runs one rank.
pub fn child_main(arguments: &[String]) -> Verdict {
    let cell = arguments.last().and_then(|word| cells::parse(word));
    let setup = Setup::of(&cell.ok_or("no such cell")?);
    let (gpu, bootstrap) = join(arguments)?;
    // Set by the thread that waits for the end. Relaxed: it publishes no other data.
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
