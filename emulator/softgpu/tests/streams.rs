//! Streams: order, conditions, bounds, channels, events, refusals.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Changed, add_gpu, flushing, rig, sync, unfenced64, wait, wait32, wait64, write32};
use gds_step::{Env, Time};
use softgpu::{Caps, Cond, Config, DevAddr, Error, Event, InlineData, MemOp, Object};

#[test]
fn operations_of_every_kind_run_in_order() {
    let (env, gpu) = rig(Config::default());
    let dev = gpu.alloc_device(4096).unwrap();
    let pin = gpu.alloc_pinned(4096).unwrap();
    let stream = gpu.stream().unwrap();
    let (d, p) = (dev.addr(), pin.addr());
    let data: Vec<u8> = (0..61).collect();
    stream
        .submit([
            write32(p, 1),
            wait32(p, 1),
            write32(p, 2),
            unfenced64(d + 8, 0x1122_3344_5566_7788),
            MemOp::Fence,
            flushing(wait(d + 8, Cond::Eq, 0x5566_7788, 0xffff_ffff, true)),
            MemOp::Copy {
                addr: d + 101,
                data: InlineData::new(&data).unwrap(),
            },
            MemOp::FlushRemote,
        ])
        .unwrap();
    stream.fill(d + 1000, 0xab, 77).unwrap();
    stream.copy(p + 100, d, 1100).unwrap();
    assert!(env.rings() >= 3, "every enqueue rings");
    assert!(!stream.query());
    assert_eq!(stream.pending(), 3);
    sync(&stream);
    assert!(stream.query());
    let window = pin.window();
    assert_eq!(window.load32(0), Ok(2));
    let mut got = vec![0; 1100];
    window.read(100, &mut got).unwrap();
    assert_eq!(got[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
    assert_eq!(got[101..162], data[..]);
    assert_eq!([got[100], got[162], got[999]], [0; 3]);
    assert!(got[1000..1077].iter().all(|&b| b == 0xab));
    assert_eq!(got[1077], 0);
}

#[test]
fn long_copy_takes_many_steps_and_other_streams_continue() {
    let (env, gpu) = rig(Config::default());
    let n = 3 << 20;
    let (a, b) = (
        gpu.alloc_device(n).unwrap(),
        gpu.alloc_pinned(n + 8).unwrap(),
    );
    let (long, short) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    long.fill(a.addr(), 7, n).unwrap();
    long.copy(b.addr(), a.addr(), n).unwrap();
    env.steps(2);
    short.submit([write32(b.addr() + n as u64, 9)]).unwrap();
    env.steps(2);
    assert!(short.query() && !long.query());
    sync(&long);
    let mut got = vec![0; n];
    b.window().read(0, &mut got).unwrap();
    assert!(got.iter().all(|&b| b == 7));
}

#[test]
fn wait_holds_until_its_condition_is_satisfied() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let window = pin.window();
    let out = pin.addr() + 32;
    // (condition, value, mask, a word that does not satisfy it, one that does)
    let cases: [(_, u32, u32, u32, u32); 7] = [
        (Cond::Geq, 5, !0, 4, 5),
        (Cond::Geq, u32::MAX, !0, u32::MAX - 1, 3),
        (Cond::Geq, 2, !0, u32::MAX, 2),
        (Cond::Geq, 0, !0, 0xf000_0000, 0),
        (Cond::Eq, 0x12, 0xff, 0xab13, 0xcd12),
        (Cond::And, 0x0100_0000, !0, 0xfe00_0000, 0x0100_0000),
        (Cond::Nor, !0x0100_0000, !0, 0xf100_0000, 0xf000_0000),
    ];
    for (n, (cond, value, mask, before, after)) in cases.into_iter().enumerate() {
        for wide in [false, true] {
            let stream = gpu.stream().unwrap();
            let shift = if wide { 32 } else { 0 };
            // A wide word shows the same in its upper half.
            let put = |v: u32| window.swap64(0, u64::from(v) << shift).unwrap();
            put(before);
            window.store32(32, 0).unwrap();
            let (mut value, mut mask) = (u64::from(value) << shift, u64::from(mask) << shift);
            if wide {
                value |= if cond == Cond::Nor { !0 >> 32 } else { 0 };
                mask |= if mask == !0 << 32 { !0 >> 32 } else { 0 };
            }
            let wait = wait(pin.addr(), cond, value, mask, wide);
            stream.submit([wait, write32(out, 1)]).unwrap();
            env.steps(50);
            assert_eq!(gpu.waiting_streams(), 1, "case {n}, wide: {wide}");
            assert_eq!(window.load32(32), Ok(0), "case {n}, wide: {wide}");
            put(after);
            sync(&stream);
            assert_eq!(window.load32(32), Ok(1), "case {n}, wide: {wide}");
            assert_eq!(gpu.waiting_streams(), 0);
        }
    }
}

#[test]
fn waiting_streams_that_hold_every_channel_stop_the_others() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(4096).unwrap();
    let window = pin.window();
    let gate = |n: u64| pin.addr() + 64 * n;
    let streams: Vec<_> = (0..10).map(|_| gpu.stream().unwrap()).collect();
    for (n, stream) in streams.iter().enumerate().take(8) {
        let n = n as u64;
        stream
            .submit([wait32(gate(n), 1), write32(gate(n) + 4, 1)])
            .unwrap();
    }
    env.settle();
    assert_eq!(gpu.waiting_streams(), 8);
    let counter = pin.addr() + 2048;
    for _ in 0..40 {
        streams[8].submit([write32(counter, 1)]).unwrap();
        streams[9].fill(counter + 8, 3, 8).unwrap();
    }
    env.steps(100);
    assert_eq!((window.load32(2048), window.load32(2056)), (Ok(0), Ok(0)));
    assert_eq!((streams[8].pending(), streams[9].pending()), (40, 40));
    // One wait completes: the others continue.
    window.store32(64 * 3, 1).unwrap();
    sync(&streams[8]);
    sync(&streams[9]);
    assert_eq!(window.load32(2048), Ok(1));
    assert_eq!(gpu.waiting_streams(), 7);
    // The stream whose wait completed continued too.
    assert_eq!(window.load32(64 * 3 + 4), Ok(1));
    // A wait takes the channel again.
    streams[8].submit([wait32(counter, 77)]).unwrap();
    env.settle();
    streams[9].submit([write32(counter + 4, 5)]).unwrap();
    env.steps(100);
    assert!(!streams[9].query());
    window.store32(2048, 77).unwrap();
    sync(&streams[9]);
}

