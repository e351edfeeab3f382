//! What a waiting stream does to everybody else, and what is done about it: streams are
//! refused before the hardware channels run out, submissions before the driver blocks the
//! caller, and nothing that blocks is called while a stream waits.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use application::{driver, make_current, ok, post, retained};
use common::*;
use gdsync::Result;
use gdsync::gpu::Word64;
use gdsync_sys::cuda::consts;
use standin::{Control, Variant, cases, inside, until};

fn pair() -> Pair {
    let config = by(Lowering::MemOps, Doorbell::Direct);
    Pair::open_on(&Gpu::cuda(0).unwrap(), Device::emulated, &config)
}

/// What shows that the stream has passed its waits so far.
fn passed_by(word: &Word64, value: u64) -> Descriptor<'_> {
    Descriptor::PassedBy { word, value }
}

fn write64(word: &Word64, value: u64) -> Descriptor<'_> {
    Descriptor::WriteValue64 { word, value }
}

/// A message by a stream that does not wait, from device memory into device memory.
fn message(p: &mut Pair, stream: &Stream, value: u64) {
    let memory = p.memory(MemoryKind::Device, 64);
    memory.region().write(0, &value.to_le_bytes()).unwrap();
    let recv = p.b.receive(&[memory.sge(8, 8)]);
    let send = p.a.signaled(&Work::send(&[memory.sge(0, 8)]));
    p.a.post_on(stream, &[Descriptor::Send(send)]).unwrap();
    p.a.wait(send, LIMIT).unwrap();
    p.b.wait(recv, LIMIT).unwrap();
    assert_eq!(u64::from_le_bytes(memory.region().bytes(8)), value);
}

/// More streams than may wait: the rest is refused, and whoever does not wait goes on.
fn too_many(streams: usize, limit: usize) {
    let mut r = pair();
    let control = Control::open();
    assert_eq!(r.gpu.wait_limits().unwrap().streams as usize, limit);
    let gate = Gate::new(&r.gpu);
    let all: Vec<Stream> = (0..streams).map(|_| r.gpu.stream().unwrap()).collect();
    for (i, stream) in all.iter().enumerate() {
        let posted = r.a.post_on(stream, &[gate.wait_for(1)]);
        if i < limit {
            posted.unwrap();
            continue;
        }
        let error = posted.unwrap_err();
        assert_eq!(error.kind(), Kind::TooManyWaits, "{error:?}");
        assert_eq!(error.limit_value(), Some(limit as u64));
        let text = error.to_string();
        assert!(text.contains("CUDA_DEVICE_MAX_CONNECTIONS"), "{text}");
    }
    until("those that may do wait", || {
        control.waiting() == limit as u64
    });
    // One more wait of a stream that waits takes nothing.
    r.a.post_on(&all[0], &[gate.wait_for(2)]).unwrap();
    // The refused streams do other work, and so does everybody.
    let flag = Gate::new(&r.gpu);
    r.a.post_on(all.last().unwrap(), &[write32(&flag.0, 1)])
        .unwrap();
    until("the refused stream writes", || flag.0.load().unwrap() == 1);
    let free = r.gpu.stream().unwrap();
    message(&mut r, &free, 0x1234_5678_9abc);
    // A request that was refused with its wait is still there.
    let mr = r.memory(MemoryKind::Pinned, 64);
    r.b.receive(&[mr.sge(8, 8)]);
    let send = r.a.signaled(&Work::send(&[mr.sge(0, 8)]));
    let list = send_and_wait(send);
    let last = all.last().unwrap();
    assert_eq!(
        r.a.post_on(last, &list).unwrap_err().kind(),
        Kind::TooManyWaits
    );
    assert_eq!(r.a.poll(send).unwrap(), None);
    gate.open_to(2);
    until("all go on", || control.waiting() == 0);
    r.a.post_on(last, &list).unwrap();
    passes(last);
    // Everybody may wait once more, in turn.
    for (value, stream) in (3..).zip(all.iter().chain(&all)) {
        r.a.post_on(stream, &[gate.wait_for(value)]).unwrap();
        gate.open_to(value);
        passes(stream);
    }
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

cases! {
    nine_waiting_streams => too_many(9, 6);
    thirty_three_waiting_streams in Variant::env(&[("CUDA_DEVICE_MAX_CONNECTIONS", "32")]) =>
        too_many(33, 30);
}

/// With so few channels that a wait stops all else, still one may wait, and goes on.
#[test]
fn one_channel() {
    inside!(Variant::env(&[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]));
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let (first, second) = (r.gpu.stream().unwrap(), r.gpu.stream().unwrap());
    r.a.post_on(&first, &[gate.wait_for(1)]).unwrap();
    let error = r.a.post_on(&second, &[gate.wait_for(1)]).unwrap_err();
    assert_eq!(error.kind(), Kind::TooManyWaits);
    gate.open_to(1);
    passes(&first);
    r.a.post_on(&second, &[gate.wait_for(1)]).unwrap();
    passes(&second);
}

/// Who has passed makes room without being asked, and a stream whose handle is dropped while it
/// waits still counts.
#[test]
fn seats_of_streams_that_pass_and_streams_that_are_dropped() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    for value in 1..=50 {
        for _ in 0..6 {
            let stream = r.gpu.stream().unwrap();
            until("the next may wait", || {
                r.a.post_on(&stream, &[gate.wait_for(value)]).is_ok()
            });
        }
        let refused = r.gpu.stream().unwrap();
        let error = r.a.post_on(&refused, &[gate.wait_for(value)]).unwrap_err();
        assert_eq!(error.kind(), Kind::TooManyWaits);
        gate.open_to(value);
    }
    until("the streams are gone", || control.live()["commands"] == 0);
}

