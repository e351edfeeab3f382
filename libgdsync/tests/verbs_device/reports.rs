//! Reports of a NIC outside of completion queues, and the settings of its paths.

use std::time::{Duration, Instant};

use crate::common::*;

/// The NIC closes a queue pair whose peer accesses memory without the right to. That queue pair has
/// no request in flight, so no completion reports it; after a reset it works again.
pub fn a_refused_access_of_the_peer_is_an_error_here(open: Open) {
    let config = limited(&QpConfig::default(), None);
    let mut p = Pair::open(open, &config);
    let closed = memory(&p.pd_a, MemoryKind::Pinned, 64, Access::LOCAL_READ);
    let span = closed.remote().span(0, 8).unwrap();
    let work = Work::write_inline(&[&[5; 8]], span);
    let write = p.a.start(&work);
    let failed = |status| Some(Kind::Failed(status));
    assert_eq!(kind(p.a.wait(write, LIMIT)), failed(Status::REMOTE_ACCESS));
    until(&p.gpu, "the peer's error", || p.b.error().is_some());
    assert_eq!(p.b.error(), Some(Status::PEER_ACCESS));
    assert_eq!(kind(p.b.prepare(&Work::nop())), failed(Status::PEER_ACCESS));
    p.reset("after a refused access");
    p.works();
}

/// The NIC fails a moment after it was opened. Both queue pairs have receives only; the CPU waits
/// for one, a stream for the other.
pub fn a_fatal_error_of_the_nic_ends_waits_for_receives(open: Open) {
    let config = limited(&QpConfig::default(), None);
    let mut p = Pair::open(open, &config);
    let memory = p.memory(MemoryKind::Pinned, 64);
    let stream = p.gpu.stream().unwrap();
    let [one, other] = [&mut p.a, &mut p.b].map(|qp| qp.receive(&[memory.sge(0, 8)]));
    p.b.post_on(&stream, &[Descriptor::wait(other)]).unwrap();
    let e = p.a.wait(one, LIMIT).unwrap_err();
    assert_eq!(e.kind(), Kind::Failed(Status::DEVICE_FATAL), "{e}");
    passes(&stream);
    assert_eq!(p.b.poll(other).unwrap(), Some(Status::DEVICE_FATAL));
    assert_eq!(p.a.error(), Some(Status::DEVICE_FATAL));
    let device = p.pd_a.device().clone();
    drop((p, memory));
    device.close(LIMIT).unwrap();
}

/// Its port goes down a moment after the NIC was opened, for an hour.
pub fn a_port_that_stays_down_ends_waits_for_receives(open: Open) {
    let config = QpConfig::default().timeout(None).ack_timeout(10);
    let mut p = Pair::open(open, &config);
    let memory = p.memory(MemoryKind::Pinned, 64);
    let receive = p.b.receive(&[memory.sge(0, 8)]);
    let e = p.b.wait(receive, LIMIT).unwrap_err();
    assert_eq!(e.kind(), Kind::Failed(Status::PORT_DOWN), "{e}");
    assert_eq!(p.b.error(), Some(Status::PORT_DOWN));
}

/// The time until a request to a lost peer fails.
fn gives_up_after(open: Open, config: &QpConfig) -> Duration {
    let mut p = Pair::open(open, config);
    let device = p.pd_a.device().clone();
    drop(p.b);
    device.close(LIMIT).unwrap();
    let begin = Instant::now();
    let memory = memory(&p.pd_a, MemoryKind::Pinned, 64, Access::ALL);
    let send = p.a.start(&Work::send(&[memory.sge(0, 8)]));
    let e = p.a.wait(send, LIMIT).unwrap_err();
    assert_eq!(e.kind(), Kind::Failed(Status::TRANSPORT_RETRY), "{e}");
    begin.elapsed()
}

/// 4.096 us * 2^timeout, once and for each retry.
pub fn a_silent_peer_is_given_up_as_timeout_and_retries_say(open: Open) {
    // Twice the default, by the timeout and by the retries.
    let nominal =
        |timeout: u32, retries: u32| Duration::from_nanos(4096 << timeout) * (retries + 1);
    for (timeout, retries) in [(17, 3), (19, 0)] {
        let config = QpConfig::default()
            .timeout(None)
            .ack_timeout(timeout)
            .retry_count(retries as u8);
        let took = gives_up_after(open, &config);
        let least = nominal(timeout.into(), retries);
        assert!(took >= least, "{took:?} of {least:?}");
    }
}

/// `member`: a key of a partition that the NIC is a member of. The NIC is in no other partition.
pub fn a_partition_that_the_nic_is_not_in_is_refused(open: Open, kind: Kind) {
    let config = |pkey| QpConfig::default().pkey(pkey);
    // The membership bit is not compared.
    Pair::open(open, &config(0x7fff)).works();
    let gpu = Gpu::soft().unwrap();
    let pd = open(&gpu).unwrap().alloc_pd().unwrap();
    let e = pd.create_qp(&config(0x8012)).unwrap_err();
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.to_string().contains("0x8012"), "{e}");
}
