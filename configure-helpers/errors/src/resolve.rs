//! Follows an expression to the texts that it may have: through variables, branches, parameters
//! and the functions that return texts.

use std::collections::HashMap;

use syn::punctuated::Punctuated;
use syn::{Expr, Ident, Lit, Pat, Token};

use crate::choices::Choices;
use crate::patterns::Known;
use crate::scope::{self, At, Node, Step, Value, end_of, variable};
use crate::source::{Source, Use};
use crate::syntax::{address, arguments, base, constructor, diverges, keep, name_of, segments};
use crate::template::{fill, hole, is_hole, is_view};

/// The most steps of one run: more are a circle.
const STEPS: usize = 1000;

/// Types whose values are followed to the callers.
const FOLLOWED: [&str; 6] = ["str", "String", "Into", "Display", "Kind", "Option"];

/// One run through a source, with the choices of this run.
pub struct Run<'s> {
    pub source: &'s Source,
    pub choices: Choices,
    /// The calls that were followed in this run, by the function that they call.
    followed: HashMap<usize, At>,
    steps: usize,
    /// The branches that this run takes.
    taken: HashMap<usize, At>,
    /// What is known of variables.
    known: HashMap<usize, Known>,
    /// A choice of this run gives a part that another choice does not have.
    pub is_void: bool,
}

impl<'s> Run<'s> {
    pub fn new(source: &'s Source) -> Run<'s> {
        Run {
            source,
            choices: Choices::default(),
            followed: HashMap::new(),
            steps: 0,
            taken: HashMap::new(),
            known: HashMap::new(),
            is_void: false,
        }
    }

    /// Begins the next run; false after the last one.
    pub fn advance(&mut self) -> bool {
        (self.steps, self.is_void) = (0, false);
        self.followed.clear();
        self.taken.clear();
        self.known.clear();
        self.choices.advance()
    }

    /// The call of `owner` in this run.
    pub fn caller(&mut self, owner: usize) -> Option<&'s Use> {
        self.one_of(owner, self.source.callers.get(&owner)?)
    }

