//! Invalid requests and lists: each is refused with a typed error that names object and limit, and
//! changes nothing.

mod common;

use common::*;
use gdsync::rdma::{Field, Sge};

#[test]
fn requests_that_cannot_be_encoded() {
    each_path(|p, mem, _, _| {
        let to = mem.remote().span(0, 8).unwrap();
        let long = [0u8; 1024];
        let list = [sge(mem, 0, 8); 31];
        let a = &mut p.a;
        let names = &["QP 0x"];
        let invalid = Kind::Invalid;
        all_refused! { invalid, Some(30), &["31 SGEs"];
            a.prepare(&Work::send(&list)),
            a.prepare(&Work::write(&list, to)),
        }
        all_refused! { invalid, Some(1023), names;
            a.prepare(&Work::send_inline(&[&long])),
            a.prepare(&Work::write_inline(&[&long[..1000], &long[..24]], to)),
        }
        // The length field can encode 1023 bytes, but they do not fit an entry.
        all_refused! { invalid, Some(63), names; a.prepare(&Work::send_inline(&[&long[..1023]])) }
        // Atomics access eight bytes, and need memory for them.
        for len in [0, 4, 7] {
            let old = [sge(mem, 0, len)];
            all_refused! { invalid, Some(8), names; a.prepare(&Work::fetch_add(&old, to, 1)) }
        }
        all_refused! { invalid, Some(8), names; a.prepare(&Work::compare_swap(&[], to, 0, 1)) }
    });
}

#[test]
fn request_larger_than_the_queue_is_invalid_and_not_queue_full() {
    let gpu = Gpu::soft().unwrap();
    let config = sized(&QpConfig::default(), 4, 256);
    let mut p = Pair::new(&gpu, Net::One, &config);
    let mem = p.mem_a(MemoryKind::Pinned, 64);
    let list = [sge(&mem, 0, 2); 16];
    let work = Work::send(&list);
    refused(p.a.prepare(&work), Kind::Invalid, Some(4), &["QP 0x"]);
    // The call does not wait either.
    let before = gpu.host().now();
    let within = p.a.prepare_within(&work, LIMIT);
    refused(within, Kind::Invalid, Some(4), &["QP 0x"]);
    assert!(gpu.host().now() - before < LIMIT);
    // A request as large as the queue fits: 4 blocks are 16 segments, one for control.
    let recv_mem = p.mem_b(MemoryKind::Pinned, 64);
    let recv = p.b.receive(&[sge(&recv_mem, 0, 64)]);
    let send = p.a.start(&Work::send(&list[..15]));
    p.b.wait(recv, LIMIT).unwrap();
    assert_eq!(p.b.received(recv).unwrap().len, 30);
    // The next request has room after this one is acknowledged.
    p.a.wait(send, LIMIT).unwrap();
    p.check("after");
}