#[test]
fn channels_of_another_gpu_are_separate() {
    let (env, a) = rig(Config::default().changed(|c| c.channels = 1));
    let b = add_gpu(&env, Config::default().changed(|c| c.channels = 1));
    let (pa, pb) = (a.alloc_pinned(8).unwrap(), b.alloc_pinned(8).unwrap());
    let (sa, sb) = (a.stream().unwrap(), b.stream().unwrap());
    sa.submit([wait32(pa.addr(), 1)]).unwrap();
    env.settle();
    sb.submit([write32(pb.addr(), 1)]).unwrap();
    sync(&sb);
    pa.window().store32(0, 1).unwrap();
    sync(&sa);
}

#[test]
fn full_stream_blocks_until_a_submission_retires() {
    let (env, gpu) = rig(Config::default().changed(|c| c.stream_bound = 4));
    let pin = gpu.alloc_pinned(64).unwrap();
    let stream = gpu.stream().unwrap();
    let other = gpu.stream().unwrap();
    stream.submit([wait32(pin.addr(), 1)]).unwrap();
    for n in 1..4 {
        stream.submit([write32(pin.addr() + 8, n)]).unwrap();
    }
    env.settle();
    let op = [write32(pin.addr() + 8, 4)];
    let empty: [MemOp; 0] = [];
    assert_eq!(other.submit(empty), Ok(()), "another stream has room");
    let window = pin.window();
    let opened = Arc::new(AtomicBool::new(false));
    let start = env.count();
    env.on_each_step({
        let opened = Arc::clone(&opened);
        move |n| {
            if n > start + 100 {
                window.store32(0, 1).unwrap();
                opened.store(true, Ordering::Relaxed);
            }
        }
    });
    stream.submit(op).unwrap();
    assert!(
        opened.load(Ordering::Relaxed),
        "it blocked until the wait was passed"
    );
    sync(&stream);
    assert_eq!(pin.window().load32(8), Ok(4));
    for _ in 0..10_000 {
        stream.submit(op).unwrap();
    }
    sync(&stream);
}

