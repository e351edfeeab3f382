//! Finds the texts that an expression may have.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::{Block, Expr, ExprLit, Lit, Stmt, Visibility};

use crate::read::{Call, Source, Value, arguments, key};

/// The most calls between an error and the text of its argument.
const CALLS: usize = 3;

/// The branch that each `match` and `if` takes, and the call that reaches each function.
pub type Choices = BTreeMap<String, usize>;

/// The texts of an expression, and the choices that lead to each; `None` for a text that is not
/// found.
pub type Texts = Vec<(Choices, Option<String>)>;

/// Where an expression is.
#[derive(Clone)]
struct At {
    file: &'static str,
    choices: Choices,
    /// The position in the tuple that the expression is.
    part: Option<usize>,
    /// The calls that may still be followed.
    calls: usize,
    /// The expression is a variable in a text.
    is_piece: bool,
}

impl At {
    fn choose(&self, of: impl ToString, choice: usize) -> At {
        let mut at = self.clone();
        at.choices.entry(of.to_string()).or_insert(choice);
        at
    }

    fn part(&self, part: Option<usize>) -> At {
        let at = self.clone();
        At { part, ..at }
    }

    fn called(&self, file: &'static str) -> At {
        let (at, calls) = (self.clone(), self.calls - 1);
        At { file, calls, ..at }
    }

    fn text(&self, text: Option<String>) -> Texts {
        vec![(self.choices.clone(), text)]
    }
}

impl Source {
    /// The texts of an argument; the kind `Kind::Busy` has the text `Busy`.
    pub fn argument(&self, call: &Call, i: usize) -> Texts {
        let (file, choices, part) = (call.place.0, Choices::new(), None);
        let (calls, is_piece) = (CALLS, false);
        let at = At {
            file,
            choices,
            part,
            calls,
            is_piece,
        };
        self.texts(call.args[i], &at)
    }

    fn texts(&self, e: &'static Expr, at: &At) -> Texts {
        match e {
            Expr::Paren(it) => self.texts(&it.expr, at),
            Expr::Reference(it) => self.texts(&it.expr, at),
            Expr::Closure(it) => self.texts(&it.body, at),
            Expr::Block(it) => self.end(&it.block, at),
            Expr::If(it) => {
                let mut all = self.end(&it.then_branch, &at.choose(format!("{it:p}"), 0));
                if let Some((_, e)) = &it.else_branch {
                    all.extend(self.texts(e, &at.choose(format!("{it:p}"), 1)));
                }
                all
            }
            Expr::Match(it) => {
                let arm = |i: usize| self.texts(&it.arms[i].body, &at.choose(format!("{it:p}"), i));
                (0..it.arms.len()).flat_map(arm).collect()
            }
            Expr::Tuple(it) => match at.part.and_then(|part| it.elems.get(part)) {
                Some(e) => self.texts(e, &at.part(None)),
                None => at.text(None),
            },
            Expr::Macro(it) if it.mac.path.is_ident("format") => self.template(it, at),
            Expr::Macro(it) if it.mac.path.is_ident("unreachable") => Texts::new(),
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => Texts::new(),
            Expr::Path(_) => match names(e) {
                (of, kind) if of == "Kind" => at.text(Some(kind)),
                (_, name) if name == "e" => at.text(Some("{e}".to_owned())),
                (_, name) => self.named(&name, e, at),
            },
            Expr::Call(it) => match names(&it.func) {
                (of, kind) if of == "Kind" => at.text(Some(kind)),
                (_, name) if ["Some", "Ok", "Err", "from"].contains(&&*name) => {
                    self.texts(&it.args[0], at)
                }
                (_, name) => self.results(&key(name, it.args.len()), at),
            },
            Expr::MethodCall(it) => match it.method.to_string().as_str() {
                method if is_view(method) => self.texts(&it.receiver, at),
                // Of another error.
                "reason" => at.text(Some("{e}".to_owned())),
                "then" => self.texts(&it.args[0], at),
                method => self.results(&key(method, it.args.len()), at),
            },
            _ => at.text(literal(e)),
        }
    }

    /// The texts of the end of a block.
    fn end(&self, block: &'static Block, at: &At) -> Texts {
        match block.stmts.last() {
            Some(Stmt::Expr(e, None)) => self.texts(e, at),
            _ => Texts::new(),
        }
    }

    /// The texts of the variable or constant of this name that an expression sees.
    fn named(&self, name: &str, e: &impl Spanned, at: &At) -> Texts {
        match self.variable(name, (at.file, e.span().start())) {
            Some(Value::Init(e, part)) => self.texts(e, &at.part(part.or(at.part))),
            Some(Value::Param(function, i)) if at.calls > 0 => {
                let all = self.calls.get(function).into_iter().flatten();
                let all = all.filter(|call| self.means(function, call.place.0, at.file));
                let texts = Texts::from_iter(all.flat_map(|call| {
                    let at = at.choose(function, std::ptr::from_ref(call) as usize);
                    self.texts(call.args[*i], &at.called(call.place.0))
                }));
                match texts.is_empty() {
                    true => at.text(None),
                    false => texts,
                }
            }
            Some(_) => at.text(None),
            None => self.constant(name, at),
        }
    }

