//! `gds_kernel_latency`: rounds of message, kernel, message. The client's stream sends, waits for
//! the answer and runs a kernel; the server's waits, runs the same kernel and answers. With
//! `--loopback` one process sends to itself, which was `gds_kernel_loopback_latency`.
//!
//! The measured time includes host time: rounds are enqueued in batches while earlier ones run, at
//! most three batches ahead, as programs of this kind do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Descriptor, Mr, Qp, ReceiveRequest, SendRequest, Work, post_on};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, Gate, check_qp};
use crate::kernel::{Tally, Turn, Turns};
use crate::options::{self, Launch, Memory, Ranks, Setup};
use crate::pattern;
use crate::rank::{Job, Rank};
use crate::table::{self, micros};
use crate::world;

/// Most batches that are enqueued and not detected as done.
const AHEAD: u64 = 3;
/// Entries of each queue: room for a batch more than [`AHEAD`] of the longest kind in half of them,
/// because the library may detect that one half is free only when the other half is in use.
const QUEUE: u32 = 1024;
/// Batches before the measurement.
const WARM_UP: u64 = AHEAD;

/// Options of `mpbench gds_kernel_latency`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Size of a message in bytes.
    #[arg(short = 's', long, value_parser = options::size, default_value = "1Ki")]
    pub size: u64,
    /// Bytes that the kernel writes, of which the first ones are the message; at least the message
    /// size.
    #[arg(short = 'S', long = "calc-size", value_parser = options::size, default_value = "128Ki")]
    pub calc_size: u64,
    /// Number of rounds.
    #[arg(short = 'n', long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub iterations: u64,
    /// Number of rounds of a batch.
    #[arg(short = 'B', long, default_value = "20", value_parser = clap::value_parser!(u64).range(1..=80))]
    pub batch: u64,
    /// Runs no kernel, only messages.
    #[arg(short = 'K', long)]
    pub skip_kernel: bool,
    /// Places messages in device memory, as --memory device does.
    #[arg(short = 'E', long = "gpu-memory", conflicts_with = "memory")]
    pub gpu_memory: bool,
    /// Enqueues the first batches before the clock starts, on streams that wait.
    #[arg(short = 'L', long)]
    pub hide_launch: bool,
    /// Uses one process, one stream and two QPs of one NIC.
    #[arg(long)]
    pub loopback: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Names of GPU, NIC and settings.
    pub names: Names,
    /// How the ranks run; `None`: there is one rank only.
    pub ranks: Option<Ranks>,
    /// Number of rounds.
    pub iterations: u64,
    /// Time from the first enqueue to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time that the host spent enqueuing, in nanoseconds.
    pub enqueue_ns: u64,
    /// Payload in bits a second, both directions together.
    pub bits_per_second: f64,
    /// Messages whose bytes the CPU compared: all received ones.
    pub verified: u64,
}

/// The role of a rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Client,
    Server,
    /// A client that sends to itself.
    Loopback,
}

struct Player<'e> {
    part: Part,
    endpoint: &'e Endpoint,
    /// The QP that sends; it also receives where there is a peer.
    qp: Qp,
    /// The QP that receives where there is no peer.
    looped: Option<Qp>,
    leaving: Mr,
    /// A slot for each message of the enqueued batches.
    arriving: Mr,
    turns: Turns,
    tally: Tally,
    gate: Gate,
    bell: Bell,
    options: Options,
    /// Numbers of rounds enqueued and verified so far.
    enqueued: u64,
    verified: u64,
    enqueueing: Duration,
    buffer: Vec<u8>,
    deadline: Instant,
}

impl Options {
    /// With the settings of the library.
    fn memory(&self, endpoint: &Endpoint) -> MemoryKind {
        match (self.gpu_memory, self.setup.memory) {
            (true, _) | (_, Some(Memory::Device)) => MemoryKind::Device,
            (_, Some(Memory::Pinned)) => MemoryKind::Pinned,
            (_, None) => self.setup.memory(&endpoint.gpu),
        }
    }

    /// Slots for messages: one batch more than can be enqueued, so that the receive of the next
    /// message is always posted before the peer has received the previous one.
    fn slots(&self) -> u64 {
        (AHEAD + 1) * self.batch
    }
}

impl Job for Options {
    const NAME: &'static str = "gds_kernel_latency";

    fn needs_mp(&self) -> bool {
        false
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let qp = endpoint.connect(&self.setup.queues(QUEUE), &mut rank.link)?;
        let part = match rank.number {
            0 => Part::Client,
            _ => Part::Server,
        };
        let deadline = Instant::now() + rank.left();
        let mut player = Player::new(part, &endpoint, qp, None, self, deadline)?;
        // No stream waits before both ranks have loaded their kernels: loading blocks behind waits.
        rank.link.barrier()?;
        let mut barrier = || rank.link.barrier();
        let figures = player.play(Some(self.launch.ranks()), &mut barrier)?;
        player.qp.quiet(rank.left())?;
        rank.link.barrier()?;
        Ok(serde_json::to_value(figures)?)
    }
}

