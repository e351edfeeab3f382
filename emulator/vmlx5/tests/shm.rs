//! NICs over shared memory: in one process, and in two processes, one of which is killed.

mod rig;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gds_step::{Bell, Machine, Step, Time};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Payload, Remote, SendWqe};
use rig::*;
use vmlx5::fabric::shm::{ShmConfig, ShmFabric};
use vmlx5::fabric::{LinkError, LinkState, NodeId};
use vmlx5::*;

const REQ: CqeOpcode = CqeOpcode::REQ;

fn fabric(config: ShmConfig) -> Box<dyn fabric::Fabric> {
    let bell = Arc::new(Bell::new().unwrap());
    Box::new(ShmFabric::open(config, bell).unwrap())
}

fn world() -> World {
    World::on((0..2).map(|_| fabric(ShmConfig::default())).collect())
}

/// Two connected ends, on separate NICs.
fn ends(world: &mut World) -> (End, End) {
    let [a, b] = [0, 1].map(|nic| world.end(nic, EndConfig::default()));
    world.connect(&a, &b);
    (a, b)
}

/// Steps until a send completes; it fails since the other end does not exist.
#[track_caller]
fn gives_up(world: &mut World, a: &mut End, index: u16) {
    let mut error = None;
    until(world, |_| {
        error = a.send.poll();
        error.is_some()
    });
    let error = error.unwrap();
    assert_err(&error, CqeOpcode::REQ_ERR, index, Syndrome::TRANSPORT_RETRY);
    assert_eq!(error.as_error().vendor_err, vendor::RETRY);
}

/// Steps until `done`, with time advancing quickly.
#[track_caller]
fn until(world: &mut World, mut done: impl FnMut(&mut World) -> bool) {
    for _ in 0..1_000_000 {
        if done(world) {
            return;
        }
        world.now += 20_000;
        world.step();
    }
    panic!("the condition does not become true");
}

#[test]
fn work_fails_after_the_peer_closes() {
    let mut world = world();
    let (mut a, b) = ends(&mut world);
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    until(&mut world, |_| a.send.poll().is_some());
    // This send waits for a receive that is never posted.
    let waiting = a.post(&send(&[]));
    until(&mut world, |w| w.nics[1].query_qp(b.qpn).unwrap().starved);
    assert_eq!(s.wrapping_add(1), waiting);
    drop(world.nics.pop());
    gives_up(&mut world, &mut a, waiting);
    let state = world.nics[0].link_state(a.qpn).unwrap();
    assert!(matches!(state, Some(LinkState::Lost(_))), "{state:?}");
}

#[test]
fn version_mismatch_is_visible_at_the_queue_pair() {
    let of = |version| fabric(ShmConfig::default().changed(|s| s.version = version));
    let mut world = World::on(vec![of(1), of(2)]);
    let (mut a, b) = ends(&mut world);
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    gives_up(&mut world, &mut a, s);
    let (ours, theirs) = (1, 2);
    let state = world.nics[0].link_state(a.qpn).unwrap();
    let version = LinkError::Version { ours, theirs };
    assert_eq!(state, Some(LinkState::Lost(version)));
}

/// The record of one process's end for the other process, as text.
struct Record {
    node: NodeId,
    qpn: Qpn,
    at: Remote,
}

impl Record {
    fn of(nic: &Nic, end: &End) -> String {
        let (node, Remote { addr, rkey }) = (nic.node(), end.remote(0));
        format!("{node} {} {addr} {rkey}", end.qpn.0)
    }

    fn parse(text: &str) -> Record {
        let mut parts = text.split_whitespace();
        let mut next = || parts.next().expect("a record of four parts");
        Record {
            node: NodeId(u64::from_str_radix(next(), 16).unwrap()),
            qpn: Qpn(next().parse().unwrap()),
            at: Remote {
                addr: next().parse().unwrap(),
                rkey: next().parse().unwrap(),
            },
        }
    }
}

/// One process: a NIC with one end. This thread steps the NIC and sleeps on its bell.
struct Process {
    nic: Nic,
    end: End,
    bell: Arc<Bell>,
    start: Instant,
}

impl Process {
    fn new() -> Process {
        let bell = Arc::new(Bell::new().unwrap());
        let fabric = ShmFabric::open(ShmConfig::default(), bell.clone()).unwrap();
        let mut nic = Nic::new(NicConfig::default(), Box::new(fabric));
        let end = End::new(&mut nic, 0, EndConfig::default());
        Process {
            nic,
            end,
            bell,
            start: Instant::now(),
        }
    }