/// The driver holds up the call that makes one stream too many while another waits: the library
/// gives out those that it made ahead, and those that were dropped, and then refuses.
#[test]
fn streams_are_made_while_a_stream_waits() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let word = Gate::new(&r.gpu);
    let waiting = r.gpu.stream().unwrap();
    for value in 1..=3 {
        r.a.post_on(&waiting, &[gate.wait_for(value)]).unwrap();
        until("it waits", || control.waiting() == 1);
        let mut streams = Vec::new();
        let error = loop {
            match r.gpu.stream() {
                Ok(stream) => streams.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::TooManyWaits, "{error:?}");
        assert!((16..=32).contains(&streams.len()), "{}", streams.len());
        // One that is dropped serves again, once it has done what it was given.
        for count in 0..100 {
            let last = streams.pop().unwrap();
            r.a.post_on(&last, &[write32(&word.0, value * 1000 + count)])
                .unwrap();
            drop(last);
            until("a stream is left", || match r.gpu.stream() {
                Ok(stream) => {
                    streams.push(stream);
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::TooManyWaits, "{error:?}");
                    false
                }
            });
            assert_eq!(word.0.load().unwrap(), value * 1000 + count);
        }
        gate.open_to(value);
        passes(&waiting);
        // Now any number is made, and kept: this is more than the driver had room for.
        let more: Vec<Stream> = (0..40).map(|_| r.gpu.stream().unwrap()).collect();
        drop((streams, more));
    }
    assert_eq!(control.blocked(), []);
    assert_eq!(control.strays(), [""; 0]);
}

/// A stream that is dropped during a capture leaves nothing that marks its end. What showed before
/// that it has passed its last wait still does.
#[test]
fn seats_of_streams_that_are_dropped_during_a_capture() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let cuda = driver();
    let gate = Gate::new(&gpu);
    let passed = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = passed.word64(0).unwrap();
    for value in 1..=20u64 {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a stream of the current context.
        ok(unsafe { (cuda.cuStreamCreate)(&mut raw, consts::CU_STREAM_NON_BLOCKING) });
        // SAFETY: it is destroyed behind its last handle.
        let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
        let word = &word;
        let list = [gate.wait_for(1), passed_by(word, value)];
        post(&gpu, &stream, &list).unwrap();
        let behind = write64(word, value);
        post(&gpu, &stream, &[behind]).unwrap();
        gate.open_to(1);
        until("it passes", || word.load().unwrap() == value);
        let begin = cuda.cuStreamBeginCapture_v2.unwrap();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a live stream, its capture and graph.
        unsafe {
            ok(begin(raw, consts::CU_STREAM_CAPTURE_MODE_RELAXED));
            drop(stream);
            ok((cuda.cuStreamEndCapture.unwrap())(raw, &mut graph));
            ok((cuda.cuGraphDestroy.unwrap())(graph));
            ok((cuda.cuStreamDestroy_v2)(raw));
        }
    }
}