#[test]
fn memory_of_the_wrong_range_or_owner_is_refused() {
    each_path(|p, mem, stream, path| {
        let gpu = p.gpu.clone();
        let to = mem.remote().span(0, 8).unwrap();
        let len = Some(4096);
        for (offset, size) in [
            (4089, 8),
            (4096, 1),
            (u64::MAX, 8),
            (u64::MAX - 7, 8),
            (0, 4097),
        ] {
            let list = [sge(mem, 0, 4), sge(mem, offset, size)];
            let names = &["MR 0x", "region"];
            all_refused! { Kind::Invalid, len, names;
                p.a.prepare(&Work::send(&list)),
                p.a.prepare(&Work::read(&list, to)),
                p.a.prepare_receive(&list),
            }
        }
        // Another domain of this device, another device, another GPU.
        let stranger = Gpu::soft().unwrap();
        let far_away = Pair::new(&stranger, Net::Hub, &QpConfig::default());
        let strangers = [
            memory(
                &p.a.device().alloc_pd().unwrap(),
                MemoryKind::Pinned,
                64,
                Access::ALL,
            ),
            far_away.mem_a(MemoryKind::Pinned, 64),
        ];
        for mr in &strangers {
            let names = &["MR 0x", "QP 0x"];
            let list = [sge(mr, 0, 8)];
            refused(p.a.prepare(&Work::send(&list)), Kind::Foreign, None, names);
            refused(p.a.prepare_receive(&list), Kind::Foreign, None, names);
        }
        let region = strangers[1].region();
        let names = &["region", "emulated nic"];
        all_refused! { Kind::Foreign, None, names; p.pd_a.register(region, Access::ALL) }
        // Memory without the right to write.
        let read_only = memory(
            &p.pd_a,
            MemoryKind::Pinned,
            64,
            Access::LOCAL_READ | Access::REMOTE_READ,
        );
        let list = [sge(&read_only, 0, 8)];
        let names = &["MR 0x"];
        let not = Kind::NotRegistered;
        all_refused! { not, None, names;
            p.a.prepare_receive(&list),
            p.a.prepare(&Work::read(&list, to)),
            p.a.prepare(&Work::fetch_add(&list, to, 1)),
        }
        // Words, spans and streams of another GPU.
        let other = stranger.stream().unwrap();
        let flag = Flag::new(&stranger);
        let gate = Gate::new(&stranger);
        let span = region.span(0, 8).unwrap();
        let send = p.a.signaled(&Work::nop());
        let foreign = [
            flag.set(),
            gate.wait(),
            Descriptor::WriteMemory {
                to: &span,
                data: &[0; 8],
            },
        ];
        for bad in foreign {
            let list = [Descriptor::Send(send), bad];
            let names = &["region", "stream"];
            refused(p.a.post_on(stream, &list), Kind::Foreign, None, names);
        }
        let names = &["stream", "QP 0x"];
        for list in send_and_wait(send) {
            refused(p.a.post_on(&other, &[list]), Kind::Foreign, None, names);
        }
        let recv = p.a.prepare_receive(&[sge(mem, 0, 8)]).unwrap();
        let list = [Descriptor::Receive(recv)];
        refused(p.a.post_on(&other, &list), Kind::Foreign, None, names);
        p.a.abort_receive(recv).unwrap();
        let own = mem.region().span(0, 8).unwrap();
        refused(stream.copy(&own, &span), Kind::Foreign, None, &["region"]);
        refused(other.copy(&own, &span), Kind::Foreign, None, &["region"]);
        // No request was posted.
        p.a.post(send).unwrap();
        p.a.wait(send, LIMIT).unwrap();
        finish(stream, path);
        assert!(other.synchronize(LIMIT).unwrap() && !flag.is_set());
        drop(gpu);
    });
}

