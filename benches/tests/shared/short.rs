//! Every command in its short form, on any GPU: the command line, and checks of its report.

use std::ffi::OsString;
use std::process::Output;

use serde_json::Value;

use super::{Folder, end, json, mpbench, number, start, text};

/// A GPU to run on.
#[derive(Clone, Debug)]
pub struct On {
    /// The value of `--gpu`.
    pub gpu: &'static str,
    /// Its runtime, as in reports.
    pub runtime: &'static str,
    /// Environment of the processes, such as a stand-in for the system's driver.
    pub env: Vec<(&'static str, OsString)>,
}

/// A command in its short form: its name, its arguments, and the check of its report.
pub type Short = (&'static str, &'static str, fn(&Value, &On));

/// All commands.
pub const SHORT: [Short; 48] = [
    ("post", "post --bursts 4", |r, on| post(r, on, 3)),
    (
        "post with messages",
        "post --bursts 4 --layer both",
        |r, on| {
            post(r, on, 6);
            for row in &r["figures"]["rows"].as_array().unwrap()[3..] {
                assert_eq!(row["layer"], "mp");
                // Allocations of 192 messages and of background threads. A waiting CUDA stream
                // refuses submissions at some point, and every refusal is reported.
                let refused = on.runtime == "cuda";
                assert!(refused || number(row, "/allocations") < 64.0, "{row:#}");
            }
        },
    ),
    (
        "post by kernels",
        "post --bursts 2 --lowering kernel",
        |r, on| {
            names(r, "/figures/names", on);
            assert_eq!(r["figures"]["rows"][0]["bare_ns"], Value::Null, "{r:#}");
        },
    ),
    (
        "providers",
        "providers --rounds 3 --of emulated --against emulated",
        |r, on| {
            names(r, "/figures/names/0", on);
            assert_ne!(r["figures"]["names"][0], r["figures"]["names"][1]);
            assert_eq!(number(r, "/machine/cores"), 1.0);
            let rows = r["figures"]["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 4);
            for row in rows {
                assert!(number(row, "/cpu_ratio") > 0.0, "{row:#}");
                assert_eq!(number(row, "/against/cpu_ns/count"), 3.0);
            }
        },
    ),
    ("verify", "verify --messages 300", |r, on| {
        names(r, "/figures/names", on);
        assert_eq!(number(r, "/figures/messages"), 300.0);
        for by in ["/figures/verified/0", "/figures/verified/1"] {
            assert_eq!(number(r, by), number(r, "/figures/bytes"), "{r:#}");
        }
    }),
    (
        "messages",
        "messages --messages 1500 --longest 40000",
        |r, on| {
            names(r, "/figures/names", on);
            messages(r, 1500.0);
        },
    ),
    ("write_rate", "write_rate --messages 20000", |r, on| {
        names(r, "/figures/names", on);
        assert!(number(r, "/figures/spot_checks") > 0.0);
    }),
    ("write_bw", "write_bw --messages 16", |r, on| {
        names(r, "/figures/names", on);
        assert_eq!(number(r, "/figures/verified"), 8.0 * 1048576.0);
    }),
    (
        "write_bw of both layers",
        "write_bw --messages 16 --layer both",
        both,
    ),
    (
        "write_bw of both layers, posted by a stream",
        "write_bw --messages 16 --layer both --poster stream",
        both,
    ),
    (
        "write_bw of messages between threads",
        "write_bw --messages 40 --layer mp --size 1000 --threads",
        |r, _| {
            assert_eq!(r["figures"]["rows"][0]["layer"], "mp");
            assert_eq!(number(r, "/figures/verified"), 8000.0);
        },
    ),
    ("start", "start --ranks 3 --starts 2", |r, on| {
        assert_eq!(r["figures"]["names"]["runtime"], on.runtime);
        for row in r["figures"]["rows"].as_array().unwrap() {
            let step = |name: &str| number(row, &format!("/{name}_ns/median"));
            assert_eq!(number(row, "/connected_ns/count"), 2.0);
            assert!(
                0.0 < step("joined") && step("joined") <= step("opened"),
                "{row:#}"
            );
            assert!(step("opened") < step("connected"), "{row:#}");
        }
    }),
    ("footprint", "footprint --ranks 4", |r, on| {
        assert_eq!(r["figures"]["names"]["runtime"], on.runtime);
        for what in ["connected", "stream", "tag"] {
            assert!(number(r, &format!("/figures/{what}/heap")) > 0.0, "{r:#}");
        }
        assert_eq!(r["targets"].as_array().map(Vec::len), Some(3));
    }),
    (
        "write_bw of device memory",
        "write_bw --messages 16 --size 64Ki --memory device --threads",
        |r, _| assert_eq!(number(r, "/figures/verified"), 8.0 * 65536.0),
    ),
    ("loopback", "loopback --chains 2 --singles 5", |r, on| {
        names(r, "/figures/rows/0/names", on);
        let rows = r["figures"]["rows"].as_array().unwrap();
        let lowerings: Vec<_> = rows.iter().map(|row| &row["names"]["lowering"]).collect();
        assert!(
            lowerings.starts_with(&[&"memops".into(), &"kernel".into()]),
            "{r:#}"
        );
        for row in rows {
            assert_eq!(number(row, "/chained_ns/count"), 2.0);
            assert_eq!(number(row, "/single_ns/count"), 5.0);
            assert!(number(row, "/empty_ns/min") > 0.0);
        }
    }),
    (
        "loopback of device memory",
        "loopback --chains 1 --singles 1 --size 4099 --memory device",
        |r, _| assert_eq!(r["figures"]["rows"][0]["names"]["memory"], "device"),
    ),
    ("soak", "soak --messages 10000", |r, on| {
        names(r, "/figures/names", on);
        assert!(r["figures"]["looks"].as_array().unwrap().len() > 50);
        assert!(number(r, "/figures/looks/0/heap") > 0.0);
        assert!(number(r, "/figures/looks/0/resident") > 0.0);
    }),
    ("gds_poll_lat", "gds_poll_lat -n 20 -p 2", |r, on| {
        assert_eq!(r["figures"]["runtime"], on.runtime);
        let rows = r["figures"]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 8);
        for row in rows {
            assert_eq!(number(row, "/latency_ns/count"), 20.0);
        }
    }),
    (
        "gds_poll_lat -c -g",
        "gds_poll_lat -n 5 -c -g -P 3",
        |r, _| {
            assert_eq!(r["figures"]["place"], "device");
            assert_eq!(r["figures"]["rows"].as_array().unwrap().len(), 1);
        },
    ),
    ("gds_sanity", "gds_sanity -n 3 -s 30", sanity),
    (
        "gds_kernel_latency",
        "gds_kernel_latency -n 100 -S 2Ki",
        kernel_latency,
    ),
    (
        "gds_kernel_latency --loopback",
        "gds_kernel_latency -n 100 -S 2Ki --loopback",
        kernel_latency,
    ),
    (
        "gds_kernel_latency -K -L",
        "gds_kernel_latency -n 100 -K -L -s 13",
        kernel_latency,
    ),
    (
        "gds_kernel_latency -E -L -B 80",
        "gds_kernel_latency -n 100 -S 2Ki -E -L -B 80 --threads",
        kernel_latency,
    ),
    (
        "gds_kernel_latency by kernels",
        "gds_kernel_latency -n 100 -S 2Ki --threads --lowering kernel",
        kernel_latency,
    ),
    (
        "pingpong",
        "pingpong --sizes 8,4099 --iterations 20",
        pingpong,
    ),
    (
        "pingpong by memory operations",
        "pingpong --sizes 8,4Ki --iterations 20 --lowering memops --threads",
        pingpong,
    ),
    (
        "pingpong by kernels",
        "pingpong --sizes 8,4Ki --iterations 20 --lowering kernel --threads",
        pingpong,
    ),
    (
        "pingpong of both layers",
        "pingpong --sizes 8,70001 --iterations 20 --layer both",
        |r, on| {
            let rows = r["figures"]["sizes"].as_array().unwrap();
            assert_eq!(rows.len(), 4);
            assert_eq!(r["figures"]["proof"].as_array().map(Vec::len), Some(4));
            for ratio in r["figures"]["ratios"].as_array().unwrap() {
                assert!(number(ratio, "/latency") > 0.0);
            }
            assert_eq!(r["figures"]["ratios"].as_array().map(Vec::len), Some(2));
            assert_eq!(r["figures"]["header"]["names"]["runtime"], on.runtime);
        },
    ),
    (
        "pingpong of messages by kernels",
        "pingpong --sizes 8,70001 --iterations 20 --layer mp --lowering kernel --threads",
        |r, _| assert_eq!(r["figures"]["proof"][1]["layer"], "mp"),
    ),
    (
        "pingpong of device memory",
        "pingpong --sizes 8,4Ki --iterations 20 --memory device",
        pingpong,
    ),
    (
        "latency",
        "latency -m 3:12 -i 20 -x 2 --op send,put,get,put-signal --poster cpu,stream",
        |r, on| osu(r, on, [3, 6, 12], 8),
    ),
    (
        "latency of long messages between threads",
        "latency -m 20001:80004 -i 3 -x 2 --op send,put,get,put-signal --poster cpu,stream \
         --threads -d D",
        |r, _| rows(r, [20001, 40002, 80004], 8),
    ),
    (
        "bandwidth of windows",
        "bandwidth -m 4000:16000 -W 5 -i 3 -x 1 --op send,put,get,put-signal --poster cpu,stream",
        |r, on| osu(r, on, [4000, 8000, 16000], 8),
    ),
    (
        "bandwidth of a window of many messages",
        "bandwidth -m 8:32 -W 100 -i 3 -x 1 --threads --poster cpu,stream -d H",
        |r, _| rows(r, [8, 16, 32], 2),
    ),
    (
        "bibw",
        "bibw -m 2000:8000 -W 5 -i 3 -x 1 --op send,put,get,put-signal --poster cpu,stream",
        |r, on| osu(r, on, [2000, 4000, 8000], 8),
    ),
    (
        "rate of two pairs",
        "rate -m 2:8 -W 20 -i 3 -x 1 -p 2 --op send,put-signal",
        |r, on| {
            osu(r, on, [2, 4, 8], 2);
            assert_eq!(number(r, "/figures/pairs"), 2.0);
            let row = &r["figures"]["rows"][0];
            let (bytes, messages) = (
                number(row, "/megabytes_per_second") * 1e6,
                number(row, "/messages_per_second"),
            );
            assert!((bytes / messages - 2.0).abs() < 1e-6, "{row:#}");
        },
    ),
    ("pingpong_all", "pingpong_all -n 3 -i 10 -x 1", |r, on| {
        names(r, "/figures/names", on);
        let pairs = r["figures"]["pairs"].as_array().unwrap();
        let ranks: Vec<_> = pairs.iter().map(|p| p["ranks"].to_string()).collect();
        assert_eq!(ranks, ["[0,1]", "[0,2]", "[1,2]"]);
        assert!(
            pairs.iter().all(|p| number(p, "/latency_us") > 0.0),
            "{r:#}"
        );
    }),
    (
        "all_pairs",
        "all_pairs -n 3 -i 40 -x 1 -b 20000 -W 3",
        |r, on| {
            names(r, "/figures/names", on);
            all_pairs(r, &["[0,1]", "[0,2]", "[1,2]"]);
        },
    ),
    (
        "all_pairs of puts with signals",
        "all_pairs -n 4 -i 20 -x 1 -b 4Ki --op put-signal",
        |r, _| all_pairs(r, &["[0,1]", "[0,2]", "[0,3]", "[1,2]", "[1,3]", "[2,3]"]),
    ),
    ("ahead", "ahead -m 8:16 -i 64 -x 1", |r, on| {
        names(r, "/figures/names", on);
        ahead(r, [8.0, 16.0]);
    }),
    (
        "ahead, in graphs, with receives ahead of their messages",
        "ahead -m 4096:8192 -i 64 -x 1 --graph --receives-ahead 4",
        |r, _| {
            ahead(r, [4096.0, 8192.0]);
            assert_eq!(r["figures"]["graph"], true);
        },
    ),
    (
        "ahead, puts with signals between threads",
        "ahead -m 4000:8000 -i 64 -x 1 --op put-signal --threads",
        |r, _| ahead(r, [4000.0, 8000.0]),
    ),
    (
        "overlap",
        "overlap -m 8:16 -i 400 -x 1 --kernels 3 --blocks 2 --rounds 10 --poster cpu,stream",
        |r, on| {
            names(r, "/figures/names", on);
            overlap(r, 4);
        },
    ),
    (
        "overlap of puts between threads",
        "overlap -m 9000:9000 -i 5 -x 1 --kernels 3 --blocks 2 --rounds 10 --op put,get --threads",
        |r, _| overlap(r, 2),
    ),
    (
        "producer_consumer",
        "producer_consumer -i 200 -W 3 -s 1000",
        |r, on| {
            names(r, "/figures/names", on);
            assert!(number(r, "/figures/items_per_second") > 0.0);
            assert_eq!(number(r, "/figures/verified"), 300.0 * 1000.0);
        },
    ),
    ("neighbours", "neighbours -i 40 -x 2", |r, on| {
        names(r, "/figures/names", on);
        neighbours(r, &["neighbourhood", "messages"], 40.0);
        let targets = if on.runtime == "soft" { 1 } else { 2 };
        assert_eq!(r["targets"].as_array().map(Vec::len), Some(targets));
    }),
    (
        "neighbours of three ranks",
        "neighbours -n 8 -s 1001 --ranks 3 -i 20 -x 2 --way neighbourhood --double --threads",
        |r, _| neighbours(r, &["neighbourhood"], 20.0),
    ),
];

/// Runs the program with these arguments.
fn run(words: &str, more: &[&str], on: &On) -> Output {
    let words: Vec<&str> = words.split(' ').chain(more.iter().copied()).collect();
    let mut command = mpbench(on.gpu, &words);
    command.envs(on.env.iter().cloned());
    end(start(&mut command))
}

/// Runs a command in its short form.
pub fn play((name, words, holds): &Short, on: &On) {
    let folder = Folder::new(&format!("{}-{}", on.gpu, name.replace(' ', "-")));
    let file = folder.at("r.json");
    let output = run(words, &["--json", &file], on);
    assert!(output.status.success(), "{}", text(&output));
    let report = json(&file);
    assert_eq!(report["benchmark"], words.split(' ').next().unwrap());
    assert!(report["program"]["executable_sha256"].is_string());
    holds(&report, on);
}

/// Commands with an injected error, and the message that they must print.
pub const WRONG: [(&str, &str); 11] = [
    (
        "pingpong --sizes 64 --iterations 20 --threads --corrupt 9",
        "byte 32 of message 9 from rank 1",
    ),
    ("verify --messages 300 --spoil 200", "wrong bytes"),
    ("soak --messages 20000 --leak 8", "the heap grew"),
    (
        "messages --messages 600 --longest 5000 --threads --spoil 400",
        "1 wrong bytes: the first is byte ",
    ),
    (
        "bandwidth -m 64:64 -W 3 -i 1 -x 3 --threads --corrupt 2",
        "wrong bytes in round 2: byte 32 is ",
    ),
    (
        "ahead -m 64:64 -i 64 -x 2 --threads --corrupt 1",
        "wrong bytes in round 1: byte 32 is ",
    ),
    (
        "all_pairs -n 3 -s 64 -i 20 -x 1 --threads --corrupt 1",
        "wrong bytes in round 1: byte 32 is ",
    ),
    // The round of the messages beside kernels.
    (
        "overlap -m 64:64 -i 400 -x 2 --kernels 3 --blocks 2 --rounds 10 --threads --corrupt 3",
        "wrong bytes in round 3: byte 32 is ",
    ),
    (
        "neighbours -n 2 -i 1 --threads --corrupt 3",
        "step 3: wrong bytes from neighbour 0, rank ",
    ),
    (
        "producer_consumer -i 50 -s 64 --threads --spoil 120",
        "byte 32 of message 120 from rank 0",
    ),
    ("gds_sanity -n 2 -s 10 -g --corrupt", "checks failed"),
];

/// The commands must fail, with the message.
pub fn play_wrong((words, says): (&str, &str), on: &On) {
    let output = run(words, &[], on);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains(says), "{}", text(&output));
}