/// The proof that a stream has passed its last wait frees its seat, too, after it has become the
/// one by which room is given back.
#[test]
fn seats_of_streams_that_pass_with_much_work_behind_the_wait() {
    const BEHIND: usize = 600;
    inside!(Variant::default());
    let mut r = pair();
    make_current(retained());
    let wait = driver().cuStreamWaitValue32_v2.unwrap();
    let (gate, hold) = (Gate::new(&r.gpu), Gate::new(&r.gpu));
    let passed = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (word, other) = (passed.word64(0).unwrap(), passed.word32(8).unwrap());
    let all: Vec<Stream> = (0..6).map(|_| r.gpu.stream().unwrap()).collect();
    for (i, stream) in all.iter().enumerate() {
        let (word, value) = (&word, 1 + i as u64);
        let list = [gate.wait_for(i as u32 + 1), passed_by(word, value)];
        r.a.post_on(stream, &list).unwrap();
        let behind = write64(word, value);
        r.a.post_on(stream, &[behind]).unwrap();
        for _ in 0..BEHIND {
            r.a.post_on(stream, &[write32(&other, 1)]).unwrap();
        }
        // The application's own wait keeps the stream from being idle.
        let (raw, at) = (stream.as_cuda().unwrap(), hold.0.addr().0);
        // SAFETY: a live stream, and a word that is kept.
        ok(unsafe { wait(raw.cast(), at, 1, consts::CU_STREAM_WAIT_VALUE_GEQ) });
        gate.open_to(i as u32 + 1);
        until("it passes", || word.load().unwrap() == value);
    }
    let other = r.gpu.stream().unwrap();
    r.a.post_on(&other, &[gate.wait_for(1)]).unwrap();
    hold.open_to(1);
    for stream in &all {
        passes(stream);
    }
}

/// A stream that is told what shows that it has passed gives its seat up though it is never idle,
/// and takes any number of submissions.
#[test]
fn streams_that_pass_by_a_word_of_the_applications() {
    inside!(Variant::default());
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let passed = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = |i: usize| passed.word64(8 * i).unwrap();
    let all: Vec<Stream> = (0..6).map(|_| r.gpu.stream().unwrap()).collect();
    let begin = u64::MAX - 100;
    for i in 0..6 {
        word(i).store(begin).unwrap();
    }
    for value in 1..=500 {
        for (i, stream) in all.iter().enumerate() {
            let word = word(i);
            let count = begin.wrapping_add(value.into());
            let list = [gate.wait_for(value), passed_by(&word, count)];
            until("the stream takes it", || r.a.post_on(stream, &list).is_ok());
            let behind = write64(&word, count);
            until("and what proves it", || {
                r.a.post_on(stream, &[behind]).is_ok()
            });
            // Never idle.
            let next = [gate.wait_for(value + 1)];
            until("and the next", || r.a.post_on(stream, &next).is_ok());
        }
        let refused = r.gpu.stream().unwrap();
        let error =
            r.a.post_on(&refused, &[gate.wait_for(value + 1)])
                .unwrap_err();
        assert_eq!(error.kind(), Kind::TooManyWaits);
        gate.open_to(value);
    }
    gate.open_to(1000);
    let other = r.gpu.stream().unwrap();
    until("a seat is free", || {
        r.a.post_on(&other, &[gate.wait_for(1)]).is_ok()
    });
    for stream in &all {
        passes(stream);
    }
}

