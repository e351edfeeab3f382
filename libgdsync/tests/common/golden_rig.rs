//! The programs whose traces are in `tests/golden/`, for any recorder: two queue pairs, two
//! streams, and a recorder of the operations that the streams get.

#![allow(dead_code)]

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::common::*;
use gdsync::gpu::{Caps, Condition};
use gdsync::rdma::Field;

/// The capabilities of a runtime like CUDA: all but masks and inline copies.
pub fn cuda() -> Caps {
    SoftOptions::cuda().caps
}

/// The capabilities of HIP, with its limit of a submission.
pub fn hip() -> Caps {
    SoftOptions::hip().caps.batch_limit(8)
}

/// A recorder of the operations that streams get.
pub trait Watch {
    /// Starts a new record.
    fn start(&mut self, gpu: &Gpu);

    /// The record since then: `stream 0: ...` and the operations, with the tracer's names.
    fn take(&mut self, gpu: &Gpu, streams: &[Stream; 2]) -> Vec<String>;

    /// The trace that this recorder must see for the text of a golden file: the same text, or, on a
    /// runtime that fences every write, the text with every write fenced.
    fn expected(&self, golden: String) -> String;
}

/// Makes a GPU of these capabilities, and its recorder.
pub type Make<'a> = &'a dyn Fn(Caps) -> (Gpu, Box<dyn Watch>);

/// Names streams by their index.
pub fn renumber(line: &str, streams: &[Stream; 2]) -> String {
    let mut line = line.to_owned();
    for (i, stream) in streams.iter().enumerate() {
        let head = format!("stream {}:", stream.id());
        if let Some(rest) = line.strip_prefix(&head) {
            line = format!("stream {i}:{rest}");
            break;
        }
    }
    line
}

/// A program for a GPU of these capabilities and queue pairs of this configuration. Its trace is in
/// the file `tests/golden/TRACE.txt`.
pub struct Program {
    pub name: &'static str,
    pub trace: &'static str,
    pub caps: Caps,
    config: QpConfig,
    post: fn(&mut Rig),
}

impl Program {
    /// Runs the program, and compares the trace with the file.
    pub fn run(&self, make: Make<'_>) {
        println!("{}", self.name);
        let mut rig = rig(make(self.caps), self.config.clone());
        (self.post)(&mut rig);
        rig.finish(self.trace);
    }

    /// The program has the same trace as another one.
    fn traced_as(mut self, trace: &'static str) -> Program {
        self.trace = trace;
        self
    }
}

/// All programs.
pub fn programs() -> Vec<Program> {
    let with = |change: fn(&mut Caps)| {
        let mut caps = cuda();
        change(&mut caps);
        caps
    };
    let no_nor = with(|caps| caps.nor = false);
    let narrow = with(|caps| caps.memops64 = false);
    let bare = with(|caps| (caps.memops64, caps.nor, caps.fence) = (false, false, false));
    let full = with(|caps| (caps.inline_copy, caps.mask) = (true, true));
    let hip = hip();
    let masked = with(|caps| (caps.mask, caps.nor) = (true, false));
    // Flushes by the CPU, which the stream requests by a word.
    let host = with(|caps| caps.flush = false);
    // Flushes by a READ of the NIC, whose doorbell the stream writes.
    let read = with(|caps| (caps.flush, caps.host_flush) = (false, false));
    let program = |name, caps, config, post| Program {
        name,
        trace: name,
        caps,
        config,
        post,
    };
    let longer = |config| sized(&config, 16, 16);
    vec![
        program("laps-cuda", cuda(), small(), laps as fn(&mut Rig)),
        program("laps-mask", masked, small(), laps),
        program("laps-no-nor", no_nor, small(), laps),
        program("laps-32-bit", narrow, small(), laps),
        program("laps-kernel", cuda(), by_kernel(), laps),
        program("laps-cpu-thread", cuda(), by_cpu_thread(), laps),
        program("edges-ring", cuda(), small(), edges),
        program("edges-kernel", cuda(), by_kernel(), edges),
        program("edges-cpu-thread", cuda(), by_cpu_thread(), edges),
        program("flushes", cuda(), small(), flushes),
        program("flushes-host", host, small(), flushes),
        program("flushes-host-kernel", host, by_kernel(), flushes),
        program("flushes-read", read, small(), flushes),
        program("flushes-read-kernel", read, by_kernel(), flushes),
        program("laps-hip", hip, small(), laps),
        program("laps-hip-kernel", hip, by_kernel(), laps).traced_as("laps-kernel"),
        program("laps-hip-cpu-thread", hip, by_cpu_thread(), laps),
        program("edges-hip", hip, small(), edges).traced_as("edges-ring"),
        program("edges-hip-kernel", hip, by_kernel(), edges).traced_as("edges-kernel"),
        program("edges-hip-cpu-thread", hip, by_cpu_thread(), edges).traced_as("edges-cpu-thread"),
        program("flushes-hip", hip, small(), flushes),
        program("waits-cuda", cuda(), small(), waits),
        program("waits-hip", hip, small(), waits),
        program("words-full", full, small(), words),
        program("words-cuda", cuda(), small(), words),
        program("words-bare", bare, small(), words),
        program("words-hip", hip, small(), words),
        program("aborts-patches-limits", cuda(), longer(small()), aborts),
        program("aborts-patches-limits-hip", hip, longer(small()), aborts),
        program("row-memops", cuda(), longer(small()), row),
        program("row-kernel", cuda(), longer(by_kernel()), row),
        program("row-hip", hip, longer(small()), row),
        program("row-hip-kernel", hip, longer(by_kernel()), row).traced_as("row-kernel"),
    ]
}

