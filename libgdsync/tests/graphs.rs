//! Captures and graphs, on the software GPU (live and in a simulation) and on a stand-in for
//! libcuda: what a capture records, replays, what counts and when, lifetime, refusals.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use application::{begin_capture, end_capture, make_current, raw_stream, retained};
use common::*;
use gds_step::Time;
use gdsync::gpu::{Graph, KERNELS, Kernel, Observer, Passed, Work as Submitted};
use gdsync::internals::{Report, Verify, pattern};
use gdsync_sys::cuda::consts;
use standin::{Control, Driver, Variant, cases};

/// A kernel that adds 1 to a count: it finds one wrong byte.
struct Counter {
    kernel: Kernel,
    memory: Region,
}

impl Counter {
    fn new(gpu: &Gpu) -> Counter {
        let kernel = gpu.load(&KERNELS).unwrap().kernel("gds_verify").unwrap();
        let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let counter = Counter { kernel, memory };
        counter.memory.write(0, &Report::CLEAN.to_bytes()).unwrap();
        let wrong = !pattern(0, 0) as u8;
        counter.memory.write(32, &[wrong]).unwrap();
        counter
    }

    fn launch(&self, stream: &Stream, dims: Dims) {
        let params = Verify {
            at: self.memory.addr().offset(32),
            len: 1,
            seed: 0,
            report: self.memory.addr(),
        };
        // SAFETY: the parameters are those of the kernel; the memory outlives it.
        unsafe { stream.launch(&self.kernel, dims, params.bytes()) }.unwrap();
    }

    fn count(&self) -> u64 {
        let mut report = [0; 16];
        self.memory.read(0, &mut report).unwrap();
        Report::from_bytes(report).wrong
    }
}

/// The graph of what `record` enqueues.
fn captured(stream: &Stream, record: impl FnOnce()) -> Graph {
    stream.begin_capture().unwrap();
    record();
    stream.end_capture().unwrap()
}

