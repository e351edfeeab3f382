//! Small questions to a syntax tree. Trees are kept until the program ends.

use syn::{Attribute, Expr, Ident, Stmt, Type};

/// Keeps a value until the program ends.
pub fn keep<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Whether an item is compiled for tests alone.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        syn::Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// The name of a type, without references and smart pointers.
pub fn base(of: &Type) -> Option<String> {
    match of {
        Type::Reference(t) => base(&t.elem),
        Type::Paren(t) => base(&t.elem),
        Type::ImplTrait(t) => bound(t.bounds.iter()),
        Type::TraitObject(t) => bound(t.bounds.iter()),
        Type::Path(t) => {
            let last = t.path.segments.last()?;
            let inner = match &last.arguments {
                syn::PathArguments::AngleBracketed(list) => list.args.first(),
                _ => None,
            };
            match (last.ident.to_string().as_str(), inner) {
                ("Arc" | "Box" | "Rc" | "Cow", Some(syn::GenericArgument::Type(t))) => base(t),
                (name, _) => Some(name.to_owned()),
            }
        }
        _ => None,
    }
}

fn bound<'a>(mut bounds: impl Iterator<Item = &'a syn::TypeParamBound>) -> Option<String> {
    bounds.find_map(|b| match b {
        syn::TypeParamBound::Trait(t) => Some(t.path.segments.last()?.ident.to_string()),
        _ => None,
    })
}

/// The names of a path.
pub fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|s| s.ident.to_string()).collect()
}

/// Whether a name in a pattern is a variable.
pub fn is_name(ident: &Ident) -> bool {
    ident
        .to_string()
        .starts_with(|c: char| c.is_lowercase() || c == '_')
}

/// The name, if the expression is one.
pub fn name_of(e: &Expr) -> Option<String> {
    match e {
        Expr::Path(it) => it.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// The arguments of a call, without `self`.
pub fn arguments(e: &'static Expr) -> Vec<&'static Expr> {
    match e {
        Expr::Call(call) => call.args.iter().collect(),
        Expr::MethodCall(call) => call.args.iter().collect(),
        _ => Vec::new(),
    }
}

/// The address of a part of the sources, as a key.
pub fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<u8>() as usize
}

/// Whether a name is that of a type or a variant.
pub fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

/// The name of the variant or structure that an expression makes.
pub fn constructor(e: &Expr) -> Option<String> {
    let path = match e {
        Expr::Path(it) => &it.path,
        Expr::Struct(it) => &it.path,
        Expr::Call(it) => match &*it.func {
            Expr::Path(it) => &it.path,
            _ => return None,
        },
        _ => return None,
    };
    segments(path).pop().filter(|name| is_type(name))
}

/// Whether an expression has no value, because it leaves the function or the loop.
pub fn diverges(e: &Expr) -> bool {
    let panics = |mac: &syn::Macro| mac.path.is_ident("panic") || mac.path.is_ident("unreachable");
    match e {
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Macro(it) => panics(&it.mac),
        Expr::Block(it) => match it.block.stmts.last() {
            Some(Stmt::Expr(e, _)) => diverges(e),
            Some(Stmt::Macro(it)) => panics(&it.mac),
            _ => false,
        },
        _ => false,
    }
}
