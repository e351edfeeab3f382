//! Behaviour of a verbs device, with any provider.

#![allow(dead_code)]

pub mod datagrams;
pub mod reports;

use crate::common::*;

/// Every way in which a stream posts work to the NIC, for queues in pinned memory.
pub fn paths() -> Vec<(&'static str, QpConfig)> {
    let mut paths = paths_of(16, 16);
    paths.truncate(3);
    paths
}

/// `len` bytes that differ from one `round` to the next.
pub fn pattern(round: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + round * 31 + i / 256) as u8)
        .collect()
}

pub fn a_send_from_the_cpu_arrives(open: Open) {
    let mut p = Pair::open(open, &QpConfig::default());
    let [near, far] = p.memories(MemoryKind::Pinned, 4096);
    for round in 0..100 {
        let bytes = pattern(round, 100);
        near.region().write(8, &bytes).unwrap();
        let recv = p.b.receive(&[far.sge(16, 100)]);
        p.a.complete(&Work::send(&[near.sge(8, 100)]));
        p.b.wait(recv, LIMIT).unwrap();
        assert_eq!(p.b.received(recv).unwrap().len, 100);
        let got = far.region().bytes::<102>(15);
        assert_eq!((got[0], got[101]), (0, 0));
        assert_eq!(got[1..101], bytes);
    }
}

/// A hundred laps of small rings: messages in both directions, posted and waited for by streams.
pub fn ping_pong_by_streams(open: Open) {
    for (path, config) in paths() {
        let mut p = Pair::open(open, &config);
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            let [near, far] = p.memories(kind, 8192);
            let (here, there) = (p.gpu.stream().unwrap(), p.gpu.stream().unwrap());
            for round in 0..200 {
                // The lengths include those that a NIC may put into the completion entry (inline
                // scatter).
                let len = [1, 8, 32, 64, 1000, 4096, 5000][round % 7];
                let bytes = pattern(round, len);
                near.region().write(0, &bytes).unwrap();
                near.region().write(len, &[0; 8]).unwrap();
                far.region().write(0, &vec![0; len]).unwrap();
                let (n, f) = (near.sge(0, len as u32), far.sge(0, len as u32));
                let ping = p.b.prepare_receive(&[f]).unwrap();
                let pong = p.a.prepare_receive(&[n]).unwrap();
                let send = p.a.signaled(&Work::send(&[n]));
                let back = p.b.signaled(&Work::send(&[f]));
                let answer = [
                    Descriptor::Receive(ping),
                    Descriptor::wait_flushed(ping),
                    Descriptor::Send(back),
                    Descriptor::wait(back),
                ];
                p.b.post_on(&there, &answer).unwrap();
                let ask = [
                    Descriptor::Receive(pong),
                    Descriptor::Send(send),
                    Descriptor::wait(send),
                    Descriptor::wait_flushed(pong),
                ];
                p.a.post_on(&here, &ask).unwrap();
                passes(&here);
                passes(&there);
                for memory in [&near, &far] {
                    let got = memory.region().vec(0, len);
                    assert_eq!(got, bytes, "{path}, {kind:?}, round {round}");
                }
            }
        }
        assert_eq!((p.a.error(), p.b.error()), (None, None), "{path}");
    }
}