/// Two connected queue pairs, two streams, and memory.
struct Rig {
    gpu: Gpu,
    watch: Box<dyn Watch>,
    a: Qp,
    b: Qp,
    streams: [Stream; 2],
    memory: Mr,
    text: String,
}

fn rig((gpu, watch): (Gpu, Box<dyn Watch>), config: QpConfig) -> Rig {
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let (a, b) = joined(&pd, &config);
    let region = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let memory = pd.register(&region, Access::ALL).unwrap();
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    Rig {
        gpu,
        watch,
        a,
        b,
        streams,
        memory,
        text: String::new(),
    }
}

/// Queues of four entries, by memory operations.
fn small() -> QpConfig {
    sized(&by(Lowering::MemOps, Doorbell::Direct), 4, 4)
}

/// As [`small`], by kernels.
fn by_kernel() -> QpConfig {
    small().lowering(Lowering::Kernel)
}

/// As [`small`], by a CPU thread.
fn by_cpu_thread() -> QpConfig {
    small().doorbell(Doorbell::CpuThread)
}

impl Rig {
    fn send(&mut self) -> SendRequest {
        self.a.signaled(&Work::send(&[self.memory.sge(0, 8)]))
    }

    fn receive(&mut self) -> ReceiveRequest {
        let list = [self.memory.sge(2048, 8)];
        self.b.prepare_receive(&list).unwrap()
    }

    /// A receive that the CPU has posted.
    fn posted_receive(&mut self) -> ReceiveRequest {
        self.b.receive(&[self.memory.sge(2048, 8)])
    }

