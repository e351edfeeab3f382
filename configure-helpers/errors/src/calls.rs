//! Which functions and closures a call may mean, by names: the module and its imports for a path,
//! what is known of the type for a method.

use std::collections::HashMap;

use syn::Expr;

use crate::scope::{At, Value, variable};
use crate::source::{Owner, Source};
use crate::syntax::{address, arguments, base, name_of, segments};

impl Source {
    /// Finds the callers of every owner, and the uses of every variable.
    pub fn link(&mut self) {
        let mut owners: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, owner) in self.owners.iter().enumerate() {
            let name = owner.closure.map_or(owner.name.clone(), closure_name);
            owners.entry(name).or_default().push(i);
        }
        self.named = owners;
        for (i, used) in self.uses.iter().enumerate() {
            for owner in self.called(&used.at) {
                self.callers.entry(owner).or_default().push(i);
            }
            let name = name_of(used.at.e).and_then(|name| variable(&used.at.env, &name)?.name);
            if let Some(name) = name {
                self.used.entry(address(name)).or_default().push(i);
            }
        }
    }

    /// The owners that a call may mean; none if it is no call, or of another crate.
    pub fn called(&self, at: &At) -> Vec<usize> {
        let count = arguments(at.e).len();
        let named = |name: &str, is: &dyn Fn(&Owner) -> bool| -> Vec<usize> {
            let all = self.named.get(name).into_iter().flatten().copied();
            let fits = |owner: &Owner| owner.params.len() == count && is(owner);
            all.filter(|&i| fits(&self.owners[i])).collect()
        };
        match at.e {
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else {
                    return Vec::new();
                };
                let path = segments(&path.path);
                if let ([_], Some(node)) = (&path[..], variable(&at.env, &path[0])) {
                    let Value::Part(value, _) = &node.value else {
                        return Vec::new();
                    };
                    return named(&closure_name(value.e), &|_| true);
                }
                let found = named(path.last().map_or("", String::as_str), &|o| !o.is_method);
                self.meant(at.owner, &path, found, |&i| i)
            }
            Expr::MethodCall(call) => {
                let found = named(&call.method.to_string(), &|o| o.is_method);
                self.of_receiver(at, &call.receiver, found)
            }
            _ => Vec::new(),
        }
    }

    /// Of the candidates for a path, those that it means in the module of `owner`.
    pub fn meant<T>(
        &self,
        owner: usize,
        path: &[String],
        mut found: Vec<T>,
        owner_of: impl Fn(&T) -> usize,
    ) -> Vec<T> {
        let (here, of) = (self.owners[owner].module, &self.owners[owner].of);
        let imports = &self.modules[here].imports;
        let mut path = path.to_vec();
        if let Some(imported) = imports.get(&path[0]) {
            path = [&imported[..], &path[1..]].concat();
        }
        let current = &self.modules[here].path;
        let before: Vec<&str> = path[..path.len() - 1].iter().map(String::as_str).collect();
        let ups = before.iter().filter(|s| **s == "super").count();
        let parent = &current[..current.len().saturating_sub(ups)];
        let fits = |candidate: &T| {
            let candidate = &self.owners[owner_of(candidate)];
            let module = &self.modules[candidate.module].path;
            match before.last() {
                None => candidate.module == here && candidate.of.is_empty(),
                Some(&"crate") => module.is_empty(),
                Some(&"self" | &"super") => module == parent,
                Some(&"Self") => candidate.of == *of,
                Some(last) => {
                    candidate.of.iter().any(|of| of == last)
                        || candidate.of.is_empty() && module.last().is_some_and(|m| m == last)
                }
            }
        };
        match found.iter().position(&fits) {
            Some(_) => {
                found.retain(&fits);
                found
            }
            // By a glob, or through a module that exports it again.
            None if found.len() == 1 => found,
            None => Vec::new(),
        }
    }

    /// Of the candidates for a method, those of the receiver's type, as far as that is known.
    fn of_receiver(&self, at: &At, receiver: &Expr, found: Vec<usize>) -> Vec<usize> {
        let of = |name: &str| -> Vec<usize> {
            let is = |of: &String| of.eq_ignore_ascii_case(&name.replace('_', ""));
            let found = found.iter().copied();
            found
                .filter(|&i| self.owners[i].of.iter().any(is))
                .collect()
        };
        let of_type = self.type_of(at, receiver).map(|name| of(&name));
        let of_name = || Some(of(&last_name(receiver)?));
        let known = of_type.filter(|of| !of.is_empty());
        let known = known.or_else(|| of_name().filter(|of| !of.is_empty()));
        known.unwrap_or(found)
    }

    /// The name of an expression's type, of a parameter or of a field of one.
    fn type_of(&self, at: &At, e: &Expr) -> Option<String> {
        match e {
            Expr::Path(_) => match name_of(e)?.as_str() {
                "self" => self.owners[at.owner].of.first().cloned(),
                name => match &variable(&at.env, name)?.value {
                    Value::Param(_, _, of, _) => base((*of)?),
                    _ => None,
                },
            },
            Expr::Field(field) => {
                let syn::Member::Named(name) = &field.member else {
                    return None;
                };
                let of = self.type_of(at, &field.base)?;
                base(self.fields.get(&(of, name.to_string()))?)
            }
            Expr::Reference(it) => self.type_of(at, &it.expr),
            Expr::Paren(it) => self.type_of(at, &it.expr),
            _ => None,
        }
    }
}

/// The key of a closure among the names of owners.
fn closure_name(e: &Expr) -> String {
    format!("|{}|", address(e))
}

fn last_name(e: &Expr) -> Option<String> {
    match e {
        Expr::Path(_) => name_of(e),
        Expr::Field(it) => match &it.member {
            syn::Member::Named(name) => Some(name.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        Expr::MethodCall(it) => Some(it.method.to_string()),
        Expr::Reference(it) => last_name(&it.expr),
        _ => None,
    }
}
