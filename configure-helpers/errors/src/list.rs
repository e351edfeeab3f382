//! The list of a crate's errors: each place that makes one, once for every text that it may have.

use std::collections::{BTreeMap, BTreeSet};

use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{Expr, Token};

use crate::resolve::Run;
use crate::scope::At;
use crate::source::{Source, Use};
use crate::syntax::{arguments, base, constructor, segments};
use crate::template::hole;

/// The most texts of one place.
const TEXTS: usize = 4000;

/// A text with this number of operations, or more, has one line.
const SEVERAL: usize = 4;

/// The errors of a crate.
#[derive(Default)]
pub struct List {
    /// The kinds of each text, by operation.
    errors: BTreeMap<(String, String), BTreeSet<String>>,
    /// Texts of failed requests, which errors contain, in pieces.
    pub texts: BTreeSet<String>,
    /// What the list cannot show, with its place.
    pub faults: BTreeSet<String>,
}

impl List {
    /// Lists the errors of a crate, and the texts in these functions.
    pub fn of(source: &Source, functions: &[&str]) -> List {
        let mut list = List::default();
        let hidden = source.hidden.iter();
        list.faults = hidden
            .map(|place| format!("{place}: an error in a macro"))
            .collect();
        for made in source.uses.iter().filter(|u| makes_error(source, &u.at)) {
            let place = source.place(made.at.e, made.at.owner);
            let mut run = Run::new(source);
            for count in 0.. {
                match error(&mut run, made) {
                    Ok(None) => {}
                    Ok(Some((operation, kind, text))) => {
                        list.errors
                            .entry((operation, text))
                            .or_default()
                            .insert(kind);
                    }
                    Err(fault) => _ = list.faults.insert(format!("{place}: {fault}")),
                }
                if count > TEXTS {
                    list.faults
                        .insert(format!("{place}: more than {TEXTS} texts"));
                }
                if count > TEXTS || !run.advance() {
                    break;
                }
            }
        }
        for name in functions {
            let owner = source.owners.iter().find(|o| o.name == *name);
            match owner.and_then(|o| o.results.first()) {
                Some(body) => Pieces(&mut list.texts).visit_expr(body.e),
                None => _ = list.faults.insert(format!("there is no function {name}")),
            }
        }
        list
    }

    /// The errors of several operations, and those of one or a few, as lines in the order of the
    /// operations.
    pub fn lines(&self) -> [BTreeSet<String>; 2] {
        let mut operations: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for ((operation, text), kinds) in &self.errors {
            operations.entry((text, kinds)).or_default().push(operation);
        }
        let mut lines = [BTreeSet::new(), BTreeSet::new()];
        for ((text, kinds), operations) in operations {
            let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
            let line = |operations: &[&str]| {
                format!(
                    "- `{}` {}: {text}",
                    operations.join("`, `"),
                    kinds.join(", ")
                )
            };
            if operations.len() >= SEVERAL {
                lines[0].insert(line(&operations));
            } else {
                lines[1].extend(operations.iter().map(|o| line(&[o])));
            }
        }
        lines
    }
}

/// What is added to an error after it was made.
#[derive(Default)]
struct Additions {
    owner: bool,
    unit: Option<String>,
}

/// Whether a call is `Error::new(operation, kind, reason)`.
fn makes_error(source: &Source, at: &At) -> bool {
    let Expr::Call(call) = at.e else {
        return false;
    };
    let Expr::Path(path) = &*call.func else {
        return false;
    };
    let own = || source.owners[at.owner].of.first();
    match &segments(&path.path)[..] {
        [.., of, new] if new == "new" => {
            of == "Error" || of == "Self" && own().is_some_and(|of| of == "Error")
        }
        _ => false,
    }
}

/// The operation, the kind and the text of an error in this run; `None` if the choices of the run
/// contradict each other, or if the error repeats another.
fn error(run: &mut Run<'_>, made: &Use) -> Result<Option<(String, String, String)>, String> {
    let mut additions = Additions::default();
    let [operation, kind, reason] = arguments(made.at.e)[..] else {
        return Ok(None);
    };
    if !add(run, made, &mut additions)? {
        return Ok(None);
    }
    let part = |e: &'static Expr| made.at.with(e);
    let reason = run.head(&part(reason), true);
    if is_of_error(reason.e, "reason") {
        return Ok(None);
    }
    let operation = match is_of_error(operation, "operation") {
        true => Some("{operation}".to_owned()),
        false => run.text(&part(operation), false),
    };
    let kind = run.head(&part(kind), true);
    let kind = constructor(kind.e).unwrap_or_else(|| "{kind}".to_owned());
    let of = hole(reason.e);
    let reason = run.text(&reason, true);
    if run.is_void {
        return Ok(None);
    }
    let operation = operation.ok_or("the operation is not known")?;
    let reason = reason.ok_or_else(|| format!("the reason is not known: {of}"))?;
    for (what, text) in [("operation", &operation), ("reason", &reason)] {
        if text.trim().is_empty() {
            return Err(format!("an empty {what}"));
        }
    }
    let mut text = String::new();
    if additions.owner {
        text += "{owner}: ";
    }
    text += &reason;
    match &additions.unit {
        Some(unit) if unit.trim().is_empty() => return Err("a limit without a unit".to_owned()),
        Some(unit) => text += &format!(" (limit {unit})"),
        None => {}
    }
    Ok(Some((operation, kind, text)))
}

/// Whether an expression asks another error for its part.
fn is_of_error(e: &Expr, part: &str) -> bool {
    match e {
        Expr::MethodCall(it) => it.method == part || is_of_error(&it.receiver, part),
        _ => false,
    }
}

/// Collects what the methods add that are called on an error, on the variable that holds it, and on
/// the results of the functions that return it; false if the choices of the run contradict each
/// other.
fn add(run: &mut Run<'_>, made: &Use, additions: &mut Additions) -> Result<bool, String> {
    if !run.assume(&made.at) {
        return Ok(false);
    }
    for call in &made.after {
        match call.method.to_string().as_str() {
            "with_owner" => additions.owner = true,
            "with_limit" => {
                let e = call.args.last().ok_or("with_limit without a unit")?;
                let unit = run.text(&made.at.with(e), false);
                additions.unit = Some(unit.unwrap_or_else(|| hole(e)));
            }
            _ => {}
        }
    }
    if let Some(used) = made.bound.and_then(|name| run.used(name)) {
        return add(run, used, additions);
    }
    let owner = &run.source.owners[made.at.owner];
    let returned = owner.returns.and_then(base);
    let returns_it = owner.closure.is_some() || returned.is_some_and(|name| name == "Error");
    match run.caller(made.at.owner).filter(|_| returns_it) {
        Some(caller) => add(run, caller, additions),
        None => Ok(true),
    }
}

/// The texts in a function: its literals and templates that have several words.
struct Pieces<'t>(&'t mut BTreeSet<String>);

impl Visit<'_> for Pieces<'_> {
    fn visit_lit_str(&mut self, text: &syn::LitStr) {
        let text = text.value();
        if text.trim().contains(' ') {
            self.0.insert(text.trim().to_owned());
        }
    }

    fn visit_macro(&mut self, mac: &syn::Macro) {
        let all = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        all.iter().flatten().for_each(|e| self.visit_expr(e));
    }
}
