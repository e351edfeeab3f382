//! Observation of a context: spans of `tracing` and ranges of NVTX around its calls (`call`,
//! `nvtx`), and the timeline that `MP_TRACE` names: the calls of the CPU, the submissions of each
//! stream, and when the stream passed them (`ring`), as a file for Perfetto or Chrome (`json`).
//!
//! Times of streams are stamps that `gdsync` enqueues behind each submission: noted by the engine of
//! the software GPU, or timing events of CUDA. The CPU does not estimate them.

mod call;
mod json;
mod nvtx;
mod ring;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use gds_step::{Host, Time};
use gdsync::Gpu;
use gdsync::gpu::{Observer, Passed, Work};

use crate::error::{Error, Kind, Result};
use call::Begun;
use ring::{Event, Ring, Track};

pub(crate) use call::{Facts, Observers};

/// The default number of events that a timeline keeps: about 20 MB.
pub(crate) const MOST_EVENTS: usize = 1 << 16;

/// The file of a rank: `trace.json` becomes `trace.3.json`, or `trace.NAME.3.json` for contexts of
/// another name than `mp`.
pub(crate) fn file_of(path: &Path, name: &str, rank: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path
        .extension()
        .map_or("json".into(), |end| end.to_string_lossy());
    let name = match name {
        "mp" => String::new(),
        other => format!("{}.", other.replace(['/', '\0'], "_")),
    };
    path.with_file_name(format!("{stem}.{name}{rank}.{end}"))
}

/// Replaces a file as a whole: another context, or a rank of another job, may do so meanwhile.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    /// Number of files that this process has written. Relaxed: the value alone counts.
    static FILES: AtomicU64 = AtomicU64::new(0);
    let (part, mut file) = loop {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let part = path.with_extension(format!("{}-{number}.part", process::id()));
        match fs::File::create_new(&part) {
            // Of a process with the same number: of another host, or that died.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            file => break (part, file?),
        }
    };
    let written = file.write_all(text.as_bytes());
    written
        .and_then(|()| fs::rename(&part, path))
        .inspect_err(|_| drop(fs::remove_file(&part)))
}

/// The timeline of a context.
pub(crate) struct Trace {
    rank: u32,
    size: u32,
    gpu: String,
    path: PathBuf,
    host: Arc<dyn Host>,
    inner: Mutex<Inner>,
}

struct Inner {
    ring: Ring<Passed>,
    /// The threads that made calls.
    threads: Vec<ThreadId>,
    /// The calls that run, of all threads.
    open: Vec<(ThreadId, u64, &'static str, Facts)>,
    /// Number of calls so far.
    calls: u64,
    /// Whether events have changed since the file was written.
    changed: bool,
}

impl Trace {
    /// Creates the file, and observes the streams of `gpu` from now on.
    fn open((rank, size): (u32, u32), gpu: &Gpu, path: PathBuf, most: usize) -> Result<Arc<Trace>> {
        let trace = Arc::new(Trace {
            rank,
            size,
            gpu: gpu.name(),
            path,
            host: Arc::clone(gpu.host()),
            inner: Mutex::new(Inner {
                ring: Ring::new(most),
                threads: Vec::new(),
                open: Vec::new(),
                calls: 0,
                changed: false,
            }),
        });
        replace(&trace.path, &trace.text()).map_err(|e| {
            let what = format!(
                "the timeline cannot be written to {}: {e}; set MP_TRACE or Builder::trace to a \
                 file in a folder of this user",
                trace.path.display()
            );
            Error::new("build context", Kind::System, what).with_source(e)
        })?;
        let observer: Arc<dyn Observer> = Arc::clone(&trace) as _;
        gpu.observe(&observer)?;
        Ok(trace)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, name: &'static str, facts: Facts) -> Begun {
        let at = self.host.now();
        let mut inner = self.lock();
        inner.calls += 1;
        let call = inner.calls;
        inner.open.push((thread::current().id(), call, name, facts));
        Begun { call, at }
    }

    fn end(&self, begun: Begun) {
        let now = self.host.now();
        let inner = &mut *self.lock();
        let index = inner.open.iter().rposition(|open| open.1 == begun.call);
        let Some((thread, call, name, facts)) = index.map(|index| inner.open.remove(index)) else {
            return;
        };
        let known = inner.threads.iter().position(|known| *known == thread);
        let index = known.unwrap_or_else(|| {
            inner.threads.push(thread);
            inner.threads.len() - 1
        });
        let event = Event {
            track: Track::Cpu(index),
            name: name.to_owned(),
            kind: kind_of(name),
            work: String::new(),
            call,
            facts,
            posted: begun.at,
            start: begun.at,
            end: Some(now),
            stamped: true,
        };
        inner.ring.add(event, None);
        inner.changed = true;
    }

    fn collect(&self) {
        let inner = &mut *self.lock();
        inner.changed |= inner.ring.collect();
    }

    fn text(&self) -> String {
        let mut inner = self.lock();
        inner.ring.collect();
        let header = json::Header {
            rank: self.rank,
            size: self.size,
            gpu: &self.gpu,
            epoch: self.host.epoch(),
        };
        json::write(&header, &inner.ring)
    }

    fn write(&self) {
        self.collect();
        if !std::mem::take(&mut self.lock().changed) {
            return;
        }
        let text = self.text();
        let (rank, path) = (self.rank, self.path.display());
        if let Err(e) = replace(&self.path, &text) {
            tracing::warn!(target: "mp", "rank {rank}: the timeline cannot be written to {path}: {e}");
        }
        let dropped: u64 = self.lock().ring.dropped().values().sum();
        if dropped > 0 {
            tracing::warn!(
                target: "mp",
                "rank {rank}: the timeline {path} lacks its oldest {dropped} events; \
                 Builder::trace_events sets how many it keeps"
            );
        }
    }
}

impl Observer for Trace {
    fn enqueued(&self, stream: u64, work: Work<'_>, posted: Time, passed: Option<Passed>) {
        let thread = thread::current().id();
        let inner = &mut *self.lock();
        let call = inner.open.iter().rfind(|open| open.0 == thread);
        let (call, name, facts) = match call {
            Some((_, call, name, facts)) => (*call, Some(*name), *facts),
            None => (0, None, Facts::default()),
        };
        let (kind, what) = match work {
            Work::Kernel(kernel) => ("kernel", kernel.to_owned()),
            Work::Copy(bytes) => ("copy", format!("copy {bytes} B")),
            Work::Event => ("event", "wait for event".to_owned()),
            Work::Operations { all, waits } => {
                ("operations", format!("{all} operations, {waits} waits"))
            }
            _ => ("work", "work".to_owned()),
        };
        let event = Event {
            track: Track::Stream(stream),
            name: name.map_or_else(|| what.clone(), str::to_owned),
            kind: name.map_or(kind, kind_of),
            work: what,
            call,
            facts,
            posted,
            start: posted,
            end: None,
            stamped: passed.is_some(),
        };
        inner.ring.add(event, passed);
        inner.changed = true;
    }
}

/// The kind of a call, by its name.
fn kind_of(name: &str) -> &'static str {
    const KINDS: [(&str, &str); 11] = [
        ("wait", "wait"),
        ("neighbours_wait", "wait"),
        ("neighbours_send", "send"),
        ("send_ready", "signal"),
        ("synchronize", "wait"),
        ("quiet", "wait"),
        ("isend", "send"),
        ("irecv", "recv"),
        ("put", "put"),
        ("get", "get"),
        ("signal", "signal"),
    ];
    let known = KINDS.iter().find(|(start, _)| name.starts_with(start));
    known.map_or("call", |(_, kind)| kind)
}