    fn connect(&mut self, to: &Record) {
        let access = remote_rights();
        for change in [
            init(access),
            rtr(Path::to(to.node, to.qpn), 0, 4, 12),
            rts(0, 4),
        ] {
            self.nic.modify_qp(self.end.qpn, change).unwrap();
        }
    }

    fn step(&mut self) {
        let ns = self.start.elapsed().as_nanos() as u64;
        let nic = &mut self.nic;
        if nic.step(Time::from_nanos(ns)) != Step::Progress {
            self.bell.sleep(Duration::from_micros(50), || {
                nic.step(Time::from_nanos(ns)) == Step::Progress
            });
        }
    }
}

const ROLE: &str = "VMLX5_TEST_ECHO";

/// The other process: it sends back each received message, until it is killed.
fn echo(parent: &str) -> ! {
    let mut me = Process::new();
    for _ in 0..8 {
        let whole = me.end.sge(0, 1 << 20);
        me.end.post_recv(&[whole]);
    }
    println!("RECORD {}", Record::of(&me.nic, &me.end));
    std::io::stdout().flush().unwrap();
    me.connect(&Record::parse(parent));
    loop {
        me.step();
        me.end.send.drain();
        for cqe in me.end.recv.drain() {
            assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND);
            let list = [me.end.sge(0, cqe.byte_cnt.get())];
            me.end.post_recv(&list);
            me.end.post(&send(&list));
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes() {
    if let Ok(parent) = std::env::var(ROLE) {
        echo(&parent);
    }
    let mut me = Process::new();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes", "--nocapture"])
        .env(ROLE, Record::of(&me.nic, &me.end))
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut records = lines.map_while(Result::ok).filter_map(|line| {
        let (_, record) = line.split_once("RECORD ")?;
        Some(Record::parse(record))
    });
    let other = records.next().expect("the other process prints its record");
    me.connect(&other);
    // Messages to the other process and back, each compared; the last one is longer than any ring.
    for (i, len) in [8, 1, 4096, 40_000, 1 << 20, 8, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let data = pattern(i as u64, len);
        me.end.put(0, &data);
        let list = [me.end.sge(0, len as u32)];
        me.end.post(&send(&list));
        until_done(&mut me, |end| {
            end.send
                .poll()
                .map(|c| assert_ok(&c, REQ, c.wqe_counter.get()))
        });
        me.end.put(0, &vec![0; len]);
        me.end.post_recv(&list);
        let got = until_done(&mut me, |end| end.recv.poll());
        assert_eq!(
            (got.opcode(), got.byte_cnt.get() as usize),
            (CqeOpcode::RESP_SEND, len)
        );
        assert!(me.end.get(0, len) == data, "message {i}");
    }
    // One-sided operations, without a call of the other process.
    let word = 77_u64.to_ne_bytes();
    let pieces = [&word[..]];
    let back = [me.end.sge(64, 8)];
    me.end
        .post(&write(other.at, &[]).changed(|s| s.payload = Payload::Inline(&pieces)));
    me.end
        .post(&atomic(other.at, Atomic::FetchAdd { add: 1 }, &back));
    me.end.post(&SendWqe {
        flags: signaled().changed(|w| w.fence = true),
        ..read(other.at, &[me.end.sge(72, 8)])
    });
    for _ in 0..3 {
        let cqe = until_done(&mut me, |end| end.send.poll());
        assert_ok(&cqe, REQ, cqe.wqe_counter.get());
    }
    assert_eq!((me.end.get64(64), me.end.get64(72)), (77, 78));
    // The other process is killed; work in flight and later work fails.
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let s = me.end.post(&send(&[me.end.sge(0, 8)]));
    let error = until_done(&mut me, |end| end.send.poll());
    assert_err(&error, CqeOpcode::REQ_ERR, s, Syndrome::TRANSPORT_RETRY);
    let state = me.nic.link_state(me.end.qpn).unwrap();
    assert!(matches!(state, Some(LinkState::Lost(_))), "{state:?}");
}

/// Steps until `look` returns a value.
#[track_caller]
fn until_done<T>(me: &mut Process, mut look: impl FnMut(&mut End) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look(&mut me.end) {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "timeout: 60 s");
        me.step();
    }
}
