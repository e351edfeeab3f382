//! The programs as users run them: by mprun as processes, and as threads of one process. One test
//! at a time: each test starts processes that use all processors.

mod shared;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shared::{alone, fails, launch, mprun, run, running, text, threads, well};

const SENDRECV: &str = env!("CARGO_BIN_EXE_sendrecv");
const SENDRECV_STREAM: &str = env!("CARGO_BIN_EXE_sendrecv_stream");
const PINGPONG: &str = env!("CARGO_BIN_EXE_pingpong");
const RING: &str = env!("CARGO_BIN_EXE_ring");
const HALO_SIMPLE: &str = env!("CARGO_BIN_EXE_halo_simple");
const PORTING: &str = env!("CARGO_BIN_EXE_porting");
const PUTGET: &str = env!("CARGO_BIN_EXE_putget");
const PRODUCER_CONSUMER: &str = env!("CARGO_BIN_EXE_producer_consumer");

#[test]
fn sendrecv() {
    well(&launch(2, &[SENDRECV]), &["sendrecv: 3 messages", "ok"]);
    well(&threads(SENDRECV, 2, &[]), &["sendrecv: 3 messages", "ok"]);
}

#[test]
fn sendrecv_stream() {
    let eager = ["--words", "512", "--rounds", "50"];
    for options in [&[][..], &eager, &["--words", "100001", "--rounds", "3"]] {
        let command = [&[SENDRECV_STREAM], options].concat();
        well(&launch(2, &command), &["sendrecv_stream: ", ": ok"]);
        well(&threads(SENDRECV_STREAM, 2, options), &["every word is"]);
    }
}

/// Eager and rendezvous messages.
#[test]
fn pingpong() {
    let launched = launch(2, &[PINGPONG, "--rounds", "30"]);
    assert!(launched.status.success(), "{}", text(&launched));
    for rank in [0, 1] {
        let words = format!("rank {rank} had 30 messages of 1 to 20000 bytes");
        assert!(text(&launched).contains(&words), "{}", text(&launched));
    }
    let short = threads(PINGPONG, 2, &["--longest", "64", "--rounds", "50"]);
    assert!(short.status.success(), "{}", text(&short));
}

/// Strips of one row, which have no interior; rows by eager and by rendezvous messages.
#[test]
fn halo_simple() {
    for (ranks, options) in [
        (1, &[][..]),
        (2, &["--rows", "1", "--width", "1"]),
        (3, &["--rows", "2", "--steps", "33"]),
        (4, &["--width", "1000", "--steps", "7"]),
    ] {
        let launched = launch(ranks, &[&[HALO_SIMPLE], options].concat());
        for output in [launched, threads(HALO_SIMPLE, ranks, options)] {
            assert!(output.status.success(), "{}", text(&output));
            for rank in 0..ranks {
                let words = format!("halo_simple: rank {rank} of {ranks}: ");
                assert!(text(&output).contains(&words), "{}", text(&output));
            }
            let out = String::from_utf8_lossy(&output.stdout);
            let ok = |line: &str| line.ends_with("every cell equals the serial run: ok");
            assert!(out.lines().all(ok), "{}", text(&output));
        }
    }
}

#[test]
fn ring() {
    for (ranks, token) in [(1, 8), (2, 24), (5, 120)] {
        let token = format!("the token is {token} as it should be: ok");
        well(&launch(ranks, &[RING]), &[&token]);
        well(&threads(RING, ranks, &[]), &[&token]);
    }
    // More laps than messages that may be in flight.
    let laps = ["--laps", "300"];
    well(&threads(RING, 3, &laps), &["the token is 1800 "]);
}

/// Blocks of one word, of an odd number of words, and longer than an eager message.
#[test]
fn putget() {
    for (ranks, words) in [(1, "7"), (2, "1"), (3, "1000"), (5, "33")] {
        let options = ["--words", words];
        let launched = launch(ranks, &[&[PUTGET], &options[..]].concat());
        for output in [launched, threads(PUTGET, ranks, &options)] {
            assert!(output.status.success(), "{}", text(&output));
            for rank in 0..ranks {
                let words = format!("putget: rank {rank} of {ranks}: blocks of {words} words");
                assert!(text(&output).contains(&words), "{}", text(&output));
            }
        }
    }
}

/// A ring of one slot, fewer items than slots, and more items than a stream takes ahead.
#[test]
fn producer_consumer() {
    for options in [
        &[][..],
        &["--slots", "1", "--items", "50"],
        &["--slots", "9", "--items", "5"],
        &["--slots", "3", "--items", "2000", "--words", "1"],
    ] {
        let command = [&[PRODUCER_CONSUMER], options].concat();
        let verdict = ["items a second, every word is right: ok"];
        well(&launch(2, &command), &verdict);
        well(&threads(PRODUCER_CONSUMER, 2, options), &verdict);
    }
}

