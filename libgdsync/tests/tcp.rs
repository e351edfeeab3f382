//! Queue pairs that are carried by TCP, on the loopback interface.

mod common;
mod verbs_device;

use std::time::Instant;

use common::*;
use gdsync::gpu::Condition;
use gdsync::rdma::{Field, TcpOptions};

/// A device of a job whose devices all have this key, on the loopback interface.
fn open(gpu: &Gpu) -> gdsync::Result<Device> {
    open_with(gpu, false)
}

fn open_encrypted(gpu: &Gpu) -> gdsync::Result<Device> {
    open_with(gpu, true)
}

fn open_with(gpu: &Gpu, encrypted: bool) -> gdsync::Result<Device> {
    let options = TcpOptions::default().address(std::net::IpAddr::from([127, 0, 0, 1]));
    Device::tcp(gpu, options.key([7; 32]).encrypted(encrypted))
}

#[test]
fn a_send_from_the_cpu_arrives() {
    verbs_device::a_send_from_the_cpu_arrives(open);
}

#[test]
fn ping_pong_by_streams() {
    verbs_device::ping_pong_by_streams(open);
}

#[test]
fn every_opcode_has_its_effect() {
    verbs_device::every_opcode_has_its_effect(open);
}

#[test]
fn every_opcode_has_its_effect_encrypted() {
    verbs_device::every_opcode_has_its_effect(open_encrypted);
}

#[test]
fn failing_request_has_its_status_and_a_reset_recovers() {
    verbs_device::failing_request_has_its_status_and_a_reset_recovers(open);
}

#[test]
fn a_stream_outlives_the_device() {
    verbs_device::a_stream_outlives_the_device(open);
}

#[test]
fn a_refused_access_of_the_peer_is_an_error_here() {
    verbs_device::reports::a_refused_access_of_the_peer_is_an_error_here(open);
}

#[test]
fn counters_wrap() {
    verbs_device::counters_wrap(open);
}

/// Both sides of a connection on the loopback interface, each of a device of its own.
fn apart(gpu: &Gpu, config: &QpConfig) -> (Qp, Qp) {
    let new = || open(gpu).unwrap().alloc_pd().unwrap();
    let mut a = new().create_qp(config).unwrap();
    let mut b = new().create_qp(config).unwrap();
    connect(&mut a, &mut b);
    (a, b)
}

fn memory_of(qp: &Qp, len: usize) -> Mr {
    memory(qp.pd(), MemoryKind::Pinned, len, Access::ALL)
}

/// Neither a request of the other side nor its answer waits for a receive that is not posted.
#[test]
fn requests_pass_messages_that_wait_for_a_receive() {
    let gpu = Gpu::soft().unwrap();
    let (mut a, mut b) = apart(&gpu, &QpConfig::default());
    let [near, far] = [&a, &b].map(|qp| memory_of(qp, 4096));
    let to_near = near.remote().span(64, 8).unwrap();
    let to_far = far.remote().span(64, 8).unwrap();
    let list = [near.sge(0, 8)];
    let back = [far.sge(0, 8)];
    near.region().write(0, b"from a, ").unwrap();
    far.region().write(0, b"from b, ").unwrap();
    let sends = [a.start(&Work::send(&list)), b.start(&Work::send(&back))];
    let after = a.start(&Work::write(&list, to_far));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(a.poll(sends[0]).unwrap(), None);
    // A request behind a message without a receive waits too.
    assert_eq!(a.poll(after).unwrap(), None);
    assert_eq!(far.region().bytes::<8>(64), [0; 8]);
    let [into_near, into_far] = [[near.sge(128, 8)], [far.sge(128, 8)]];
    let first = b.receive(&into_far);
    a.wait(after, LIMIT).unwrap();
    b.wait(first, LIMIT).unwrap();
    assert_eq!(&far.region().bytes(128), b"from a, ");
    assert_eq!(&far.region().bytes(64), b"from a, ");
    // The message of b still waits; a's requests are executed and answered all the same.
    a.complete(&Work::read(
        &[near.sge(256, 8)],
        far.remote().span(0, 8).unwrap(),
    ));
    a.complete(&Work::fetch_add(&[near.sge(264, 8)], to_far, 1));
    a.complete(&Work::write(&list, to_far));
    assert_eq!(&near.region().bytes(256), b"from b, ");
    assert_eq!(b.poll(sends[1]).unwrap(), None);
    let second = a.receive(&into_near);
    b.wait(sends[1], LIMIT).unwrap();
    a.wait(second, LIMIT).unwrap();
    b.complete(&Work::write(&back, to_near));
    assert_eq!(&near.region().bytes(128), b"from b, ");
}

/// The thread of the GPU polls the queue pairs only while a stream waits. That of the device must not
/// sleep until a time limit then, although it slept when the post was enqueued.
#[test]
fn a_post_behind_the_last_wait_is_sent_soon() {
    const ROUNDS: u32 = 15;
    let gpu = Gpu::soft().unwrap();
    let (mut a, b) = apart(&gpu, &QpConfig::default());
    let [near, far] = [&a, &b].map(|qp| memory_of(qp, 64));
    let to_far = far.remote().span(0, 4).unwrap();
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let gates = [(); 2].map(|()| gpu.word());
    let moment = || std::thread::sleep(Duration::from_millis(2));
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let open = |gate| Descriptor::wait_value(gate, Condition::Geq, round);
        near.region().write(0, &round.to_le_bytes()).unwrap();
        moment();
        post_on(&streams[0], &mut [], &[open(&gates[0])]).unwrap();
        moment();
        let from = [near.sge(0, 4)];
        let write = a.prepare(&Work::write(&from, to_far).signaled()).unwrap();
        let list = [open(&gates[1]), Descriptor::Send(write)];
        a.post_on(&streams[1], &list).unwrap();
        moment();
        let start = Instant::now();
        for gate in &gates {
            gate.store(round).unwrap();
        }
        // A thread that waits by a call of the library would send it.
        while far.region().bytes(0) != round.to_le_bytes() {
            std::thread::sleep(Duration::from_micros(50));
        }
        times.push(start.elapsed());
        a.wait(write, LIMIT).unwrap();
    }
    times.sort();
    // The time limit of the sleep is 100 ms.
    assert!(
        times[times.len() / 2] < Duration::from_millis(30),
        "{times:?}"
    );
}

