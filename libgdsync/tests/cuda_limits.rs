//! The effects of a waiting stream on other streams and calls, and the remedies: streams are
//! refused before the hardware channels run out, submissions before the driver blocks the caller,
//! and no blocking call is made while a stream waits.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use application::{
    begin_capture, driver, end_capture, make_current, ok, post, raw_stream, retained,
};
use common::*;
use gdsync::Result;
use gdsync::gpu::{KERNELS, Kernel, Word32, Word64};
use gdsync::internals::Fill;
use gdsync_sys::cuda::consts;
use standin::{Control, Variant, cases, inside, until};

/// The refusal of a stream that may not wait now.
const REFUSED: Option<Kind> = Some(Kind::TooManyWaits);

fn pair() -> Pair {
    let config = by(Lowering::MemOps, Doorbell::Direct);
    Pair::open_on(&Gpu::cuda(0).unwrap(), Device::emulated, &config)
}

/// The statement that the stream has passed the waits of its list when `word` reaches `value`.
fn passed_by(word: &Word64, value: u64) -> Descriptor<'_> {
    Descriptor::PassedBy { word, value }
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

/// More streams than may wait: the excess streams are refused, and streams that do not wait
/// continue.
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
        assert_eq!(error.limit(), Some(limit as u64));
        let text = error.to_string();
        assert!(text.contains("CUDA_DEVICE_MAX_CONNECTIONS"), "{text}");
    }
    until("those that may do wait", || {
        control.waiting() == limit as u64
    });
    // A further wait of a waiting stream needs no further slot.
    r.a.post_on(&all[0], &[gate.wait_for(2)]).unwrap();
    // The refused streams do other work, and so do all others.
    let flag = Gate::new(&r.gpu);
    r.a.post_on(all.last().unwrap(), &[write32(&flag.0, 1)])
        .unwrap();
    until("the refused stream writes", || flag.0.load().unwrap() == 1);
    let free = r.gpu.stream().unwrap();
    message(&mut r, &free, 0x1234_5678_9abc);
    // A request that was refused together with its wait is still prepared.
    let mr = r.memory(MemoryKind::Pinned, 64);
    r.b.receive(&[mr.sge(8, 8)]);
    let send = r.a.signaled(&Work::send(&[mr.sge(0, 8)]));
    let list = send_and_wait(send);
    let last = all.last().unwrap();
    assert_eq!(kind(r.a.post_on(last, &list)), REFUSED);
    assert_eq!(r.a.poll(send).unwrap(), None);
    gate.open_to(2);
    until("all go on", || control.waiting() == 0);
    r.a.post_on(last, &list).unwrap();
    passes(last);
    // Every stream may wait once more, in turn.
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

/// With so few channels that a wait stops all other streams, one stream may still wait, and
/// continues.
#[test]
fn one_channel() {
    inside!(Variant::env(&[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]));
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let (first, second) = (r.gpu.stream().unwrap(), r.gpu.stream().unwrap());
    r.a.post_on(&first, &[gate.wait_for(1)]).unwrap();
    assert_eq!(kind(r.a.post_on(&second, &[gate.wait_for(1)])), REFUSED);
    gate.open_to(1);
    passes(&first);
    r.a.post_on(&second, &[gate.wait_for(1)]).unwrap();
    passes(&second);
}

/// A stream that has passed its waits frees its slot without a call, and a stream whose handle is
/// dropped while it waits still counts.
#[test]
fn wait_slots_of_streams_that_pass_and_streams_that_are_dropped() {
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
        assert_eq!(
            kind(r.a.post_on(&refused, &[gate.wait_for(value)])),
            REFUSED
        );
        gate.open_to(value);
    }
    until("the streams are gone", || control.live()["commands"] == 0);
}

/// The driver blocks the call that creates one stream too many while another stream waits: the
/// library uses the streams that it created ahead, and those that were dropped, and then refuses.
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
        let (mut streams, error) = fill(|| r.gpu.stream());
        assert_eq!(error.kind(), Kind::TooManyWaits, "{error:?}");
        assert!((16..=32).contains(&streams.len()), "{}", streams.len());
        // A dropped stream is reused after it has run its work.
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
        // Now the library creates any number of streams and keeps them: more than the driver had
        // room for.
        let more: Vec<Stream> = (0..40).map(|_| r.gpu.stream().unwrap()).collect();
        drop((streams, more));
    }
    assert_eq!(control.blocked(), []);
    assert_eq!(control.strays(), [""; 0]);
}

