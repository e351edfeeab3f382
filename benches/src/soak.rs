//! Millions of messages on one stream, and the memory of the process and the GPU in the meantime.
//!
//! Each message is a receive, a send, and the stream's waits for both. With every chunk of messages
//! a buffer is allocated, registered and freed. Between chunks the benchmark reads the program's
//! heap, its resident memory without pages of files, and the GPU's memory.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Access, Descriptor, ReceiveRequest, SendRequest, Work, post_on};
use serde::Serialize;
use serde_json::json;

use crate::alloc;
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::Rig;
use crate::gpu::{check, driver};
use crate::memory;
use crate::options::Setup;
use crate::report::Target;
use crate::table::{self, Table};

/// Messages of a chunk.
const CHUNK: u64 = 100;
/// Entries of each queue.
const QUEUE: u32 = 256;
/// Bytes of a message.
const MESSAGE: u64 = 64;
/// Bytes that are allocated and freed with every chunk.
const PASSING: usize = 64 << 10;
/// Memory readings in the whole run.
const LOOKS: u64 = 100;
/// Number of readings whose maximum counts: the first ones after the warm-up, and the last ones.
const WINDOW: usize = 10;

/// Greatest allowed growth in bytes: of the heap, of resident memory, of the GPU's memory. A leak
/// of some bytes a message is far more, and so is a leak of one region in a hundred.
const BOUNDS: [u64; 3] = [64 << 10, 2 << 20, 4 << 20];

/// Options of `mpbench soak`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of messages.
    #[arg(long, default_value = "1000000", value_parser = clap::value_parser!(u64).range(10_000..))]
    pub messages: u64,
    #[command(flatten)]
    pub setup: Setup,
    /// Leaks this many bytes of the heap with every message, to test that the benchmark detects it.
    #[arg(long, value_name = "BYTES", default_value = "0", hide = true)]
    pub leak: usize,
}

/// Memory in use at a moment, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Look {
    /// Messages so far.
    pub messages: u64,
    /// The program's heap.
    pub heap: u64,
    /// Resident memory of the process, drivers included.
    pub resident: u64,
    /// The GPU's memory, including that of other processes; 0 where the GPU does not report it.
    pub gpu: u64,
}

struct Soak {
    rig: Rig,
    sends: Vec<(SendRequest, ReceiveRequest)>,
    payload: Vec<u8>,
    arrived: Vec<u8>,
}

impl Benchmark for Options {
    const NAME: &'static str = "soak";
    const ABOUT: &'static str = "Millions of messages, with a check that memory does not grow";
    const EXAMPLES: Examples = [
        (
            "--messages 10000000 --timeout 600",
            "ten million messages in at most 10 minutes",
        ),
        (
            "--gpu cuda --memory device",
            "a million messages in device memory of a CUDA GPU",
        ),
    ];
    const VERIFIED: Option<&str> = Some("every byte is right and memory did not grow");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut soak = Soak::new(self, limit)?;
        let names = soak.rig.names();
        println!("mpbench soak: sends of 64 B, each waited for on both sides by one stream");
        println!("{names}; {} memory", names.memory);
        let start = Instant::now();
        let looks = soak.play(self)?;
        let elapsed = start.elapsed();
        let growth = growth(&looks);
        show(&looks, growth);
        println!(
            "{} messages in {:.2} s: {:.2} us each",
            self.messages,
            elapsed.as_secs_f64(),
            elapsed.as_secs_f64() * 1e6 / self.messages as f64
        );
        let grown = GAUGES.iter().zip(growth).zip(BOUNDS);
        let target = |((name, grown), bound): ((&&str, i64), u64)| {
            let name = format!("soak: growth of {name}");
            Target::at_most(&name, grown.max(0) as f64, bound as f64, "B")
        };
        let verdict = grown.clone().try_for_each(|((name, grown), bound)| {
            ensure!(
                grown <= bound as i64,
                "{name} grew by {grown} bytes in {} messages; {bound} are let pass",
                self.messages
            );
            Ok(())
        });
        let figures = json!({
            "names": names,
            "messages": self.messages,
            "elapsed_ns": elapsed.as_nanos() as u64,
            "looks": looks,
            "growth": growth,
        });
        Outcome::judged(&figures, grown.map(target).collect(), verdict)
    }
}

const GAUGES: [&str; 3] = ["the heap", "resident memory", "GPU memory"];

fn values(look: &Look) -> [u64; 3] {
    [look.heap, look.resident, look.gpu]
}

/// The maximum of the last readings minus the maximum of those after the warm-up.
fn growth(looks: &[Look]) -> [i64; 3] {
    let window = WINDOW.min(looks.len() / 3).max(1);
    let highest = |looks: &[Look], gauge: usize| {
        let each = looks.iter().map(|look| values(look)[gauge]);
        each.max().unwrap_or(0) as i64
    };
    let late = &looks[looks.len().saturating_sub(window)..];
    let early = looks.get(window..2 * window).unwrap_or(late);
    std::array::from_fn(|gauge| highest(late, gauge) - highest(early, gauge))
}

