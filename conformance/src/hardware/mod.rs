//! The library on real threads and real GPUs: one set of trials for every GPU runtime, as the
//! program `conformance`, which runs on a machine without a toolchain too.
//!
//! [`program`] plays random programs of messages, [`faults`] and [`peer`] let them fail, [`waits`]
//! and [`memory`] go to the limits of streams and memory, [`kernels`] runs the library's kernels
//! by themselves; [`mp`] is the matrix of messages. [`gear`] is what all of them stand on, [`child`] the processes they start. A runtime that is absent is shown as ignored,
//! with the reason, and `GDS_REQUIRE` turns that into a failure. Trials run one after the
//! other: on one GPU only a few streams may wait at a time.

pub mod child;
pub mod faults;
pub mod gear;
pub mod kernels;
pub mod memory;
pub mod mp;
pub mod peer;
pub mod program;
pub mod waits;

use gdsync::gpu::MemoryKind;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::cover;
use crate::mp::processes;
use faults::PATHS;
use gear::{Gear, Runtime, Verdict};

/// Laps of each ring that a program runs, unless `GDS_LAPS` says otherwise.
const LAPS: usize = 100;

/// Runs the trials that the command line names, or one side of a trial that started this
/// process for it.
pub fn main() -> ! {
    play_role();
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if_eq("mp").is_some() {
        mp::command(words);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for runtime in Runtime::ALL {
        trials.extend(trials_of(runtime));
    }
    libtest_mimic::run(&arguments, trials).exit()
}

/// If this process was started by a trial, plays one side of it and ends.
pub fn play_role() {
    if let Some((role, arguments)) = child::role() {
        std::process::exit(play(&role, &arguments));
    }
    if let Err(failed) = child::end_with_parent() {
        eprintln!("{}", failed.message().unwrap_or("no reason given"));
        std::process::exit(1);
    }
}

/// One side of a trial that has started this process. Returns the exit code.
fn play(role: &str, arguments: &[String]) -> i32 {
    let verdict = || match role {
        "peer" => peer::child_main(arguments),
        "waits" => waits::child_main(arguments),
        processes::ROLE => processes::child_main(arguments),
        other => Err(format!("no role {other}").into()),
    };
    match child::end_with_parent().and_then(|()| verdict()) {
        Ok(()) => 0,
        Err(failed) => {
            eprintln!("{}", failed.message().unwrap_or("no reason given"));
            1
        }
    }
}

/// Whether `GDS_REQUIRE` names it.
fn is_required(what: &str) -> bool {
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

fn trials_of(runtime: Runtime) -> Vec<Trial> {
    let name = runtime.name();
    if let Err(e) = Gear::open(runtime) {
        let what = format!("{name} (needs {name}: {e})");
        let why = e.to_string();
        let trial = Trial::test(what, move || Err(why.into()));
        // Absent is one thing, broken another.
        let absent = e.kind() == gdsync::Kind::Absent;
        return vec![trial.with_ignored_flag(absent && !is_required(name))];
    }
    let mut trials = Vec::new();
    for cell in cover::pairwise(&program::AXES, program::makes_sense) {
        let title = format!("program: {}", cover::name(&program::AXES, &cell));
        let run = move |gear: &Gear| program::run(gear, &cell, laps()?);
        trials.push(trial(runtime, title, run));
    }
    for payload in ["pinned", "device"] {
        let kind = match payload {
            "pinned" => MemoryKind::Pinned,
            _ => MemoryKind::Device,
        };
        let title = format!("kernels fill and verify {payload} memory");
        let run = move |gear: &Gear| kernels::patterns(gear, kind);
        trials.push(trial(runtime, title, run));
        for path in PATHS {
            let title = format!("a bad key, posts {path}, payload {payload}");
            let run = move |gear: &Gear| faults::bad_key(gear, path, kind);
            trials.push(trial(runtime, title, run));
            let title = format!("a killed peer, posts {path}, payload {payload}");
            let run = move |_: &Gear| peer::killed(runtime, path, payload);
            trials.push(trial(runtime, title, run));
        }
    }
    for path in PATHS {
        let title = format!("a silent peer, posts {path}");
        let run = move |gear: &Gear| faults::silent_peer(gear, path);
        trials.push(trial(runtime, title, run));
        let title = format!("memory of the application, posts {path}");
        let run = move |gear: &Gear| memory::registered(gear, path);
        trials.push(trial(runtime, title, run));
        let title = format!("memory dropped while in use, posts {path}");
        let run = move |gear: &Gear| memory::dropped(gear, path);
        trials.push(trial(runtime, title, run));
    }
    for (channels, streams) in [(8, 9), (32, 33)] {
        let title = format!("{streams} waiting streams on {channels} channels");
        let run = move |_: &Gear| waits::in_a_process(runtime, channels, streams);
        trials.push(trial(runtime, title, run));
    }
    trials.push(trial(runtime, "kernel trigger", kernels::trigger));
    trials.push(trial(runtime, "kernel wait", kernels::wait));
    if runtime == Runtime::Cuda {
        // The soft GPU lets the caller wait instead.
        trials.push(trial(
            runtime,
            "a full stream that waits",
            waits::full_stream,
        ));
    }
    trials
}

fn trial(
    runtime: Runtime,
    title: impl std::fmt::Display,
    run: impl FnOnce(&Gear) -> Verdict + Send + 'static,
) -> Trial {
    let title = format!("{} {title}", runtime.name());
    Trial::test(title, move || run(&Gear::open(runtime)?))
}
