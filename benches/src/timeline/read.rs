//! The files of `MP_TRACE`: parsed, and a part of them selected. Times are nanoseconds.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A kernel, a message operation, a call.
pub struct Event {
    pub name: String,
    /// Its category in the file.
    pub kind: String,
    pub start: u64,
    pub end: u64,
    pub peer: Option<u64>,
    pub bytes: Option<u64>,
}

impl Event {
    /// Whether it computes: a kernel that the application launched.
    pub fn computes(&self) -> bool {
        self.kind == "kernel"
    }

    /// Whether it is part of a message.
    pub fn communicates(&self) -> bool {
        ["send", "recv", "wait", "put", "get", "signal", "call"].contains(&&*self.kind)
    }
}

/// A thread of the CPU or a stream.
pub struct Track {
    pub name: String,
    pub is_stream: bool,
    pub events: Vec<Event>,
}

pub struct Rank {
    pub rank: u64,
    /// By their numbers in the file: threads of the CPU first.
    pub tracks: BTreeMap<u64, Track>,
    /// Events that the rank did not keep.
    pub dropped: u64,
}

pub struct Timeline {
    pub ranks: Vec<Rank>,
    /// The selected start and length; the whole run if it is `None`.
    selected: Option<(u64, u64)>,
}

/// The first number of streams as threads of the file.
const STREAMS: u64 = 1000;

impl Timeline {
    pub fn read(files: &[PathBuf]) -> Result<Timeline> {
        let parse = |path: &PathBuf| -> Result<Value> {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("reading {}", path.display()))?;
            serde_json::from_str(&text).with_context(|| format!("parsing {}", path.display()))
        };
        let files: Vec<Value> = files.iter().map(parse).collect::<Result<_>>()?;
        Timeline::parse(files.iter())
    }

    pub fn parse<'a>(files: impl Iterator<Item = &'a Value>) -> Result<Timeline> {
        let mut ranks: Vec<Rank> = files.map(rank).collect::<Result<_>>()?;
        ranks.sort_by_key(|rank| rank.rank);
        Ok(Timeline {
            ranks,
            selected: None,
        })
    }

    /// The start and the length of what is drawn.
    pub fn span(&self) -> (u64, u64) {
        if let Some(selected) = self.selected {
            return selected;
        }
        let streams = self.ranks.iter().flat_map(|rank| rank.tracks.values());
        let events = || {
            streams
                .clone()
                .filter(|track| track.is_stream)
                .flat_map(|track| &track.events)
        };
        let start = events().map(|s| s.start).min().unwrap_or(0);
        (start, events().map(|s| s.end).max().unwrap_or(0) - start)
    }

    /// Selects steps: see [`Options::step`](super::Options::step).
    pub fn select(&mut self, kernel: &str, steps: usize) -> Result<()> {
        let first = self.ranks.first().context("no file")?;
        let events = || {
            first
                .tracks
                .values()
                .filter(|track| track.is_stream)
                .flat_map(|l| &l.events)
        };
        let kernels = events().filter(|s| s.computes() && s.name.contains(kernel));
        let mut starts: Vec<u64> = kernels.map(|s| s.start).collect();
        starts.sort_unstable();
        let all: Vec<(u64, u64)> = starts
            .windows(steps.max(1) + 1)
            .map(|w| (w[0], w[w.len() - 1] - w[0]))
            .collect();
        let late = all.get(all.len() / 2..).unwrap_or_default();
        let Some(shortest) = late.iter().min_by_key(|(start, len)| (*len, *start)) else {
            let mut names: Vec<&str> = events()
                .filter(|s| s.computes())
                .map(|s| &*s.name)
                .collect();
            names.sort_unstable();
            names.dedup();
            bail!(
                "rank {} has {} starts of a kernel {kernel:?}, and {} are needed; its kernels are: {}",
                first.rank,
                starts.len(),
                steps + 1,
                names.join(", ")
            );
        };
        self.selected = Some(*shortest);
        Ok(())
    }
}

impl Rank {
    /// In a span: the time in which kernels compute, the time in which messages are under way, and
    /// how much of the latter is in the former.
    pub fn overlap(&self, (start, len): (u64, u64)) -> (u64, u64, u64) {
        let tracks = self.tracks.values().filter(|track| track.is_stream);
        let events: Vec<&Event> = tracks.flat_map(|track| &track.events).collect();
        let of = |is: fn(&Event) -> bool| {
            let inside = |s: &&&Event| is(s) && s.end > start && s.start < start + len;
            let cut = |s: &&Event| (s.start.max(start), s.end.min(start + len));
            union(events.iter().filter(inside).map(cut).collect())
        };
        let (compute, messages) = (of(Event::computes), of(Event::communicates));
        let total = |spans: &[(u64, u64)]| spans.iter().map(|(a, b)| b - a).sum();
        let common = compute.iter().flat_map(|(a, b)| {
            let common = move |(c, d): &(u64, u64)| b.min(d).saturating_sub(*a.max(c));
            messages.iter().map(common)
        });
        (total(&compute), total(&messages), common.sum())
    }
}

/// Spans without overlaps, in order.
fn union(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match all.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

fn rank(file: &Value) -> Result<Rank> {
    let not = "the file is no timeline of MP_TRACE";
    let rank = file["otherData"]["rank"].as_u64().context(not)?;
    let events = file["traceEvents"].as_array().context(not)?;
    let dropped = file["otherData"]["dropped"].as_object();
    let dropped = dropped
        .into_iter()
        .flat_map(|d| d.values())
        .filter_map(Value::as_u64);
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    for event in events {
        let Some(tid) = event["tid"].as_u64() else {
            continue;
        };
        let track = tracks.entry(tid).or_insert_with(|| Track {
            name: format!("thread {tid}"),
            is_stream: tid >= STREAMS,
            events: Vec::new(),
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ns = |value: &Value| (value.as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
        match event["ph"].as_str() {
            Some("M") => track.name = text(&event["args"]["name"]),
            Some("X") => track.events.push(Event {
                name: text(&event["name"]),
                kind: text(&event["cat"]),
                start: ns(&event["ts"]),
                end: ns(&event["ts"]) + ns(&event["dur"]),
                peer: event["args"]["peer"].as_u64(),
                bytes: event["args"]["bytes"].as_u64(),
            }),
            _ => {}
        }
    }
    Ok(Rank {
        rank,
        tracks,
        dropped: dropped.sum(),
    })
}
