//! Runs the ranks of a cell as threads of this process, each with its own context and, with soft
//! GPUs, its own GPU. [`processes`](super::processes) runs them as processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use gds_step::Live;
use gdsync::Gpu;
use gdsync::gpu::soft::SoftOptions;
use mp::Context;
use mp::bootstrap::{Bootstrap, Local};

use super::super::cover::Cell;
use super::cells;
use crate::mp::rank;
use crate::mp::setup::Setup;
use crate::rig::Runtime;
use crate::rig::limits::time_limit;
use crate::rig::provider;
use crate::rig::verdict::{Verdict, text};

/// Messages and bytes of all cells that passed. Relaxed: read after all cells are done.
static MESSAGES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Number of messages, and of their bytes, in the cells that have passed so far.
pub fn moved() -> (u64, u64) {
    (
        MESSAGES.load(Ordering::Relaxed),
        BYTES.load(Ordering::Relaxed),
    )
}

/// The GPU of a rank; ranks share the CUDA GPUs of the machine.
pub fn gpu_of(runtime: Runtime, rank: u32, gpus: u32) -> Verdict<Gpu> {
    match runtime {
        Runtime::Soft => {
            let live: Arc<dyn gds_step::Host> = Live::global()?;
            let options = SoftOptions::default()
                // Room for all streams of a rank to wait.
                .channels(16)
                // A full stream blocks the caller, which may be the thread that has to release it.
                .stream_bound(1 << 14);
            Ok(Gpu::soft_with(live, options)?)
        }
        Runtime::Cuda | Runtime::Hip => Ok(runtime.gpu(rank % gpus)?),
    }
}

/// Runs a context of one rank and its part of the cell, and waits until `over` returns true: all
/// ranks are done.
pub fn play(
    setup: &Setup,
    bootstrap: Arc<dyn Bootstrap>,
    gpu: &Gpu,
    done: impl FnOnce(),
    over: impl Fn() -> bool,
) -> Verdict {
    let builder = Context::builder().bootstrap(bootstrap).gpu(gpu);
    let chosen = provider::chosen()?.provider;
    let ctx = setup.build(builder, chosen).build()?;
    provider::check(ctx.device())?;
    rank::play(setup, &ctx)?;
    done();
    // Other ranks may still need progress of this rank.
    let host = ctx.gpu().host();
    host.wait_until(Some(host.now() + time_limit()), &mut || {
        if setup.manual {
            ctx.progress();
        }
        over()
    });
    Ok(())
}

/// Runs a cell with its ranks as threads of this process on `gpus` GPUs.
///
/// # Errors
/// The failures of the ranks, in order of time, with the command that repeats the cell.
pub fn threads(runtime: Runtime, cell: &Cell, gpus: u32) -> Verdict {
    let setup = Setup::of(cell);
    let start = Instant::now();
    // The number of ranks that are done. Relaxed: it publishes no other data.
    let ended = AtomicU32::new(0);
    let one = |bootstrap: Arc<dyn Bootstrap>| -> Verdict {
        let gpu = gpu_of(runtime, bootstrap.rank(), gpus)?;
        let done = || _ = ended.fetch_add(1, Ordering::Relaxed);
        let over = || ended.load(Ordering::Relaxed) == setup.ranks;
        play(&setup, bootstrap, &gpu, done, over)
    };
    let guarded = |bootstrap| {
        let verdict = catch_unwind(AssertUnwindSafe(|| one(bootstrap)));
        let verdict = verdict.unwrap_or_else(|_| Err("a panic, reported above".into()));
        if verdict.is_err() {
            // Ranks that are done do not wait for this one.
            ended.fetch_add(1, Ordering::Relaxed);
        }
        (start.elapsed(), verdict)
    };
    let mut verdicts: Vec<_> = std::thread::scope(|scope| {
        let spawn = |bootstrap: Arc<dyn Bootstrap>| {
            let name = format!("rank{}", bootstrap.rank());
            let thread = std::thread::Builder::new().name(name);
            thread.spawn_scoped(scope, || guarded(bootstrap))
        };
        let threads: Vec<_> = Local::ranks(setup.ranks).into_iter().map(spawn).collect();
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().expect("panics are caught"),
            Err(e) => (start.elapsed(), Err(e.into())),
        };
        threads.into_iter().map(join).collect()
    });
    verdicts.sort_by_key(|(when, _)| *when);
    summary(
        &setup,
        cell,
        verdicts.into_iter().map(|(_, verdict)| verdict),
    )
}

/// Counts a cell that passed, or merges the failures of its ranks into one report.
pub(super) fn summary(
    setup: &Setup,
    cell: &Cell,
    verdicts: impl Iterator<Item = Verdict>,
) -> Verdict {
    if let Err(failed) = merged(verdicts) {
        let again = format!("conformance mp --cell {}", cells::word(cell));
        return Err(format!("{}\nagain with: {again}", text(&failed)).into());
    }
    let (messages, bytes) = setup.cost();
    MESSAGES.fetch_add(messages as u64, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    Ok(())
}

/// One verdict, with the failures of all ranks.
pub(super) fn merged(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let failed = verdicts.into_iter().filter_map(Verdict::err);
    let failed: Vec<String> = failed.map(|failed| text(&failed).to_owned()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n").into()),
    }
}
