//! Lost ranks. A rank that is lost blocks the streams of its neighbours, and these streams block
//! those of their neighbours. Every rank has a receive from each other rank and tests it during its
//! waits. The receive fails if that rank dies, and gets a note if that rank has an error that names
//! a third one. So the error
//! of every rank names the rank that was lost first. (A rank that is stopped, and does not die, is
//! found by the time limits of its neighbours; others may then name a neighbour.)

use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::gdsync::{Status, Stream};
use mp::{Context, Error, Kind, Memory, Request, Result};

/// Tag of notes; the exchange uses the tags below.
const TAG: u32 = 20;
/// The note of a rank that ends without an error.
const NONE: u32 = u32::MAX;
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
                Ok(Some(_)) => read(*from, memory)?,
                Err(_) if failed == Some(*from) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Ends the watch when this rank has no error, and waits until the other ranks do the same.
    ///
    /// # Errors
    /// As [`Watch::synchronize`].
    pub fn end(&self, limit: Duration) -> Result<()> {
        let others = self.notes.iter().map(|(rank, ..)| *rank);
        let sends: Vec<_> = others.map(|to| self.send(to, NONE)).collect();
        for (from, request, memory) in &self.notes {
            request.wait(limit)?;
            read(*from, memory)?;
        }
        mp::wait_all(&sends.into_iter().collect::<Result<Vec<_>>>()?, limit)?;
        Ok(())
    }

    /// Sends a note about the error to all other ranks, as far as they can be reached.
    pub fn report(&self, error: &Error) {
        let lost = error.rank().unwrap_or(self.ctx.rank());
        let others = self.notes.iter().filter(|(to, ..)| *to != lost);
        let sends = others.filter_map(|(to, ..)| self.send(*to, lost).ok());
        let sends: Vec<Request> = sends.collect();
        // A rank that cannot be reached finds the loss by itself.
        let _ = mp::wait_all(&sends, SEND);
    }

    fn send(&self, to: u32, note: u32) -> Result<Request> {
        let memory = self.ctx.alloc(MemoryKind::Pinned, 4)?;
        memory.write_slice(0, &[note])?;
        self.ctx.isend(to, TAG, &memory.all())
    }
}

/// Reads a note of a rank.
///
/// # Errors
/// The error that the note reports.
fn read(from: u32, memory: &Memory) -> Result<()> {
    let mut note = [0_u32];
    memory.read_slice(0, &mut note)?;
    let [lost] = note;
    if lost == NONE {
        return Ok(());
    }
    let what = format!("rank {from} reports that rank {lost} is lost");
    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
    Err(Error::new("run particles", kind, what).with_rank(lost))
}
