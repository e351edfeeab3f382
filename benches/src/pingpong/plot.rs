//! The latency curve as SVG.

use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::style::RGBColor;

use super::{Figures, Row};
use crate::options::Layer;
use crate::plot;
use crate::report;

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
    let svg = draw(figures).with_context(|| format!("drawing {}", path.display()))?;
    report::write_text(path, &svg)
}

fn draw(figures: &Figures) -> Result<String> {
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
    let names = &figures.header.names;
    let title = format!(
        "one-way latency, {}, {}, {}",
        names.gpu, names.provider, names.lowering
    );
    let curve = |((name, color, f), rows): (&Curve, &Vec<&Row>)| plot::Curve {
        name: (*name).to_owned(),
        color: *color,
        points: rows.iter().map(|row| (row.size, us(f(row)))).collect(),
    };
    plot::latency(&title, &drawn().map(curve).collect::<Vec<_>>())
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
