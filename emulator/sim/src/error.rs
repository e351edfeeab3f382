//! What a simulation reports, and how it fails.

use std::fmt;
use std::io;

use gds_step::{Step, Time};

use crate::trace::Answer;

/// A simulation that came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReport {
    /// The seed it ran with.
    pub seed: u64,
    /// Turns so far.
    pub turns: u64,
    /// Virtual time so far.
    pub time: Time,
    /// A digest of every choice and answer so far: equal for equal runs.
    pub digest: u64,
    /// Ranks that were frozen or killed and did not end.
    pub unfinished: Vec<String>,
}

/// A rank or machine at the moment a simulation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The name given to it.
    pub name: String,
    /// A rank, not a machine.
    pub is_rank: bool,
    /// Frozen or killed.
    pub frozen: bool,
    /// Its last answer; a rank's is [`Step::Progress`] when it got from one wait to the next.
    /// `None`: it was never stepped.
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

/// A simulation that failed. Every message begins with the seed that replays it.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed:#018x}, turn {turn} at {now:?}: {cause}")]
pub struct SimError {
    /// The seed.
    pub seed: u64,
    /// The turn it came to.
    pub turn: u64,
    /// The virtual time it came to.
    pub now: Time,
    /// How it failed.
    #[source]
    pub cause: Cause,
}

/// How a simulation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Nobody can go on and nobody waits for a time. All ranks that have not ended, and all
    /// machines.
    #[error("stuck: {}", List(.0))]
    Stuck(Vec<Waiting>),
    /// The limit of turns or of virtual time was reached. As in `Stuck`.
    #[error("limit reached: {}", List(.0))]
    TimeLimit(Vec<Waiting>),
    /// A rank panicked.
    #[error("rank {rank} panicked: {message}")]
    RankPanicked {
        /// The rank's name.
        rank: String,
        /// What the panic said.
        message: String,
    },
    /// A machine panicked in a step. It was detached.
    #[error("machine {machine} panicked: {message}")]
    MachinePanicked {
        /// The machine's name.
        machine: String,
        /// What the panic said.
        message: String,
    },
    /// No stack for a rank.
    #[error("no stack of {size} bytes for rank {rank}")]
    Stack {
        /// The rank's name.
        rank: String,
        /// The size asked for.
        size: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The text trace could not be written; the simulation went on without.
    #[error("the trace could not be written")]
    Trace(#[source] io::Error),
}
