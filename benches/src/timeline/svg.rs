//! A timeline as an SVG: a row for each thread and stream, a box for each call, kernel and message
//! operation.

use std::fmt::Write;

use super::read::{Event, Timeline, Track};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 110.0;
const TOP: f64 = 48.0;
const ROW: f64 = 24.0;
const BOX: f64 = 18.0;
/// Room between ranks.
const GAP: f64 = 14.0;
/// Width of a letter, for labels that must fit their box.
const LETTER: f64 = 5.6;

/// Kinds with their colours, in the order of the legend.
const COLOURS: [(&str, &str); 10] = [
    ("kernel", "#66a61e"),
    ("send", "#6baed6"),
    ("recv", "#bcb6e0"),
    ("put", "#1b9e77"),
    ("get", "#17becf"),
    ("signal", "#e7298a"),
    ("wait", "#f2b36b"),
    ("copy", "#a6761d"),
    ("event", "#e3e3e3"),
    ("call", "#bbbbbb"),
];

fn colour(kind: &str) -> &'static str {
    let known = COLOURS.iter().find(|(name, _)| *name == kind);
    known.map_or("#bbbbbb", |(_, colour)| colour)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The text of a box: its name, and its peer if there is room.
fn label(event: &Event, room: f64) -> Option<String> {
    let fits = |text: &String| text.len() as f64 * LETTER + 4.0 <= room;
    let peer = event.peer.map(|peer| format!("{} {peer}", event.name));
    peer.filter(fits)
        .or_else(|| Some(event.name.clone()).filter(fits))
}

/// A round distance of marks on the axis, in nanoseconds.
fn distance(len: u64) -> u64 {
    let least = (len / 12).max(1);
    let decade = 10_u64.pow(least.ilog10());
    let steps = [1, 2, 5, 10].map(|n| n * decade);
    steps.into_iter().find(|d| *d >= least).unwrap_or(least)
}

/// The span of time that is drawn, and its scale.
struct Axis {
    start: u64,
    len: u64,
}

impl Axis {
    fn x(&self, at: u64) -> f64 {
        let scale = (WIDTH - LEFT - 10.0) / self.len as f64;
        let at = at.clamp(self.start, self.start + self.len);
        LEFT + at.saturating_sub(self.start) as f64 * scale
    }

    fn contains(&self, event: &Event) -> bool {
        event.end > self.start && event.start < self.start + self.len
    }

    /// Marks with their times, down to `bottom`.
    fn marks(&self, bottom: f64) -> String {
        let mut out = String::new();
        for mark in (0..=self.len).step_by(distance(self.len) as usize) {
            let at = self.x(self.start + mark);
            let text = mark as f64 / 1000.0;
            let _ = writeln!(
                out,
                r##"<line x1="{at:.1}" x2="{at:.1}" y1="40" y2="{bottom:.1}" stroke="#eee"/><text x="{at:.1}" y="36" text-anchor="middle">{text} us</text>"##
            );
        }
        out
    }
}

/// A row: its name, its line, and the boxes of a track; `None` if there are none.
fn row(name: &str, track: &Track, axis: &Axis, y: f64) -> Option<String> {
    let mut events: Vec<&Event> = track.events.iter().filter(|s| axis.contains(s)).collect();
    if events.is_empty() {
        return None;
    }
    // Outer calls first: the inner ones are drawn over them.
    events.sort_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
    let mut out = String::new();
    let _ = writeln!(
        out,
        r##"<text x="6" y="{:.1}">{}</text><line x1="{LEFT}" x2="{:.1}" y1="{:.1}" y2="{:.1}" stroke="#ddd"/>"##,
        y + 13.0,
        escaped(name),
        WIDTH - 10.0,
        y + BOX,
        y + BOX
    );
    for s in events {
        // A short operation is a line.
        let width = (axis.x(s.end) - axis.x(s.start)).max(0.8);
        let us = |ns: u64| ns as f64 / 1000.0;
        let (at, long) = (us(s.start.saturating_sub(axis.start)), us(s.end - s.start));
        let bytes = s.bytes.map(|bytes| format!(", {bytes} bytes"));
        let peer = s.peer.map(|peer| format!(", rank {peer}"));
        let _ = writeln!(
            out,
            r##"<rect x="{:.1}" y="{y:.1}" width="{width:.1}" height="{BOX}" fill="{}"><title>{}{}{}: at {at:.1} us for {long:.1} us</title></rect>"##,
            axis.x(s.start),
            colour(&s.kind),
            escaped(&s.name),
            peer.unwrap_or_default(),
            bytes.unwrap_or_default()
        );
        if let Some(label) = label(s, width) {
            let (left, down) = (axis.x(s.start) + 2.0, y + 12.5);
            let label = escaped(&label);
            let _ = writeln!(out, r##"<text x="{left:.1}" y="{down:.1}">{label}</text>"##);
        }
    }
    Some(out)
}

/// The colours of the kinds that the timeline has.
fn legend(timeline: &Timeline) -> String {
    let used = |kind: &str| {
        let mut tracks = timeline.ranks.iter().flat_map(|rank| rank.tracks.values());
        tracks.any(|track| track.events.iter().any(|s| s.kind == kind))
    };
    let (mut out, mut left) = (String::new(), LEFT);
    for (kind, colour) in COLOURS.iter().filter(|(kind, _)| used(kind)) {
        let name = if *kind == "event" {
            "wait for another stream"
        } else {
            kind
        };
        let _ = writeln!(
            out,
            r##"<rect x="{left:.1}" y="8" width="10" height="10" fill="{colour}"/><text x="{:.1}" y="17">{name}</text>"##,
            left + 14.0
        );
        left += 34.0 + name.len() as f64 * LETTER;
    }
    out
}

pub fn draw(timeline: &Timeline) -> String {
    let (start, len) = timeline.span();
    let axis = Axis { start, len };
    let (mut rows, mut y) = (String::new(), TOP);
    for rank in &timeline.ranks {
        for track in rank.tracks.values() {
            let track_name = track.name.replace("CPU thread", "CPU");
            let name = format!("rank {}, {track_name}", rank.rank);
            if let Some(row) = row(&name, track, &axis, y) {
                rows += &row;
                y += ROW;
            }
        }
        y += GAP;
    }
    let (bottom, height) = (y - GAP, y + 22.0);
    let head = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" width="{WIDTH}" height="{height:.0}" font-family="sans-serif" font-size="10">
<rect width="{WIDTH}" height="{height:.0}" fill="white"/>
"##
    );
    head + &legend(timeline) + &axis.marks(bottom) + &rows + "</svg>\n"
}
