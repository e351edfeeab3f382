//! Texts with placeholders.

use syn::Expr;

use crate::syntax::segments;

/// Whether a method returns the same text.
pub fn is_view(method: &str) -> bool {
    ["as_ref", "as_str", "clone", "into", "to_owned", "to_string"].contains(&method)
}

/// A text with its placeholders replaced.
pub fn fill(text: &str, mut replace: impl FnMut(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        out += before;
        let doubled = from[1..].starts_with(&from[..1]);
        let end = match from.find('}') {
            Some(end) if !doubled => end,
            _ => {
                out += &from[..1];
                rest = &from[2..];
                continue;
            }
        };
        out += &replace(&from[1..end]).unwrap_or_else(|| "{}".to_owned());
        rest = &from[end + 1..];
    }
    out + rest
}

/// Whether a text is one placeholder.
pub fn is_hole(text: &str) -> bool {
    let inner = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.contains('{'))
}

/// A placeholder for an expression whose text is not known, with the names in it.
pub fn hole(e: &Expr) -> String {
    fn shown(e: &Expr) -> Option<String> {
        let behind = |base: &Expr, name: String| match shown(base).as_deref() {
            None | Some("self") => Some(name),
            Some(base) => Some(format!("{base}.{name}")),
        };
        match e {
            Expr::Path(it) => segments(&it.path).pop(),
            Expr::Reference(it) => shown(&it.expr),
            Expr::Paren(it) => shown(&it.expr),
            Expr::Index(it) => shown(&it.expr),
            Expr::Call(it) => shown(&it.func),
            Expr::Field(it) => match &it.member {
                syn::Member::Named(name) => behind(&it.base, name.to_string()),
                syn::Member::Unnamed(_) => shown(&it.base),
            },
            Expr::MethodCall(it) => match it.method.to_string() {
                method if method == "join" || is_view(&method) => shown(&it.receiver),
                method => behind(&it.receiver, method),
            },
            _ => None,
        }
    }
    format!("{{{}}}", shown(e).unwrap_or_default())
}
