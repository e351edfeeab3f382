//! Reset and reconnect: the first indices after a reset, the work that forbids it, and the state
//! that it clears.

mod common;

use common::*;

/// Queues so short that a few messages wrap around them.
fn short(config: &QpConfig, start: u32) -> QpConfig {
    sized(config, 4, 8).start(start)
}

#[test]
fn traffic_flows_after_a_reset_from_any_position_of_the_queues() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        // 0xfffd: the indices wrap soon; odd starts are inside laps and quarters.
        for start in [0, 5, 0xfffd, 0x2_0003] {
            let mut p = Pair::new(&gpu, Net::Hub, &short(&config, start));
            let mut rng = fastrand::Rng::with_seed(u64::from(start));
            for round in 0..24 {
                let what = format!("{path}, start {start:#x}, round {round}");
                let messages = rng.u32(..12);
                traffic(&mut p, messages, &mut rng, &what);
                match rng.u32(..3) {
                    0 => fail(&mut p, true, &what),
                    1 => fail(&mut p, false, &what),
                    _ => {}
                }
                p.recover(&what);
            }
        }
    }
}

/// Messages from `a` to `b`, posted and waited for by CPU or stream at random.
fn traffic(p: &mut Pair, messages: u32, rng: &mut fastrand::Rng, what: &str) {
    let [near, far] = p.memories(MemoryKind::Device, 64);
    let stream = p.gpu.stream().unwrap();
    for i in 0..messages {
        let recv = p.b.receive(&[sge(&far, 0, 4)]);
        near.region().write(0, &i.to_le_bytes()).unwrap();
        let list = [sge(&near, 0, 4)];
        let signaled = rng.bool();
        let work = Work::send(&list);
        let work = if signaled { work.signaled() } else { work };
        let send = p.a.prepare_within(&work, LIMIT).unwrap();
        if rng.bool() {
            p.a.post_within(send, LIMIT).unwrap();
        } else {
            p.a.post_on(&stream, &[Descriptor::Send(send)]).unwrap();
        }
        if signaled && rng.bool() {
            let wait = [Descriptor::wait(send)];
            p.a.post_on(&stream, &wait).unwrap();
        }
        p.b.wait(recv, LIMIT)
            .unwrap_or_else(|e| panic!("{what}, message {i}: {e}"));
        let got = far.region().bytes::<4>(0);
        assert_eq!(u32::from_le_bytes(got), i, "{what}");
    }
    finish(&stream, what);
}

/// A write with a wrong key.
fn fail(p: &mut Pair, signaled: bool, what: &str) {
    let [near, far] = p.memories(MemoryKind::Pinned, 64);
    let list = [sge(&near, 0, 8)];
    let mut to = far.remote().span(0, 8).unwrap();
    to.rkey ^= 0x00ab_cd00;
    let work = Work::write(&list, to);
    let work = if signaled { work.signaled() } else { work };
    let bad = p.a.prepare_within(&work, LIMIT);
    let bad = bad.unwrap_or_else(|e| panic!("{what}: {e}"));
    p.a.post_within(bad, LIMIT).unwrap();
    let expect = Kind::Failed(Status::REMOTE_ACCESS);
    assert_eq!(kind(p.a.wait(bad, LIMIT)), Some(expect), "{what}");
}

/// Begins a SEND that is in flight until the gate opens, or until the peer receives.
type Start = fn(&mut Qp, &Stream, &Gate, Work<'_>);

fn behind_the_gate(qp: &mut Qp, stream: &Stream, gate: &Gate, work: Work<'_>) {
    let send = qp.prepare(&work).unwrap();
    let list = [gate.wait(), Descriptor::Send(send)];
    qp.post_on(stream, &list).unwrap();
}

#[test]
fn work_in_flight_forbids_a_reset_until_it_is_done() {
    let starts: [(&str, Start); 5] = [
        ("a signaled send behind a gate", |qp, stream, gate, send| {
            behind_the_gate(qp, stream, gate, send.signaled());
        }),
        ("an unsignaled send behind a gate", behind_the_gate),
        ("a send without a receive", |qp, _, _, send| {
            qp.start(&send);
        }),
        ("an unsignaled send without a receive", |qp, _, _, send| {
            let send = qp.prepare(&send).unwrap();
            qp.post(send).unwrap();
        }),
        (
            "a stream that has not arrived at its wait",
            |qp, stream, gate, send| {
                let send = qp.start(&send);
                // In separate submissions: the waits of one submission may run in parallel.
                qp.post_on(stream, &[gate.wait()]).unwrap();
                qp.post_on(stream, &[Descriptor::wait(send)]).unwrap();
            },
        ),
    ];
    for (path, config) in paths() {
        for (name, start) in starts {
            let what = format!("{path}: {name}");
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, Net::Hub, &short(&config, 0));
            let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
            let mem = p.mem_a(MemoryKind::Pinned, 64);
            start(&mut p.a, &stream, &gate, Work::send(&[sge(&mem, 0, 8)]));
            drop(mem);
            let late = name.starts_with("a stream");
            let mut receive = late.then(|| receive_one(&mut p));
            std::thread::sleep(Duration::from_millis(3));
            let busy = p.a.reset();
            assert_eq!(kind(busy), Some(Kind::Busy), "{what}");
            let quiet = p.a.quiet(Duration::from_millis(3));
            assert_eq!(kind(quiet), Some(Kind::Timeout), "{what}");
            gate.open();
            let receive = receive.take().unwrap_or_else(|| receive_one(&mut p));
            p.b.wait(receive, LIMIT)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            finish(&stream, &what);
            p.check(&what);
            p.recover(&what);
        }
    }
}

