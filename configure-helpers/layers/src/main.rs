//! `layers` prints the layers of the workspace it runs in: the crates, and for each crate its
//! rooms (the modules directly below `src`), each room above what it uses. It fails if rooms of a
//! crate use each other in a circle, or if folders below them do. `layers README.md` also compares
//! the picture between the two marks in that file; `layers --write README.md` renews it.

mod crates;
mod graph;
mod imports;
mod modules;
mod picture;

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crates::Crate;
use modules::Tree;

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
    let circles: Vec<String> = crates
        .iter()
        .zip(&trees)
        .flat_map(|(c, tree)| circles(c, tree))
        .collect();
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

/// The circles of a crate, as lines: among the parts of a folder, where one of those in the circle is a
/// folder itself. Files of one folder may use each other.
fn circles(of: &Crate, tree: &Tree) -> Vec<String> {
    let uses = imports::between(tree);
    let mut lines = Vec::new();
    for folder in tree.folders() {
        let children = tree.children(folder);
        let mut edges = graph::Edges::new(children.len());
        let mut because = Vec::new();
        for used in &uses {
            let part = |module| children.iter().position(|&c| tree.is_within(module, c));
            if let (Some(from), Some(to)) = (part(used.from), part(used.to))
                && from != to
            {
                edges.add(from, to);
                because.push((from, to, used));
            }
        }
        for circle in edges.circles() {
            let has_folder = circle.iter().any(|&i| tree.is_folder(children[i]));
            if !has_folder {
                continue;
            }
            lines.push(format!(
                "circle in crate {}, {}:",
                of.name,
                tree.file(folder)
            ));
            for &from in &circle {
                for &to in &circle {
                    let names: BTreeSet<&str> = because
                        .iter()
                        .filter(|b| (b.0, b.1) == (from, to))
                        .map(|b| b.2.name.as_str())
                        .collect();
                    if !names.is_empty() {
                        let names: Vec<&str> = names.into_iter().collect();
                        let [from, to] = [from, to].map(|i| &tree.modules[children[i]].name);
                        lines.push(format!("  {from} uses of {to}: {}", names.join(", ")));
                    }
                }
            }
        }
    }
    lines
}