/// A stream that is dropped during a capture leaves no event that marks its end. An earlier proof
/// that it has passed its last wait still counts.
#[test]
fn wait_slots_of_streams_that_are_dropped_during_a_capture() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let gate = Gate::new(&gpu);
    let passed = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = passed.word64(0).unwrap();
    for value in 1..=20u64 {
        let raw = raw_stream();
        // SAFETY: it is destroyed after its last handle is dropped.
        let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
        let word = &word;
        let list = [gate.wait_for(1), passed_by(word, value)];
        post(&gpu, &stream, &list).unwrap();
        let behind = write64(word, value);
        post(&gpu, &stream, &[behind]).unwrap();
        gate.open_to(1);
        until("it passes", || word.load().unwrap() == value);
        begin_capture(raw, consts::CU_STREAM_CAPTURE_MODE_RELAXED);
        drop(stream);
        end_capture(raw);
        // SAFETY: its last handle is dropped.
        ok(unsafe { (driver().cuStreamDestroy_v2)(raw) });
    }
}

/// A stream that has proved that it passed its last wait frees its wait slot, also after the same
/// proof has been used to return the room of earlier submissions.
#[test]
fn wait_slots_of_streams_that_pass_with_much_work_behind_the_wait() {
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
        // The application's own wait keeps the stream busy.
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

/// A stream with a proof that it has passed its waits frees its wait slot though it is never idle,
/// and accepts any number of submissions.
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
        let next = [gate.wait_for(value + 1)];
        assert_eq!(kind(r.a.post_on(&refused, &next)), REFUSED);
        gate.open_to(value);
    }
    gate.open_to(1000);
    let other = r.gpu.stream().unwrap();
    until("a wait slot is free", || {
        r.a.post_on(&other, &[gate.wait_for(1)]).is_ok()
    });
    for stream in &all {
        passes(stream);
    }
}

/// A stream that is never idle, and whose waits have no proof, accepts any number of submissions if
/// it executes them.
#[test]
fn stream_that_is_never_idle_has_room_for_what_it_has_executed() {
    inside!(Variant::default());
    let mut r = pair();
    let control = Control::open();
    let gate = Gate::new(&r.gpu);
    let words = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let done = words.word32(0).unwrap();
    let stream = r.gpu.stream().unwrap();
    for value in 1..3000 {
        let list = [gate.wait_for(value), write32(&done, value)];
        r.a.post_on(&stream, &list).unwrap();
        gate.open_to(value - 1);
        until("it passes the wait before", || {
            done.load().unwrap() == value - 1
        });
    }
    gate.open_to(3000);
    passes(&stream);
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

/// A call of many submissions on a stream that has executed all its work finds the whole room, also
/// while the call counts the stream as waiting.
#[test]
fn idle_stream_has_room_for_a_large_call_that_holds_its_wait_slot() {
    inside!(Variant::default());
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let stream = r.gpu.stream().unwrap();
    for value in 1..=600 {
        r.a.post_on(&stream, &[gate.wait_for(value)]).unwrap();
    }
    gate.open_to(600);
    passes(&stream);
    stream
        .hold_wait(|| stream.check_room(500))
        .unwrap()
        .unwrap();
}

/// A stream that is never idle finds room for a call of many submissions once it has executed what
/// takes the room.
#[test]
fn busy_stream_has_room_for_a_large_call_when_it_has_executed_the_others() {
    inside!(Variant::default());
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let words = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let done = words.word32(0).unwrap();
    let stream = r.gpu.stream().unwrap();
    let mut value = 0;
    for _ in 0..600 {
        value += 1;
        let list = [gate.wait_for(value), write32(&done, value)];
        r.a.post_on(&stream, &list).unwrap();
    }
    let mut room = false;
    for _ in 0..3 {
        room |= stream.check_room(500).is_ok();
        // Never idle.
        value += 1;
        let list = [gate.wait_for(value), write32(&done, value)];
        r.a.post_on(&stream, &list).unwrap();
        gate.open_to(value - 1);
        until("it passes the waits before", || {
            done.load().unwrap() == value - 1
        });
    }
    gate.open_to(value);
    passes(&stream);
    assert!(room);
}

/// The memory of a word that proves that a stream has passed is freed: the stream still finds room
/// for what it has executed.
#[test]
fn stream_whose_proof_is_freed_has_room_for_what_it_has_executed() {
    inside!(Variant::default());
    let mut r = pair();
    let gate = Gate::new(&r.gpu);
    let words = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let done = words.word32(0).unwrap();
    let passed = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let stream = r.gpu.stream().unwrap();
    let mut word = Some(passed.word64(0).unwrap());
    drop(passed);
    for value in 1..3000 {
        let mut list = vec![gate.wait_for(value)];
        // More than half of the room, then no proof.
        if value < 600
            && let Some(word) = &word
        {
            list.push(passed_by(word, 1));
        }
        list.push(write32(&done, value));
        r.a.post_on(&stream, &list).unwrap();
        if value == 600 {
            word = None;
        }
        if value > 600 {
            gate.open_to(value - 1);
            until("it passes the wait before", || {
                done.load().unwrap() == value - 1
            });
        }
    }
    gate.open_to(3000);
    passes(&stream);
}

/// A proof covers all work that was enqueued before the next wait: the work behind a passed wait
/// runs without a further wait. So its whole room is returned, and the work that the driver still
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
        // After the previous proof, no more is enqueued than the driver holds.
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

/// Room is refused before an operation begins, so that no operation remains half enqueued.
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
    assert_eq!((e.kind(), e.limit().is_some()), (Kind::QueueFull, true));
    gate.open_to(1);
    passes(&stream);
    stream.check_room(3).unwrap();
}

