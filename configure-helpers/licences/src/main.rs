//! `licences` checks the workspace in the current folder; `licences DENY_TOML METADATA` checks the
//! two given files.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use licences::{Graph, Policy};

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (policy, graph) = match args.as_slice() {
        [] => {
            let manifest = cargo(&["locate-project", "--workspace", "--message-format=plain"])?;
            let root = Path::new(manifest.trim());
            let graph = cargo(&["metadata", "--format-version=1", "--all-features"])?;
            (read(&root.with_file_name("deny.toml"))?, graph)
        }
        [policy, graph] => (read(Path::new(policy))?, read(Path::new(graph))?),
        _ => bail!("usage: licences [DENY_TOML METADATA]"),
    };
    let policy = Policy::parse(&policy)?;
    let graph = Graph::parse(&graph)?;
    ensure!(!graph.is_empty(), "no package was resolved");

    let offences = policy.judge(&graph);
    for offence in &offences {
        eprintln!("{offence}");
    }
    if !offences.is_empty() {
        eprintln!("licences: {} offences", offences.len());
        return Ok(ExitCode::FAILURE);
    }
    println!("licences: {} packages, all allowed", graph.len());
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn cargo(args: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    ensure!(
        output.status.success(),
        "cargo {}: {}",
        args[0],
        output.status
    );
    String::from_utf8(output.stdout).context("cargo's answer is not UTF-8")
}
