//! The patterns: what the two ranks of a pair do in one iteration, and the measurement of many.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Play;
use super::ends::Ends;
use super::ways::{Op, Way};

/// Operations of a batch on a stream.
const BATCH: u64 = 64;

/// What a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// A round trip of messages or signals, or one put or get.
    Latency,
    /// A window of operations in one direction.
    Bandwidth,
    /// A window of operations in each direction.
    Bibw,
    /// As [`Pattern::Bandwidth`], of several pairs.
    Rate,
}

/// Measures one size in one way: verified rounds, then timed ones. Returns the time in nanoseconds.
pub fn measure(ends: &mut Ends<'_>, play: &Play, (size, way): (u64, Way)) -> Result<u64> {
    let (pattern, op, window) = (play.pattern, way.op, play.window);
    ends.set(way, size);
    let warmup = play.common.warmup(pattern, size);
    let iterations = play.common.iterations(pattern, size);
    let batch = (BATCH / window).max(1);
    let mut elapsed = 0;
    for number in 0..=warmup {
        let count = if number < warmup { 1 } else { iterations };
        ends.fill(number, play.common.corrupt == Some(number))?;
        ends.barrier()?;
        let time = ends.repeat(count, batch, |ends| round(ends, pattern, op, window))?;
        elapsed = time.as_nanos() as u64;
        ends.barrier()?;
        if receives(pattern, op, ends.is_first()) {
            ends.compare(number)?;
        }
    }
    Ok(elapsed)
}

/// Takes part in the measurement of a pair of other ranks.
pub fn stand_by(ends: &Ends<'_>, play: &Play, size: u64) -> Result<()> {
    for _ in 0..=play.common.warmup(play.pattern, size) {
        ends.barrier()?;
        ends.barrier()?;
    }
    Ok(())
}

/// Whether a rank of the pair receives bytes.
fn receives(pattern: Pattern, op: Op, first: bool) -> bool {
    match (pattern, op) {
        (Pattern::Latency, Op::Send | Op::PutSignal) | (Pattern::Bibw, _) => true,
        (_, Op::Get) => first,
        _ => !first,
    }
}

/// One iteration.
fn round(ends: &mut Ends<'_>, pattern: Pattern, op: Op, window: u64) -> Result<()> {
    let first = ends.is_first();
    match (pattern, op) {
        (Pattern::Latency, Op::Send) if first => ends.wait(&[ends.recv()?, ends.send()?]),
        (Pattern::Latency, Op::Send | Op::PutSignal) => {
            for sends in [first, !first] {
                flow(ends, op, 1, [sends, !sends])?;
            }
            Ok(())
        }
        (Pattern::Bibw, _) => flow(ends, op, window, [true, true]),
        _ => {
            flow(ends, op, window, [first, !first])?;
            answer(ends, pattern, op)
        }
    }
}

/// A window of operations, of a rank that sends, receives, or both.
fn flow(ends: &mut Ends<'_>, op: Op, window: u64, [sends, receives]: [bool; 2]) -> Result<()> {
    let count = |is: bool| 0..if is { window } else { 0 };
    match op {
        Op::Send => {
            let receives = count(receives).map(|_| ends.recv());
            let all = receives.chain(count(sends).map(|_| ends.send()));
            ends.wait(&all.collect::<Result<Vec<_>>>()?)
        }
        Op::Put if sends => {
            let puts = count(sends).map(|_| ends.put());
            let puts = puts.collect::<Result<Vec<_>>>()?;
            drop(puts);
            ends.quiet()
        }
        Op::Get if sends => {
            let gets = count(sends).map(|_| ends.get());
            ends.wait(&gets.collect::<Result<Vec<_>>>()?)
        }
        Op::PutSignal => {
            // The requests complete by themselves; the peer's signals show that they have.
            count(sends).try_for_each(|_| ends.put_signal().map(drop))?;
            if receives {
                ends.wait_signals(window)?;
            }
            Ok(())
        }
        Op::Put | Op::Get => Ok(()),
    }
}

/// The answer of the second rank to a window of messages or signals.
fn answer(ends: &mut Ends<'_>, pattern: Pattern, op: Op) -> Result<()> {
    match (op, ends.is_first()) {
        _ if pattern == Pattern::Latency => Ok(()),
        (Op::Send, true) => ends.wait(&[ends.recv_answer()?]),
        (Op::Send, false) => ends.wait(&[ends.send_answer()?]),
        (Op::PutSignal, true) => ends.wait_signals(1),
        (Op::PutSignal, false) => ends.signal().map(drop),
        (Op::Put | Op::Get, _) => Ok(()),
    }
}
