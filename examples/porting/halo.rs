//! The halo exchange of `halo.c` by mp, in four versions. `docs/porting.md` explains each.

use std::time::Duration;

use mp::gdsync::Stream;
use mp::{Collectives, Context, Memory, Neighbour, Neighbourhood, Op, Result, Slice};
use mp_examples::kernels::{Kernels, Step};

pub const LIMIT: Duration = Duration::from_secs(60);
/// The tags of the rows that move to the rank above, and to the rank below.
const UP: u32 = 1;
const DOWN: u32 = 2;

/// A rank of a column of ranks, with a strip of the field.
pub struct Rank<'a> {
    pub ctx: &'a Context,
    pub stream: Stream,
    pub kernels: Kernels,
    pub width: usize,
    pub rows: usize,
    pub above: u32,
    pub below: u32,
}

impl Rank<'_> {
    /// The rows of a strip that are exchanged: the halo above, the first row of the rank, the last
    /// row, and the halo below.
    fn rows(&self, strip: &Memory) -> Result<[Slice; 4]> {
        let row = |y: usize| strip.slice_of::<u64>(y * (self.width + 2) + 1, self.width);
        Ok([row(0)?, row(1)?, row(self.rows)?, row(self.rows + 1)?])
    }

    /// Version 1: the calls of MPI, by the CPU.
    pub fn exchange_by_cpu(&self, strip: &Memory, step: &Step) -> Result<()> {
        let (ctx, [halo_above, first, last, halo_below]) = (self.ctx, self.rows(strip)?);
        ctx.synchronize(&self.stream, LIMIT)?; // the edge rows are computed
        let requests = [
            ctx.irecv(self.above, DOWN, &halo_above)?,
            ctx.irecv(self.below, UP, &halo_below)?,
            ctx.isend(self.above, UP, &first)?,
            ctx.isend(self.below, DOWN, &last)?,
        ];
        self.compute_interior(step)?;
        mp::wait_all(&requests, LIMIT)?;
        self.compute_edges(step)
    }

    /// Version 2: the same messages on the stream.
    pub fn exchange_on_stream(&self, strip: &Memory, step: &Step) -> Result<()> {
        let (ctx, [halo_above, first, last, halo_below]) = (self.ctx, self.rows(strip)?);
        let requests = [
            ctx.irecv_on(&self.stream, self.above, DOWN, &halo_above)?,
            ctx.irecv_on(&self.stream, self.below, UP, &halo_below)?,
            ctx.isend_on(&self.stream, self.above, UP, &first)?,
            ctx.isend_on(&self.stream, self.below, DOWN, &last)?,
        ];
        self.compute_interior(step)?;
        ctx.wait_all_on(&self.stream, &requests)?;
        self.compute_edges(step)
    }

    /// The messages of versions 3 and 4, which are the same in each step.
    pub fn neighbourhood(&self, strip: &Memory) -> Result<Neighbourhood> {
        let [halo_above, first, last, halo_below] = self.rows(strip)?;
        let above = Neighbour::new(self.above, UP, DOWN);
        let below = Neighbour::new(self.below, DOWN, UP);
        let both = [
            above.send(&first).receive(&halo_above),
            below.send(&last).receive(&halo_below),
        ];
        self.ctx.neighbourhood().neighbours(both).build()
    }

    /// Versions 3 and 4: an exchange that was built once.
    pub fn exchange_with_neighbours(&self, halo: &Neighbourhood, step: &Step) -> Result<()> {
        halo.ready_on(&self.stream)?; // the halo may be overwritten
        halo.send_on(&self.stream)?;
        self.compute_interior(step)?;
        halo.wait_on(&self.stream)?;
        self.compute_edges(step)
    }

    /// Versions 1 to 3: the smallest time of all ranks, by the CPU.
    pub fn reduce_by_cpu(&self, all: &mut Collectives, time: &Memory) -> Result<()> {
        self.ctx.synchronize(&self.stream, LIMIT)?; // the time is computed
        let mut value = [0_u64];
        time.read_slice(0, &mut value)?;
        all.all_reduce(&mut value, Op::Min, LIMIT)?;
        time.write_slice(0, &value)
    }

    /// Version 4: the same on the stream.
    pub fn reduce_on_stream(&self, all: &mut Collectives, time: &Memory) -> Result<()> {
        all.all_reduce_on::<u64>(&self.stream, &time.all(), Op::Min)
    }

    fn compute_interior(&self, step: &Step) -> Result<()> {
        // SAFETY: the strips live until the stream is idle; no message writes what this reads.
        unsafe { self.kernels.interior(&self.stream, step) }
    }

    fn compute_edges(&self, step: &Step) -> Result<()> {
        // SAFETY: as above; the messages of this step have arrived.
        unsafe { self.kernels.boundary(&self.stream, step) }
    }
}
