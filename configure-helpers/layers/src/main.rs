//! `layers` prints the layers of the workspace it runs in: the folders of the repository, their
//! crates, and the rooms of the libraries (the modules directly below `src`), each above what it
//! uses. It fails if folders use each other in a circle. `layers README.md` also compares
//! the picture between the two marks in that file; `layers --write README.md` renews it.

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
    let circles = circles(&crates, &trees);
    let drawn = picture::draw(&crates, &trees);
    match page {
        None => print!("{drawn}"),
        Some(page) if write => {
            let text = fs::read_to_string(page).with_context(|| page.to_owned())?;
            fs::write(page, picture::replace(&text, &drawn)?).with_context(|| page.to_owned())?;
        }
        Some(page) => {
            let text = fs::read_to_string(page).with_context(|| page.to_owned())?;
            if picture::replace(&text, &drawn)? != text {
                bail!(
                    "the layers in {page} are out of date; run: cargo run -p layers -- --write {page}"
                );
            }
        }
    }
    for line in &circles {
        eprintln!("{line}");
    }
    Ok(match circles.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The circles, as lines: of the folders of the repository, and in each crate of the parts of a folder
/// where one of those in the circle is a folder itself. Files of one folder may use each other.
fn circles(crates: &[Crate], trees: &[Tree]) -> Vec<String> {
    let mut lines = Vec::new();
    let repository = Level::folders(crates);
    for circle in repository.edges.circles() {
        lines.push("circle of folders of the repository:".to_owned());
        lines.extend(repository.explain(&circle));
    }
    for (of, tree) in crates.iter().zip(trees) {
        let uses = imports::between(tree);
        for folder in tree.folders() {
            let level = Level::modules(tree, &uses, folder);
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