pub fn every_opcode_has_its_effect(open: Open) {
    for (path, config) in paths() {
        let mut p = Pair::open(open, &config);
        let [near, far] = p.memories(MemoryKind::Pinned, 4096);
        let stream = p.gpu.stream().unwrap();
        let bytes = |mr: &Mr, at: usize, len: usize| mr.region().vec(at, len);
        let word = |mr: &Mr, at: usize| u64::from_le_bytes(mr.region().bytes(at));
        let run = |qp: &mut Qp, work: &Work<'_>| {
            let send = qp.signaled(work);
            let list = [Descriptor::Send(send), Descriptor::wait_flushed(send)];
            qp.post_on(&stream, &list).unwrap();
            passes(&stream);
            assert_eq!(qp.poll(send).unwrap(), Some(Status::SUCCESS), "{path}");
        };
        let span = |at, len| far.remote().span(at, len).unwrap();

        // WRITE, of two pieces.
        near.region().write(0, &pattern(1, 300)).unwrap();
        let pieces = [near.sge(0, 100), near.sge(100, 200)];
        run(&mut p.a, &Work::write(&pieces, span(64, 300)));
        assert_eq!(bytes(&far, 64, 300), pattern(1, 300), "{path}");

        // WRITE with immediate data, which takes a receive.
        let recv = p.b.receive(&[]);
        let work = Work::write(&pieces[..1], span(512, 100)).with_imm(0xfeed_0001);
        run(&mut p.a, &work);
        p.b.wait(recv, LIMIT).unwrap();
        let got = p.b.received(recv).unwrap();
        assert_eq!((got.len, got.imm), (100, Some(0xfeed_0001)), "{path}");
        assert_eq!(bytes(&far, 512, 100), pattern(1, 300)[..100], "{path}");

        // SEND, with immediate data and without, scattered over two pieces.
        for imm in [None, Some(7)] {
            let recv = p.b.receive(&[far.sge(1024, 50), far.sge(2048, 250)]);
            let work = Work::send(&pieces);
            run(&mut p.a, &imm.map_or(work, |imm| work.with_imm(imm)));
            p.b.wait(recv, LIMIT).unwrap();
            let got = p.b.received(recv).unwrap();
            assert_eq!((got.len, got.imm), (300, imm), "{path}");
            let sent = pattern(1, 300);
            assert_eq!(bytes(&far, 1024, 50), sent[..50], "{path}");
            assert_eq!(bytes(&far, 2048, 250), sent[50..], "{path}");
        }

        // READ.
        far.region().write(3000, &pattern(2, 500)).unwrap();
        run(
            &mut p.a,
            &Work::read(&[near.sge(1000, 500)], span(3000, 500)),
        );
        assert_eq!(bytes(&near, 1000, 500), pattern(2, 500), "{path}");

        // Atomics.
        far.region().write(0, &40_u64.to_le_bytes()).unwrap();
        let old = [near.sge(2000, 8)];
        run(&mut p.a, &Work::fetch_add(&old, span(0, 8), 2));
        assert_eq!((word(&near, 2000), word(&far, 0)), (40, 42), "{path}");
        run(&mut p.a, &Work::compare_swap(&old, span(0, 8), 41, 1));
        assert_eq!((word(&near, 2000), word(&far, 0)), (42, 42), "{path}");
        run(&mut p.a, &Work::compare_swap(&old, span(0, 8), 42, 1));
        assert_eq!((word(&near, 2000), word(&far, 0)), (42, 1), "{path}");

        // Bytes in the entry itself, and an entry without effect.
        let inline = pattern(3, 90);
        let two = [&inline[..10], &inline[10..]];
        run(&mut p.a, &Work::write_inline(&two, span(128, 90)));
        assert_eq!(bytes(&far, 128, 90), inline, "{path}");
        let recv = p.b.receive(&[far.sge(256, 90)]);
        run(&mut p.a, &Work::send_inline(&two));
        p.b.wait(recv, LIMIT).unwrap();
        assert_eq!(bytes(&far, 256, 90), inline, "{path}");
        run(&mut p.a, &Work::nop());
        assert_eq!((p.a.error(), p.b.error()), (None, None), "{path}");
    }
}

pub fn failing_request_has_its_status_and_a_reset_recovers(open: Open) {
    for (path, config) in paths() {
        let mut p = Pair::open(open, &config);
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        let stream = p.gpu.stream().unwrap();
        for round in 0..5 {
            let list = [near.sge(0, 8)];
            let mut span = far.remote().span(0, 8).unwrap();
            let good = p.a.signaled(&Work::write(&list, span));
            span.rkey ^= 0x5500;
            let bad = p.a.signaled(&Work::write(&list, span));
            let after = p.a.signaled(&Work::write(&list, span));
            let post = [good, bad, after].map(send_and_wait).concat();
            p.a.post_on(&stream, &post).unwrap();
            for (send, status) in [(bad, Status::REMOTE_ACCESS), (after, Status::FLUSHED)] {
                let failed = Some(Kind::Failed(status));
                assert_eq!(kind(p.a.wait(send, LIMIT)), failed, "{path}");
            }
            passes(&stream);
            assert_eq!(p.a.error(), Some(Status::REMOTE_ACCESS), "{path}");
            // The responder is in error too; both are reset and continue at the positions of their
            // entries.
            p.b.fail(Status::CLOSED);
            p.reset(path);
            near.region().write(0, &[round + 1; 8]).unwrap();
            let recv = p.b.receive(&[far.sge(8, 8)]);
            let send = p.a.start_on(&stream, &Work::send(&list));
            passes(&stream);
            p.a.wait(send, LIMIT).unwrap();
            p.b.wait(recv, LIMIT).unwrap();
            let got = far.region().bytes::<8>(8);
            assert_eq!(got, [round + 1; 8], "{path}");
        }
    }
}