#[test]
fn posts_out_of_order_repeated_or_of_foreign_requests_are_refused() {
    each_path(|p, mem, stream, path| {
        let list = [sge(mem, 0, 8)];
        let to = mem.remote().span(64, 8).unwrap();
        let sends = [(); 3].map(|()| p.a.signaled(&Work::write(&list, to)));
        let Pair { a, b, .. } = p;
        let names = &["QP 0x"];
        let first: &[&str] = &["QP 0x", "request 0"];
        let on = |request| [Descriptor::Send(request)];
        let unknown = Kind::NoSuchRequest;
        // Out of order.
        all_refused! { Kind::OutOfOrder, None, first;
            a.post(sends[1]),
            a.post_on(stream, &on(sends[2])),
        }
        let both = [Descriptor::Send(sends[0]), Descriptor::Send(sends[2])];
        all_refused! { Kind::OutOfOrder, None, &["request 1"]; a.post_on(stream, &both) }
        // Not posted yet: refused waits, also in a list that posts another request.
        let text: &[&str] = &["QP 0x", "not posted"];
        refused(a.wait(sends[0], LIMIT), unknown, None, text);
        let wait = [Descriptor::wait(sends[0])];
        refused(a.post_on(stream, &wait), unknown, None, text);
        let list = [Descriptor::Send(sends[0]), Descriptor::wait(sends[1])];
        refused(a.post_on(stream, &list), unknown, None, text);
        assert_eq!(a.poll(sends[0]).unwrap(), None, "nothing of it was posted");
        // Requests of another queue pair.
        let other: &[&str] = &["another queue pair"];
        all_refused! { Kind::Foreign, None, other;
            b.post(sends[0]),
            b.abort(sends[0]),
            b.poll(sends[0]),
            b.wait(sends[0], LIMIT),
            b.field32(sends[0], Field::Key(0)),
            b.status_word(sends[0]),
        }
        let not_given: &[&str] = &["not passed to the call"];
        all_refused! { Kind::Foreign, None, not_given;
            b.post_on(stream, &on(sends[0])),
            b.post_on(stream, &wait),
        }
        // In order, each can be posted once.
        a.post(sends[0]).unwrap();
        refused(a.post(sends[0]), unknown, None, names);
        a.post_on(stream, &on(sends[1])).unwrap();
        refused(a.post_on(stream, &on(sends[1])), unknown, None, names);
        refused(a.post(sends[1]), unknown, None, names);
        let twice = [Descriptor::Send(sends[2]), Descriptor::Send(sends[2])];
        refused(a.post_on(stream, &twice), unknown, None, names);
        refused(a.abort(sends[0]), unknown, None, names);
        // Aborts.
        a.abort(sends[2]).unwrap();
        refused(a.abort(sends[2]), unknown, None, names);
        refused(a.post(sends[2]), unknown, None, names);
        refused(a.poll(sends[2]), unknown, None, names);
        refused(a.field32(sends[2], Field::Key(0)), unknown, None, names);
        finish(stream, path);
        for send in &sends[..2] {
            a.wait(*send, LIMIT).unwrap();
            refused(a.abort(*send), unknown, None, names);
            refused(a.post(*send), unknown, None, names);
        }
        // An older aborted request is known as aborted, and cannot be aborted again.
        let hole = a.signaled(&Work::nop());
        let after = a.signaled(&Work::nop());
        a.abort(hole).unwrap();
        refused(a.abort(hole), unknown, None, names);
        refused(a.post(hole), unknown, None, names);
        assert_eq!(a.poll(hole).unwrap(), Some(Status::ABORTED));
        a.post(after).unwrap();
        a.wait(after, LIMIT).unwrap();
        assert_eq!(
            kind(a.wait(hole, LIMIT)),
            Some(Kind::Failed(Status::ABORTED))
        );
    });
}

#[test]
fn handle_of_an_aborted_request_does_not_name_a_later_one() {
    each_path(|p, mem, stream, _| {
        let names = &["QP 0x"];
        let unknown = Kind::NoSuchRequest;
        let old = p.a.signaled(&Work::nop());
        p.a.abort(old).unwrap();
        let new = p.a.signaled(&Work::nop());
        assert_ne!(old, new);
        all_refused! { unknown, None, names;
            p.a.abort(old),
            p.a.post(old),
            p.a.post_on(stream, &[Descriptor::Send(old)]),
        }
        p.a.post(new).unwrap();
        p.a.wait(new, LIMIT).unwrap();
        refused(p.a.wait(old, LIMIT), unknown, None, names);
        refused(p.a.poll(old), unknown, None, names);
        let wait = [Descriptor::wait(old)];
        refused(p.a.post_on(stream, &wait), unknown, None, names);
        let list = [sge(mem, 0, 8)];
        let old = p.a.prepare_receive(&list).unwrap();
        p.a.abort_receive(old).unwrap();
        let new = p.a.prepare_receive(&list).unwrap();
        refused(p.a.abort_receive(old), unknown, None, names);
        refused(p.a.post_receive(old), unknown, None, names);
        refused(p.a.poll(old), unknown, None, names);
        refused(p.a.received(old), unknown, None, names);
        p.a.abort_receive(new).unwrap();
    });
}

