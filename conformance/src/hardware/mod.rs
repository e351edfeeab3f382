//! The library on real threads and real GPUs: one set of trials for every GPU runtime, as the
//! program `conformance`, which also runs on a machine without a toolchain. `GDS_PROVIDER` chooses
//! the provider; `unsupported` lists the features that a provider lacks, `suite` prints the result
//! of a run, and `over` starts the program over virtual NICs that libibverbs finds.
//!
//! `programs` runs random programs of messages, `datagrams` those of datagrams, and `faults` and
//! `peer` inject failures. `waits` and `memory` test the limits of streams and memory, `shared` the
//! memory that processes share, `kernels` runs the library's kernels alone, `graphs` launches
//! captured work, [`matrix`] varies the capabilities of the software GPU, and [`mp`] is the matrix
//! of messages. `cover` selects cells from a matrix that is too large to be
//! run whole, `settings` interprets the settings of cells, and [`child`] starts processes for
//! trials. A runtime that is absent is reported as ignored, with the reason; `GDS_REQUIRE` turns
//! that into a failure. Trials run one after the other: on one GPU only a few streams may wait at a
//! time.

pub mod child;
mod cover;
mod datagrams;
mod faults;
mod graphs;
mod kernels;
pub mod matrix;
mod memory;
pub mod mp;
mod over;
mod peer;
mod programs;
mod settings;
mod shared;
mod suite;
mod unsupported;
mod waits;

use clap::Parser;
use libtest_mimic::{Arguments, Failed};

use crate::rig::verdict::{Verdict, text};
use crate::rig::{Rig, Runtime};
use faults::PATHS;
use mp::{killed, lost, processes};
use suite::Suite;
use unsupported::{ANY_DATAGRAMS, Lack};

/// The variable with the number of hardware channels of a context.
const CHANNELS: [&str; 2] = ["CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES"];

/// Laps of each ring that a program runs; `GDS_LAPS` sets another number.
const LAPS: usize = 100;

/// Runs the trials that the command line names, or one side of a trial that started this process.
pub fn main() -> ! {
    or_exit(gds_log::init(gdsync::launcher::rank()).map_err(Failed::from));
    play_role();
    let mut words = std::env::args().skip(1).peekable();
    match words.peek().map(String::as_str) {
        Some("mp") => mp::command(words.skip(1)),
        Some("matrix") => matrix::command(words.skip(1)),
        Some(word) if over::is_meant(word) => over::command(words),
        _ => {}
    }
    let options: Options = parsed("conformance", words);
    let mut suite = or_exit(Suite::new("gdsync"));
    for runtime in Runtime::ALL {
        add_trials(&mut suite, runtime, options.few);
    }
    suite.run(options.trials, |_| {})
}

/// Options of the trials of queue pairs.
#[derive(Parser)]
struct Options {
    /// Each setting of a matrix once, instead of each pair of settings: for slow machines
    #[arg(long)]
    few: bool,
    #[command(flatten)]
    trials: Arguments,
}

/// Parses the arguments of a command, or ends the process.
fn parsed<P: Parser>(name: &str, words: impl Iterator<Item = String>) -> P {
    P::parse_from(std::iter::once(name.to_owned()).chain(words))
}

/// Reads a setting of the environment, or ends the process.
fn or_exit<T>(verdict: Verdict<T>) -> T {
    verdict.unwrap_or_else(|failed| {
        eprintln!("{}", text(&failed));
        std::process::exit(2)
    })
}

/// If a trial started this process, runs one side of the trial and ends.
pub fn play_role() {
    if let Some((role, arguments)) = child::role() {
        std::process::exit(play(&role, &arguments));
    }
    if let Err(failed) = child::end_with_parent() {
        eprintln!("{}", text(&failed));
        std::process::exit(1);
    }
}

/// Runs one side of a trial that started this process. Returns the exit code.
fn play(role: &str, arguments: &[String]) -> i32 {
    let verdict = || match role {
        "peer" => peer::child_main(arguments),
        "waits" => waits::child_main(arguments),
        shared::ROLE => shared::child_main(arguments),
        processes::ROLE => processes::child_main(arguments),
        lost::ROLE => lost::child_main(arguments),
        killed::ROLE => killed::child_main(arguments),
        mp::calls::ROLE => mp::calls::child_main(arguments),
        mp::graphs::ROLE => mp::graphs::child_main(arguments),
        mp::zero_sm::ROLE => mp::zero_sm::child_main(arguments),
        other => Err(format!("no role {other}").into()),
    };
    match child::end_with_parent().and_then(|()| verdict()) {
        Ok(()) => 0,
        Err(failed) => {
            eprintln!("{}", text(&failed));
            1
        }
    }
}

/// Whether `GDS_REQUIRE` names the runtime.
pub fn is_required(what: &str) -> bool {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    required.split(',').any(|word| word.trim() == what)
}

fn laps() -> Result<usize, Failed> {
    match std::env::var("GDS_LAPS") {
        Err(_) => Ok(LAPS),
        Ok(laps) => laps
            .parse()
            .ok()
            .filter(|laps| *laps > 0)
            .ok_or_else(|| format!("GDS_LAPS={laps}: a number from 1 on").into()),
    }
}

