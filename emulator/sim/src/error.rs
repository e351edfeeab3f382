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
#[non_exhaustive]
pub enum SimError {
    /// Nobody can go on and nobody waits for a time.
    #[error(
        "seed {seed:#018x}: stuck in turn {turn} at {now:?}: {}",
        List(waiting)
    )]
    Stuck {
        /// The seed.
        seed: u64,
        /// The turn it came to.
        turn: u64,
        /// The virtual time it came to.
        now: Time,
        /// All ranks that have not ended, and all machines.
        waiting: Vec<Waiting>,
    },
    /// The limit of turns or of virtual time was reached.
    #[error(
        "seed {seed:#018x}: limit reached in turn {turn} at {now:?}: {}",
        List(waiting)
    )]
    TimeLimit {
        /// The seed.
        seed: u64,
        /// The turn it came to.
        turn: u64,
        /// The virtual time it came to.
        now: Time,
        /// All ranks that have not ended, and all machines.
        waiting: Vec<Waiting>,
    },
    /// A rank panicked.
    #[error("seed {seed:#018x}: rank {rank} panicked in turn {turn}: {message}")]
    RankPanicked {
        /// The seed.
        seed: u64,
        /// In which turn.
        turn: u64,
        /// The rank's name.
        rank: String,
        /// What the panic said.
        message: String,
    },
    /// A machine panicked in a step. It was detached.
    #[error("seed {seed:#018x}: machine {machine} panicked in turn {turn}: {message}")]
    MachinePanicked {
        /// The seed.
        seed: u64,
        /// In which turn.
        turn: u64,
        /// The machine's name.
        machine: String,
        /// What the panic said.
        message: String,
    },
    /// No stack for a rank.
    #[error("seed {seed:#018x}: no stack of {size} bytes for rank {rank}")]
    Stack {
        /// The seed.
        seed: u64,
        /// The rank's name.
        rank: String,
        /// The size asked for.
        size: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The text trace could not be written; the simulation went on without.
    #[error("seed {seed:#018x}: the trace could not be written")]
    Trace {
        /// The seed.
        seed: u64,
        /// What the writer said.
        source: io::Error,
    },
}