    /// The use in this run of the variable whose name this is.
    pub fn used(&mut self, name: &Ident) -> Option<&'s Use> {
        self.one_of(address(name), self.source.used.get(&address(name))?)
    }

    fn one_of(&mut self, of: usize, all: &[usize]) -> Option<&'s Use> {
        self.steps += 1;
        let chosen = self.choices.choose(of, all.len());
        let found = all.get(chosen).map(|&i| &self.source.uses[i]);
        found.filter(|_| self.steps < STEPS)
    }

    /// The text of an expression, with `{name}` for what is not known; `None` if nothing of it is
    /// known. `calls`: also follows the functions of the crate that return a text.
    pub fn text(&mut self, at: &At, calls: bool) -> Option<String> {
        let at = self.head(at, calls);
        match at.e {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            Expr::Macro(it) if it.mac.path.is_ident("format") => self.template(&it.mac, &at),
            Expr::MethodCall(it) if it.args.is_empty() && is_view(&it.method.to_string()) => {
                let e = &*it.receiver;
                // What has no text here was made into one before, or is another crate's error.
                let text = self.text(&at.with(e), calls);
                text.or_else(|| (it.method != "into").then(|| hole(e)))
            }
            Expr::MethodCall(it) if it.method == "join" => Some(hole(&it.receiver)),
            Expr::Path(_) => self.message(&at),
            _ => None,
        }
    }

    /// The text of a variable that holds an error: of those that thiserror makes for an enum of
    /// this crate, or `{name}` for a closure's parameter, which has its value from elsewhere.
    fn message(&mut self, at: &At) -> Option<String> {
        let node = variable(&at.env, &name_of(at.e)?)?;
        let Value::Param(owner, _, of, _) = node.value else {
            return None;
        };
        let Some(of) = of else {
            let called = self.source.callers.contains_key(&owner);
            return (!called).then(|| hole(at.e));
        };
        let texts = self.source.messages.get(&base(of)?)?;
        let chosen = self.choices.choose(address(texts), texts.len());
        let named = |name: &str| Some(format!("{{{}}}", name.split(':').next()?));
        Some(fill(&texts[chosen], named))
    }

    /// The text of `format!`.
    fn template(&mut self, mac: &'static syn::Macro, at: &At) -> Option<String> {
        let list = Punctuated::<Expr, Token![,]>::parse_terminated;
        let args = keep(mac.parse_body_with(list).ok()?);
        let Expr::Lit(syn::ExprLit {
            lit: Lit::Str(text),
            ..
        }) = args.first()?
        else {
            return None;
        };
        let mut positional = args.iter().skip(1);
        Some(fill(&text.value(), |placeholder| {
            let (name, form) = placeholder.split_once(':').unwrap_or((placeholder, ""));
            let named = args.iter().find_map(|arg| match arg {
                Expr::Assign(it) if name_of(&it.left).is_some_and(|n| n == name) => {
                    Some(&*it.right)
                }
                _ => None,
            });
            let e = match name.parse::<usize>() {
                _ if name.is_empty() => positional.next()?,
                Ok(i) => args.get(i + 1)?,
                Err(_) => named.or_else(|| Some(keep(syn::parse_str(name).ok()?)))?,
            };
            let at = at.with(e);
            let known = form.is_empty().then(|| self.text(&at, false)).flatten();
            // The name here says more than that of another value.
            let known = known.filter(|text| !is_hole(text));
            Some(known.unwrap_or_else(|| hole(e)))
        }))
    }

    /// The expression that an expression has its value from, as far as it can be followed.
    pub fn head(&mut self, at: &At, calls: bool) -> At {
        let mut at = at.clone();
        while self.steps < STEPS
            && let Some(next) = self.step(&at, calls)
        {
            at = next;
            self.steps += 1;
        }
        at
    }

    /// The next expression on the way to a value; `None` at the end of the way.
    fn step(&mut self, at: &At, calls: bool) -> Option<At> {
        let same = |e: &'static Expr| Some(at.with(e));
        match at.e {
            Expr::Paren(it) => same(&it.expr),
            Expr::Group(it) => same(&it.expr),
            Expr::Reference(it) => same(&it.expr),
            Expr::Unary(it) if matches!(it.op, syn::UnOp::Deref(_)) => same(&it.expr),
            Expr::Unsafe(it) => end_of(&it.block, at),
            Expr::Block(it) => end_of(&it.block, at),
            Expr::If(it) => {
                let mut env = at.env.clone();
                scope::bind_condition(&it.cond, at.owner, &mut env);
                let inner = At { env, ..at.clone() };
                let then = end_of(&it.then_branch, &inner);
                let other = it.else_branch.as_ref().and_then(|(_, e)| same(e));
                self.branch(address(at.e), then.into_iter().chain(other))
            }
            Expr::Match(it) => {
                let before = self.known.clone();
                let mut arms = Vec::new();
                for i in 0..it.arms.len() {
                    let arm = scope::enter_arm(it, i, at);
                    if self.assume(&arm) {
                        arms.push(arm);
                    }
                    self.known = before.clone();
                }
                let arm = self.branch(address(at.e), arms.into_iter())?;
                self.assume(&arm);
                Some(arm)
            }
            Expr::Path(it) => {
                let path = segments(&it.path);
                match variable(&at.env, &path[0]) {
                    Some(node) if path.len() == 1 => self.value(node),
                    _ => {
                        let all = self.source.consts.get(path.last()?)?.iter().collect();
                        let found = self.source.meant(at.owner, &path, all, |at| at.owner);
                        found.first().map(|at| (*at).clone())
                    }
                }
            }
            Expr::Call(_) | Expr::MethodCall(_) if calls => self.result(at),
            _ => None,
        }
    }

    /// One of the values that are no jumps.
    fn branch(&mut self, of: usize, all: impl Iterator<Item = At>) -> Option<At> {
        if let Some(taken) = self.taken.get(&of) {
            return Some(taken.clone());
        }
        let all: Vec<At> = all.filter(|at| !diverges(at.e)).collect();
        let chosen = self.choices.choose(of, all.len());
        let taken = all.get(chosen)?;
        self.taken.insert(of, taken.clone());
        Some(taken.clone())
    }

    /// The expression of a variable's value.
    fn value(&mut self, node: &Node) -> Option<At> {
        match &node.value {
            Value::Part(at, steps) => steps
                .iter()
                .try_fold(at.clone(), |at, step| self.part(&at, step)),
            Value::Param(owner, i, of, steps) => {
                let followed = match (of, &steps[..]) {
                    (Some(of), []) => FOLLOWED.contains(&base(of)?.as_str()),
                    _ => true,
                };
                let call = match self.followed.get(owner) {
                    _ if !followed => return None,
                    Some(call) => call.clone(),
                    None => self.caller(*owner)?.at.clone(),
                };
                let at = call.with(arguments(call.e).get(*i)?);
                steps.iter().try_fold(at, |at, step| self.part(&at, step))
            }
            Value::Arm(..) => None,
        }
    }

    /// A part of an expression's value.
    fn part(&mut self, of: &At, step: &Step) -> Option<At> {
        let of = self.head(of, false);
        let e = match (step, of.e) {
            (Step::Index(i), Expr::Tuple(it)) => it.elems.get(*i)?,
            (Step::Variant(name, i), e) if constructor(e).as_ref() == Some(name) => {
                *arguments(e).get(*i)?
            }
            // `(condition).then(|| value)`
            (Step::Variant(name, _), Expr::MethodCall(it))
                if name == "Some" && it.method == "then" =>
            {
                let closure = self.head(&of.with(it.args.first()?), false);
                let Expr::Closure(it) = closure.e else {
                    return None;
                };
                return Some(closure.with(&it.body));
            }
            (Step::Variant(..), Expr::Call(_) | Expr::MethodCall(_)) => {
                let result = self.result(&of)?;
                return self.part(&result, step);
            }
            (Step::Field(name), Expr::Struct(it)) => {
                let is =
                    |f: &&syn::FieldValue| matches!(&f.member, syn::Member::Named(n) if n == name);
                &it.fields.iter().find(is)?.expr
            }
            (Step::Each, Expr::Array(it)) => {
                let chosen = self.choices.choose(address(it), it.elems.len());
                it.elems.get(chosen)?
            }
            (Step::Variant(..), e) => {
                self.is_void |= constructor(e).is_some();
                return None;
            }
            _ => return None,
        };
        Some(of.with(e))
    }

    /// Takes the arms around a place as those that their `match` chooses; false if that
    /// contradicts what the run knows.
    pub fn assume(&mut self, at: &At) -> bool {
        let around = std::iter::successors(at.env.as_deref(), |node| node.next.as_deref());
        around.into_iter().all(|node| match &node.value {
            Value::Arm(value, of, i) => {
                let before = of.arms[..*i].iter().filter(|arm| arm.guard.is_none());
                let before: Vec<&Pat> = before.map(|arm| &arm.pat).collect();
                self.matches(&of.arms[*i].pat, &before, value)
            }
            _ => true,
        })
    }

    fn matches(&mut self, pattern: &'static Pat, before: &[&Pat], value: &At) -> bool {
        let at = self.head(value, false);
        if let (Pat::Tuple(p), Expr::Tuple(it)) = (pattern, at.e) {
            let mut parts = p.elems.iter().zip(&it.elems);
            return parts.all(|(p, e)| self.matches(p, &[], &at.with(e)));
        }
        if let Some(made) = constructor(at.e) {
            return Known::is(made).matching("", pattern, before).is_some();
        }
        let (key, inside) = self.root(&at).unwrap_or_default();
        let known = self.known.get(&key).cloned().unwrap_or_default();
        let known = known.matching(&inside, pattern, before);
        if let (Some(known), true) = (&known, key != 0) {
            self.known.insert(key, known.clone());
        }
        known.is_some()
    }

    /// The variable that contains a variable's value, and the variants that it is in there.
    fn root(&mut self, at: &At) -> Option<(usize, String)> {
        let node = variable(&at.env, &name_of(at.e)?)?;
        if let Value::Part(of, steps) = &node.value
            && let [Step::Variant(name, 0)] = &steps[..]
        {
            let of = self.head(of, false);
            if let Some((key, inside)) = self.root(&of) {
                return Some((key, format!("{inside}{name}/")));
            }
        }
        Some((address(node.name?), String::new()))
    }

    /// What a call of a function of this crate returns, if that is or may contain a text or a kind.
    fn result(&mut self, at: &At) -> Option<At> {
        let &[called] = &self.source.called(at)[..] else {
            return None;
        };
        if !FOLLOWED.contains(&base(self.source.owners[called].returns?)?.as_str()) {
            return None;
        }
        self.followed.insert(called, at.clone());
        let owner = &self.source.owners[called];
        self.branch(address(owner), owner.results.iter().cloned())
    }
}
