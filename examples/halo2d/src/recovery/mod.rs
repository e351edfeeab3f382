//! Detection of lost ranks, and the agreement of the other ranks on it.
//!
//! A lost rank blocks its neighbours, and these block theirs; soon every rank waits for a living
//! one. A rank that has waited for a long time therefore probes all others, and treats those that
//! do not answer as lost. A rank that has lost another, in this way or by an error of the context,
//! notifies all others. The notification contains the number of iterations that it has begun. Each
//! rank has a receive from any rank for these notes and polls it during every wait.
//!
//! The remaining ranks continue to the same iteration, the last that any of them has begun, without
//! the halos of the lost rank. Then no message is in flight between them, their streams are idle,
//! and the context remains usable. The error that they return names the lost rank.
//!
//! `note` has the bytes of the notes, `wait` the waits of the CPU, `barrier` the start and the end
//! of a run. A context reports a lost rank only to a rank that exchanges messages with it. The
//! notification of all ranks is a planned feature of the library, and will replace this module.

mod barrier;
mod note;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use mp::gdsync::Status;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Error, Kind, Memory, RecvOp, Request, Result, Source};

use crate::config::Config;
use note::Note;

/// Tag of notes.
const TAG_NOTE: u32 = 20;
/// Tag of the messages of a barrier.
const TAG_BARRIER: u32 = 21;
/// The interval between two polls for notes.
const PERIOD: Duration = Duration::from_millis(2);
const OPERATION: &str = "run halo2d";

/// What this rank has recorded about another one.
#[derive(Clone, Copy, Debug, Default)]
struct Other {
    lost: bool,
    /// The connection for its messages is open.
    connected: bool,
    /// Its note with the rank that it has lost has arrived.
    reported: bool,
    /// The time of the unanswered probe.
    probed: Option<Duration>,
}

/// What one rank has recorded about the other ranks of a run.
pub struct Recovery<'a> {
    ctx: &'a Context,
    /// Time since the start, by the clock of the GPU's driver.
    clock: Box<dyn Fn() -> Duration>,
    limit: Duration,
    answer_limit: Duration,
    others: Vec<Other>,
    /// The pending receive of the next note, from any rank, and its memory.
    note: Request,
    note_memory: Memory,
    /// Receivers and notes that are not sent yet.
    outbox: Vec<(u32, Note)>,
    /// All ranks have passed the first barrier, so each answers probes.
    started: bool,
    /// When the current wait, or its last probe, began.
    quiet_since: Duration,
    /// Iterations begun by this rank.
    begun: u64,
    /// The maximum of the iterations in the notes of other ranks.
    begun_elsewhere: u64,
    /// The error of the rank that was lost first.
    first: Option<Error>,
}

impl Drop for Recovery<'_> {
    fn drop(&mut self) {
        // A receive that has matched ends by itself.
        let _ = self.note.cancel();
    }
}

impl<'a> Recovery<'a> {
    /// The state at the start, without a lost rank.
    ///
    /// # Errors
    /// Those of allocating, and of a receive.
    pub fn new(ctx: &'a Context, config: &Config) -> Result<Recovery<'a>> {
        let host = Arc::clone(ctx.gpu().host());
        let start = host.now();
        let note_memory = ctx.alloc(MemoryKind::Pinned, Note::BYTES)?;
        Ok(Recovery {
            ctx,
            clock: Box::new(move || host.now() - start),
            limit: config.limit,
            answer_limit: config.answer_limit,
            others: vec![Other::default(); ctx.size() as usize],
            note: ctx.irecv(Source::Any, TAG_NOTE, &note_memory.all())?,
            note_memory,
            outbox: Vec::new(),
            started: false,
            quiet_since: Duration::ZERO,
            begun: 0,
            begun_elsewhere: 0,
            first: None,
        })
    }

    /// Records that `begun` iterations have begun.
    pub fn set_begun(&mut self, begun: u64) {
        self.begun = begun;
    }

    /// Whether a rank is lost.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.others[rank as usize].lost
    }