/// Checks the report's fields about its GPU.
fn names(report: &Value, at: &str, on: &On) {
    let names = report.pointer(at).unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(names["runtime"], on.runtime);
    assert!(names["gpu"].as_str().unwrap().starts_with(on.runtime));
    let driver = names["driver"]["cuda"].as_str();
    assert_eq!(driver.is_some(), on.runtime == "cuda", "{names:#}");
    let memory = if on.runtime != "soft" {
        "pinned"
    } else {
        "device"
    };
    assert_eq!(names["memory"], memory);
}

fn post(report: &Value, on: &On, ways: usize) {
    names(report, "/figures/names", on);
    let rows = report["figures"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), ways);
    for row in &rows[..3] {
        assert_eq!(row["layer"], "gdsync");
        assert_eq!(row["allocations"], 0, "{row:#}");
    }
    // Record and doorbell, in the library's call and in the bare one.
    assert_eq!(rows[0]["operations"], 2);
    assert_eq!(
        rows[0]["bare_ns"].is_object(),
        on.runtime == "cuda",
        "{report:#}"
    );
    let targets = report["targets"].as_array().unwrap();
    let above = |t: &Value| {
        t["name"]
            .as_str()
            .unwrap()
            .contains("above the bare driver call")
    };
    assert_eq!(
        targets.iter().any(above),
        on.runtime == "cuda",
        "{report:#}"
    );
}

