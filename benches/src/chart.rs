//! `mpbench chart`: draws the latencies that `configure-helpers/compare-peers` measured.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use plotters::style::RGBColor;
use serde_json::Value;

use crate::plot::{self, Curve};
use crate::report;

/// The members of a row that are curves, with their names and colours.
const CURVES: [(&str, &str, RGBColor); 4] = [
    ("mp", "mp", RGBColor(0x1b, 0x6c, 0xa8)),
    ("nccl", "NCCL", RGBColor(0xd9, 0x5f, 0x02)),
    ("nvshmem", "NVSHMEM", RGBColor(0x1b, 0x9e, 0x77)),
    ("open_mpi", "Open MPI", RGBColor(0x75, 0x70, 0xb3)),
];

/// Options of `mpbench chart`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The file that compare-peers wrote.
    pub file: PathBuf,
    /// The rows to draw, by the name of their figure.
    #[arg(long, default_value = "ahead")]
    pub figure: String,
    /// The SVG to write.
    #[arg(long, value_name = "FILE")]
    pub svg: PathBuf,
}

/// Draws the file.
pub fn run(options: &Options) -> Result<()> {
    let name = options.file.display();
    let text = fs::read_to_string(&options.file).with_context(|| format!("reading {name}"))?;
    let report: Value = serde_json::from_str(&text).with_context(|| format!("reading {name}"))?;
    let curves = curves(&report, &options.figure);
    let figure = &options.figure;
    ensure!(
        !curves.is_empty(),
        "{name} has no latency of the figure {figure}"
    );
    let title = format!("one-way latency, {figure}, compared with other libraries");
    report::write_text(&options.svg, &plot::latency(&title, &curves)?)?;
    println!("chart: {}", options.svg.display());
    Ok(())
}

/// The curves of a figure in microseconds; a library without a figure has none.
fn curves(report: &Value, figure: &str) -> Vec<Curve> {
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let drawn = |row: &&Value| row["figure"] == figure && row["unit"] == "us";
    let rows: Vec<&Value> = rows.iter().filter(drawn).collect();
    let curve = |(member, name, color): (&str, &str, RGBColor)| {
        let point = |row: &&Value| Some((row["bytes"].as_u64()?, row[member].as_f64()?));
        let points: Vec<(u64, f64)> = rows.iter().filter_map(point).collect();
        (!points.is_empty()).then(|| Curve {
            name: name.to_owned(),
            color,
            points,
        })
    };
    CURVES.into_iter().filter_map(curve).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_library_with_figures_has_a_curve() {
        let report = json!({ "rows": [
            { "figure": "ahead", "bytes": 8, "unit": "us", "mp": 2.0, "nccl": 8.0, "mp_over_nccl": 0.25 },
            { "figure": "ahead", "bytes": 4096, "unit": "us", "mp": 2.5, "nccl": 9.0 },
            { "figure": "latency", "bytes": 8, "unit": "us", "mp": 1.0, "open_mpi": 1.0 },
            { "figure": "bandwidth", "bytes": 8, "unit": "MB/s", "mp": 1.0, "open_mpi": 1.0 },
        ]});
        let drawn = |figure| {
            let curves = curves(&report, figure).into_iter();
            curves.map(|c| (c.name, c.points)).collect::<Vec<_>>()
        };
        assert_eq!(
            drawn("ahead"),
            [
                ("mp".to_owned(), vec![(8, 2.0), (4096, 2.5)]),
                ("NCCL".to_owned(), vec![(8, 8.0), (4096, 9.0)]),
            ]
        );
        assert_eq!(drawn("latency").len(), 2);
        assert!(drawn("bandwidth").is_empty());
        let svg = plot::latency("title", &curves(&report, "ahead")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("NCCL") && !svg.contains("Open MPI"));
    }
}
