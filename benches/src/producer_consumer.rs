//! The rate of a producer and a consumer: the pattern of the example of the same name, between the
//! streams of two ranks.
//!
//! The producer's kernel writes an item, and its stream puts the item into a slot of the consumer,
//! with a signal behind it. The consumer's stream waits for the signal, a kernel verifies the item,
//! and the stream returns a credit for the slot. The CPU only enqueues.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use gdsync::gpu::Condition;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::gate::Bell;
use crate::kernel::{Tally, Turn, Turns};
use crate::options::{self, Launch, Setup};
use crate::pattern;
use crate::rank::{Job, Rank};
use crate::start::barrier;
use crate::table;
use crate::world;

/// The tag of messages that synchronise the ranks.
const BARRIER: u32 = 1;
/// Items of a batch; a stream has at most two batches enqueued.
const BATCH: u64 = 32;
/// Items before the measurement.
const WARM_UP: u64 = 100;
const PRODUCER: u32 = 0;
const CONSUMER: u32 = 1;

/// Options of `mpbench producer_consumer`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of measured items.
    #[arg(short = 'i', long = "items", default_value = "20000",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub items: u64,
    /// Slots of the ring.
    #[arg(short = 'W', long, default_value = "8", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub slots: u64,
    /// Size of an item in bytes: `8`, `64Ki`.
    #[arg(short = 's', long, value_parser = options::size, default_value = "8Ki")]
    pub size: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
    /// Flips one bit of this item, to test that the benchmark detects it.
    #[arg(long, value_name = "ITEM", hide = true)]
    pub spoil: Option<u64>,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    elapsed_ns: u64,
    verified: u64,
}

impl Job for Options {
    const NAME: &'static str = "producer_consumer";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let (gpu, stream) = (&endpoint.gpu, &endpoint.stream);
        let (turns, tally, mut bell) = (Turns::new(gpu)?, Tally::new(gpu)?, Bell::new(gpu)?);
        let context = rank.context(&endpoint, &self.setup)?;
        let kind = self.setup.memory(gpu);
        let slot = self.size.next_multiple_of(8);
        let signal = usize::try_from(self.slots * slot)?;
        let memory = context.alloc(kind, signal + 8)?;
        let window = context.window(&memory)?;
        let region = memory.region();
        let enqueue = |item: u64| -> Result<()> {
            let offset = item % self.slots * slot;
            let turn = Turn::new(self.size, &tally);
            let tag = pattern::tag(item, PRODUCER);
            if rank.number == PRODUCER {
                if let Some(free) = item.checked_sub(self.slots) {
                    let credit = free + 1;
                    window.wait_signal_on(stream, CONSUMER, signal, Condition::Geq, credit)?;
                }
                let write = turn.write(region, offset, tag);
                let write = match self.spoil {
                    Some(spoilt) if spoilt == item => write.spoil(self.size / 2),
                    _ => write,
                };
                // SAFETY: the memory lives until the stream is done, and the credit shows that the
                // put of the slot's last item is complete.
                unsafe { turns.launch(stream, &write)? };
                let at = usize::try_from(offset)?;
                let from = memory.slice(at, usize::try_from(self.size)?)?;
                drop(window.put_signal_on(stream, CONSUMER, at, &from, signal, item + 1)?);
            } else {
                window.wait_signal_on(stream, PRODUCER, signal, Condition::Geq, item + 1)?;
                // SAFETY: as above; this only reads.
                unsafe { turns.launch(stream, &turn.verify(region, offset, tag))? };
                drop(window.signal_on(stream, PRODUCER, signal, item + 1)?);
            }
            Ok(())
        };
        let mut elapsed = Duration::ZERO;
        for items in [0..WARM_UP, WARM_UP..WARM_UP + self.items] {
            barrier(&context, BARRIER, rank.left())?;
            let deadline = Instant::now() + rank.left();
            let start = Instant::now();
            for item in items.clone() {
                enqueue(item)?;
                if item % BATCH == BATCH - 1 {
                    bell.enqueue(stream)?;
                    bell.poll_nth(bell.enqueued() - 1, deadline)?;
                }
            }
            if rank.number == PRODUCER {
                // All credits have arrived.
                window.wait_signal_on(stream, CONSUMER, signal, Condition::Geq, items.end)?;
            }
            bell.enqueue(stream)?;
            bell.poll(deadline)?;
            elapsed = start.elapsed();
            context.synchronize(stream, rank.left())?;
        }
        let verified = match rank.number {
            CONSUMER => (WARM_UP + self.items) * self.size,
            _ => 0,
        };
        tally.take(verified)?;
        barrier(&context, BARRIER, rank.left())?;
        let made = endpoint.made_of(&context, &self.setup, kind)?;
        context.close(rank.left())?;
        Ok(serde_json::to_value(Played {
            names: made.names,
            elapsed_ns: elapsed.as_nanos() as u64,
            verified,
        })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "producer_consumer";
    const ABOUT: &'static str =
        "Rate of items through a ring of slots between two streams, without a CPU";
    const EXAMPLES: Examples = [
        ("-s 64Ki -W 16", "items of 64 KiB through 16 slots"),
        ("-W 1 --threads", "one item at a time, between two threads"),
    ];
    const VERIFIED: Option<&str> = Some("a kernel compared every byte of every item");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let ranks = self.launch.ranks();
        let Some([producer, consumer]) = world::run(ranks, self, limit, &mut |_, _| {})? else {
            return Ok(None);
        };
        let read = |value| serde_json::from_value::<Played>(value).context("reading a result");
        let (producer, consumer) = (read(producer)?, read(consumer)?);
        // The producer's time includes the last credit.
        let rate = self.items as f64 * 1e9 / producer.elapsed_ns.max(1) as f64;
        let bandwidth = rate * self.size as f64;
        println!("mpbench producer_consumer: {}", producer.names);
        println!(
            "{} items of {} through {} slots: {rate:.0} items a second, {}",
            self.items,
            table::bytes(self.size),
            self.slots,
            table::per_second(bandwidth),
        );
        let figures = json!({
            "names": producer.names,
            "ranks": ranks,
            "items": self.items,
            "elapsed_ns": producer.elapsed_ns,
            "items_per_second": rate,
            "bandwidth": bandwidth,
            "verified": consumer.verified,
        });
        Outcome::of(&figures, Vec::new())
    }
}
