//! The interface of a benchmark, and how the program runs one: options as input, a table on
//! standard output, and figures and targets as JSON on request.

use std::time::Duration;

use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

use crate::options::Run;
use crate::report::{self, Report, Target};

/// Two uses of a command: its arguments, and what it then does.
pub type Examples = [(&'static str, &'static str); 2];

/// The last line of each help text.
pub const UNITS: &str = "\
Sizes are in bytes (8, 64Ki, 1Mi), times in seconds unless the option names another unit.";

/// A benchmark, with its options.
pub trait Benchmark: Args + Serialize {
    /// The name of its command.
    const NAME: &'static str;
    /// Its line in the help text.
    const ABOUT: &'static str;
    /// The examples in its help text.
    const EXAMPLES: Examples;
    /// What a run without an error has verified, for the last line of its output.
    const VERIFIED: Option<&'static str> = None;

    /// Runs the benchmark within `limit` and prints its results. `None`: another process has the
    /// figures.
    fn run(&self, limit: Duration) -> Result<Option<Outcome>>;
}

/// The results of a benchmark.
pub struct Outcome {
    /// The measured figures; durations are in nanoseconds.
    pub figures: Value,
    /// The targets.
    pub targets: Vec<Target>,
    /// Whether the benchmark failed; there may be figures either way.
    pub verdict: Result<()>,
}

impl Outcome {
    /// Figures with their targets.
    pub fn of(figures: &impl Serialize, targets: Vec<Target>) -> Result<Option<Outcome>> {
        Outcome::judged(figures, targets, Ok(()))
    }

    /// Figures of a benchmark that may have failed.
    pub fn judged(
        figures: &impl Serialize,
        targets: Vec<Target>,
        verdict: Result<()>,
    ) -> Result<Option<Outcome>> {
        Ok(Some(Outcome {
            figures: serde_json::to_value(figures)?,
            targets,
            verdict,
        }))
    }
}

/// A command of the program.
pub struct Entry {
    /// The name of the command.
    pub name: &'static str,
    /// Its line in the help text.
    pub about: &'static str,
    /// The examples in its help text.
    pub examples: Examples,
    /// Adds its options.
    pub options: fn(Command) -> Command,
    /// Runs it with the given options.
    pub run: fn(&ArgMatches) -> Result<()>,
}

impl Entry {
    /// The command of a benchmark.
    pub const fn of<B: Benchmark>() -> Entry {
        Entry {
            name: B::NAME,
            about: B::ABOUT,
            examples: B::EXAMPLES,
            options: |command| Run::augment_args(B::augment_args(command)),
            run: run::<B>,
        }
    }

    /// The command for clap.
    pub fn command(&self) -> Command {
        let example =
            |(arguments, does)| format!("  mpbench {} {arguments}\n          {does}\n", self.name);
        let examples: String = self.examples.map(example).concat();
        (self.options)(Command::new(self.name))
            .about(self.about)
            .after_help(format!("Examples:\n{examples}\n{UNITS}"))
    }
}

fn run<B: Benchmark>(given: &ArgMatches) -> Result<()> {
    let (benchmark, run) = (B::from_arg_matches(given)?, Run::from_arg_matches(given)?);
    let Some(outcome) = benchmark.run(run.timeout)? else {
        return Ok(());
    };
    if let Some(path) = &run.json {
        let mut options = serde_json::to_value(&benchmark)?;
        options["run"] = serde_json::to_value(&run)?;
        let report = Report::new(B::NAME, options, outcome.figures, outcome.targets)?;
        report::write_json(path, &report)?;
    }
    outcome.verdict?;
    if let Some(verified) = B::VERIFIED {
        println!("mpbench {}: {verified}: ok", B::NAME);
    }
    Ok(())
}
