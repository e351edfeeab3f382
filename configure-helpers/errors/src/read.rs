//! Reads the sources of a crate: the places that make errors, the calls, and the variables. Trees
//! are kept until the program ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::LineColumn;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, FnArg, Pat, Signature, Stmt, Token, Type, Visibility};

/// A file, and a position in it.
pub type Place = (&'static str, LineColumn);

/// The value of a variable.
#[derive(Clone)]
pub enum Value {
    /// An expression, or the part of a tuple at this position.
    Init(&'static Expr, Option<usize>),
    /// The argument at this position of the calls with this key.
    Param(String, usize),
}

/// A call.
pub struct Call {
    pub place: Place,
    pub args: Vec<&'static Expr>,
}

/// The sources of a crate.
#[derive(Default)]
pub struct Source {
    /// The calls of `Error::new`, by their address.
    pub errors: BTreeMap<usize, Call>,
    /// The calls of `with_limit`, with the address of the `Error::new` that they follow.
    pub limits: Vec<(Option<usize>, Call)>,
    /// The calls of functions and closures, by key.
    pub calls: BTreeMap<String, Vec<Call>>,
    /// The functions, by key: the file and the body.
    pub functions: BTreeMap<String, Vec<(&'static str, &'static Block)>>,
    /// The variables, by name, with the places that see them.
    variables: BTreeMap<String, Vec<(Range<Place>, Value)>>,
    /// The constants, by name: the file, the visibility, the value.
    pub consts: BTreeMap<String, Vec<(&'static str, &'static Visibility, &'static Expr)>>,
    /// The messages of enums that derive thiserror's `Error`.
    pub messages: BTreeSet<String>,
    /// Macros that hide an error.
    pub faults: BTreeSet<String>,
    /// The file that is read.
    file: &'static str,
    /// The type whose `impl` is read.
    of_error: bool,
}

impl Source {
    /// Reads every file of a folder that is not for tests.
    pub fn read_folder(&mut self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let file = path.display().to_string();
            if path.file_stem().is_some_and(|name| name == "tests") {
            } else if path.is_dir() {
                self.read_folder(&path)?;
            } else if file.ends_with(".rs") {
                let text = fs::read_to_string(&path).context(file.clone())?;
                self.read_file(&file, &text).context(file)?;
            }
        }
        Ok(())
    }

    /// Reads a file with this text.
    pub fn read_file(&mut self, file: &str, text: &str) -> Result<()> {
        self.file = String::leak(file.to_owned());
        self.visit_file(Box::leak(Box::new(syn::parse_file(text)?)));
        Ok(())
    }

    /// The innermost variable of this name that a place sees.
    pub fn variable(&self, name: &str, place: Place) -> Option<&Value> {
        let all = self.variables.get(name)?.iter();
        let seen = all.filter(|(places, _)| places.contains(&place));
        seen.max_by_key(|(places, _)| places.start)
            .map(|(_, value)| value)
    }

    fn places(&self, of: &impl Spanned) -> Range<Place> {
        (self.file, of.span().start())..(self.file, of.span().end())
    }

    /// Adds the variables of a pattern that is matched with `value`.
    fn bind(&mut self, pattern: &Pat, value: &Value, places: &Range<Place>) {
        match (pattern, value) {
            (Pat::Ident(it), _) => {
                let all = self.variables.entry(it.ident.to_string()).or_default();
                all.push((places.clone(), value.clone()));
            }
            (Pat::Type(it), _) => self.bind(&it.pat, value, places),
            (Pat::TupleStruct(it), _) => it.elems.iter().for_each(|p| self.bind(p, value, places)),
            (Pat::Tuple(it), Value::Init(e, None)) => {
                for (i, pattern) in it.elems.iter().enumerate() {
                    self.bind(pattern, &Value::Init(e, Some(i)), places);
                }
            }
            _ => {}
        }
    }

    /// Adds the variables of the conditions `let PATTERN = VALUE`.
    fn bind_condition(&mut self, condition: &'static Expr, places: &Range<Place>) {
        match condition {
            Expr::Let(it) => self.bind(&it.pat, &Value::Init(&it.expr, None), places),
            Expr::Binary(it) => {
                self.bind_condition(&it.left, places);
                self.bind_condition(&it.right, places);
            }
            _ => {}
        }
    }

    fn function(&mut self, attrs: &[Attribute], sig: &'static Signature, block: &'static Block) {
        if is_test(attrs) {
            return;
        }
        let is_self = usize::from(sig.receiver().is_some());
        let key = key(&sig.ident, sig.inputs.len() - is_self);
        for (i, input) in sig.inputs.iter().skip(is_self).enumerate() {
            // Calls of other functions of this name may have texts where this one has numbers.
            let types = ["str", "String", "Display", "Kind"];
            if let FnArg::Typed(it) = input
                && let Some(of) = it.ty.span().source_text()
                && types.iter().any(|name| of.contains(name))
            {
                self.bind(&it.pat, &Value::Param(key.clone(), i), &self.places(block));
            }
        }
        self.functions
            .entry(key)
            .or_default()
            .push((self.file, block));
        self.visit_block(block);
    }

    /// The address of the `Error::new` on whose result methods are called.
    fn error(&self, e: &Expr) -> Option<usize> {
        match e {
            Expr::MethodCall(it) => self.error(&it.receiver),
            Expr::Call(it) => Some(std::ptr::from_ref(it) as usize),
            Expr::Path(it) => {
                let name = it.path.get_ident()?.to_string();
                match self.variable(&name, self.places(e).start)? {
                    Value::Init(e, None) => self.error(e),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// What a function and its calls have in common: the name and the number of arguments.
pub fn key(name: impl ToString, count: usize) -> String {
    format!("{}/{count}", name.to_string())
}

/// The expressions of a macro's arguments; `None` if the arguments are no expressions.
pub fn arguments(mac: &syn::Macro) -> Option<&'static [Expr]> {
    let list = mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
    Some(Vec::leak(list.ok()?.into_iter().collect()))
}

fn is_test(attrs: &[Attribute]) -> bool {
    let tests = ["#[test]", "#[cfg(test)", "#[cfg(all(test"];
    let mut texts = attrs.iter().filter_map(|attr| attr.span().source_text());
    texts.any(|text| tests.iter().any(|test| text.starts_with(test)))
}

impl Visit<'static> for Source {
    fn visit_item_mod(&mut self, it: &'static syn::ItemMod) {
        if !is_test(&it.attrs) {
            visit::visit_item_mod(self, it);
        }
    }

    fn visit_item_impl(&mut self, it: &'static syn::ItemImpl) {
        self.of_error = matches!(&*it.self_ty, Type::Path(of) if of.path.is_ident("Error"));
        visit::visit_item_impl(self, it);
        self.of_error = false;
    }

    fn visit_item_fn(&mut self, it: &'static syn::ItemFn) {
        self.function(&it.attrs, &it.sig, &it.block);
    }

    fn visit_impl_item_fn(&mut self, it: &'static syn::ImplItemFn) {
        self.function(&it.attrs, &it.sig, &it.block);
    }

    fn visit_trait_item_fn(&mut self, it: &'static syn::TraitItemFn) {
        let block = it.default.iter();
        block.for_each(|block| self.function(&it.attrs, &it.sig, block));
    }

    fn visit_item_const(&mut self, it: &'static syn::ItemConst) {
        let all = self.consts.entry(it.ident.to_string()).or_default();
        all.push((self.file, &it.vis, &it.expr));
    }

    fn visit_variant(&mut self, it: &'static syn::Variant) {
        for attr in it.attrs.iter().filter(|attr| attr.path().is_ident("error")) {
            let tokens = attr.meta.require_list().map(|list| list.tokens.clone());
            let first = tokens.into_iter().flatten().next();
            let text = first.and_then(|token| syn::parse2::<syn::LitStr>(token.into()).ok());
            self.messages.extend(text.map(|text| text.value()));
        }
    }

    fn visit_block(&mut self, it: &'static Block) {
        let places = self.places(it);
        for statement in &it.stmts {
            match statement {
                // Not a constant of the file.
                Stmt::Item(syn::Item::Const(it)) => {
                    let all = self.variables.entry(it.ident.to_string()).or_default();
                    all.push((places.clone(), Value::Init(&it.expr, None)));
                    continue;
                }
                Stmt::Local(syn::Local {
                    pat,
                    init: Some(init),
                    ..
                }) => {
                    let after = self.places(statement).end..places.end;
                    self.bind(pat, &Value::Init(&init.expr, None), &after);
                }
                _ => {}
            }
            self.visit_stmt(statement);
        }
    }

    fn visit_expr_match(&mut self, it: &'static syn::ExprMatch) {
        for arm in &it.arms {
            self.bind(&arm.pat, &Value::Init(&it.expr, None), &self.places(arm));
        }
        visit::visit_expr_match(self, it);
    }

    fn visit_expr_if(&mut self, it: &'static syn::ExprIf) {
        self.bind_condition(&it.cond, &self.places(&it.then_branch));
        visit::visit_expr_if(self, it);
    }

    fn visit_expr_closure(&mut self, it: &'static syn::ExprClosure) {
        for (i, pattern) in it.inputs.iter().enumerate() {
            let value = Value::Param(format!("{it:p}"), i);
            self.bind(pattern, &value, &self.places(&it.body));
        }
        visit::visit_expr_closure(self, it);
    }

    fn visit_expr_call(&mut self, it: &'static syn::ExprCall) {
        visit::visit_expr_call(self, it);
        let Expr::Path(path) = &*it.func else { return };
        let place = self.places(it).start;
        let call = Call {
            place,
            args: it.args.iter().collect(),
        };
        let mut names = path.path.segments.iter().rev().map(|s| s.ident.to_string());
        let (name, of) = (
            names.next().unwrap_or_default(),
            names.next().unwrap_or_default(),
        );
        let is_error = of == "Error" || of == "Self" && self.of_error;
        if is_error && name == "new" && call.args.len() == 3 {
            self.errors.insert(std::ptr::from_ref(it) as usize, call);
            return;
        }
        let key = match self.variable(&name, place) {
            Some(Value::Init(Expr::Closure(closure), None)) => format!("{closure:p}"),
            _ => key(name, call.args.len()),
        };
        self.calls.entry(key).or_default().push(call);
    }

    fn visit_expr_method_call(&mut self, it: &'static syn::ExprMethodCall) {
        visit::visit_expr_method_call(self, it);
        let place = self.places(&it.method).start;
        let call = Call {
            place,
            args: it.args.iter().collect(),
        };
        if it.method == "with_limit" {
            self.limits.push((self.error(&it.receiver), call));
        } else {
            let all = self
                .calls
                .entry(key(&it.method, call.args.len()))
                .or_default();
            all.push(call);
        }
    }

    fn visit_macro(&mut self, it: &'static syn::Macro) {
        match arguments(it) {
            Some(args) => args.iter().for_each(|e| self.visit_expr(e)),
            None if it.tokens.to_string().contains("Error :: new") => {
                let (file, at) = self.places(it).start;
                self.faults
                    .insert(format!("{file}:{}: an error in a macro", at.line));
            }
            None => {}
        }
    }
}
