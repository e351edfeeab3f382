//! A timeline as an SVG: a row for each thread and stream, a box for each call, kernel and message
//! operation.

use std::fmt::Write;

use super::read::{Shown, Timeline};

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
fn label(shown: &Shown, room: f64) -> Option<String> {
    let fits = |text: &String| text.len() as f64 * LETTER + 4.0 <= room;
    let peer = shown.peer.map(|peer| format!("{} {peer}", shown.name));
    peer.filter(fits)
        .or_else(|| Some(shown.name.clone()).filter(fits))
}

/// A round distance of marks on the axis, in nanoseconds.
fn distance(len: u64) -> u64 {
    let least = (len / 12).max(1);
    let decade = 10_u64.pow(least.ilog10());
    let steps = [1, 2, 5, 10].map(|n| n * decade);
    steps.into_iter().find(|d| *d >= least).unwrap_or(least)
}

pub fn draw(timeline: &Timeline) -> String {
    let (start, len) = timeline.span();
    let scale = (WIDTH - LEFT - 10.0) / len as f64;
    let x = |at: u64| LEFT + at.clamp(start, start + len).saturating_sub(start) as f64 * scale;
    let (mut rows, mut y) = (String::new(), TOP);
    for rank in &timeline.ranks {
        for lane in rank.lanes.values() {
            let inside = |s: &&Shown| s.end > start && s.start < start + len;
            let mut shown: Vec<&Shown> = lane.shown.iter().filter(inside).collect();
            if shown.is_empty() {
                continue;
            }
            // Outer calls first: the inner ones are drawn over them.
            shown.sort_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
            let name = format!(
                "rank {}, {}",
                rank.rank,
                lane.name.replace("CPU thread", "CPU")
            );
            let _ = writeln!(
                rows,
                r##"<text x="6" y="{:.1}">{}</text><line x1="{LEFT}" x2="{:.1}" y1="{:.1}" y2="{:.1}" stroke="#ddd"/>"##,
                y + 13.0,
                escaped(&name),
                WIDTH - 10.0,
                y + BOX,
                y + BOX
            );
            for s in shown {
                // A short operation is a line.
                let width = (x(s.end) - x(s.start)).max(0.8);
                let us = |ns: u64| ns as f64 / 1000.0;
                let (at, long) = (us(s.start.saturating_sub(start)), us(s.end - s.start));
                let bytes = s
                    .bytes
                    .map_or(String::new(), |bytes| format!(", {bytes} bytes"));
                let peer = s
                    .peer
                    .map_or(String::new(), |peer| format!(", rank {peer}"));
                let _ = writeln!(
                    rows,
                    r##"<rect x="{:.1}" y="{y:.1}" width="{width:.1}" height="{BOX}" fill="{}"><title>{}{peer}{bytes}: at {at:.1} us for {long:.1} us</title></rect>"##,
                    x(s.start),
                    colour(&s.kind),
                    escaped(&s.name)
                );
                if let Some(label) = label(s, width) {
                    let (left, down) = (x(s.start) + 2.0, y + 12.5);
                    let label = escaped(&label);
                    let _ = writeln!(
                        rows,
                        r##"<text x="{left:.1}" y="{down:.1}">{label}</text>"##
                    );
                }
            }
            y += ROW;
        }
        y += GAP;
    }
    let (bottom, height) = (y - GAP, y + 22.0);
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" width="{WIDTH}" height="{height:.0}" font-family="sans-serif" font-size="10">
<rect width="{WIDTH}" height="{height:.0}" fill="white"/>
"##
    );
    let used = |kind: &str| {
        let mut lanes = timeline.ranks.iter().flat_map(|rank| rank.lanes.values());
        lanes.any(|lane| lane.shown.iter().any(|s| s.kind == kind))
    };
    let mut left = LEFT;
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
    let every = distance(len);
    for mark in (0..=len).step_by(every as usize) {
        let at = x(start + mark);
        let text = mark as f64 / 1000.0;
        let _ = writeln!(
            out,
            r##"<line x1="{at:.1}" x2="{at:.1}" y1="40" y2="{bottom:.1}" stroke="#eee"/><text x="{at:.1}" y="36" text-anchor="middle">{text} us</text>"##
        );
    }
    out + &rows + "</svg>\n"
}
