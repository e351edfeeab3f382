//! Faults as text in a variable or an option: words `name=value`, separated by commas.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use gds_step::Time;
use thiserror::Error;

use super::Faults;

/// An invalid word in a list of faults.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{word}' is no valid fault: {why}")]
pub struct FaultsError {
    /// The word.
    pub word: String,
    /// The reason.
    pub why: FaultsWhy,
}

/// The reason why a word is no valid fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultsWhy {
    /// The name of the fault is unknown.
    #[error(
        "it may be one of seed, loss, dup, reorder, ooo, delay, deaf, die, fatal, down with a value"
    )]
    Name,
    /// The fault is given twice, which is not allowed.
    #[error("it is given more than once")]
    Twice,
    /// The value is not a whole number of at most 64 bits.
    #[error("a seed is a whole number of at most 64 bits")]
    Seed,
    /// The value is not a number from 0 to 1.
    #[error("a rate is a number from 0 to 1")]
    Rate,
    /// The value is not a time.
    #[error("a time is a whole number with its unit, ns, us, ms or s: 20us")]
    Time,
    /// The value is not a span of time, or the span is empty.
    #[error("a span is two times, the first one smaller: 1s..2s")]
    Span,
    /// The value is not a port.
    #[error("a port is a number from 1 to 32, followed by its span: 1:1s..2s")]
    Port,
}

const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

fn time(text: &str) -> Result<Duration, FaultsWhy> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS
        .iter()
        .find(|(name, _)| *name == &text[digits.len()..]);
    let count = digits.bytes().all(|b| b.is_ascii_digit());
    let count: Option<u64> = count.then(|| digits.parse().ok()).flatten();
    let nanos = count
        .zip(unit)
        .and_then(|(n, (_, unit))| n.checked_mul(*unit));
    nanos.map(Duration::from_nanos).ok_or(FaultsWhy::Time)
}

fn span(text: &str) -> Result<Range<Duration>, FaultsWhy> {
    let (from, to) = text.split_once("..").ok_or(FaultsWhy::Span)?;
    let span = time(from)?..time(to)?;
    if span.is_empty() {
        Err(FaultsWhy::Span)
    } else {
        Ok(span)
    }
}

fn window(text: &str) -> Result<Range<Time>, FaultsWhy> {
    let Range { start, end } = span(text)?;
    Ok(Time::ZERO + start..Time::ZERO + end)
}

fn rate(text: &str) -> Result<f64, FaultsWhy> {
    let rate: Option<f64> = text.parse().ok();
    let rate = rate.filter(|r| (0.0..=1.0).contains(r) && r.is_sign_positive());
    rate.ok_or(FaultsWhy::Rate)
}

fn port(text: &str) -> Result<(u8, Range<Time>), FaultsWhy> {
    let (port, span) = text.split_once(':').ok_or(FaultsWhy::Port)?;
    let port = port.parse().ok().filter(|port| (1..=32).contains(port));
    Ok((port.ok_or(FaultsWhy::Port)?, window(span)?))
}

impl FromStr for Faults {
    type Err = FaultsError;

    /// Parses words: `loss=0.01,dup=0.01,reorder=0.01,ooo=0.5,delay=20us..2ms,seed=7,die=3s`,
    /// `fatal=4s`, `deaf=1s..2s` and `down=1:1s..2s` (port 1). The last two may occur several
    /// times. Without a seed the parser draws one. The printed form of the result parses to the
    /// same faults.
    ///
    /// # Errors
    /// The first invalid word.
    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults {
            seed: fastrand::u64(..),
            ..Faults::default()
        };
        let mut named = Vec::new();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let wrong = |why| FaultsError {
                word: word.to_string(),
                why,
            };
            let (name, value) = word.split_once('=').ok_or(wrong(FaultsWhy::Name))?;
            if named.contains(&name) {
                return Err(wrong(FaultsWhy::Twice));
            }
            let done = match name {
                "seed" => value
                    .parse()
                    .map(|seed| faults.seed = seed)
                    .map_err(|_| FaultsWhy::Seed),
                "loss" => rate(value).map(|rate| faults.loss = rate),
                "dup" => rate(value).map(|rate| faults.dup = rate),
                "reorder" => rate(value).map(|rate| faults.reorder = rate),
                "ooo" => rate(value).map(|rate| faults.ooo = rate),
                "delay" => span(value).map(|span| faults.delay = span),
                "die" => time(value).map(|at| faults.die_at = Some(Time::ZERO + at)),
                "fatal" => time(value).map(|at| faults.fatal_at = Some(Time::ZERO + at)),
                "deaf" => window(value).map(|window| faults.deaf.push(window)),
                "down" => port(value).map(|window| faults.port_down.push(window)),
                _ => Err(FaultsWhy::Name),
            };
            done.map_err(wrong)?;
            if !matches!(name, "deaf" | "down") {
                named.push(name);
            }
        }
        Ok(faults)
    }
}

/// A time in the largest unit that represents it as a whole number.
struct Exact(u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0.is_multiple_of(*unit);
        match UNITS.iter().find(fits) {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        let rates = [
            ("loss", self.loss),
            ("dup", self.dup),
            ("reorder", self.reorder),
            ("ooo", self.ooo),
        ];
        for (name, rate) in rates {
            if rate != 0.0 {
                write!(f, ",{name}={rate}")?;
            }
        }
        let exact = |d: Duration| Exact(d.as_nanos() as u64);
        if !self.delay.is_empty() {
            let Range { start, end } = self.delay;
            write!(f, ",delay={}..{}", exact(start), exact(end))?;
        }
        let of = |t: Time| Exact(t.as_nanos());
        for Range { start, end } in &self.deaf {
            write!(f, ",deaf={}..{}", of(*start), of(*end))?;
        }
        if let Some(at) = self.die_at {
            write!(f, ",die={}", of(at))?;
        }
        if let Some(at) = self.fatal_at {
            write!(f, ",fatal={}", of(at))?;
        }
        for (port, Range { start, end }) in &self.port_down {
            write!(f, ",down={port}:{}..{}", of(*start), of(*end))?;
        }
        Ok(())
    }
}
