//! Puts, gets, signals and atomics: their work on a lane, and their state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use gdsync::Status;
use gdsync::gpu::MemoryKind;

use super::one_sided::Action;
use crate::error::Result;
use crate::mutant::{self, Mutant};
use crate::path::{Atomic, Batch, LANES, Piece, Put, Span};
use crate::region::Slice;

/// What a transfer does with the memory of a window, whose offsets are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Nothing: the memory is that of the null rank.
    Nothing,
    /// Copies memory of this rank to `to`; then stores a word, if there is one: its span and its
    /// value.
    Put {
        to: Span,
        signal: Option<(Span, u64)>,
    },
    /// Copies to memory of this rank, after all earlier puts.
    Get { from: Span },
    /// Stores a word after all earlier puts.
    Signal { to: Span, value: u64 },
    /// Changes a word; memory of this rank receives its old value.
    Atomic { word: Span, atomic: Atomic },
}

impl Work {
    /// Prepares the work with `memory` of this rank: at most three puts, unless the memory is longer
    /// than [`MOST_BYTES`](crate::path::MOST_BYTES).
    pub fn prepare<const N: usize>(
        self,
        batch: &mut Batch<'_, N>,
        memory: Option<&Slice>,
    ) -> Result<()> {
        let chunks = |to| chunks(memory, to);
        match self {
            Work::Nothing => {}
            Work::Put {
                to,
                signal: Some((at, value)),
            } => {
                let word = value.to_le_bytes();
                if mutant::on(Mutant::SignalFirst) {
                    batch.put_bytes(&word, at)?;
                    for (chunk, at) in chunks(to) {
                        batch.put_signaled(chunk, at)?;
                    }
                    return Ok(());
                }
                for (chunk, at) in chunks(to) {
                    batch.put([chunk].into_iter(), at)?;
                }
                batch.announce(&word, at)?;
            }
            Work::Put { to, signal: None } => {
                for (chunk, at) in chunks(to) {
                    batch.put_signaled(chunk, at)?;
                }
            }
            Work::Get { from } => {
                for (chunk, at) in chunks(from) {
                    batch.get(chunk, at)?;
                }
            }
            Work::Signal { to, value } => {
                batch.announce(&value.to_le_bytes(), to)?;
            }
            Work::Atomic { word, atomic } => {
                if let Some(old) = memory {
                    batch.atomic(old.piece(), word, atomic)?;
                }
            }
        }
        Ok(())
    }
}

/// The pieces of `memory` that one put each copies, with their spans at the peer.
fn chunks(memory: Option<&Slice>, span: Span) -> impl Iterator<Item = (Piece<'_>, Span)> {
    let slices = memory.into_iter();
    slices.flat_map(move |slice| slice.chunks(slice.len() as u64, span))
}

/// The lanes on which puts to one rank's memory of a window were posted, one bit each. Relaxed: the
/// bits are written and read under the engine's lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsedLanes(Arc<AtomicU8>);

const _: () = assert!(LANES <= u8::BITS as usize);

impl UsedLanes {
    /// Records that a put was posted on `lane`.
    #[inline]
    pub fn add(&self, lane: u8) {
        self.0.fetch_or(1 << lane, Ordering::Relaxed);
    }

    /// Whether a put was posted on `lane`.
    #[inline]
    pub fn has(&self, lane: u8) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << lane != 0
    }
}

/// The state of a transfer.
#[derive(Debug)]
pub(crate) enum TransferState {
    /// Nothing was posted. Its lane is recorded when it is posted.
    Prepared(Work, UsedLanes),
    /// Its work is posted; it ends when this put is done.
    InFlight(Put),
    /// It has ended.
    Done(Status),
}

/// The fields of a put, a get, a signal or an atomic.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub action: Action,
    /// Whether a put stores a signal behind its payload.
    pub signals: bool,
    pub state: TransferState,
}

impl Transfer {
    /// Whether it stores into `memory` of this rank that is in the GPU, so that a wait for it has
    /// to flush.
    pub fn lands_in_device(&self, memory: &[Slice]) -> bool {
        let device = |s: &Slice| s.memory().region().kind() == MemoryKind::Device;
        !matches!(self.action, Action::Put | Action::Signal) && memory.iter().any(device)
    }

    /// Records that its work is posted on `lane`; `last`: its last put.
    pub fn post(&mut self, lane: u8, last: Option<Put>) {
        if let TransferState::Prepared(_, lanes) = &self.state {
            lanes.add(lane);
        }
        let done = TransferState::Done(Status::SUCCESS);
        self.state = last.map_or(done, TransferState::InFlight);
    }
}