/// A proof covers everything that was enqueued until the next wait: the work behind a wait that was
/// passed runs without a further wait. So all of its room is given back, and what the driver still
/// holds never blocks an enqueue.
#[test]
fn a_wait_that_was_passed_gives_back_all_room_up_to_the_next() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let words = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (passed, other) = (words.word64(0).unwrap(), words.word32(8).unwrap());
    let stream = r.gpu.stream().unwrap();
    for value in 1..=20 {
        let word = &passed;
        let list = [gate.wait_for(value), passed_by(word, value.into())];
        until("room for a wait", || r.a.post_on(&stream, &list).is_ok());
        let behind = write64(word, value.into());
        r.a.post_on(&stream, &[behind]).unwrap();
        until("it stands", || control.waiting() == 1);
        // Once the proof before is given it is no more than the driver holds.
        let mut taken = 0;
        while r.a.post_on(&stream, &[write32(&other, value)]).is_ok() {
            taken += 1;
            assert!(taken < 1100, "never refused");
        }
        assert!(taken >= 400, "refused after {taken}");
        assert_eq!(control.full(), 0, "a caller was blocked");
        gate.open_to(value);
        until("it has passed", || {
            passed.load().unwrap() == u64::from(value)
        });
    }
    passes(&stream);
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

/// Room is refused for what would be begun and not ended.
#[test]
fn room_is_asked_for_before_it_is_taken() {
    inside!(Variant::default());
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let stream = r.gpu.stream().unwrap();
    stream.check_room(u32::MAX).unwrap();
    r.a.post_on(&stream, &[gate.wait_for(1)]).unwrap();
    let mut taken = 1;
    while stream.check_room(3).is_ok() {
        for _ in 0..3 {
            r.a.post_on(&stream, &[write32(&gate.0, 0)]).unwrap();
        }
        taken += 3;
        assert!(taken < 2000, "never refused");
    }
    let e = stream.check_room(3).unwrap_err();
    assert_eq!(
        (e.kind(), e.limit_value().is_some()),
        (Kind::QueueFull, true)
    );
    gate.open_to(1);
    passes(&stream);
    stream.check_room(3).unwrap();
}

/// A stream that waits for the event of a stream that waits, waits.
#[test]
fn waits_for_events_count() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let all: Vec<Stream> = (0..9).map(|_| r.gpu.stream().unwrap()).collect();
    r.a.post_on(&all[0], &[gate.wait_for(1)]).unwrap();
    let event = all[0].record().unwrap();
    let refused = all[1..]
        .iter()
        .filter_map(|stream| stream.wait_event(&event).err())
        .inspect(|e| assert_eq!(e.kind(), Kind::TooManyWaits))
        .count();
    assert_eq!(refused, 3);
    let flag = Gate::new(&r.gpu);
    let free = r.gpu.stream().unwrap();
    r.a.post_on(&free, &[write32(&flag.0, 1)]).unwrap();
    until("the others go on", || flag.0.load().unwrap() == 1);
    gate.open_to(1);
    until("all go on", || control.waiting() == 0);
    assert!(event.is_done().unwrap());
}

/// What enqueues one thing, by number.
type Enqueue<'a> = &'a mut dyn FnMut(&mut Pair, u32) -> Result<()>;

/// A waiting stream is given things until it takes no more, which is an error and no blocked
/// thread; once it goes on, it takes them again.
fn full(enqueue: impl Fn(&Stream, &Region) -> Box<dyn FnMut(&mut Pair, u32) -> Result<()>>) {
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let stream = r.gpu.stream().unwrap();
    let memory = r.gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let mut enqueue = enqueue(&stream, &memory);
    let enqueue: Enqueue<'_> = &mut *enqueue;
    for value in 1..3 {
        r.a.post_on(&stream, &[gate.wait_for(value)]).unwrap();
        let mut taken = 0;
        let error = (0..1500)
            .find_map(|i| match enqueue(&mut r, i) {
                Ok(()) => {
                    taken += 1;
                    None
                }
                Err(e) => Some(e),
            })
            .expect("a thousand submissions and more");
        assert_eq!(error.kind(), Kind::QueueFull, "{error:?}");
        assert!(error.limit_value().is_some());
        assert!(taken >= 100, "refused after {taken}");
        assert_eq!(control.full(), 0, "and nobody stood still before it");
        gate.open_to(value);
        passes(&stream);
        enqueue(&mut r, 0).unwrap();
        passes(&stream);
    }
}

