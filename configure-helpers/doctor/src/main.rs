//! `gdsync-doctor`: prints what [`gdsync_doctor::examine`] finds, as text or as JSON.
//!
//! Something missing is a finding, not a failure. The exit code is 1 if the environment asks for
//! something that is absent, or if the doctor itself fails.

use anyhow::Context;
use clap::Parser;
use gdsync_doctor::{Libraries, Machine, examine};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Says what this machine offers, what would be used for what, and how to get what is missing.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,

    /// Where /proc, /sys and /dev are looked for.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    gds_log::init(None)?;
    let machine = Machine::new(args.root, Libraries::installed(), std::env::vars_os());
    let report = examine(&machine);
    let mut said = if args.json {
        serde_json::to_string_pretty(&report).context("the report as JSON")?
    } else {
        report.to_string()
    };
    said.push('\n');
    let mut out = std::io::stdout().lock();
    match out.write_all(said.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has read enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        other => other.context("standard output")?,
    }
    Ok(match report.errors.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
