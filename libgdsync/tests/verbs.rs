//! A NIC by libibverbs alone, over a virtual one: a CPU thread between the library's rings and its
//! queues.

mod common;
mod verbs_device;
mod virtual_nic;

use std::path::Path;

use common::*;
use verbs_device::{paths, pattern};
use virtual_nic::{cases, inside};

/// A thread of the NIC polls the rings.
const OWN: virtual_nic::Vars = &[("GDS_VERBS_THREAD", "own")];
/// The GPU's thread polls the rings.
const GPU: virtual_nic::Vars = &[("GDS_VERBS_THREAD", "gpu")];

cases! {
    a_send_from_the_cpu_arrives in OWN => verbs_device::a_send_from_the_cpu_arrives(Device::verbs);
    ping_pong_by_streams in OWN => verbs_device::ping_pong_by_streams(Device::verbs);
    every_opcode_has_its_effect in OWN =>
        verbs_device::every_opcode_has_its_effect(Device::verbs);
    failing_request_has_its_status_and_a_reset_recovers in OWN =>
        verbs_device::failing_request_has_its_status_and_a_reset_recovers(Device::verbs);
    a_send_from_the_cpu_arrives_by_the_gpus_thread in GPU =>
        verbs_device::a_send_from_the_cpu_arrives(Device::verbs);
}

/// The NIC has no thread then.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn every_opcode_has_its_effect_by_the_gpus_thread() {
    inside!(GPU);
    verbs_device::every_opcode_has_its_effect(|gpu| {
        let device = Device::verbs(gpu)?;
        let threads = gds_step::thread_times().unwrap();
        assert!(threads.iter().all(|t| t.name != "gds-verbs"));
        Ok(device)
    });
}

cases! {
    a_failing_request_by_the_gpus_thread in GPU =>
        verbs_device::failing_request_has_its_status_and_a_reset_recovers(Device::verbs);
    /// A NIC whose rings the GPU's thread polls can be closed while streams remain.
    a_stream_outlives_a_device_of_the_gpus_thread in GPU =>
        verbs_device::a_stream_outlives_the_device(Device::verbs);
}

/// Of real NICs only soft-RoCE does; its device names the network device below it.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn soft_roce_keeps_the_order_of_writes() {
    inside!(OWN);
    let device = Device::verbs(&Gpu::soft().unwrap()).unwrap();
    let soft_roce = match std::env::var("GDS_TEST_NIC") {
        Ok(nic) => Path::new("/sys/class/infiniband")
            .join(nic)
            .join("parent")
            .exists(),
        Err(_) => false,
    };
    assert_eq!(device.keeps_write_order(), soft_roce);
}

cases! {
    an_unknown_thread_is_refused in &[("GDS_VERBS_THREAD", "none")] => {
        let device = Device::verbs(&Gpu::soft().unwrap());
        refused(device, Kind::Invalid, None, &["GDS_VERBS_THREAD"]);
    };
    roce_is_addressed_by_gid in &[("GDS_VERBS_THREAD", "own"), ("VMLX5_LINK", "roce")] =>
        verbs_device::roce_is_addressed_by_gid(Device::verbs);
    peers_that_cannot_be_are_refused_and_another_may_follow in OWN =>
        verbs_device::peers_that_cannot_be_are_refused_and_another_may_follow(Device::verbs);
    counters_wrap in OWN => verbs_device::counters_wrap(Device::verbs);
    a_stream_outlives_the_device in OWN =>
        verbs_device::a_stream_outlives_the_device(Device::verbs);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn no_direct_verbs_are_needed() {
    inside!(&[
        ("GDS_VERBS_THREAD", "own"),
        ("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1"),
        ("GDS_NIC", "mlx5_0:1"),
    ]);
    let p = Pair::open(Device::verbs, &QpConfig::default());
    let name = p.a.device().name();
    assert!(name.starts_with("verbs "), "{name}");
    assert_eq!(kind(Device::mlx5(&p.gpu)), Some(Kind::Absent));
}

/// Sends and receives stay in the rings until the device has room; with inline data, which the
/// device reads from the ring.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn more_requests_than_the_device_takes() {
    inside!(OWN);
    const MANY: usize = 3000;
    let config = sized(&QpConfig::default(), 4096, 4096);
    let mut p = Pair::open(Device::verbs, &config);
    let far = p.memory(MemoryKind::Pinned, 64 * MANY);
    let stream = p.gpu.stream().unwrap();
    let receives: Vec<_> = (0..MANY as u64)
        .map(|i| p.b.receive(&[far.sge(64 * i, 64)]))
        .collect();
    let mut list = Vec::new();
    let mut last = None;
    for i in 0..MANY {
        let bytes = pattern(i, 40);
        let pieces = [bytes.as_slice()];
        let work = Work::send_inline(&pieces);
        let work = if i + 1 == MANY { work.signaled() } else { work };
        let send = p.a.prepare(&work).unwrap();
        list.push(Descriptor::Send(send));
        last = Some(send);
    }
    let last = last.expect("there is one");
    list.push(Descriptor::wait(last));
    p.a.post_on(&stream, &list).unwrap();
    passes(&stream);
    for (i, recv) in receives.into_iter().enumerate() {
        p.b.wait(recv, LIMIT).unwrap();
        let got = far.region().bytes::<40>(64 * i);
        assert_eq!(got[..], pattern(i, 40));
    }
}