/// The peer is alive, although it takes the message much later than the connection's time limit.
#[test]
fn a_long_message_waits_for_its_receive_beyond_the_limit_of_the_connection() {
    const LEN: usize = 16 << 20;
    let gpu = Gpu::soft().unwrap();
    // The shortest limit: 5 s.
    let (mut a, mut b) = apart(&gpu, &QpConfig::default().ack_timeout(1));
    let [near, far] = [&a, &b].map(|qp| memory_of(qp, LEN));
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    near.region().write(0, &bytes).unwrap();
    let send = a.start(&Work::send(&[near.sge(0, LEN as u32)]));
    std::thread::sleep(Duration::from_secs(8));
    let receive = b.receive(&[far.sge(0, LEN as u32)]);
    a.wait(send, LIMIT).unwrap();
    b.wait(receive, LIMIT).unwrap();
    assert!(far.region().vec(0, LEN) == bytes);
}

/// A queue pair on itself is the peer that must read the answer for the refusal behind it to be sent.
#[test]
fn an_answer_longer_than_a_socket_takes_precedes_a_refusal() {
    const LEN: usize = 16 << 20;
    let gpu = Gpu::soft().unwrap();
    let (mut a, mut b) = apart(&gpu, &QpConfig::default());
    let mut own = open(&gpu)
        .unwrap()
        .alloc_pd()
        .unwrap()
        .create_qp(&QpConfig::default())
        .unwrap();
    let address = own.address();
    own.connect(&address).unwrap();
    let foreign = memory_of(&own, 64);
    let far = memory_of(&b, LEN);
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    far.region().write(0, &bytes).unwrap();
    let same = memory_of(&own, 2 * LEN);
    same.region().write(0, &bytes).unwrap();
    let near = memory_of(&a, LEN);
    let receive = b.receive(&[far.sge(0, 8)]);
    let wrong = foreign.remote().span(0, 8).unwrap();
    let wrong_there = near.remote().span(0, 8).unwrap();
    let cases = [
        (&mut a, near.sge(0, LEN as u32), &far, &near, 0, wrong),
        (
            &mut own,
            same.sge(LEN as u64, LEN as u32),
            &same,
            &same,
            LEN,
            wrong_there,
        ),
    ];
    for (qp, into, from, to, at, wrong) in cases {
        let span = from.remote().span(0, LEN as u64).unwrap();
        let read = qp.start(&Work::read(&[into], span));
        let write = qp.start(&Work::write(&[to.sge(0, 8)], wrong));
        qp.wait(read, LIMIT).unwrap();
        assert!(to.region().vec(at, LEN) == bytes);
        let status = kind(qp.wait(write, LIMIT));
        assert_eq!(status, Some(Kind::Failed(Status::REMOTE_ACCESS)));
    }
    // The side that has refused fails too.
    assert!(b.wait(receive, LIMIT).is_err());
}

/// A stream that waits for the word of the second must not find it without the payload of the first.
#[test]
fn requests_behind_one_that_this_side_refuses_have_no_effect() {
    let gpu = Gpu::soft().unwrap();
    for inline in [false, true] {
        let (mut a, b) = apart(&gpu, &QpConfig::default());
        let [near, far] = [&a, &b].map(|qp| memory_of(qp, 4096));
        near.region().write(0, &[1; 64]).unwrap();
        let span = |at| far.remote().span(at, 8).unwrap();
        let before = a.signaled(&Work::write(&[near.sge(0, 8)], span(0)));
        let bad = a.signaled(&Work::write(&[near.sge(0, 8)], span(64)));
        let word = [near.sge(0, 8)];
        let after = match inline {
            true => a.signaled(&Work::write_inline(&[&[1; 8]], span(128))),
            false => a.signaled(&Work::write(&word, span(128))),
        };
        let key = a.field32(bad, Field::Key(0)).unwrap();
        key.store(0xdead_0000).unwrap();
        let stream = gpu.stream().unwrap();
        let list = [before, bad, after].map(Descriptor::Send);
        a.post_on(&stream, &list).unwrap();
        passes(&stream);
        a.wait(before, LIMIT).unwrap();
        for (send, status) in [(bad, Status::LOCAL_PROTECTION), (after, Status::FLUSHED)] {
            assert_eq!(kind(a.wait(send, LIMIT)), Some(Kind::Failed(status)));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(far.region().bytes::<8>(0), [1; 8]);
        assert_eq!(far.region().bytes::<8>(128), [0; 8]);
    }
}

#[test]
fn an_address_to_which_no_peer_can_connect_is_refused() {
    let gpu = Gpu::soft().unwrap();
    for text in [
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "ff02::1",
        "fe80::1",
    ] {
        let address: std::net::IpAddr = text.parse().unwrap();
        let device = Device::tcp(&gpu, TcpOptions::default().address(address));
        refused(device, Kind::Invalid, None, &["cannot connect", text]);
    }
}

#[test]
fn a_simulated_host_is_refused() {
    let (_sim, gpu) = play(1);
    refused(open(&gpu), Kind::Unsupported, None, &["virtual"]);
}
