//! The steps of one rank: its memory, the work on its stream, and the waits of the CPU.

use std::time::Duration;

use mp::gdsync::Stream;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Error, Kind, Memory, Request, Result};

use crate::Grid;
use crate::config::Config;
use crate::exchange::Exchange;
use crate::kernels::{Advance, CAPACITY, CELL_FULL, Cells, Force, Kernels, Space, TOO_FAST};
use crate::lost::Watch;
use crate::physics::{Particle, Physics, Totals, cell_of, initial};

/// Most intervals between sums of energy and momentum.
const SAMPLES: u64 = 64;

/// The particles of this rank at the end.
#[derive(Debug)]
pub struct End {
    pub particles: Vec<Particle>,
    /// The sums over them at the start, at most [`SAMPLES`] times in between, and at the end.
    pub totals: Vec<Totals>,
    pub elapsed: Duration,
}

/// A set of cells: the number of particles in each of them, and their slots.
struct CellMemory {
    counts: Memory,
    slots: Memory,
}

impl CellMemory {
    fn new(ctx: &Context, cells: usize) -> Result<CellMemory> {
        let slots = cells * CAPACITY * size_of::<Particle>();
        Ok(CellMemory {
            counts: ctx.alloc(MemoryKind::Device, cells * 4)?, // zeroed
            slots: ctx.alloc(MemoryKind::Device, slots)?,
        })
    }

    fn addresses(&self) -> Cells {
        Cells {
            counts: self.counts.region().addr().0,
            slots: self.slots.region().addr().0,
        }
    }
}

/// The run of one rank.
pub struct Run<'a> {
    ctx: &'a Context,
    config: &'a Config,
    watch: Watch<'a>,
    kernels: Kernels,
    stream: Stream,
    space: Space,
    exchange: Exchange,
    /// Two sets of cells: a step moves the particles from one to the other.
    cells: [CellMemory; 2],
    /// The changes of velocity of the slots.
    kicks: Memory,
    totals: Memory,
    fault: Memory,
    /// The requests of the steps that the CPU has not waited for.
    requests: Vec<Request>,
}

