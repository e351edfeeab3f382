//! Proof that the stream did the work: processor time of each thread between the gate and the last
//! completion, and the operations that were enqueued on the stream.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gds_step::{ThreadTime, thread_times};
use gdsync::rdma::Provider;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::options::Layer;

/// Processor time between the opening of gates and the last completions behind them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// The elapsed time, in nanoseconds.
    pub gated_ns: u64,
    /// Processor time of the thread that enqueued and opened the gate, in nanoseconds.
    pub application_ns: u64,
    /// Processor time of the other threads of the process, by name. (A running thread's time may be
    /// a scheduler tick old, so a short run is inexact.)
    pub others_ns: BTreeMap<String, u64>,
}

/// The time of this thread before the gate is opened.
#[derive(Clone, Copy)]
pub struct Before {
    at: Instant,
    own: Duration,
}

/// Processor times of the other threads at a moment.
pub struct ThreadTimes(Vec<ThreadTime>);

impl CpuTimes {
    /// Reads the times of the other threads.
    pub fn of_other_threads(&self) -> Result<ThreadTimes> {
        let mut times = thread_times().context("reading processor times")?;
        // This thread is measured more exactly.
        times.retain(|t| !matches!(t.name.as_str(), "rank0" | "rank1"));
        Ok(ThreadTimes(times))
    }

    /// Reads the time of this thread.
    pub fn of_this_thread(&self) -> Before {
        Before {
            at: Instant::now(),
            own: own_time(),
        }
    }

    /// Adds the time used since then, of this thread and of the others.
    pub fn add(&mut self, since: Before, others: &ThreadTimes) -> Result<()> {
        self.application_ns += (own_time().saturating_sub(since.own)).as_nanos() as u64;
        self.gated_ns += since.at.elapsed().as_nanos() as u64;
        for now in self.of_other_threads()?.0 {
            let then = others.0.iter().find(|t| t.tid == now.tid);
            let then = then.map_or(Duration::ZERO, |t| t.cpu);
            let used = now.cpu.saturating_sub(then).as_nanos() as u64;
            *self.others_ns.entry(now.name).or_default() += used;
        }
        Ok(())
    }
}

/// Exact processor time of the calling thread so far.
fn own_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec.unsigned_abs() as u32)
}

/// The operations of a few rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Number of sends enqueued during the trace.
    pub sends: u64,
    /// Number of doorbell writes by the stream.
    pub rung: u64,
    /// The operations of a doorbell write.
    pub by: String,
    /// All lines.
    pub lines: Vec<String>,
}

/// A form of doorbell writes: its name, and lines that begin with and contain these.
type Form = (&'static str, &'static [(&'static str, &'static str)]);

/// The forms of NICs that read a doorbell, by lowering.
const WITH_UAR: [Form; 3] = [
    (
        "doorbell record, then UAR",
        &[("write32", ".record+0x4"), ("write", ".uar")],
    ),
    (
        "a kernel that writes doorbell record and UAR",
        &[("phase", ": ring qp")],
    ),
    BY_CPU_THREAD,
];
/// The forms where a CPU thread reads the doorbell record, by lowering.
const RECORD_ALONE: [Form; 3] = [
    ("doorbell record", &[("write32", ".record+0x4")]),
    (
        "a kernel that writes the doorbell record",
        &[("phase", ".record+0x4")],
    ),
    BY_CPU_THREAD,
];
const BY_CPU_THREAD: Form = (
    "a word that the CPU thread reads",
    &[("write32", ".send-trigger")],
);

/// The forms of a provider.
fn forms(provider: Provider) -> &'static [Form] {
    match provider {
        Provider::Verbs | Provider::Tcp => &RECORD_ALONE,
        _ => &WITH_UAR,
    }
}

/// Opcode of an RDMA read in a doorbell's word (PRM, control segment).
const READ: u64 = 0x10;

impl Trace {
    /// Finds the doorbells of `sends` sends among the operations of stream `id`. Two forms of
    /// doorbell writes may alternate. Doorbells of RDMA reads are flushes and do not count. mp writes
    /// more doorbells: it returns credits to senders. `nic`: the provider of the NIC that carries the
    /// sends; none if kernels copy them, which ring nothing.
    ///
    /// # Errors
    /// The doorbells are missing.
    pub fn of(
        lines: &[String],
        id: u64,
        sends: u64,
        layer: Layer,
        nic: Option<Provider>,
    ) -> Result<Trace> {
        let lines = of_stream(lines, id);
        let counts = nic.map(forms).unwrap_or_default();
        let counts = counts.iter().map(|(by, steps)| (*by, count(&lines, steps)));
        let counts: Vec<(&str, u64)> = counts.collect();
        let found = counts.iter().filter(|(_, n)| *n > 0);
        let by: Vec<&str> = found.map(|(by, _)| *by).collect();
        let rung = counts.iter().map(|(_, n)| n).sum();
        ensure!(
            nic.is_none() || rung == sends || (rung > sends && layer == Layer::Mp),
            "the trace has {sends} sends, but the stream rang {rung} times:\n{}",
            lines.join("\n")
        );
        Ok(Trace {
            sends,
            rung,
            by: by.join(", or by "),
            lines,
        })
    }

