//! The sources of a crate: its functions, closures, constants and calls, each with the variables
//! that it sees.

use std::collections::HashMap;

use syn::spanned::Spanned;
use syn::{Expr, ExprMethodCall, Ident, Pat, Type};

use crate::scope::At;

/// What contains expressions: a function, a closure, or a module with its constants.
#[derive(Default)]
pub struct Owner {
    /// Empty for a closure and a module.
    pub name: String,
    pub module: usize,
    /// The type of its `impl` block, and the trait if it implements one.
    pub of: Vec<String>,
    pub is_method: bool,
    /// Without `self`.
    pub params: Vec<&'static Pat>,
    pub closure: Option<&'static Expr>,
    /// The expression of every `return`, and the body.
    pub results: Vec<At>,
    pub returns: Option<&'static Type>,
}

/// A call, or the use of a variable.
pub struct Use {
    pub at: At,
    /// The methods that are called on it.
    pub after: Vec<&'static ExprMethodCall>,
    /// The variable that it initialises.
    pub bound: Option<&'static Ident>,
}

/// A module, and the names that it imports.
#[derive(Default)]
pub struct Module {
    pub path: Vec<String>,
    pub file: String,
    pub imports: HashMap<String, Vec<String>>,
}

/// The sources of a crate.
#[derive(Default)]
pub struct Source {
    pub modules: Vec<Module>,
    pub owners: Vec<Owner>,
    pub uses: Vec<Use>,
    /// Constants, by name.
    pub consts: HashMap<String, Vec<At>>,
    /// The messages of enums that derive thiserror's `Error`.
    pub messages: HashMap<String, Vec<String>>,
    /// The types of fields, by the name of the structure and of the field.
    pub fields: HashMap<(String, String), &'static Type>,
    /// The places of errors in macros, which are not parsed.
    pub hidden: Vec<String>,
    /// The owners of each name.
    pub named: HashMap<String, Vec<usize>>,
    /// The uses that call an owner, by its number.
    pub callers: HashMap<usize, Vec<usize>>,
    /// The uses of a variable, by the address of its name.
    pub used: HashMap<usize, Vec<usize>>,
}

impl Source {
    /// The place of an expression, for people.
    pub fn place(&self, of: &impl Spanned, owner: usize) -> String {
        let line = of.span().start().line;
        format!("{}:{line}", self.modules[self.owners[owner].module].file)
    }
}
