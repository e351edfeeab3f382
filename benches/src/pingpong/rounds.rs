//! A batch of ping-pong as one rank enqueues it.
//!
//! ```text
//! rank 0: gate | kernel send wait | kernel send wait | .. | kernel
//! rank 1: gate | wait kernel send | wait kernel send | ..
//! ```
//! Rank 0's kernel stamps the time when it starts, so two stamps are a round trip apart: two
//! messages and the kernels of both sides. After the last round it runs the kernel a few times
//! more, for what that takes alone.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gdsync::gpu::{MemoryKind, Region};
use gdsync::rdma::{Descriptor, Mr, Qp, ReceiveRequest, RemoteMemory, Sge, WaitOptions, Work};

use super::{Operation, Options};
use crate::endpoint::{Endpoint, exchange_memory};
use crate::gate::{Gate, well};
use crate::kernel::{Tally, Turn, Turns};
use crate::pattern;
use crate::pingpong::proof::CpuTimes;
use crate::rank::Rank;

/// Most round trips of a batch. With up to four submissions each, and one round to get going, it
/// fits in a stream of 1024.
pub const BATCH: u64 = 200;
/// Round trips before a size is measured.
pub const WARM_UP: u64 = 20;
/// Entries of each queue: more than a batch, so that one batch never waits for room.
const QUEUE: u32 = 512;
/// Kernels after a batch, whose time is taken.
const ALONE: u64 = 4;

/// What a batch brought.
pub struct Batch {
    /// Round trips in nanoseconds; rank 0 only.
    pub trips: Vec<u64>,
    /// The kernel alone, in nanoseconds; rank 0 only.
    pub kernels: Vec<u64>,
    /// What enqueueing took the host.
    pub enqueue: Duration,
    /// Kernels, sends and waits enqueued in that time.
    pub operations: u64,
}

/// A rank's objects.
pub struct Player<'e> {
    endpoint: &'e Endpoint,
    qp: Qp,
    turns: Turns,
    tally: Tally,
    stamps: Region,
    gate: Gate,
    leaving: Mr,
    arriving: Mr,
    theirs: RemoteMemory,
    number: u32,
    operation: Operation,
    flush: bool,
    /// Messages of earlier batches.
    played: u64,
    corrupt: Option<u64>,
}

