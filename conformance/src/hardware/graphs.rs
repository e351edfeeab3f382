//! Graphs: work that a stream recorded once and that streams launch many times.

use gdsync::Kind;
use gdsync::gpu::{Dims, Graph, KERNELS, Kernel, MemoryKind, Region, Stream};
use gdsync::internals::{Report, Verify};
use gdsync::rdma::{Descriptor, post_on};

use crate::rig::limits::time_limit;
use crate::rig::verdict::{Verdict, ensure};
use crate::rig::{Gate, Rig, Runtime, expected, finish};

/// A kernel that counts its runs: it finds one wrong byte in memory of zeros.
struct Counter {
    kernel: Kernel,
    zeros: Region,
    report: Region,
}

impl Counter {
    fn new(rig: &Rig) -> Verdict<Counter> {
        let counter = Counter {
            kernel: rig.gpu.load(&KERNELS)?.kernel(Verify::ENTRY.name())?,
            zeros: rig.gpu.alloc(MemoryKind::Device, 64)?,
            report: rig.gpu.alloc(MemoryKind::Device, 16)?,
        };
        counter.report.write(0, &Report::CLEAN.to_bytes())?;
        ensure(expected(1, 1) != [0], || "the byte is not wrong".to_owned())?;
        Ok(counter)
    }

    fn launch(&self, stream: &Stream, dims: Dims) -> gdsync::Result<()> {
        let params = Verify {
            at: self.zeros.addr(),
            len: 1,
            seed: 1,
            report: self.report.addr(),
        };
        // SAFETY: the addresses are of regions that the trials keep until the streams are done.
        unsafe { stream.launch(&self.kernel, dims, params.bytes()) }
    }

    /// Checks the number of runs; the streams must be done.
    fn check(&self, runs: u64) -> Verdict {
        let mut report = [0; 16];
        self.report.read(0, &mut report)?;
        let found = Report::from_bytes(report).wrong;
        ensure(found == runs, || {
            format!("{found} kernels have run, where {runs} were launched")
        })
    }
}

/// Launches the graph once the stream has room.
fn launch(graph: &Graph, stream: &Stream) -> Verdict {
    let host = stream.gpu().host();
    let mut launched = Ok(());
    host.wait_until(Some(host.now() + time_limit()), &mut || {
        launched = graph.launch(stream);
        !matches!(&launched, Err(e) if e.kind() == Kind::QueueFull)
    });
    Ok(launched?)
}

/// A graph of kernels, also dependent ones, a wait and writes of words, and a copy is launched 1,000
/// times on two streams in turn, and dropped while the last launches run.
pub fn replays(rig: &Rig) -> Verdict {
    const LAUNCHES: u64 = 1000;
    let (gate, counter) = (Gate::new(&rig.gpu)?, Counter::new(rig)?);
    let words = rig.gpu.alloc(MemoryKind::Pinned, 64)?;
    let (flag, copied) = (words.word32(0)?, words.word32(4)?);
    let streams = [rig.gpu.stream()?, rig.gpu.stream()?];
    let stream = &streams[0];
    let dims = Dims::linear(1, 1);
    stream.begin_capture()?;
    counter.launch(stream, dims)?;
    counter.launch(stream, dims.dependent())?;
    let list = [gate.wait(), Descriptor::write_value(&flag, 7)];
    post_on(stream, &mut [], &list)?;
    counter.launch(stream, dims.dependent())?;
    stream.copy(&words.span(4, 4)?, &words.span(0, 4)?)?;
    post_on(stream, &mut [], &[Descriptor::write_value(&flag, 8)])?;
    let graph = stream.end_capture()?;
    finish(stream, "a capture")?;
    counter.check(0)?;
    for i in 0..LAUNCHES {
        launch(&graph, &streams[i as usize % 2])?;
        if i == 9 {
            ensure(flag.load()? == 0, || "the wait has passed".to_owned())?;
            gate.open()?;
        }
    }
    drop(graph);
    for stream in &streams {
        finish(stream, "launches of a graph")?;
    }
    counter.check(3 * LAUNCHES)?;
    let (flag, copied) = (flag.load()?, copied.load()?);
    ensure((flag, copied) == (8, 7), || {
        format!("the flag is {flag}, and its copy {copied}")
    })
}

/// A graph of more kernels than a stream holds submissions, behind a wait: a launch is one
/// submission, and the call does not block.
pub fn behind_a_wait(rig: &Rig) -> Verdict {
    const LAUNCHES: u64 = 5;
    let kernels: u64 = match rig.runtime {
        // HIP enqueues the kernels of a graph one by one, and each counts as a submission.
        Runtime::Hip => 150,
        Runtime::Soft | Runtime::Cuda => 2000,
    };
    let (gate, counter) = (Gate::new(&rig.gpu)?, Counter::new(rig)?);
    let stream = rig.gpu.stream()?;
    stream.begin_capture()?;
    for _ in 0..kernels {
        counter.launch(&stream, Dims::linear(1, 1))?;
    }
    let graph = stream.end_capture()?;
    post_on(&stream, &mut [], &[gate.wait()])?;
    for _ in 0..LAUNCHES {
        graph.launch(&stream)?;
    }
    ensure(!stream.is_idle()?, || "the stream did not wait".to_owned())?;
    gate.open()?;
    finish(&stream, "launches behind a wait")?;
    counter.check(kernels * LAUNCHES)
}