    /// The lines of the first submission with a doorbell write.
    pub fn example(&self) -> &[String] {
        let all = WITH_UAR.iter().chain(&RECORD_ALONE);
        let rings = |line: &String| all.clone().any(|(_, steps)| matches(line, steps[0]));
        let at = self.lines.iter().position(rings).unwrap_or(0);
        let head = |line: &String| line.starts_with("stream ");
        let start = self.lines[..at].iter().rposition(head).unwrap_or(0);
        let rest = &self.lines[start..];
        let len = rest
            .iter()
            .skip(1)
            .position(head)
            .map_or(rest.len(), |n| n + 1);
        &rest[..len]
    }
}

/// The submissions of one stream: its heading lines and those below them.
fn of_stream(lines: &[String], id: u64) -> Vec<String> {
    let head = format!("stream {id}:");
    let mut ours = false;
    let of_ours = |line: &&String| {
        if line.starts_with("stream ") {
            ours = line.starts_with(&head);
        }
        ours
    };
    lines.iter().filter(of_ours).cloned().collect()
}

fn matches(line: &str, (begins, contains): (&str, &str)) -> bool {
    line.starts_with(begins) && line.contains(contains)
}

/// Number of occurrences of the steps, each in the line after the previous one.
fn count(lines: &[String], steps: &[(&str, &str)]) -> u64 {
    let all = |w: &[String]| w.iter().zip(steps).all(|(line, step)| matches(line, *step));
    let sends = |w: &&[String]| all(w) && !w.iter().any(|line| reads(line));
    lines.windows(steps.len()).filter(sends).count() as u64
}

