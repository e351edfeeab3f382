//! A GPU whose streams compare unsigned numbers, as those of HIP do: waits pass at the wraps of words
//! and counters as on other GPUs, and what only a kernel can wait for is refused without kernels.

mod common;

use common::*;
use gds_sim::{Sim, SimConfig};
use gdsync::gpu::Condition;

fn hip(change: impl FnOnce(SoftOptions) -> SoftOptions) -> (Sim, Gpu) {
    let sim = Sim::new(SimConfig::seed(1));
    let gpu = Gpu::soft_with(sim.host(), change(SoftOptions::hip())).unwrap();
    assert!(!gpu.caps().cyclic);
    (sim, gpu)
}

/// Enqueues a wait; checks that no word of `before` lets the stream pass, and `after` does.
#[track_caller]
fn passes_from(stream: &Stream, wait: &Descriptor<'_>, store: &dyn Fn(u64), words: (&[u64], u64)) {
    let (before, after) = words;
    store(before[0]);
    post_on(stream, &mut [], &[*wait]).unwrap();
    for word in before {
        store(*word);
        pass(stream.gpu(), Duration::from_micros(100));
        assert!(!stream.is_idle().unwrap(), "{wait:?} passed at {word:#x}");
    }
    store(after);
    passes(stream);
}

#[test]
fn cyclic_wait_passes_at_every_border() {
    let (_sim, gpu) = hip(|options| options);
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (narrow, wide) = (memory.word32(0).unwrap(), memory.word64(8).unwrap());
    let stream = gpu.stream().unwrap();
    let borders = [0, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 48, 1 << 63];
    for value in borders
        .iter()
        .flat_map(|b: &u64| [b.wrapping_sub(1), *b, b.wrapping_add(1)])
    {
        let top = 1 << 63;
        let early = [
            value.wrapping_sub(1),
            value ^ top,
            (value ^ top).wrapping_add(1),
        ];
        let store = |word| wide.store(word).unwrap();
        for after in [value, value.wrapping_add(9), (value ^ top).wrapping_sub(1)] {
            let wait = Descriptor::wait_value(&wide, Condition::Geq, value);
            passes_from(&stream, &wait, &store, (&early, after));
        }
        let (value, top) = (value as u32, 1 << 31);
        let early = [
            value.wrapping_sub(1),
            value ^ top,
            (value ^ top).wrapping_add(1),
        ]
        .map(u64::from);
        let store = |word| narrow.store(word as u32).unwrap();
        for after in [value, value.wrapping_add(9), (value ^ top).wrapping_sub(1)] {
            let wait = Descriptor::wait_value(&narrow, Condition::Geq, value);
            passes_from(&stream, &wait, &store, (&early, after.into()));
        }
    }
}

#[test]
fn count_passes_its_value_and_no_kernel_waits() {
    for kernels in [true, false] {
        let (_sim, gpu) = hip(|mut options| {
            options.caps.kernels = kernels;
            options
        });
        let word = gpu
            .alloc(MemoryKind::Pinned, 64)
            .unwrap()
            .word64(0)
            .unwrap();
        let stream = gpu.stream().unwrap();
        let store = |value| word.store(value).unwrap();
        for count in [1, 1 << 16, u64::from(u32::MAX), 1 << 32, (1 << 63) - 1] {
            let wait = Descriptor::wait_count(&word, count);
            passes_from(&stream, &wait, &store, (&[0, count - 1], count));
        }
    }
}

#[test]
fn cyclic_wait_without_kernels_is_refused_with_its_remedy() {
    let (_sim, gpu) = hip(|mut options| {
        options.caps.kernels = false;
        options
    });
    let (word, after) = (gpu.word(), gpu.word());
    let stream = gpu.stream().unwrap();
    let list = [write32(&after, 1), geq(&word, 1)];
    let e = post_on(&stream, &mut [], &list).unwrap_err();
    assert_eq!(e.kind(), Kind::Unsupported, "{e}");
    assert!(e.to_string().contains("wait_count"), "{e}");
    passes(&stream);
    assert_eq!(after.load().unwrap(), 0, "nothing was enqueued");
    word.store(1 << 31).unwrap();
    post_on(&stream, &mut [], &[geq(&word, 1 << 31)]).unwrap();
    passes(&stream);
}

/// The flush of a wait by a kernel is an operation behind it.
#[test]
fn cyclic_wait_keeps_its_flush() {
    let (_sim, gpu) = hip(|mut options| {
        options.caps.flush = true;
        options
    });
    let word = gpu.word();
    let stream = gpu.stream().unwrap();
    gpu.capture_trace();
    word.store(5).unwrap();
    post_on(&stream, &mut [], &[geq(&word, 5).flush(true)]).unwrap();
    let trace = gpu.take_trace();
    assert!(
        trace[0].contains("kernel") && trace[1].contains("wait32"),
        "{trace:?}"
    );
    assert_eq!(trace[3].trim(), "flush", "{trace:?}");
    passes(&stream);
}

/// Indices and positions start shortly before their wraps.
#[test]
fn completions_pass_at_the_wraps_of_counters() {
    for start in [(1 << 15) - 5, (1 << 16) - 5, (1 << 31) - 5, u32::MAX - 4] {
        for (path, config) in paths_of(16, 16) {
            let what = format!("{path} from {start:#x}");
            let (_sim, gpu) = hip(|options| options);
            let mut p = Pair::new(&gpu, Net::One, &config.start(start));
            let [near, far] = p.memories(MemoryKind::Device, 64);
            let stream = gpu.stream().unwrap();
            for round in 0..20u64 {
                near.region().write(0, &round.to_le_bytes()).unwrap();
                let recv = p.b.receive(&[sge(&far, 0, 8)]);
                let send = p.a.signaled(&Work::send(&[sge(&near, 0, 8)]));
                let list = [
                    Descriptor::wait_flushed(recv),
                    Descriptor::Send(send),
                    Descriptor::wait(send),
                ];
                post_on(&stream, &mut [&mut p.a, &mut p.b], &list[1..]).unwrap();
                post_on(&stream, &mut [&mut p.b], &list[..1]).unwrap();
                finish(&stream, &what);
                assert_eq!(far.region().bytes(0), round.to_le_bytes(), "{what}");
            }
            // A message that has not arrived yet: the stream waits for it.
            let recv = p.b.receive(&[sge(&far, 0, 8)]);
            post_on(&stream, &mut [&mut p.b], &[Descriptor::wait(recv)]).unwrap();
            pass(&gpu, Duration::from_micros(100));
            assert!(!stream.is_idle().unwrap(), "{what}: passed early");
            p.a.complete(&Work::send(&[sge(&near, 0, 8)]));
            finish(&stream, &what);
        }
    }
}
