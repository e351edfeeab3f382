//! The latency curve as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Figures, Row};
use crate::options::Layer;
use crate::report;
use crate::table;

const SIZE: (u32, u32) = (800, 500);

/// A curve: its name, its colour, and the value of a row in nanoseconds.
type Curve = (&'static str, RGBColor, fn(&Row) -> u64);

const CURVES: [Curve; 4] = [
    ("p99", RGBColor(0xd9, 0x5f, 0x02), |row| row.latency_ns.p99),
    ("median", RGBColor(0x1b, 0x6c, 0xa8), |row| {
        row.latency_ns.median
    }),
    ("min", RGBColor(0x1b, 0x9e, 0x77), |row| row.latency_ns.min),
    ("of which kernel", RGBColor(0x99, 0x99, 0x99), |row| {
        row.kernel_ns
    }),
];

/// The curves of mp beside those of gdsync.
const BESIDE: Curve = ("mp, median", RGBColor(0x75, 0x70, 0xb3), |row| {
    row.latency_ns.median
});

/// Draws one-way latency over size, on logarithmic axes.
pub fn latency(path: &Path, figures: &Figures) -> Result<()> {
    let svg = draw(figures).map_err(|e| anyhow!("drawing {}: {e}", path.display()))?;
    report::write_text(path, &svg)
}

fn draw(figures: &Figures) -> Result<String, Box<dyn std::error::Error + '_>> {
    let of = |layer: Layer| -> Vec<&Row> {
        let mut rows: Vec<&Row> = figures.sizes.iter().filter(|r| r.layer == layer).collect();
        rows.sort_by_key(|row| row.size);
        rows
    };
    let (mut rows, mut others) = (of(Layer::Gdsync), of(Layer::Mp));
    if rows.is_empty() {
        std::mem::swap(&mut rows, &mut others);
    }
    let drawn = || {
        let below = CURVES.iter().map(|curve| (curve, &rows));
        below.chain(
            [(&BESIDE, &others)]
                .into_iter()
                .filter(|(_, rows)| !rows.is_empty()),
        )
    };
    let values = || drawn().flat_map(|((_, _, f), rows)| rows.iter().map(|row| us(f(row))));
    let (low, high) = values().fold((f64::MAX, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let sizes = || rows.iter().map(|row| row.size as f64);
    let (small, large) = sizes().fold((f64::MAX, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let names = &figures.header.names;
    let title = format!(
        "one-way latency, {}, {}, {}",
        names.gpu, names.provider, names.lowering
    );
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(
                (small / 1.5..large * 1.5).log_scale(),
                (low / 1.5..high * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("size of a message")
            .y_desc("microseconds")
            .x_label_formatter(&|v| table::bytes(v.round() as u64))
            .y_label_formatter(&|v| format!("{v}"))
            .draw()?;
        for ((name, color, f), rows) in drawn() {
            let points = rows.iter().map(|row| (row.size as f64, us(f(row))));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// Microseconds; never zero, which a logarithmic axis cannot show.
fn us(ns: u64) -> f64 {
    ns.max(1) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::Header;
    use super::*;
    use crate::endpoint::Names;
    use crate::options::Ranks;
    use crate::stats::Samples;

    #[test]
    fn every_curve_is_drawn_even_with_one_point() {
        for sizes in [vec![8], vec![8, 4096, 1 << 20]] {
            let rows = sizes.iter().map(|&size| {
                let mut samples = Samples::default();
                samples.record(5000 + size);
                Row {
                    layer: Layer::Gdsync,
                    size,
                    iterations: 1,
                    latency_ns: samples.summary(),
                    kernel_ns: 0,
                    bandwidth: 1.0,
                    enqueue_ns: 1.0,
                }
            });
            let figures = Figures {
                header: Header {
                    names: Names {
                        gpu: "soft gpu0".to_owned(),
                        runtime: "soft".to_owned(),
                        driver: None,
                        memory: "device".to_owned(),
                        provider: "emulated nic0, ring".to_owned(),
                        lowering: "memops".to_owned(),
                    },
                    ranks: Ranks::Processes,
                },
                sizes: rows.collect(),
                proof: Vec::new(),
                ratios: Vec::new(),
            };
            let svg = draw(&figures).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for text in ["soft gpu0", "median", "p99", "size of a message"] {
                assert!(svg.contains(text), "{text}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