fn alone(options: &Options, limit: Duration) -> Result<Figures> {
    let endpoint = Endpoint::open(&options.setup, 0)?;
    let (a, b) = endpoint.pair(&options.setup.queues(QUEUE))?;
    let deadline = Instant::now() + limit;
    let mut player = Player::new(Part::Loopback, &endpoint, a, Some(b), options, deadline)?;
    player.play(None, &mut || Ok(()))
}

impl Benchmark for Options {
    const NAME: &'static str = "gds_kernel_latency";
    const ABOUT: &'static str =
        "Time of a round of message, kernel, message between two ranks, or in one process";
    const EXAMPLES: Examples = [
        (
            "-s 8 -S 64Ki -n 10000",
            "ten thousand rounds of messages of 8 bytes, a kernel over 64 KiB",
        ),
        (
            "--loopback -K",
            "one process that sends to itself, without a kernel",
        ),
    ];
    const VERIFIED: Option<&str> = Some("the CPU compared every byte of every received message");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        ensure!(
            self.calc_size >= self.size || self.skip_kernel,
            "the kernel writes the message, so -S is at least -s"
        );
        let figures = if self.loopback {
            alone(self, limit)?
        } else {
            let ranks = self.launch.ranks();
            let Some([first, _]) = world::run(ranks, self, limit, &mut |_, _| {})? else {
                return Ok(None);
            };
            serde_json::from_value(first).context("reading a rank's result")?
        };
        show(self, &figures);
        Outcome::of(&figures, Vec::new())
    }
}

fn show(options: &Options, figures: &Figures) {
    let (names, rounds) = (&figures.names, figures.iterations);
    println!(
        "gds_kernel_latency: messages of {} in {} memory, {}, {}",
        table::bytes(options.size),
        names.memory,
        match options.skip_kernel {
            true => "no kernel".to_owned(),
            false => format!("a kernel over {}", table::bytes(options.calc_size)),
        },
        match figures.ranks {
            None => "looped back",
            Some(Ranks::Threads) => "two threads",
            Some(_) => "two processes",
        }
    );
    println!("{names}");
    let seconds = figures.elapsed_ns as f64 / 1e9;
    let each = |ns: u64| micros(ns as f64 / rounds as f64);
    println!(
        "{} bytes in {seconds:.2} s: {:.2} Mbit/s",
        2 * rounds * options.size,
        figures.bits_per_second / 1e6
    );
    println!(
        "{rounds} rounds in {seconds:.2} s: {} a round, {} of which the host enqueues; {} messages verified",
        each(figures.elapsed_ns),
        each(figures.enqueue_ns),
        figures.verified
    );
}

