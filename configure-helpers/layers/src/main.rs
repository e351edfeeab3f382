//! `layers` prints the layers of the workspace in which it runs: the folders of the repository,
//! their crates, and the modules directly below `src` of the libraries, each above the ones that it
//! uses. It fails if folders use each other in a circle. `layers FILE` also compares the picture
//! between the two marks in that file (`docs/architecture.md`); `layers --write FILE` replaces it.

mod crates;
mod graph;
mod imports;
mod modules;
mod picture;
mod uses;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crates::Crate;
use imports::Use;
use modules::Tree;
use uses::Level;

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (page, write) = match args[..] {
        [] => (None, false),
        [page] if !page.starts_with('-') => (Some(page), false),
        ["--write", page] => (Some(page), true),
        _ => bail!("usage: layers [[--write] FILE]"),
    };
    let crates = crates::of_workspace()?;
    let trees = crates
        .iter()
        .map(|c| Tree::read(&c.root).with_context(|| format!("crate {}", c.name)))
        .collect::<Result<Vec<Tree>>>()?;
    let uses: Vec<Vec<Use>> = trees.iter().map(imports::between).collect();
    let repository = Level::folders(&crates);
    let mut faults = circles(&repository, &crates, &trees, &uses);
    let drawn = picture::draw(&repository, &crates, &trees, &uses);
    if let Some(page) = page {
        let text = fs::read_to_string(page).with_context(|| page.to_owned())?;
        let renewed = picture::replace(&text, &drawn)?;
        if write {
            fs::write(page, renewed).with_context(|| page.to_owned())?;
        } else if renewed != text {
            faults.push(format!(
                "the layers in {page} are out of date; run: cargo run -p layers -- --write {page}"
            ));
        }
    } else {
        print!("{drawn}");
    }
    for line in &faults {
        eprintln!("{line}");
    }
    Ok(match faults.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The circles, as lines: those of the folders of the repository, and in each crate those of the
/// parts of a folder if one part in the circle is a folder. Files of one folder may use each other.
fn circles(repository: &Level, crates: &[Crate], trees: &[Tree], uses: &[Vec<Use>]) -> Vec<String> {
    let mut lines = Vec::new();
    for circle in repository.edges.circles() {
        lines.push("circle of folders of the repository:".to_owned());
        lines.extend(repository.explain(&circle));
    }
    for ((of, tree), uses) in crates.iter().zip(trees).zip(uses) {
        for folder in tree.folders() {
            let level = Level::modules(tree, uses, folder);
            for circle in level.edges.circles() {
                if circle
                    .iter()
                    .any(|&i| tree.is_folder(tree.children(folder)[i]))
                {
                    lines.push(format!(
                        "circle in crate {}, {}:",
                        of.name,
                        tree.file(folder)
                    ));
                    lines.extend(level.explain(&circle));
                }
            }
        }
    }
    lines
}