fn sanity(report: &Value, on: &On) {
    assert_eq!(report["figures"]["runtime"], on.runtime);
    let rows = report["figures"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 27);
    for row in rows {
        let passed = row["outcome"]["passed"].as_u64();
        // Some real GPUs have no flush; nothing else may be skipped.
        let left_out = row["check"] == "flush" && row["outcome"]["not_run"].is_string();
        assert!(passed.is_some_and(|n| n > 0) || left_out, "{row:#}");
    }
}

fn kernel_latency(report: &Value, on: &On) {
    let figures = &report["figures"];
    assert_eq!(figures["names"]["runtime"], on.runtime);
    assert_eq!(figures["iterations"], 100);
    // Plus three warm-up batches, with as many rounds as each batch has.
    let batch = number(report, "/options/batch");
    assert_eq!(number(figures, "/verified"), 100.0 + 3.0 * batch);
    assert!(number(figures, "/elapsed_ns") > 0.0);
}

fn pingpong(report: &Value, on: &On) {
    let header = &report["figures"]["header"];
    assert_eq!(header["names"]["runtime"], on.runtime);
    assert_eq!(report["figures"]["sizes"].as_array().unwrap().len(), 2);
    for rank in ["/figures/proof/0", "/figures/proof/1"] {
        let proof = report.pointer(rank).unwrap();
        assert_eq!(proof["trace"]["rung"], proof["trace"]["sends"], "{proof:#}");
    }
}

