//! The library on real threads and real GPUs: one set of trials for every GPU runtime, as the
//! program `conformance`, which runs on a machine without a toolchain too.
//!
//! [`program`] plays random programs of messages. A runtime that is absent is shown as ignored,
//! with the reason, and `GDS_REQUIRE` turns that into a failure. Trials run one after the
//! other: on one GPU only a few streams may wait at a time.

pub mod gear;
pub mod program;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::cover;
use gear::{Gear, Runtime};

/// Laps of each ring that a program runs, unless `GDS_LAPS` says otherwise.
const LAPS: usize = 100;

/// Runs the trials that the command line names, or one side of a trial that started this
/// process for it.
pub fn main() -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for runtime in Runtime::ALL {
        trials.extend(trials_of(runtime));
    }
    libtest_mimic::run(&arguments, trials).exit()
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
    let programs = cover::pairwise(&program::AXES, program::makes_sense);
    let trials = programs.into_iter().map(|cell| {
        let title = format!("{name} program: {}", cover::name(&program::AXES, &cell));
        Trial::test(title, move || {
            program::run(&Gear::open(runtime)?, &cell, laps()?)
        })
    });
    trials.collect()
}
