//! Lost ranks. A rank that is lost blocks the streams of its neighbours, and these those of theirs.
//! Every rank has a receive from each other rank and tests it during its waits. The receive fails if
//! that rank dies, and gets a note if that rank has an error that names a third one. So the error of
//! every rank names the rank that was lost first.

use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Status, Stream};
use mp::{Context, Error, Kind, Memory, Request, Result};

/// Tag of notes; the exchange uses the tags below.
const TAG: u32 = 20;
/// The interval between two tests of the receives.
const PERIOD: Duration = Duration::from_millis(20);
/// Longest wait for a note to be sent.
const SEND: Duration = Duration::from_secs(2);

/// The receives of notes from all other ranks.
pub struct Watch<'a> {
    ctx: &'a Context,
    notes: Vec<(u32, Request, Memory)>,
}

impl<'a> Watch<'a> {
    /// Posts the receives.
    pub fn new(ctx: &'a Context) -> Result<Watch<'a>> {
        let others = (0..ctx.size()).filter(|rank| *rank != ctx.rank());
        let note = |from| {
            let memory = ctx.alloc(MemoryKind::Pinned, 4)?;
            Ok((from, ctx.irecv(from, TAG, &memory.all())?, memory))
        };
        let notes = others.map(note).collect::<Result<_>>()?;
        Ok(Watch { ctx, notes })
    }

    /// Waits until the stream has executed all its work.
    ///
    /// # Errors
    /// The error of a message, or of a lost rank, with the rank; `Timeout` after `limit`.
    pub fn synchronize(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let host = self.ctx.gpu().host();
        let start = host.now();
        loop {
            let result = self.ctx.synchronize(stream, PERIOD);
            match result {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == Kind::Timeout && host.now() - start < limit => {
                    self.check(None)?
                }
                // A rank that ends because of another one has sent a note before.
                Err(e) => return self.check(e.rank()).and(Err(e)),
            }
        }
    }

    /// Tests the receives: of all ranks, but of rank `failed` only for a note.
    fn check(&self, failed: Option<u32>) -> Result<()> {
        for (from, request, memory) in &self.notes {
            match request.test() {
                Ok(None) => {}
                Ok(Some(_)) => {
                    let mut lost = [0_u32];
                    memory.read_slice(0, &mut lost)?;
                    let what = format!("rank {from} reports that rank {} is lost", lost[0]);
                    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
                    return Err(Error::new("run particles", kind, what).with_rank(lost[0]));
                }
                Err(_) if failed == Some(*from) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sends a note about the error to all other ranks, as far as they can be reached.
    pub fn report(&self, error: &Error) {
        let lost = error.rank().unwrap_or(self.ctx.rank());
        let send = |to| {
            let memory = self.ctx.alloc(MemoryKind::Pinned, 4)?;
            memory.write_slice(0, &[lost])?;
            self.ctx.isend(to, TAG, &memory.all())
        };
        let others = self.notes.iter().filter(|(to, ..)| *to != lost);
        let sends: Vec<Request> = others.filter_map(|(to, ..)| send(*to).ok()).collect();
        // A rank that cannot be reached finds the loss by itself.
        let _ = mp::wait_all(&sends, SEND);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // A receive that has ended needs no cancel.
        self.notes.iter().for_each(|(_, note, _)| _ = note.cancel());
    }
}