/// Whether the line writes the doorbell of an RDMA read: bits 24 to 31 are the opcode.
fn reads(line: &str) -> bool {
    let word = line
        .split_once(".uar")
        .and_then(|(_, rest)| rest.split_once("= 0x"));
    let word = word.and_then(|(_, word)| word.split(' ').next());
    let word = word.and_then(|word| u64::from_str_radix(word, 16).ok());
    word.is_some_and(|word| word >> 24 & 0xff == READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: Option<Provider> = Some(Provider::Mlx5);

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|l| l.trim().to_owned()).collect()
    }

    const MEMOPS: &str = "stream 3: 1 operations
        wait32 0x1 Geq 0x1
        stream 3: 4 operations
        write32 qp0x101.record+0x4 = 0x01000000 fenced
        write64 qp0x101.uar+0x800 = 0x0302010000000b00 fenced
        wait32 qp0x101.recv-cq+0x3c Geq 0x00000000 flush
        write32 qp0x101.recv-passed = 0x00000001 fenced
        stream 3: 2 operations
        write32 qp0x101.record+0x4 = 0x02000000 fenced
        write64 qp0x101.uar+0x800 = 0x0302010000010b00 fenced";

    #[test]
    fn doorbells_are_found_and_counted() {
        let trace = Trace::of(&lines(MEMOPS), 3, 2, Layer::Gdsync, NIC).unwrap();
        assert_eq!((trace.rung, trace.sends), (2, 2));
        assert_eq!(trace.example().len(), 5);
        assert_eq!(trace.example()[0], "stream 3: 4 operations");
        let kernel = "stream 3: kernel, 2 operations
            phase 0: ring qp0x101.record+0x4 = 0x01000000, qp0x101.uar+0x800 = 0x0a00
            phase 1: wait-entry qp0x101.recv-cq+0x3c 0x0 0x0";
        assert_eq!(
            Trace::of(&lines(kernel), 3, 1, Layer::Gdsync, NIC)
                .unwrap()
                .by,
            WITH_UAR[1].0
        );
        let by_cpu_thread = "stream 3: 1 operations
            write32 qp0x101.send-trigger = 0x00000001 fenced";
        assert_eq!(
            Trace::of(&lines(by_cpu_thread), 3, 1, Layer::Gdsync, NIC)
                .unwrap()
                .by,
            WITH_UAR[2].0
        );
        let both = Trace::of(
            &lines(&format!("{MEMOPS}\n{kernel}")),
            3,
            3,
            Layer::Gdsync,
            NIC,
        )
        .unwrap();
        assert!(both.by.starts_with(WITH_UAR[0].0) && both.by.ends_with(WITH_UAR[1].0));
    }

    #[test]
    fn doorbell_record_alone_counts_for_nics_that_read_no_doorbell() {
        let by_operations = "stream 2: 3 operations
            write32 qp0x11.record+0x4 = 0xa4020000 fenced
            wait32 qp0x11.recv-cq+0xa8fc Geq 0x00000000 flush
            write32 qp0x11.recv-passed = 0x000002a4 fenced
            stream 2: 1 operations
            write32 qp0x11.record = 0xa5020000 fenced";
        let by_kernel = "stream 2: kernel, 2 operations
            phase 0: write32 qp0x11.record+0x4 0xa4020000 0x0
            phase 0: write32 qp0x11.record 0xa5020000 0x0";
        for (text, form) in [(by_operations, 0), (by_kernel, 1)] {
            let lines = lines(text);
            for provider in [Provider::Verbs, Provider::Tcp] {
                let trace = Trace::of(&lines, 2, 1, Layer::Gdsync, Some(provider)).unwrap();
                assert_eq!((trace.rung, trace.by.as_str()), (1, RECORD_ALONE[form].0));
                assert_eq!(trace.example()[0], lines[0]);
                assert!(Trace::of(&lines, 2, 2, Layer::Gdsync, Some(provider)).is_err());
            }
            assert!(Trace::of(&lines, 2, 1, Layer::Gdsync, NIC).is_err());
            let copied = Trace::of(&lines, 2, 1, Layer::Mp, None).unwrap();
            assert_eq!(copied.rung, 0);
        }
    }

    #[test]
    fn flushes_by_reads_do_not_count() {
        let by_operations = "stream 3: 5 operations
            write32 qp0x1001.record+0x4 = 0x55000000 fenced
            write64 qp0x1001.uar+0x800 = 0x0301100010540000 fenced
            wait32 qp0x1001.send-cq+0x153c Eq 0x00000000 mask 0x81000000
            write32 qp0x1000.record+0x4 = 0x55000000 fenced
            write64 qp0x1000.uar+0x800 = 0x020010000a540000 fenced";
        let by_kernel = "stream 3: kernel, 2 operations
            phase 2: ring qp0x1001.record+0x4 = 0x55000000, qp0x1001.uar+0x800 = 0x0301100010540000
            phase 2: ring qp0x1000.record+0x4 = 0x55000000, qp0x1000.uar+0x800 = 0x020010000a540000";
        for text in [by_operations, by_kernel] {
            let trace = Trace::of(&lines(text), 3, 1, Layer::Gdsync, NIC).unwrap();
            assert_eq!(trace.rung, 1);
        }
    }

    #[test]
    fn operations_of_another_stream_do_not_count() {
        let both = lines(&format!(
            "{MEMOPS}\n{}",
            MEMOPS.replace("stream 3", "stream 4")
        ));
        let trace = Trace::of(&both, 4, 2, Layer::Gdsync, NIC).unwrap();
        assert!(trace.lines.iter().all(|line| !line.starts_with("stream 3")));
        assert!(Trace::of(&both, 5, 2, Layer::Gdsync, NIC).is_err());
    }

    #[test]
    fn trace_without_every_doorbell_is_an_error() {
        assert!(Trace::of(&lines(MEMOPS), 3, 3, Layer::Gdsync, NIC).is_err());
        assert!(Trace::of(&lines(MEMOPS), 3, 3, Layer::Mp, NIC).is_err());
        assert!(Trace::of(&lines(MEMOPS), 3, 1, Layer::Gdsync, NIC).is_err());
        assert_eq!(
            Trace::of(&lines(MEMOPS), 3, 1, Layer::Mp, NIC)
                .unwrap()
                .rung,
            2
        );
        let no_uar = lines(MEMOPS)
            .into_iter()
            .filter(|l| !l.contains(".uar"))
            .collect::<Vec<_>>();
        assert!(Trace::of(&no_uar, 3, 2, Layer::Gdsync, NIC).is_err());
        assert!(Trace::of(&[], 3, 1, Layer::Gdsync, NIC).is_err());
        let mut backwards = lines(MEMOPS);
        backwards.swap(3, 4);
        assert!(
            Trace::of(&backwards, 3, 2, Layer::Gdsync, NIC).is_err(),
            "the UAR before the record"
        );
    }
}
