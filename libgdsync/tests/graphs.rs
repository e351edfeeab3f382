//! Captures and graphs, on the software GPU (live and in a simulation) and on a stand-in for
//! libcuda: what a capture records, replays, what counts and when, lifetime, refusals.

mod common;
mod standin;

use common::*;
use gdsync::gpu::{Graph, KERNELS, Kernel};
use gdsync::internals::{Report, Verify, pattern};
use standin::{Variant, cases};

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
        graph.launch(&streams[i % 2]).unwrap();
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

cases! {
    replays_on_cuda => replays(&Gpu::cuda(0).unwrap());
    /// The first launch prepares the graph.
    replays_on_cuda_without_an_upload in Variant::without("cuGraphUpload") =>
        replays(&Gpu::cuda(0).unwrap());
}
