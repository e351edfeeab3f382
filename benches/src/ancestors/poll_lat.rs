//! `gds_poll_lat`: the latency from the CPU's store for which a stream waits to the CPU's load that
//! returns the stream's write behind the wait.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gdsync::Gpu;
use gdsync::gpu::{Condition, Region, Stream, Word32};
use gdsync::rdma::{Descriptor, post_on};
use serde::Serialize;
use serde_json::json;

use super::{WordMemory, microseconds, spin};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::gate::Gate;
use crate::gpu::{self, Driver};
use crate::stats::{Samples, Summary};
use crate::table::{Table, micros, us};

/// Iterations before the measurement.
const WARM_UP: u64 = 5;
/// Words that are written in turn.
const WORDS: usize = 4096;
/// Polls of a word between two reads of the clock.
const LOOKS: u32 = 256;

/// Options of `mpbench gds_poll_lat`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of iterations of each row.
    #[arg(short = 'n', long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub iterations: u64,
    /// Time in microseconds between enqueuing and the store, so that the GPU has reached the wait.
    #[arg(short = 's', long, value_name = "US", default_value = "10", value_parser = microseconds)]
    pub sleep: Duration,
    /// Number of other streams that wait in the meantime.
    #[arg(short = 'p', long, default_value = "0", value_parser = clap::value_parser!(u32).range(0..=16))]
    pub background: u32,
    /// Number of words that the stream writes behind the wait; the CPU polls the last one.
    #[arg(short = 'P', long, value_name = "N,..", value_delimiter = ',', default_value = "1,4,16,64",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pokes: Vec<u32>,
    /// Measures only one submission for wait and writes, not one submission for each.
    #[arg(short = 'c', long)]
    pub combined: bool,
    /// Waits with a flush of remote writes.
    #[arg(short = 'f', long)]
    pub flush: bool,
    /// Places words in device memory.
    #[arg(short = 'g', long = "gpu-memory")]
    pub gpu_memory: bool,
    /// The GPU: soft, cuda, cuda:N, hip, hip:N, or auto.
    #[arg(long = "gpu", env = "GDS_GPU", value_parser = gpu::name, default_value = "auto")]
    pub gpu: String,
}

/// The figures of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Number of words written behind the wait.
    pub pokes: u32,
    /// Whether wait and writes were one submission.
    pub combined: bool,
    /// Latency from store to load, in nanoseconds.
    pub latency_ns: Summary,
    /// CPU overhead of enqueuing, in nanoseconds.
    pub enqueue_ns: Summary,
}

struct Bench {
    stream: Stream,
    polled: Region,
    poked: Vec<Word32>,
    /// The next value that the stream waits for, which also distinguishes writes.
    round: u32,
    flush: bool,
    deadline: Instant,
}

/// Streams that wait until this value is dropped.
struct Background {
    streams: Vec<Stream>,
    gate: Gate,
}

impl Benchmark for Options {
    const NAME: &'static str = "gds_poll_lat";
    const ABOUT: &'static str =
        "Latency from a CPU store that a stream waits for to the CPU's load of the stream's answer";
    const EXAMPLES: Examples = [
        (
            "-P 1,16 -n 5000",
            "latency of 1 and of 16 words, 5000 iterations each",
        ),
        (
            "--gpu cuda -p 4 -c",
            "on CUDA, beside 4 streams that wait, one submission for wait and writes",
        ),
    ];
    const VERIFIED: Option<&str> =
        Some("every wait blocked until the store, and every word was written");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let gpu = gpu::open(std::slice::from_ref(&self.gpu), 0)?;
        ensure!(
            !self.flush || gpu.caps().flush,
            "{} has no flush for -f",
            gpu.name()
        );
        let memory = match self.gpu_memory {
            true => WordMemory::Device,
            false => WordMemory::Pinned,
        };
        println!(
            "gds_poll_lat: CPU's store, stream's wait, stream's writes, CPU's load of the last; words in {} memory",
            memory.name()
        );
        println!("{}; {} background streams", gpu.name(), self.background);
        let heads = [
            "writes, submitted",
            "mean",
            "median",
            "p99",
            "max",
            "enqueue",
        ];
        let table = Table::start(&heads, 17);
        let mut bench = Bench::new(&gpu, memory, self, limit)?;
        let background = Background::start(&gpu, self.background)?;
        let mut rows = Vec::new();
        for &pokes in &self.pokes {
            for combined in [false, true] {
                if combined || !self.combined {
                    let row = bench.measure(self, pokes, combined)?;
                    let (how, l) = (
                        ["apart", "together"][usize::from(combined)],
                        &row.latency_ns,
                    );
                    table.row(&[
                        format!("{pokes}, {how}"),
                        micros(l.mean),
                        us(l.median),
                        us(l.p99),
                        us(l.max),
                        us(row.enqueue_ns.median),
                    ]);
                    rows.push(row);
                }
            }
        }
        background.end(bench.deadline)?;
        let figures = json!({
            "gpu": gpu.name(),
            "runtime": gpu.runtime_name(),
            "driver": Driver::of(&gpu),
            "place": memory,
            "rows": rows,
        });
        Outcome::of(&figures, Vec::new())
    }
}

