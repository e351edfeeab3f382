//! A chart of latency over size, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::table;

const SIZE: (u32, u32) = (800, 500);

/// A curve of the chart.
#[derive(Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub color: RGBColor,
    /// Sizes in bytes and microseconds, both greater than 0, by size.
    pub points: Vec<(u64, f64)>,
}

/// Draws latency over size, on logarithmic axes.
pub fn latency(title: &str, curves: &[Curve]) -> Result<String> {
    draw(title, curves).map_err(|e| anyhow!("{e}"))
}

fn draw<'a>(
    title: &'a str,
    curves: &'a [Curve],
) -> Result<String, Box<dyn std::error::Error + 'a>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
        (low / 1.5..high * 1.5).log_scale()
    };
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
                range(&mut points().map(|(size, _)| *size as f64)),
                range(&mut points().map(|(_, us)| *us)),
            )?;
        chart
            .configure_mesh()
            .x_desc("size of a message")
            .y_desc("microseconds")
            .x_label_formatter(&|v| table::bytes(v.round() as u64))
            .y_label_formatter(&|v| format!("{v}"))
            .draw()?;
        for Curve {
            name,
            color,
            points,
        } in curves
        {
            let points = points.iter().map(|(size, us)| (*size as f64, *us));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
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