fn neighbours(report: &Value, ways: &[&str], steps: f64) {
    let rows = report["figures"]["rows"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .map(|row| row["way"].as_str().unwrap())
        .collect();
    assert_eq!(found, ways);
    for row in rows {
        assert_eq!(number(row, "/host_ns/count"), steps);
        assert!(number(row, "/gpu_ns/min") > 0.0, "{row:#}");
    }
    let ratios = report["figures"]["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), ways.len() - 1);
    assert!(ratios.iter().all(|ratio| number(ratio, "/host") > 0.0));
}

/// Both figures of a measurement alone and beside something else.
fn both_of(row: &Value, at: &str) {
    for when in ["alone", "beside"] {
        assert!(number(row, &format!("/{at}/{when}")) > 0.0, "{row:#}");
    }
}

fn all_pairs(report: &Value, ranks: &[&str]) {
    let pairs = report["figures"]["pairs"].as_array().unwrap();
    let found: Vec<_> = pairs.iter().map(|pair| pair["ranks"].to_string()).collect();
    assert_eq!(found, ranks);
    for pair in pairs {
        both_of(pair, "latency_us");
        both_of(pair, "megabytes_per_second");
    }
    let slowest = pairs
        .iter()
        .map(|pair| number(pair, "/megabytes_per_second/beside"));
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let sum = number(report, "/figures/sum_megabytes_per_second");
    assert!((sum / slowest / pairs.len() as f64 - 1.0).abs() < 1e-6);
}

fn ahead(report: &Value, sizes: [f64; 2]) {
    let rows = report["figures"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, size) in rows.iter().zip(sizes) {
        assert_eq!(number(row, "/size"), size);
        // Two batches of 32 rounds.
        assert_eq!(number(row, "/polling_ns/count"), 1.0);
        assert_eq!(number(row, "/sleeping_ns/count"), 1.0);
        assert!(number(row, "/ratio") > 0.0, "{row:#}");
    }
}

/// Of a program of `messages` of lengths up to 40000 bytes.
pub fn messages(report: &Value, messages: f64) {
    let figure = |name: &str| number(report, &format!("/figures/{name}"));
    assert_eq!(figure("messages"), messages);
    assert_eq!(figure("tags"), 8.0);
    assert_eq!(figure("before") + figure("after"), messages);
    for some in ["before", "after", "lengths"] {
        assert!(figure(some) > messages / 5.0, "{report:#}");
    }
    let by_rank = |name: &str| -> f64 {
        let of = |rank| number(report, &format!("/figures/by_rank/{rank}/counts/{name}"));
        of(0) + of(1)
    };
    assert_eq!(by_rank("received"), figure("bytes"));
    // Two streams of each rank.
    let batches = (messages / 256.0).ceil();
    let all = by_rank("received") + by_rank("beside");
    assert_eq!(all, batches * 4.0 * 643_072.0);
}

fn overlap(report: &Value, count: usize) {
    let rows = report["figures"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), count);
    for row in rows {
        both_of(row, "latency_us");
        both_of(row, "kernel_us");
    }
    let ratios = report["figures"]["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), count);
    assert!(ratios.iter().all(|ratio| number(ratio, "/kernel") > 0.0));
}

/// A row for each size and way, and a ratio for each way but the first.
fn osu(report: &Value, on: &On, sizes: [u64; 3], ways: usize) {
    names(report, "/figures/names", on);
    rows(report, sizes, ways);
}

fn rows(report: &Value, sizes: [u64; 3], ways: usize) {
    let rows = report["figures"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * ways);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(number(row, "/size"), sizes[i / ways] as f64);
        assert_eq!(row["op"], rows[i % ways]["op"]);
        assert_eq!(row["poster"], rows[i % ways]["poster"]);
        let is_latency = report["benchmark"] == "latency";
        for (at, has) in [
            ("latency_us", is_latency),
            ("megabytes_per_second", !is_latency),
            ("messages_per_second", true),
        ] {
            assert_eq!(row[at].as_f64().is_some_and(|f| f > 0.0), has, "{row:#}");
        }
    }
    let ratios = report["figures"]["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 3 * (ways - 1));
    assert!(ratios.iter().all(|ratio| number(ratio, "/ratio") > 0.0));
}

fn both(report: &Value, on: &On) {
    names(report, "/figures/names", on);
    let rows = report["figures"]["rows"].as_array().unwrap();
    let layers: Vec<_> = rows.iter().map(|row| &row["layer"]).collect();
    assert_eq!(layers, ["gdsync", "mp"]);
    for row in rows {
        assert!(number(row, "/messages") >= 16.0 && number(row, "/bandwidth") > 0.0);
    }
    assert!(number(report, "/figures/ratio") > 0.0);
    assert_eq!(number(report, "/figures/verified"), 16.0 * 1048576.0);
}
