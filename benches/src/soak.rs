//! Messages by the million on one stream, and what the process and the GPU hold meanwhile.
//!
//! Each message is a receive, a send, and the stream's waits for both; with every chunk of them
//! a piece of memory is allocated, registered and given back. What is in use is looked at
//! between chunks: the program's heap, its resident memory, the GPU's memory.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Access, Descriptor, Mr, Qp, ReceiveRequest, SendRequest, Work, post_on};
use serde::{Deserialize, Serialize};

use crate::alloc;
use crate::cli::{Run, Setup};
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, well};
use crate::gpu::{check, driver};
use crate::memory;
use crate::report::{self, Report, Target};
use crate::table::{self, Table};

/// Messages of a chunk.
const CHUNK: u64 = 100;
/// Entries of each queue.
const QUEUE: u32 = 256;
/// Bytes of a message.
const MESSAGE: u64 = 64;
/// Bytes of what is allocated and given back with every chunk.
const PASSING: usize = 64 << 10;
/// Looks at memory in the whole run.
const LOOKS: u64 = 100;
/// Each gauge is judged by the highest of so many looks: those after the first, which are the
/// warm-up, and the last.
const WINDOW: usize = 10;

/// What may be in use at the end more than at the start, in bytes: of the heap, resident, of the
/// GPU. A leak of some bytes a message is more by far; so is one of a region in a hundred.
const BOUNDS: [u64; 3] = [64 << 10, 2 << 20, 4 << 20];

/// Options of `mpbench soak`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Messages.
    #[arg(long, default_value = "1000000", value_parser = clap::value_parser!(u64).range(10_000..))]
    pub messages: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
    /// Leak so many bytes of the heap with every message, to see that it is noticed.
    #[arg(long, value_name = "BYTES", default_value = "0", hide = true)]
    pub leak: usize,
}

/// What is in use at a moment, in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Look {
    /// Messages so far.
    pub messages: u64,
    /// The program's heap.
    pub heap: u64,
    /// Resident memory of the process, drivers included.
    pub resident: u64,
    /// The GPU's memory, others' included; 0 where it is not told.
    pub gpu: u64,
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub names: Names,
    /// Messages.
    pub messages: u64,
    /// From the first to the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// What was in use.
    pub looks: Vec<Look>,
    /// By how much the last looks are above those after the warm-up, in bytes: heap, resident,
    /// GPU.
    pub growth: [i64; 3],
}

struct Soak {
    endpoint: Endpoint,
    a: Qp,
    b: Qp,
    from: Mr,
    to: Mr,
    bell: Bell,
    sends: Vec<(SendRequest, ReceiveRequest)>,
    payload: Vec<u8>,
    arrived: Vec<u8>,
    deadline: Instant,
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let mut soak = Soak::new(options)?;
    let names = soak.names();
    println!("mpbench soak: sends of 64 B, each waited for on both sides by one stream");
    println!(
        "{}; {}; lowering {}; {} memory",
        names.gpu, names.provider, names.lowering, names.memory
    );
    let start = Instant::now();
    let looks = soak.play(options)?;
    let elapsed = start.elapsed();
    let growth = growth(&looks);
    let figures = Figures {
        names,
        messages: options.messages,
        elapsed_ns: elapsed.as_nanos() as u64,
        looks,
        growth,
    };
    show(&figures);
    if let Some(path) = &options.run.json {
        let report = Report::new("soak", options, &figures, targets(&figures))?;
        report::write_json(path, &report)?;
    }
    for (name, (grown, bound)) in GAUGES.iter().zip(growth.into_iter().zip(BOUNDS)) {
        ensure!(
            grown <= bound as i64,
            "{name} grew by {grown} bytes in {} messages; {bound} are let pass",
            options.messages
        );
    }
    Ok(())
}

const GAUGES: [&str; 3] = ["the heap", "resident memory", "GPU memory"];

fn values(look: &Look) -> [u64; 3] {
    [look.heap, look.resident, look.gpu]
}

/// The highest of the last looks above the highest of those after the warm-up.
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

