//! A timeline as text: a row for each stream, a letter for each span of time.

use std::fmt::Write;

use super::read::{Timeline, Track};

/// Letters in a row.
const COLUMNS: u64 = 72;

/// The letter of a kind; a stream that is idle, or waits for an event, has a point.
fn letter(kind: &str) -> char {
    match kind {
        "kernel" => 'K',
        "send" => 'S',
        "recv" => 'R',
        "put" => 'P',
        "get" => 'G',
        "signal" => 'N',
        "copy" => 'C',
        "wait" => 'w',
        "event" => '.',
        _ => 'o',
    }
}

fn us(ns: u64) -> String {
    format!("{}.{} us", ns / 1000, ns / 100 % 10)
}

/// The letter of what takes most of each span of time.
fn row(track: &Track, (start, len): (u64, u64)) -> String {
    let column = |i: u64| start + len * i / COLUMNS;
    let cell = |i: u64| {
        let (from, to) = (column(i), column(i + 1));
        let inside = |a: u64, b: u64| b.min(to).saturating_sub(a.max(from));
        let shares = track
            .events
            .iter()
            .map(|s| (inside(s.start, s.end), &s.kind));
        let most = shares
            .filter(|(share, _)| *share > 0)
            .max_by_key(|(share, _)| *share);
        most.map_or('.', |(_, kind)| letter(kind))
    };
    (0..COLUMNS).map(cell).collect()
}

pub fn draw(timeline: &Timeline) -> String {
    let span = timeline.span();
    let mut out = String::new();
    let _ = writeln!(
        out,
        "timeline of {}: K kernel, S send, R receive, P put, G get, N signal, C copy, w wait for \
         a message, . idle or waits for another stream",
        us(span.1)
    );
    for rank in &timeline.ranks {
        for track in rank.tracks.values().filter(|track| track.is_stream) {
            let row = row(track, span);
            if row.contains(|c| c != '.') {
                let _ = writeln!(out, "rank {:<3} {:<10} |{row}|", rank.rank, track.name);
            }
        }
        let (compute, messages, common) = rank.overlap(span);
        let _ = write!(
            out,
            "rank {:<3} kernels {}, messages {}, of these {} under kernels",
            rank.rank,
            us(compute),
            us(messages),
            us(common)
        );
        let _ = match rank.dropped {
            0 => writeln!(out),
            n => writeln!(out, "; the file lacks {n} older events"),
        };
    }
    out
}
