//! The trace of a simulation, as a digest and optionally as text.

use std::fmt;
use std::io::{self, Write};

use gds_step::{Step, Time};

/// A rolling digest of all choices and answers, and a writer that receives a line for each.
#[derive(Default)]
pub(super) struct Trace {
    digest: u64,
    writer: Option<Box<dyn Write + Send>>,
    error: Option<io::Error>,
}

impl Trace {
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn write_to(&mut self, writer: Box<dyn Write + Send>) {
        self.writer = Some(writer);
    }

    /// The error of the writer, reported once.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    pub(super) fn flush(&mut self) {
        let flushed = self.writer.as_mut().map_or(Ok(()), |w| w.flush());
        self.check(flushed);
    }

    #[inline]
    pub(super) fn fold(&mut self, words: &[u64]) {
        for word in words {
            // Multiplication mixes upwards, the shift downwards.
            self.digest = (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.digest ^= self.digest >> 29;
        }
    }

    pub(super) fn note(&mut self, turn: u64, now: Time, name: &str, what: &str) {
        self.line(turn, now, name, format_args!("{what}"));
    }

    pub(super) fn answer(&mut self, turn: u64, now: Time, name: &str, answer: Step) {
        self.line(turn, now, name, format_args!("{}", Answer(answer)));
    }

    fn line(&mut self, turn: u64, now: Time, name: &str, what: fmt::Arguments<'_>) {
        if let Some(writer) = &mut self.writer {
            let written = writeln!(writer, "{turn:>8} {now:?} {name} {what}");
            self.check(written);
        }
    }

    fn check(&mut self, written: io::Result<()>) {
        if let Err(e) = written {
            self.writer = None;
            self.error = Some(e);
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({:016x})", self.digest)
    }
}

/// An answer as text.
pub(super) struct Answer(pub Step);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Step::Progress => f.write_str("progresses"),
            Step::IdleUntil(None) => f.write_str("waits"),
            Step::IdleUntil(Some(t)) => write!(f, "waits until {t:?}"),
        }
    }
}