fn show(figures: &Figures) {
    let heads = ["in use", "first", "warm", "last", "growth", "let pass"];
    let table = Table::new(&heads, 15);
    println!("{}", table.line(&heads));
    let at = |i: usize, gauge: usize| {
        let look = figures.looks.get(i).or(figures.looks.last());
        look.map_or(0, |look| values(look)[gauge])
    };
    for (gauge, name) in GAUGES.iter().enumerate() {
        println!(
            "{}",
            table.line(&[
                (*name).to_owned(),
                table::bytes(at(0, gauge)),
                table::bytes(at(WINDOW, gauge)),
                table::bytes(at(usize::MAX, gauge)),
                format!("{} B", figures.growth[gauge]),
                table::bytes(BOUNDS[gauge]),
            ])
        );
    }
    println!(
        "{} messages in {:.2} s: {:.2} us each",
        figures.messages,
        figures.elapsed_ns as f64 / 1e9,
        figures.elapsed_ns as f64 / 1e3 / figures.messages as f64
    );
}

fn targets(figures: &Figures) -> Vec<Target> {
    let grown = figures.growth.iter().zip(BOUNDS);
    let target = |(name, (&grown, bound)): (&&str, (&i64, u64))| {
        let name = format!("soak: growth of {name}");
        Target::at_most(&name, grown.max(0) as f64, bound as f64, "B")
    };
    GAUGES.iter().zip(grown).map(target).collect()
}

impl Soak {
    fn new(options: &Options) -> Result<Soak> {
        let endpoint = Endpoint::open(&options.setup, 0)?;
        let (a, b) = endpoint.pair(&options.setup.queues(QUEUE))?;
        let kind = options.setup.memory(&endpoint.gpu);
        let bytes = CHUNK * MESSAGE;
        Ok(Soak {
            a,
            b,
            from: endpoint.memory(kind, bytes)?,
            to: endpoint.memory(kind, bytes)?,
            bell: Bell::new(&endpoint.gpu)?,
            sends: Vec::with_capacity(CHUNK as usize),
            payload: vec![0; bytes as usize],
            arrived: vec![0; bytes as usize],
            deadline: Instant::now() + options.run.timeout,
            endpoint,
        })
    }

    fn names(&self) -> Names {
        self.endpoint.names(&self.a, self.from.region().kind())
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
        self.from.region().write(0, &self.payload)?;
        self.sends.clear();
        for i in 0..CHUNK {
            let receive = self
                .b
                .prepare_receive(&[self.to.sge(i * MESSAGE, MESSAGE as u32)])?;
            self.b.post_receive(receive)?;
            let sges = [self.from.sge(i * MESSAGE, MESSAGE as u32)];
            let send = self.a.prepare(&Work::send(&sges).signaled())?;
            self.sends.push((send, receive));
        }
        let stream = &self.endpoint.stream;
        for (send, receive) in &self.sends {
            let list = [
                Descriptor::Send(*send),
                Descriptor::wait(*send),
                Descriptor::wait(*receive),
            ];
            post_on(stream, &mut [&mut self.a, &mut self.b], &list)?;
        }
        self.bell.enqueue(stream)?;
        self.pass(number)?;
        self.bell.hear(self.deadline)?;
        well(self.a.error())?;
        well(self.b.error())?;
        self.to.region().read(0, &mut self.arrived)?;
        ensure!(
            self.arrived == self.payload,
            "what arrived is not what was sent"
        );
        Ok(())
    }

    /// Allocates, registers and gives back memory, while the stream waits.
    fn pass(&self, number: u64) -> Result<()> {
        let kind = match number % 2 {
            0 => MemoryKind::Device,
            _ => MemoryKind::Pinned,
        };
        let region = self.endpoint.gpu.alloc(kind, PASSING)?;
        self.endpoint.pd.register(&region, Access::ALL)?;
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
        let Some((cuda, _)) = driver(&self.endpoint.stream)? else {
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
    fn growth_is_what_comes_after_the_warm_up() {
        assert_eq!(growth(&looks(|_| 7)), [0; 3]);
        assert_eq!(growth(&looks(|i| i.min(9))), [0; 3]);
        assert_eq!(growth(&looks(|i| 10 * i)), [10 * (100 - 19), 0, 0]);
        assert_eq!(growth(&looks(|i| 100 - i))[0], 9 - 90);
        assert_eq!(growth(&looks(|i| i)[..3])[0], 1);
        assert_eq!(growth(&looks(|i| i)[..1]), [0; 3]);
    }
}
