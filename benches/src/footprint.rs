//! What a connected peer costs in memory. Each rank is a process and looks at its own: with a
//! context that knows nobody, with one that is connected to every rank, after messages with every
//! rank under one tag, posted by the CPU, and after the same posted by a stream.
//!
//! *Heap* is what the program's allocator gave. *Private* is all private and writable memory
//! that the system gave, heap, rings and slots, touched or not; *resident* what of the process is
//! in memory. Both count in pages, so they say something of many peers only.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{Connect, Context, Slice};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alloc;
use crate::cli::{Run, Setup};
use crate::context;
use crate::endpoint::{Endpoint, Names};
use crate::memory;
use crate::rank::{Job, Rank};
use crate::report::{self, Report, Target};
use crate::start::gather;
use crate::table::{Table, bytes};
use crate::world;

/// Blocks of each send queue: what a context has if it is not told.
const QUEUE: u32 = 64;
/// The tag of the messages, and of those that hold the ranks together.
const TAG: u32 = 1;
const TOGETHER: u32 = 2;
/// What a connected peer may take, but for the slots of messages under way: in bytes.
const MOST: u64 = 64 << 10;

/// Options of `mpbench footprint`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Ranks, each connected to all.
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// What is in use, or by how much that has grown, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The program's heap.
    pub heap: i64,
    /// Private and writable memory.
    pub private: i64,
    /// Resident memory.
    pub resident: i64,
}

impl Use {
    fn now() -> Result<Use> {
        let process = memory::of_process()?;
        Ok(Use {
            heap: alloc::bytes() as i64,
            private: process.private as i64,
            resident: process.resident as i64,
        })
    }

    fn each(self, other: Use, f: impl Fn(i64, i64) -> i64) -> Use {
        Use {
            heap: f(self.heap, other.heap),
            private: f(self.private, other.private),
            resident: f(self.resident, other.resident),
        }
    }

    fn minus(self, other: Use) -> Use {
        self.each(other, |a, b| a - b)
    }

    fn over(self, n: i64) -> Use {
        self.each(self, |a, _| a / n.max(1))
    }

    fn most(self) -> u64 {
        self.heap.max(self.private).max(self.resident).max(0) as u64
    }
}

/// What each step cost a rank, for each peer but the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Steps {
    names: Names,
    context: Use,
    connected: Use,
    tag: Use,
    stream: Use,
}

/// The figures, of the rank that is in the middle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub names: Names,
    /// Ranks.
    pub ranks: u32,
    /// A context that knows nobody.
    pub context: Use,
    /// Each peer: being connected.
    pub connected: Use,
    /// Each peer: a tag in both directions, with its slots.
    pub tag: Use,
    /// Each peer: a stream that posts.
    pub stream: Use,
    /// Bytes of the slots of such a tag, as they are set up.
    pub slots: u64,
}

/// One rank's part.
pub fn play(rank: &Rank, options: &Options) -> Result<Value> {
    let setup = &options.setup;
    let endpoint = Endpoint::open(setup, rank.number)?;
    let made = endpoint.made_of(setup, setup.memory(&endpoint.gpu))?;
    let builder = |name: &str, connect| -> Result<Context> {
        let bootstrap = rank.bootstrap()?;
        let builder = context::builder(&endpoint, setup, bootstrap, QUEUE, rank.left());
        let built = builder.name(name).connect(connect).build();
        built.context("building a context")
    };
    // What is made once for all contexts of a process is not counted.
    let together = builder("together", Connect::Lazy)?;
    gather(&together, TOGETHER, rank.left())?;
    let start = Use::now()?;
    let alone = builder("alone", Connect::Lazy)?;
    let lonely = Use::now()?;
    let context = builder("connected", Connect::UpFront)?;
    gather(&together, TOGETHER, rank.left())?;
    let connected = Use::now()?;
    talk(&context, None, rank.left())?;
    gather(&together, TOGETHER, rank.left())?;
    let tagged = Use::now()?;
    talk(&context, Some(&endpoint.stream), rank.left())?;
    gather(&together, TOGETHER, rank.left())?;
    let streamed = Use::now()?;
    context.close(rank.left())?;
    alone.close(rank.left())?;
    gather(&together, TOGETHER, rank.left())?;
    together.close(rank.left())?;
    let context = lonely.minus(start);
    // Being one's own peer takes both ends, of lanes; of a tag it takes the two directions.
    let peers = i64::from(options.ranks);
    Ok(serde_json::to_value(Steps {
        names: made.names,
        context,
        connected: connected.minus(lonely).minus(context).over(peers + 1),
        tag: tagged.minus(connected).over(peers),
        stream: streamed.minus(tagged).over(peers + 1),
    })?)
}

