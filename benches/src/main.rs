//! `mpbench`: measures latency, bandwidth, message rate and overhead of the library on a machine.
//!
//! Each command is one benchmark; [`COMMANDS`] lists them. A [`benchmark`] prints a table and
//! returns figures for JSON ([`report`]). [`options`] has the options that several benchmarks
//! share. A benchmark of several ranks is a [`rank::Job`], which [`world`] starts as processes or
//! threads ([`JOBS`]). A benchmark in one process uses an [`endpoint`]: a GPU, a NIC, and two QPs
//! between a gate and a bell.

mod alloc;
mod ancestors;
mod bare;
mod benchmark;
mod chart;
mod context;
mod endpoint;
mod footprint;
mod gate;
mod gpu;
mod kernel;
mod link;
mod loopback;
mod machine;
mod memory;
mod messages;
mod neighbours;
mod options;
mod osu;
mod pattern;
mod pingpong;
mod plot;
mod post;
mod producer_consumer;
mod rank;
mod report;
mod soak;
mod start;
mod stats;
mod store;
mod suite;
mod table;
mod timeline;
mod verify;
mod world;
mod write_bw;
mod write_lat;
mod write_rate;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, Args, Command, FromArgMatches, value_parser};

use ancestors::{kernel_latency, poll_lat, sanity};
use benchmark::{Entry, UNITS};
use world::RankSpec;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

const EXAMPLES: &str = "\
Examples:
  mpbench pingpong --sizes 8,64Ki --json pingpong.json
          one-way latency of messages of 8 bytes and 64 KiB, figures also as JSON
  mpbench write_bw --layer both --depth 16
          bandwidth with 16 messages in flight, by gdsync and by mp
  mpbench COMMAND --help
          options and examples of a command";

/// The commands, in the order of the help text.
const COMMANDS: [Entry; 28] = [
    Entry::of::<pingpong::Options>(),
    Entry::of::<osu::Latency>(),
    Entry::of::<osu::Bandwidth>(),
    Entry::of::<osu::Bibw>(),
    Entry::of::<osu::Rate>(),
    Entry::of::<osu::pairs::Options>(),
    Entry::of::<osu::all_pairs::Options>(),
    Entry::of::<osu::ahead::Options>(),
    Entry::of::<osu::overlap::Options>(),
    Entry::of::<producer_consumer::Options>(),
    Entry::of::<neighbours::Options>(),
    Entry::of::<loopback::Options>(),
    Entry::of::<post::Options>(),
    Entry::of::<post::providers::Options>(),
    Entry::of::<write_rate::Options>(),
    Entry::of::<write_bw::Options>(),
    Entry::of::<soak::Options>(),
    Entry::of::<verify::Options>(),
    Entry::of::<messages::Options>(),
    Entry::of::<start::Options>(),
    Entry::of::<footprint::Options>(),
    Entry::of::<write_lat::Options>(),
    Entry::of::<poll_lat::Options>(),
    Entry::of::<kernel_latency::Options>(),
    Entry::of::<sanity::Options>(),
    Entry {
        name: "suite",
        about: "All benchmarks that have targets, compared with their targets",
        examples: [
            (
                "--quick --gpu soft",
                "few iterations, on the software GPU: a test that everything works",
            ),
            ("--json suite.json", "all iterations, figures also as JSON"),
        ],
        options: suite::Options::augment_args,
        run: |given| suite::run(&suite::Options::from_arg_matches(given)?),
    },
    Entry {
        name: "timeline",
        about: "Draws the timelines that MP_TRACE wrote: what each stream executed, and when",
        examples: [
            (
                "trace.0.json trace.1.json --svg trace.svg",
                "the whole run of two ranks, as text and as an SVG",
            ),
            (
                "trace.0.json --step interior --svg step.svg",
                "one step: from a start of the kernel interior to the next",
            ),
        ],
        options: timeline::Options::augment_args,
        run: |given| timeline::run(&timeline::Options::from_arg_matches(given)?),
    },
    Entry {
        name: "chart",
        about: "Draws the latencies that compare-peers measured, as SVG",
        examples: [
            (
                "peers.json --svg peers.svg",
                "between two GPUs, enqueued ahead",
            ),
            (
                "peers.json --figure latency --svg cpu.svg",
                "by the CPU, in host memory",
            ),
        ],
        options: chart::Options::augment_args,
        run: |given| chart::run(&chart::Options::from_arg_matches(given)?),
    },
];

/// The jobs that processes run as ranks.
const JOBS: [world::Entry; 14] = [
    world::entry::<pingpong::Options>(),
    world::entry::<osu::Play>(),
    world::entry::<osu::pairs::Options>(),
    world::entry::<osu::all_pairs::Options>(),
    world::entry::<osu::ahead::Options>(),
    world::entry::<osu::overlap::Options>(),
    world::entry::<producer_consumer::Options>(),
    world::entry::<neighbours::Options>(),
    world::entry::<messages::Options>(),
    world::entry::<write_bw::Options>(),
    world::entry::<kernel_latency::Options>(),
    world::entry::<write_lat::Options>(),
    world::entry::<start::Start>(),
    world::entry::<footprint::Options>(),
];

fn command_line() -> Command {
    let parent = Arg::new("parent").long("parent").hide(true);
    let rank = Command::new("rank").hide(true);
    Command::new("mpbench")
        .version(env!("CARGO_PKG_VERSION"))
        .about(
            "Measures latency, bandwidth, message rate and CPU overhead of messages on GPU streams",
        )
        .after_help(format!("{EXAMPLES}\n\n{UNITS}"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(parent.value_parser(value_parser!(u32)))
        .subcommands(COMMANDS.iter().map(Entry::command))
        .subcommand(RankSpec::augment_args(rank))
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("mpbench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let given = command_line().get_matches();
    gds_log::init(gdsync::launcher::rank()).map_err(anyhow::Error::msg)?;
    if let Some(parent) = given.get_one("parent") {
        world::end_with(*parent)?;
    }
    let (name, given) = given.subcommand().context("no command")?;
    if name == "rank" {
        return Ok(world::rank_main(&RankSpec::from_arg_matches(given)?, &JOBS));
    }
    let command = COMMANDS.iter().find(|command| command.name == name);
    (command.context("no such command")?.run)(given)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn command_line_is_valid() {
        command_line().debug_assert();
    }

    #[test]
    fn examples_of_every_command_are_valid() {
        for command in &COMMANDS {
            for (arguments, _) in command.examples {
                let words = format!("mpbench {} {arguments}", command.name);
                let given = command_line().try_get_matches_from(words.split(' '));
                assert!(given.is_ok(), "{words}: {given:?}");
            }
            let help = command.command().render_help().to_string();
            assert!(help.contains("Examples:\n  mpbench "), "{help}");
        }
    }

    #[test]
    fn options_are_passed_to_rank_processes() {
        let words =
            "mpbench pingpong --sizes 8,4Ki --memory pinned --lowering kernel --gpu soft,cuda:1";
        let given = command_line().get_matches_from(words.split(' '));
        let (_, given) = given.subcommand().unwrap();
        let options = pingpong::Options::from_arg_matches(given).unwrap();
        let json = serde_json::to_value(&options).unwrap();
        let back: pingpong::Options = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&back).unwrap(), json);
        assert_eq!(json["sizes"], json!([8, 4096]));
        assert_eq!(json["setup"]["memory"], "pinned");
        assert_eq!(json["setup"]["gpus"], json!(["soft", "cuda:1"]));
        assert_eq!(json["setup"]["lowering"], "kernel");
    }
}
