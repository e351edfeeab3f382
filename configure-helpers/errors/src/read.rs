//! Reads the sources of a crate, without its tests.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Block, Expr, FnArg, Ident, Item, Pat, ReturnType, Stmt, Type, UseTree};

use crate::scope::{self, At, Env, Step, Value};
use crate::source::{Module, Owner, Source, Use};
use crate::syntax::{base, is_test, keep, segments};

impl Source {
    /// Reads the crate whose root module is this file.
    pub fn read(root: &Path) -> Result<Source> {
        let mut source = Source::default();
        source.file(root, root.parent().unwrap_or(root), Vec::new())?;
        source.link();
        Ok(source)
    }

    /// A crate of one file with this text.
    #[cfg(test)]
    pub fn of_text(text: &str) -> Source {
        let mut source = Source::default();
        let items = syn::parse_file(text).expect("the source of a test").items;
        let root = Path::new("test.rs");
        source
            .items(items, root, root, Vec::new())
            .expect("no files");
        source.link();
        source
    }

    fn file(&mut self, file: &Path, below: &Path, path: Vec<String>) -> Result<()> {
        let shown = || file.display().to_string();
        let text = fs::read_to_string(file).with_context(shown)?;
        let items = syn::parse_file(&text).with_context(shown)?.items;
        self.items(items, file, below, path)
    }

    fn items(
        &mut self,
        all: Vec<Item>,
        file: &Path,
        below: &Path,
        path: Vec<String>,
    ) -> Result<()> {
        let (module, owner) = (self.modules.len(), self.owners.len());
        self.modules.push(Module {
            path: path.clone(),
            file: file.display().to_string(),
            ..Module::default()
        });
        self.owners.push(Owner {
            module,
            ..Owner::default()
        });
        for item in all {
            let Item::Mod(inner) = item else {
                let mut walk = Walk::new(self, module, owner);
                walk.visit_item(keep(item));
                continue;
            };
            if is_test(&inner.attrs) {
                continue;
            }
            let name = inner.ident.to_string();
            let (folder, path) = (
                below.join(&name),
                [&path[..], std::slice::from_ref(&name)].concat(),
            );
            if let Some((_, items)) = inner.content {
                self.items(items, file, &folder, path)?;
            } else {
                let beside = below.join(format!("{name}.rs"));
                let inside = folder.join("mod.rs");
                let file = if beside.exists() { beside } else { inside };
                self.file(&file, &folder, path)?;
            }
        }
        Ok(())
    }
}

/// The methods that are called on a value, from the inside out.
type Chain = Vec<&'static syn::ExprMethodCall>;

/// Collects the owners and uses of an item.
struct Walk<'s> {
    source: &'s mut Source,
    module: usize,
    of: Vec<String>,
    owner: usize,
    env: Env,
    after: Chain,
    bound: Option<&'static Ident>,
}

impl<'s> Walk<'s> {
    fn new(source: &'s mut Source, module: usize, owner: usize) -> Walk<'s> {
        Walk {
            source,
            module,
            of: Vec::new(),
            owner,
            env: None,
            after: Vec::new(),
            bound: None,
        }
    }

    fn at(&self, e: &'static Expr) -> At {
        At {
            e,
            env: self.env.clone(),
            owner: self.owner,
        }
    }

    /// Visits a body with these parameters as that of a new owner.
    fn own(&mut self, mut owner: Owner, types: &[Option<&'static Type>], body: &'static Expr) {
        let id = self.source.owners.len();
        (owner.module, owner.of) = (self.module, self.of.clone());
        let outer = (self.owner, self.env.clone());
        for (i, (pattern, of)) in owner.params.iter().zip(types).enumerate() {
            scope::bind(
                pattern,
                &Value::Param(id, i, *of, Vec::new()),
                &mut self.env,
            );
        }
        self.source.owners.push(owner);
        self.owner = id;
        let result = self.at(body);
        self.source.owners[id].results.push(result);
        self.visit_expr(body);
        (self.owner, self.env) = outer;
    }

    fn function(&mut self, signature: &'static syn::Signature, body: &'static Block) {
        let typed = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(typed),
            FnArg::Receiver(_) => None,
        });
        let (params, types): (Vec<_>, Vec<_>) = typed.map(|t| (&*t.pat, Some(&*t.ty))).unzip();
        let owner = Owner {
            name: signature.ident.to_string(),
            is_method: signature.receiver().is_some(),
            params,
            returns: match &signature.output {
                ReturnType::Type(_, t) => Some(t),
                ReturnType::Default => None,
            },
            ..Owner::default()
        };
        let (attrs, label, block) = (Vec::new(), None, body.clone());
        let body = keep(Expr::Block(syn::ExprBlock {
            attrs,
            label,
            block,
        }));
        self.own(owner, &types, body);
    }

    fn closure(&mut self, e: &'static Expr, closure: &'static syn::ExprClosure) {
        let of = |p: &'static Pat| match p {
            Pat::Type(p) => Some(&*p.ty),
            _ => None,
        };
        let params: Vec<&'static Pat> = closure.inputs.iter().collect();
        let types: Vec<_> = params.iter().map(|p| of(p)).collect();
        let closure_of = Owner {
            params,
            closure: Some(e),
            ..Owner::default()
        };
        self.own(closure_of, &types, &closure.body);
    }

    fn note(&mut self, e: &'static Expr, after: &Chain, bound: Option<&'static Ident>) {
        let (at, after) = (self.at(e), after.clone());
        self.source.uses.push(Use { at, after, bound });
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        match tree {
            UseTree::Path(p) => self.import(&p.tree, &[before, &[p.ident.to_string()]].concat()),
            UseTree::Group(g) => g.items.iter().for_each(|t| self.import(t, before)),
            UseTree::Name(n) => self.import_as(before, &n.ident, &n.ident),
            UseTree::Rename(r) => self.import_as(before, &r.ident, &r.rename),
            UseTree::Glob(_) => {}
        }
    }

    fn import_as(&mut self, before: &[String], name: &Ident, known_as: &Ident) {
        let path = [before, &[name.to_string()]].concat();
        let imports = &mut self.source.modules[self.module].imports;
        imports.insert(known_as.to_string(), path);
    }

    fn constant(&mut self, name: &Ident, e: &'static Expr) {
        let at = self.at(e);
        self.source
            .consts
            .entry(name.to_string())
            .or_default()
            .push(at);
    }
}

