//! The report of a simulation, and its errors.

use std::fmt;
use std::io;

use gds_step::{Step, Time};

use crate::trace::Answer;

/// The report of a simulation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReport {
    /// The seed of the run.
    pub seed: u64,
    /// The number of turns.
    pub turns: u64,
    /// The virtual time at the end.
    pub time: Time,
    /// A digest of every choice and answer: equal for equal runs.
    pub digest: u64,
    /// The ranks that were frozen or killed and did not end.
    pub unfinished: Vec<String>,
}

/// A rank or machine at the moment a simulation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// True for a rank, false for a machine.
    pub is_rank: bool,
    /// Frozen or killed.
    pub frozen: bool,
    /// Its last answer; for a rank [`Step::Progress`] if it went from one wait to the next. `None`:
    /// it was never stepped.
    pub last: Option<Step>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_rank { "rank" } else { "machine" };
        write!(f, "{kind} {} ", self.name)?;
        match self.last {
            Some(step) => write!(f, "{}", Answer(step))?,
            None => f.write_str("never stepped")?,
        }
        if self.frozen {
            f.write_str(" (frozen)")
        } else {
            Ok(())
        }
    }
}

/// Joins with semicolons.
struct List<'a>(&'a [Waiting]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, waiting) in self.0.iter().enumerate() {
            write!(f, "{}{waiting}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// A failed simulation. Every message begins with the seed that replays it.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed:#018x}, turn {turn} at {now:?}: {cause}")]
pub struct SimError {
    /// The seed.
    pub seed: u64,
    /// The turn of the failure.
    pub turn: u64,
    /// The virtual time of the failure.
    pub now: Time,
    /// The cause.
    #[source]
    pub cause: Cause,
}

/// The cause of a failed simulation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// No rank and no machine can continue, and none waits for a time. Lists all ranks that have
    /// not ended, and all machines.
    #[error("stuck: {}", List(.0))]
    Stuck(Vec<Waiting>),
    /// The limit of turns or of virtual time was reached. The list is that of `Stuck`.
    #[error("limit reached: {}", List(.0))]
    TimeLimit(Vec<Waiting>),
    /// A rank panicked.
    #[error("rank {rank} panicked: {message}")]
    RankPanicked {
        /// The rank's name.
        rank: String,
        /// The message of the panic.
        message: String,
    },
    /// A machine panicked in a step, and was detached.
    #[error("machine {machine} panicked: {message}")]
    MachinePanicked {
        /// The machine's name.
        machine: String,
        /// The message of the panic.
        message: String,
    },
    /// The system refused the stack of a rank.
    #[error("the system refused a stack of {size} bytes for rank {rank}")]
    Stack {
        /// The rank's name.
        rank: String,
        /// The requested size in bytes.
        size: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The text trace could not be written; the simulation continued without it.
    #[error("the trace could not be written")]
    Trace(#[source] io::Error),
}
