//! Scenarios that a random program would reach too rarely: failures, blocked streams, silent peers,
//! datagrams.

mod consistency;
mod datagrams;
mod failure;
mod held;
mod silence;

use std::time::Duration;

use fastrand::Rng;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{DevicePtr, MemoryKind, Stream};
use gdsync::rdma::{Descriptor, Doorbell, Lowering, Mr, Qp, QpConfig, Work};

use crate::rig::retry_while;
use crate::sim::world::{Devices, LIMIT, Rank};

pub use consistency::consistency;
pub use datagrams::datagrams;
pub use failure::failure;
pub use held::{held_sends, held_stream};
pub use silence::silence;

/// Much longer than the watcher's period.
const LONG: Duration = Duration::from_millis(50);

/// A GPU with weak memory.
fn weak(rng: &mut Rng) -> SoftOptions {
    SoftOptions::default().weak(softgpu::Weak::seeded(rng.u64(..)))
}

fn config(rng: &mut Rng) -> QpConfig {
    let mut device = |one_in: u32| match rng.u32(0..one_in) {
        0 => MemoryKind::Device,
        _ => MemoryKind::Pinned,
    };
    QpConfig::default()
        .send_blocks(16)
        .recv_entries(16)
        .ring_memory(device(4))
        .cq_memory(device(4))
        .record_memory(device(4))
        .lowering(match rng.bool() {
            true => Lowering::Kernel,
            false => Lowering::MemOps,
        })
        .doorbell(match rng.u8(0..4) {
            0 => Doorbell::CpuThread,
            _ => Doorbell::Direct,
        })
        .start(0u32.wrapping_sub(rng.u32(0..20)))
        .timeout(None)
}

/// Checks that a stream becomes idle.
fn passes(stream: &Stream, what: &str) {
    assert!(stream.synchronize(LIMIT).unwrap(), "a stream hangs {what}");
}

/// Enqueues a copy of a word of the library to `at` of `to`.
fn note(stream: &Stream, word: DevicePtr, to: &Mr, at: u64) {
    let addr = softgpu::DevAddr::from_raw;
    let soft = stream.as_soft().expect("a soft stream");
    let to = to.region().addr().0 + at;
    soft.copy(addr(to), addr(word.0), 4).unwrap();
}

fn noted(from: &Mr, at: u64) -> u32 {
    let mut bytes = [0; 4];
    from.region().read(at as usize, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

/// Resets both sides, connects them again, and checks that messages pass.
fn again(rank: &Rank, devices: &Devices, qp: &mut Qp) {
    // A queue pair that a request of its peer failed can be reset after its flush is detected.
    retry_while(&devices.gpu, gdsync::Kind::Busy, || qp.reset()).unwrap();
    rank.barrier();
    rank.connect(qp, rank.peer());
    traffic(rank, devices, qp, 20);
}

/// Sends messages in both directions by stream, and checks each.
fn traffic(rank: &Rank, devices: &Devices, qp: &mut Qp, messages: u64) {
    let stream = devices.gpu.stream().unwrap();
    let memory = devices.memory(MemoryKind::Pinned, 64);
    for i in 0..messages {
        let value = i << 8 | rank.me as u64;
        memory.region().write(0, &value.to_le_bytes()).unwrap();
        let recv = qp.prepare_receive(&[memory.sge(8, 8)]).unwrap();
        let sges = [memory.sge(0, 8)];
        let send = qp
            .prepare_within(&Work::send(&sges).signaled(), LIMIT)
            .unwrap();
        let list = [
            Descriptor::Receive(recv),
            Descriptor::Send(send),
            Descriptor::wait(recv),
            Descriptor::wait(send),
        ];
        qp.post_on(&stream, &list).unwrap();
        passes(&stream, &format!("behind message {i}"));
        let mut got = [0; 8];
        memory.region().read(8, &mut got).unwrap();
        assert_eq!(u64::from_le_bytes(got), i << 8 | rank.peer() as u64);
    }
    assert_eq!(qp.error(), None);
    rank.barrier();
}
