//! `errors FILE` compares a list of every error of the libraries, as their sources make them, with
//! that file; `errors --write FILE` renews it (docs/errors.md). It runs in the root of the
//! repository.

mod list;
mod read;
#[cfg(test)]
mod tests;
mod texts;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use list::List;
use read::Source;

/// The libraries, and the functions that make the texts of failed requests.
const CRATES: [(&str, &[&str]); 2] = [
    ("libgdsync", &[]),
    (
        "libmp",
        &["lacks", "timeout_text", "own_text", "status_text"],
    ),
];

const HEADER: &str = "\
# Errors

This list contains the errors of `gdsync` and `libmp`. The program `errors` (`configure-helpers/errors`) reads it from their sources. `./build.sh check doc` fails if the list is out of date, and `cargo run -p errors -- --write docs/errors.md` renews it.

A line contains the operations, the kinds and the reason of an error; `many operations` are five or more. The message is `operation: reason`. In `gdsync`, the name of an object may precede the reason, and the kind `Failed` adds the status of the request. `{name}` is a value of the program, and `{e}` is the message of another error. `{operation}`, `{kind}` and `{reason}` are values that the program `errors` does not find. `(limit UNIT)` is a limit with its unit: `(limit 30 SGEs)`. Errors of `gdsync` that `libmp` returns have the same operations and reasons.
";

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let (file, write) = match &args[..] {
        [file] if !file.starts_with('-') => (file, false),
        [flag, file] if flag == "--write" => (file, true),
        _ => bail!("usage: errors [--write] FILE"),
    };
    let (mut page, mut faults) = (HEADER.to_owned(), Vec::new());
    for (name, functions) in CRATES {
        let mut source = Source::default();
        source.read_folder(&Path::new(name).join("src"))?;
        let list = List::of(&source, functions);
        for (title, lines) in [
            ("errors", list.lines),
            ("messages of other errors, `{e}` above", list.messages),
            ("pieces of the texts of failed requests", list.pieces),
        ] {
            let lines: String = lines.iter().map(|line| format!("- {line}\n")).collect();
            if !lines.is_empty() {
                page += &format!("\n## {name}: {title}\n\n{lines}");
            }
        }
        faults.extend(list.faults);
    }
    if write {
        fs::write(file, &page).with_context(|| file.to_owned())?;
    } else {
        let old = fs::read_to_string(file).with_context(|| file.to_owned())?;
        if old != page {
            let how = format!("cargo run -p errors -- --write {file}");
            faults.push(format!("{file} is out of date; run: {how}"));
        }
    }
    for fault in &faults {
        eprintln!("{fault}");
    }
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}
