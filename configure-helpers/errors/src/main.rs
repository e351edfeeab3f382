//! `errors FILE` compares a list of every error of the libraries, as their sources make them, with
//! that file; `errors --write FILE` renews it (docs/errors.md). It runs in the root of the
//! repository.

mod calls;
mod choices;
mod list;
mod patterns;
mod read;
mod resolve;
mod scope;
mod source;
mod syntax;
mod template;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use list::List;
use source::Source;

/// The libraries: the name, the root module, and the functions that make the texts of failed
/// requests.
const CRATES: [(&str, &str, &[&str]); 2] = [
    ("gdsync", "libgdsync/src/lib.rs", &[]),
    (
        "libmp",
        "libmp/src/lib.rs",
        &["lacks", "timeout_text", "own_text", "status_text"],
    ),
];

const HEADER: &str = "\
# Errors

This list contains every error that `gdsync` and `libmp` make. The program `errors` (`configure-helpers/errors`) reads it from their sources. `./build.sh check doc` fails if the list is out of date, and `cargo run -p errors -- --write docs/errors.md` renews it.

A line contains the operation, the kinds and the reason of an error. The message is `operation: reason`; in `gdsync` the kind `Failed` adds the status of the request. `{name}` is a value of the program, `{}` is a value without a name, and `{e}` is the message of another error. `(limit UNIT)` is a limit with its unit: `(limit 30 SGEs)`. `{owner}` is the queue pair of the operation. Errors of `gdsync` that `libmp` returns have the same operations and reasons. The program follows calls by their names, so a few of the pairs of operation and reason do not occur.
";

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (file, write) = match args[..] {
        [file] if !file.starts_with('-') => (file, false),
        ["--write", file] => (file, true),
        _ => bail!("usage: errors [--write] FILE"),
    };
    let (mut page, mut faults) = (HEADER.to_owned(), Vec::new());
    for (name, root, functions) in CRATES {
        let list = List::of(&Source::read(Path::new(root))?, functions);
        page += &section(name, &list);
        faults.extend(list.faults);
    }
    if write {
        fs::write(file, &page).with_context(|| file.to_owned())?;
    } else {
        let old = fs::read_to_string(file).with_context(|| file.to_owned())?;
        let changes = changes(&old, &page);
        if !changes.is_empty() {
            faults.extend(changes);
            faults.push(format!(
                "{file} is out of date; run: cargo run -p errors -- --write {file}"
            ));
        }
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    Ok(match faults.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The errors of a crate, in Markdown.
fn section(name: &str, list: &List) -> String {
    let [several, few] = list.lines();
    let texts = list.texts.iter().map(|text| format!("- {text}")).collect();
    let parts = [
        (format!("{name}: errors of many operations"), several),
        (format!("{name}: errors of one or a few operations"), few),
        (
            format!("{name}: texts of failed requests, in pieces: `{{text}}` above"),
            texts,
        ),
    ];
    let mut out = String::new();
    for (title, lines) in parts.iter().filter(|(_, lines)| !lines.is_empty()) {
        out += &format!("\n## {title}\n\n");
        for line in lines {
            out += &format!("{line}\n");
        }
    }
    out
}

/// The lines that only one of two texts has, marked as in a diff.
fn changes(old: &str, new: &str) -> Vec<String> {
    let only = |mark: char, a: &str, b: &str| {
        let lines: Vec<&str> = a
            .lines()
            .filter(|line| !b.lines().any(|l| l == *line))
            .collect();
        lines
            .into_iter()
            .map(|line| format!("{mark}{line}"))
            .collect::<Vec<_>>()
    };
    let mut changes = [only('-', old, new), only('+', new, old)].concat();
    if changes.is_empty() && old != new {
        changes.push("the order of its lines differs".to_owned());
    }
    changes
}
