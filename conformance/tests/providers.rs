//! All trials of `conformance` over the providers that are not linked-in virtual NICs: over the
//! installed libibverbs and libmlx5, on virtual NICs by `libvmlx5.so`, and over TCP on the loopback
//! interface. The test prints the result of each run. `hardware`, `matrix` and `mp_matrix` run the trials over the linked-in virtual NIC.

#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;
#[path = "../../libgdsync/tests/virtual_nic/mod.rs"]
mod virtual_nic;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use conformance::hardware::child;
use conformance::hardware::is_required;
use libtest_mimic::{Arguments, Failed, Trial};
use standin::Variant;

/// Time limit against hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Frames are lost, duplicated and delayed.
const FAULTS: &str = "loss=0.01,dup=0.01,reorder=0.01,seed=7";

/// The same, and WRITEs placed out of order.
const DISORDER: &str = "loss=0.01,dup=0.01,reorder=0.01,ooo=0.5,seed=7";

/// The trials on a CUDA GPU, which a stand-in for libcuda simulates.
const ON_CUDA: &str = "cuda ";

/// The runs: arguments behind `--over`, and laps of each ring.
const RUNS: [(&[&str], &str); 19] = [
    (&["mlx5", "gdsync"], "20"),
    (&["mlx5", "matrix"], "4"),
    (&["mlx5", "mp", "--gpu", "soft"], "1"),
    (&["verbs", "gdsync"], "20"),
    (&["verbs", "matrix"], "4"),
    (&["verbs", "mp", "--gpu", "soft"], "1"),
    // Addressed by GID.
    (&["mlx5", "--link", "roce", "matrix"], "4"),
    (&["verbs", "--link", "roce", "matrix"], "4"),
    // Headers of IPv4.
    (&["mlx5", "--link", "roce", "gdsync", "datagram"], "1"),
    (&["verbs", "--link", "roce", "gdsync", "datagram"], "1"),
    (&["mlx5", "--faults", FAULTS, "gdsync", "program:"], "5"),
    (&["verbs", "--faults", FAULTS, "gdsync", "program:"], "5"),
    (&["mlx5", "--faults", DISORDER, "mp", "--few"], "1"),
    (&["verbs", "--link", "roce", "mp", "--few"], "1"),
    (&["mlx5", "gdsync", ON_CUDA], "2"),
    (&["verbs", "gdsync", ON_CUDA], "2"),
    (&[TCP, "gdsync"], "300"),
    (&[TCP, "matrix"], "100"),
    (&[TCP, "gdsync", ON_CUDA], "2"),
];

/// The provider that needs no NIC.
const TCP: &str = "tcp";

/// Whether rdma-core is installed.
fn is_installed() -> bool {
    let folders = [
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
        format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH),
    ];
    let installed = |name| folders.iter().any(|f| Path::new(f).join(name).exists());
    installed("libibverbs.so.1") && installed("libmlx5.so.1")
}

fn run(words: &[&str], laps: &str) -> Result<(), Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    command
        .arg("--over")
        .args(words)
        .args(["--color", "never"])
        .env("GDS_LAPS", laps)
        .env_remove("GDS_LOWER")
        .env_remove("GDS_DOORBELL")
        .env_remove("GDS_ENDPOINT");
    if words.contains(&ON_CUDA) {
        command
            .env(standin::LIBRARY, standin::build(&Variant::default()))
            .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
            .env("GDS_REQUIRE", "cuda");
    }
    child::tie(&mut command);
    let start = Instant::now();
    let output = child::run(command, LIMIT)?;
    // The summaries follow the results of the trials.
    let end = output
        .rsplit_once("test result: ")
        .map_or("", |(_, end)| end);
    let (_, end) = end.split_once('\n').unwrap_or_default();
    println!("{} ({:.0} s)", end.trim(), start.elapsed().as_secs_f64());
    match is_over(end, words) {
        true => Ok(()),
        false => Err(format!("no trial ran over the requested provider and NICs\n{output}").into()),
    }
}

/// Checks that trials have run, over the provider and of the kind in the arguments, on two NICs
/// where a trial needs two.
fn is_over(end: &str, words: &[&str]) -> bool {
    let kind = words
        .iter()
        .find(|w| ["gdsync", "matrix", "mp"].contains(w));
    let nic = match words[0] {
        TCP => "127.0.0.1",
        _ => "mlx5_0:1",
    };
    let ran = |line: &str| {
        let line = line.strip_prefix(&format!("{} on {nic}: ", words[0]))?;
        let (count, _) = line
            .strip_prefix(&format!("{}: ", kind?))?
            .split_once(" run")?;
        count.parse::<usize>().ok()
    };
    let count = end.lines().find_map(ran);
    count.is_some_and(|count| count > 0) && !end.contains("opened twice")
}

fn main() {
    child::end_with_parent().expect("the parent process runs");
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let here = is_installed();
    if here && !arguments.list {
        virtual_nic::library();
    }
    let trials = RUNS.map(|(words, laps)| {
        let here = here || words[0] == TCP;
        let title = match here {
            true => format!("over {}", words.join(" ")),
            false => format!("over {} (needs rdma-core)", words.join(" ")),
        };
        // The virtual NIC is required below rdma-core too.
        let required = ["rdma_core", "virt"].iter().any(|what| is_required(what));
        let trial = move || match here {
            true => run(words, laps),
            false => Err("GDS_REQUIRE names rdma-core, which is not installed".into()),
        };
        Trial::test(title, trial).with_ignored_flag(!here && !required)
    });
    libtest_mimic::run(&arguments, trials.into()).exit()
}
