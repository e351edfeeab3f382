//! What cargo resolved: the part of its metadata document that the rules look at.

use std::collections::HashSet;

use serde::Deserialize;

/// The packages that cargo resolved, on all platforms.
#[derive(Debug)]
pub struct Graph {
    pub(crate) packages: Vec<Package>,
}

/// A metadata document could not be used.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The text is not a metadata document of format version 1.
    #[error("not a document of `cargo metadata --format-version 1`")]
    Json(#[from] serde_json::Error),
    /// The document does not say what was resolved, so a pass would mean nothing.
    #[error("the metadata document has no resolved graph (was it made with --no-deps?)")]
    Unresolved,
    /// The graph names a package that the document does not describe.
    #[error("the resolved graph names {0}, which the metadata document does not describe")]
    Unknown(String),
}

#[derive(Debug)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    /// `None`: a path on this machine.
    pub source: Option<String>,
    pub member: bool,
}

#[derive(Deserialize)]
struct Document {
    packages: Vec<Described>,
    workspace_members: HashSet<String>,
    resolve: Option<Resolve>,
}

#[derive(Deserialize)]
struct Described {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
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
    /// The text is no such document, or it does not describe everything it resolved.
    pub fn parse(json: &str) -> Result<Graph, GraphError> {
        let document: Document = serde_json::from_str(json)?;
        let resolve = document.resolve.ok_or(GraphError::Unresolved)?;
        let mut wanted: HashSet<String> = resolve.nodes.into_iter().map(|n| n.id).collect();
        let mut packages = Vec::with_capacity(wanted.len());
        for p in document.packages {
            if wanted.remove(&p.id) {
                packages.push(Package {
                    member: document.workspace_members.contains(&p.id),
                    name: p.name,
                    version: p.version,
                    license: p.license,
                    source: p.source,
                });
            }
        }
        match wanted.into_iter().min() {
            Some(id) => Err(GraphError::Unknown(id)),
            None => Ok(Graph { packages }),
        }
    }

    /// How many packages were resolved, members of the workspace included.
    pub fn len(&self) -> usize {
        self.packages.len()
    }

    /// Whether nothing was resolved.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }
}