fn receive_one(p: &mut Pair) -> ReceiveRequest {
    let mem = p.mem_b(MemoryKind::Pinned, 64);
    p.b.receive(&[sge(&mem, 0, 8)])
}

#[test]
fn unmatched_receives_do_not_forbid_a_reset() {
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        let mut p = Pair::new(&gpu, Net::Hub, &short(&config, 0));
        let recv = receive_one(&mut p);
        assert_eq!(p.b.poll(recv).unwrap(), None);
        p.recover(path);
    }
}

/// A stream writes the doorbell record when it reaches the receives that it posts. If the queue
/// pair were reset meanwhile, that record would post entries from before the reset again.
#[test]
fn receives_that_a_stream_has_not_posted_forbid_a_reset() {
    for (path, config) in paths() {
        for failed in [false, true] {
            let what = format!("{path}, in error: {failed}");
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, Net::Hub, &short(&config, 0xfffe));
            let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
            let old = p.mem_b(MemoryKind::Pinned, 64);
            let list: Vec<_> = (0..3)
                .map(|i| p.b.prepare_receive(&[sge(&old, 8 * i, 8)]).unwrap())
                .collect();
            p.b.post_receive(list[0]).unwrap();
            let post = [
                gate.wait(),
                Descriptor::Receive(list[1]),
                Descriptor::Receive(list[2]),
            ];
            p.b.post_on(&stream, &post).unwrap();
            if failed {
                p.b.fail(Status::CLOSED);
            }
            assert_eq!(kind(p.b.reset()), Some(Kind::Busy), "{what}");
            let quiet = p.b.quiet(Duration::from_millis(3));
            assert_eq!(kind(quiet), Some(Kind::Timeout), "{what}");
            gate.open();
            finish(&stream, &what);
            p.recover(&what);
            let got = old.region().bytes::<24>(0);
            assert_eq!(got, [0; 24], "{what}: a message in an old buffer");
        }
    }
}

#[test]
fn failure_of_one_side_ends_the_requests_of_the_other() {
    // `b` has sent unsignaled, and then fails as a receiver: no request on its send queue ever
    // completes.
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        let mut p = Pair::new(&gpu, Net::Hub, &short(&config, 0));
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        let list = [sge(&far, 0, 8)];
        let to = near.remote().span(0, 8).unwrap();
        let silent = p.b.prepare(&Work::write(&list, to)).unwrap();
        p.b.post(silent).unwrap();
        let recv = p.b.receive(&[sge(&far, 0, 4)]);
        p.a.start(&Work::send(&[sge(&near, 0, 8)]));
        let expect = Some(Kind::Failed(Status::LOCAL_LENGTH));
        assert_eq!(kind(p.b.wait(recv, LIMIT)), expect, "{path}");
        p.recover(path);
    }
}

#[test]
fn requests_from_before_a_reset_are_not_taken_for_later_ones() {
    let gpu = Gpu::soft().unwrap();
    let (_, config) = paths().remove(0);
    let mut p = Pair::new(&gpu, Net::Hub, &short(&config, 0));
    let mem = p.mem_a(MemoryKind::Pinned, 64);
    let list = [sge(&mem, 0, 8)];
    let prepared = p.a.signaled(&Work::send(&list));
    let receive = p.a.prepare_receive(&list).unwrap();
    p.recover("prepared requests are given up");
    // As many as before, so that the new requests could have the old numbers.
    let new = p.a.signaled(&Work::nop());
    let stream = gpu.stream().unwrap();
    let old = |p: &mut Pair, old: SendRequest| {
        let names: &[&str] = &["QP 0x"];
        refused(p.a.post(old), Kind::Foreign, None, names);
        refused(p.a.abort(old), Kind::Foreign, None, names);
        refused(p.a.poll(old), Kind::Foreign, None, names);
        refused(p.a.wait(old, LIMIT), Kind::Foreign, None, names);
        refused(p.a.status_word(old), Kind::Foreign, None, names);
    };
    old(&mut p, prepared);
    let list = [Descriptor::Send(prepared)];
    refused(p.a.post_on(&stream, &list), Kind::Foreign, None, &[]);
    refused(p.a.post_receive(receive), Kind::Foreign, None, &["QP 0x"]);
    p.a.post(new).unwrap();
    p.a.wait(new, LIMIT).unwrap();
    old(&mut p, prepared);
    p.check("after names from before");
}