    /// Whether any rank is lost.
    pub fn has_lost(&self) -> bool {
        self.first.is_some()
    }

    /// `Ok` if no rank is lost.
    ///
    /// # Errors
    /// The error that names the rank that was lost first.
    pub fn result(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }

    /// The other ranks that are not lost.
    fn remaining(&self) -> Vec<u32> {
        let me = self.ctx.rank();
        let ranks = 0..self.ctx.size();
        ranks
            .filter(|rank| *rank != me && !self.is_lost(*rank))
            .collect()
    }

    /// Handles an error. If it says that another rank is lost, the remaining ranks are notified.
    ///
    /// # Errors
    /// Any other error.
    fn on_error(&mut self, e: Error) -> Result<()> {
        let lost = matches!(
            e.kind(),
            Kind::PeerFailed(_) | Kind::Failed(_) | Kind::Timeout
        );
        let rank = match e.rank() {
            Some(rank) if lost && rank != self.ctx.rank() => rank,
            _ => return Err(e),
        };
        let Some(other) = self.others.get_mut(rank as usize) else {
            return Err(e);
        };
        if std::mem::replace(&mut other.lost, true) {
            return Ok(());
        }
        other.probed = None;
        let connected = other.connected;
        self.first.get_or_insert(e);
        if connected {
            // Streams may be blocked at its messages: a receive with an immediate timeout makes the
            // context treat the rank as failed, too.
            let empty = [self.note_memory.slice(0, 0)?];
            let end = RecvOp::new(rank, TAG_BARRIER, &empty).timeout(PERIOD);
            drop(self.ctx.post_recv(&end));
        }
        let begun = self.begun;
        let note = |to| (to, Note::Lost { rank, begun });
        self.outbox.extend(self.remaining().into_iter().map(note));
        Ok(())
    }

    /// Handles received notes, and sends answers.
    ///
    /// # Errors
    /// Those of receives; of sends, those that name no other rank.
    pub fn poll_notes(&mut self) -> Result<()> {
        loop {
            let taken = self.note.test();
            if let Ok(None) = taken {
                break;
            }
            let mut bytes = [0; Note::BYTES];
            self.note_memory.read(0, &mut bytes)?;
            self.note = self
                .ctx
                .irecv(Source::Any, TAG_NOTE, &self.note_memory.all())?;
            if let (Ok(Some(done)), Some(note)) = (taken, Note::from_bytes(bytes)) {
                self.handle_note(done.source(), note)?;
            }
        }
        let mut kept = Vec::new();
        while let Some((to, note)) = self.outbox.pop() {
            if self.is_lost(to) {
                continue;
            }
            match self.send_note(to, note) {
                Ok(()) => {}
                Err(e) if e.kind() == Kind::QueueFull => kept.push((to, note)),
                Err(e) => self.on_error(e)?,
            }
        }
        self.outbox = kept;
        Ok(())
    }

    fn handle_note(&mut self, from: u32, note: Note) -> Result<()> {
        let other = &mut self.others[from as usize];
        match note {
            Note::Probe => self.outbox.push((from, Note::Answer)),
            Note::Answer => other.probed = None,
            Note::Lost { rank, begun } => {
                other.reported = true;
                self.begun_elsewhere = self.begun_elsewhere.max(begun);
                // A rank that others treat as lost gets the error from the context.
                if rank != self.ctx.rank() {
                    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
                    let what = format!("rank {from} reports that rank {rank} is lost");
                    self.on_error(Error::new(OPERATION, kind, what).with_rank(rank))?;
                }
            }
        }
        Ok(())
    }

    fn send_note(&self, to: u32, note: Note) -> Result<()> {
        let memory = self.ctx.alloc(MemoryKind::Pinned, Note::BYTES)?;
        memory.write(0, &note.to_bytes())?;
        // The request keeps its memory until it has ended.
        drop(self.ctx.isend(to, TAG_NOTE, &memory.all())?);
        Ok(())
    }
}
