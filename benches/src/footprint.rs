//! Measures the memory of a connected peer. Each rank is a process and measures its own memory:
//! with a context without connections, with a context that is connected to every rank, after
//! messages with every rank under one tag, posted by the CPU, and after the same posted by a
//! stream.
//!
//! *Heap* is the memory from the program's allocator. *Private* is all private and writable memory
//! from the system (heap, rings and slots), whether it was touched or not. *Resident* is the
//! resident memory of the process. Both count in pages, so they are meaningful for many peers only.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{Connect, Context, Slice};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::alloc;
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::context;
use crate::endpoint::{Endpoint, Names};
use crate::memory;
use crate::options::Setup;
use crate::rank::{Job, Rank};
use crate::report::Target;
use crate::start::barrier;
use crate::table::{Table, bytes};
use crate::world;

/// Blocks of each send queue: the default of a context.
const QUEUE: u32 = 64;
/// The tag of the measured messages, and the tag of the messages that synchronize the ranks.
const TAG: u32 = 1;
const BARRIER: u32 = 2;
/// Most memory of a connected peer in bytes, without the slots of messages in flight.
const MOST: u64 = 64 << 10;

/// Options of `mpbench footprint`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of ranks; each is connected to all others.
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: u32,
    #[command(flatten)]
    pub setup: Setup,
}

/// Memory in use, or its growth, in bytes.
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

/// Memory of each step in a rank, for each peer but the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Steps {
    names: Names,
    context: Use,
    connected: Use,
    tag: Use,
    stream: Use,
}

impl Job for Options {
    const NAME: &'static str = "footprint";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let setup = &self.setup;
        let endpoint = Endpoint::open(setup, rank.number)?;
        let builder = |name: &str, connect| -> Result<Context> {
            let bootstrap = rank.bootstrap()?;
            let builder = context::builder(&endpoint, setup, bootstrap, QUEUE, rank.left())?;
            let built = builder.name(name).connect(connect).build();
            built.context("building a context")
        };
        // Memory that all contexts of a process share is not counted.
        let together = builder("together", Connect::Lazy)?;
        barrier(&together, BARRIER, rank.left())?;
        let start = Use::now()?;
        let alone = builder("alone", Connect::Lazy)?;
        let lonely = Use::now()?;
        let context = builder("connected", Connect::UpFront)?;
        barrier(&together, BARRIER, rank.left())?;
        let connected = Use::now()?;
        exchange(&context, None, rank.left())?;
        barrier(&together, BARRIER, rank.left())?;
        let tagged = Use::now()?;
        exchange(&context, Some(&endpoint.stream), rank.left())?;
        barrier(&together, BARRIER, rank.left())?;
        let streamed = Use::now()?;
        let made = endpoint.made_of(&context, setup, setup.memory(&endpoint.gpu))?;
        context.close(rank.left())?;
        alone.close(rank.left())?;
        barrier(&together, BARRIER, rank.left())?;
        together.close(rank.left())?;
        let context = lonely.minus(start);
        // A rank is its own peer too, with both ends of a lane, and with both directions of a tag.
        let peers = i64::from(self.ranks);
        Ok(serde_json::to_value(Steps {
            names: made.names,
            context,
            connected: connected.minus(lonely).minus(context).over(peers + 1),
            tag: tagged.minus(connected).over(peers),
            stream: streamed.minus(tagged).over(peers + 1),
        })?)
    }
}

/// An empty message to and from every rank.
fn exchange(context: &Context, stream: Option<&Stream>, limit: Duration) -> Result<()> {
    let memory = context.alloc(MemoryKind::Pinned, 8)?;
    let nothing: Slice = memory.slice(0, 0)?;
    let (me, size) = (context.rank(), context.size());
    // Both ranks of a pair exchange messages in the same step.
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

impl Benchmark for Options {
    const NAME: &'static str = "footprint";
    const ABOUT: &'static str = "Memory for each connected peer";
    const EXAMPLES: Examples = [
        (
            "--ranks 64",
            "memory for each peer, of 64 connected processes",
        ),
        (
            "--provider verbs --json footprint.json",
            "16 processes with libibverbs, figures also as JSON",
        ),
    ];

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut ranks: Vec<Steps> = world::run_many(self.ranks as usize, self, limit)?;
        ranks.sort_by_key(|steps| steps.connected.most());
        let Steps {
            names,
            context,
            connected,
            tag,
            stream,
        } = ranks.swap_remove(ranks.len() / 2);
        println!(
            "mpbench footprint: {} ranks, one process each, each connected to all; the median rank",
            self.ranks
        );
        println!("{names}");
        // The slots of a tag, both directions together.
        let slots: u64 = 16 * 4096;
        let tagged = format!("a peer: a tag both ways, {} slots", bytes(slots));
        let table = Table::new(&[&tagged, "heap", "private", "resident"], 12);
        table.row(&["", "heap", "private", "resident"]);
        let rows = [
            ("a context without peers", context),
            ("a peer: connected", connected),
            ("a peer: a stream that posts", stream),
            (tagged.as_str(), tag),
        ];
        for (name, used) in rows {
            let kib = |n: i64| format!("{:.1} KiB", n as f64 / 1024.0);
            let used = [kib(used.heap), kib(used.private), kib(used.resident)];
            table.row(&[&[name.to_owned()], &used[..]].concat());
        }
        let target = |name: &str, used: u64| {
            let kib = |n: u64| n as f64 / 1024.0;
            Target::at_most(&format!("footprint: {name}"), kib(used), kib(MOST), "KiB")
        };
        let posts = connected.each(stream, |a, b| a + b).most();
        let targets = vec![
            target("a connected peer", connected.most()),
            target("a peer that a stream posts to", posts),
            target(
                "and with a tag, but for its slots",
                posts + tag.most().saturating_sub(slots),
            ),
        ];
        let figures = json!({
            "names": names,
            "ranks": self.ranks,
            "context": context,
            "connected": connected,
            "tag": tag,
            "stream": stream,
            "slots": slots,
        });
        Outcome::of(&figures, targets)
    }
}
