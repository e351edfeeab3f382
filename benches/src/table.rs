//! Text tables and figures with units.

/// A table: every column is as wide as its head; all columns but the first are aligned to the
/// right.
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// A table with these heads, each column at least `min` wide, so that rows can be printed one
    /// by one as they are measured.
    pub fn new(heads: &[&str], min: usize) -> Table {
        Table {
            widths: heads.iter().map(|h| h.chars().count().max(min)).collect(),
        }
    }

    /// Prints the heads of a table, whose rows follow.
    pub fn start(heads: &[&str], min: usize) -> Table {
        let table = Table::new(heads, min);
        table.row(heads);
        table
    }

    /// Prints a row.
    pub fn row<S: AsRef<str>>(&self, cells: &[S]) {
        println!("{}", self.line(cells));
    }

    /// One line.
    pub fn line<S: AsRef<str>>(&self, cells: &[S]) -> String {
        let mut line = String::new();
        for (i, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            let (cell, width) = (cell.as_ref(), *width);
            if i == 0 {
                line += &format!("{cell:<width$}");
            } else {
                line += &format!("  {cell:>width$}");
            }
        }
        line.trim_end().to_owned()
    }
}

/// A number of bytes, in the largest unit that divides it: `8 B`, `4 KiB`.
pub fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Nanoseconds as microseconds, from an integer.
pub fn us(ns: u64) -> String {
    micros(ns as f64)
}

/// Nanoseconds as microseconds.
pub fn micros(ns: f64) -> String {
    match ns / 1000.0 {
        us if us < 100.0 => format!("{us:.2} us"),
        us if us < 10_000.0 => format!("{us:.1} us"),
        us => format!("{:.1} ms", us / 1000.0),
    }
}

/// Bytes a second, with decimal units like link speeds.
pub fn per_second(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB/s", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB/s", b / 1e6),
        b => format!("{:.1} kB/s", b / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let table = Table::new(&["size", "latency"], 6);
        assert_eq!(table.line(&["size", "latency"]), "size    latency");
        assert_eq!(table.line(&["8 B", "1.5 us"]), "8 B      1.5 us");
        assert_eq!(table.line(&["8 B", ""]), "8 B");
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(
            [bytes(8), bytes(1024), bytes(1 << 20), bytes(1025)],
            ["8 B", "1 KiB", "1 MiB", "1025 B"]
        );
        assert_eq!(
            [micros(1234.0), micros(123_456.0), micros(12e6)],
            ["1.23 us", "123.5 us", "12.0 ms"]
        );
        assert_eq!(
            [per_second(2.5e9), per_second(3e6), per_second(1e3)],
            ["2.50 GB/s", "3.0 MB/s", "1.0 kB/s"]
        );
    }
}
