//! The list of a crate's errors, as lines of Markdown.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;

use crate::read::{Call, Source, arguments};
use crate::texts::{Choices, pieces};

type Found = Vec<(Choices, String)>;

/// The most operations that a line names.
const OPERATIONS: usize = 4;

/// The errors of a crate.
#[derive(Default)]
pub struct List {
    pub lines: BTreeSet<String>,
    /// Messages of thiserror's enums.
    pub messages: BTreeSet<String>,
    /// Texts of which the named functions make others.
    pub pieces: BTreeSet<String>,
    /// What the list cannot show, with its place.
    pub faults: BTreeSet<String>,
}

impl List {
    /// Lists the errors of a crate, and the texts in these functions.
    pub fn of(source: &Source, functions: &[&str]) -> List {
        let mut list = List {
            messages: source
                .messages
                .iter()
                .map(|text| pieces(text).concat())
                .collect(),
            faults: source.faults.clone(),
            ..List::default()
        };
        let mut units: BTreeMap<usize, Found> = BTreeMap::new();
        for (error, limit) in &source.limits {
            let found = list.found(source, limit, 1, "unit");
            units.entry(error.unwrap_or(0)).or_default().extend(found);
        }
        let mut operations: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (address, error) in &source.errors {
            let all = list.found(source, error, 0, "operation");
            let kinds = list.found(source, error, 1, "kind");
            let units = units.remove(address).unwrap_or_default();
            for (choices, reason) in list.found(source, error, 2, "reason") {
                for (of, operation) in all.iter().filter(|(of, _)| fits(of, &choices)) {
                    let some = |found: &Found| {
                        let some = found.iter();
                        let some = some.filter(|(c, _)| fits(c, &choices) && fits(c, of));
                        let some: BTreeSet<&str> = some.map(|(_, text)| text.as_str()).collect();
                        Vec::from_iter(some).join(", ")
                    };
                    let limit = match some(&units) {
                        none if none.is_empty() => none,
                        units => format!(" (limit {units})"),
                    };
                    let line = format!("{}: {reason}{limit}", some(&kinds));
                    operations
                        .entry(line)
                        .or_default()
                        .insert(operation.clone());
                }
            }
        }
        for (line, operations) in operations {
            list.lines.insert(match operations.len() {
                ..=OPERATIONS => format!("`{}` {line}", Vec::from_iter(operations).join("`, `")),
                _ => format!("many operations {line}"),
            });
        }
        for name in functions {
            let is_it = |key: &&String| key.split('/').next() == Some(name);
            match source.functions.keys().find(is_it) {
                Some(key) => Pieces(&mut list.pieces).visit_block(source.functions[key][0].1),
                None => _ = list.faults.insert(format!("there is no function {name}")),
            }
        }
        list
    }

    /// The texts of an argument, with a placeholder for those that are not found. A reason without
    /// texts and an empty text are faults.
    fn found(&mut self, source: &Source, call: &Call, i: usize, what: &str) -> Found {
        let texts = source.argument(call, i);
        let mut fault = |fault: String| {
            let place = format!("{}:{}", call.place.0, call.place.1.line);
            self.faults.insert(format!("{place}: {fault}"));
        };
        // The reason needs a text; the others may have a placeholder.
        if texts.is_empty() || what == "reason" && texts.iter().all(|(_, text)| text.is_none()) {
            fault(format!("no text is found for the {what}"));
        }
        let mut found = Found::new();
        for (choices, text) in texts {
            let text = text.unwrap_or_else(|| format!("{{{what}}}"));
            if text.trim().is_empty() {
                fault(format!("an empty {what}"));
            }
            found.push((choices, text));
        }
        found
    }
}

/// Whether two texts may be parts of one error.
fn fits(a: &Choices, b: &Choices) -> bool {
    let mut all = a.iter();
    all.all(|(of, choice)| b.get(of).is_none_or(|other| other == choice))
}

/// The texts in a function: its literals and templates that have several words.
struct Pieces<'t>(&'t mut BTreeSet<String>);

impl Visit<'_> for Pieces<'_> {
    fn visit_lit_str(&mut self, text: &syn::LitStr) {
        if text.value().trim().contains(' ') {
            self.0.insert(pieces(text.value().trim()).concat());
        }
    }

    fn visit_macro(&mut self, mac: &syn::Macro) {
        let args = arguments(mac).into_iter().flatten();
        args.for_each(|e| self.visit_expr(e));
    }
}
