//! Tests of the program as users run it: ranks as processes and as threads, every lowering, wrong
//! bytes, dead ranks, time limits. One test at a time: each starts processes that need the
//! processors.

mod shared;

use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use shared::short::{On, SHORT, WRONG, messages, play as play_short, play_wrong};
use shared::{Folder, LIMIT, end, json, mpbench, number, text};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(words: &str) -> Child {
    shared::start(&mut command(words))
}

fn command(words: &str) -> Command {
    mpbench("soft", &words.split_whitespace().collect::<Vec<_>>())
}

fn run(words: &str) -> Output {
    end(start(words))
}

fn runs_well(words: &str) -> Output {
    let output = run(words);
    assert!(output.status.success(), "{}", text(&output));
    output
}

/// Runs a command that must fail with a message that contains `error`.
fn fails(words: &str, error: &str) -> String {
    let output = run(words);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let printed = text(&output);
    assert!(printed.contains(error), "{printed}");
    printed
}

/// Runs ping-pong, and checks its output and its files.
fn play(name: &str, more: &str, lowering: &str, ringing: &str) -> Value {
    let _alone = alone();
    let folder = Folder::new(name);
    let (file, svg) = (folder.at("r.json"), folder.at("r.svg"));
    let printed = text(&runs_well(&format!(
        "pingpong --sizes 8,4096 --iterations 50 --json {file} --svg {svg} {more}"
    )));
    for words in [
        "soft gpu",
        "emulated nic",
        lowering,
        ringing,
        "4 KiB",
        "application",
    ] {
        assert!(printed.contains(words), "{words} is not in\n{printed}");
    }
    let verdict = "mpbench pingpong: kernels compared every byte of every message: ok";
    assert!(printed.lines().any(|line| line == verdict), "{printed}");
    let report = json(&file);
    assert_eq!(report["benchmark"], "pingpong");
    assert_eq!(
        report["program"]["executable_sha256"]
            .as_str()
            .map(str::len),
        Some(64)
    );
    assert_eq!(report["figures"]["header"]["names"]["lowering"], lowering);
    for (row, size) in [(0, 8.0), (1, 4096.0)] {
        let row = &report["figures"]["sizes"][row];
        assert_eq!(number(row, "/size"), size);
        assert_eq!(number(row, "/latency_ns/count"), 50.0);
        let (min, median, max) = (
            number(row, "/latency_ns/min"),
            number(row, "/latency_ns/median"),
            number(row, "/latency_ns/max"),
        );
        assert!(0.0 < min && min <= median && median <= max, "{row:#}");
        assert!(number(row, "/bandwidth") > 0.0 && number(row, "/enqueue_ns") > 0.0);
    }
    for rank in ["/figures/proof/0", "/figures/proof/1"] {
        let proof = report.pointer(rank).unwrap();
        assert_eq!(proof["trace"]["rung"], proof["trace"]["sends"], "{proof:#}");
        // Enqueuing was before the gate, so only opening the gate and some polls are left.
        let (used, gated) = (
            number(proof, "/cpu/application_ns"),
            number(proof, "/cpu/gated_ns"),
        );
        assert!(used < gated, "{proof:#}");
        assert!(
            proof["cpu"]["others_ns"]["gds-device"].is_number(),
            "{proof:#}"
        );
    }
    let curve = std::fs::read_to_string(&svg).unwrap();
    assert!(curve.starts_with("<svg"));
    report
}

const BY_MEMOPS: &str = "doorbell record, then UAR";
const BY_KERNEL: &str = "a kernel that writes doorbell record and UAR";
const BY_CPU_THREAD: &str = "a word that the CPU thread reads";

#[test]
fn pingpong_of_processes_by_memory_operations() {
    let report = play("pm", "--lowering memops", "memops", BY_MEMOPS);
    assert_eq!(report["figures"]["header"]["ranks"], "processes");
    assert_eq!(report["targets"][0]["target"], 15.0);
}

/// Kernels copy the messages: no doorbell is rung.
#[test]
fn pingpong_over_mapped_memory() {
    let _alone = alone();
    let words = "pingpong --layer mp --sizes 8,70001 --iterations 20";
    let printed = text(&runs_well(words));
    let rung = "of 5 sends by mp traced, the stream rang none: kernels copied";
    assert!(printed.lines().any(|line| line == rung), "{printed}");
}

