//! The picture of the layers, as text: crates and modules, each above the ones that it uses.

use anyhow::{Context, Result};

use crate::crates::Crate;
use crate::imports::Use;
use crate::modules::Tree;
use crate::uses::Level;

const BEGIN: &str = "<!-- layers: made by `cargo run -p layers -- --write FILE` -->\n";
const END: &str = "<!-- end of layers -->\n";
/// Crates whose modules the picture shows.
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

/// The folders of the repository, their crates, and the modules of those in `SHOWN`; at each level
/// the highest first.
pub fn draw(folders: &Level, crates: &[Crate], trees: &[Tree], uses: &[Vec<Use>]) -> String {
    let order = Level::crates(crates).highest_first();
    let mut text = String::new();
    for folder in folders.highest_first() {
        text += &format!("{}/\n", folders.name(folder));
        for &i in &order {
            let one = &crates[i];
            if one.folder == folders.name(folder) {
                text += &line("  ", &one.name, &one.description);
                if SHOWN.contains(&one.name.as_str()) {
                    text += &rooms(&trees[i], &uses[i]);
                }
            }
        }
    }
    text
}

fn rooms(tree: &Tree, uses: &[Use]) -> String {
    let rooms = tree.children(tree.root());
    let level = Level::modules(tree, uses, tree.root());
    let mut text = String::new();
    for i in level.highest_first() {
        let room = &tree.modules[rooms[i]];
        if !room.summary.is_empty() {
            text += &line("    ", &room.name, &room.summary);
        }
    }
    text
}

/// A name and its description, in 100 columns: the second column starts at 19.
fn line(indent: &str, name: &str, what: &str) -> String {
    let mut text = format!("{:<18}", format!("{indent}{name}"));
    let mut column = text.len();
    for word in what.split_whitespace() {
        if column + 1 + word.len() > 100 {
            text += &format!("\n{:18}", "");
            column = 18;
        }
        text += " ";
        text += word;
        column += 1 + word.len();
    }
    text.trim_end().to_owned() + "\n"
}
