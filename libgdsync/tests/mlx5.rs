//! A ConnectX by the installed libibverbs and libmlx5, over a virtual one: libmlx5 laid out the
//! rings, this library writes them and their doorbells.

mod common;
mod verbs_device;
mod virtual_nic;

use common::*;
use virtual_nic::{cases, inside};

cases! {
    a_send_from_the_cpu_arrives => verbs_device::a_send_from_the_cpu_arrives(Device::mlx5);
    /// A hundred laps of small rings: messages in both directions, posted and waited for by
    /// streams.
    ping_pong_by_streams => verbs_device::ping_pong_by_streams(Device::mlx5);
    every_opcode_has_its_effect =>
        verbs_device::every_opcode_has_its_effect(Device::mlx5);
    failing_request_has_its_status_and_a_reset_recovers =>
        verbs_device::failing_request_has_its_status_and_a_reset_recovers(Device::mlx5);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn rings_of_every_size_have_the_layout_of_the_library() {
    inside!(&[]);
    let gpu = Gpu::soft().unwrap();
    let device = Device::mlx5(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    for log in 2..=15 {
        for recv_sges in [1, 3, 16] {
            let config = QpConfig::default()
                .send_blocks(1 << log)
                .recv_entries(1 << (17 - log))
                .recv_sges(recv_sges)
                .ring_memory(MemoryKind::Device)
                .cq_memory(MemoryKind::Device)
                .record_memory(MemoryKind::Device);
            let qp = pd.create_qp(&config);
            let qp = qp.unwrap_or_else(|e| panic!("2^{log} blocks, {recv_sges} segments: {e:?}"));
            assert_eq!(qp.memory(), [MemoryKind::Pinned; 3]);
        }
    }
    let config = QpConfig::default().start(8);
    assert_eq!(kind(pd.create_qp(&config)), Some(Kind::Unsupported));
    device.close(LIMIT).unwrap();
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn many_queue_pairs_have_a_doorbell_each() {
    inside!(&[]);
    let gpu = Gpu::soft().unwrap();
    let devices = [(); 2].map(|()| Device::mlx5(&gpu).unwrap());
    let config = sized(&QpConfig::default(), 4, 4);
    for _ in 0..3 {
        let mut pairs = Vec::new();
        for device in &devices {
            let pd = device.alloc_pd().unwrap();
            let memory = common::memory(&pd, MemoryKind::Pinned, 64, Access::ALL);
            for _ in 0..10 {
                let (a, b) = joined(&pd, &config);
                pairs.push((a, b, memory.clone()));
            }
        }
        for (a, b, memory) in &mut pairs {
            let recv = b.receive(&[memory.sge(0, 8)]);
            a.start(&Work::send_inline(&[&[9; 8]]));
            b.wait(recv, LIMIT).unwrap();
        }
        drop(pairs);
        for device in &devices {
            device.close(LIMIT).unwrap();
        }
    }
}

cases! {
    roce_is_addressed_by_gid in &[("VMLX5_LINK", "roce")] =>
        verbs_device::roce_is_addressed_by_gid(Device::mlx5);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn doorbell_pages_of_older_kernels() {
    inside!(&[("VMLX5_UAR", "static")]);
    let mut p = Pair::open(Device::mlx5, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let span = memory.remote().span(0, 8).unwrap();
    p.a.complete(&Work::write_inline(&[&[5; 8]], span));
}

cases! {
    peers_that_cannot_be_are_refused_and_another_may_follow =>
        verbs_device::peers_that_cannot_be_are_refused_and_another_may_follow(Device::mlx5);
    /// Counters of queues have 16 bits, those of completions have more.
    counters_wrap => verbs_device::counters_wrap(Device::mlx5);
    /// Doorbells that a stream writes after every handle was dropped go to a page that is still
    /// mapped, and the stream continues.
    a_stream_outlives_the_device => verbs_device::a_stream_outlives_the_device(Device::mlx5);
    datagrams_by_infiniband => {
        verbs_device::datagrams::all(Device::mlx5);
        verbs_device::datagrams::other_subnets_are_reached_by_a_header(Device::mlx5);
    };
    datagrams_by_ethernet in &[("VMLX5_LINK", "roce")] =>
        verbs_device::datagrams::all(Device::mlx5);
    a_refused_access_of_the_peer_is_an_error_here =>
        verbs_device::reports::a_refused_access_of_the_peer_is_an_error_here(Device::mlx5);
    a_port_that_stays_down_ends_waits_for_receives in &[("VMLX5_FAULTS", "down=1:3s..3600s")] =>
        verbs_device::reports::a_port_that_stays_down_ends_waits_for_receives(Device::mlx5);
    a_silent_peer_is_given_up_as_timeout_and_retries_say =>
        verbs_device::reports::a_silent_peer_is_given_up_as_timeout_and_retries_say(Device::mlx5);
    a_partition_that_the_nic_is_not_in_is_refused => {
        let (open, kind) = (Device::mlx5, Kind::Invalid);
        verbs_device::reports::a_partition_that_the_nic_is_not_in_is_refused(open, kind);
    };
    a_fatal_error_of_the_nic_ends_waits_for_receives in &[("VMLX5_FAULTS", "fatal=3s")] =>
        verbs_device::reports::a_fatal_error_of_the_nic_ends_waits_for_receives(Device::mlx5);
}
