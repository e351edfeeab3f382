//! The dependencies at one level: between the folders of the repository, the crates of a folder, or
//! the parts of a folder of modules.

use std::collections::BTreeSet;

use crate::crates::Crate;
use crate::graph::Edges;
use crate::imports;
use crate::modules::{ModuleId, Tree};

/// The parts of one level, and the uses between them.
pub struct Level {
    pub edges: Edges,
    names: Vec<String>,
    /// From, to, the name that is used.
    because: BTreeSet<(usize, usize, String)>,
}

impl Level {
    fn new(names: Vec<String>) -> Level {
        let edges = Edges::new(names.len());
        let because = BTreeSet::new();
        Level {
            edges,
            names,
            because,
        }
    }

    fn add(&mut self, from: usize, to: usize, name: &str) {
        if from != to {
            self.edges.add(from, to);
            self.because.insert((from, to, name.to_owned()));
        }
    }

    /// The folders of the repository.
    pub fn folders(crates: &[Crate]) -> Level {
        Level::of(crates, |c| &c.folder)
    }

    /// The crates.
    pub fn crates(crates: &[Crate]) -> Level {
        Level::of(crates, |c| &c.name)
    }

    /// The crates, or the parts to which they belong, by name.
    fn of(crates: &[Crate], part: impl Fn(&Crate) -> &String) -> Level {
        let parts: BTreeSet<&String> = crates.iter().map(&part).collect();
        let mut level = Level::new(parts.iter().map(|name| (*name).clone()).collect());
        let at = |c: &Crate| parts.iter().position(|name| *name == part(c));
        for one in crates {
            for needed in crates.iter().filter(|c| one.needs.contains(&c.name)) {
                if let (Some(from), Some(to)) = (at(one), at(needed)) {
                    level.add(from, to, &needed.name);
                }
            }
        }
        level
    }

    /// The modules directly below `folder`, each with all modules below it.
    pub fn modules(tree: &Tree, uses: &[imports::Use], folder: ModuleId) -> Level {
        let children = tree.children(folder);
        let mut level = Level::new(
            children
                .iter()
                .map(|&c| tree.modules[c].name.clone())
                .collect(),
        );
        let part = |module| children.iter().position(|&c| tree.is_within(module, c));
        for used in uses {
            if let (Some(from), Some(to)) = (part(used.from), part(used.to)) {
                level.add(from, to, &used.name);
            }
        }
        level
    }

    /// The parts, the highest first.
    pub fn highest_first(&self) -> Vec<usize> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        self.edges.highest_first(&names)
    }

    pub fn name(&self, part: usize) -> &str {
        &self.names[part]
    }

    /// The uses between the parts of a cycle, one line for each pair.
    pub fn explain(&self, circle: &[usize]) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut last = None;
        for (from, to, name) in &self.because {
            if !(circle.contains(from) && circle.contains(to)) {
                continue;
            }
            match lines.last_mut() {
                Some(line) if last == Some((from, to)) => *line += &format!(", {name}"),
                _ => lines.push(format!(
                    "  {} uses of {}: {name}",
                    self.name(*from),
                    self.name(*to)
                )),
            }
            last = Some((from, to));
        }
        lines
    }
}
