//! Reports of the linked-in NIC outside of completion queues, and the settings of its paths.

mod common;
mod verbs_device;

use common::*;
use gds_sim::seeds;

#[test]
fn a_refused_access_of_the_peer_is_an_error_here() {
    verbs_device::reports::a_refused_access_of_the_peer_is_an_error_here(Device::emulated);
}

#[test]
fn a_partition_that_the_nic_is_not_in_is_refused() {
    let kind = Kind::Unsupported;
    verbs_device::reports::a_partition_that_the_nic_is_not_in_is_refused(Device::emulated, kind);
}

#[test]
fn a_value_out_of_range_is_refused() {
    let gpu = gdsync::Gpu::soft().unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let config = QpConfig::default().retry_count(8);
    let e = pd.create_qp(&config).unwrap_err();
    assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(7)), "{e}");
    assert!(e.to_string().contains("GDS_RETRY_COUNT=8"), "{e}");
}

/// In virtual time: 4.096 us * 2^timeout, once and for each retry, and the watcher's period.
#[test]
fn a_silent_peer_is_given_up_as_timeout_and_retries_say() {
    seeds(3, |seed| {
        for (timeout, retries) in [(8, 0), (14, 3), (15, 7), (19, 1)] {
            let (_sim, gpu) = play(seed);
            let config = QpConfig::default()
                .timeout(None)
                .ack_timeout(timeout)
                .retry_count(retries);
            let mut p = Pair::apart(&gpu, Net::Hub, &config, &config);
            p.connect();
            let memory = p.mem_a(MemoryKind::Pinned, 64);
            // The peer is in error, and does not answer.
            p.b.fail(Status::CLOSED);
            let send = p.a.signaled(&Work::send(&[sge(&memory, 0, 8)]));
            let begin = gpu.host().now();
            p.a.post(send).unwrap();
            let e = p.a.wait(send, LIMIT).unwrap_err();
            let took = gpu.host().now() - begin;
            assert_eq!(e.kind(), Kind::Failed(Status::TRANSPORT_RETRY), "{e}");
            let nominal = Duration::from_nanos(4096 << timeout) * (u32::from(retries) + 1);
            let most = 2 * nominal + Duration::from_millis(5);
            assert!((nominal..most).contains(&took), "{took:?} of {nominal:?}");
        }
        Ok::<_, String>(())
    });
}