/// A NIC that reads no doorbell finds the doorbell record.
#[test]
fn pingpong_by_tcp() {
    let _alone = alone();
    for (words, variable) in [
        ("--layer gdsync --threads", "GDS_PROVIDER"),
        ("--layer mp", "MP_PATH"),
    ] {
        for (lowering, ringing) in [
            ("memops", "doorbell record"),
            ("kernel", "a kernel that writes the doorbell record"),
        ] {
            let words = format!("pingpong {words} --lowering {lowering} --sizes 8 --iterations 20");
            let output = end(shared::start(command(&words).env(variable, "tcp")));
            assert!(output.status.success(), "{}", text(&output));
            let printed = text(&output);
            assert!(
                printed.contains(&format!("times by {ringing}:")),
                "{printed}"
            );
        }
    }
}

#[test]
fn pingpong_of_processes_by_kernels() {
    play("pk", "--lowering kernel", "kernel", BY_KERNEL);
}

#[test]
fn pingpong_of_threads_by_memory_operations() {
    let report = play("tm", "--threads --lowering memops", "memops", BY_MEMOPS);
    assert_eq!(report["figures"]["header"]["ranks"], "threads");
    assert_eq!(report["targets"].as_array().map(Vec::len), Some(0));
}

#[test]
fn pingpong_of_threads_by_kernels() {
    play("tk", "--threads --lowering kernel", "kernel", BY_KERNEL);
}

#[test]
fn pingpong_of_processes_by_a_cpu_thread_with_writes_to_pinned_memory() {
    let more = "--doorbell cpu-thread --memory pinned --operation write";
    play("pp", more, "memops", BY_CPU_THREAD);
}

#[test]
fn pingpong_of_ragged_sizes_and_writes() {
    let _alone = alone();
    for ranks in ["--threads", ""] {
        let words = "pingpong --sizes 1,13,70001 --iterations 7 --operation write";
        runs_well(&format!("{words} {ranks}"));
    }
}

/// Starts ranks with separate launchers, as on several hosts; rank 0 writes its figures to `file`. Only
/// rank 0 prints. Returns its output.
fn run_apart(folder: &Folder, ranks: u32, words: &str, file: &str) -> String {
    let rank = |number: u32| {
        let more = if number == 0 {
            format!("--json {file}")
        } else {
            String::new()
        };
        let mut command = command(&format!("{words} --launched {more}"));
        command
            .env("MP_RANK", number.to_string())
            .env("MP_SIZE", ranks.to_string())
            .env("MP_STORE", format!("file://{}", folder.at("")));
        shared::start(&mut command)
    };
    let started: Vec<Child> = (0..ranks).map(rank).collect();
    let outputs: Vec<Output> = started.into_iter().map(end).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", text(output));
    }
    let mut printed = outputs.iter().map(text);
    let first = printed.next().unwrap();
    assert!(printed.all(|text| text.trim().is_empty()));
    first
}

#[test]
fn ranks_may_be_started_separately() {
    let _alone = alone();
    let folder = Folder::new("apart");
    let file = folder.at("r.json");
    let words = "pingpong --layer both --sizes 8 --iterations 20";
    let printed = run_apart(&folder, 2, words, &file);
    assert!(printed.contains("started apart"), "{printed}");
    let report = json(&file);
    assert_eq!(report["figures"]["header"]["ranks"], "launched");
    for row in ["/figures/sizes/0", "/figures/sizes/1"] {
        let row = report.pointer(row).unwrap();
        assert_eq!(number(row, "/latency_ns/count"), 20.0);
    }
    assert_eq!(report["figures"]["proof"].as_array().unwrap().len(), 4);
}

#[test]
fn many_ranks_may_be_started_separately() {
    let _alone = alone();
    for (ranks, words) in [
        (2, "latency -m 8:16 -i 20 --poster cpu,stream"),
        (4, "rate --pairs 2 -m 8:16 -i 5"),
        (3, "pingpong_all -n 3 -i 20"),
    ] {
        let folder = Folder::new("many-apart");
        let file = folder.at("r.json");
        let printed = run_apart(&folder, ranks, words, &file);
        assert!(printed.contains(": ok"), "{printed}");
        assert_eq!(json(&file)["figures"]["ranks"], "launched");
    }
    // The number of ranks is that of the command.
    let folder = Folder::new("one-apart");
    let mut alone = command("latency -m 8:8 --launched");
    alone.env("MP_RANK", "0").env("MP_SIZE", "1");
    alone.env("MP_STORE", format!("file://{}", folder.at("")));
    let output = end(shared::start(&mut alone));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("a job of 1 ranks: 2 are needed"),
        "{}",
        text(&output)
    );
}