#[test]
fn invalid_receives_are_refused() {
    each_path(|p, mem, stream, _| {
        let list: [Sge<'_>; 5] = [sge(mem, 0, 8); 5];
        let a = &mut p.a;
        all_refused! { Kind::Invalid, Some(4), &["5 SGEs"]; a.prepare_receive(&list) }
        let many = [sge(mem, 0, 8); 31];
        all_refused! { Kind::Invalid, Some(4), &["31 SGEs"]; a.prepare_receive(&many) }
        let receives = [(); 4].map(|()| a.prepare_receive(&list[..4]).unwrap());
        let names = &["receive queue of QP 0x", "is full"];
        all_refused! { Kind::QueueFull, Some(4), names; a.prepare_receive(&list[..1]) }
        let names = &["QP 0x"];
        refused(a.abort_receive(receives[0]), Kind::Unsupported, None, names);
        all_refused! { Kind::OutOfOrder, None, &["request 0"]; a.post_receive(receives[1]) }
        let post = [Descriptor::Receive(receives[1])];
        all_refused! { Kind::OutOfOrder, None, &["request 0"]; a.post_on(stream, &post) }
        a.post_receive(receives[0]).unwrap();
        all_refused! { Kind::NoSuchRequest, None, names;
            a.post_receive(receives[0]),
            a.abort_receive(receives[0]),
        }
        for r in receives[1..].iter().rev() {
            a.abort_receive(*r).unwrap();
            refused(a.abort_receive(*r), Kind::NoSuchRequest, None, names);
        }
        refused(p.b.post_receive(receives[0]), Kind::Foreign, None, names);
        refused(p.b.abort_receive(receives[0]), Kind::Foreign, None, names);
        p.b.start(&Work::send_inline(&[b"x"]));
        p.a.wait(receives[0], LIMIT).unwrap();
    });
}

#[test]
fn fields_missing_from_an_entry_are_refused() {
    each_path(|p, mem, _, _| {
        let list = [sge(mem, 0, 8), sge(mem, 8, 0), sge(mem, 16, 8)];
        let to = mem.remote().span(0, 8).unwrap();
        let a = &mut p.a;
        let write = a.prepare(&Work::write(&list, to)).unwrap();
        let send = a.prepare(&Work::send(&list)).unwrap();
        let inline = a.prepare(&Work::send_inline(&[b"abc"])).unwrap();
        let nop = a.prepare(&Work::nop()).unwrap();
        let names = &["QP 0x"];
        for field in [Field::Key(0), Field::Length(1), Field::RemoteKey] {
            a.field32(write, field).unwrap();
            refused(a.field64(write, field), Kind::Invalid, None, &["32 bits"]);
        }
        for field in [Field::Address(0), Field::RemoteAddress] {
            a.field64(write, field).unwrap();
            refused(a.field32(write, field), Kind::Invalid, None, &["64 bits"]);
        }
        for i in [2, 29, usize::MAX] {
            all_refused! { Kind::Invalid, None, names;
                a.field32(write, Field::Key(i)),
                a.field64(write, Field::Address(i)),
            }
        }
        all_refused! { Kind::Invalid, None, names;
            a.field32(send, Field::RemoteKey),
            a.field64(send, Field::RemoteAddress),
            a.field32(inline, Field::Key(0)),
            a.field32(nop, Field::Length(0)),
        }
        for request in [nop, inline, send, write] {
            a.abort(request).unwrap();
        }
    });
}

#[test]
fn a_queue_pair_that_is_not_connected_only_receives() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::apart(&gpu, Net::Hub, &config, &config);
        let mem = p.mem_a(MemoryKind::Pinned, 64);
        let list = [sge(&mem, 0, 8)];
        let names: &[&str] = &["QP 0x", "not connected"];
        all_refused! { Kind::WrongState, None, names;
            p.a.prepare(&Work::nop()),
            p.a.prepare(&Work::send(&list)),
        }
        let within = p.a.prepare_within(&Work::send(&list), LIMIT);
        refused(within, Kind::WrongState, None, names);
        let recv = p.a.receive(&list);
        p.connect();
        p.b.start(&Work::send_inline(&[b"x"]));
        p.a.wait(recv, LIMIT).unwrap();
        // A second connect is refused.
        let peer = p.b.address();
        let names: &[&str] = &["QP 0x", "connected"];
        refused(p.a.connect(&peer), Kind::WrongState, None, names);
        p.check(path);
    }
}
