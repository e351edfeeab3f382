//! The start and the end of a run: a barrier of the remaining ranks, and the number of iterations
//! on which they agree after a loss. The library has no barrier yet.

use mp::{Error, Kind, RecvOp, Request, Result, SendOp};

use super::{OPERATION, PERIOD, Recovery, TAG_BARRIER, TAG_NOTE};

/// The time limit for the last rank to start, as a multiple of the limit for an answer: some ranks
/// may first have waited for the context to detect that another does not answer.
const START: u32 = 8;

impl Recovery<'_> {
    /// Waits until all remaining ranks have reached the same call. After it, no note is in flight
    /// between them.
    ///
    /// # Errors
    /// Errors that name no other rank.
    pub fn barrier(&mut self) -> Result<()> {
        let mut requests = Vec::new();
        for rank in self.remaining() {
            requests.extend(self.post_barrier(rank)?.into_iter().flatten());
        }
        self.wait(&requests)?;
        self.started = true;
        self.settle()
    }

    /// Posts the messages of a barrier with another rank. `None`: the other rank is lost.
    fn post_barrier(&mut self, rank: u32) -> Result<Option<[Request; 2]>> {
        let (ctx, started) = (self.ctx, self.started);
        let segments = [self.note_memory.slice(0, 0)?];
        let recv = match started {
            true => RecvOp::new(rank, TAG_BARRIER, &segments),
            false => RecvOp::new(rank, TAG_BARRIER, &segments).timeout(START * self.answer_limit),
        };
        let Some(recv) = self.post(|| ctx.post_recv(&recv))? else {
            return Ok(None);
        };
        self.others[rank as usize].connected = true;
        if !started {
            // Opens the connection for notes: later the rank may not answer.
            let segments = [self.note_memory.all()];
            let note = SendOp::new(rank, TAG_NOTE, &segments);
            if self.post(|| ctx.prepare_send(&note))?.is_none() {
                return Ok(None);
            }
        }
        let [empty] = &segments;
        let send = self.post(|| ctx.isend(rank, TAG_BARRIER, empty))?;
        Ok(send.map(|send| [recv, send]))
    }

    /// Waits until no probe is unanswered and, if a rank is lost, until each remaining rank has
    /// named its lost rank.
    fn settle(&mut self) -> Result<()> {
        self.wait_until(|recovery| {
            recovery.poll_notes()?;
            let owes = |recovery: &Self, rank: u32| {
                let other = &recovery.others[rank as usize];
                other.probed.is_some() || recovery.has_lost() && !other.reported
            };
            let rank = recovery
                .remaining()
                .into_iter()
                .find(|rank| owes(recovery, *rank));
            let Some(rank) = rank else {
                return Ok(None);
            };
            // `poll_notes` handles the completion.
            let _ = recovery.note.wait(PERIOD);
            let what = format!("rank {rank} did not report which rank it has lost");
            let late = Error::new(OPERATION, Kind::Timeout, what);
            Ok(Some(late.with_rank(rank)))
        })
    }

    /// The number of iterations that the remaining ranks must complete after a loss.
    ///
    /// # Errors
    /// Errors that name no other rank.
    pub fn last_iteration(&mut self) -> Result<u64> {
        self.settle()?;
        Ok(self.begun_elsewhere.max(self.begun))
    }
}