#[test]
fn longest_submission_fits_and_a_longer_one_is_refused() {
    let (_env, gpu) = rig(Config::default().changed(|c| c.stream_bound = 1));
    let pin = gpu.alloc_pinned(64 * 256).unwrap();
    let stream = gpu.stream().unwrap();
    let data = InlineData::new(&[9; 64]).unwrap();
    let ops: Vec<_> = (0..256)
        .map(|n| MemOp::Copy {
            addr: pin.addr() + 64 * n,
            data,
        })
        .collect();
    assert_eq!(
        stream.submit(ops.clone()),
        Err(Error::BatchTooLong {
            stream: stream.id(),
            ops: 256,
            limit: 255
        })
    );
    assert!(stream.query());
    stream.submit(ops[..255].iter().copied()).unwrap();
    stream.submit(ops[..255].iter().copied()).unwrap();
    sync(&stream);
    assert_eq!(
        pin.window().load64(64 * 254 + 56),
        Ok(u64::from_ne_bytes([9; 8]))
    );
    assert_eq!(pin.window().load64(64 * 255), Ok(0));
}

#[test]
fn events_order_streams_and_name_the_newest_record() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let window = pin.window();
    let event = Event::new();
    assert!(event.query(), "never recorded");
    b.wait_event(&event).unwrap();
    assert!(b.query(), "no wait for an event that was never recorded");

    a.submit([wait32(pin.addr(), 1)]).unwrap();
    a.record(&event).unwrap();
    b.wait_event(&event).unwrap();
    b.submit([write32(pin.addr() + 8, 1)]).unwrap();
    a.submit([wait32(pin.addr(), 2)]).unwrap();
    a.record(&event).unwrap();
    env.steps(50);
    assert!(!event.query());
    assert_eq!(gpu.waiting_streams(), 1, "an event wait holds no channel");
    assert_eq!(window.load32(8), Ok(0));
    window.store32(0, 1).unwrap();
    env.steps(50);
    assert_eq!(window.load32(8), Ok(1), "b waited for the first record");
    assert!(!event.query(), "the event names the second");
    window.store32(0, 2).unwrap();
    sync(&a);
    assert!(event.query());
    a.record(&event).unwrap();
    a.wait_event(&event).unwrap();
    assert_eq!(
        a.pending(),
        1,
        "a wait for an earlier place of the same stream is nothing"
    );
    sync(&a);
}

