//! The crates of the workspace, as cargo describes them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A crate of the workspace.
pub struct Crate {
    pub name: String,
    pub description: String,
    /// The file of its root module: of its library, or of its first program.
    pub root: PathBuf,
    /// The folder of the repository that contains it.
    pub folder: String,
    /// The crates of the workspace that its build requires; those of its tests are left out.
    pub needs: Vec<String>,
}

#[derive(Deserialize)]
struct Document {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    description: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `None`: a normal one; `build` and `dev`.
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// The crates of the workspace in the current folder, by name.
pub fn of_workspace() -> Result<Vec<Crate>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps"])
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", output.status);
    let document: Document = serde_json::from_slice(&output.stdout)?;
    let mut crates = Vec::new();
    for package in document.packages {
        let of_kind = |kinds: &[&str]| {
            let is = |t: &&Target| t.kind.iter().any(|k| kinds.contains(&k.as_str()));
            package.targets.iter().find(is)
        };
        let target = of_kind(&["lib", "cdylib"])
            .or_else(|| of_kind(&["bin"]))
            .with_context(|| format!("{} has neither a library nor a program", package.name))?;
        let needs = package.dependencies.iter();
        let inside = package
            .manifest_path
            .strip_prefix(&document.workspace_root)?;
        let folder = inside
            .components()
            .next()
            .context("a crate without a folder")?;
        crates.push(Crate {
            folder: folder.as_os_str().to_string_lossy().into_owned(),
            root: target.src_path.clone(),
            description: package.description.unwrap_or_default(),
            needs: needs
                .filter(|d| d.kind.as_deref() != Some("dev") && d.path.is_some())
                .map(|d| d.name.clone())
                .collect(),
            name: package.name,
        });
    }
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}