    /// The texts of the constant of this name: that of the file, else of the folder, else of any
    /// file, first one that is visible there.
    fn constant(&self, name: &str, at: &At) -> Texts {
        let folder = |file: &str| file[..=file.rfind('/').unwrap_or(0)].to_owned();
        let near = |of: &str| (of == at.file, at.file.starts_with(&folder(of)));
        let is_visible = |of: &str, visibility: &Visibility| match visibility {
            Visibility::Inherited => false,
            Visibility::Restricted(within) if within.path.is_ident("super") => near(of).1,
            _ => true,
        };
        let all = self.consts.get(name).into_iter().flatten();
        match all.max_by_key(|(of, visibility, _)| (near(of), is_visible(of, visibility))) {
            Some(&(file, _, e)) => self.texts(e, &At { file, ..at.clone() }),
            None => at.text(None),
        }
    }

    /// Whether a call in one file may mean the function in another: not if its file has another.
    fn means(&self, function: &str, call: &str, of: &str) -> bool {
        let mut all = self.functions.get(function).into_iter().flatten();
        call == of || all.all(|(file, _)| *file != call)
    }

    /// The texts that a function returns, if only one has this key.
    fn results(&self, function: &str, at: &At) -> Texts {
        let all = self.functions.get(function).into_iter().flatten();
        let all: Vec<_> = all
            .filter(|(of, _)| self.means(function, at.file, of))
            .collect();
        match all[..] {
            [(file, block)] if at.calls > 0 && !at.is_piece => self.end(block, &at.called(file)),
            _ => at.text(None),
        }
    }

    /// The texts of `format!`. The first variable whose texts all have several words is replaced
    /// with them.
    fn template(&self, of: &syn::ExprMacro, at: &At) -> Texts {
        let args = arguments(&of.mac).unwrap_or_default();
        let template = args.first().and_then(literal).unwrap_or_default();
        let (mut args, mut shown) = (args.iter().skip(1), Vec::new());
        let (mut replaced, mut known) = (None, at.text(None));
        for mut piece in pieces(&template) {
            if let Some(name) = placeholder(&piece) {
                let mut inner = at.part(None);
                inner.is_piece = true;
                let e = if name.is_empty() { args.next() } else { None };
                let texts =
                    e.map_or_else(|| self.named(name, of, &inner), |e| self.texts(e, &inner));
                let mut found = texts
                    .iter()
                    .filter_map(|(_, text)| text.as_ref())
                    .peekable();
                let is_known = found.peek().is_some() && found.all(|text| text.contains(' '));
                if is_known && replaced.is_none() && !at.is_piece {
                    (replaced, known) = (Some(shown.len()), texts);
                }
                piece = e.map_or(piece, name_of);
            }
            shown.push(piece);
        }
        let with = |(choices, text): (Choices, Option<String>)| {
            let mut shown = shown.clone();
            if let (Some(i), Some(text)) = (replaced, text) {
                shown[i] = text;
            }
            (choices, Some(shown.concat()))
        };
        known.into_iter().map(with).collect()
    }
}

/// The text of a literal.
fn literal(e: &Expr) -> Option<String> {
    match e {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// The last two names of a path, each of which may be empty.
fn names(e: &Expr) -> (String, String) {
    let Expr::Path(it) = e else {
        return Default::default();
    };
    let mut names = it.path.segments.iter().rev().map(|s| s.ident.to_string());
    let last = names.next().unwrap_or_default();
    (names.next().unwrap_or_default(), last)
}

/// Whether a method returns the same text.
fn is_view(method: &str) -> bool {
    ["as_ref", "as_str", "clone", "into", "to_owned", "to_string"].contains(&method)
}

/// A placeholder for an expression: what is in front of the first bracket.
fn name_of(e: &Expr) -> String {
    let text = e.span().source_text().unwrap_or_default();
    let text = text.trim_start_matches('&').trim_start_matches("self.");
    let end = text.find(|c: char| !c.is_alphanumeric() && !"_.:".contains(c));
    format!("{{{}}}", &text[..end.unwrap_or(text.len())])
}

/// The name in a placeholder; `None` for a text.
fn placeholder(piece: &str) -> Option<&str> {
    piece.strip_prefix('{')?.strip_suffix('}')
}

/// The texts and the placeholders of a template; the placeholders have no format.
pub fn pieces(template: &str) -> Vec<String> {
    let template = template.replace("{{", "\u{1}");
    let text = |text: &str| text.replace("}}", "}").replace('\u{1}', "{");
    let mut parts = template.split('{');
    let mut pieces: Vec<String> = parts.next().map(text).into_iter().collect();
    for (inner, rest) in parts.filter_map(|part| part.split_once('}')) {
        let name = inner.split(':').next().unwrap_or_default();
        pieces.extend([format!("{{{name}}}"), text(rest)]);
    }
    pieces
}
