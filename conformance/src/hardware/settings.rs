//! The settings that several trials share: the memory, the poster, the first indices of queues, and
//! the NICs.

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Doorbell, Lowering, QpConfig};

use crate::rig::provider::Net;

/// The memory of queues or payloads: `pinned` or `device`.
pub fn memory(name: &str) -> MemoryKind {
    match name {
        "pinned" => MemoryKind::Pinned,
        "device" => MemoryKind::Device,
        other => panic!("no setting {other}"),
    }
}

/// A configuration of QPs by lowering and doorbell: `memops`, also for posts by the `CPU`,
/// `kernel`, `auto` or `cpu-thread`. Ring, CQ and doorbell record are in the given memory.
pub fn queues(posts: &str, [ring, cq, record]: [MemoryKind; 3]) -> QpConfig {
    let (lowering, doorbell) = match posts {
        "kernel" => (Lowering::Kernel, Doorbell::Direct),
        "auto" => (Lowering::Auto, Doorbell::Direct),
        "cpu-thread" => (Lowering::MemOps, Doorbell::CpuThread),
        "memops" | "CPU" => (Lowering::MemOps, Doorbell::Direct),
        other => panic!("no setting {other}"),
    };
    QpConfig::default()
        .ring_memory(ring)
        .cq_memory(cq)
        .record_memory(record)
        .lowering(lowering)
        .doorbell(doorbell)
}

/// The first index of queues: `0`, `2^16-9` or `2^32-9`.
pub fn start(name: &str) -> u32 {
    match name {
        "0" => 0,
        "2^16-9" => (1 << 16) - 9,
        "2^32-9" => 0_u32.wrapping_sub(9),
        other => panic!("no setting {other}"),
    }
}

/// `one`, `two` or, on one host, `as of two processes`.
pub fn nics(name: &str) -> Net {
    match name {
        "one" => Net::One,
        "two" => Net::Hub,
        "as of two processes" => Net::Host,
        other => panic!("no setting {other}"),
    }
}
