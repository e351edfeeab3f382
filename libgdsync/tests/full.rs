//! Full queues and posts out of turn: an error at once or a bounded wait, as the caller chooses.

mod common;

use common::*;

const SOON: Duration = Duration::from_millis(5);

#[test]
fn a_full_queue_is_an_error_or_a_bounded_wait_as_the_caller_chooses() {
    for (path, config) in paths() {
        let config = sized(&config, 4, config.recv_entries);
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let [mem, far] = p.memories(MemoryKind::Pinned, 64);
        let list = [sge(&mem, 0, 8)];
        let work = Work::send(&list).signaled();
        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
        let names = &["send queue of QP 0x", "is full"];
        // Prepared, posted behind a gate, or in flight: every request counts.
        let sends = [(); 4].map(|()| p.a.prepare(&work).unwrap());
        refused(p.a.prepare(&work), Kind::QueueFull, Some(4), names);
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        for send in sends {
            p.a.post_on(&stream, &[Descriptor::Send(send)]).unwrap();
        }
        refused(p.a.prepare(&work), Kind::QueueFull, Some(4), names);
        let before = gpu.host().now();
        all_refused! { Kind::QueueFull, Some(4), names; p.a.prepare_within(&work, SOON) }
        assert!(gpu.host().now() - before >= SOON, "{path}");
        gate.open();
        finish(&stream, path);
        all_refused! { Kind::QueueFull, Some(4), names; p.a.prepare_within(&work, SOON) }
        // Room becomes free while the call waits for it.
        let receives = [(); 5].map(|()| p.b.prepare_receive(&[sge(&far, 0, 8)]).unwrap());
        let Pair { a, b, .. } = &mut p;
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(SOON);
                for recv in &receives {
                    b.post_receive(*recv).unwrap();
                }
            });
            let send = a.prepare_within(&work, LIMIT).unwrap();
            a.post_within(send, LIMIT).unwrap();
            a.wait(send, LIMIT).unwrap();
        });
        for recv in receives {
            p.b.wait(recv, LIMIT).unwrap();
        }
        p.check(path);
    }
}

#[test]
fn a_completion_queue_is_full_until_its_stream_has_passed() {
    for (path, config) in paths() {
        let config = sized(&config, 4, config.recv_entries);
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        // All complete at once, but a stream has not passed its waits yet.
        let (done, refusal) = fill(|| {
            let send = p.a.prepare(&Work::nop().signaled())?;
            p.a.post(send).unwrap();
            p.a.wait(send, LIMIT).unwrap();
            p.a.post_on(&stream, &[Descriptor::wait(send)])
        });
        let names = &["completion queue of QP 0x", "is full"];
        refused::<()>(Err(refusal), Kind::QueueFull, Some(4), names);
        assert_eq!(done.len(), 4, "{path}: entries are used again too early");
        let Pair { a, .. } = &mut p;
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(SOON);
                gate.open();
            });
            let send = a.prepare_within(&Work::nop().signaled(), LIMIT).unwrap();
            a.post(send).unwrap();
            a.wait(send, LIMIT).unwrap();
        });
        finish(&stream, path);
        p.check(path);
    }
}

#[test]
fn post_by_the_cpu_waits_for_the_previous_stream_within_the_time_limit() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
        let first = p.a.signaled(&Work::nop());
        let second = p.a.signaled(&Work::nop());
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        p.a.post_on(&stream, &[Descriptor::Send(first)]).unwrap();
        let names = &["QP 0x", "has not rung"];
        refused(p.a.post(second), Kind::Busy, None, names);
        refused(p.a.post_within(second, SOON), Kind::Busy, None, names);
        let Pair { a, .. } = &mut p;
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(SOON);
                gate.open();
            });
            a.post_within(second, LIMIT).unwrap();
        });
        p.a.wait(second, LIMIT).unwrap();
        p.a.wait(first, LIMIT).unwrap();
        // The same for receives.
        let (mem, gate) = (p.mem_a(MemoryKind::Pinned, 64), Gate::new(&gpu));
        let first = p.a.prepare_receive(&[sge(&mem, 0, 8)]).unwrap();
        let second = p.a.prepare_receive(&[sge(&mem, 8, 8)]).unwrap();
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        p.a.post_on(&stream, &[Descriptor::Receive(first)]).unwrap();
        refused(p.a.post_receive(second), Kind::Busy, None, &["QP 0x"]);
        gate.open();
        finish(&stream, path);
        common::until(&gpu, path, || p.a.post_receive(second).is_ok());
        for recv in [first, second] {
            p.b.start(&Work::send_inline(&[b"x"]));
            p.a.wait(recv, LIMIT).unwrap();
        }
        p.check(path);
    }
}

/// A call that would block on a stream that waits can be refused before it enqueues anything.
#[test]
fn room_of_a_full_stream_is_refused_while_it_waits() {
    const BOUND: u32 = 8;
    let gpu = soft(SoftOptions::default().stream_bound(BOUND as usize));
    let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
    stream.check_submissions(10 * BOUND).unwrap();
    post_on(&stream, &mut [], &[gate.wait()]).unwrap();
    for taken in 1..BOUND {
        stream.check_submissions(BOUND - taken).unwrap();
        let e = stream.check_submissions(BOUND - taken + 1).unwrap_err();
        let limit = Some(u64::from(BOUND));
        assert_eq!((e.kind(), e.limit()), (Kind::QueueFull, limit), "{e}");
        stream.record().unwrap();
    }
    gate.open();
    finish(&stream, "open");
    stream.check_submissions(10 * BOUND).unwrap();
}
