//! One rank of a benchmark: its number, its peer, its time limit, and how it reports.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gdsync::Stream;
use mp::Bootstrap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context;
use crate::endpoint::Endpoint;
use crate::link::Link;
use crate::options::Setup;

/// The job of ranks.
pub trait Job: Clone + Send + Serialize + DeserializeOwned + 'static {
    /// The name of the job.
    const NAME: &'static str;

    /// Whether the ranks use mp, which needs a bootstrap.
    fn needs_mp(&self) -> bool;

    /// Runs one rank. It ends with a barrier, since a rank closes its NIC when it ends.
    fn play(&self, rank: &mut Rank) -> Result<Value>;
}

/// A message from a rank to the process that started it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Note {
    /// Progress: this much more is done.
    Progress(u64),
    /// A part of the result, to be printed at once.
    Part(Value),
    /// The result: the rank is done.
    Result(Value),
    /// The rank failed, with the reason.
    Failed(String),
}

/// The receiver of notes.
pub enum Outbox {
    /// Standard output of this process, one JSON text a line.
    Stdout,
    /// A thread of this process.
    Channel(Sender<(usize, Note)>),
}

/// A rank.
pub struct Rank {
    /// Its number, from 0.
    pub number: u32,
    /// The number of the other rank, if there are two.
    pub link: Link,
    bootstrap: Option<Arc<dyn Bootstrap>>,
    deadline: Instant,
    outbox: Outbox,
}

impl Rank {
    /// A rank whose operations fail at `deadline`.
    pub fn new(number: u32, link: Link, deadline: Instant, outbox: Outbox) -> Rank {
        Rank {
            number,
            link,
            bootstrap: None,
            deadline,
            outbox,
        }
    }

    /// Its place in a job of mp, if it has one.
    #[must_use]
    pub fn with_bootstrap(mut self, bootstrap: Option<Arc<dyn Bootstrap>>) -> Rank {
        self.bootstrap = bootstrap;
        self
    }

    /// Its bootstrap.
    pub fn bootstrap(&self) -> Result<Arc<dyn Bootstrap>> {
        let bootstrap = self.bootstrap.clone();
        bootstrap.context("a rank without a bootstrap")
    }

    /// This rank's context of mp, over `endpoint`.
    pub fn context(&self, endpoint: &Endpoint, setup: &Setup) -> Result<mp::Context> {
        let (bootstrap, queue) = (self.bootstrap()?, context::QUEUE);
        let builder = context::builder(endpoint, setup, bootstrap, queue, self.left())?;
        builder.build().context("building a context")
    }

    /// Runs the job and reports the outcome; `true` on success.
    pub fn work(mut self, job: &impl Job) -> bool {
        let result = job.play(&mut self);
        let note = match result {
            Ok(value) => Note::Result(value),
            Err(e) => Note::Failed(format!("{e:#}")),
        };
        let well = matches!(note, Note::Result(_));
        self.report_note(note) && well
    }

    /// Sends a report; `false` if the receiver is gone.
    pub fn report_note(&self, note: Note) -> bool {
        match &self.outbox {
            Outbox::Stdout => {
                let line = serde_json::to_string(&note).unwrap_or_default();
                let mut out = std::io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
            }
            Outbox::Channel(sender) => sender.send((self.number as usize, note)).is_ok(),
        }
    }

    /// Reports a part of the result.
    pub fn part(&self, part: &impl Serialize) -> Result<()> {
        self.report_note(Note::Part(serde_json::to_value(part)?));
        Ok(())
    }

    /// The remaining time of the time limit.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Sleeps until the stream is done. It polls rarely, so that this thread leaves the processors
    /// to the devices: after a millisecond, then whenever a quarter more time has passed.
    pub fn park(&self, stream: &Stream) -> Result<()> {
        let start = Instant::now();
        let mut nap = Duration::from_millis(1);
        while !stream
            .synchronize(Duration::ZERO)
            .context("waiting for the stream")?
        {
            if self.left().is_zero() {
                bail!("the stream was not done within the time limit");
            }
            std::thread::sleep(nap.min(self.left()));
            nap = (start.elapsed() / 4).max(Duration::from_millis(1));
        }
        Ok(())
    }
}
