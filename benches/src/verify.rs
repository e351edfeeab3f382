//! Messages of changing sizes, of which every byte is compared: on the stream, by the kernel behind
//! each wait, and once more by the CPU, which also checks the bytes behind each message.
//!
//! Two QPs of one NIC alternate, and so do SEND and WRITE with immediate. All of a chunk is
//! enqueued before its first message is sent: the stream alone writes, sends, waits for and
//! verifies the payloads.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::rdma::{Descriptor, Work, post_on};
use serde::Serialize;
use serde_json::json;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::Rig;
use crate::kernel::{Tally, Turn, Turns};
use crate::options::{self, Setup};
use crate::pattern;
use crate::report::Target;

/// Messages of a chunk.
const CHUNK: u64 = 32;
/// Entries of each queue.
const QUEUE: u32 = 128;
/// Value of bytes that have not been received.
const BLANK: u8 = 0xee;

/// Options of `mpbench verify`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of messages.
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// The longest message in bytes: `8`, `64Ki`. All lengths from 1 on occur, short ones more
    /// often.
    #[arg(long, value_name = "BYTES", default_value = "64Ki", value_parser = options::size)]
    pub longest: u64,
    /// Seed of the lengths.
    #[arg(long, default_value = "1")]
    pub seed: u64,
    #[command(flatten)]
    pub setup: Setup,
    /// Flips one bit of this message, to test that the benchmark detects it.
    #[arg(long, value_name = "MESSAGE", hide = true)]
    pub spoil: Option<u64>,
}

struct Trial {
    rig: Rig,
    turns: Turns,
    tally: Tally,
    slot: u64,
    blank: Vec<u8>,
    arrived: Vec<u8>,
    /// Bytes verified by kernels on the stream, and by the CPU.
    verified: [u64; 2],
}

impl Benchmark for Options {
    const NAME: &'static str = "verify";
    const ABOUT: &'static str = "Correctness of messages of changing sizes: every byte is compared";
    const EXAMPLES: Examples = [
        (
            "--messages 10000 --longest 1Mi",
            "ten thousand messages of 1 byte to 1 MiB",
        ),
        (
            "--gpu cuda --lowering kernel --seed 7",
            "on CUDA by kernels, with other lengths",
        ),
    ];
    const VERIFIED: Option<&str> = Some("every byte is right, on the GPU and by the CPU");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut trial = Trial::new(self, limit)?;
        let names = trial.rig.names();
        println!("mpbench verify: messages of changing sizes, every byte verified");
        println!("{names}; {} memory; seed {}", names.memory, self.seed);
        let lengths = lengths(self);
        let start = Instant::now();
        for (chunk, lengths) in lengths.chunks(CHUNK as usize).enumerate() {
            let first = chunk as u64 * CHUNK;
            trial
                .chunk(first, lengths, self.spoil)
                .with_context(|| format!("messages {first} and on"))?;
        }
        let elapsed = start.elapsed();
        let mut different = lengths.clone();
        different.sort_unstable();
        different.dedup();
        let bytes: u64 = lengths.iter().sum();
        println!(
            "{} messages of {} lengths, {bytes} bytes: all right, on the GPU and by the CPU; {:.2} s",
            self.messages,
            different.len(),
            elapsed.as_secs_f64()
        );
        let figures = json!({
            "names": names,
            "messages": self.messages,
            "bytes": bytes,
            "lengths": different.len(),
            "verified": trial.verified,
            "elapsed_ns": elapsed.as_nanos() as u64,
        });
        let right = trial.verified[0].min(trial.verified[1]) as f64;
        let target = Target::at_least("verify: bytes that are right", right, bytes as f64, "B");
        Outcome::of(&figures, vec![target])
    }
}

/// Length of each message: logarithmic, so 1 to 2 bytes is as likely as 32 to 64 KiB.
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
    fn new(options: &Options, limit: Duration) -> Result<Trial> {
        // With room for a guard behind the longest message.
        let slot = (options.longest + 64).next_multiple_of(64);
        let bytes = usize::try_from(CHUNK * slot)?;
        let rig = Rig::new(&options.setup, QUEUE, bytes as u64, limit)?;
        Ok(Trial {
            turns: Turns::new(&rig.endpoint.gpu)?,
            tally: Tally::new(&rig.endpoint.gpu)?,
            slot,
            blank: vec![BLANK; bytes],
            arrived: vec![0; bytes],
            verified: [0; 2],
            rig,
        })
    }

    fn chunk(&mut self, first: u64, lengths: &[u64], spoil: Option<u64>) -> Result<()> {
        self.rig.to.region().write(0, &self.blank)?;
        let Rig {
            endpoint,
            qp: a,
            peer: b,
            from,
            to,
            ..
        } = &mut self.rig;
        let stream = &endpoint.stream;
        for (i, &len) in lengths.iter().enumerate() {
            let (number, at) = (first + i as u64, i as u64 * self.slot);
            let (sender, receiver, rank) = match number % 2 {
                0 => (&mut *a, &mut *b, 0),
                _ => (&mut *b, &mut *a, 1),
            };
            let tag = pattern::tag(number, rank);
            let mut write = Turn::new(len, &self.tally).write(from.region(), at, tag);
            if spoil == Some(number) {
                write = write.spoil(len / 2);
            }
            // SAFETY: the regions are this trial's, which waits for the stream below.
            unsafe { self.turns.launch(stream, &write)? };
            let receive = receiver.prepare_receive(&[to.sge(at, self.slot as u32)])?;
            let sges = [from.sge(at, len as u32)];
            let work = match number / 2 % 2 {
                0 => Work::send(&sges),
                _ => {
                    let there = to.remote().span(at, len)?;
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
            let verify = Turn::new(len, &self.tally).verify(to.region(), at, tag);
            // SAFETY: as above.
            unsafe { self.turns.launch(stream, &verify)? };
        }
        self.rig.ring_and_poll()?;
        let bytes = lengths.iter().sum();
        self.tally.take(bytes)?;
        self.verified[0] += bytes;
        self.look(first, lengths)
    }

    /// The CPU's check of the received bytes and of the bytes behind them.
    fn look(&mut self, first: u64, lengths: &[u64]) -> Result<()> {
        self.rig.to.region().read(0, &mut self.arrived)?;
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