impl<'e> Player<'e> {
    fn new(
        part: Part,
        endpoint: &'e Endpoint,
        qp: Qp,
        looped: Option<Qp>,
        options: &Options,
        deadline: Instant,
    ) -> Result<Player<'e>> {
        let kind = options.memory(endpoint);
        let gpu = &endpoint.gpu;
        Ok(Player {
            part,
            qp,
            looped,
            leaving: endpoint.memory(kind, options.calc_size.max(options.size))?,
            arriving: endpoint.memory(kind, options.slots() * options.size)?,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            gate: Gate::new(gpu)?,
            bell: Bell::new(gpu)?,
            options: options.clone(),
            enqueued: 0,
            verified: 0,
            enqueueing: Duration::ZERO,
            buffer: Vec::new(),
            deadline,
            endpoint,
        })
    }

    /// The mark of the sender of this rank's messages.
    fn sender(&self) -> u32 {
        u32::from(self.part == Part::Server)
    }

    /// The contents of message `round` of a sender: without kernels all messages are the same.
    fn tag(&self, round: u64, sender: u32) -> u64 {
        match self.options.skip_kernel {
            true => pattern::tag(0, sender),
            false => pattern::tag(round, sender),
        }
    }

    fn play(
        &mut self,
        ranks: Option<Ranks>,
        barrier: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Figures> {
        self.write(0)?;
        self.bell.enqueue(&self.endpoint.stream)?;
        self.bell.poll(self.deadline)?;
        self.rounds(WARM_UP * self.options.batch, barrier)?;
        self.enqueueing = Duration::ZERO;
        let iterations = self.options.iterations;
        let elapsed = self.rounds(iterations, barrier)?;
        let bits = 16.0 * (iterations * self.options.size) as f64;
        Ok(Figures {
            names: self.endpoint.names(&self.qp, self.arriving.region().kind()),
            ranks,
            iterations,
            elapsed_ns: elapsed.as_nanos() as u64,
            enqueue_ns: self.enqueueing.as_nanos() as u64,
            bits_per_second: bits / elapsed.as_secs_f64(),
            verified: self.verified,
        })
    }

    /// Runs this many rounds in batches, and waits until all are done.
    fn rounds(&mut self, rounds: u64, barrier: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let (mut left, end) = (rounds, self.enqueued + rounds);
        // Batches in flight: the bell's count, and the round after the last one.
        let mut flying = VecDeque::new();
        let hidden = self.options.hide_launch;
        if hidden {
            self.gate.close(&self.endpoint.stream)?;
        }
        // The receives of both sides are posted before the first send of either.
        let mut receives = VecDeque::new();
        self.receive_ahead(end, &mut receives)?;
        barrier()?;
        let mut start = Instant::now();
        while left > 0 || !flying.is_empty() {
            while left > 0 && (flying.len() as u64) < AHEAD {
                let n = left.min(self.options.batch);
                let before = Instant::now();
                self.batch(n, &mut receives)?;
                self.enqueueing += before.elapsed();
                flying.push_back((self.bell.enqueued(), self.enqueued));
                left -= n;
            }
            if hidden && self.verified + rounds == end {
                // No round of this call has run: the first batches are enqueued.
                barrier()?;
                self.enqueueing = Duration::ZERO;
                start = Instant::now();
                self.gate.open()?;
            }
            if let Some((bell, upto)) = flying.pop_front() {
                self.bell.poll_nth(bell, self.deadline)?;
                check_qp(self.qp.error())?;
                self.verify(upto)?;
                self.receive_ahead(end, &mut receives)?;
            }
        }
        Ok(start.elapsed())
    }

    /// Posts receives for messages whose slots are free.
    fn receive_ahead(&mut self, end: u64, receives: &mut VecDeque<ReceiveRequest>) -> Result<()> {
        let (size, slots) = (self.options.size, self.options.slots());
        let mut next = self.enqueued + receives.len() as u64;
        while next < end.min(self.verified + slots) {
            let sge = self.arriving.sge(next % slots * size, u32::try_from(size)?);
            let qp = self.looped.as_mut().unwrap_or(&mut self.qp);
            let receive = qp.prepare_receive(&[sge])?;
            qp.post_receive(receive)?;
            receives.push_back(receive);
            next += 1;
        }
        Ok(())
    }

    fn batch(&mut self, rounds: u64, receives: &mut VecDeque<ReceiveRequest>) -> Result<()> {
        for _ in 0..rounds {
            let receive = receives.pop_front().context("a receive is missing")?;
            let send = self.prepare()?;
            match self.part {
                Part::Client | Part::Loopback => {
                    let list = [
                        Descriptor::Send(send),
                        Descriptor::wait(send),
                        Descriptor::wait(receive),
                    ];
                    self.post(&list)?;
                    self.kernel(self.enqueued + 1)?;
                }
                Part::Server => {
                    self.post(&[Descriptor::wait(receive)])?;
                    self.kernel(self.enqueued)?;
                    self.post(&[Descriptor::Send(send), Descriptor::wait(send)])?;
                }
            }
            self.enqueued += 1;
        }
        self.bell.enqueue(&self.endpoint.stream)
    }

    fn post(&mut self, list: &[Descriptor<'_>]) -> Result<()> {
        let stream = &self.endpoint.stream;
        match &mut self.looped {
            None => self.qp.post_on(stream, list)?,
            Some(looped) => post_on(stream, &mut [&mut self.qp, looped], list)?,
        }
        Ok(())
    }

    fn prepare(&mut self) -> Result<SendRequest> {
        let sges = [self.leaving.sge(0, u32::try_from(self.options.size)?)];
        Ok(self.qp.prepare(&Work::send(&sges).signaled())?)
    }

    /// Enqueues the kernel of a round, which writes the message of `round`, unless kernels are off.
    fn kernel(&self, round: u64) -> Result<()> {
        match self.options.skip_kernel {
            true => Ok(()),
            false => self.write(round),
        }
    }

    fn write(&self, round: u64) -> Result<()> {
        let tag = self.tag(round, self.sender());
        let bytes = self.leaving.region().len() as u64;
        let turn = Turn::new(bytes, &self.tally).write(self.leaving.region(), 0, tag);
        // SAFETY: the regions live as long as the player, which is dropped after the stream is
        // done or when the process fails; the NIC reads the message only between kernels.
        unsafe { self.turns.launch(&self.endpoint.stream, &turn) }
    }

    /// Compares the messages before round `upto` that have not been compared yet.
    fn verify(&mut self, upto: u64) -> Result<()> {
        let sender = match self.part {
            Part::Client => 1,
            Part::Server | Part::Loopback => 0,
        };
        let (size, slots) = (self.options.size as usize, self.options.slots());
        while self.verified < upto {
            // As many messages as are adjacent in memory.
            let first = self.verified % slots;
            let count = (upto - self.verified).min(slots - first);
            self.buffer.resize(count as usize * size, 0);
            let region = self.arriving.region();
            region.read(first as usize * size, &mut self.buffer)?;
            for (round, found) in (self.verified..).zip(self.buffer.chunks(size)) {
                let wanted = pattern::bytes(self.tag(round, sender), size);
                let wrong = found.iter().zip(&wanted).position(|(a, b)| a != b);
                if let Some(at) = wrong {
                    bail!("byte {at} of message {round} is wrong");
                }
            }
            self.verified += count;
        }
        Ok(())
    }
}