#[test]
fn write_lat_measures_alternating_writes() {
    let _alone = alone();
    let folder = Folder::new("write-lat");
    let file = folder.at("r.json");
    let words = format!("write_lat -n 1 --json {file}");
    runs_well(&format!("{words} --ib-write-lat 1000"));
    let report = json(&file);
    assert_eq!(number(&report, "/figures/latency_ns/count"), 100.0);
    assert!(number(&report, "/figures/latency_ns/min") > 0.0);
    assert_eq!(number(&report, "/targets/0/target"), 2000.0);
    // A round that waits for a wrong number does not end.
    let wrong = format!("{words} --threads --corrupt 77 --timeout 3");
    fails(&wrong, "time limit");
}

#[test]
fn one_wrong_bit_is_an_error() {
    let _alone = alone();
    for ranks in ["--threads", ""] {
        let words = format!("pingpong --sizes 4096 --iterations 50 --corrupt 40 {ranks}");
        let printed = fails(&words, "1 wrong bytes");
        assert!(
            printed.contains("byte 2048 of message 40 from rank 1"),
            "{printed}"
        );
    }
}

#[test]
fn messages_are_compared_by_each_path() {
    let _alone = alone();
    let folder = Folder::new("messages");
    let file = folder.at("r.json");
    for path in ["ipc", "nic"] {
        let on = |words: &str| {
            let mut command = command(&format!("messages --longest 40000 {words}"));
            end(shared::start(command.env("MP_PATH", path)))
        };
        let output = on(&format!("--messages 2000 --seed 9 --json {file}"));
        assert!(output.status.success(), "{}", text(&output));
        messages(&json(&file), 2000.0);
        // The last batch is checked too, and its streams have ended.
        let output = on("--messages 600 --seed 9 --spoil 599");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let wrong = "batch 2, stream ";
        let message = " of message 599 from rank ";
        assert!(text(&output).contains(wrong), "{}", text(&output));
        assert!(text(&output).contains(message), "{}", text(&output));
    }
    fails(
        "messages --messages 10 --spoil 10",
        "there is no message 10",
    );
}

/// A run that takes practically forever.
const ENDLESS: &str = "pingpong --sizes 64 --iterations 10000000";

