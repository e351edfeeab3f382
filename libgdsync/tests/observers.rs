//! Observers of streams: each submission is reported with the time at which its stream passed it,
//! on the software GPU and on a stand-in for libcuda; streams under capture are not reported, and
//! stamps take at most half of a waiting stream's room.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use std::sync::{Arc, Mutex};

use application::{begin_capture, end_capture, make_current, raw_stream, retained};
use common::*;
use gds_step::Time;
use gdsync::gpu::{Condition, Observer, Passed, Work as Submitted};
use gdsync::internals::Fill;
use gdsync::rdma::post_on;
use gdsync_sys::cuda::consts;
use standin::{Variant, inside};

/// A report: the stream, the work as text, its post, and its stamp.
type Report = (u64, String, Time, Option<Passed>);

#[derive(Default)]
struct Seen(Mutex<Vec<Report>>);

impl Observer for Seen {
    fn enqueued(&self, stream: u64, work: Submitted<'_>, posted: Time, passed: Option<Passed>) {
        let text = format!("{work:?}");
        self.0.lock().unwrap().push((stream, text, posted, passed));
    }
}

/// An observer of `gpu`, and the handle that keeps it alive.
fn observed(gpu: &Gpu) -> (Arc<Seen>, Arc<dyn Observer>) {
    let seen = Arc::new(Seen::default());
    let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
    gpu.observe(&observer).unwrap();
    (seen, observer)
}

fn reports_come_in_order_with_times(gpu: &Gpu) {
    let kernel = gpu
        .load(&gdsync::gpu::KERNELS)
        .unwrap()
        .kernel("gds_fill")
        .unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let gate = gpu
        .alloc(MemoryKind::Pinned, 64)
        .unwrap()
        .word32(0)
        .unwrap();
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let begin = gpu.host().now();
    let (seen, observer) = observed(gpu);
    let before = gpu.host().now();
    // The clocks of a GPU and the host are compared in this time; they may also differ a little.
    let slack = match gpu.is_software() {
        true => Duration::ZERO,
        false => before - begin + Duration::from_millis(5),
    };
    let wait = [Descriptor::wait_value(&gate, Condition::Geq, 1)];
    post_on(&streams[0], &mut [], &wait).unwrap();
    let fill = Fill {
        at: memory.addr(),
        len: 64,
        seed: 1,
    };
    // SAFETY: the parameters are those of the kernel, and the memory outlives it.
    unsafe { streams[0].launch(&kernel, gpu.dims_for(64), fill.bytes()) }.unwrap();
    let event = streams[0].record().unwrap();
    streams[1].wait_event(&event).unwrap();
    let (to, from) = (
        memory.span(1024, 256).unwrap(),
        memory.span(0, 256).unwrap(),
    );
    streams[1].copy(&to, &from).unwrap();
    {
        let seen = seen.0.lock().unwrap();
        assert_eq!(seen.len(), 4);
        let open = |r: &Report| r.3.as_ref().is_some_and(|passed| passed.at().is_none());
        assert!(seen.iter().all(open), "both streams wait");
    }
    let opened = gpu.host().now();
    gate.store(1).unwrap();
    gpu.host().ring();
    streams
        .iter()
        .for_each(|stream| finish(stream, "observed work"));
    let after = gpu.host().now();
    let seen = std::mem::take(&mut *seen.0.lock().unwrap());
    let ids = [&streams[0], &streams[0], &streams[1], &streams[1]].map(Stream::id);
    let starts = [
        "Operations { all: 1, waits: 1 }",
        "Kernel(\"gds_fill\")",
        "Event",
        "",
    ];
    let mut last = before;
    for (i, (stream, work, posted, passed)) in seen.iter().enumerate() {
        assert!(
            *stream == ids[i] && work.starts_with(starts[i]),
            "{i}: {stream} {work}"
        );
        assert!(*posted >= last && *posted <= opened, "{i}: {posted:?}");
        last = *posted;
        let at = passed
            .as_ref()
            .unwrap()
            .at()
            .expect("the stream has passed it");
        assert!(
            at + slack >= opened && at <= after + slack,
            "{i}: {at:?} of {opened:?}..{after:?}"
        );
    }
    let at = |i: usize| seen[i].3.as_ref().unwrap().at().unwrap();
    assert!(at(0) <= at(1) && at(1) <= at(2) && at(2) <= at(3));

    drop((observer, seen));
    post_on(&streams[0], &mut [], &[Descriptor::write_value(&gate, 2)]).unwrap();
    finish(&streams[0], "work without an observer");
}

#[test]
fn submissions_are_reported_with_the_times_at_which_streams_pass_them() {
    reports_come_in_order_with_times(&soft(SoftOptions::default()));
}

#[test]
fn submissions_on_cuda_are_reported_with_the_times_of_events() {
    inside!(Variant::default());
    reports_come_in_order_with_times(&Gpu::cuda(0).unwrap());
}

#[test]
fn stamps_leave_half_of_a_waiting_stream_to_the_caller() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    let word = gpu
        .alloc(MemoryKind::Pinned, 64)
        .unwrap()
        .word32(0)
        .unwrap();
    let (seen, _observer) = observed(&gpu);
    let stream = gpu.stream().unwrap();
    let list = [Descriptor::wait_value(&word, Condition::Geq, 1)];
    let mut posted = 0;
    let refused = loop {
        match post_on(&stream, &mut [], &list) {
            Ok(_) => posted += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind(), Kind::QueueFull, "{refused}");
    let stamps = |seen: &[Report]| seen.iter().filter(|report| report.3.is_some()).count();
    let count = stamps(&seen.0.lock().unwrap());
    assert!(
        (700..1000).contains(&posted) && (200..=300).contains(&count),
        "{posted} {count}"
    );
    word.store(1).unwrap();
    finish(&stream, "a full stream");
    post_on(&stream, &mut [], &list).unwrap();
    assert_eq!(
        stamps(&seen.0.lock().unwrap()),
        count + 1,
        "there is room again"
    );
}

#[test]
fn work_of_a_stream_under_capture_is_not_reported() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let raw = raw_stream();
    // SAFETY: a live stream, which outlives its handle.
    let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let kernel = gpu
        .load(&gdsync::gpu::KERNELS)
        .unwrap()
        .kernel("gds_fill")
        .unwrap();
    let fill = Fill {
        at: memory.addr(),
        len: 64,
        seed: 1,
    };
    let (seen, _observer) = observed(&gpu);
    begin_capture(raw, consts::CU_STREAM_CAPTURE_MODE_RELAXED);
    // SAFETY: the parameters are those of the kernel, and the graph never runs.
    unsafe { stream.launch(&kernel, gpu.dims_for(64), fill.bytes()) }.unwrap();
    assert_eq!(end_capture(raw), 1, "the kernel, and no stamp");
    assert!(seen.0.lock().unwrap().is_empty());
}
