//! Two processes that reach each other, each with its own virtual ConnectX, by libmlx5's rings or
//! by verbs, and the death of one of them.

mod common;
mod virtual_nic;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use common::*;
use gdsync::rdma::{QpAddress, RemoteMemory};
use virtual_nic::cases;

/// `len` bytes that differ from one `round` to the next.
fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + round * 31) as u8).collect()
}

cases! {
    two_processes => run(Device::mlx5, "mlx5");
    two_processes_by_verbs => run(Device::verbs, "verbs");
    /// One of each provider: on the wire they are the same.
    verbs_and_mlx5 => run(Device::verbs, "mlx5");
}

/// Two processes with a NIC each, which exchange only their records. The other process opens its
/// device by the provider of this name.
fn run(open: fn(&Gpu) -> gdsync::Result<Device>, there: &str) {
    let path = std::env::temp_dir().join(format!("gdsync-two-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture", "--ignored"])
        .env(OTHER, &path)
        .env(PROVIDER, there)
        .spawn()
        .unwrap();
    let (mut line, _) = listener.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    let gpu = Gpu::soft().unwrap();
    let device = open(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let memory = common::memory(&pd, MemoryKind::Pinned, 4096, Access::ALL);
    let region = memory.region();
    let (there, theirs) = exchange(&mut line, &qp, &memory);
    qp.connect(&there).unwrap();
    ready(&mut line);
    let stream = gpu.stream().unwrap();
    for round in 0..50 {
        region.write(0, &pattern(round, 1500)).unwrap();
        let recv = qp.prepare_receive(&[memory.sge(2048, 1500)]).unwrap();
        let send = qp.signaled(&Work::send(&[memory.sge(0, 1500)]).with_imm(1));
        let post = [
            Descriptor::Receive(recv),
            Descriptor::Send(send),
            Descriptor::wait(send),
            Descriptor::wait_flushed(recv),
        ];
        qp.post_on(&stream, &post).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
        let got = region.vec(2048, 1500);
        assert_eq!(got, pattern(round + 1, 1500));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    // The peer does not answer any more, and that is an error after its time limit.
    let span = theirs.span(0, 8).unwrap();
    let write = qp.start_on(&stream, &Work::write(&[memory.sge(0, 8)], span));
    let error = qp.wait(write, LIMIT).unwrap_err();
    assert_eq!(error.kind(), Kind::Failed(Status::TRANSPORT_RETRY));
    assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
}

/// The address at which the other process reaches the one that started it.
const OTHER: &str = "VIRTUAL_NIC_OTHER";
/// The device that the other process opens.
const PROVIDER: &str = "VIRTUAL_NIC_PROVIDER";

#[test]
#[ignore = "the other process of two_processes and those after it"]
fn the_other_process() {
    let path = std::env::var_os(OTHER).expect("started by another test");
    let mut line = UnixStream::connect(path).unwrap();
    let gpu = Gpu::soft().unwrap();
    let device = match std::env::var(PROVIDER).as_deref() {
        Ok("verbs") => Device::verbs(&gpu),
        _ => Device::mlx5(&gpu),
    };
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let memory = common::memory(&pd, MemoryKind::Pinned, 4096, Access::ALL);
    let region = memory.region();
    let (there, _) = exchange(&mut line, &qp, &memory);
    qp.connect(&there).unwrap();
    let mut round = 0;
    let mut recv = qp.receive(&[memory.sge(0, 1500)]);
    ready(&mut line);
    loop {
        qp.wait(recv, LIMIT).unwrap();
        assert_eq!(qp.received(recv).unwrap().imm, Some(1));
        let got = region.vec(0, 1500);
        assert_eq!(got, pattern(round, 1500));
        round += 1;
        recv = qp.receive(&[memory.sge(0, 1500)]);
        region.write(2048, &pattern(round, 1500)).unwrap();
        qp.complete(&Work::send(&[memory.sge(2048, 1500)]));
    }
}

/// Sends the records of a queue pair and of memory to the peer; returns the peer's.
fn exchange(line: &mut UnixStream, qp: &Qp, memory: &Mr) -> (QpAddress, RemoteMemory) {
    line.write_all(&qp.address().to_bytes()).unwrap();
    line.write_all(&memory.remote().to_bytes()).unwrap();
    let (mut qp, mut memory) = ([0; QpAddress::LEN], [0; RemoteMemory::LEN]);
    line.read_exact(&mut qp).unwrap();
    line.read_exact(&mut memory).unwrap();
    let memory = RemoteMemory::from_bytes(&memory).unwrap();
    (QpAddress::from_bytes(&qp).unwrap(), memory)
}

/// Returns after the peer has reached the same point.
fn ready(line: &mut UnixStream) {
    line.write_all(b"!").unwrap();
    line.read_exact(&mut [0]).unwrap();
}