fn add_trials(suite: &mut Suite, runtime: Runtime, few: bool) {
    if suite.gpu(runtime).is_none() {
        return;
    }
    let cells = unsupported::cells(suite.chosen.provider, &programs::AXES, few, |keep| {
        cover::pairwise(&programs::AXES, |cell| {
            programs::is_valid(cell) && keep(cell)
        })
    });
    for cell in cells {
        let title = format!("program: {}", cover::name(&programs::AXES, &cell));
        let run = move |rig: &Rig| programs::run(rig, &cell, laps()?);
        add(suite, runtime, title, run);
    }
    add_datagrams(suite, runtime, few);
    for payload in ["pinned", "device"] {
        let kind = settings::memory(payload);
        let title = format!("kernels fill and verify {payload} memory");
        let run = move |rig: &Rig| kernels::patterns(rig, kind);
        add(suite, runtime, title, run);
        for path in PATHS {
            let title = format!("a bad key, posts {path}, payload {payload}");
            let run = move |rig: &Rig| faults::bad_key(rig, path, kind);
            add(suite, runtime, title, run);
            let title = format!("a killed peer, posts {path}, payload {payload}");
            let run = move |_: &Rig| peer::killed(runtime, path, payload);
            add(suite, runtime, title, run);
        }
    }
    let by_path: [ByPath; 3] = [
        ("a silent peer", faults::silent_peer),
        ("memory of the application", memory::registered),
        ("memory dropped while in use", memory::dropped),
    ];
    add_by_path(suite, runtime, &by_path);
    for channels in [8, 32] {
        // On HIP, more streams than channels share them, and then one that waits blocks others.
        let streams = match runtime {
            Runtime::Hip => channels - 1,
            Runtime::Soft | Runtime::Cuda => channels + 1,
        };
        let title = format!("{streams} waiting streams on {channels} channels");
        let run = move |_: &Rig| waits::in_a_process(runtime, channels, streams as usize);
        add(suite, runtime, title, run);
    }
    add_shared(suite, runtime);
    add(suite, runtime, "kernel trigger", kernels::trigger);
    add(suite, runtime, "kernel wait", kernels::wait);
    let title = "graph launched 1,000 times";
    add(suite, runtime, title, graphs::replays);
    let title = "graph launched behind a wait";
    add(suite, runtime, title, graphs::behind_a_wait);
    if runtime.has_driver() {
        // The soft GPU lets the caller wait instead.
        let title = "a full stream that waits";
        add(suite, runtime, title, waits::full_stream);
    }
}

fn add_shared(suite: &mut Suite, runtime: Runtime) {
    let name = runtime.name();
    if let Some(gpu) = suite.gpu(runtime)
        && let Err(why) = gpu.reaches(&gpu.identity())
    {
        return suite.lacking("shared memory", why, true);
    }
    let title = "shared memory of two processes on one GPU";
    add(suite, runtime, title, |rig| {
        shared::two_processes(rig, name)
    });
    // On other machines the trial above is the only one.
    let other = runtime.gpu(1).ok();
    let first = other.and_then(|other| Some((runtime.gpu(0).ok()?, other)));
    if first.is_some_and(|(first, other)| first.reaches(&other.identity()).is_ok()) {
        let title = "shared memory of two processes on two GPUs";
        add(suite, runtime, title, move |rig| {
            shared::two_processes(rig, &format!("{name}:1"))
        });
    }
    let title = "shared memory of one process";
    add(suite, runtime, title, shared::one_process);
    let title = "shared memory that is none";
    add(suite, runtime, title, shared::hostile);
}

fn add_datagrams(suite: &mut Suite, runtime: Runtime, few: bool) {
    use datagrams::directed;
    let faulty = |name| std::env::var(name).is_ok_and(|faults| !faults.is_empty());
    if faulty("VMLX5_FAULTS") || faulty("GDS_FAULTS") {
        let why = "a datagram that a fault loses is not sent again";
        suite.lacking("datagrams", why, true);
        return;
    }
    let provider = suite.chosen.provider;
    if Lack::of(provider, ANY_DATAGRAMS).is_some() {
        let first = vec![0; datagrams::AXES.len()];
        let run = move |rig: &Rig| datagrams::run(rig, &first, rounds()?);
        return add(suite, runtime, ANY_DATAGRAMS, run);
    }
    let cells = unsupported::cells(provider, &datagrams::AXES, few, |keep| {
        cover::pairwise(&datagrams::AXES, |cell| {
            datagrams::is_valid(provider, cell) && keep(cell)
        })
    });
    for cell in cells {
        let title = format!("datagrams: {}", cover::name(&datagrams::AXES, &cell));
        let run = move |rig: &Rig| datagrams::run(rig, &cell, rounds()?);
        add(suite, runtime, title, run);
    }
    let by_path: [ByPath; 3] = [
        ("datagrams that are lost", directed::lost),
        ("a datagram that is too long", directed::too_long),
        (
            "a datagram for what a stream posts",
            directed::posted_by_a_stream,
        ),
    ];
    add_by_path(suite, runtime, &by_path);
}

/// A trial with this title that runs for each way from a stream to the NIC.
type ByPath = (&'static str, fn(&Rig, &str) -> Verdict);

fn add_by_path(suite: &mut Suite, runtime: Runtime, trials: &[ByPath]) {
    for path in PATHS {
        for &(what, run) in trials {
            let title = format!("{what}, posts {path}");
            add(suite, runtime, title, move |rig| run(rig, path));
        }
    }
}

/// Rounds of a program of datagrams: at least as many as make all queues wrap.
fn rounds() -> Verdict<u32> {
    Ok(u32::try_from(laps()? / 4)?.max(24))
}

fn add(
    suite: &mut Suite,
    runtime: Runtime,
    title: impl std::fmt::Display,
    run: impl FnOnce(&Rig) -> Verdict + Send + 'static,
) {
    suite.add(runtime, title, move || run(&Rig::open(runtime)?));
}