/// A stream that waits for the event of a waiting stream counts as waiting too.
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

/// The objects that are enqueued.
struct Full {
    pair: Pair,
    stream: Stream,
    memory: Region,
    word: Word32,
    kernel: Kernel,
}

/// A waiting stream gets numbered operations until it accepts no more, which is an error and not a
/// blocked thread. When the stream continues, it accepts them again.
fn full(enqueue: impl Fn(&mut Full, u32) -> Result<()>) {
    let pair = pair();
    let control = Control::open();
    let gate = Gate::new(&pair.gpu);
    let memory = pair.gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let module = pair.gpu.load(&KERNELS).unwrap();
    let mut f = Full {
        stream: pair.gpu.stream().unwrap(),
        word: memory.word32(0).unwrap(),
        kernel: module.kernel("gds_fill").unwrap(),
        memory,
        pair,
    };
    for value in 1..3 {
        f.pair
            .a
            .post_on(&f.stream, &[gate.wait_for(value)])
            .unwrap();
        let (taken, error) = (0..1500)
            .find_map(|i| Some((i, enqueue(&mut f, i).err()?)))
            .expect("a thousand submissions and more");
        assert_eq!(error.kind(), Kind::QueueFull, "{error:?}");
        assert!(error.limit().is_some());
        assert!(taken >= 100, "refused after {taken}");
        assert_eq!(control.full(), 0, "and no enqueue blocked on it");
        gate.open_to(value);
        passes(&f.stream);
        enqueue(&mut f, 0).unwrap();
        passes(&f.stream);
    }
}

cases! {
    fifteen_hundred_submissions =>
        full(|f, i| f.pair.a.post_on(&f.stream, &[write32(&f.word, i)]));
    /// Lists that are each cut into several submissions.
    fifteen_hundred_long_lists =>
        full(|f, i| f.pair.a.post_on(&f.stream, &[write32(&f.word, i); 600]));
    fifteen_hundred_copies =>
        full(|f, _| f.stream.copy(&f.memory.span(8, 8)?, &f.memory.span(0, 8)?));
    fifteen_hundred_events => full(|f, _| f.stream.record().map(drop));
    fifteen_hundred_launches => full(|f, _| {
        // SAFETY: a fill of no bytes touches nothing.
        unsafe { f.stream.launch(&f.kernel, Dims::linear(1, 32), Fill::default().bytes()) }
    });
}

/// Memory freed while a stream waits is released later, and no call blocks for it.
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
    // Meanwhile deferred frees are retried.
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
        // One unit of device memory is kept for the next allocation.
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
