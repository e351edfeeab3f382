//! Messages of changing sizes, every byte of which is looked at: on the stream, by the kernel
//! that runs behind each wait, and once more by the CPU, which also looks behind each message.
//!
//! Two queue pairs of one NIC take turns; SEND and WRITE with immediate take turns. All of a chunk
//! is enqueued before its first message is sent: payloads are written, sent, waited for and
//! verified by the stream alone.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::rdma::{Descriptor, Mr, Qp, Work, post_on};
use serde::{Deserialize, Serialize};

use crate::cli::{self, Run, Setup};
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, well};
use crate::kernel::{Tally, Turn, Turns};
use crate::pattern;
use crate::report::{self, Report, Target};

/// Messages of a chunk.
const CHUNK: u64 = 32;
/// Entries of each queue.
const QUEUE: u32 = 128;
/// What lies where nothing was received.
const BLANK: u8 = 0xee;

/// Options of `mpbench verify`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Messages.
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// The longest, in bytes: `8`, `64Ki`. Any length from 1 on may occur, a short one more often.
    #[arg(long, value_name = "BYTES", default_value = "64Ki", value_parser = cli::size)]
    pub longest: u64,
    /// What the lengths are drawn from.
    #[arg(long, default_value = "1")]
    pub seed: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
    /// Get one bit of this message wrong, to see that it is noticed.
    #[arg(long, value_name = "MESSAGE", hide = true)]
    pub spoil: Option<u64>,
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub names: Names,
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes found right by kernels on the stream, and by the CPU.
    pub verified: [u64; 2],
    /// How many lengths there were.
    pub lengths: u64,
    /// From the first to the last, the CPU's looks included, in nanoseconds.
    pub elapsed_ns: u64,
}

struct Trial {
    endpoint: Endpoint,
    qps: [Qp; 2],
    from: Mr,
    to: Mr,
    turns: Turns,
    tally: Tally,
    bell: Bell,
    slot: u64,
    blank: Vec<u8>,
    arrived: Vec<u8>,
    /// As [`Figures::verified`].
    verified: [u64; 2],
    deadline: Instant,
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let mut trial = Trial::new(options)?;
    let names = trial.names();
    println!("mpbench verify: messages of changing sizes, every byte verified");
    println!(
        "{}; {}; lowering {}; {} memory; seed {}",
        names.gpu, names.provider, names.lowering, names.memory, options.seed
    );
    let lengths = lengths(options);
    let start = Instant::now();
    for (chunk, lengths) in lengths.chunks(CHUNK as usize).enumerate() {
        let first = chunk as u64 * CHUNK;
        trial
            .chunk(first, lengths, options.spoil)
            .with_context(|| format!("messages {first} and on"))?;
    }
    let elapsed = start.elapsed();
    let mut different = lengths.clone();
    different.sort_unstable();
    different.dedup();
    let figures = Figures {
        names,
        messages: options.messages,
        bytes: lengths.iter().sum(),
        lengths: different.len() as u64,
        verified: trial.verified,
        elapsed_ns: elapsed.as_nanos() as u64,
    };
    println!(
        "{} messages of {} lengths, {} bytes: all right, on the GPU and by the CPU; {:.2} s",
        figures.messages,
        figures.lengths,
        figures.bytes,
        elapsed.as_secs_f64()
    );
    if let Some(path) = &options.run.json {
        let right = figures.verified[0].min(figures.verified[1]);
        let all = figures.bytes as f64;
        let target = Target::at_least("verify: bytes that are right", right as f64, all, "B");
        let report = Report::new("verify", options, &figures, vec![target])?;
        report::write_json(path, &report)?;
    }
    Ok(())
}

/// Length of each message: as many between 1 and 2 bytes as between 32 and 64 KiB.
fn lengths(options: &Options) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let doublings = (options.longest as f64).log2();
    let draw = |_| (rng.f64() * doublings).exp2().round() as u64;
    (0..options.messages)
        .map(draw)
        .map(|len: u64| len.clamp(1, options.longest))
        .collect()
}