pub fn roce_is_addressed_by_gid(open: Open) {
    let mut p = Pair::open(open, &QpConfig::default());
    let port = p.a.address().port.expect("a real port");
    assert_eq!(port.lid, 0);
    assert_ne!(port.gid, [0; 16]);
    let memory = p.memory(MemoryKind::Pinned, 64);
    memory.region().write(0, b"by Ethernet").unwrap();
    let span = memory.remote().span(32, 11).unwrap();
    p.a.complete(&Work::write(&[memory.sge(0, 11)], span));
    let got = memory.region().bytes::<11>(32);
    assert_eq!(&got, b"by Ethernet");
}

pub fn peers_that_cannot_be_are_refused_and_another_may_follow(open: Open) {
    let gpu = Gpu::soft().unwrap();
    let device = open(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let config = QpConfig::default();
    let [mut a, mut b] = [(); 2].map(|()| pd.create_qp(&config).unwrap());
    let good = b.address();
    let port = good.port.expect("a real port");
    // The other kind of link: with a LID, or without one.
    let other = u16::from(port.lid == 0);
    let with = |port| good.port(port);
    let wrong = [
        good.port(None),
        good.qpn(1 << 24),
        good.psn(u32::MAX),
        with(port.lid(other)),
        with(port.mtu(6)),
        with(port.mtu(0)),
    ];
    for address in wrong {
        assert_eq!(
            kind(a.connect(&address)),
            Some(Kind::Invalid),
            "{address:?}"
        );
    }
    connect(&mut a, &mut b);
    assert_eq!(kind(a.connect(&good)), Some(Kind::WrongState));
}

/// Counters of queues have 16 bits, those of completions have more.
pub fn counters_wrap(open: Open) {
    const EACH: u32 = 64;
    let config = sized(&QpConfig::default(), 256, 256);
    let mut p = Pair::open(open, &config);
    let far = p.memory(MemoryKind::Pinned, 64);
    let span = far.remote().span(0, 8).unwrap();
    for batch in 0..(1 << 16) / EACH + 4 {
        let mut last = None;
        for i in 1..=EACH {
            let value = u64::from(batch * EACH + i).to_le_bytes();
            let pieces: [&[u8]; 1] = [&value];
            let work = Work::write_inline(&pieces, span);
            let work = if i == EACH { work.signaled() } else { work };
            let write = p.a.prepare_within(&work, LIMIT).unwrap();
            p.a.post(write).unwrap();
            last = Some(write);
        }
        let last = last.expect("there is one");
        p.a.wait(last, LIMIT).unwrap();
        let got = far.region().bytes::<8>(0);
        assert_eq!(u64::from_le_bytes(got), u64::from((batch + 1) * EACH));
    }
}

/// Doorbells that a stream writes after every handle was dropped go to a page that is still mapped,
/// and the stream continues.
pub fn a_stream_outlives_the_device(open: Open) {
    for (path, config) in paths() {
        let mut p = Pair::open(open, &config);
        let gate = Gate::new(&p.gpu);
        let memory = p.memory(MemoryKind::Pinned, 64);
        let stream = p.gpu.stream().unwrap();
        let span = memory.remote().span(32, 8).unwrap();
        let write = p.a.signaled(&Work::write(&[memory.sge(0, 8)], span));
        p.a.post_on(&stream, &gate.before(write)).unwrap();
        drop(p);
        drop(memory);
        gate.open();
        assert!(stream.synchronize(LIMIT).unwrap(), "{path}: stuck");
    }
}

/// With a connection, a receive posted and no other work, the thread `name` of the device sleeps: it
/// uses less than one `part` of a processor. The next message wakes it.
pub fn idle_thread_sleeps(open: Open, name: &str, part: u32) {
    const WATCHED: Duration = Duration::from_secs(1);
    let mut p = Pair::open(open, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let spent = || {
        let threads = gds_step::thread_times().unwrap();
        let thread = threads.iter().find(|t| t.name == name);
        thread.expect("it runs").cpu
    };
    for round in 0..2 {
        let recv = p.b.receive(&[memory.sge(0, 8)]);
        std::thread::sleep(Duration::from_millis(50));
        // On a busy machine the count sometimes includes work that is not the thread's.
        let sleeps = (0..5).any(|_| {
            let before = spent();
            std::thread::sleep(WATCHED);
            let used = spent() - before;
            println!("round {round}: {used:?} of {WATCHED:?}");
            used < WATCHED / part
        });
        assert!(sleeps, "the idle thread spins");
        let pieces: [&[u8]; 1] = [&[round; 8]];
        p.a.start(&Work::send_inline(&pieces));
        p.b.wait(recv, LIMIT).unwrap();
    }
}
