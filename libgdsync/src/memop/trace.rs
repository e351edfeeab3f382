//! Readable traces of every submission.
//!
//! `GDS_TRACE=1` sends each submission to `tracing` (target `gdsync::trace`). `GDS_TRACE=FILE`
//! appends them to a file, a separate one for each rank. A test captures them. A trace shows
//! addresses by the names that their owners gave them, `qp0x100.record`, because numbers change
//! from run to run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_step::Mutex;

use super::program::{Code, Program, ProgramOp};
use super::{DevicePtr, Op, Width};
use crate::error::{Error, Kind, Result};
use crate::launcher;

/// The destination of the submissions of one GPU, and the names of its addresses.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// Whether there is a destination. Read relaxed on the hot path; switching it orders nothing.
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sink: Sink,
    names: BTreeMap<u64, (u64, String)>,
}

#[derive(Debug, Default)]
enum Sink {
    #[default]
    Nowhere,
    Events,
    File(File),
    Captured(Vec<String>),
}

impl Tracer {
    /// The tracer that `GDS_TRACE` selects.
    ///
    /// # Errors
    /// `System` if the file cannot be opened.
    pub(crate) fn from_env() -> Result<Tracer> {
        let tracer = Tracer::default();
        let sink = match std::env::var_os("GDS_TRACE") {
            None => Sink::Nowhere,
            Some(v) if v.is_empty() || v == "0" => Sink::Nowhere,
            Some(v) if v == "1" => Sink::Events,
            Some(mut path) => {
                // If ranks wrote into one file, they would mix their submissions.
                if let Some(rank) = launcher::rank() {
                    path.push(format!(".rank{rank}"));
                }
                let opened = File::options().create(true).append(true).open(&path);
                Sink::File(opened.map_err(|e| {
                    let text = format!(
                        "open of {} failed: {e}; set GDS_TRACE to the path of a writable file, to 1 \
                         for events of the log, or to 0 for no trace",
                        path.display()
                    );
                    Error::new("open trace file", Kind::System, text).with_source(e)
                })?)
            }
        };
        tracer.set(sink);
        Ok(tracer)
    }

    fn set(&self, sink: Sink) {
        let on = !matches!(sink, Sink::Nowhere);
        self.state.lock().sink = sink;
        self.on.store(on, Ordering::Relaxed);
    }

    /// Starts to keep lines for [`Tracer::take`].
    pub fn capture(&self) {
        self.set(Sink::Captured(Vec::new()));
    }

    /// Returns the lines captured so far; the capture continues.
    pub fn take(&self) -> Vec<String> {
        match &mut self.state.lock().sink {
            Sink::Captured(lines) => std::mem::take(lines),
            _ => Vec::new(),
        }
    }

    /// Ends the capture and returns the lines that were not taken yet. Tracing then costs nothing
    /// again.
    pub fn finish(&self) -> Vec<String> {
        let lines = self.take();
        self.set(Sink::Nowhere);
        lines
    }

    /// Names the `len` bytes at `at`.
    pub(crate) fn name(&self, at: DevicePtr, len: usize, name: impl Into<String>) {
        self.state
            .lock()
            .names
            .insert(at.0, (len as u64, name.into()));
    }

    /// Removes the name of the range that begins at `at`.
    pub(crate) fn forget(&self, at: DevicePtr) {
        self.state.lock().names.remove(&at.0);
    }

    /// Records one submission of memory operations.
    #[inline]
    pub(crate) fn submission(&self, stream: u64, ops: &[Op]) {
        if self.on.load(Ordering::Relaxed) {
            self.emit(
                &format!("stream {stream}: {} operations", ops.len()),
                |names| ops.iter().map(|op| line(op, names)).collect(),
            );
        }
    }

    /// Records one launch of the program kernel.
    #[inline]
    pub(crate) fn program(&self, stream: u64, program: &Program) {
        if self.on.load(Ordering::Relaxed) {
            self.emit(
                &format!(
                    "stream {stream}: kernel, {} operations",
                    program.ops().len()
                ),
                |names| {
                    program
                        .ops()
                        .iter()
                        .map(|op| program_line(op, names))
                        .collect()
                },
            );
        }
    }

    #[cold]
    fn emit(&self, head: &str, lines: impl FnOnce(&Names) -> Vec<String>) {
        let mut state = self.state.lock();
        let lines = lines(&state.names);
        let mut text = head.to_owned();
        for line in &lines {
            let _ = write!(text, "\n  {line}");
        }
        match &mut state.sink {
            Sink::Nowhere => {}
            Sink::Events => tracing::info!(target: "gdsync::trace", "{text}"),
            Sink::File(file) => {
                // A trace that cannot be written must not stop the program.
                let _ = writeln!(file, "{text}");
            }
            Sink::Captured(captured) => {
                captured.extend(std::iter::once(head.to_owned()).chain(lines))
            }
        }
    }
}

type Names = BTreeMap<u64, (u64, String)>;

/// The name of an address: `owner`, `owner+0x40`, or the number.
fn named(at: DevicePtr, names: &Names) -> String {
    match names.range(..=at.0).next_back() {
        Some((start, (len, name))) if at.0 - start < *len => match at.0 - start {
            0 => name.clone(),
            offset => format!("{name}+{offset:#x}"),
        },
        _ => format!("{at:?}"),
    }
}

fn line(op: &Op, names: &Names) -> String {
    let hex = |width: Width, value: u64| {
        let digits = 2 + width.bits() as usize / 4;
        format!("{value:#0digits$x}")
    };
    match *op {
        Op::Write {
            width,
            at,
            value,
            fenced,
        } => {
            let (bits, at, value) = (width.bits(), named(at, names), hex(width, value));
            let fenced = if fenced { " fenced" } else { "" };
            format!("write{bits} {at} = {value}{fenced}")
        }
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush,
        } => {
            let mask = match mask == width.all() {
                true => String::new(),
                false => format!(" mask {}", hex(width, mask)),
            };
            let (bits, at, value) = (width.bits(), named(at, names), hex(width, value));
            let flush = if flush { " flush" } else { "" };
            format!("wait{bits} {at} {condition:?} {value}{mask}{flush}")
        }
        Op::Copy { at, data } => format!("copy {} = {data:?}", named(at, names)),
        Op::Fence => "fence".to_owned(),
        Op::Flush => "flush".to_owned(),
    }
}

fn program_line(op: &ProgramOp, names: &Names) -> String {
    let at = named(DevicePtr(op.at), names);
    let (phase, name, value) = (op.phase, op.name(), op.value);
    match op.code() {
        Some(Code::Ring) => {
            let doorbell = named(DevicePtr(op.extra), names);
            let record = op.more;
            format!("phase {phase}: {name} {at} = {record:#010x}, {doorbell} = {value:#018x}")
        }
        Some(Code::Wait64) => {
            let (condition, mask) = (op.more, op.extra);
            format!("phase {phase}: {name} {at} {value:#x} {mask:#x} {condition}")
        }
        _ => format!("phase {phase}: {name} {at} {value:#x} {:#x}", op.extra),
    }
}
