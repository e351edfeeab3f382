//! The patterns: what the two ranks of a pair do in one iteration, and the measurement of many.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Play;
use super::end::End;
use super::options::{Op, Way};

/// Operations of a batch on a stream. Two batches may be in flight, and a large message is up to ten
/// submissions, of which a stream of CUDA that waits holds 1000.
const BATCH: u64 = 32;

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
pub fn measure(end: &mut End<'_>, play: &Play, (size, way): (u64, Way)) -> Result<u64> {
    end.set(way, size)?;
    let warmup = play.common.warmup(play.pattern, size);
    let mut elapsed = 0;
    for number in 0..=warmup {
        let iterations = play.common.iterations(play.pattern, size);
        let count = if number < warmup { 1 } else { iterations };
        end.fill(number, play.common.corrupt == Some(number))?;
        end.barrier()?;
        elapsed = timed(end, play, way.op, count)?;
        end.barrier()?;
        if receives(play.pattern, way.op, end.is_first()) {
            end.compare(number)?;
        }
    }
    Ok(elapsed)
}

/// Runs `count` iterations, and returns their time in nanoseconds.
pub fn timed(end: &mut End<'_>, play: &Play, op: Op, count: u64) -> Result<u64> {
    let (pattern, window) = (play.pattern, play.window);
    let batch = (BATCH / window).max(1);
    let time = end.repeat(count, batch, |end| round(end, pattern, op, window))?;
    Ok(time.as_nanos() as u64)
}

/// Takes part in the measurement of a pair of other ranks.
pub fn stand_by(end: &End<'_>, play: &Play, size: u64) -> Result<()> {
    for _ in 0..=play.common.warmup(play.pattern, size) {
        end.barrier()?;
        end.barrier()?;
    }
    Ok(())
}

/// Whether a rank of the pair receives bytes.
pub fn receives(pattern: Pattern, op: Op, first: bool) -> bool {
    match (pattern, op) {
        (Pattern::Latency, Op::Send | Op::PutSignal) | (Pattern::Bibw, _) => true,
        (_, Op::Get) => first,
        _ => !first,
    }
}

/// One iteration.
pub fn round(end: &mut End<'_>, pattern: Pattern, op: Op, window: u64) -> Result<()> {
    let first = end.is_first();
    match (pattern, op) {
        (Pattern::Latency, Op::Send) if end.is_ahead() => {
            let send = if first { Some(end.send()?) } else { None };
            let receive = end.recv_ahead()?;
            end.wait(&[receive])?;
            let answer = if first { None } else { Some(end.send()?) };
            end.wait(&Vec::from_iter(send.or(answer)))
        }
        (Pattern::Latency, Op::Send) if first => end.wait(&[end.recv()?, end.send()?]),
        (Pattern::Latency, Op::Send) => {
            end.wait(&[end.recv()?])?;
            end.wait(&[end.send()?])
        }
        (Pattern::Latency, Op::PutSignal) => {
            for sends in [first, !first] {
                flow(end, op, 1, [sends, !sends])?;
            }
            Ok(())
        }
        (Pattern::Bibw, _) => flow(end, op, window, [true, true]),
        _ => {
            flow(end, op, window, [first, !first])?;
            answer(end, pattern, op)
        }
    }
}

/// A window of operations, of a rank that sends, receives, or both.
fn flow(end: &mut End<'_>, op: Op, window: u64, [sends, receives]: [bool; 2]) -> Result<()> {
    let count = |is: bool| 0..if is { window } else { 0 };
    match op {
        Op::Send => {
            let receives = count(receives).map(|_| end.recv());
            let all = receives.chain(count(sends).map(|_| end.send()));
            end.wait(&all.collect::<Result<Vec<_>>>()?)
        }
        Op::Put if sends => {
            let puts = count(sends).map(|_| end.put());
            let puts = puts.collect::<Result<Vec<_>>>()?;
            drop(puts);
            end.quiet()
        }
        Op::Get if sends => {
            let gets = count(sends).map(|_| end.get());
            end.wait(&gets.collect::<Result<Vec<_>>>()?)
        }
        Op::PutSignal => {
            // The requests complete by themselves; the peer's signals show that they have.
            count(sends).try_for_each(|_| end.put_signal().map(drop))?;
            if receives {
                end.wait_signals(window)?;
            }
            Ok(())
        }
        Op::Put | Op::Get => Ok(()),
    }
}

/// The answer of the second rank to a window of messages or signals.
fn answer(end: &mut End<'_>, pattern: Pattern, op: Op) -> Result<()> {
    match (op, end.is_first()) {
        _ if pattern == Pattern::Latency => Ok(()),
        (Op::Send, true) => end.wait(&[end.recv_answer()?]),
        (Op::Send, false) => end.wait(&[end.send_answer()?]),
        (Op::PutSignal, true) => end.wait_signals(1),
        (Op::PutSignal, false) => end.signal().map(drop),
        (Op::Put | Op::Get, _) => Ok(()),
    }
}