/// Unsignaled requests are completed by a later request without effect.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn unsignaled_requests_complete() {
    inside!(OWN);
    let mut p = Pair::open(Device::verbs, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 128);
    let span = memory.remote().span(64, 8).unwrap();
    for round in 0..50_u64 {
        let bytes = round.to_le_bytes();
        let pieces = [bytes.as_slice()];
        let write = p.a.prepare(&Work::write_inline(&pieces, span)).unwrap();
        p.a.post(write).unwrap();
        p.a.quiet(LIMIT).unwrap();
        let got = memory.region().bytes::<8>(64);
        assert_eq!(u64::from_le_bytes(got), round);
    }
}

/// The outstanding requests are flushed, and the stream that waits for them passes.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn giving_up_flushes_outstanding_requests() {
    inside!(OWN);
    for (path, config) in paths() {
        let mut p = Pair::open(Device::verbs, &config);
        let memory = p.memory(MemoryKind::Pinned, 64);
        let stream = p.gpu.stream().unwrap();
        let recv = p.b.receive_on(&stream, &[memory.sge(0, 8)]);
        std::thread::sleep(Duration::from_millis(10));
        p.b.fail(Status::CLOSED);
        let flushed = Some(Kind::Failed(Status::FLUSHED));
        assert_eq!(kind(p.b.wait(recv, LIMIT)), flushed, "{path}");
        passes(&stream);
        p.b.quiet(LIMIT).unwrap();
    }
}

/// Receives that were posted before the connection.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn receives_may_come_before_the_connection() {
    inside!(OWN);
    let gpu = Gpu::soft().unwrap();
    let device = Device::verbs(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let memory = common::memory(&pd, MemoryKind::Pinned, 64, Access::ALL);
    for connected in [true, false] {
        let config = QpConfig::default();
        let [mut a, mut b] = [(); 2].map(|()| pd.create_qp(&config).unwrap());
        let recv = b.receive(&[memory.sge(0, 8)]);
        if connected {
            connect(&mut a, &mut b);
            let pieces: [&[u8]; 1] = [&[7; 8]];
            a.start(&Work::send_inline(&pieces));
            b.wait(recv, LIMIT).unwrap();
        } else {
            b.fail(Status::CANCELLED);
            let flushed = Some(Kind::Failed(Status::FLUSHED));
            assert_eq!(kind(b.wait(recv, LIMIT)), flushed);
        }
    }
}

/// The thread detects a stream that posts long after it was announced.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn late_post_of_a_stream_is_detected() {
    inside!(OWN);
    for (path, config) in paths() {
        let mut p = Pair::open(Device::verbs, &config);
        let memory = p.memory(MemoryKind::Pinned, 64);
        let gate = Gate::new(&p.gpu);
        let stream = p.gpu.stream().unwrap();
        let span = memory.remote().span(32, 8).unwrap();
        let pieces: [&[u8]; 1] = [&[3; 8]];
        let write = p.a.signaled(&Work::write_inline(&pieces, span));
        p.a.post_on(&stream, &gate.before(write)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(p.a.poll(write).unwrap(), None, "{path}");
        gate.open();
        passes(&stream);
        assert_eq!(p.a.poll(write).unwrap(), Some(Status::SUCCESS), "{path}");
    }
}

/// With a receive posted and no other work, the thread sleeps; the next message wakes it.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn idle_cpu_thread_sleeps() {
    inside!(OWN);
    // The target is 2 %.
    verbs_device::idle_thread_sleeps(Device::verbs, "gds-verbs", 10);
}

cases! {
    datagrams_by_infiniband => {
        verbs_device::datagrams::all(Device::verbs);
        verbs_device::datagrams::other_subnets_are_reached_by_a_header(Device::verbs);
    };
    datagrams_by_ethernet in &[("VMLX5_LINK", "roce")] =>
        verbs_device::datagrams::all(Device::verbs);
    a_refused_access_of_the_peer_is_an_error_here =>
        verbs_device::reports::a_refused_access_of_the_peer_is_an_error_here(Device::verbs);
    a_fatal_error_of_the_nic_ends_waits_for_receives in &[("VMLX5_FAULTS", "fatal=3s")] =>
        verbs_device::reports::a_fatal_error_of_the_nic_ends_waits_for_receives(Device::verbs);
}
