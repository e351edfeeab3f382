//! The output of ping-pong: a progress bar, rows as they are measured, and the proof at the end.

use indicatif::{ProgressBar, ProgressStyle};

use super::proof::CpuTimes;
use super::{Figures, Header, Operation, Options, Proof, Ratio, Row};
use crate::options::{Layers, Ranks};
use crate::stats::Summary;
use crate::table::{self, Table, us};

const HEADS: [&str; 9] = [
    "size",
    "layer",
    "rounds",
    "min",
    "median",
    "p99",
    "of which kernel",
    "bandwidth",
    "enqueue",
];

/// The bar on standard error (hidden where that is no terminal) and the table below it.
pub struct Screen {
    bar: ProgressBar,
    table: Table,
}

impl Screen {
    /// A bar for this total number of rounds.
    pub fn new(rounds: u64) -> Screen {
        let bar = ProgressBar::new(rounds);
        // The template is a constant that the tests read.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Screen {
            bar,
            table: Table::new(&HEADS, 10),
        }
    }

    /// Adds finished rounds.
    pub fn progress(&self, rounds: u64) {
        self.bar.inc(rounds);
    }

    /// Prints the names of GPU, NIC and settings.
    pub fn header(&self, options: &Options, header: &Header) {
        self.bar.suspend(|| {
            println!(
                "mpbench pingpong: kernel, send and wait enqueued ahead on each rank's stream"
            );
            println!("GPU runtime   {}", header.names.gpu);
            println!("provider      {}", header.names.provider);
            println!("lowering      {}", header.names.lowering);
            println!(
                "payload       {} in {} memory, every byte verified by a kernel",
                match (options.layer, options.operation) {
                    (Layers::Mp, _) => "messages",
                    (Layers::Both, Operation::Send) => "SEND, and messages,",
                    (Layers::Gdsync, Operation::Send) => "SEND",
                    (Layers::Both, Operation::Write) => "RDMA WRITE, and messages,",
                    (Layers::Gdsync, Operation::Write) => "RDMA WRITE with immediate",
                },
                match header.names.memory.as_str() {
                    "pinned" => "pinned host",
                    other => other,
                }
            );
            println!(
                "ranks         {}",
                match header.ranks {
                    Ranks::Processes => "2, a process each",
                    Ranks::Threads => "2, threads of one process",
                    Ranks::Launched => "2, started apart",
                }
            );
            println!();
            println!(
                "one-way latency: half a round trip, the kernel that verifies and writes included"
            );
            println!("{}", self.table.line(&HEADS));
        });
    }

    /// Prints the row of a size.
    pub fn row(&self, row: &Row) {
        let line = self.table.line(&cells(row));
        self.bar.suspend(|| println!("{line}"));
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str = "{bar:40} {pos}/{len} rounds, {elapsed}";

fn cells(row: &Row) -> [String; 9] {
    let Summary {
        min, median, p99, ..
    } = row.latency_ns;
    [
        table::bytes(row.size),
        row.layer.name().to_owned(),
        row.iterations.to_string(),
        us(min),
        us(median),
        us(p99),
        us(row.kernel_ns),
        table::per_second(row.bandwidth),
        format!("{:.0} ns/op", row.enqueue_ns),
    ]
}

/// Prints the comparison of the layers.
pub fn ratios(ratios: &[Ratio]) {
    if ratios.is_empty() {
        return;
    }
    println!();
    println!("mp as a multiple of gdsync:");
    let heads = ["size", "latency", "bandwidth"];
    let table = Table::start(&heads, 10);
    for ratio in ratios {
        table.row(&[
            table::bytes(ratio.size),
            format!("{:.2}", ratio.latency),
            format!("{:.2}", ratio.bandwidth),
        ]);
    }
}

/// Prints which threads used processor time, and the operations of the stream.
pub fn proof(figures: &Figures) {
    println!();
    println!("between gate and last completion, processor time by thread:");
    for (i, outcome) in figures.proof.iter().enumerate() {
        let number = i % 2;
        let shared = figures.header.ranks == Ranks::Threads && number == 1;
        for line in times(number, &outcome.cpu, !shared) {
            println!("  {:<6}  {line}", outcome.layer.name());
        }
    }
    for outcome in figures.proof.iter().step_by(2) {
        rung(outcome);
    }
}

fn rung(outcome: &Proof) {
    let trace = &outcome.trace;
    println!();
    if trace.rung == 0 {
        let layer = outcome.layer.name();
        println!(
            "of {} sends by {layer} traced, the stream rang none: kernels copied",
            trace.sends
        );
        return;
    }
    println!(
        "of {} sends by {} traced, the stream rang {} times by {}:",
        trace.sends,
        outcome.layer.name(),
        trace.rung,
        trace.by
    );
    for line in trace.example() {
        let indent = if line.starts_with("stream ") {
            ""
        } else {
            "  "
        };
        println!("  {indent}{line}");
    }
}

fn times(number: usize, cpu: &CpuTimes, others: bool) -> Vec<String> {
    let share = |ns: u64| 100.0 * ns as f64 / cpu.gated_ns.max(1) as f64;
    let line = |name: &str, ns: u64| {
        format!(
            "rank {number}  {name:<24}  {:>10}  {:>5.1} %",
            us(ns),
            share(ns)
        )
    };
    let mut lines = vec![format!(
        "rank {number}  {:<24}  {:>10}",
        "elapsed",
        us(cpu.gated_ns)
    )];
    lines.push(line("application, enqueueing", cpu.application_ns));
    if others {
        lines.extend(cpu.others_ns.iter().map(|(name, ns)| line(name, *ns)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Samples;

    #[test]
    fn row_has_a_cell_for_every_column() {
        let mut samples = Samples::default();
        samples.record(2000);
        let row = Row {
            layer: crate::options::Layer::Mp,
            size: 4096,
            iterations: 7,
            latency_ns: samples.summary(),
            kernel_ns: 100,
            bandwidth: 1.5e9,
            enqueue_ns: 250.4,
        };
        let cells = cells(&row);
        assert_eq!(cells[..3], ["4 KiB", "mp", "7"]);
        assert_eq!(cells[6..], ["0.10 us", "1.50 GB/s", "250 ns/op"]);
        let table = Table::new(&HEADS, 10);
        assert_eq!(table.line(&cells).len(), table.line(&HEADS).len());
    }

    #[test]
    fn template_of_the_bar_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }

    #[test]
    fn shares_are_relative_to_the_time_behind_the_gate() {
        let cpu = CpuTimes {
            gated_ns: 1_000_000,
            application_ns: 5_000,
            others_ns: [("gds-device".to_owned(), 900_000)].into(),
        };
        let lines = times(0, &cpu, true);
        assert!(lines[1].ends_with("5.00 us    0.5 %"), "{lines:?}");
        assert!(
            lines[2].contains("gds-device") && lines[2].ends_with("90.0 %"),
            "{lines:?}"
        );
        assert_eq!(times(1, &cpu, false).len(), 2);
    }
}