impl Bench {
    fn new(gpu: &Gpu, memory: WordMemory, options: &Options, limit: Duration) -> Result<Bench> {
        let poked = memory.region(gpu, 4 * WORDS)?;
        let words = (0..WORDS).map(|i| poked.word32(4 * i));
        Ok(Bench {
            stream: gpu.stream()?,
            polled: memory.region(gpu, 4 * WORDS)?,
            poked: words.collect::<Result<_, _>>()?,
            round: 0,
            flush: options.flush,
            deadline: Instant::now() + limit,
        })
    }

    fn measure(&mut self, options: &Options, pokes: u32, combined: bool) -> Result<Row> {
        let (mut latency, mut enqueue) = (Samples::default(), Samples::default());
        for i in 0..WARM_UP + options.iterations {
            let (enqueued, passed) = self
                .once(pokes as usize, combined, options.sleep)
                .with_context(|| format!("iteration {i} with {pokes} writes"))?;
            if i >= WARM_UP {
                enqueue.record(enqueued.as_nanos() as u64);
                latency.record(passed.as_nanos() as u64);
            }
        }
        Ok(Row {
            pokes,
            combined,
            latency_ns: latency.summary(),
            enqueue_ns: enqueue.summary(),
        })
    }

    /// One round: the CPU overhead of enqueuing, and the latency of passing the wait.
    fn once(
        &mut self,
        pokes: usize,
        combined: bool,
        sleep: Duration,
    ) -> Result<(Duration, Duration)> {
        self.round += 1;
        let value = self.round;
        let word = self.polled.word32(4 * (value as usize % WORDS))?;
        let first = value as usize * pokes % (WORDS - pokes);
        let poked = &self.poked[first..first + pokes];
        let mut list = vec![Descriptor::wait_value(&word, Condition::Geq, value).flush(self.flush)];
        list.extend(
            poked
                .iter()
                .map(|word| Descriptor::write_value(word, value)),
        );
        let start = Instant::now();
        if combined {
            post_on(&self.stream, &mut [], &list)?;
        } else {
            post_on(&self.stream, &mut [], &list[..1])?;
            post_on(&self.stream, &mut [], &list[1..])?;
        }
        let enqueued = start.elapsed();
        spin(sleep);
        ensure!(
            !self.stream.is_idle()?,
            "the stream passed a wait for a value that has not been stored"
        );
        let last = &poked[pokes - 1];
        ensure!(last.load()? != value, "a write has overtaken the wait");
        let start = Instant::now();
        word.store(value)?;
        let passed = self.watch(last, value)? - start;
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(self.stream.synchronize(left)?, "the time limit expired");
        for word in poked {
            ensure!(word.load()? == value, "a write is missing");
        }
        Ok((enqueued, passed))
    }

    fn watch(&self, word: &Word32, value: u32) -> Result<Instant> {
        loop {
            for _ in 0..LOOKS {
                if word.load()? == value {
                    return Ok(Instant::now());
                }
                std::hint::spin_loop();
            }
            if Instant::now() > self.deadline {
                bail!("the stream does not pass its wait");
            }
            std::thread::yield_now();
        }
    }
}

impl Background {
    fn start(gpu: &Gpu, streams: u32) -> Result<Background> {
        let mut background = Background {
            streams: Vec::new(),
            gate: Gate::new(gpu)?,
        };
        for i in 0..streams {
            let stream = gpu.stream()?;
            let closed = background.gate.close(&stream);
            closed.with_context(|| format!("background stream {}", i + 1))?;
            background.streams.push(stream);
        }
        Ok(background)
    }

    /// Releases the streams, which must have been blocked.
    fn end(&self, deadline: Instant) -> Result<()> {
        for stream in &self.streams {
            ensure!(!stream.is_idle()?, "a background stream did not wait");
        }
        self.gate.open()?;
        for stream in &self.streams {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(
                stream.synchronize(left)?,
                "a background stream does not go on"
            );
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Also after an error no stream is left waiting; there is no caller to report another to.
        let _ = self.gate.open();
    }
}
