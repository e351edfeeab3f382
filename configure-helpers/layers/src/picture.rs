//! The picture of the layers, as text: crates and rooms, each above what it uses.

use anyhow::{Context, Result};

use crate::crates::Crate;
use crate::graph::Edges;
use crate::imports;
use crate::modules::Tree;

const BEGIN: &str = "<!-- layers: made by `cargo run -p layers -- --write FILE` -->\n";
const END: &str = "<!-- end of layers -->\n";
/// Crates whose rooms the picture shows.
const SHOWN: [&str; 2] = ["libmp", "gdsync"];

/// The text between the two marks of `page` replaced by the picture.
pub fn replace(page: &str, drawn: &str) -> Result<String> {
    let no_marks = || format!("no lines {BEGIN}and {END}");
    let start = page.find(BEGIN).with_context(no_marks)? + BEGIN.len();
    let end = start + page[start..].find(END).with_context(no_marks)?;
    Ok(format!(
        "{}```text\n{drawn}```\n{}",
        &page[..start],
        &page[end..]
    ))
}

/// One line a crate, the highest first; below those in `SHOWN` one line a room.
pub fn draw(crates: &[Crate], trees: &[Tree]) -> String {
    let mut edges = Edges::new(crates.len());
    for (from, one) in crates.iter().enumerate() {
        for need in &one.needs {
            if let Some(to) = crates.iter().position(|c| c.name == *need) {
                edges.add(from, to);
            }
        }
    }
    let mut text = String::new();
    for i in highest_first(&edges, |i| crates[i].name.clone()) {
        text += &line("", &crates[i].name, &crates[i].description);
        if SHOWN.contains(&crates[i].name.as_str()) {
            text += &rooms(&trees[i]);
        }
    }
    text
}

fn rooms(tree: &Tree) -> String {
    let rooms = tree.children(tree.root());
    let mut edges = Edges::new(rooms.len());
    for used in imports::between(tree) {
        let room = |module| rooms.iter().position(|&r| tree.is_within(module, r));
        if let (Some(from), Some(to)) = (room(used.from), room(used.to))
            && from != to
        {
            edges.add(from, to);
        }
    }
    let mut text = String::new();
    for i in highest_first(&edges, |i| tree.modules[rooms[i]].name.clone()) {
        let room = &tree.modules[rooms[i]];
        if !room.summary.is_empty() {
            text += &line("  ", &room.name, &room.summary);
        }
    }
    text
}

fn highest_first(edges: &Edges, name: impl Fn(usize) -> String) -> Vec<usize> {
    let heights = edges.heights();
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by_key(|&i| (usize::MAX - heights[i], name(i)));
    order
}

/// A name and what it is, in 100 columns: the second column starts at 18.
fn line(indent: &str, name: &str, what: &str) -> String {
    let mut text = format!("{:<17}", format!("{indent}{name}"));
    let mut column = text.len();
    for word in what.split_whitespace() {
        if column + 1 + word.len() > 100 {
            text += &format!("\n{:17}", "");
            column = 17;
        }
        text += " ";
        text += word;
        column += 1 + word.len();
    }
    text.trim_end().to_owned() + "\n"
}