impl Visit<'static> for Walk<'_> {
    fn visit_item_fn(&mut self, item: &'static syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'static syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'static syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
    }

    fn visit_item_impl(&mut self, item: &'static syn::ItemImpl) {
        if !is_test(&item.attrs) {
            let of_trait = item.trait_.as_ref();
            let of_trait = of_trait.and_then(|(_, path, _)| segments(path).pop());
            self.of = base(&item.self_ty).into_iter().chain(of_trait).collect();
            visit::visit_item_impl(self, item);
            self.of.clear();
        }
    }

    fn visit_item_trait(&mut self, item: &'static syn::ItemTrait) {
        self.of = vec![item.ident.to_string()];
        visit::visit_item_trait(self, item);
        self.of.clear();
    }

    fn visit_macro(&mut self, mac: &'static syn::Macro) {
        if mac.tokens.to_string().contains("Error :: new") {
            let place = self.source.place(mac, self.owner);
            self.source.hidden.push(place);
        }
    }

    fn visit_item_use(&mut self, item: &'static syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_item_const(&mut self, item: &'static syn::ItemConst) {
        self.constant(&item.ident, &item.expr);
    }

    fn visit_impl_item_const(&mut self, item: &'static syn::ImplItemConst) {
        self.constant(&item.ident, &item.expr);
    }

    fn visit_item_struct(&mut self, item: &'static syn::ItemStruct) {
        for field in &item.fields {
            if let Some(name) = &field.ident {
                let key = (item.ident.to_string(), name.to_string());
                self.source.fields.insert(key, &field.ty);
            }
        }
    }

    fn visit_item_enum(&mut self, item: &'static syn::ItemEnum) {
        let attributes = item.variants.iter().flat_map(|v| &v.attrs);
        let attributes = attributes.filter(|a| a.path().is_ident("error"));
        let text = |input: syn::parse::ParseStream<'_>| {
            let text: syn::LitStr = input.parse()?;
            input.parse::<proc_macro2::TokenStream>()?;
            Ok(text.value())
        };
        let texts = attributes.filter_map(|a| a.parse_args_with(text).ok());
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            self.source.messages.insert(item.ident.to_string(), texts);
        }
    }

    fn visit_block(&mut self, block: &'static Block) {
        let outer = self.env.clone();
        for statement in &block.stmts {
            match statement {
                Stmt::Local(syn::Local {
                    pat: Pat::Ident(p),
                    init: Some(init),
                    ..
                }) => {
                    self.bound = Some(&p.ident);
                    self.visit_expr(&init.expr);
                }
                _ => self.visit_stmt(statement),
            }
            scope::bind_statement(statement, self.owner, &mut self.env);
        }
        self.env = outer;
    }

    fn visit_expr(&mut self, e: &'static Expr) {
        let after = std::mem::take(&mut self.after);
        let bound = self.bound.take();
        let outer = self.env.clone();
        match e {
            Expr::MethodCall(call) => {
                self.note(e, &after, bound);
                self.after = [&[call], &after[..]].concat();
                self.bound = bound;
                self.visit_expr(&call.receiver);
                call.args.iter().for_each(|a| self.visit_expr(a));
            }
            Expr::Call(call) => {
                self.note(e, &after, bound);
                visit::visit_expr_call(self, call);
            }
            Expr::Path(_) => self.note(e, &after, bound),
            Expr::Closure(closure) => self.closure(e, closure),
            Expr::Return(syn::ExprReturn {
                expr: Some(value), ..
            }) => {
                let result = self.at(value);
                self.source.owners[self.owner].results.push(result);
                self.visit_expr(value);
            }
            Expr::Match(it) => {
                self.visit_expr(&it.expr);
                for i in 0..it.arms.len() {
                    let arm = scope::enter_arm(it, i, &self.at(e));
                    self.env = arm.env;
                    self.visit_expr(arm.e);
                    self.env = outer.clone();
                }
            }
            Expr::If(it) => {
                self.visit_expr(&it.cond);
                scope::bind_condition(&it.cond, self.owner, &mut self.env);
                self.visit_block(&it.then_branch);
                self.env = outer.clone();
                it.else_branch.iter().for_each(|(_, e)| self.visit_expr(e));
            }
            Expr::While(it) => {
                self.visit_expr(&it.cond);
                scope::bind_condition(&it.cond, self.owner, &mut self.env);
                self.visit_block(&it.body);
            }
            Expr::ForLoop(it) => {
                self.visit_expr(&it.expr);
                let each = Value::Part(self.at(&it.expr), vec![Step::Each]);
                scope::bind(&it.pat, &each, &mut self.env);
                self.visit_block(&it.body);
            }
            _ => visit::visit_expr(self, e),
        }
        (self.env, self.after, self.bound) = (outer, Vec::new(), None);
    }
}