#[test]
fn help_has_two_examples_of_use() {
    for program in [
        SENDRECV,
        SENDRECV_STREAM,
        RING,
        HALO_SIMPLE,
        PORTING,
        PUTGET,
        PRODUCER_CONSUMER,
        PINGPONG,
    ] {
        let output = run(Command::new(program).arg("--help"));
        let help = String::from_utf8_lossy(&output.stdout);
        let examples = help.split("Examples:\n").nth(1).unwrap();
        let commands = examples.lines().filter(|l| l.contains("target/release/"));
        assert_eq!(commands.count(), 2, "{help}");
    }
}

#[test]
fn programs_have_at_most_150_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 150, "{}: {lines} lines", path.display());
    }
}

/// With `GDS_TRACE=1` each rank prints its trace, of work requests by the NIC; each line begins with the rank.
#[test]
fn trace_lines_on_standard_error_begin_with_the_rank() {
    let mut command = Command::new(mprun());
    command.args(["-n", "2", "--timeout", "120", SENDRECV_STREAM]);
    let output = run(command
        .args(["--rounds", "2"])
        .env("GDS_TRACE", "1")
        .env("MP_PATH", "nic"));
    well(&output, &[": ok"]);
    let err = String::from_utf8_lossy(&output.stderr);
    for rank in 0..2 {
        let of_rank = format!("[{rank}] rank {rank}: INFO gdsync::trace: ");
        let lines: Vec<&str> = err
            .lines()
            .filter_map(|l| l.strip_prefix(&of_rank))
            .collect();
        let heads = lines.iter().filter(|l| l.starts_with("stream ")).count();
        assert!(heads > 0 && lines.len() > heads, "{err}");
    }
    let labelled = err.lines().all(|l| l.contains("] rank "));
    assert!(labelled, "{err}");
}

/// With `GDS_TRACE=PATH` each rank has its own file; if a file cannot be opened, an error names it.
#[test]
fn each_rank_writes_its_own_trace_file() {
    let path = std::env::temp_dir().join(format!("mp-trace-{}", std::process::id()));
    let launch = |path: &Path| {
        let mut command = Command::new(mprun());
        command.args(["-n", "2", "--timeout", "120", SENDRECV_STREAM]);
        command.env("GDS_TRACE", path).env("MP_PATH", "nic");
        run(command.args(["--rounds", "2"]))
    };
    well(&launch(&path), &[": ok"]);
    for rank in 0..2 {
        let own = PathBuf::from(format!("{}.rank{rank}", path.display()));
        let trace = fs::read_to_string(&own).unwrap();
        fs::remove_file(&own).unwrap();
        // Complete submissions: each line is a head or is indented.
        let whole = |l: &str| l.starts_with("stream ") || l.starts_with("  ");
        assert!(
            trace.lines().count() > 1 && trace.lines().all(whole),
            "{trace}"
        );
    }
    assert!(!path.exists());
    fails(
        &launch(Path::new("/nonexistent/trace")),
        "/nonexistent/trace.rank",
    );
}

/// An unknown value of `GDS_LOG` is an error of every program.
#[test]
fn unknown_log_level_is_refused() {
    let mut command = Command::new(SENDRECV);
    let output = run(command
        .args(["--ranks-as-threads", "2"])
        .env("GDS_LOG", "loud"));
    fails(&output, "GDS_LOG=\"loud\"");
}

#[test]
fn wrong_number_of_ranks_is_refused() {
    fails(&launch(3, &[SENDRECV]), "start it by mprun -n 2");
    fails(
        &run(&mut Command::new(SENDRECV_STREAM)),
        "--ranks-as-threads 2",
    );
    fails(&launch(3, &[PRODUCER_CONSUMER]), "start it by mprun -n 2");
}

/// A peer that dies during the run causes an error that names it and the kind of failure.
#[test]
fn error_names_a_killed_peer() {
    let _alone = alone();
    let arguments = ["--until-it-fails", "--timeout", "120"];
    let (mut ranks, folder) = running(PINGPONG, &arguments, 2, |command| {
        command
            .env("GDS_PROVIDER", "emulated")
            .stdout(Stdio::piped());
    });
    ranks[1].0.kill().unwrap();
    let stdout = ranks[0].0.stdout.take().unwrap();
    let said = std::io::read_to_string(stdout).unwrap();
    assert!(ranks[0].0.wait().unwrap().success(), "{said}");
    assert!(said.contains("rank 1 is gone: PeerFailed("), "{said}");
    fs::remove_dir_all(&folder).unwrap();
}
