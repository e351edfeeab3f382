//! The matrix of messages: programs of `crate::mp` over models x doorbells x memories x sizes x
//! ranks x laps and all other properties of a message, on every GPU runtime of this machine, as a
//! cover or whole.
//!
//! `cells` lists the settings and their valid combinations. `run` runs the ranks of a cell as
//! threads of this process, `processes` as processes that `launch` starts. In `lost` one rank dies
//! or stops, and the others continue; in `killed` it dies under messages of each length. `calls`
//! runs what ranks call beside messages: `windows` has the one-sided operations, `collectives` the calls of
//! all ranks, `neighbours` the steps of a neighbourhood. `words` has the waits for words, `graphs` the
//! messages in graphs, `zero_sm` those without kernels.

pub(super) mod calls;
mod cells;
mod collectives;
pub(super) mod graphs;
pub(super) mod killed;
mod launch;
pub(super) mod lost;
mod neighbours;
pub(super) mod processes;
mod run;
mod windows;
mod words;
pub(super) mod zero_sm;

use std::time::Instant;

use clap::{Parser, value_parser};
use gdsync::gpu::MemoryKind;
use gdsync::rdma::Provider;
use libtest_mimic::Arguments;

use super::cover::Cell;
use super::suite::Suite;
use super::{CHANNELS, or_exit, parsed};
use crate::rig::Runtime;
use calls::Calls;
use cells::Resources;
use lost::Failure;

/// Options of `conformance mp`.
#[derive(Parser)]
struct Choice {
    /// Runs only on this runtime: soft, cuda or hip. May be given several times
    #[arg(long = "gpu", value_name = "NAME", value_parser = runtime)]
    runtimes: Vec<Runtime>,
    /// Uses at most the first N CUDA GPUs, which the ranks share
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u32).range(1..))]
    gpus: u32,
    /// Runs each setting once, instead of each pair of settings
    #[arg(long)]
    few: bool,
    /// Runs the whole matrix instead of a cover
    #[arg(long)]
    whole: bool,
    /// Runs one cell, by the word that a failure prints
    #[arg(long, value_name = "WORD", value_parser = cell)]
    cell: Option<Cell>,
    #[command(flatten)]
    trials: Arguments,
}

fn runtime(name: &str) -> Result<Runtime, &'static str> {
    Runtime::named(name).ok_or("no such runtime")
}

fn cell(word: &str) -> Result<Cell, &'static str> {
    cells::parse(word).ok_or("no such cell")
}

/// The command `conformance mp`: runs the chosen cells, prints the summary, and ends the process.
pub fn command(words: impl Iterator<Item = String>) -> ! {
    let choice: Choice = parsed("conformance mp", words);
    // Ranks share GPUs, so that many streams wait; the driver reads it at its start.
    for name in CHANNELS {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread has been started yet.
            unsafe { std::env::set_var(name, "32") };
        }
    }
    let start = Instant::now();
    let mut suite = or_exit(Suite::new("mp"));
    let all = choice.runtimes.is_empty();
    for runtime in Runtime::ALL {
        if all || choice.runtimes.contains(&runtime) {
            add(&mut suite, runtime, &choice);
        }
    }
    suite.run(choice.trials, |conclusion| {
        let (messages, bytes) = run::moved();
        println!(
            "{} cells run, {} passed, {} failed: {messages} messages, {:.1} GiB, {:.0} s",
            conclusion.num_passed + conclusion.num_failed,
            conclusion.num_passed,
            conclusion.num_failed,
            bytes as f64 / f64::from(1 << 30),
            start.elapsed().as_secs_f64()
        );
    })
}

fn add(suite: &mut Suite, runtime: Runtime, choice: &Choice) {
    let Some(gpu) = suite.gpu(runtime) else {
        return;
    };
    let (gpus, streams) = match runtime {
        Runtime::Soft => (1, None),
        Runtime::Cuda | Runtime::Hip => {
            let there = (1..choice.gpus).take_while(|i| runtime.gpu(*i).is_ok());
            let gpus = 1 + there.count() as u32;
            (gpus, gpu.wait_limits().map(|limits| limits.streams * gpus))
        }
    };
    drop(gpu);
    let threads = Resources {
        streams,
        shared: false,
    };
    let apart = Resources {
        streams: None,
        shared: runtime.has_driver(),
    };
    if choice.cell.is_none() {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            for len in [4, 8] {
                suite.add(
                    runtime,
                    format!("words: {kind:?}, {len} bytes"),
                    move || words::words(runtime, kind, len),
                );
            }
            for calls in Calls::ALL {
                let title = calls.title(kind);
                suite.add(runtime, format!("processes: {title}"), move || {
                    calls.processes(runtime, gpus, kind)
                });
                suite.add(runtime, title, move || calls.threads(runtime, gpus, kind));
            }
            // They use no NIC, so one run on the software GPU is enough.
            if runtime.has_driver() || suite.chosen.provider == Provider::Emulated {
                suite.add(runtime, format!("graphs: {kind:?}"), move || {
                    graphs::graphs(runtime, gpus, kind)
                });
                suite.add(runtime, format!("zero-SM: {kind:?}"), move || {
                    zero_sm::zero_sm(runtime, gpus, kind)
                });
            }
        }
        for (what, failure) in [("killed", Failure::Killed), ("stopped", Failure::Stopped)] {
            suite.add(runtime, format!("processes: a rank is {what}"), move || {
                lost::lost(runtime, gpus, failure)
            });
        }
        let lengths = match runtime.has_driver() || choice.whole {
            true => &killed::LENGTHS[..],
            false => &killed::FEW,
        };
        for &len in lengths {
            for (victim, (what, _, _)) in killed::VICTIMS.iter().enumerate() {
                let title = format!("processes: a rank that {what} {len} bytes is killed");
                suite.add(runtime, title, move || {
                    killed::killed(runtime, gpus, len, victim)
                });
            }
        }
    }
    let (mine, others) = match (&choice.cell, choice.whole) {
        (Some(cell), _) => (vec![cell.clone()], vec![cell.clone()]),
        (None, true) => (cells::whole(threads), cells::pairwise(apart)),
        (None, false) if choice.few => (cells::fewer(threads), cells::fewer_apart(apart)),
        (None, false) => (cells::pairwise(threads), cells::few(apart)),
    };
    for cell in mine {
        let title = format!("threads: {}", cells::name(&cell));
        suite.add(runtime, title, move || run::threads(runtime, &cell, gpus));
    }
    for cell in others {
        let title = format!("processes: {}", cells::name(&cell));
        suite.add(runtime, title, move || {
            processes::processes(runtime, &cell, gpus)
        });
    }
}
