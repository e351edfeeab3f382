//! `mpbench`: what the library costs and what it reaches, measured on the machine it runs on.
//!
//! Each command is one question: `pingpong` (one-way latency of messages that streams send while
//! the CPU sleeps), `loopback` (from doorbell to completion on one stream), `post` (what enqueueing
//! costs the host), `providers` (what that costs with one provider and with another), `rate`
//! (small messages a second), `bandwidth` (large messages between processes), `soak` (a million
//! messages, and memory that does not grow), `verify` (messages of changing sizes, every byte
//! looked at), `start` (how long a job takes to start), `footprint` (memory of each peer), the
//! programs of the ancestor under their names, `suite` (all of them, against their targets).
//! All print a table and write their figures as JSON.

mod alloc;
mod ancestors;
mod bandwidth;
mod bare;
mod cli;
mod context;
mod endpoint;
mod footprint;
mod gate;
mod gpu;
mod kernel;
mod link;
mod loopback;
mod machine;
mod meet;
mod memory;
mod pattern;
mod pingpong;
mod plot;
mod post;
mod rank;
mod rate;
mod report;
mod soak;
mod start;
mod stats;
mod suite;
mod table;
mod verify;
mod world;
mod write_lat;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(e) = gds_log::init(gdsync::launcher::rank()) {
        eprintln!("mpbench: {e}");
        return ExitCode::FAILURE;
    }
    if let Some(parent) = cli.parent
        && let Err(e) = world::end_with(parent)
    {
        eprintln!("mpbench: {e:#}");
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        Command::Pingpong(options) => pingpong::run(&options),
        Command::Loopback(options) => loopback::run(&options),
        Command::Post(options) => post::run(&options),
        Command::Providers(options) => post::providers::run(&options),
        Command::Rate(options) => rate::run(&options),
        Command::Bandwidth(options) => bandwidth::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Verify(options) => verify::run(&options),
        Command::Start(options) => start::run(&options),
        Command::Footprint(options) => footprint::run(&options),
        Command::WriteLat(options) => write_lat::run(&options),
        Command::PollLat(options) => ancestors::poll_lat::run(&options),
        Command::KernelLatency(options) => ancestors::kernel_latency::run(&options),
        Command::Sanity(options) => ancestors::sanity::run(&options),
        Command::Suite(options) => suite::run(&options),
        Command::Rank(spec) => return world::rank_main(&spec),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("mpbench: {e:#}");
            ExitCode::FAILURE
        }
    }
}
