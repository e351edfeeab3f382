//! What a benchmark is, and how the program asks one: options in; on the screen a table, and figures
//! and targets as JSON where that is asked for.

use std::time::Duration;

use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

use crate::options::Run;
use crate::report::{self, Report, Target};

/// A benchmark, with its options.
pub trait Benchmark: Args + Serialize {
    /// Its command.
    const NAME: &'static str;
    /// The question.
    const ABOUT: &'static str;

    /// Runs it within `limit` and prints what it finds. `None`: another process has the figures.
    fn run(&self, limit: Duration) -> Result<Option<Outcome>>;
}

/// What a benchmark found.
pub struct Outcome {
    /// What was measured; durations are in nanoseconds.
    pub figures: Value,
    /// What was aimed at.
    pub targets: Vec<Target>,
    /// Whether it failed, figures or not.
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
    /// Its name.
    pub name: &'static str,
    /// What it answers.
    pub about: &'static str,
    /// Adds its options.
    pub options: fn(Command) -> Command,
    /// Runs it with the options that were given.
    pub run: fn(&ArgMatches) -> Result<()>,
}

impl Entry {
    /// The command of a benchmark.
    pub const fn of<B: Benchmark>() -> Entry {
        Entry {
            name: B::NAME,
            about: B::ABOUT,
            options: |command| Run::augment_args(B::augment_args(command)),
            run: run::<B>,
        }
    }

    /// It for the command line.
    pub fn command(&self) -> Command {
        (self.options)(Command::new(self.name)).about(self.about)
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
    outcome.verdict
}
