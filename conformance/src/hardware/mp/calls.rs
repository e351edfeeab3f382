//! Calls beside messages, of ranks that are threads of this process, or processes.

use std::sync::Arc;

use gdsync::gpu::MemoryKind;
use mp::Context;
use mp::bootstrap::{Bootstrap, Local};

use super::launch::{DONE, Ranks, join, kind_named};
use super::processes::ended;
use super::run::{gpu_of, merged};
use super::{collectives, neighbours, windows};
use crate::rig::Runtime;
use crate::rig::provider;
use crate::rig::verdict::Verdict;

/// The role of a process that is a rank.
pub const ROLE: &str = "mp-calls";

const RANKS: u32 = 3;

/// What the ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    WindowsByCpu,
    WindowsByStream,
    Collectives,
    Neighbours,
}

impl Calls {
    /// All.
    pub const ALL: [Calls; 4] = [
        Calls::WindowsByCpu,
        Calls::WindowsByStream,
        Calls::Collectives,
        Calls::Neighbours,
    ];

    /// The title of a trial with memory of this kind.
    pub fn title(self, kind: MemoryKind) -> String {
        match self {
            Calls::WindowsByCpu => format!("windows: {kind:?}, by the CPU"),
            Calls::WindowsByStream => format!("windows: {kind:?}, by a stream"),
            Calls::Collectives => format!("collectives: {kind:?}"),
            Calls::Neighbours => format!("neighbours: {kind:?}"),
        }
    }

    /// Runs the ranks as threads.
    ///
    /// # Errors
    /// The failures of all ranks.
    pub fn threads(self, runtime: Runtime, gpus: u32, kind: MemoryKind) -> Verdict {
        let one = |bootstrap: Arc<dyn Bootstrap>| -> Verdict {
            let gpu = gpu_of(runtime, bootstrap.rank(), gpus)?;
            let ctx = Context::builder().bootstrap(bootstrap).gpu(&gpu).build()?;
            self.play(&ctx, kind)
        };
        let verdicts: Vec<Verdict> = std::thread::scope(|scope| {
            let jobs = Local::ranks(RANKS).into_iter();
            let threads: Vec<_> = jobs.map(|job| scope.spawn(|| one(job))).collect();
            let panicked = |_| Err("a rank panicked; its message is above".into());
            let join = threads.into_iter().map(|thread| thread.join());
            join.map(|joined| joined.unwrap_or_else(panicked)).collect()
        });
        merged(verdicts)
    }

    /// Runs the ranks as processes.
    ///
    /// # Errors
    /// The failures of all ranks.
    pub fn processes(self, runtime: Runtime, gpus: u32, kind: MemoryKind) -> Verdict {
        let more = format!("{self:?}:{kind:?}");
        merged(ended(Ranks::start(ROLE, runtime, [RANKS, gpus], &more)?))
    }

    fn play(self, ctx: &Context, kind: MemoryKind) -> Verdict {
        provider::check(ctx.device())?;
        match self {
            Calls::WindowsByCpu => windows::ring(ctx, kind, false),
            Calls::WindowsByStream => windows::ring(ctx, kind, true),
            Calls::Collectives => collectives::rounds(ctx, kind),
            Calls::Neighbours => neighbours::steps(ctx, kind),
        }
    }
}

/// Runs one rank.
pub fn child_main(arguments: &[String]) -> Verdict {
    let more = arguments.last().and_then(|more| more.split_once(':'));
    let (name, kind) = more.ok_or("calls, and a kind of memory")?;
    let mut all = Calls::ALL.into_iter();
    let calls = all.find(|calls| format!("{calls:?}") == name);
    let (gpu, bootstrap) = join(arguments)?;
    let ctx = Context::builder().bootstrap(bootstrap).gpu(&gpu).build()?;
    calls.ok_or("no such calls")?.play(&ctx, kind_named(kind))?;
    println!("{DONE}");
    // Until all ranks are done.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