fn show(looks: &[Look], growth: [i64; 3]) {
    let heads = ["in use", "first", "warm", "last", "growth", "let pass"];
    let table = Table::start(&heads, 15);
    let at = |i: usize, gauge: usize| {
        let look = looks.get(i).or(looks.last());
        look.map_or(0, |look| values(look)[gauge])
    };
    for (gauge, name) in GAUGES.iter().enumerate() {
        table.row(&[
            (*name).to_owned(),
            table::bytes(at(0, gauge)),
            table::bytes(at(WINDOW, gauge)),
            table::bytes(at(usize::MAX, gauge)),
            format!("{} B", growth[gauge]),
            table::bytes(BOUNDS[gauge]),
        ]);
    }
}

impl Soak {
    fn new(options: &Options, limit: Duration) -> Result<Soak> {
        let bytes = CHUNK * MESSAGE;
        Ok(Soak {
            rig: Rig::new(&options.setup, QUEUE, bytes, limit)?,
            sends: Vec::with_capacity(CHUNK as usize),
            payload: vec![0; bytes as usize],
            arrived: vec![0; bytes as usize],
        })
    }

    fn play(&mut self, options: &Options) -> Result<Vec<Look>> {
        let chunks = options.messages.div_ceil(CHUNK);
        let every = (chunks / LOOKS).max(1);
        let mut looks = Vec::with_capacity(LOOKS as usize + 2);
        for chunk in 0..chunks {
            if chunk % every == 0 {
                looks.push(self.look(chunk * CHUNK)?);
            }
            self.chunk(chunk)
                .with_context(|| format!("messages {} and on", chunk * CHUNK))?;
            std::mem::forget(vec![1_u8; options.leak * CHUNK as usize]);
        }
        looks.push(self.look(chunks * CHUNK)?);
        Ok(looks)
    }

    fn chunk(&mut self, number: u64) -> Result<()> {
        for (i, byte) in self.payload.iter_mut().enumerate() {
            *byte = (number + i as u64 / 7) as u8;
        }
        self.rig.from.region().write(0, &self.payload)?;
        self.sends.clear();
        let Rig {
            endpoint,
            qp,
            peer,
            from,
            to,
            ..
        } = &mut self.rig;
        for i in 0..CHUNK {
            let receive = peer.prepare_receive(&[to.sge(i * MESSAGE, MESSAGE as u32)])?;
            peer.post_receive(receive)?;
            let sges = [from.sge(i * MESSAGE, MESSAGE as u32)];
            let send = qp.prepare(&Work::send(&sges).signaled())?;
            self.sends.push((send, receive));
        }
        for (send, receive) in &self.sends {
            let list = [
                Descriptor::Send(*send),
                Descriptor::wait(*send),
                Descriptor::wait(*receive),
            ];
            post_on(&endpoint.stream, &mut [&mut *qp, &mut *peer], &list)?;
        }
        self.rig.bell.enqueue(&self.rig.endpoint.stream)?;
        self.pass(number)?;
        self.rig.poll_bell()?;
        self.rig.to.region().read(0, &mut self.arrived)?;
        ensure!(
            self.arrived == self.payload,
            "what arrived is not what was sent"
        );
        Ok(())
    }

    /// Allocates, registers and frees memory while the stream waits.
    fn pass(&self, number: u64) -> Result<()> {
        let kind = match number % 2 {
            0 => MemoryKind::Device,
            _ => MemoryKind::Pinned,
        };
        let region = self.rig.endpoint.gpu.alloc(kind, PASSING)?;
        self.rig.endpoint.pd()?.register(&region, Access::ALL)?;
        Ok(())
    }

    fn look(&self, messages: u64) -> Result<Look> {
        Ok(Look {
            messages,
            heap: alloc::bytes(),
            resident: memory::of_process()?.resident,
            gpu: self.gpu_memory()?,
        })
    }

    fn gpu_memory(&self) -> Result<u64> {
        let Some((cuda, _)) = driver(&self.rig.endpoint.stream)? else {
            return Ok(0);
        };
        let (mut free, mut total) = (0, 0);
        // SAFETY: stores two numbers; a context is current.
        check(unsafe { (cuda.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok((total - free) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(heap: impl Fn(u64) -> u64) -> Vec<Look> {
        let look = |i| Look {
            messages: i,
            heap: heap(i),
            resident: 5,
            gpu: 0,
        };
        (0..=LOOKS).map(look).collect()
    }

    #[test]
    fn growth_is_measured_after_the_warm_up() {
        assert_eq!(growth(&looks(|_| 7)), [0; 3]);
        assert_eq!(growth(&looks(|i| i.min(9))), [0; 3]);
        assert_eq!(growth(&looks(|i| 10 * i)), [10 * (100 - 19), 0, 0]);
        assert_eq!(growth(&looks(|i| 100 - i))[0], 9 - 90);
        assert_eq!(growth(&looks(|i| i)[..3])[0], 1);
        assert_eq!(growth(&looks(|i| i)[..1]), [0; 3]);
    }
}
