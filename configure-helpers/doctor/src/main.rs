//! `gdsync-doctor`: prints what [`gdsync_doctor::examine`] finds, as text or as JSON.
//!
//! A missing device or library is a finding, not a failure. The exit code is 1 if the environment
//! requires something that is absent, or if the doctor itself fails.

use anyhow::Context;
use clap::Parser;
use gdsync_doctor::{Libraries, Machine, examine};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Two command lines, and the exit code.
const EXAMPLES: &str = "\
Examples:
  gdsync-doctor
          the report as text
  GDS_PROVIDER=mlx5 gdsync-doctor --json
          as one JSON object; exit code 1 if this machine does not have that provider

Exit code: 0, or 1 if a variable requires something that is absent, or if the doctor fails.";

/// Prints what this machine offers, what the library would use, and how to install what is missing.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Args {
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,

    /// Folder that contains /proc, /sys and /dev.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    gds_log::init(None)?;
    let machine = Machine::new(args.root, Libraries::installed(), std::env::vars_os());
    let report = examine(&machine);
    let mut text = if args.json {
        serde_json::to_string_pretty(&report).context("the report as JSON")?
    } else {
        report.to_string()
    };
    text.push('\n');
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe, which is no failure.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        other => other.context("standard output")?,
    }
    Ok(match report.errors.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