/// The processes of a run's ranks, most likely after they have begun to measure; the run must end
/// whenever one dies.
fn ranks_of(run: &Child) -> [i32; 2] {
    let deadline = Instant::now() + LIMIT;
    let list = format!("/proc/{0}/task/{0}/children", run.id());
    loop {
        let text = std::fs::read_to_string(&list).unwrap();
        let ranks: Vec<i32> = text
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        if let [first, second] = ranks[..] {
            std::thread::sleep(Duration::from_millis(500));
            return [first, second];
        }
        assert!(Instant::now() < deadline, "no ranks start");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// Whether a process runs: neither gone nor a zombie.
fn runs(process: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}

#[test]
fn killed_rank_ends_the_run() {
    let _alone = alone();
    let child = start(ENDLESS);
    let ranks = ranks_of(&child);
    kill(ranks[1]);
    let output = end(child);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("rank 1: died"), "{}", text(&output));
    assert!(!ranks.into_iter().any(runs), "a rank is left behind");
}

#[test]
fn ranks_end_with_the_process_that_started_them() {
    let _alone = alone();
    let child = start(ENDLESS);
    let ranks = ranks_of(&child);
    kill(child.id() as i32);
    end(child);
    let deadline = Instant::now() + LIMIT;
    while ranks.into_iter().any(runs) {
        assert!(Instant::now() < deadline, "a rank is left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn time_limit_ends_the_run() {
    let _alone = alone();
    for ranks in ["--threads", ""] {
        fails(&format!("{ENDLESS} --timeout 0.5 {ranks}"), "time limit");
    }
}

#[test]
fn invalid_options_are_errors() {
    for bad in [
        "pingpong --sizes 0",
        "pingpong --sizes 1Gi",
        "pingpong --iterations 0",
        "pingpong --timeout -1",
        "write_bw --depth 33",
        "write_bw --poster gpu",
        "pingpong --layer mpi",
        "start --ranks 1",
        "footprint --ranks 257",
        "write_rate --gpu metal",
        "soak --messages 9",
        "messages --longest 17Mi",
        "messages --tags 65",
        "gds_kernel_latency -B 81",
        "gds_kernel_latency -E --memory pinned",
        "gds_poll_lat -p 17",
        "latency -m 0:8",
        "latency -x 0",
        "latency -W 8",
        "latency --op sendrecv",
        "bandwidth -W 1025",
        "bibw -d X",
        "rate -p 0",
        "pingpong_all -n 1",
        "pingpong_all --op put,get",
        "producer_consumer -W 0",
        "neighbours -n 65",
        "neighbours --ranks 1",
        "neighbours --way sends",
    ] {
        assert_eq!(run(bad).status.code(), Some(2), "{bad}");
    }
    fails("neighbours -n 3 --ranks 4", "their number is even");
    let printed = text(&run("latency -m 64:8"));
    let sentence = "the first size, 64 bytes, is greater than the last, 8 bytes";
    assert!(printed.contains(sentence), "{printed}");
}

/// The tables of the commands with OSU's columns: their heads, and numbers below them.
#[test]
fn columns_are_those_of_osu() {
    let _alone = alone();
    let table = |words: &str, heads: &str| {
        let printed = text(&runs_well(words));
        let line = |line: &&str| line.split("  ").filter(|cell| !cell.is_empty()).count() > 1;
        let mut lines = printed.lines().filter(line);
        let cells = |line: &str| -> Vec<String> {
            let cells = line.split("  ").map(str::trim);
            let cells = cells.filter(|cell| !cell.is_empty());
            cells.map(str::to_owned).collect()
        };
        let found = cells(lines.next().unwrap()).join(", ");
        assert_eq!(found, heads, "{printed}");
        let sizes: Vec<String> = lines
            .map(|line| {
                let cells = cells(line);
                let figures = cells[1..].iter().filter(|cell| *cell != "Pass");
                assert!(figures.clone().all(|f| f.parse::<f64>().unwrap() >= 0.0));
                cells[0].clone()
            })
            .collect();
        assert_eq!(sizes, ["4", "8", "16"], "{printed}");
    };
    let few = "-m 4:16 -i 300 -x 2 --threads";
    table(&format!("latency {few}"), "# Size, Latency (us)");
    table(
        &format!("latency {few} --op put --poster stream -c"),
        "# Size, Latency (us), Validation",
    );
    table(&format!("bandwidth {few} -W 4"), "# Size, Bandwidth (MB/s)");
    table(&format!("bibw {few} -W 4"), "# Size, Bandwidth (MB/s)");
    table(&format!("rate {few} -W 4"), "# Size, MB/s, Messages/s");
}

const SOFT: On = On {
    gpu: "soft",
    runtime: "soft",
    env: vec![],
};

#[test]
fn every_command_runs_with_few_iterations() {
    let _alone = alone();
    for short in &SHORT {
        println!("{}", short.0);
        play_short(short, &SOFT);
    }
}

#[test]
fn injected_errors_are_detected() {
    let _alone = alone();
    for wrong in WRONG {
        play_wrong(wrong, &SOFT);
    }
}

#[test]
fn without_cuda_auto_is_soft_and_cuda_is_an_error() {
    let _alone = alone();
    let absent = [("GDS_CUDA_LIB", "/nowhere/libcuda.so.1")];
    let run = |gpu| {
        let arguments = ["write_rate", "--messages", "1000"];
        end(shared::start(mpbench(gpu, &arguments).envs(absent)))
    };
    let output = run("auto");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("soft gpu"), "{}", text(&output));
    let output = run("cuda");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("/nowhere"), "{}", text(&output));
}

#[test]
fn suite_writes_all_figures() {
    let _alone = alone();
    let folder = Folder::new("suite");
    let output = runs_well(&format!("suite --quick --json {}", folder.at("all")));
    let judged = [
        "post",
        "write_rate",
        "write_bw",
        "pingpong",
        "soak",
        "footprint",
    ];
    for name in judged {
        let report = json(folder.at(&format!("all/{name}.json")));
        assert_eq!(report["benchmark"], name);
        assert!(!report["targets"].as_array().unwrap().is_empty(), "{name}");
    }
    // The targets of these are those of a real GPU.
    for name in [
        "loopback",
        "gds_sanity",
        "gds_poll_lat",
        "gds_kernel_latency",
    ] {
        let report = json(folder.at(&format!("all/{name}.json")));
        assert_eq!(report["benchmark"], name);
        assert_eq!(
            report["targets"].as_array().map(Vec::len),
            Some(0),
            "{name}"
        );
    }
    assert!(Path::new(&folder.at("all/pingpong.svg")).exists());
    let posts = json(folder.at("all/post.json"));
    assert_eq!(posts["figures"]["rows"].as_array().map(Vec::len), Some(6));
    for row in &posts["figures"]["rows"].as_array().unwrap()[..3] {
        assert_eq!(row["allocations"], 0, "{row:#}");
    }
    assert!(text(&output).contains(" met"), "{}", text(&output));
    assert!(
        number(
            &json(folder.at("all/write_rate.json")),
            "/figures/spot_checks"
        ) > 0.0
    );
    assert_eq!(
        number(&json(folder.at("all/write_bw.json")), "/figures/verified"),
        16.0 * 1048576.0
    );
}
