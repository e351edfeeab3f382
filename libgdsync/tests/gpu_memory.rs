//! GPU memory and NICs of libibverbs, over a virtual one: registered by dma-bufs, which are memory
//! files here, or by address where dma-bufs are refused; and made visible by every policy.

mod common;
#[path = "common/listen.rs"]
mod listen;
mod verbs_device;
mod virtual_nic;

use std::os::unix::fs::MetadataExt as _;

use common::*;
use gdsync::gpu::Consistency;
use listen::Events;
use verbs_device::{paths, pattern};
use virtual_nic::{cases, inside};

/// The devices that register by libibverbs.
const DEVICES: [(&str, Open); 2] = [("mlx5", Device::mlx5), ("verbs", Device::verbs)];

/// Number of mappings of the memory of `region` in this process.
fn mappings(region: &Region) -> usize {
    let file = std::fs::File::from(region.dma_buf().unwrap().0);
    let inode = file.metadata().unwrap().ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |line: &&str| line.split_whitespace().nth(4) == Some(&inode);
    maps.lines().filter(of).count()
}

fn in_the_gpu(pair: &Pair, len: usize) -> Mr {
    pair.memory(MemoryKind::Device, len)
}

/// Sends, writes and reads between pieces of GPU memory that `memory` makes.
fn bytes_arrive(open: Open, config: &QpConfig, memory: impl Fn(&Pair, usize) -> Mr) {
    const LEN: usize = 5000;
    let mut p = Pair::open(open, config);
    let (near, far) = (memory(&p, 3 * LEN), memory(&p, 3 * LEN));
    let stream = p.gpu.stream().unwrap();
    for round in 0..8 {
        let bytes = |piece: usize| pattern(3 * round + piece, LEN);
        for piece in 0..2 {
            near.region().write(piece * LEN, &bytes(piece)).unwrap();
        }
        far.region().write(2 * LEN, &bytes(2)).unwrap();
        let (at, len) = (|piece: usize| (piece * LEN) as u64, LEN as u32);
        let recv = p.b.receive(&[far.sge(0, len)]);
        let [first, second, third] = [0, 1, 2].map(|piece| [near.sge(at(piece), len)]);
        let there = |piece| far.remote().span(at(piece), LEN as u64).unwrap();
        let send = p.a.signaled(&Work::send(&first));
        let write = p.a.signaled(&Work::write(&second, there(1)));
        let read = p.a.signaled(&Work::read(&third, there(2)));
        let list = [
            Descriptor::Send(send),
            Descriptor::Send(write),
            Descriptor::Send(read),
            Descriptor::wait(write),
            Descriptor::wait_flushed(read),
        ];
        p.a.post_on(&stream, &list).unwrap();
        p.b.post_on(&stream, &[Descriptor::wait_flushed(recv)])
            .unwrap();
        passes(&stream);
        for (memory, piece) in [(&far, 0), (&far, 1), (&near, 2)] {
            let got = memory.region().vec(piece * LEN, LEN);
            assert_eq!(got, bytes(piece), "round {round}, piece {piece}");
        }
    }
    assert_eq!((p.a.error(), p.b.error()), (None, None));
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn nic_reads_and_writes_by_a_dma_buf() {
    inside!(&[]);
    for (name, open) in DEVICES {
        for (_, config) in paths() {
            bytes_arrive(open, &config, |pair, len| {
                let memory = pair.memory(MemoryKind::Device, len);
                // The mappings of the GPU, of the CPU and of the NIC.
                assert_eq!(mappings(memory.region()), 3, "{name}");
                memory
            });
        }
        let gpu = Gpu::soft().unwrap();
        let region = gpu.alloc(MemoryKind::Device, 100).unwrap();
        assert_eq!(mappings(&region), 2, "{name}");
        let pd = open(&gpu).unwrap().alloc_pd().unwrap();
        let memory = pd.register(&region, Access::ALL).unwrap();
        assert_eq!(mappings(&region), 3, "{name}");
        drop(memory);
        assert_eq!(mappings(&region), 2, "{name}");
    }
}

/// Runs `during` in a process that gets no more descriptors.
fn without_descriptors<T>(during: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and writes the limit of this process.
    let set = |limit: &libc::rlimit| unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    // SAFETY: as above.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(known, 0);
    let none = libc::rlimit {
        rlim_cur: 0,
        ..limit
    };
    assert_eq!(set(&none), 0);
    let result = during();
    assert_eq!(set(&limit), 0);
    result
}

/// Without a descriptor there is no dma-buf.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn without_dma_bufs_memory_is_registered_by_address_and_that_is_said_once() {
    inside!(&[]);
    let events = Events::of_this_process(tracing::Level::TRACE);
    for (i, (name, open)) in DEVICES.into_iter().enumerate() {
        bytes_arrive(open, &QpConfig::default(), |pair, len| {
            let region = pair.gpu.alloc(MemoryKind::Device, len).unwrap();
            let memory = without_descriptors(|| pair.pd_a.register(&region, Access::ALL).unwrap());
            assert_eq!(mappings(&region), 2, "{name}");
            memory
        });
        // One line for each open NIC, for any number of registrations.
        let mut lines = events.lines();
        lines.retain(|line| line.contains("is registered with"));
        assert_eq!(lines.len(), i + 1, "{name}");
        let reason = "because: ";
        let reasoned = |line: &String| line.contains(reason) && !line.ends_with(reason);
        assert!(lines.iter().all(reasoned), "{lines:?}");
    }
}

fn policy(wish: Consistency) {
    for (name, open) in DEVICES {
        let gpu = Gpu::soft().unwrap();
        let device = open(&gpu).unwrap();
        assert_eq!(device.consistency(MemoryKind::Device).unwrap(), wish);
        let pinned = device.consistency(MemoryKind::Pinned).unwrap();
        assert_eq!(pinned, Consistency::NotNeeded);
        println!("{name}: {wish}");
        for (_, config) in paths() {
            bytes_arrive(open, &config, in_the_gpu);
        }
        verbs_device::a_stream_outlives_the_device(open);
    }
}

cases! {
    the_cpu_flushes_where_the_environment_says_so in &[("GDS_CONSISTENCY", "host")] =>
        policy(Consistency::HostFlag);
    /// With queue pairs of libmlx5 that are connected to themselves.
    the_nic_reads_behind_its_writes_where_the_environment_says_so
        in &[("GDS_CONSISTENCY", "read")] =>
        policy(Consistency::LoopbackRead);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn the_same_over_ethernet() {
    inside!(&[("GDS_CONSISTENCY", "read"), ("VMLX5_LINK", "roce")]);
    for (_, open) in DEVICES {
        bytes_arrive(open, &QpConfig::default(), in_the_gpu);
    }
}

#[test]
fn a_policy_that_the_gpu_cannot_keep_is_an_error() {
    virtual_nic::outside!(&[("GDS_CONSISTENCY", "ordered")]);
    assert_eq!(kind(Gpu::soft()), Some(Kind::Unsupported));
}

#[test]
fn unknown_consistency_policy_is_an_error() {
    virtual_nic::outside!(&[("GDS_CONSISTENCY", "flag")]);
    refused(Gpu::soft(), Kind::Invalid, None, &["GDS_CONSISTENCY"]);
}
