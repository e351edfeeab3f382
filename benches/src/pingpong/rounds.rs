//! A batch of ping-pong as one rank enqueues it.
//!
//! ```text
//! rank 0: gate | kernel send wait | kernel send wait | .. | kernel
//! rank 1: gate | wait kernel send | wait kernel send | ..
//! ```
//! Rank 0's kernel stores the time when it starts, so two stored times are a round trip apart: two
//! messages and the kernels of both sides. After the last round it runs the kernel a few more
//! times, to measure the kernel alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gdsync::rdma::Provider;

use super::Options;
use super::wire::{Messages, Requests, Wire};
use crate::endpoint::{Endpoint, Names};
use crate::gate::Gate;
use crate::kernel::{Stamps, Tally, Turn, Turns};
use crate::options::{Layer, Layers};
use crate::pattern;
use crate::pingpong::proof::CpuTimes;
use crate::rank::Rank;

/// Most round trips of a batch. With up to four submissions each, and one round to get going, it
/// fits in a stream of 1024.
const BATCH: u64 = 200;
/// The same with messages of mp: a large one is up to eight submissions in each direction.
const BATCH_MP: u64 = 64;
/// Round trips before the measurement of a size.
pub const WARM_UP: u64 = 20;
/// Kernels after a batch, whose own time is measured.
const ALONE: u64 = 4;

/// The results of a batch.
pub struct Batch {
    /// Round trips in nanoseconds; rank 0 only.
    pub trips: Vec<u64>,
    /// The kernel alone, in nanoseconds; rank 0 only.
    pub kernels: Vec<u64>,
    /// CPU overhead of enqueuing, in nanoseconds.
    pub enqueue: Duration,
    /// Number of kernels, sends and waits enqueued in that time.
    pub operations: u64,
}

/// Most round trips of a batch with these layers.
pub fn longest(layers: Layers) -> u64 {
    match layers {
        Layers::Gdsync => BATCH,
        Layers::Mp | Layers::Both => BATCH_MP,
    }
}

/// A rank's objects for one layer.
pub struct Player<'e> {
    /// The layer.
    pub layer: Layer,
    endpoint: &'e Endpoint,
    wire: Box<dyn Wire + 'e>,
    turns: Turns,
    tally: Tally,
    stamps: Stamps,
    gate: Gate,
    number: u32,
    /// Messages of earlier batches.
    played: u64,
    corrupt: Option<u64>,
}

impl<'e> Player<'e> {
    pub fn new(
        rank: &mut Rank,
        endpoint: &'e Endpoint,
        options: &Options,
        layer: Layer,
    ) -> Result<Player<'e>> {
        let gpu = &endpoint.gpu;
        let words = longest(options.layer) + 2 + ALONE;
        Ok(Player {
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            stamps: Stamps::new(gpu, words as usize)?,
            gate: Gate::new(gpu)?,
            wire: match layer {
                Layer::Gdsync => Box::new(Requests::new(rank, endpoint, options)?),
                Layer::Mp => Box::new(Messages::new(rank, endpoint, options)?),
            },
            number: rank.number,
            played: 0,
            corrupt: options.corrupt,
            layer,
            endpoint,
        })
    }

    pub fn names(&self) -> Names {
        self.wire.names()
    }

    /// The provider of the NIC whose doorbell a stream rings for a send; none if kernels copy.
    pub fn nic(&self) -> Option<Provider> {
        self.wire.nic()
    }

    /// Runs `trips` round trips: enqueues all, opens the gate, sleeps until the stream is done, and
    /// checks the results. Adds the processor time in between to `cpu`. One untimed round precedes
    /// them, in which the ranks' gates open one after the other.
    pub fn batch(
        &mut self,
        rank: &mut Rank,
        size: u64,
        trips: u64,
        cpu: &mut CpuTimes,
    ) -> Result<Batch> {
        let n = trips + 1;
        self.wire.begin(size, n)?;
        let start = Instant::now();
        self.gate.close(&self.endpoint.stream)?;
        let operations = match self.number {
            0 => self.enqueue_first(size, n)?,
            _ => self.enqueue_second(size, n)?,
        };
        let enqueue = start.elapsed();
        let others = cpu.of_other_threads()?;
        rank.link.barrier()?;
        let before = cpu.of_this_thread();
        self.gate.open()?;
        rank.park(&self.endpoint.stream)?;
        cpu.add(before, &others)?;
        self.wire.check()?;
        let verified = match self.number {
            0 => size * (n - 1 + ALONE),
            _ => size * n,
        };
        self.tally.take(verified).context("verifying payloads")?;
        self.played += n;
        let (trips, kernels) = self.times(n)?;
        Ok(Batch {
            trips,
            kernels,
            enqueue,
            operations,
        })
    }

    /// Barrier: returns when no rank needs the other's NIC any more.
    pub fn finish(&mut self, rank: &mut Rank) -> Result<()> {
        self.wire.finish(rank.left())?;
        rank.link.barrier()
    }

    fn enqueue_first(&mut self, size: u64, n: u64) -> Result<u64> {
        for i in 0..n {
            let before = (i > 0).then(|| i - 1);
            self.turn(size, before, Some(i), Some(i))?;
            self.wire.round(i, true)?;
        }
        for i in n..n + ALONE {
            self.turn(size, Some(n - 1), Some(i), Some(i))?;
        }
        self.turn(size, None, None, Some(n + ALONE))?;
        Ok(3 * n + ALONE + 1)
    }

    fn enqueue_second(&mut self, size: u64, n: u64) -> Result<u64> {
        self.wire.first()?;
        for i in 0..n {
            self.turn(size, Some(i), Some(i), None)?;
            self.wire.round(i, i + 1 < n)?;
        }
        Ok(3 * n)
    }

    /// Enqueues the kernel: verifies round `arrived`, writes round `leaves`, stamps number `stamp`.
    fn turn(
        &self,
        size: u64,
        arrived: Option<u64>,
        leaves: Option<u64>,
        stamp: Option<u64>,
    ) -> Result<()> {
        let mut turn = Turn::new(size, &self.tally);
        let (leaving, arriving) = self.wire.memory();
        if let Some(i) = arrived {
            let tag = pattern::tag(self.played + i, 1 - self.number);
            turn = turn.verify(arriving, 0, tag);
        }
        if let Some(i) = leaves {
            let tag = pattern::tag(self.played + i, self.number);
            turn = turn.write(leaving, 0, tag);
            if self.number == 1 && self.corrupt == Some(self.played + i) {
                turn = turn.spoil(size / 2);
            }
        }
        if let Some(i) = stamp {
            turn = turn.stamp(&self.stamps.0, 8 * i);
        }
        // SAFETY: the regions live as long as the player, which is dropped after the stream is
        // done or when the process fails; payloads are only read by this kernel and the NIC.
        unsafe { self.turns.launch(&self.endpoint.stream, &turn) }
    }

    fn times(&self, n: u64) -> Result<(Vec<u64>, Vec<u64>)> {
        if self.number != 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut gaps = self.stamps.gaps((n + ALONE + 1) as usize)?;
        let kernels = gaps.split_off(n as usize);
        gaps.remove(0);
        Ok((gaps, kernels))
    }
}