#[test]
fn fifteen_hundred_submissions() {
    inside!(Variant::default());
    full(|stream, memory| {
        let (stream, word) = (stream.clone(), memory.word32(0).unwrap());
        Box::new(move |r, i| r.a.post_on(&stream, &[write32(&word, i)]))
    });
}

/// Lists that are each cut into several submissions.
#[test]
fn fifteen_hundred_long_lists() {
    inside!(Variant::default());
    full(|stream, memory| {
        let (stream, word) = (stream.clone(), memory.word32(0).unwrap());
        Box::new(move |r, i| {
            let list: Vec<Descriptor<'_>> = (0..600).map(|_| write32(&word, i)).collect();
            r.a.post_on(&stream, &list)
        })
    });
}

#[test]
fn fifteen_hundred_copies() {
    inside!(Variant::default());
    full(|stream, memory| {
        let stream = stream.clone();
        let (from, to) = (memory.span(0, 8).unwrap(), memory.span(8, 8).unwrap());
        Box::new(move |_, _| stream.copy(&to, &from))
    });
}

#[test]
fn fifteen_hundred_events() {
    inside!(Variant::default());
    full(|stream, _| {
        let stream = stream.clone();
        Box::new(move |_, _| stream.record().map(drop))
    });
}

#[test]
fn fifteen_hundred_launches() {
    inside!(Variant::default());
    full(|stream, memory| {
        use gdsync::gpu::Dims;
        let stream = stream.clone();
        let module = stream
            .gpu()
            .load_module(gdsync::gpu::KERNELS.ptx().unwrap().as_bytes())
            .unwrap();
        let kernel = module.kernel("gds_fill").unwrap();
        let args = [0; size_of::<gdsync::kernels::Fill>()];
        let memory = memory.clone();
        Box::new(move |_, _| {
            let _kept = &memory;
            // SAFETY: a fill of no bytes touches nothing.
            unsafe { stream.launch(&kernel, Dims::linear(1, 32), &args) }
        })
    });
}

/// Memory given back while a stream waits is freed later, and by nobody's standing still.
#[test]
fn memory_dropped_while_a_stream_waits() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let stream = r.gpu.stream().unwrap();
    let before = control.live();
    r.a.post_on(&stream, &[gate.wait_for(1)]).unwrap();
    until("it waits", || control.waiting() == 1);
    control.record(true);
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        for len in [64, 4096, 1 << 20] {
            let region = r.gpu.alloc(kind, len).unwrap();
            r.a.post_on(&stream, &[write32(&region.word32(0).unwrap(), 7)])
                .unwrap();
            drop(region);
        }
    }
    let shared = r.gpu.alloc_exportable(4096).unwrap();
    r.a.post_on(&stream, &[write32(&shared.word32(0).unwrap(), 7)])
        .unwrap();
    drop(shared);
    // Meanwhile deferred frees are tried, again and again.
    std::thread::sleep(Duration::from_millis(100));
    let calls = control.calls();
    for call in ["cuMemFree", "cuMemUnmap", "cuMemRelease", "cuModule"] {
        assert!(!calls.contains(call), "{call} while a stream waits");
    }
    assert_eq!(control.blocked(), []);
    gate.open_to(1);
    passes(&stream);
    until("all is freed", || {
        let live = control.live();
        // One unit of device memory is kept for the next.
        [
            ("device", 0),
            ("host", 0),
            ("mapped", 1),
            ("physical", 1),
            ("reserved", 1),
        ]
        .iter()
        .all(|(kind, kept)| live[*kind] <= before[*kind] + kept)
    });
    until("and the events with it", || {
        control.live()["events"] <= before["events"] + 1
    });
    assert_eq!(control.blocked(), []);
}
