//! The JSON of every benchmark: figures, targets, program and machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::{Machine, Program};

/// Whether lower or higher values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Lower is better: times, counts of errors.
    Lower,
    /// Higher is better: rates.
    Higher,
}

/// A figure and its target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What is measured.
    pub name: String,
    /// The figure.
    pub measured: f64,
    /// The limit: least or greatest value.
    pub target: f64,
    /// Its unit.
    pub unit: String,
    /// The direction.
    pub better: Better,
}

impl Target {
    /// At most `target`.
    pub fn at_most(name: &str, measured: f64, target: f64, unit: &str) -> Target {
        Target {
            name: name.to_owned(),
            measured,
            target,
            unit: unit.to_owned(),
            better: Better::Lower,
        }
    }

    /// At least `target`.
    pub fn at_least(name: &str, measured: f64, target: f64, unit: &str) -> Target {
        Target {
            better: Better::Higher,
            ..Target::at_most(name, measured, target, unit)
        }
    }

    /// Whether the figure meets its target.
    pub fn is_met(&self) -> bool {
        match self.better {
            Better::Lower => self.measured <= self.target,
            Better::Higher => self.measured >= self.target,
        }
    }

    /// Ratio to the target: 1 is exactly on target, 2 is twice as good.
    pub fn ratio(&self) -> f64 {
        match self.better {
            Better::Lower if self.measured <= self.target && self.target == 0.0 => 1.0,
            Better::Lower => self.target / self.measured,
            Better::Higher => self.measured / self.target,
        }
    }
}

/// The report of one benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub benchmark: String,
    /// The program.
    pub program: Program,
    /// The machine.
    pub machine: Machine,
    /// The options, including defaults.
    pub options: Value,
    /// The measured figures; durations are in nanoseconds.
    pub figures: Value,
    /// The targets.
    pub targets: Vec<Target>,
}

impl Report {
    /// A report of this program on this machine.
    pub fn new(
        benchmark: &str,
        options: Value,
        figures: Value,
        targets: Vec<Target>,
    ) -> Result<Report> {
        Ok(Report {
            benchmark: benchmark.to_owned(),
            program: Program::this()?,
            machine: Machine::here(),
            options,
            figures,
            targets,
        })
    }
}

/// Writes `value` to `path` atomically.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    write_text(path, &text)
}

/// Writes `text` to `path` atomically, and creates the folder if it is missing.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    let write = || {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        let part = path.with_extension("part");
        fs::write(&part, text)?;
        fs::rename(&part, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_above_one_is_better_than_the_target() {
        assert_eq!(Target::at_most("t", 5.0, 10.0, "us").ratio(), 2.0);
        assert_eq!(Target::at_least("r", 5.0, 10.0, "M/s").ratio(), 0.5);
        assert_eq!(Target::at_most("a", 0.0, 0.0, "").ratio(), 1.0);
        assert_eq!(Target::at_most("a", 3.0, 0.0, "").ratio(), 0.0);
        assert!(Target::at_most("t", 5.0, 5.0, "us").is_met());
        assert!(!Target::at_most("t", 5.1, 5.0, "us").is_met());
        assert!(Target::at_least("r", 5.0, 5.0, "M/s").is_met());
        assert!(!Target::at_least("r", 4.9, 5.0, "M/s").is_met());
    }

    #[test]
    fn report_has_every_field_and_survives_serialisation() {
        let figures = serde_json::json!({ "ns": 7 });
        let targets = vec![Target::at_most("t", 7.0, 15.0, "us")];
        let report = Report::new(
            "pingpong",
            serde_json::json!(["option"]),
            figures.clone(),
            targets.clone(),
        );
        let report = report.unwrap();
        let folder = std::env::temp_dir().join(format!("mpbench-report-{}", std::process::id()));
        let path = folder.join("new").join("r.json");
        write_json(&path, &report).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        for at in [
            "/benchmark",
            "/program/executable_sha256",
            "/program/commit",
            "/machine/cpu",
            "/machine/cores",
            "/machine/kernel",
            "/options/0",
            "/figures/ns",
            "/targets/0/better",
        ] {
            assert!(value.pointer(at).is_some(), "{at} in {text}");
        }
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!((back.figures, back.targets), (figures, targets));
    }
}
