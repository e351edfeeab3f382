//! All benchmarks one after the other, each in a separate process, and a comparison with their
//! targets. People judge the figures: a slow machine causes no failure.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::gpu::{self, CUDA};
use crate::report::{self, Report};
use crate::table::Table;

/// Time that a benchmark may run beyond its own limit.
const GRACE: Duration = Duration::from_secs(10);

/// Options of `mpbench suite`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Target of the figures: a file that ends in .json for all of them, or a folder for one file
    /// each and the latency curve.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// The GPU: soft, cuda, cuda:N, hip, hip:N, or auto, which is the first CUDA GPU if there is one, else
    /// soft. In a list separated by commas, each rank takes the next GPU.
    #[arg(long = "gpu", value_name = "GPU,..", env = "GDS_GPU", value_delimiter = ',',
          value_parser = gpu::name, default_value = "auto")]
    pub gpus: Vec<String>,
    /// Time limit of each benchmark in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = crate::options::seconds)]
    pub timeout: Duration,
    /// Runs few iterations: a test that everything works, not a measurement.
    #[arg(long)]
    pub quick: bool,
}

/// A benchmark of the suite: the name of its figures, its command, and more arguments for a short
/// run.
type Benchmark = (&'static str, &'static str, &'static str);

/// Its figures contain the runtime that the other benchmarks will use.
const FIRST: Benchmark = ("post", "post --layer both", "--bursts 4");
/// The benchmarks on every GPU.
const ALL: [Benchmark; 11] = [
    ("gds_sanity", "gds_sanity", "-n 2 -s 20"),
    ("write_rate", "write_rate", "--messages 20000"),
    ("write_bw", "write_bw --layer both", "--messages 16"),
    (
        "write_bw-stream",
        "write_bw --layer both --poster stream",
        "--messages 16",
    ),
    ("neighbours", "neighbours", "-i 40"),
    ("start", "start", "--starts 1 --ranks 3"),
    ("footprint", "footprint", "--ranks 3"),
    ("loopback", "loopback", "--chains 2 --singles 5"),
    ("gds_poll_lat", "gds_poll_lat", "-n 5"),
    ("gds_kernel_latency", "gds_kernel_latency", "-n 50 -S 1Ki"),
    ("soak", "soak", "--messages 10000"),
];
/// The further benchmarks: on a soft GPU; and on CUDA, where the two lowerings differ in more than
/// CPU overhead, on one GPU and on two. Two processes share one GPU in time slices of milliseconds,
/// also with spinning kernels.
const PINGPONG: [&[Benchmark]; 3] = [
    &[("pingpong", "pingpong --layer both", PLAYED)],
    &[
        BY_MEMOPS,
        (
            "pingpong-kernel",
            "pingpong --lowering kernel --threads",
            PLAYED,
        ),
    ],
    &[
        BY_MEMOPS,
        ("pingpong-kernel", "pingpong --lowering kernel", PLAYED),
    ],
];
const BY_MEMOPS: Benchmark = (
    "pingpong-memops",
    "pingpong --layer both --lowering memops",
    PLAYED,
);
const PLAYED: &str = "--iterations 20";

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let folder = Folder::new()?;
    let first = measure(FIRST, options, &folder.0)?;
    let runtime = first.figures.pointer("/names/runtime");
    let on_cuda = runtime.is_some_and(|runtime| runtime == CUDA);
    let mut reports = BTreeMap::from([(FIRST.0, first)]);
    let played = match (on_cuda, options.gpus.len()) {
        (false, _) => PINGPONG[0],
        (true, 1) => PINGPONG[1],
        (true, _) => PINGPONG[2],
    };
    for benchmark in ALL.iter().chain(played) {
        let report = measure(*benchmark, options, &folder.0)?;
        reports.insert(benchmark.0, report);
    }
    if let Some(path) = &options.json {
        keep(path, &folder.0, &reports)?;
    }
    compare(&reports);
    Ok(())
}

/// Runs one benchmark and reads its report.
fn measure(benchmark: Benchmark, options: &Options, folder: &Path) -> Result<Report> {
    let (name, command, quick) = benchmark;
    let quick = if options.quick { quick } else { "" };
    let words = command.split(' ').chain(quick.split_whitespace());
    let mut arguments: Vec<OsString> = words.map(Into::into).collect();
    let gpus = match command {
        // This benchmark has one rank and does not accept several GPUs.
        "gds_poll_lat" | "gds_sanity" => options.gpus[0].clone(),
        _ => options.gpus.join(","),
    };
    let limit = options.timeout.as_secs_f64().to_string();
    arguments.extend(["--gpu", &gpus, "--timeout", &limit].map(Into::into));
    let json = folder.join(format!("{name}.json"));
    arguments.extend(["--json".into(), json.clone().into()]);
    if command.starts_with("pingpong") {
        let svg = folder.join(format!("{name}.svg"));
        arguments.extend(["--svg".into(), svg.into()]);
    }
    start(&arguments, options.timeout + GRACE).with_context(|| format!("benchmark {name}"))?;
    println!();
    let text = fs::read_to_string(&json).with_context(|| format!("reading {}", json.display()))?;
    serde_json::from_str(&text).context("reading a report")
}

/// Runs this program with `arguments`, with a time limit.
fn start(arguments: &[OsString], limit: Duration) -> Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["--parent", &std::process::id().to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .context("starting a process")?;
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("ended with {status}"),
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill()?;
                child.wait()?;
                bail!("did not keep its time limit");
            }
        }
    }
}

fn keep(path: &Path, from: &Path, reports: &BTreeMap<&str, Report>) -> Result<()> {
    if path.extension().is_some_and(|e| e == "json") {
        return report::write_json(path, reports);
    }
    for (name, report) in reports {
        report::write_json(&path.join(format!("{name}.json")), report)?;
        let svg = format!("{name}.svg");
        if from.join(&svg).exists() {
            let text = fs::read_to_string(from.join(&svg)).context("reading the curve")?;
            report::write_text(&path.join(&svg), &text)?;
        }
    }
    Ok(())
}

fn compare(reports: &BTreeMap<&str, Report>) {
    let targets = || reports.values().flat_map(|r| &r.targets);
    let widest = targets().map(|t| t.name.chars().count()).max().unwrap_or(0);
    let first = format!("{:<widest$}", "");
    let table = Table::start(&[&first, "measured", "target", "ratio", ""], 10);
    for t in targets() {
        table.row(&[
            t.name.clone(),
            format!("{:.2} {}", t.measured, t.unit),
            format!("{:.2} {}", t.target, t.unit),
            match t.ratio() {
                ratio if ratio.is_finite() => format!("{ratio:.2}"),
                _ => "-".to_owned(),
            },
            if t.is_met() { "met" } else { "MISSED" }.to_owned(),
        ]);
    }
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("mpbench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
