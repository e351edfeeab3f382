//! Invalid lists for a stream: each is refused as a whole, with a typed error that names object and
//! limit, and no part of it runs.

mod common;

use common::*;
use gdsync::gpu::Condition;

const SOON: Duration = Duration::from_millis(5);

#[test]
fn word_operations_with_wrong_sizes() {
    each_path(|p, mem, stream, _| {
        let region = mem.region();
        let done = Flag::new(&p.gpu);
        let whole = |offset, len| region.span(offset, len).unwrap();
        let data = [7u8; 64];
        for (span, bytes) in [
            (whole(0, 8), 4),
            (whole(0, 4), 8),
            (whole(0, 6), 6),
            (whole(2, 8), 8),
        ] {
            let list = [
                done.set(),
                Descriptor::WriteMemory {
                    to: &span,
                    data: &data[..bytes],
                },
            ];
            let names = &["bytes", "region"];
            refused(p.a.post_on(stream, &list), Kind::Invalid, None, names);
        }
        // A list without any write is valid.
        let nothing = whole(0, 0);
        let list = [Descriptor::WriteMemory {
            to: &nothing,
            data: &[],
        }];
        p.a.post_on(stream, &list).unwrap();
        p.a.post_on(stream, &[]).unwrap();
        let (to, from) = (whole(0, 8), whole(8, 16));
        all_refused! { Kind::Invalid, None, &["16 bytes", "8 bytes"]; stream.copy(&to, &from) }
        let overlapping = whole(4, 8);
        refused(stream.copy(&to, &overlapping), Kind::Invalid, None, &[]);
        finish(stream, "after refusals");
        assert!(!done.is_set());
    });
}

#[test]
fn waits_for_requests_without_completion_are_refused() {
    each_path(|p, mem, stream, path| {
        let list = [sge(mem, 0, 8)];
        let to = mem.remote().span(64, 8).unwrap();
        let silent = p.a.prepare(&Work::write(&list, to)).unwrap();
        p.a.post(silent).unwrap();
        let done = Flag::new(&p.gpu);
        let wait = [done.set(), Descriptor::wait(silent)];
        let text: &[&str] = &["QP 0x", "no completion"];
        refused(p.a.post_on(stream, &wait), Kind::Invalid, None, text);
        let text: &[&str] = &["QP 0x", "request 0"];
        refused(p.a.wait(silent, SOON), Kind::Timeout, None, text);
        // Its completion is known after a later request has completed.
        let loud = p.a.start(&Work::nop());
        p.a.wait(loud, LIMIT).unwrap();
        p.a.wait(silent, LIMIT).unwrap();
        // A receive that has not completed has no result.
        let recv = p.a.receive(&list);
        refused(p.a.received(recv), Kind::NoSuchRequest, None, &["QP 0x"]);
        refused(p.a.wait(recv, SOON), Kind::Timeout, None, &["QP 0x"]);
        p.b.start(&Work::send_inline(&[b"x"]));
        p.a.wait(recv, LIMIT).unwrap();
        assert_eq!(p.a.received(recv).unwrap().len, 1);
        finish(stream, path);
        assert!(!done.is_set(), "{path}: nothing of a refused list runs");
    });
}

#[test]
fn capturing_stream_refuses_every_list() {
    each_path(|p, mem, stream, path| {
        let list = [sge(mem, 0, 8)];
        let to = mem.remote().span(64, 8).unwrap();
        let send = p.a.signaled(&Work::write(&list, to));
        let done = Flag::new(&p.gpu);
        stream.as_soft().unwrap().begin_capture().unwrap();
        let names: &[&str] = &["stream", "captured"];
        for bad in [Descriptor::Send(send), done.set(), Descriptor::Flush] {
            refused(p.a.post_on(stream, &[bad]), Kind::Unsupported, None, names);
        }
        refused(p.a.post_on(stream, &[]), Kind::Unsupported, None, names);
        let (one, two) = (
            mem.region().span(0, 8).unwrap(),
            mem.region().span(8, 8).unwrap(),
        );
        let copy = stream.copy(&one, &two);
        assert_eq!(kind(copy), Some(Kind::Unsupported));
        stream.as_soft().unwrap().end_capture().unwrap();
        p.a.post_on(stream, &done.behind(send)).unwrap();
        finish(stream, path);
        assert!(done.is_set());
    });
}

#[test]
fn ninth_waiting_stream_is_refused() {
    each_path(|p, mem, stream, path| {
        let recv = p.a.receive(&[sge(mem, 0, 8)]);
        let wait = [Descriptor::wait(recv)];
        let streams: Vec<Stream> = (0..8).map(|_| p.gpu.stream().unwrap()).collect();
        for stream in &streams {
            p.a.post_on(stream, &wait).unwrap();
        }
        let names: &[&str] = &["QP 0x", "too many streams wait"];
        refused(p.a.post_on(stream, &wait), Kind::QueueFull, Some(8), names);
        // One of the eight streams may wait a second time.
        p.a.post_on(&streams[0], &wait).unwrap();
        p.b.start(&Work::send_inline(&[b"x"]));
        for stream in &streams {
            finish(stream, path);
        }
        p.a.post_on(stream, &wait).unwrap();
        finish(stream, path);
    });
}

#[test]
fn unsupported_operation_refuses_the_whole_list() {
    let elsewhere = Gpu::soft().unwrap();
    let foreign = elsewhere.alloc(MemoryKind::Pinned, 64).unwrap();
    let foreign = foreign.word64(0).unwrap();
    // The CPU or the NIC does the flushes.
    for (host_flush, (path, config)) in [true, false]
        .into_iter()
        .flat_map(|by_host| paths().into_iter().map(move |path| (by_host, path)))
    {
        let mut options = SoftOptions::default();
        options.caps.flush = false;
        options.caps.host_flush = host_flush;
        options.caps.memops64 = false;
        let gpu = soft(options);
        let mut p = Pair::new(&gpu, Net::One, &config);
        let (mem, stream) = (p.mem_a(MemoryKind::Pinned, 64), gpu.stream().unwrap());
        let list = [sge(&mem, 0, 8)];
        let to = mem.remote().span(32, 8).unwrap();
        let word = mem.region().word64(0).unwrap();
        let done = Flag::new(&gpu);
        let send = p.a.signaled(&Work::write(&list, to));
        let wide = |word| Descriptor::wait_value(word, Condition::Geq, 0).flush(true);
        for (bad, why) in [
            (wide(&word), Kind::Unsupported),
            (wide(&foreign), Kind::Foreign),
        ] {
            if why == Kind::Unsupported && config.lowering == Lowering::Kernel {
                // Kernels wait for words of any size.
                continue;
            }
            // After so many operations that some are submitted before the invalid one is checked.
            let mut list = vec![done.set(), Descriptor::Send(send)];
            list.extend([
                Descriptor::wait_flushed(send),
                done.set(),
                Descriptor::Flush,
            ]);
            list.extend([done.set(); 300]);
            list.push(bad);
            let result = p.a.post_on(&stream, &list);
            assert_eq!(kind(result), Some(why), "{path}, {bad:?}");
            finish(&stream, path);
            assert!(!done.is_set(), "{path}, {bad:?}");
            assert_eq!(p.a.error(), None, "{path}, {bad:?}");
        }
        let list = [
            Descriptor::Send(send),
            Descriptor::wait_flushed(send),
            done.set(),
        ];
        p.a.post_on(&stream, &list).unwrap();
        finish(&stream, path);
        assert!(done.is_set());
        p.a.wait(send, LIMIT).unwrap();
        p.check(path);
    }
}
