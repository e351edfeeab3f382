//! The process at the other end dies: requests in flight and later ones end with a status, streams
//! continue.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::witness::{Seen, Witness};
use common::*;
use gdsync::rdma::{QpAddress, RemoteMemory};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.trim().as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// Kills its process when dropped, so that no test leaves one behind.
struct Peer(Child);

impl Peer {
    fn start() -> Peer {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Peer(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process: receives one message, does not answer, and waits for its end.
#[test]
#[ignore = "run by the_peer_dies in a separate process"]
fn peer() {
    let gpu = Gpu::soft().unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let mem = memory(&pd, MemoryKind::Device, 64, Access::ALL);
    let recv = qp.receive(&[sge(&mem, 0, 8)]);
    let address = hex(&qp.address().to_bytes());
    println!("\npeer {address} {}", hex(&mem.remote().to_bytes()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    qp.connect(&QpAddress::from_bytes(&bytes(&line)).unwrap())
        .unwrap();
    println!("connected");
    qp.wait(recv, LIMIT).unwrap();
    // Until it is killed, or its parent has ended.
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
fn the_peer_dies() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut qp = pd.create_qp(&config).unwrap();
        let mem = memory(&pd, MemoryKind::Pinned, 64, Access::ALL);
        let mut peer = Peer::start();
        let mut lines = BufReader::new(peer.0.stdout.take().unwrap()).lines();
        let mut next_line = |word: &str| {
            let found = lines.by_ref().map(Result::unwrap);
            let mut found = found.filter(|line| line.starts_with(word));
            found.next().expect("the peer ended early")
        };
        let line = next_line("peer");
        let words: Vec<&str> = line.split(' ').collect();
        let address = QpAddress::from_bytes(&bytes(words[1])).unwrap();
        let remote = RemoteMemory::from_bytes(&bytes(words[2])).unwrap();
        let own = hex(&qp.address().to_bytes());
        writeln!(peer.0.stdin.as_mut().unwrap(), "{own}").unwrap();
        qp.connect(&address).unwrap();
        next_line("connected");

        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
        let list = [sge(&mem, 0, 8)];
        let to = remote.span(8, 8).unwrap();
        let taken = qp.signaled(&Work::send(&list));
        let waiting = qp.signaled(&Work::send(&list));
        let later = qp.signaled(&Work::write(&list, to));
        let own = qp.receive(&[sge(&mem, 32, 8)]);
        qp.post(taken).unwrap();
        qp.wait(taken, LIMIT).unwrap();
        // One stream waits for a send without a receive; another is behind a gate.
        qp.post_on(&stream, &send_and_wait(waiting)).unwrap();
        let saw = Witness::launch(&stream, &qp, waiting);
        qp.post_on(&stream, &gate.before(later)).unwrap();
        let last = Witness::launch(&stream, &qp, later);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(qp.error(), None, "{path}");
        peer.kill();
        let lost = Status::TRANSPORT_RETRY;
        let failed = |status| Some(Kind::Failed(status));
        assert_eq!(kind(qp.wait(waiting, LIMIT)), failed(lost), "{path}");
        gate.open();
        finish(&stream, path);
        for (saw, status) in [(saw, lost), (last, Status::FLUSHED)] {
            let error = lost;
            assert_eq!(saw.seen(), Seen { error, status }, "{path}");
        }
        assert_eq!(kind(qp.wait(later, LIMIT)), failed(Status::FLUSHED));
        assert_eq!(kind(qp.wait(own, LIMIT)), failed(Status::FLUSHED));
        // The remaining objects can be used with other peers.
        qp.quiet(LIMIT).unwrap();
        qp.reset().unwrap();
        let mut other = pd.create_qp(&config).unwrap();
        common::connect(&mut qp, &mut other);
        let to = mem.remote().span(8, 8).unwrap();
        qp.complete(&Work::write(&list, to));
        drop((qp, other));
        device.close(LIMIT).unwrap();
    }
}
