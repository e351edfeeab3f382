//! The iterations: the work on the two streams, and the waits of the CPU.

use std::collections::VecDeque;
use std::time::Duration;

use mp::gdsync::Stream;
use mp::gdsync::gpu::Event;
use mp::{Context, RecvOp, Request, Result, SendOp};
use mp_examples::kernels::Kernels;

use crate::config::{Config, Model};
use crate::grid::{Direction, Grid, Tile};
use crate::recovery::Recovery;
use crate::serial;
use crate::tile::{Phase, TileMemory};

/// The run of one rank.
pub struct Run<'a> {
    ctx: &'a Context,
    config: &'a Config,
    grid: Grid,
    recovery: Recovery<'a>,
    memory: TileMemory,
    phases: [Phase; 2],
    kernels: Kernels,
    /// Computes the interior of the tile.
    inner: Stream,
    /// Exchanges halos, and computes the cells along the edge.
    edge: Stream,
    /// Recorded after the interior and boundary kernels of the last iteration.
    computed: Option<[Event; 2]>,
    /// The sends of the last iteration, which still read the edge of the past field.
    sends: Vec<Request>,
    waits: u64,
}

impl<'a> Run<'a> {
    /// Creates a run with a tile in its initial state.
    ///
    /// # Errors
    /// The errors of allocations and of loading kernels.
    pub fn new(ctx: &'a Context, config: &'a Config, tile: &Tile) -> Result<Run<'a>> {
        let gpu = ctx.gpu();
        let kernels = Kernels::load(gpu)?;
        let memory = TileMemory::new(ctx, config.memory, tile)?;
        let initial = |(x, y)| serial::initial(config.seed, x, y);
        memory.write(0, &tile.places().map(initial).collect::<Vec<u64>>())?;
        Ok(Run {
            ctx,
            config,
            grid: config.grid(ctx),
            recovery: Recovery::new(ctx, config),
            phases: [memory.phase(0)?, memory.phase(1)?],
            memory,
            kernels,
            inner: gpu.stream()?,
            edge: gpu.stream()?,
            computed: None,
            sends: Vec::new(),
            waits: 0,
        })
    }

    /// Runs all iterations. Returns the tile's cells, the elapsed time, and the number of waits of
    /// the CPU.
    ///
    /// # Errors
    /// The loss of a rank; other errors of messages; `Timeout` if a stream did not end.
    pub fn play(mut self) -> Result<(Vec<u64>, Duration, u64)> {
        let result = self.iterate_all();
        // Kernels use the memory by its address: it is freed when they have ended.
        let limit = self.config.limit;
        let idle = [&self.inner, &self.edge].map(|stream| stream.synchronize(limit));
        if !matches!(idle, [Ok(true), Ok(true)]) {
            std::mem::forget(self.memory.all());
        }
        // An error after a loss is a consequence of the loss.
        let elapsed = result.or_else(|e| self.recovery.result().and(Err(e)))?;
        let cells = self.memory.read((self.config.iterations % 2) as usize)?;
        Ok((cells, elapsed, self.waits))
    }

    fn iterate_all(&mut self) -> Result<Duration> {
        let batch = self.config.batch;
        self.recovery.start()?;
        let host = self.ctx.gpu().host();
        let start = host.now();
        let mut in_flight = VecDeque::new();
        let mut k = 0;
        while k < self.iterations() {
            if k % batch == 0 && in_flight.len() == self.config.batches_in_flight {
                // A batch counts as done when its last halos have arrived.
                let oldest: Vec<Request> = in_flight.pop_front().unwrap_or_default();
                self.wait(&oldest)?;
                continue;
            }
            let receives = self.iterate(k)?;
            k += 1;
            if k % batch == 0 {
                in_flight.push_back(receives);
            }
            // Other requests are dropped: the streams wait for them, and the CPU does not need to.
        }
        let sends = std::mem::take(&mut self.sends);
        self.wait(&sends)?;
        self.recovery.synchronize(&self.inner)?;
        self.recovery.synchronize(&self.edge)?;
        let elapsed = host.now() - start;
        self.recovery.finish()?;
        self.recovery.result()?;
        Ok(elapsed)
    }

    /// The number of iterations to run: fewer, once a rank is lost.
    fn iterations(&self) -> u64 {
        let last = self.recovery.last_iteration();
        last.unwrap_or(self.config.iterations)
    }

    /// Enqueues iteration `k`, and returns its receives.
    fn iterate(&mut self, k: u64) -> Result<Vec<Request>> {
        let past = (k % 2) as usize;
        self.recovery.set_begun(k + 1);
        let step = self.phases[past].step;
        if let Some([_, boundary]) = &self.computed {
            self.inner.wait_event(boundary)?;
        }
        // SAFETY: the kernels access the tile's memory, which `play` keeps until both streams are
        // done. They access only parts that events and messages have released; the same holds for
        // the kernels below.
        unsafe { self.kernels.interior(&self.inner, &step)? };
        let interior = self.inner.record()?;

        let receives = self.each_way(Run::receive, past)?;
        // SAFETY: as above.
        unsafe { self.kernels.copy(&self.edge, &self.phases[past].pack)? };
        if self.config.model == Model::Cpu {
            self.waits += 1;
            self.recovery.synchronize(&self.edge)?;
        }
        let sends = self.each_way(Run::send, past)?;
        self.hold(&receives)?;
        // SAFETY: as above.
        unsafe { self.kernels.copy(&self.edge, &self.phases[past].unpack)? };

        // The edge of the future field was that of the past field one iteration ago: its sends must
        // have completed.
        let before = std::mem::replace(&mut self.sends, sends);
        self.hold(&before)?;
        if let Some([interior, _]) = &self.computed {
            self.edge.wait_event(interior)?;
        }
        // SAFETY: as above.
        unsafe { self.kernels.boundary(&self.edge, &step)? };
        self.computed = Some([interior, self.edge.record()?]);
        Ok(receives)
    }

    /// Posts the requests of all directions, except those with lost ranks.
    fn each_way(
        &mut self,
        post: impl Fn(&mut Self, usize, Direction) -> Result<Option<Request>>,
        past: usize,
    ) -> Result<Vec<Request>> {
        let posted = Direction::ALL.map(|way| post(self, past, way).transpose());
        posted.into_iter().flatten().collect()
    }

    /// Posts the send in this direction.
    fn send(&mut self, past: usize, way: Direction) -> Result<Option<Request>> {
        let to = self.grid.neighbour(self.ctx.rank(), way);
        if self.recovery.is_lost(to) {
            return Ok(None);
        }
        let send = SendOp::new(to, way.tag(), &self.phases[past].sends[way as usize]);
        let send = match self.config.model {
            Model::Cpu => send,
            Model::Stream => send.on(&self.edge),
            Model::CpuThread => send.by_cpu_thread(&self.edge),
        };
        self.recovery.post(|| self.ctx.post_send(&send))
    }

    /// Posts the receive of the message that travels in this direction.
    fn receive(&mut self, past: usize, way: Direction) -> Result<Option<Request>> {
        let from = self.grid.neighbour(self.ctx.rank(), way.opposite());
        if self.recovery.is_lost(from) {
            return Ok(None);
        }
        let recv = RecvOp::new(from, way.tag(), &self.phases[past].receives[way as usize]);
        let recv = match self.config.model {
            Model::Cpu => recv,
            Model::Stream => recv.on(&self.edge),
            Model::CpuThread => recv.by_cpu_thread(&self.edge),
        };
        self.recovery.post(|| self.ctx.post_recv(&recv))
    }

    /// Makes the edge stream wait until all of `requests` are done.
    fn hold(&mut self, requests: &[Request]) -> Result<()> {
        match self.config.model {
            Model::Cpu => self.wait(requests),
            Model::Stream | Model::CpuThread => requests.iter().try_for_each(|request| {
                let held = self.recovery.post(|| request.wait_on(&self.edge));
                held.map(drop)
            }),
        }
    }

    /// Makes the CPU wait until all of `requests` are done.
    fn wait(&mut self, requests: &[Request]) -> Result<()> {
        self.waits += 1;
        self.recovery.wait(requests)
    }
}
