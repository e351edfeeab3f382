//! The result of a run, and its sum over all ranks: a reduction that the library does not offer yet.

use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Error, Request, Result};

/// Tag of the outcomes that rank 0 receives.
const TAG_OUTCOME: u32 = 10;
/// Tag of the sum that rank 0 sends.
const TAG_SUM: u32 = 11;

/// The result of one rank, or of all ranks ([`Outcome::sum`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Cells computed.
    pub cells: u64,
    /// Cells that differ from the serial run.
    pub differing: u64,
    /// Sum of [`crate::serial::checksum`] over the cells; it does not depend on the grid.
    pub checksum: u64,
    /// Waits of the CPU between the first iteration and the end of the last one.
    pub waits: u64,
    /// Elapsed time of the iterations, by the clock of the GPU's driver.
    pub elapsed: Duration,
}

impl Outcome {
    const BYTES: usize = 5 * 8;

    /// Sums the outcomes of all ranks; every rank gets the sum. Time and waits are the maximum over
    /// the ranks.
    ///
    /// # Errors
    /// The context's error if a message failed.
    pub fn sum(self, ctx: &Context, limit: Duration) -> Result<Outcome> {
        let memory = ctx.alloc(MemoryKind::Pinned, 2 * Outcome::BYTES)?;
        let (out, into) = (
            memory.slice(0, Outcome::BYTES)?,
            memory.slice(Outcome::BYTES, Outcome::BYTES)?,
        );
        let send = |to, tag, outcome: &Outcome| {
            memory.write(out.offset(), &outcome.to_bytes())?;
            ctx.isend(to, tag, &out)?.wait(limit)
        };
        let take = |receive: Request| {
            receive.wait(limit)?;
            let mut bytes = [0; Outcome::BYTES];
            memory.read(into.offset(), &mut bytes)?;
            Ok::<_, Error>(Outcome::from_bytes(&bytes))
        };
        if ctx.rank() != 0 {
            // Posted before rank 0 can send.
            let sum = ctx.irecv(0, TAG_SUM, &into)?;
            send(0, TAG_OUTCOME, &self)?;
            return take(sum);
        }
        let mut sum = self;
        for rank in 1..ctx.size() {
            sum = sum.plus(&take(ctx.irecv(rank, TAG_OUTCOME, &into)?)?);
        }
        for rank in 1..ctx.size() {
            send(rank, TAG_SUM, &sum)?;
        }
        Ok(sum)
    }

    fn plus(&self, other: &Outcome) -> Outcome {
        Outcome {
            cells: self.cells + other.cells,
            differing: self.differing + other.differing,
            checksum: self.checksum.wrapping_add(other.checksum),
            waits: self.waits.max(other.waits),
            elapsed: self.elapsed.max(other.elapsed),
        }
    }

    fn to_bytes(self) -> [u8; Outcome::BYTES] {
        let nanos = u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let words = [self.cells, self.differing, self.checksum, self.waits, nanos];
        let mut bytes = [0; Outcome::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Outcome::BYTES]) -> Outcome {
        let (words, _) = bytes.as_chunks();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        Outcome {
            cells: word(0),
            differing: word(1),
            checksum: word(2),
            waits: word(3),
            elapsed: Duration::from_nanos(word(4)),
        }
    }
}
