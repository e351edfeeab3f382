//! Starts an example as one rank of a job, or as all ranks.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use mp::bootstrap::{Bootstrap, Local};
use mp::gdsync::Gpu;
use mp::{Builder, Context};

/// Longest time that a context waits for its last messages.
const CLOSE: Duration = Duration::from_secs(30);

/// The options that all examples have.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// GPU: soft, cuda, cuda:N, hip, hip:N or auto; in a list separated by commas, each rank takes the next one
    #[arg(long, value_delimiter = ',', default_value = "auto", env = "GDS_GPU")]
    gpu: Vec<String>,
    /// Run all N ranks as threads of this process; without it, a launcher such as mprun starts the
    /// ranks
    #[arg(long, value_name = "N")]
    ranks_as_threads: Option<u32>,
}

/// Runs `body` as a rank with a context of its own, closes the context, and prints errors on
/// standard error. `set` configures the context.
pub fn play(
    options: &Options,
    set: impl Fn(Builder) -> Builder + Sync,
    body: impl Fn(&Context) -> Result<()> + Sync,
) -> ExitCode {
    if let Err(e) = gds_log::init(mp::gdsync::launcher::rank()) {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let rank = |bootstrap: Arc<dyn Bootstrap>| {
        let number = bootstrap.rank();
        let result = join(options, &set, bootstrap, &body);
        result.with_context(|| format!("rank {number}"))
    };
    let results = match options.ranks_as_threads {
        None => vec![mp::bootstrap::from_env().map_err(Into::into).and_then(rank)],
        Some(ranks) => std::thread::scope(|scope| {
            let start = |bootstrap| scope.spawn(|| rank(bootstrap));
            let threads: Vec<_> = Local::ranks(ranks.max(1)).into_iter().map(start).collect();
            let panicked = |_| Err(anyhow!("a rank panicked"));
            let end = threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(panicked));
            end.collect()
        }),
    };
    for e in results.iter().filter_map(|r| r.as_ref().err()) {
        eprintln!("{e:#}");
    }
    match results.iter().all(Result::is_ok) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn join(
    options: &Options,
    set: &impl Fn(Builder) -> Builder,
    bootstrap: Arc<dyn Bootstrap>,
    body: &impl Fn(&Context) -> Result<()>,
) -> Result<()> {
    let names = &options.gpu;
    let name = names.get(bootstrap.rank() as usize % names.len().max(1));
    let name = name.map_or("auto", String::as_str);
    let gpu = Gpu::open(name).with_context(|| format!("cannot open the GPU {name}"))?;
    let ctx = set(Context::builder())
        .bootstrap(bootstrap)
        .gpu(&gpu)
        .build()?;
    body(&ctx)?;
    ctx.close(CLOSE)?;
    Ok(())
}

/// Fails unless the job has `ranks` ranks.
///
/// # Errors
/// The job has another number of ranks; the error says how to start the right number.
pub fn expect(ctx: &Context, ranks: u32) -> Result<()> {
    ensure!(
        ctx.size() == ranks,
        "the job has {} ranks, and the program needs {ranks}; start it by mprun -n {ranks}, or \
         with --ranks-as-threads {ranks}",
        ctx.size()
    );
    Ok(())
}
