//! Who uses whom at one level: the folders of the repository, the crates of a folder, the parts of
//! a folder of modules.

use std::collections::BTreeSet;

use crate::crates::Crate;
use crate::graph::Edges;
use crate::imports;
use crate::modules::{ModuleId, Tree};

/// Parts of one level, and what they use of each other.
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
        let folders: BTreeSet<&str> = crates.iter().map(|c| c.folder.as_str()).collect();
        let mut level = Level::new(folders.into_iter().map(str::to_owned).collect());
        for one in crates {
            for needed in crates.iter().filter(|c| one.needs.contains(&c.name)) {
                let of = |c: &Crate| level.names.iter().position(|n| *n == c.folder);
                if let (Some(from), Some(to)) = (of(one), of(needed)) {
                    level.add(from, to, &needed.name);
                }
            }
        }
        level
    }

    /// The crates.
    pub fn crates(crates: &[Crate]) -> Level {
        let mut level = Level::new(crates.iter().map(|c| c.name.clone()).collect());
        for (from, one) in crates.iter().enumerate() {
            for (to, other) in crates.iter().enumerate() {
                if one.needs.contains(&other.name) {
                    level.add(from, to, &other.name);
                }
            }
        }
        level
    }

    /// The modules directly below `folder`, each with all below it.
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

    /// What the parts of a circle use of each other, a line for each two.
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
