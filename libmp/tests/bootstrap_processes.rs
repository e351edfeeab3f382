//! Ranks as processes that join by the variables of their launcher. A rank is this test program
//! itself, started with the name of a part.

#[path = "common/jobs.rs"]
mod jobs;

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use jobs::{Place, until};
use libtest_mimic::{Arguments, Trial};
use mp::bootstrap::{Bootstrap, from_env};

const SECRET: (&str, &str) = ("MP_SECRET", "not much of a secret");

fn main() {
    if let Some(part) = std::env::args().nth(1).filter(|a| a.starts_with("as:")) {
        return play(&part[3..]);
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mpirun = Command::new("mpirun").arg("--version").output().is_ok();
    let name = match mpirun {
        true => "ranks of mpirun",
        false => "ranks of mpirun (needs mpirun: it is not installed)",
    };
    let trials = vec![
        trial("ranks of every launcher on one host", launchers),
        trial("ranks at a store that rank 0 hosts", hosted),
        trial("ranks in a directory", directory),
        trial("a process that forks stays what it is", forked),
        trial("a killed rank is seen by the others", killed),
        trial("no variables make a job of one", alone),
        trial(name, by_mpirun).with_ignored_flag(!mpirun),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

// --- parts -------------------------------------------------------------------------------------

fn play(part: &str) {
    let rank = from_env().unwrap();
    assert_eq!(from_env().unwrap().job(), rank.job());
    match part {
        "ring" => ring(&*rank),
        "fork" => {
            // From here on, only the state behind `from_env` keeps the process in the job.
            drop(rank);
            // SAFETY: the process has one thread, and the child does nothing but end.
            match unsafe { libc::fork() } {
                0 => std::process::exit(0),
                child => {
                    let mut status = 0;
                    // SAFETY: `status` is a word for this call to write.
                    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                    assert_eq!((waited, status), (child, 0));
                }
            }
            ring(&*from_env().unwrap());
        }
        "die" => die(&*rank),
        other => panic!("no part {other}"),
    }
}

/// Sends its rank to the right neighbour, in a message and through a pipe whose end it passes.
fn ring(rank: &dyn Bootstrap) {
    let (me, size) = (rank.rank(), rank.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let (mut read, write) = std::io::pipe().unwrap();
    rank.send(right, 0, &me.to_le_bytes()).unwrap();
    until(|| rank.send_fd(left, 1, write.as_fd()).ok());
    drop(write);
    let (from, message) = until(|| rank.receive(0).unwrap());
    assert_eq!((from, message), (left, left.to_le_bytes().to_vec()));
    let (from, theirs) = until(|| rank.receive_fd(1).unwrap());
    assert_eq!(from, right);
    File::from(theirs).write_all(&me.to_le_bytes()).unwrap();
    let mut text = Vec::new();
    read.read_to_end(&mut text).unwrap();
    assert_eq!(text, left.to_le_bytes());
    // No rank leaves before all are done: messages in flight to a rank that leaves are lost. Rank 0,
    // which may host the store, is the last to learn it.
    for other in (0..size).rev() {
        rank.send(other, 2, b"done").unwrap();
    }
    for _ in 0..size {
        until(|| rank.receive(2).unwrap());
    }
    println!("rank {me} of {size} is done with {left}");
}

/// Rank 1 is killed; the others detect its death and continue.
fn die(rank: &dyn Bootstrap) {
    if rank.rank() == 1 {
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: raises a signal; nothing is left to be unsound.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    until(|| rank.gone(1).then_some(()));
    let e = rank.send(1, 0, b"").unwrap_err();
    assert_eq!(e.rank(), Some(1));
    for other in [2, 0] {
        rank.send(other, 0, b"still").unwrap();
    }
    for _ in 0..2 {
        until(|| rank.receive(0).unwrap());
    }
    println!("rank {} goes on", rank.rank());
}

// --- tests -------------------------------------------------------------------------------------

/// A private folder.
fn folder(name: &str) -> Place {
    let place = Place::new(name);
    DirBuilder::new().mode(0o700).create(&place.0).unwrap();
    place
}

fn own() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Starts this number of ranks, with these variables and no others that set a rank.
fn start(part: &str, size: u32, [rank, of]: [&str; 2], more: &[(&str, &str)]) -> Vec<Child> {
    let start = |me: u32| {
        let mut command = Command::new(own());
        let path = std::env::var_os("PATH").map(|path| ("PATH", path));
        command.env_clear().envs(path).envs(more.iter().copied());
        if size > 1 {
            command.env(rank, me.to_string()).env(of, size.to_string());
        }
        command.arg(format!("as:{part}")).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    (0..size).map(start).collect()
}

const EXPLICIT: [&str; 2] = ["MP_RANK", "MP_SIZE"];

/// The output of ranks that have all succeeded.
fn outputs(ranks: Vec<Child>) -> Vec<String> {
    let outputs = ranks.into_iter().map(|r| r.wait_with_output().unwrap());
    let text = |o: Output| {
        assert!(o.status.success(), "{:?}", o.status);
        String::from_utf8(o.stdout).unwrap()
    };
    outputs.map(text).collect()
}

fn expect_ring(ranks: Vec<Child>) {
    let size = ranks.len();
    for (me, text) in outputs(ranks).into_iter().enumerate() {
        let left = (me + size - 1) % size;
        assert_eq!(text, format!("rank {me} of {size} is done with {left}\n"));
    }
}

fn launchers() {
    let folder = folder("runtime");
    let place = ("XDG_RUNTIME_DIR", folder.0.to_str().unwrap());
    // The names of the variables for rank and size, and the other variables of each launcher.
    let launchers = [
        (EXPLICIT, Some(("MP_JOB", "test"))),
        (["RANK", "WORLD_SIZE"], Some(("LOCAL_WORLD_SIZE", "3"))),
        (["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], None),
        (["PMIX_RANK", "SLURM_NTASKS"], Some(("PMIX_NAMESPACE", "7"))),
        (["PMI_RANK", "PMI_SIZE"], None),
        (
            ["SLURM_PROCID", "SLURM_NTASKS"],
            Some(("SLURM_STEP_ID", "0")),
        ),
    ];
    for (names, more) in launchers {
        let more: Vec<_> = more.into_iter().chain([place]).collect();
        expect_ring(start("ring", 3, names, &more));
        assert_eq!(folder.names(), [""; 0]);
    }
}

/// Stores listen here: connections, whose source is 127.0.0.1, take none of its ports.
const HOST: &str = "127.0.0.2";
const BIND: (&str, &str) = ("MP_BIND", HOST);

/// A port of [`HOST`] that is free now, and the next one.
fn free_port() -> u16 {
    until(|| {
        let free = TcpListener::bind((HOST, 0)).and_then(|l| l.local_addr());
        let port = free.ok()?.port();
        let next = port.checked_add(1)?;
        TcpListener::bind((HOST, next)).ok().map(|_| port)
    })
}

/// Three ranks that meet at a store.
fn at_store(part: &str, store: &str) -> Vec<Child> {
    start(part, 3, EXPLICIT, &[("MP_STORE", store), BIND, SECRET])
}

fn hosted() {
    let port = free_port().to_string();
    expect_ring(at_store("ring", &format!("tcp://{HOST}:{port}")));
    // As if the ranks were on several hosts.
    let spread = [
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", HOST),
        ("MASTER_PORT", &port),
        BIND,
        SECRET,
    ];
    expect_ring(start("ring", 3, ["RANK", "WORLD_SIZE"], &spread));
}

/// Three ranks that meet in a folder.
fn in_folder(part: &str, folder: &Place) -> Vec<Child> {
    at_store(part, &format!("file://{}", folder.0.display()))
}

fn directory() {
    let folder = folder("directory");
    for _ in 0..2 {
        expect_ring(in_folder("ring", &folder));
        assert_eq!(folder.names(), [""; 0]);
    }
}

fn forked() {
    let folder = folder("forked");
    expect_ring(in_folder("fork", &folder));
}

fn killed() {
    let folder = folder("killed");
    let survive = |mut ranks: Vec<Child>| {
        let status = ranks.remove(1).wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        let expected = ["rank 0 goes on\n", "rank 2 goes on\n"];
        assert_eq!(outputs(ranks), expected);
    };
    survive(in_folder("die", &folder));
    // The files that the job left do not block the next job.
    survive(in_folder("die", &folder));
    expect_ring(in_folder("ring", &folder));

    let store = format!("tcp://{HOST}:{}", free_port());
    survive(at_store("die", &store));
}

fn alone() {
    expect_ring(start("ring", 1, EXPLICIT, &[]));
}

fn by_mpirun() {
    let folder = folder("mpirun");
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", "4"]);
    command.arg(own()).arg("as:ring");
    // Without these variables mpirun refuses to run as root; for other users they have no effect.
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("XDG_RUNTIME_DIR", &folder.0);
    let output = command.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines().collect::<Vec<_>>();
    lines.sort_unstable();
    let line = |me| format!("rank {me} of 4 is done with {}", (me + 3) % 4);
    assert_eq!(lines, [0, 1, 2, 3].map(line));
    assert_eq!(folder.names(), [""; 0]);
}
