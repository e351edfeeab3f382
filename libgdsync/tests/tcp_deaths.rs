//! Processes at the other end of a TCP connection are killed at random moments under traffic:
//! requests end with a status, streams pass, what has arrived is whole, and the queue pair connects
//! to the next process.

mod common;
mod tcp_rig;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use common::*;
use gdsync::rdma::{QpAddress, RemoteMemory};
use tcp_rig::*;

/// Messages in flight of each direction.
const AHEAD: usize = 6;
/// Most bytes of one.
const MOST: usize = 20_000;
/// Bytes of memory: what is sent, what is received, what the peer writes and reads.
const ROOM: usize = (2 * AHEAD + 2) * MOST;
const ENCRYPTED: &str = "encrypted";

/// A device whose connections have several sockets if they are encrypted.
fn open(gpu: &Gpu, encrypted: bool) -> Device {
    let sockets = if encrypted { 3 } else { 1 };
    Device::tcp(gpu, options().encrypted(encrypted).sockets(sockets)).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.trim().as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

fn records(side: &Side) -> String {
    let memory = side.mem.remote().to_bytes();
    format!("{} {}", hex(&side.qp.address().to_bytes()), hex(&memory))
}

fn parse(line: &str) -> (QpAddress, RemoteMemory) {
    let (address, memory) = line.trim().split_once(' ').unwrap();
    (
        QpAddress::from_bytes(&bytes(address)).unwrap(),
        RemoteMemory::from_bytes(&bytes(memory)).unwrap(),
    )
}

/// A message: its first byte, from which the others follow.
fn pattern(salt: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| salt.wrapping_add((i / 7) as u8)).collect()
}

/// Sends, writes and reads, and receives what the peer sends, until a request fails. Returns the
/// number of messages that arrived.
fn play(side: &mut Side, there: &RemoteMemory, rng: &mut fastrand::Rng, what: &str) -> u32 {
    let gpu = side.qp.device().gpu().clone();
    let stream = gpu.stream().unwrap();
    let mem = side.mem.clone();
    let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
    let (mut sent, mut posted, mut arrived) = (0, 0, 0);
    let refused = |e: gdsync::Error| match e.kind() {
        Kind::Failed(status) => Some(status),
        Kind::QueueFull => None,
        _ => panic!("{what}: {e}"),
    };
    let failure = loop {
        let mut step = || -> gdsync::Result<()> {
            while receives.len() < AHEAD {
                let at = (AHEAD + posted % AHEAD) * MOST;
                let list = [mem.sge(at as u64, MOST as u32)];
                let receive = side.qp.prepare_receive(&list)?;
                side.qp.post_receive(receive)?;
                receives.push_back((receive, at));
                posted += 1;
            }
            if sends.len() < AHEAD {
                let (at, len) = (sent % AHEAD * MOST, rng.usize(1..=MOST));
                mem.region().write(at, &pattern(rng.u8(..), len))?;
                let list = [mem.sge(at as u64, len as u32)];
                let span = there.span((2 * AHEAD * MOST) as u64, len as u64)?;
                let back = [mem.sge(((2 * AHEAD + 1) * MOST) as u64, len as u32)];
                let work = match rng.u32(..4) {
                    0 => Work::write(&list, span),
                    1 => Work::read(&back, span),
                    _ => Work::send(&list),
                };
                let send = side.qp.prepare(&work.signaled())?;
                match rng.bool() {
                    true => side.qp.post_on(&stream, &send_and_wait(send))?,
                    false => side.qp.post_within(send, LIMIT)?,
                }
                sends.push_back(send);
                sent += 1;
            }
            if let Some(send) = sends.front()
                && side.qp.poll(*send)? == Some(Status::SUCCESS)
            {
                sends.pop_front();
            }
            if let Some((receive, at)) = receives.front()
                && side.qp.poll(*receive)? == Some(Status::SUCCESS)
            {
                let len = side.qp.received(*receive)?.len as usize;
                let got = mem.region().vec(*at, len);
                assert!(got == pattern(got[0], len), "{what}: other bytes");
                arrived += 1;
                receives.pop_front();
            }
            Ok(())
        };
        if let Some(status) = step().err().and_then(refused) {
            break status;
        }
        if let Some(status) = side.qp.error() {
            break status;
        }
    };
    assert_eq!(failure, Status::TRANSPORT_RETRY, "{what}");
    for (i, send) in sends.into_iter().enumerate() {
        let status = end(&mut side.qp, send, what);
        let good = LOST.contains(&status) || status == Status::SUCCESS;
        assert!(good, "{what}: send {i}: {status}");
    }
    for (receive, at) in receives {
        match end(&mut side.qp, receive, what) {
            Status::SUCCESS => {
                let len = side.qp.received(receive).unwrap().len as usize;
                let got = mem.region().vec(at, len);
                assert!(got == pattern(got[0], len), "{what}: other bytes");
            }
            status => assert_eq!(status, Status::FLUSHED, "{what}"),
        }
    }
    finish(&stream, what);
    arrived
}