#[test]
fn addresses_are_checked_when_enqueued_and_nothing_of_the_submission_runs() {
    let (_env, gpu) = rig(Config::default());
    let (dev, pin) = (
        gpu.alloc_device(100).unwrap(),
        gpu.alloc_pinned(100).unwrap(),
    );
    let stream = gpu.stream().unwrap();
    let good = write32(pin.addr(), 1);
    let bad = |object, addr, len| Err(Error::BadAddress { object, addr, len });
    for addr in [
        DevAddr::default(),
        dev.addr() + 100,
        pin.addr() + 100,
        dev.addr() + (1 << 40),
        DevAddr::from_raw(!3),
    ] {
        assert_eq!(
            stream.submit([good, write32(addr, 1)]),
            bad(Object::MemOp(1), addr, 4)
        );
    }
    let addr = dev.addr() + 96;
    let wide = unfenced64(addr, 1);
    assert_eq!(stream.submit([wide]), bad(Object::MemOp(0), addr, 8));
    assert!(
        stream.submit([write32(addr, 1)]).is_ok(),
        "the last word is there"
    );
    let off = pin.addr() + 2;
    assert_eq!(
        stream.submit([good, good, wait32(off, 1)]),
        Err(Error::Misaligned {
            object: Object::MemOp(2),
            addr: off,
            align: 4
        })
    );
    let (d, p) = (dev.addr(), pin.addr());
    assert_eq!(stream.copy(d, p, 101), bad(Object::CopyTo, d, 101));
    assert_eq!(
        stream.copy(d, p + 1, 100),
        bad(Object::CopyFrom, p + 1, 100)
    );
    assert_eq!(stream.fill(d + 1, 0, 100), bad(Object::Fill, d + 1, 100));
    assert_eq!(
        stream.copy(d, d + 49, 50),
        Err(Error::Overlap {
            dst: d,
            src: d + 49,
            len: 50
        })
    );
    assert_eq!(stream.copy(d, d + 50, 50), Ok(()));
    assert_eq!(stream.copy(d, DevAddr::default(), 0), Ok(()));
    sync(&stream);
    assert_eq!(pin.window().load32(0), Ok(0), "no refused submission ran");
}

#[test]
fn memory_of_another_gpu_is_refused() {
    let (env, a) = rig(Config::default());
    let b = add_gpu(&env, Config::default());
    let pin = b.alloc_pinned(8).unwrap();
    let stream = a.stream().unwrap();
    let foreign = |e| matches!(e, Error::BadAddress { .. });
    assert!(stream.submit([write32(pin.addr(), 1)]).is_err_and(foreign));
}

#[test]
fn missing_capabilities_are_refused_by_name() {
    let op64 = |addr| unfenced64(addr, 1);
    let wait64 = |addr| wait64(addr, 0);
    let wait = |addr, cond| wait(addr, cond, 0, !0, false);
    let with = |change: fn(&mut Caps)| {
        let mut caps = Caps::default();
        change(&mut caps);
        let (env, gpu) = rig(Config::default().changed(|c| c.caps = caps));
        assert_eq!(gpu.caps(), caps);
        let pin = gpu.alloc_pinned(64).unwrap();
        (env, gpu.stream().unwrap(), pin)
    };
    let unsupported = |r| matches!(r, Err(Error::Unsupported { .. }));

    let (_env, s, p) = with(|c| c.memops64 = false);
    assert!(unsupported(s.submit([op64(p.addr())])));
    assert!(unsupported(s.submit([wait64(p.addr())])));
    assert_eq!(s.submit([flushing(wait(p.addr(), Cond::Nor))]), Ok(()));

    let (_env, s, p) = with(|c| c.nor = false);
    assert!(unsupported(s.submit([wait(p.addr(), Cond::Nor)])));
    assert_eq!(s.submit([op64(p.addr()), MemOp::FlushRemote]), Ok(()));

    let (_env, s, p) = with(|c| c.flush = false);
    assert!(unsupported(s.submit([flushing(wait(p.addr(), Cond::Eq))])));
    assert!(unsupported(s.submit([MemOp::FlushRemote])));
    assert_eq!(
        s.submit([wait(p.addr(), Cond::Nor), wait64(p.addr())]),
        Ok(())
    );

    let (_env, s, p) = with(|c| c.batch_limit = 2);
    assert!(s.submit([op64(p.addr()); 3]).is_err());
    assert_eq!(s.submit([op64(p.addr()); 2]), Ok(()));
    sync(&s);
}

#[test]
fn work_of_a_dropped_stream_completes() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let stream = gpu.stream().unwrap();
    let twin = stream.clone();
    stream
        .submit([wait32(pin.addr(), 1), write32(pin.addr() + 4, 7)])
        .unwrap();
    drop(stream);
    env.settle();
    twin.submit([write32(pin.addr() + 8, 8)]).unwrap();
    drop(twin);
    env.settle();
    pin.window().store32(0, 1).unwrap();
    env.settle();
    assert_eq!(pin.window().load32(4), Ok(7));
    assert_eq!(pin.window().load32(8), Ok(8));
    assert_eq!(gpu.waiting_streams(), 0);
}

