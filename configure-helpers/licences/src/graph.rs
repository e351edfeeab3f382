//! The resolved dependency graph: the part of cargo's metadata document that the rules need.

use std::collections::HashSet;
use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The packages that cargo resolved, on all platforms.
#[derive(Debug)]
pub struct Graph {
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    id: String,
    name: String,
    version: String,
    pub license: Option<String>,
    /// `None`: a path on this machine.
    pub source: Option<String>,
    #[serde(skip)]
    pub member: bool,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

#[derive(Deserialize)]
struct Document {
    packages: Vec<Package>,
    workspace_members: HashSet<String>,
    resolve: Option<Resolve>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

impl Graph {
    /// Reads the document that `cargo metadata --format-version 1` prints.
    ///
    /// # Errors
    /// The text is not that document, or it does not describe every package that it resolved.
    pub fn parse(json: &str) -> Result<Graph> {
        let document: Document = serde_json::from_str(json)
            .context("not a document of `cargo metadata --format-version 1`")?;
        // Without a resolved graph, a pass would mean nothing.
        let resolve = document
            .resolve
            .context("the metadata document has no resolved graph (was it made with --no-deps?)")?;
        let mut wanted: HashSet<String> = resolve.nodes.into_iter().map(|n| n.id).collect();
        let mut packages = document.packages;
        packages.retain(|p| wanted.remove(&p.id));
        for p in &mut packages {
            p.member = document.workspace_members.contains(&p.id);
        }
        if let Some(id) = wanted.into_iter().min() {
            bail!("the resolved graph names {id}, which the metadata document does not describe");
        }
        Ok(Graph { packages })
    }

    /// Number of resolved packages, including the members of the workspace.
    pub fn len(&self) -> usize {
        self.packages.len()
    }

    /// Whether no package was resolved.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }
}