fn on(stream: &Stream, list: &[Descriptor<'_>]) {
    post_on(stream, &mut [], list).unwrap();
}

/// Launches the graph once the stream has room.
fn launch(graph: &Graph, stream: &Stream) {
    let mut launched = Ok(());
    until(stream.gpu(), "room", || {
        launched = graph.launch(stream);
        !matches!(&launched, Err(e) if e.kind() == Kind::QueueFull)
    });
    launched.unwrap();
}

/// A graph of kernels, word operations and a copy runs on two streams in turn, 1,000 times.
fn replays(gpu: &Gpu) {
    let counter = Counter::new(gpu);
    let gate = Gate::new(gpu);
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (flag, copy) = (memory.word32(0).unwrap(), memory.word32(8).unwrap());
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    let graph = captured(&streams[0], || {
        counter.launch(&streams[0], Dims::linear(1, 1));
        on(&streams[0], &[gate.wait(), write32(&flag, 7)]);
        counter.launch(&streams[0], Dims::linear(1, 1).dependent());
        let (to, from) = (memory.span(8, 4).unwrap(), memory.span(0, 4).unwrap());
        streams[0].copy(&to, &from).unwrap();
        on(&streams[0], &[write32(&flag, 8)]);
    });
    passes(&streams[0]);
    assert_eq!(
        (counter.count(), flag.load().unwrap()),
        (0, 0),
        "it only recorded"
    );
    for i in 0..1000 {
        launch(&graph, &streams[i % 2]);
        if i == 9 {
            until(gpu, "the first wait", || counter.count() == 1);
            assert_eq!(flag.load().unwrap(), 0);
            gate.open();
        }
    }
    streams.iter().for_each(passes);
    assert_eq!(counter.count(), 2000);
    assert_eq!((flag.load().unwrap(), copy.load().unwrap()), (8, 7));
}

#[test]
fn replays_on_the_software_gpu() {
    replays(&Gpu::soft().unwrap());
}

#[test]
fn replays_in_a_simulation() {
    for seed in 0..5 {
        let (_sim, gpu) = play(seed);
        replays(&gpu);
    }
}

/// HIP with a hardware queue for each stream of a test. Its captures record no memory operations.
const HIP: Variant = Variant::of(Driver::Hip7, None, &[("GPU_MAX_HW_QUEUES", "16")]);

cases! {
    replays_on_cuda => replays(&Gpu::cuda(0).unwrap());
    replays_on_hip in HIP => replays(&Gpu::hip(0).unwrap());
    /// The first launch prepares the graph.
    replays_on_cuda_without_an_upload in Variant::without("cuGraphUpload") =>
        replays(&Gpu::cuda(0).unwrap());
}

/// What a stream enqueues under capture counts neither as submitted nor as waiting; each launch
/// does: for one submission if the graph has only kernels, otherwise for one of each operation.
fn launches_count() {
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let limits = gpu.wait_limits().unwrap();
    let (streams, room) = (limits.streams as usize, limits.submissions.unwrap());
    let counter = Counter::new(&gpu);
    let gate = Gate::new(&gpu);
    let word = gpu.word();
    let full = gpu.stream().unwrap();
    on(&full, &[gate.wait()]);
    let launch = || counter.launch(&full, Dims::linear(1, 1));
    // More than a waiting stream has room for.
    let kernels = captured(&full, || (0..room + 100).for_each(|_| launch()));
    let mixed = captured(&full, || {
        for _ in 0..45 {
            launch();
            full.check_room(10 * room).unwrap();
            full.hold_wait(|| on(&full, &[write32(&word, 1)])).unwrap();
        }
    });
    let long = captured(&full, || {
        for _ in 0..750 {
            launch();
            on(&full, &[write32(&word, 2)]);
        }
    });
    full.check_room(room - 1).unwrap();
    assert_eq!(room, 1000);
    (0..9).for_each(|_| kernels.launch(&full).unwrap());
    (0..11).for_each(|_| mixed.launch(&full).unwrap());
    for graph in [&mixed, &kernels, &long] {
        let limit = Some(u64::from(room));
        refused(graph.launch(&full), Kind::QueueFull, limit, &["waits"]);
    }
    gate.open();
    passes(&full);
    assert_eq!(
        (counter.count(), word.load().unwrap()),
        (9 * 1100 + 11 * 45, 1)
    );
    long.launch(&full).unwrap();
    passes(&full);
    assert_eq!(word.load().unwrap(), 2);

    // More waits are recorded than streams may wait.
    let gate = Gate::new(&gpu);
    let all: Vec<Stream> = (0..streams + 2).map(|_| gpu.stream().unwrap()).collect();
    let record = |stream: &Stream| captured(stream, || on(stream, &[gate.wait()]));
    let waits: Vec<Graph> = all.iter().map(record).collect();
    let waiting = Kind::TooManyWaits;
    let limit = Some(streams as u64);
    for (i, (stream, graph)) in all.iter().zip(&waits).enumerate() {
        match i < streams {
            true => graph.launch(stream).unwrap(),
            false => refused(graph.launch(stream), waiting, limit, &["cannot wait"]),
        }
    }
    let last = &all[streams];
    let kernels = captured(last, || counter.launch(last, Dims::linear(1, 1)));
    kernels.launch(last).unwrap();
    passes(last);
    // A launch on another stream than the first may wait for the launch there.
    refused(
        kernels.launch(&all[streams + 1]),
        waiting,
        limit,
        &["cannot wait"],
    );
    gate.open();
    all.iter().for_each(passes);
    waits[streams].launch(last).unwrap();
    passes(last);
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

/// Set when it is dropped.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The memory of a graph is kept, also by a launch that runs when the graph is dropped.
fn memory_is_kept(gpu: &Gpu) {
    const PAGE: usize = 4096;
    let layout = std::alloc::Layout::from_size_align(PAGE, PAGE).unwrap();
    // SAFETY: of a size that is not 0; it is never freed.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    let dropped = Arc::new(AtomicBool::new(false));
    let owner = Box::new(DropFlag(Arc::clone(&dropped)));
    // SAFETY: memory that is never freed.
    let region = unsafe { gpu.register_host_owned(at, PAGE, owner) }.unwrap();
    let (gate, other) = (Gate::new(gpu), gpu.alloc(MemoryKind::Pinned, 64).unwrap());
    let stream = gpu.stream().unwrap();
    let graph = captured(&stream, || {
        on(&stream, &[gate.wait()]);
        on(&stream, &[write32(&region.word32(8).unwrap(), 7)]);
        let span = region.span(8, 4).unwrap();
        stream.copy(&other.span(0, 4).unwrap(), &span).unwrap();
    });
    drop(region);
    graph.launch(&stream).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(graph);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!dropped.load(Ordering::Acquire), "a launch uses it");
    gate.open();
    passes(&stream);
    assert_eq!(other.word32(0).unwrap().load().unwrap(), 7);
    until(gpu, "the owner is dropped", || {
        dropped.load(Ordering::Acquire)
    });
}

/// What a graph cannot contain is refused, records nothing, and leaves the capture valid.
fn refusals(gpu: &Gpu) {
    let counter = Counter::new(gpu);
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (word, passed) = (memory.word32(0).unwrap(), memory.word64(8).unwrap());
    let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let pd = Device::emulated(gpu).unwrap().alloc_pd().unwrap();
    let mut qp = pd.create_qp(&QpConfig::default()).unwrap();
    let event = other.record().unwrap();
    let earlier = captured(&stream, || counter.launch(&stream, Dims::linear(1, 1)));
    refused(
        stream.end_capture(),
        Kind::WrongState,
        None,
        &["begin_capture"],
    );

    stream.begin_capture().unwrap();
    assert!(stream.is_capturing().unwrap() && !other.is_capturing().unwrap());
    let not = |result: gdsync::Result<()>| {
        refused(result, Kind::Unsupported, None, &["end the capture first"]);
    };
    not(stream.begin_capture());
    not(stream.record().map(drop));
    not(stream.wait_event(&event));
    not(earlier.launch(&stream));
    not(qp.post_on(&stream, &[write32(&word, 9)]));
    let weak = stream.downgrade();
    let lent = || weak.lend().unwrap();
    not(post_on(&lent(), &mut [], &[write32(&word, 9)]));
    not(lent().copy(&memory.span(0, 4).unwrap(), &memory.span(8, 4).unwrap()));
    let params = [0_u8; 32];
    let dims = Dims::linear(1, 1);
    let until = Some((&passed, 1));
    // SAFETY: refused.
    not(unsafe { stream.launch_waiting(&counter.kernel, dims, &params, until) });
    // Other streams run meanwhile.
    on(&other, &[write32(&word, 3)]);
    earlier.launch(&other).unwrap();
    passes(&other);
    assert_eq!((word.load().unwrap(), counter.count()), (3, 1));
    // SAFETY: a kernel that verifies no bytes.
    unsafe { stream.launch_waiting(&counter.kernel, dims, &params, None) }.unwrap();
    on(&stream, &[write32(&word, 5)]);
    let graph = stream.end_capture().unwrap();
    passes(&stream);
    assert_eq!(word.load().unwrap(), 3);
    graph.launch(&stream).unwrap();
    passes(&stream);
    assert_eq!(word.load().unwrap(), 5);

    let elsewhere = Gpu::soft().unwrap().stream().unwrap();
    refused(graph.launch(&elsewhere), Kind::Foreign, None, &["belong"]);
    // An empty graph.
    captured(&stream, || ()).launch(&stream).unwrap();
    passes(&stream);
}

#[derive(Default)]
struct Seen(Mutex<Vec<(String, Time, Option<Passed>)>>);

impl Observer for Seen {
    fn enqueued(&self, _: u64, work: Submitted<'_>, posted: Time, passed: Option<Passed>) {
        let report = (format!("{work:?}"), posted, passed);
        self.0.lock().unwrap().push(report);
    }
}

/// An observer gets a report, with a time, of each launch, and none of what is recorded.
fn launches_are_observed(gpu: &Gpu) {
    let counter = Counter::new(gpu);
    let word = gpu.word();
    let stream = gpu.stream().unwrap();
    let seen = Arc::new(Seen::default());
    let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
    gpu.observe(&observer).unwrap();
    let graph = captured(&stream, || {
        counter.launch(&stream, Dims::linear(1, 1));
        on(&stream, &[write32(&word, 1)]);
    });
    assert!(seen.0.lock().unwrap().is_empty());
    (0..2).for_each(|_| graph.launch(&stream).unwrap());
    passes(&stream);
    let reports = seen.0.lock().unwrap();
    assert_eq!(reports.len(), 2);
    for (work, posted, passed) in &*reports {
        assert_eq!(work, "Graph(2)");
        let at = passed.as_ref().unwrap().at().unwrap();
        assert!(at + Duration::from_millis(1) >= *posted);
    }
}

/// Captures that the application begins or ends by calls of its own.
fn captures_of_the_application() {
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let raw = raw_stream();
    // SAFETY: a live stream, which outlives its handle.
    let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
    let counter = Counter::new(&gpu);
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = memory.word32(0).unwrap();
    let mode = consts::CU_STREAM_CAPTURE_MODE_RELAXED;
    begin_capture(raw, mode);
    counter.launch(&stream, Dims::linear(1, 1));
    let own = |result: gdsync::Result<()>| {
        refused(result, Kind::Unsupported, None, &["Stream::begin_capture"]);
    };
    own(post_on(&stream, &mut [], &[write32(&word, 1)]));
    own(stream.copy(&memory.span(0, 4).unwrap(), &memory.span(8, 4).unwrap()));
    // SAFETY: refused.
    own(unsafe { stream.launch_waiting(&counter.kernel, Dims::linear(1, 1), &[0; 32], None) });
    refused(
        stream.end_capture(),
        Kind::WrongState,
        None,
        &["begin_capture"],
    );
    assert_eq!(end_capture(raw), 1);
    // Ended by the application: the work of the stream runs again.
    stream.begin_capture().unwrap();
    assert_eq!(end_capture(raw), 0);
    on(&stream, &[write32(&word, 2)]);
    passes(&stream);
    assert_eq!(word.load().unwrap(), 2);
    refused(
        stream.end_capture(),
        Kind::System,
        None,
        &["cuStreamEndCapture"],
    );
    // A query by the application makes the capture invalid.
    let cuda = application::driver();
    stream.begin_capture().unwrap();
    // SAFETY: a live stream.
    let queried = unsafe { (cuda.cuStreamQuery)(raw) };
    assert!(!queried.is_success());
    refused(
        stream.end_capture(),
        Kind::System,
        None,
        &["cuStreamEndCapture"],
    );
    replays(&gpu);
    let graph = captured(&stream, || on(&stream, &[write32(&word, 3)]));
    graph.launch(&stream).unwrap();
    passes(&stream);
    assert_eq!(word.load().unwrap(), 3);
}

/// A driver that does not list nodes: every submission counts.
fn unlisted_nodes() {
    let gpu = Gpu::cuda(0).unwrap();
    let (counter, gate) = (Counter::new(&gpu), Gate::new(&gpu));
    let stream = gpu.stream().unwrap();
    let launch = || counter.launch(&stream, Dims::linear(1, 1));
    let graph = captured(&stream, || (0..600).for_each(|_| launch()));
    on(&stream, &[gate.wait()]);
    graph.launch(&stream).unwrap();
    assert_eq!(kind(graph.launch(&stream)), Some(Kind::QueueFull));
    gate.open();
    passes(&stream);
    assert_eq!(counter.count(), 600);
}

#[test]
fn the_memory_of_a_graph_is_kept_on_the_software_gpu() {
    memory_is_kept(&Gpu::soft().unwrap());
}

#[test]
fn what_a_graph_cannot_contain_is_refused_by_the_software_gpu() {
    refusals(&Gpu::soft().unwrap());
}

#[test]
fn launches_are_observed_on_the_software_gpu() {
    launches_are_observed(&Gpu::soft().unwrap());
}

cases! {
    launches_count_and_recorded_work_does_not => launches_count();
    the_memory_of_a_graph_is_kept_on_cuda => memory_is_kept(&Gpu::cuda(0).unwrap());
    the_memory_of_a_graph_is_kept_on_hip in HIP => memory_is_kept(&Gpu::hip(0).unwrap());
    what_a_graph_cannot_contain_is_refused_on_cuda => refusals(&Gpu::cuda(0).unwrap());
    launches_are_observed_on_cuda => launches_are_observed(&Gpu::cuda(0).unwrap());
    the_application_captures_too => captures_of_the_application();
    a_driver_that_lists_no_nodes in Variant::without("cuGraphGetNodes") => unlisted_nodes();
}
