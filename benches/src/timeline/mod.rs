//! `mpbench timeline`: the timelines that `MP_TRACE` wrote, of one or several ranks, as text and as
//! an SVG. `read` parses the files and selects a part, `text` and `svg` draw it. A layout depends
//! on the files and the options alone.

mod read;
mod svg;
mod text;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::report;
use read::Timeline;

/// Options of `mpbench timeline`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The files of the ranks.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Draws one step: the time between two starts of the kernel whose name contains this text, on
    /// the first rank. Of the steps of the second half of the run, the shortest, which other
    /// programs of the machine disturbed least.
    #[arg(long, value_name = "KERNEL")]
    pub step: Option<String>,
    /// Number of steps to draw.
    #[arg(long, default_value_t = 1, requires = "step")]
    pub steps: usize,
    /// Writes an SVG to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Draws the files.
pub fn run(options: &Options) -> Result<()> {
    let mut timeline = Timeline::read(&options.files)?;
    if let Some(kernel) = &options.step {
        timeline.select(kernel, options.steps)?;
    }
    ensure!(
        timeline.span().1 > 0,
        "no stream has passed any work in these files"
    );
    print!("{}", text::draw(&timeline));
    if let Some(path) = &options.svg {
        report::write_text(path, &svg::draw(&timeline))?;
        println!("timeline: {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two ranks with two streams each, two steps of 100 us; the exchange is under the kernel.
    fn sample() -> Timeline {
        let rank = |rank: u64| {
            let shown = |tid: u64, name: &str, cat: &str, ts: f64, dur: f64| {
                let args = json!({ "peer": 1 - rank, "bytes": 256 });
                json!({ "ph": "X", "pid": rank, "tid": tid, "name": name, "cat": cat,
                        "ts": ts + rank as f64, "dur": dur, "args": args })
            };
            let mut events = Vec::new();
            for (start, long) in [(0.0, 80.0), (100.0, 80.0), (200.0, 10.0)] {
                let begin = 1e9 + start;
                events.extend([
                    shown(0, "isend_on", "send", begin - 50.0, 2.0),
                    shown(1002, "interior <k>", "kernel", begin, long),
                    shown(1003, "isend_on", "send", begin + 1.0, 0.1),
                    shown(1003, "wait_on", "wait", begin + 1.1, 58.9),
                    shown(1003, "boundary", "kernel", begin + 80.0, 15.0),
                ]);
            }
            let name = |tid: u64, name: &str| {
                json!({ "ph": "M", "name": "thread_name", "pid": rank, "tid": tid,
                        "args": { "name": name } })
            };
            events.extend([
                name(1002, "stream 2"),
                name(1003, "stream 3"),
                name(0, "CPU thread 0"),
            ]);
            json!({ "traceEvents": events, "otherData": { "rank": rank, "dropped": { "stream 2": rank } } })
        };
        Timeline::parse([rank(0), rank(1)].iter()).unwrap()
    }

    #[test]
    fn step_is_the_time_between_two_starts_of_a_kernel() {
        let mut timeline = sample();
        timeline.select("interior", 1).unwrap();
        assert_eq!(timeline.span(), (1_000_000_100_000, 100_000));
        assert_eq!(
            timeline.ranks[0].overlap(timeline.span()),
            (95_000, 59_000, 59_000)
        );
        let e = sample().select("exterior", 1).unwrap_err().to_string();
        assert!(e.contains("exterior") && e.contains("boundary"), "{e}");
    }

    #[test]
    fn drawings_show_each_stream_of_each_rank() {
        let mut timeline = sample();
        timeline.select("interior", 1).unwrap();
        let text = text::draw(&timeline);
        for part in [
            "rank 0",
            "rank 1",
            "stream 2",
            "stream 3",
            "59.0 us under kernels",
            "1 older",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let row = text.lines().find(|line| line.contains("stream 2")).unwrap();
        assert!(row.contains(&"K".repeat(40)), "{text}");
        let svg = svg::draw(&timeline);
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(
            svg.contains("interior &lt;k>") && !svg.contains("NaN"),
            "{svg}"
        );
        assert_eq!(svg, svg::draw(&timeline), "the layout is deterministic");
    }

    #[test]
    fn file_that_is_no_timeline_is_named() {
        let e = Timeline::read(&["/nowhere.json".into()])
            .map(drop)
            .unwrap_err();
        assert!(format!("{e:#}").contains("/nowhere.json"), "{e:#}");
        let none = json!({ "figures": [] });
        assert!(Timeline::parse([none].iter()).is_err());
    }
}
