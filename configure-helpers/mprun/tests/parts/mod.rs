//! The programs that ranks of the tests run.

use std::io::Write;

use super::from_env;
use super::jobs::{next, until};

/// Runs the program `part`. A failure panics, so the rank exits with status 101.
pub fn play(part: &str, arguments: &[String]) {
    match part {
        "ring" => ring(),
        "chatter" => chatter(),
        "die" => die(arguments[0].parse().unwrap()),
        other => panic!("no part {other}"),
    }
}

/// Sends its rank to its right neighbour, and prints the rank that it received.
fn ring() {
    let rank = from_env().unwrap();
    // A process joins once: a second call returns the same job.
    assert_eq!(from_env().unwrap().job(), rank.job());
    let (me, size) = (rank.rank(), rank.size());
    assert!((0..size).all(|r| rank.host(r) == rank.host(me)));
    rank.send((me + 1) % size, 0, &me.to_le_bytes()).unwrap();
    let (from, message) = next(&*rank, 0);
    assert_eq!(message, from.to_le_bytes());
    println!("rank {me} of {size} received {from}");
}

/// Prints many lines in pieces, on both streams.
fn chatter() {
    let rank = std::env::var("MP_RANK").unwrap();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    for i in 0..200 {
        let rest = "x".repeat(i * 10);
        for piece in ["out", " ", &rank, " ", &i.to_string(), " ", &rest, "\n"] {
            out.write_all(piece.as_bytes()).unwrap();
            out.flush().unwrap();
        }
        writeln!(err, "err {rank} {i} {rest}").unwrap();
    }
    write!(out, "out without an end").unwrap();
    write!(err, "err without an end").unwrap();
}

/// Rank `victim` kills itself; the others detect it, and still exchange messages.
fn die(victim: u32) {
    // mprun sends SIGTERM as soon as it detects the death.
    let (_signalled, to) = std::os::unix::net::UnixStream::pair().unwrap();
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, to).unwrap();
    let rank = from_env().unwrap();
    let me = rank.rank();
    if me == victim {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
    }
    until(|| rank.gone(victim).then_some(()));
    println!("rank {victim} is gone");
    let alive = (0..rank.size())
        .filter(|r| *r != victim)
        .collect::<Vec<_>>();
    for other in &alive {
        rank.send(*other, 1, b"alive").unwrap();
    }
    let left = (me + rank.size() - 1) % rank.size();
    let mut senders = alive.iter().map(|_| next(&*rank, 1).0).collect::<Vec<_>>();
    senders.sort_unstable();
    assert_eq!(senders, alive);
    if left != victim {
        assert!(senders.contains(&left));
        println!("rank {left} is alive");
    }
}
