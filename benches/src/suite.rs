//! All benchmarks one after the other, each in a process of its own, and how they compare with
//! their targets. Figures are judged by people: a slow machine fails nothing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::report::{self, Report};
use crate::table::Table;

/// How long after its own limit a benchmark may still be there.
const GRACE: Duration = Duration::from_secs(10);

/// Options of `mpbench suite`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Where the figures go: a file that ends in .json for all of them, or a folder for a file
    /// of each and the latency curve.
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Seconds after which a benchmark is given up.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = crate::cli::seconds)]
    pub timeout: Duration,
    /// Few iterations: to see that all works, not to measure.
    #[arg(long)]
    pub quick: bool,
}

/// A benchmark, and its arguments if there is no time.
const BENCHMARKS: [(&str, &[&str]); 4] = [
    ("post", &["--bursts", "4"]),
    ("rate", &["--messages", "20000"]),
    ("bandwidth", &["--messages", "16"]),
    ("pingpong", &["--iterations", "20"]),
];

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let folder = Folder::new()?;
    let mut reports = BTreeMap::new();
    for (name, quick) in BENCHMARKS {
        let mut arguments: Vec<OsString> = vec![name.into()];
        if options.quick {
            arguments.extend(quick.iter().map(Into::into));
        }
        arguments.extend([
            "--timeout".into(),
            options.timeout.as_secs_f64().to_string().into(),
        ]);
        let json = folder.0.join(format!("{name}.json"));
        arguments.extend(["--json".into(), json.clone().into()]);
        if name == "pingpong" {
            arguments.extend(["--svg".into(), folder.0.join("pingpong.svg").into()]);
        }
        benchmark(&arguments, options.timeout + GRACE)
            .with_context(|| format!("benchmark {name}"))?;
        println!();
        let text =
            fs::read_to_string(&json).with_context(|| format!("reading {}", json.display()))?;
        let report: Report = serde_json::from_str(&text).context("reading a report")?;
        reports.insert(name, report);
    }
    if let Some(path) = &options.json {
        keep(path, &folder.0, &reports)?;
    }
    compare(&reports);
    Ok(())
}

/// Runs this program with `arguments`, at most so long.
fn benchmark(arguments: &[OsString], limit: Duration) -> Result<()> {
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
    }
    let svg = fs::read_to_string(from.join("pingpong.svg")).context("reading the curve")?;
    report::write_text(&path.join("pingpong.svg"), &svg)
}

fn compare(reports: &BTreeMap<&str, Report>) {
    let heads = ["", "measured", "target", "ratio"];
    let targets: Vec<_> = reports.values().flat_map(|r| &r.targets).collect();
    let widest = targets
        .iter()
        .map(|t| t.name.chars().count())
        .max()
        .unwrap_or(0);
    let padded = format!("{:<widest$}", "target met where the ratio is at least 1");
    let table = Table::new(&[&padded, heads[1], heads[2], heads[3]], 10);
    println!("{}", table.line(&[&padded, heads[1], heads[2], heads[3]]));
    for t in targets {
        println!(
            "{}",
            table.line(&[
                t.name.clone(),
                format!("{:.2} {}", t.measured, t.unit),
                format!("{:.2} {}", t.target, t.unit),
                format!("{:.2}", t.ratio()),
            ])
        );
    }
}

/// A folder that goes when this does.
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
        // What cannot be removed from the system's folder for such things stays there.
        let _ = fs::remove_dir_all(&self.0);
    }
}