impl<'a> Run<'a> {
    /// A run with the particles at their places.
    pub fn new(ctx: &'a Context, config: &'a Config, ranks: Grid, own: Grid) -> Result<Run<'a>> {
        let kernels = Kernels::load(ctx.gpu())?;
        let fault = ctx.alloc(MemoryKind::Device, 8)?;
        let space = Space {
            own: own.0,
            whole: config.cells.0,
            fault: fault.region().addr().0,
        };
        let count: usize = own.0.map(|n| n as usize + 2).iter().product();
        let samples = config.steps.div_ceil(config.interval(SAMPLES)) as usize + 1;
        let run = Run {
            ctx,
            config,
            watch: Watch::new(ctx)?,
            kernels,
            stream: ctx.gpu().stream()?,
            space,
            exchange: Exchange::new(ctx, ranks, space)?,
            cells: [CellMemory::new(ctx, count)?, CellMemory::new(ctx, count)?],
            kicks: ctx.alloc(MemoryKind::Device, count * CAPACITY * 3 * 8)?,
            totals: ctx.alloc(MemoryKind::Device, samples * size_of::<Totals>())?,
            fault,
            requests: Vec::new(),
        };
        run.place(ranks.place(ctx.rank()), count)?;
        Ok(run)
    }

    /// Writes the particles of this rank into its cells.
    fn place(&self, rank: [u32; 3], cells: usize) -> Result<()> {
        let mut counts = vec![0_u32; cells];
        let mut slots = vec![Particle::default(); cells * CAPACITY];
        let own = self.space.own;
        for particle in initial(self.config.cells, self.config.seed) {
            let cell = cell_of(particle.at, self.config.cells);
            if (0..3).any(|k| cell[k] / own[k] != rank[k]) {
                continue;
            }
            let [x, y, z] = [0, 1, 2].map(|k| (cell[k] % own[k] + 1) as usize);
            let cell = (z * (own[1] as usize + 2) + y) * (own[0] as usize + 2) + x;
            let slot = counts[cell] as usize;
            if slot < CAPACITY {
                slots[cell * CAPACITY + slot] = particle;
            }
            counts[cell] += 1;
        }
        if counts.iter().any(|count| *count as usize > CAPACITY) {
            return Err(self.fault(CELL_FULL, 0));
        }
        self.cells[0].counts.write_slice(0, &counts)?;
        self.cells[0].slots.write_slice(0, &slots)
    }

    /// Runs all steps.
    pub fn play(mut self) -> Result<End> {
        let result = self.steps();
        if let Err(e) = &result {
            self.watch.report(e);
        }
        self.requests.clear();
        // Kernels use the memory by its address: it is freed when they have ended.
        if !matches!(self.stream.synchronize(self.config.limit), Ok(true)) {
            std::mem::forget((self.exchange.memory(), self.cells, self.kicks));
            std::mem::forget((self.totals, self.fault));
            return result
                .and_then(|_| Err(Error::new("end run", Kind::Timeout, "the stream is busy")));
        }
        let elapsed = result?;
        let mut totals = vec![Totals::default(); self.totals.len() / size_of::<Totals>()];
        self.totals.read_slice(0, &mut totals)?;
        Ok(End {
            particles: self.particles()?,
            totals,
            elapsed,
        })
    }

    fn steps(&mut self) -> Result<Duration> {
        let host = self.ctx.gpu().host();
        let start = host.now();
        for step in 0..=self.config.steps {
            self.enqueue(step)?;
            if (step + 1) % self.config.batch == 0 || step == self.config.steps {
                self.watch.synchronize(&self.stream, self.config.limit)?;
                self.requests.clear();
                let mut fault = [0_u64];
                self.fault.read_slice(0, &mut fault)?;
                if fault != [0] {
                    return Err(self.fault(fault[0], step));
                }
            }
        }
        let elapsed = host.now() - start;
        self.watch.end(self.config.limit)?;
        Ok(elapsed)
    }

    /// Enqueues a step; step 0 computes the forces at the start.
    fn enqueue(&mut self, step: u64) -> Result<()> {
        let now = (step % 2) as usize;
        let [from, to] = [1 - now, now].map(|i| self.cells[i].addresses());
        let kicks = self.kicks.region().addr().0;
        let slots = (self.cells[0].slots.len() / size_of::<Particle>()) as u64;
        if step > 0 {
            let advance = Advance {
                space: self.space,
                from,
                to,
                kicks,
                lengths: self.exchange.lengths.region().addr().0,
            };
            // SAFETY: the addresses are of this run's memory, which `play` keeps until the stream
            // is done; the stream alone uses it.
            unsafe { self.kernels.launch(&self.stream, &advance, slots)? };
        }
        let (ctx, stream, kernels) = (self.ctx, &self.stream, &self.kernels);
        self.exchange
            .enqueue(ctx, stream, kernels, to, &mut self.requests)?;

        let interval = self.config.interval(SAMPLES);
        let sample = step.is_multiple_of(interval) || step == self.config.steps;
        let offset = step.div_ceil(interval) * size_of::<Totals>() as u64;
        let force = Force {
            space: self.space,
            cells: to,
            empty: from.counts,
            kicks,
            totals: if sample {
                self.totals.region().addr().0 + offset
            } else {
                0
            },
            kick: u64::from(step > 0),
            physics: Physics::new(self.config.cells),
        };
        // SAFETY: as above.
        unsafe { self.kernels.launch(stream, &force, slots) }
    }

    fn fault(&self, bits: u64, step: u64) -> Error {
        let rank = self.ctx.rank();
        let error = |what: &str| {
            let what = format!("rank {rank}, in the batch that ends with step {step}: {what}");
            Error::new("run particles", Kind::Invalid, what).with_rank(rank)
        };
        match bits {
            bits if bits & CELL_FULL != 0 => error("a cell has no room for another particle")
                .with_limit(CAPACITY, "particles in a cell"),
            bits if bits & TOO_FAST != 0 => {
                error("a particle crossed more than one cell in a step; it is too fast")
            }
            _ => error("a message failed"),
        }
    }

    /// The particles in this rank's cells.
    fn particles(&self) -> Result<Vec<Particle>> {
        let cells = &self.cells[(self.config.steps % 2) as usize];
        let mut counts = vec![0_u32; cells.counts.len() / 4];
        let mut slots = vec![Particle::default(); counts.len() * CAPACITY];
        cells.counts.read_slice(0, &mut counts)?;
        cells.slots.read_slice(0, &mut slots)?;
        let [x, y, z] = self.space.own;
        let own = (0..z).flat_map(|k| (0..y).flat_map(move |j| (0..x).map(move |i| (i, j, k))));
        let cell = |(i, j, k)| (((k + 1) * (y + 2) + j + 1) * (x + 2) + i + 1) as usize;
        let all = own
            .map(cell)
            .flat_map(|c| &slots[c * CAPACITY..][..counts[c] as usize]);
        Ok(all.copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use mp::bootstrap::Local;
    use mp::gdsync::Gpu;

    use super::*;

    /// The rank with the fault says what it is; the other one names that rank.
    #[test]
    fn fault_on_the_gpu_is_an_error_on_every_rank() {
        let config = Config::default();
        let rank = |bootstrap| {
            let gpu = Gpu::soft().unwrap();
            let ctx = Context::builder()
                .bootstrap(bootstrap)
                .gpu(&gpu)
                .build()
                .unwrap();
            let (ranks, own) = config.share(&ctx).unwrap();
            let run = Run::new(&ctx, &config, ranks, own).unwrap();
            if ctx.rank() == 1 {
                // The first own cell: one particle moves by half the box in a step.
                let slot = (36 + 4 + 1) * CAPACITY;
                let mut particles = [Particle::default()];
                run.cells[0].slots.read_slice(slot, &mut particles).unwrap();
                particles[0].velocity[0] = i64::MAX;
                run.cells[0].slots.write_slice(slot, &particles).unwrap();
            }
            run.play().unwrap_err()
        };
        let errors: Vec<Error> = std::thread::scope(|scope| {
            let ranks = Local::ranks(2)
                .into_iter()
                .map(|job| scope.spawn(|| rank(job)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(errors[1].kind(), Kind::Invalid);
        assert!(errors[1].to_string().contains("too fast"), "{}", errors[1]);
        assert!(
            matches!(errors[0].kind(), Kind::PeerFailed(_)),
            "{}",
            errors[0]
        );
        assert!(errors.iter().all(|e| e.rank() == Some(1)), "{errors:?}");
    }
}