    /// Posts on a stream and records the stream's operations under a title.
    fn post(&mut self, title: &str, stream: usize, list: &[Descriptor<'_>]) {
        let lines = self.watched(stream, list);
        writeln!(self.text, "# {title}").unwrap();
        for line in lines {
            let line = line.replace("qp0x1000", "A").replace("qp0x1001", "B");
            let indent = if line.starts_with("stream") { "" } else { "  " };
            writeln!(self.text, "{indent}{line}").unwrap();
        }
    }

    fn watched(&mut self, stream: usize, list: &[Descriptor<'_>]) -> Vec<String> {
        let stream = self.streams[stream].clone();
        self.watch.start(&self.gpu);
        post_on(&stream, &mut [&mut self.a, &mut self.b], list).unwrap();
        self.watch.take(&self.gpu, &self.streams)
    }

    /// One message without a trace, to advance the rings.
    fn quietly(&mut self) {
        let recv = self.posted_receive();
        let send = self.send();
        let stream = self.streams[0].clone();
        let waits = [
            Descriptor::Send(send),
            Descriptor::wait(send),
            Descriptor::wait(recv),
        ];
        post_on(&stream, &mut [&mut self.a, &mut self.b], &waits).unwrap();
        passes(&stream);
    }

    fn finish(self, name: &str) {
        for stream in &self.streams {
            assert!(
                stream.synchronize(LIMIT).unwrap(),
                "{name}: a stream is stuck"
            );
        }
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        let expected = self.watch.expected(golden.clone());
        if std::env::var("GDS_BLESS").is_ok() {
            // A recorder that sees every write as fenced must not rewrite the file.
            if expected == golden {
                std::fs::write(&path, &self.text).unwrap();
            }
            return;
        }
        assert_eq!(
            self.text,
            expected,
            "{name}: the trace differs from {}",
            path.display()
        );
    }

    /// One message by stream operations, with its trace: posted receive, send, both waits.
    fn message(&mut self, title: &str) {
        let recv = self.receive();
        self.post(
            &format!("{title}: receive"),
            0,
            &[Descriptor::Receive(recv)],
        );
        let send = self.send();
        self.post(&format!("{title}: send and wait"), 0, &send_and_wait(send));
        let wait = Descriptor::wait(recv);
        self.post(&format!("{title}: wait for the receive"), 0, &[wait]);
        assert!(self.streams[0].synchronize(LIMIT).unwrap(), "{title}");
    }
}

/// A message in each of the first four laps of both completion queues (8 entries each).
fn laps(r: &mut Rig) {
    for lap in 0..4 {
        r.message(&format!("lap {lap}"));
        for _ in 0..7 {
            r.quietly();
        }
    }
}

/// A change of poster waits for the record, on both queues; no other post does.
fn edges(r: &mut Rig) {
    // The first receive is not matched before the second is posted: no send yet.
    let (r0, r1) = (r.receive(), r.receive());
    r.post("receive by stream 0", 0, &[Descriptor::Receive(r0)]);
    r.post("receive by stream 1", 1, &[Descriptor::Receive(r1)]);
    // A gate, so that the first send is still in flight when the second is posted.
    let gate = r.gpu.word();
    let stream = r.streams[0].clone();
    r.a.post_on(&stream, &[geq(&gate, 1)]).unwrap();
    let (s0, s1) = (r.send(), r.send());
    r.post("send by stream 0", 0, &[Descriptor::Send(s0)]);
    r.post("send by stream 1", 1, &[Descriptor::Send(s1)]);
    let s2 = r.send();
    let busy = Some(Kind::Busy);
    assert_eq!(kind(r.a.post(s2)), busy, "stream 1 has not rung");
    gate.store(1).unwrap();
    r.a.wait(s1, LIMIT).unwrap();
    r.a.abort(s2).unwrap();
}

/// Flushes, by the agent that flushes with these capabilities.
fn flushes(r: &mut Rig) {
    let word = r.gpu.word();
    let mut recvs = Vec::new();
    for _ in 0..3 {
        let recv = r.posted_receive();
        let send = r.send();
        r.a.post(send).unwrap();
        recvs.push(Descriptor::wait_flushed(recv));
    }
    r.post(
        "three waits, nothing between: one flush, on the last",
        0,
        &recvs,
    );
    let write = write32(&word, 7);
    r.post(
        "a write between: each keeps its flush",
        0,
        &[recvs[0], write, recvs[1]],
    );
    r.post("a flush by itself", 0, &[Descriptor::Flush]);
    r.text = r.text.replace(&format!("{:?}", word.addr()), "word");
}

/// Every word operation.
fn words(r: &mut Rig) {
    let memory: Region = r.gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let (w32, w64) = (memory.word32(0).unwrap(), memory.word64(8).unwrap());
    let span = memory.span(64, 44).unwrap();
    let data: Vec<u8> = (1..=44).collect();
    w32.store(5).unwrap();
    w64.store(6).unwrap();
    let wait32 = |condition, value| Descriptor::wait_value(&w32, condition, value);
    let list = [
        wait32(Condition::Geq, 4),
        wait32(Condition::Eq, 5),
        wait32(Condition::And, 1),
        Descriptor::wait_value(&w64, Condition::Eq, 6),
        write32(&w32, 0x11),
        write64(&w64, 0x2222_0000_3333),
        Descriptor::WriteMemory {
            to: &span,
            data: &data,
        },
    ];
    r.post("words", 0, &list);
    assert!(r.streams[0].synchronize(LIMIT).unwrap());
    let got = memory.bytes::<44>(64);
    assert_eq!(
        (got.as_slice(), w64.load().unwrap()),
        (&data[..], 0x2222_0000_3333)
    );
    r.name_memory(&memory);
}

/// Comparisons: cyclic ones, for the highest bit and for other values, and those of counts.
fn waits(r: &mut Rig) {
    let memory: Region = r.gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let (narrow, wide) = (memory.word32(0).unwrap(), memory.word64(8).unwrap());
    let (count, out) = (memory.word64(16).unwrap(), memory.word32(24).unwrap());
    narrow.store(0x8000_0000).unwrap();
    wide.store(7).unwrap();
    count.store(1 << 33).unwrap();
    let geq = |value| Descriptor::wait_value(&narrow, Condition::Geq, value);
    let wide = |value| Descriptor::wait_value(&wide, Condition::Geq, value);
    let count = Descriptor::wait_count(&count, 1 << 33);
    let list = [geq(0x8000_0000), wide(0), count, write32(&out, 1)];
    r.post("highest bits and a count", 0, &list);
    let list = [geq(0x7fff_fff0), wide(7), wide(u64::MAX), write32(&out, 2)];
    r.post("cyclic comparisons in a row", 0, &list);
    let list = [wide(6), write32(&out, 3), geq(0x8000_0000), wide(5)];
    r.post("a write and a test between", 0, &list);
    assert!(r.streams[0].synchronize(LIMIT).unwrap());
    assert_eq!(out.load().unwrap(), 3);
    r.name_memory(&memory);
}

impl Rig {
    /// Names addresses in `memory` by their offset.
    fn name_memory(&mut self, memory: &Region) {
        let text = std::mem::take(&mut self.text);
        let base = memory.addr().0;
        self.text = text
            .lines()
            .map(|line| {
                let words = line.split(' ').map(|word| {
                    let hex = word
                        .strip_prefix("0x")
                        .and_then(|h| u64::from_str_radix(h, 16).ok());
                    match hex {
                        Some(at) if (base..base + 4096).contains(&at) => {
                            format!("memory+{:#x}", at - base)
                        }
                        _ => word.to_owned(),
                    }
                });
                words.collect::<Vec<_>>().join(" ") + "\n"
            })
            .collect();
    }
}

/// The operations of a 26-neighbour exchange exceed one submission: the list is cut, and never
/// between record and doorbell.
pub fn long_list(make: Make<'_>, limit: usize) {
    let caps = cuda().batch_limit(limit);
    let config = sized(&small(), 256, 256);
    let mut r = rig(make(caps), config);
    let mut list = Vec::new();
    for _ in 0..90 {
        r.posted_receive();
        list.extend(send_and_wait(r.send()));
    }
    let lines = r.watched(0, &list);
    let mut submissions: Vec<Vec<String>> = Vec::new();
    for line in lines {
        match line.starts_with("stream") {
            true => submissions.push(Vec::new()),
            false => submissions.last_mut().unwrap().push(line),
        }
    }
    let total: usize = submissions.iter().map(Vec::len).sum();
    assert_eq!(
        total,
        3 * 90 + 1,
        "record, doorbell and wait each, one mark"
    );
    assert!(submissions.len() >= total.div_ceil(limit));
    for s in &submissions {
        assert!(s.len() <= limit, "{} operations, limit {limit}", s.len());
        assert!(
            !s.last().unwrap().contains(".record"),
            "cut between record and doorbell"
        );
    }
    assert!(r.streams[0].synchronize(LIMIT).unwrap());
}

/// Aborted and patched sends, and a wait with a time limit.
fn aborts(r: &mut Rig) {
    let (s0, s1, s2) = (r.send(), r.send(), r.send());
    r.a.abort(s2).unwrap();
    r.a.abort(s0).unwrap();
    for _ in 0..2 {
        r.posted_receive();
    }
    r.post("a hole before it, rung with it", 0, &[Descriptor::Send(s1)]);
    let s3 = r.send();
    let (length, address) = (
        r.a.field32(s3, Field::Length(0)).unwrap(),
        r.a.field64(s3, Field::Address(0)).unwrap(),
    );
    let at = r.memory.region().addr().0 + 16;
    let list = [
        write32(&length, 4u32.to_be()),
        write64(&address, at.to_be()),
        Descriptor::Send(s3),
    ];
    r.post("length and address patched before the doorbell", 0, &list);
    r.text = r.text.replace(&format!("{:#018x}", at.to_be()), "ADDRESS");
    let limit = Duration::from_secs(30);
    r.post(
        "a wait with a time limit says that it has arrived",
        0,
        &[Descriptor::wait(s3).within(limit)],
    );
}

/// Sends that follow each other in one list share one doorbell; any operation between them prevents
/// that.
fn row(r: &mut Rig) {
    for _ in 0..6 {
        r.posted_receive();
    }
    let sends: Vec<SendRequest> = (0..6).map(|_| r.send()).collect();
    let ring = |i: usize| Descriptor::Send(sends[i]);
    r.post("three in a row", 0, &[ring(0), ring(1), ring(2)]);
    let wait = Descriptor::wait(sends[3]);
    r.post("a wait between", 0, &[ring(3), wait, ring(4), ring(5)]);
    assert!(r.streams[0].synchronize(LIMIT).unwrap());
    r.a.wait(sends[5], LIMIT).unwrap();
}
