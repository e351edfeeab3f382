//! The timeline as text: the JSON object format of Chrome's trace events, which Perfetto
//! (ui.perfetto.dev) opens. A process is a rank; a thread is a thread of the CPU or a stream.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use gds_step::Time;

use super::call::Facts;
use super::ring::{Event, Ring, Stamp, Track};

/// The facts about the rank that the file begins with.
pub(super) struct Header<'a> {
    pub rank: u32,
    pub size: u32,
    pub gpu: &'a str,
    /// The system's monotonic clock at the time 0.
    pub epoch: Duration,
}

/// The numbers of streams as threads begin here.
const STREAMS: u64 = 1000;

impl Track {
    fn id(self) -> u64 {
        match self {
            Track::Cpu(thread) => thread as u64,
            Track::Stream(stream) => STREAMS + stream,
        }
    }

    fn name(self) -> String {
        match self {
            Track::Cpu(thread) => format!("CPU thread {thread}"),
            Track::Stream(stream) => format!("stream {stream}"),
        }
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Microseconds.
fn us(time: Duration) -> String {
    let ns = time.as_nanos();
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// The fields of `facts` that are known, each behind a comma.
fn fields(facts: &Facts) -> String {
    let fields = [
        ("peer", facts.peer.map(u64::from)),
        ("tag", facts.tag.map(u64::from)),
        ("bytes", facts.bytes),
        ("stream", facts.stream),
    ];
    let known = fields
        .iter()
        .filter_map(|(name, value)| Some((name, (*value)?)));
    known.fold(String::new(), |mut out, (name, value)| {
        let _ = write!(out, ",\"{name}\":{value}");
        out
    })
}

pub(super) fn write<S: Stamp>(header: &Header<'_>, ring: &Ring<S>) -> String {
    let Header {
        rank, size, epoch, ..
    } = header;
    let at = |time: Time| us(*epoch + Duration::from_nanos(time.as_nanos()));
    let mut lines = vec![format!(
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
    )];
    let tracks: BTreeSet<Track> = ring.events().map(|event| event.track).collect();
    for track in &tracks {
        lines.push(format!(
            "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{rank},\"tid\":{},\"args\":{{\"name\":{}}}}}",
            track.id(),
            quoted(&track.name())
        ));
    }
    let mut starts = BTreeSet::new();
    for event in ring.events() {
        lines.push(event_line(*rank, event, &at));
        // An arrow from the call to the work of the stream.
        if let (Track::Stream(_), 1.., Some(_)) = (event.track, event.call, event.end) {
            starts.insert(event.call);
            lines.push(flow(*rank, event, "f\",\"bp\":\"e", &at));
        }
    }
    for event in ring.events() {
        if matches!(event.track, Track::Cpu(_)) && starts.contains(&event.call) {
            lines.push(flow(*rank, event, "s", &at));
        }
    }
    let dropped = ring.dropped().iter().map(|(track, count)| {
        let name = quoted(&track.name());
        format!("{name}:{count}")
    });
    let dropped = dropped.collect::<Vec<_>>().join(",");
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"rank\":{rank},\"size\":{size},\
         \"gpu\":{},\"dropped\":{{{dropped}}}}},\"traceEvents\":[\n{}\n]}}\n",
        quoted(header.gpu),
        lines.join(",\n")
    )
}

fn event_line(rank: u32, event: &Event, at: &dyn Fn(Time) -> String) -> String {
    let (name, tid) = (quoted(&event.name), event.track.id());
    let mut args = format!("\"call\":{}{}", event.call, fields(&event.facts));
    if let Track::Stream(_) = event.track {
        let (posted, work) = (at(event.posted), quoted(&event.work));
        let _ = write!(args, ",\"posted\":{posted},\"work\":{work}");
    }
    let head = format!(
        "\"name\":{name},\"cat\":\"{}\",\"pid\":{rank},\"tid\":{tid}",
        event.kind
    );
    match event.end {
        Some(end) => {
            let (start, dur) = (at(event.start), us(end.since(event.start)));
            format!("{{\"ph\":\"X\",{head},\"ts\":{start},\"dur\":{dur},\"args\":{{{args}}}}}")
        }
        // A mark: the stream has not passed it, or had no room for a stamp.
        None => {
            let end = if event.stamped {
                "not passed"
            } else {
                "unknown"
            };
            let posted = at(event.posted);
            format!(
                "{{\"ph\":\"i\",\"s\":\"t\",{head},\"ts\":{posted},\"args\":{{{args},\"end\":\"{end}\"}}}}"
            )
        }
    }
}

fn flow(rank: u32, event: &Event, phase: &str, at: &dyn Fn(Time) -> String) -> String {
    let (tid, id, start) = (event.track.id(), event.call, at(event.start));
    // Numbers of calls are those of one rank.
    format!(
        "{{\"ph\":\"{phase}\",\"name\":\"post\",\"cat\":\"post\",\"id\":\"{rank}.{id}\",\
         \"pid\":{rank},\"tid\":{tid},\"ts\":{start}}}"
    )
}