impl Trial {
    fn new(options: &Options) -> Result<Trial> {
        let endpoint = Endpoint::open(&options.setup, 0)?;
        let turns = Turns::new(&endpoint.gpu)?;
        let tally = Tally::new(&endpoint.gpu)?;
        let (a, b) = endpoint.pair(&options.setup.queues(QUEUE))?;
        let kind = options.setup.memory(&endpoint.gpu);
        // With room behind the longest.
        let slot = (options.longest + 64).next_multiple_of(64);
        let bytes = usize::try_from(CHUNK * slot)?;
        Ok(Trial {
            qps: [a, b],
            from: endpoint.memory(kind, bytes as u64)?,
            to: endpoint.memory(kind, bytes as u64)?,
            turns,
            tally,
            bell: Bell::new(&endpoint.gpu)?,
            slot,
            blank: vec![BLANK; bytes],
            arrived: vec![0; bytes],
            verified: [0; 2],
            deadline: Instant::now() + options.run.timeout,
            endpoint,
        })
    }

    fn names(&self) -> Names {
        self.endpoint.names(&self.qps[0], self.from.region().kind())
    }

    fn chunk(&mut self, first: u64, lengths: &[u64], spoil: Option<u64>) -> Result<()> {
        self.to.region().write(0, &self.blank)?;
        let stream = &self.endpoint.stream;
        let [a, b] = &mut self.qps;
        for (i, &len) in lengths.iter().enumerate() {
            let (number, at) = (first + i as u64, i as u64 * self.slot);
            let (sender, receiver, rank) = match number % 2 {
                0 => (&mut *a, &mut *b, 0),
                _ => (&mut *b, &mut *a, 1),
            };
            let tag = pattern::tag(number, rank);
            let mut write = Turn::new(len, &self.tally).write(self.from.region(), at, tag);
            if spoil == Some(number) {
                write = write.spoil(len / 2);
            }
            // SAFETY: the regions are this trial's, which waits for the stream below.
            unsafe { self.turns.launch(stream, &write)? };
            let receive = receiver.prepare_receive(&[self.to.sge(at, self.slot as u32)])?;
            let sges = [self.from.sge(at, len as u32)];
            let work = match number / 2 % 2 {
                0 => Work::send(&sges),
                _ => {
                    let there = self.to.remote().span(at, len)?;
                    Work::write(&sges, there).with_imm(number as u32)
                }
            };
            let send = sender.prepare(&work.signaled())?;
            let list = [
                Descriptor::Receive(receive),
                Descriptor::Send(send),
                Descriptor::wait(send),
                Descriptor::wait_flushed(receive),
            ];
            post_on(stream, &mut [sender, receiver], &list)?;
            let verify = Turn::new(len, &self.tally).verify(self.to.region(), at, tag);
            // SAFETY: as above.
            unsafe { self.turns.launch(stream, &verify)? };
        }
        self.bell.enqueue(stream)?;
        self.bell.hear(self.deadline)?;
        well(a.error())?;
        well(b.error())?;
        let bytes = lengths.iter().sum();
        self.tally.take(bytes)?;
        self.verified[0] += bytes;
        self.look(first, lengths)
    }

    /// The CPU's look at what arrived and at what lies behind.
    fn look(&mut self, first: u64, lengths: &[u64]) -> Result<()> {
        self.to.region().read(0, &mut self.arrived)?;
        let slots = self.arrived.chunks_exact(self.slot as usize);
        for ((slot, &len), number) in slots.zip(lengths).zip(first..) {
            let (payload, behind) = slot.split_at(len as usize);
            let expected = pattern::bytes(pattern::tag(number, (number % 2) as u32), payload.len());
            ensure!(payload == expected, "message {number}: wrong bytes");
            self.verified[1] += len;
            ensure!(
                behind.iter().all(|byte| *byte == BLANK),
                "message {number} of {len} bytes: something behind it was written"
            );
        }
        Ok(())
    }
}
