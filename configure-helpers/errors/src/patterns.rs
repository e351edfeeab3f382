//! What a run knows of a value from the patterns that it matched: the names of its variants.

use syn::Pat;

use crate::syntax::segments;

/// The variants that a value may have: `Some`, or `Err/NotFound` for a variant within another.
#[derive(Clone, Default)]
pub struct Known {
    /// One of these; `None`: any.
    within: Option<Vec<String>>,
    without: Vec<String>,
}

impl Known {
    pub fn is(name: String) -> Known {
        Known {
            within: Some(vec![name]),
            without: Vec::new(),
        }
    }

    /// What is known if the part of the value in these variants, such as `Err/`, matches a pattern
    /// and none of those before it; `None` if that cannot be.
    pub fn matching(&self, inside: &str, pattern: &Pat, before: &[&Pat]) -> Option<Known> {
        let names = |pattern: &Pat| -> Option<Vec<String>> {
            let all = names(pattern)?;
            Some(all.iter().map(|name| format!("{inside}{name}")).collect())
        };
        let mut without = self.without.clone();
        without.extend(before.iter().filter_map(|p| names(p)).flatten());
        let covers = |a: &str, b: &str| {
            b.strip_prefix(a)
                .is_some_and(|b| b.is_empty() || b.starts_with('/'))
        };
        let both = |a: &String, b: &String| match (covers(a, b), covers(b, a)) {
            (true, _) => Some(b.clone()),
            (_, true) => Some(a.clone()),
            _ => None,
        };
        let within = match (&self.within, names(pattern)) {
            (Some(a), Some(b)) => Some(
                a.iter()
                    .flat_map(|a| b.iter().filter_map(move |b| both(a, b)))
                    .collect(),
            ),
            (a, b) => a.clone().or(b),
        };
        let within = within.map(|all: Vec<String>| {
            let left = all.into_iter();
            left.filter(|name| !without.iter().any(|w| covers(w, name)))
                .collect::<Vec<_>>()
        });
        (within.as_ref().is_none_or(|all| !all.is_empty())).then_some(Known { within, without })
    }
}

/// The variants that a pattern matches; `None`: any.
fn names(pattern: &Pat) -> Option<Vec<String>> {
    let last = |path: &syn::Path| segments(path).pop().map(|name| vec![name]);
    match pattern {
        Pat::Or(p) => {
            let all: Option<Vec<_>> = p.cases.iter().map(names).collect();
            all.map(|all| all.concat())
        }
        Pat::Reference(p) => names(&p.pat),
        Pat::Paren(p) => names(&p.pat),
        Pat::Struct(p) => last(&p.path),
        Pat::Path(p) => last(&p.path),
        Pat::Ident(p) => match &p.subpat {
            Some((_, p)) => names(p),
            None => {
                Some(vec![p.ident.to_string()]).filter(|n| n[0].starts_with(char::is_uppercase))
            }
        },
        Pat::TupleStruct(p) => {
            let name = segments(&p.path).pop()?;
            let inner = match p.elems.len() {
                1 => names(&p.elems[0]),
                _ => None,
            };
            Some(match inner {
                Some(all) => all.iter().map(|inner| format!("{name}/{inner}")).collect(),
                None => vec![name],
            })
        }
        _ => None,
    }
}