/// An empty message to and from every rank.
fn talk(context: &Context, stream: Option<&Stream>, limit: Duration) -> Result<()> {
    let memory = context.alloc(MemoryKind::Pinned, 8)?;
    let nothing: Slice = memory.slice(0, 0)?;
    let (me, size) = (context.rank(), context.size());
    // Each pair is met by both at the same time.
    for step in 0..size {
        let (to, from) = ((me + step) % size, (me + size - step) % size);
        let (send, receive) = match stream {
            None => {
                let receive = context.irecv(from, TAG, &nothing)?;
                (context.isend(to, TAG, &nothing)?, receive)
            }
            Some(stream) => {
                let receive = context.irecv_on(stream, from, TAG, &nothing)?;
                let send = context.isend_on(stream, to, TAG, &nothing)?;
                receive.wait_on(stream)?;
                context.synchronize(stream, limit)?;
                (send, receive)
            }
        };
        send.wait(limit)?;
        receive.wait(limit)?;
    }
    Ok(())
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let job = Job::Footprint(options.clone());
    let ranks = world::run_many(options.ranks as usize, &job, options.run.timeout)?;
    let mut ranks: Vec<Steps> = ranks
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()
        .context("reading a rank's result")?;
    ranks.sort_by_key(|steps| steps.connected.most());
    let middle = ranks.swap_remove(ranks.len() / 2);
    let figures = Figures {
        names: middle.names,
        ranks: options.ranks,
        context: middle.context,
        connected: middle.connected,
        tag: middle.tag,
        stream: middle.stream,
        slots: 16 * 4096,
    };
    show(&figures);
    if let Some(path) = &options.run.json {
        let report = Report::new("footprint", options, &figures, targets(&figures))?;
        report::write_json(path, &report)?;
    }
    Ok(())
}

fn show(figures: &Figures) {
    println!(
        "mpbench footprint: {} ranks, a process each, each connected to all; one in the middle",
        figures.ranks
    );
    println!("{}; {}", figures.names.gpu, figures.names.provider);
    let slots = bytes(figures.slots);
    let tag = format!("a peer: a tag both ways, {slots} slots");
    let heads = [&tag, "heap", "private", "resident"];
    let table = Table::new(&heads, 12);
    println!("{}", table.line(&["", "heap", "private", "resident"]));
    let rows = [
        ("a context that knows nobody", figures.context),
        ("a peer: connected", figures.connected),
        ("a peer: a stream that posts", figures.stream),
        (tag.as_str(), figures.tag),
    ];
    for (name, used) in rows {
        let kib = |n: i64| format!("{:.1} KiB", n as f64 / 1024.0);
        println!(
            "{}",
            table.line(&[
                name.to_owned(),
                kib(used.heap),
                kib(used.private),
                kib(used.resident),
            ])
        );
    }
}

fn targets(figures: &Figures) -> Vec<Target> {
    let kib = |n: u64| n as f64 / 1024.0;
    let target = |name: &str, used: u64| {
        let name = format!("footprint: {name}");
        Target::at_most(&name, kib(used), kib(MOST), "KiB")
    };
    let posts = figures.connected.each(figures.stream, |a, b| a + b);
    let tag = figures.tag.most().saturating_sub(figures.slots);
    vec![
        target("a connected peer", figures.connected.most()),
        target("a peer that a stream posts to", posts.most()),
        target("and with a tag, but for its slots", posts.most() + tag),
    ]
}