/// The other process; killed when dropped.
struct Peer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(seed: u64, encrypted: bool) -> Peer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut peer = Peer { process, lines };
        peer.say(&format!(
            "{seed} {}",
            if encrypted { ENCRYPTED } else { "" }
        ));
        peer
    }

    fn say(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let found = lines.find_map(|line| line.strip_prefix(word).map(str::to_owned));
        found.expect("the peer ended early")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the other process of peers_may_be_killed_under_traffic"]
fn peer() {
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line
    };
    let line = read();
    let (seed, encrypted) = line.trim_end_matches('\n').split_once(' ').unwrap();
    let mut rng = fastrand::Rng::with_seed(seed.parse().unwrap());
    let gpu = Gpu::soft().unwrap();
    let device = open(&gpu, encrypted == ENCRYPTED);
    let mut side = Side::with(&device, &QpConfig::default(), MemoryKind::Pinned, ROOM);
    println!("\npeer {}", records(&side));
    let (address, memory) = parse(&read());
    side.qp.connect(&address).unwrap();
    println!("connected");
    // Ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    play(&mut side, &memory, &mut rng, "the other process");
}

#[test]
fn peers_may_be_killed_under_traffic() {
    let deaths = std::env::var("GDS_DEATHS").map_or(60, |n| n.parse().expect("a number"));
    let gpu = roomy();
    let devices = [false, true].map(|encrypted| open(&gpu, encrypted));
    let mut sides = devices.each_ref().map(|device| {
        let (_, config) = &paths()[0];
        Side::with(device, &sized(config, 64, 16), MemoryKind::Pinned, ROOM)
    });
    let mut other = Couple::of(
        devices.clone().map(|_| devices[0].clone()),
        &QpConfig::default(),
    );
    other.connect();
    let mut arrived = 0;
    let mut death = 0;
    gds_sim::seeds(deaths, |seed| -> Result<(), String> {
        let what = format!("seed {seed:#x}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let encrypted = rng.bool();
        let side = &mut sides[usize::from(encrypted)];
        let mut peer = Peer::start(seed, encrypted);
        let (address, memory) = parse(&peer.line("peer "));
        peer.say(&records(side));
        side.qp.connect(&address).unwrap();
        peer.line("connected");
        let pause = Duration::from_micros(rng.u64(..20_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(pause);
            peer.kill();
        });
        arrived += play(side, &memory, &mut rng, &what);
        killer.join().unwrap();
        assert!(other.exchange(death, &[], &what));
        side.qp.quiet(LIMIT).unwrap();
        side.qp.reset().unwrap();
        death += 1;
        Ok(())
    });
    println!("{death} deaths, {arrived} messages");
    assert!(arrived > 0);
}