impl<'e> Player<'e> {
    pub fn new(rank: &mut Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Player<'e>> {
        let gpu = &endpoint.gpu;
        let kind = options.setup.memory(gpu);
        let largest = options.sizes.iter().copied().max().unwrap_or(8);
        let (leaving, arriving) = (
            endpoint.memory(kind, largest)?,
            endpoint.memory(kind, largest)?,
        );
        Ok(Player {
            qp: endpoint.connect(&options.setup.queues(QUEUE), &mut rank.link)?,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            // Where the kernel's stores have a short way.
            stamps: gpu.alloc(MemoryKind::Device, 8 * (BATCH + 2 + ALONE) as usize)?,
            gate: Gate::new(gpu)?,
            theirs: exchange_memory(&arriving, &mut rank.link)?,
            leaving,
            arriving,
            number: rank.number,
            operation: options.operation,
            flush: gpu.caps().flush,
            played: 0,
            corrupt: options.corrupt,
            endpoint,
        })
    }

    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Plays `trips` round trips: enqueues all, opens the gate, sleeps until the stream is done,
    /// checks. What processor time passed between is added to `cpu`. A round before them, in
    /// which the ranks' gates open one after the other, is not timed.
    pub fn batch(
        &mut self,
        rank: &mut Rank,
        size: u64,
        trips: u64,
        cpu: &mut CpuTimes,
    ) -> Result<Batch> {
        let n = trips + 1;
        let receives = self.post_receives(size, n)?;
        let start = Instant::now();
        self.gate.close(&self.endpoint.stream)?;
        let operations = match self.number {
            0 => self.enqueue_first(size, n, &receives)?,
            _ => self.enqueue_second(size, n, &receives)?,
        };
        let enqueue = start.elapsed();
        let before = cpu.look()?;
        rank.link.barrier()?;
        let parked = cpu.park();
        self.gate.open()?;
        rank.park(&self.endpoint.stream)?;
        cpu.add(parked, &before)?;
        well(self.qp.error())?;
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

    /// Returns once no rank needs the other's NIC any more.
    pub fn finish(&mut self, rank: &mut Rank) -> Result<()> {
        self.qp.quiet(rank.left())?;
        rank.link.barrier()
    }

    fn post_receives(&mut self, size: u64, n: u64) -> Result<Vec<ReceiveRequest>> {
        let all = [Sge {
            mr: &self.arriving,
            offset: 0,
            len: u32::try_from(size)?,
        }];
        let sges = match self.operation {
            Operation::Send => &all[..],
            Operation::Write => &[],
        };
        (0..n)
            .map(|_| {
                let receive = self.qp.prepare_receive(sges)?;
                self.qp.post_receive(receive)?;
                Ok(receive)
            })
            .collect()
    }

    fn enqueue_first(&mut self, size: u64, n: u64, receives: &[ReceiveRequest]) -> Result<u64> {
        for (i, receive) in (0..).zip(receives) {
            let before = (i > 0).then(|| i - 1);
            self.turn(size, before, Some(i), Some(i))?;
            self.send(size, i, Some(*receive))?;
        }
        for i in n..n + ALONE {
            self.turn(size, Some(n - 1), Some(i), Some(i))?;
        }
        self.turn(size, None, None, Some(n + ALONE))?;
        Ok(3 * n + ALONE + 1)
    }

    fn enqueue_second(&mut self, size: u64, n: u64, receives: &[ReceiveRequest]) -> Result<u64> {
        self.qp
            .post_on(&self.endpoint.stream, &[self.arrival(receives[0])])?;
        for i in 0..n {
            self.turn(size, Some(i), Some(i), None)?;
            self.send(size, i, receives.get(i as usize + 1).copied())?;
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
        if let Some(i) = arrived {
            let tag = pattern::tag(self.played + i, 1 - self.number);
            turn = turn.verify(self.arriving.region(), 0, tag);
        }
        if let Some(i) = leaves {
            let tag = pattern::tag(self.played + i, self.number);
            turn = turn.write(self.leaving.region(), 0, tag);
            if self.number == 1 && self.corrupt == Some(self.played + i) {
                turn = turn.spoil(size / 2);
            }
        }
        if let Some(i) = stamp {
            turn = turn.stamp(&self.stamps, 8 * i);
        }
        // SAFETY: the regions live as long as the player, which is dropped after the stream is
        // done or when the process gives up; payloads are only read by this kernel and the NIC.
        unsafe { self.turns.launch(&self.endpoint.stream, &turn) }
    }

    /// Enqueues the send of round `i`, and the wait for the peer's next message.
    fn send(&mut self, size: u64, i: u64, next: Option<ReceiveRequest>) -> Result<()> {
        let sges = [Sge {
            mr: &self.leaving,
            offset: 0,
            len: u32::try_from(size)?,
        }];
        let work = match self.operation {
            Operation::Send => Work::send(&sges),
            Operation::Write => Work::write(&sges, self.theirs.span(0, size)?).with_imm(i as u32),
        };
        let send = Descriptor::Send(self.qp.prepare(&work)?);
        let stream = &self.endpoint.stream;
        match next {
            Some(receive) => self.qp.post_on(stream, &[send, self.arrival(receive)])?,
            None => self.qp.post_on(stream, &[send])?,
        }
        Ok(())
    }

    fn arrival(&self, receive: ReceiveRequest) -> Descriptor<'static> {
        let options = WaitOptions {
            flush: self.flush,
            timeout: None,
        };
        Descriptor::Wait(receive.into(), options)
    }

    fn times(&self, n: u64) -> Result<(Vec<u64>, Vec<u64>)> {
        if self.number != 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut bytes = vec![0; 8 * (n + ALONE + 1) as usize];
        self.stamps.read(0, &mut bytes)?;
        let (stamps, _) = bytes.as_chunks::<8>();
        let stamps: Vec<u64> = stamps.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        if !stamps.is_sorted() || stamps[0] == 0 {
            bail!("the GPU's clock went back, or a kernel did not stamp");
        }
        let mut gaps: Vec<u64> = stamps.windows(2).map(|w| w[1] - w[0]).collect();
        let kernels = gaps.split_off(n as usize);
        gaps.remove(0);
        Ok((gaps, kernels))
    }
}
