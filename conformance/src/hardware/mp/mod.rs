//! The matrix of messages: programs of [`crate::mp`] over models x doorbells x memories x sizes x
//! ranks x laps and whatever else a message can differ in, on every GPU runtime that is here, in a
//! cover or whole.
//!
//! [`cells`] says what there is to set and which settings go together. [`run`] brings the ranks of a
//! cell together as threads of this process, [`processes`] as processes that [`launch`] starts. In
//! [`lost`] one of these dies or stops, and the others go on.

mod cells;
mod launch;
pub(super) mod lost;
pub(super) mod processes;
mod run;

use std::time::Instant;

use gdsync::Gpu;
use libtest_mimic::Arguments;

use super::cover::Cell;
use super::suite::Suite;
use super::{CHANNELS, told};
use crate::rig::Runtime;
use cells::Resources;
use lost::Failure;

/// What to run.
#[derive(Default)]
struct Choice {
    /// These runtimes; all if it is empty.
    runtimes: Vec<Runtime>,
    /// GPUs of CUDA that ranks share at most.
    gpus: Option<u32>,
    /// Not any two settings, but each one.
    few: bool,
    /// Not a cover, but everything.
    whole: bool,
    /// This cell alone.
    cell: Option<Cell>,
    /// Words for the trials.
    rest: Vec<String>,
}

const HELP: &str = "\
usage: conformance mp [OPTIONS] [FILTER] [OPTIONS OF A TEST]

  --gpu NAME    soft or cuda; else both, where present
  --gpus N      of CUDA's GPUs the first N at most, which the ranks share (default 1)
  --few         each setting once, in place of any two together
  --whole       the whole matrix, not a cover of it
  --cell WORD   one cell, as a failure names it

and what `conformance --help` lists.
";

/// What the words say; the one that is not understood.
fn understand(mut words: impl Iterator<Item = String>) -> Result<Choice, String> {
    let mut choice = Choice::default();
    choice.rest.push("conformance mp".to_owned());
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        let understood = match word.as_str() {
            "--gpu" => Runtime::named(&value()).map(|runtime| choice.runtimes.push(runtime)),
            "--gpus" => {
                choice.gpus = value().parse().ok().filter(|n| *n > 0);
                choice.gpus.map(drop)
            }
            "--cell" => {
                choice.cell = cells::parse(&value());
                choice.cell.as_ref().map(drop)
            }
            "--few" => {
                choice.few = true;
                Some(())
            }
            "--whole" => {
                choice.whole = true;
                Some(())
            }
            _ => {
                choice.rest.push(word.clone());
                Some(())
            }
        };
        understood.ok_or(word)?;
    }
    Ok(choice)
}

/// The command `conformance mp`: runs what is chosen, says what it came to, and ends the process.
pub fn command(words: impl Iterator<Item = String>) -> ! {
    let choice = understand(words).unwrap_or_else(|word| {
        eprint!("{word} is not understood\n\n{HELP}");
        std::process::exit(2)
    });
    if choice
        .rest
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        println!("{HELP}");
    }
    let arguments = Arguments::from_iter(&choice.rest);
    // Ranks share GPUs, so that many streams wait; the driver reads it at its start.
    if std::env::var_os(CHANNELS).is_none() {
        // SAFETY: no other thread has been started yet.
        unsafe { std::env::set_var(CHANNELS, "32") };
    }
    let start = Instant::now();
    let mut suite = told(Suite::new("mp"));
    let all = choice.runtimes.is_empty();
    for runtime in Runtime::ALL {
        if all || choice.runtimes.contains(&runtime) {
            add(&mut suite, runtime, &choice);
        }
    }
    suite.lacks_hip();
    suite.run(arguments, |conclusion| {
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
    let most = choice.gpus.unwrap_or(1);
    let (gpus, streams) = match runtime {
        Runtime::Soft => (1, None),
        Runtime::Cuda => {
            let there = (1..most).take_while(|i| Gpu::open(&format!("cuda:{i}")).is_ok());
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
        shared: runtime == Runtime::Cuda,
    };
    if choice.cell.is_none() {
        for (what, failure) in [("killed", Failure::Killed), ("stopped", Failure::Stopped)] {
            suite.add(runtime, format!("processes: a rank is {what}"), move || {
                lost::lost(runtime, gpus, failure)
            });
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