#[test]
fn synchronize_keeps_its_deadline() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(8).unwrap();
    let stream = gpu.stream().unwrap();
    stream.submit([wait32(pin.addr(), 1)]).unwrap();
    let deadline = env.now() + std::time::Duration::from_nanos(500);
    assert_eq!(stream.synchronize(Some(deadline)), Ok(false));
    assert!(env.now() >= deadline);
    assert_eq!(stream.synchronize(Some(Time::ZERO)), Ok(false));
    pin.window().store32(0, 1).unwrap();
    env.settle();
    assert_eq!(
        stream.synchronize(Some(Time::ZERO)),
        Ok(true),
        "it looks at least once"
    );
}

#[test]
fn gpu_without_an_engine_refuses_calls_without_a_hang() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(8).unwrap();
    let stream = gpu.stream().unwrap();
    stream.submit([write32(pin.addr(), 1)]).unwrap();
    sync(&stream);
    env.drop_engines();
    assert_eq!(stream.submit([write32(pin.addr(), 1)]), Err(Error::Stopped));
    assert_eq!(stream.synchronize(None), Err(Error::Stopped));
    assert_eq!(gpu.stream().unwrap_err(), Error::Stopped);
    assert_eq!(gpu.last_error(), None);
}

#[test]
fn invalid_configuration_is_refused() {
    let env = Arc::new(common::TestEnv::default());
    for config in [
        Config::default().changed(|c| c.stream_bound = 0),
        Config::default().changed(|c| c.channels = 0),
        Config {
            caps: Caps::default().changed(|c| c.batch_limit = 0),
            ..Config::default()
        },
    ] {
        let refused = softgpu::Gpu::new(Arc::clone(&env) as _, config);
        assert!(matches!(refused, Err(Error::BadConfig { value: 0, .. })));
    }
    let config = Config::default().changed(|c| c.kernels.warp = 48);
    let refused = softgpu::Gpu::new(env as _, config);
    assert!(matches!(refused, Err(Error::BadWarp(48))));
}

#[test]
fn handles_go_to_any_thread() {
    fn check<T: Send + Sync + Clone>() {}
    check::<softgpu::Gpu>();
    check::<softgpu::Stream>();
    check::<softgpu::Event>();
    check::<softgpu::Window>();
    check::<softgpu::CpuView>();
    fn check_owned<T: Send + Sync>() {}
    check_owned::<softgpu::DeviceMemory>();
    check_owned::<softgpu::PinnedMemory>();
    check_owned::<softgpu::HostRegistration>();
}

#[test]
fn stamp_has_the_time_at_which_its_stream_reached_it() {
    let (env, gpu) = rig(Config::default());
    let pin = gpu.alloc_pinned(64).unwrap();
    let stream = gpu.stream().unwrap();
    let before = stream.stamp().unwrap().unwrap();
    stream.submit([wait32(pin.addr(), 1)]).unwrap();
    let behind = stream.stamp().unwrap().unwrap();
    assert_eq!(before.at(), None);
    env.steps(4);
    let passed = before.at().expect("nothing is before it");
    assert_eq!(behind.at(), None, "the stream waits");
    pin.window().store32(0, 1).unwrap();
    sync(&stream);
    assert!(
        behind
            .at()
            .is_some_and(|at| at >= passed && at <= env.now())
    );
    assert_eq!(before.at(), Some(passed), "it does not change");
}

#[test]
fn stream_that_is_more_than_half_full_takes_no_stamp() {
    let (_env, gpu) = rig(Config {
        stream_bound: 8,
        ..Config::default()
    });
    let pin = gpu.alloc_pinned(64).unwrap();
    let stream = gpu.stream().unwrap();
    for _ in 0..5 {
        stream.submit([write32(pin.addr(), 1)]).unwrap();
    }
    assert!(stream.stamp().unwrap().is_none());
    sync(&stream);
    assert!(stream.stamp().unwrap().is_some());
}
