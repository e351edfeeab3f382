//! The result of a run, and its sum over all ranks.

use std::time::Duration;

use mp::{Context, Op, Result};

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
    /// Sums the outcomes of all ranks; every rank gets the sum. Time and waits are the maximum over
    /// the ranks.
    ///
    /// # Errors
    /// The errors of [`Context::collectives`] and of its calls.
    pub fn sum(self, ctx: &Context, limit: Duration) -> Result<Outcome> {
        let nanos = u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let mut sums = [self.cells, self.differing, self.checksum];
        let mut most = [self.waits, nanos];
        let mut all = ctx.collectives(size_of_val(&sums))?;
        all.all_reduce(&mut sums, Op::Sum, limit)?;
        all.all_reduce(&mut most, Op::Max, limit)?;
        // Then all ranks have the sums, and the object may be dropped.
        all.barrier(limit)?;
        let [cells, differing, checksum] = sums;
        Ok(Outcome {
            cells,
            differing,
            checksum,
            waits: most[0],
            elapsed: Duration::from_nanos(most[1]),
        })
    }
}
