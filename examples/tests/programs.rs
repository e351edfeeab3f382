//! The programs as users run them: by mprun as processes, and as threads of one process. One test
//! at a time: each test starts processes that use all processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

const SENDRECV: &str = env!("CARGO_BIN_EXE_sendrecv");
const SENDRECV_STREAM: &str = env!("CARGO_BIN_EXE_sendrecv_stream");
const PINGPONG: &str = env!("CARGO_BIN_EXE_pingpong");
const RING: &str = env!("CARGO_BIN_EXE_ring");
const HALO2D: &str = env!("CARGO_BIN_EXE_halo2d");

/// The checksum of 100 iterations of a field of 64x48 cells with seed 1.
const CHECKSUM: &str = "checksum 0x3781b767bfbfbc76";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mprun next to the examples; it is built if it is absent.
fn mprun() -> PathBuf {
    static BUILT: Once = Once::new();
    let folder = Path::new(HALO2D).parent().unwrap();
    let path = folder.join("mprun");
    BUILT.call_once(|| {
        if path.exists() {
            return;
        }
        let release = folder.file_name().is_some_and(|name| name == "release");
        let profile = if release { "release" } else { "test" };
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "mprun",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "building mprun: {status}");
    });
    path
}

fn run(command: &mut Command) -> Output {
    let _alone = alone();
    command
        .env("GDS_GPU", "soft")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn launch(ranks: u32, command: &[&str]) -> Output {
    let mut mprun = Command::new(mprun());
    mprun.args(["-n", &ranks.to_string(), "--timeout", "120"]);
    run(mprun.args(command))
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    format!("{}\n{out}{err}", output.status)
}

/// Checks that the program succeeded, and that its only line contains these words.
fn well(output: &Output, words: &[&str]) {
    assert!(output.status.success(), "{}", text(output));
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{}", text(output));
    for word in words {
        assert!(out.contains(word), "{word} is not in {}", text(output));
    }
}

/// Checks that the program failed with these words.
fn fails(output: &Output, words: &str) {
    assert!(!output.status.success(), "{}", text(output));
    assert!(
        text(output).contains(words),
        "{words} is not in {}",
        text(output)
    );
}

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

#[test]
fn halo2d_on_processes() {
    for (ranks, model) in [
        (1, "stream"),
        (2, "cpu-thread"),
        (3, "cpu"),
        (4, "stream"),
        (4, "cpu"),
    ] {
        let output = launch(ranks, &[HALO2D, "--model", model]);
        well(&output, &["0 of 3072 cells differ", CHECKSUM, model]);
    }
    let grid = ["--grid", "1x3", "--eager", "64", "--batch", "3"];
    let command = [&[HALO2D][..], &grid].concat();
    well(&launch(3, &command), &["grid 1x3", "0 of 3072", CHECKSUM]);
}

#[test]
fn halo2d_on_threads() {
    let output = threads(HALO2D, 9, &["--grid", "3x3"]);
    well(&output, &["grid 3x3", "0 of 3072", CHECKSUM]);
}

/// Every rank's exit status reports a difference, and the one line reports the number of differing
/// cells.
#[test]
fn differing_cells_fail_every_rank() {
    let script = format!("exec {HALO2D} --seed $MP_RANK --iters 2");
    let output = launch(2, &["sh", "-c", &script]);
    fails(&output, "of this rank's cells differ");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("cells differ from the serial run"), "{out}");
    assert!(!out.contains(" 0 of 3072"), "{out}");
}

/// With `GDS_TRACE=1` each rank prints its trace; each line begins with the rank.
#[test]
fn trace_lines_on_standard_error_begin_with_the_rank() {
    let mut command = Command::new(mprun());
    command.args(["-n", "2", "--timeout", "120", SENDRECV_STREAM]);
    let output = run(command.args(["--rounds", "2"]).env("GDS_TRACE", "1"));
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
        run(command.args(["--rounds", "2"]).env("GDS_TRACE", path))
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
    fails(
        &launch(2, &[HALO2D, "--grid", "3x1"]),
        "a grid of 3x1 does not fit 2 ranks",
    );
    fails(
        &launch(2, &[HALO2D, "--size", "1x8"]),
        "a field of 1x8 cells",
    );
}

fn threads(program: &str, ranks: u32, options: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(["--ranks-as-threads", &ranks.to_string()]);
    run(command.args(options))
}

/// Ends a process that a failed test would leave behind.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        // Both calls fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts ranks of a program that meet in a private folder and run until they are killed; all run
/// two seconds later.
fn running(
    program: &str,
    arguments: &[&str],
    size: u32,
    stdio: fn(&mut Command),
) -> (Vec<Rank>, PathBuf) {
    let folder = std::env::temp_dir().join(format!("mp-running-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let start = |rank: u32| {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("GDS_GPU", "soft")
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", size.to_string())
            .env("MP_STORE", format!("file://{}", folder.display()));
        stdio(&mut command);
        Rank(command.spawn().unwrap())
    };
    let mut ranks: Vec<Rank> = (0..size).map(start).collect();
    std::thread::sleep(Duration::from_secs(2));
    for rank in &mut ranks {
        let ended = rank.0.try_wait().unwrap();
        assert!(ended.is_none(), "a rank ended by itself");
    }
    (ranks, folder)
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

/// In a row of three, all ranks are neighbours: the two remaining ranks end, and name the dead
/// rank. One of them may first detect that the other has ended for this reason.
#[test]
fn killed_rank_ends_the_others_with_an_error_that_names_it() {
    let _alone = alone();
    // More iterations than can complete.
    let arguments = ["--iters", "1000000000", "--size", "96x16"];
    let (mut ranks, folder) = running(HALO2D, &arguments, 3, |command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    });
    ranks[1].0.kill().unwrap();
    for survivor in [2, 0] {
        let mut rank = ranks.remove(survivor);
        let stderr = rank.0.stderr.take().unwrap();
        // The output ends when the process ends, which is bounded by the time limits of the start
        // and of messages.
        let said = std::io::read_to_string(stderr).unwrap();
        assert!(!rank.0.wait().unwrap().success());
        assert!(said.contains("rank 1"), "rank {survivor}: {said}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
