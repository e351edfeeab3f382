//! The uses between modules of a crate: every path in the code of a module, followed through
//! re-exports to the module that defines the name.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, Macro, Path, UseTree};

use crate::modules::{ModuleId, Tree};

/// A use by one module of a name that another module defines.
pub struct Use {
    pub from: ModuleId,
    pub to: ModuleId,
    pub name: String,
}

/// The uses between the modules of a crate.
pub fn between(tree: &Tree) -> Vec<Use> {
    let names = Names::of(tree);
    let mut uses = Vec::new();
    for from in 0..tree.modules.len() {
        let mut paths = Paths::default();
        for item in &tree.modules[from].items {
            paths.visit_item(item);
        }
        for path in paths.0 {
            if let Some(to) = names.resolve(from, &path, 0)
                && to != from
            {
                let name = path.last().cloned().unwrap_or_default();
                uses.push(Use { from, to, name });
            }
        }
    }
    uses
}

/// A name that a `use` imports into a module; `*` for all names of the last module of its path.
struct Import {
    name: String,
    path: Vec<String>,
}

/// The imports of each module.
struct Names<'a> {
    tree: &'a Tree,
    imports: Vec<Vec<Import>>,
}

/// Greatest length of a chain of re-exports.
const DEPTH: usize = 32;

impl Names<'_> {
    fn of(tree: &Tree) -> Names<'_> {
        let of_module = |id: ModuleId| {
            let mut imports = Vec::new();
            for item in &tree.modules[id].items {
                if let Item::Use(item) = item {
                    leaves(&item.tree, &mut Vec::new(), &mut imports);
                }
            }
            imports
        };
        let imports = (0..tree.modules.len()).map(of_module).collect();
        Names { tree, imports }
    }

    fn child(&self, of: ModuleId, name: &str) -> Option<ModuleId> {
        let children = self.tree.children(of).iter().copied();
        children
            .into_iter()
            .find(|&c| self.tree.modules[c].name == name)
    }

    /// The module that defines the item that `path` names in the module `at`; `None` if another
    /// crate defines it, or no module.
    fn resolve(&self, at: ModuleId, path: &[String], depth: usize) -> Option<ModuleId> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => self.tree.root(),
            "self" => at,
            "super" => self.tree.modules[at].parent?,
            name => {
                let found = self.child(at, name);
                let module = found.or_else(|| self.imported(at, name, depth))?;
                return self.descend(module, rest, depth);
            }
        };
        self.descend(start, rest, depth)
    }

    /// Follows names from a module. The last module reached defines the remaining names.
    fn descend(&self, at: ModuleId, path: &[String], depth: usize) -> Option<ModuleId> {
        let Some((first, rest)) = path.split_first() else {
            return Some(at);
        };
        if first == "super" {
            return self.descend(self.tree.modules[at].parent?, rest, depth);
        }
        match self
            .child(at, first)
            .or_else(|| self.imported(at, first, depth))
        {
            Some(module) => self.descend(module, rest, depth),
            None => Some(at),
        }
    }

    /// The module of this crate from which an import of the module `at` takes `name`.
    fn imported(&self, at: ModuleId, name: &str, depth: usize) -> Option<ModuleId> {
        if depth > DEPTH {
            return None;
        }
        let named = self.imports[at].iter().find(|i| i.name == name);
        if let Some(import) = named {
            return self.resolve(at, &import.path, depth + 1);
        }
        if depth == DEPTH {
            return None;
        }
        let stars = self.imports[at].iter().filter(|i| i.name == "*");
        for star in stars {
            // A `*` is not resolved through another `*`, because the search would not end.
            let Some(module) = self.resolve(at, &star.path, DEPTH) else {
                continue;
            };
            if module != at && self.defines(module, name) {
                return Some(module);
            }
        }
        None
    }

    fn defines(&self, module: ModuleId, name: &str) -> bool {
        let is = |item: &Item| match item {
            Item::Const(i) => i.ident == name,
            Item::Enum(i) => i.ident == name,
            Item::Fn(i) => i.sig.ident == name,
            Item::Static(i) => i.ident == name,
            Item::Struct(i) => i.ident == name,
            Item::Trait(i) => i.ident == name,
            Item::Type(i) => i.ident == name,
            Item::Union(i) => i.ident == name,
            _ => false,
        };
        self.tree.modules[module].items.iter().any(is) || self.child(module, name).is_some()
    }
}

/// Collects the names that a `use` imports.
fn leaves(tree: &UseTree, before: &mut Vec<String>, into: &mut Vec<Import>) {
    let mut import = |name: String, last: Option<String>| {
        let mut path = before.clone();
        path.extend(last);
        into.push(Import { name, path });
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, into);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            import(before.last().cloned().unwrap_or_default(), None);
        }
        UseTree::Name(name) => import(name.ident.to_string(), Some(name.ident.to_string())),
        UseTree::Rename(rename) if rename.ident == "self" => {
            import(rename.rename.to_string(), None);
        }
        UseTree::Rename(rename) => {
            import(rename.rename.to_string(), Some(rename.ident.to_string()));
        }
        UseTree::Glob(_) => import("*".to_owned(), None),
        UseTree::Group(group) => {
            for tree in &group.items {
                leaves(tree, before, into);
            }
        }
    }
}

/// The paths in the code of a module.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        // A module that only re-exports a name does not use it.
        if !matches!(
            item,
            Item::Use(ItemUse {
                vis: syn::Visibility::Public(_),
                ..
            })
        ) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut imports = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut imports);
        self.0.extend(imports.into_iter().map(|import| import.path));
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.0
            .push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        self.visit_path(&mac.path);
        self.tokens(mac.tokens.clone());
    }
}

impl Paths {
    /// The paths in the arguments of a macro: names with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(name.to_string());
                }
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.tokens(group.stream());
                }
                _ => self.end(&mut path),
            }
            colons = 0;
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.0.push(std::mem::take(path));
        }
        path.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The uses in the crate of these files: from, to, name.
    fn uses(name: &str, files: &[(&str, &str)]) -> Vec<[String; 3]> {
        let folder = std::env::temp_dir().join(format!("layers-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::read(&folder.join("lib.rs"));
        fs::remove_dir_all(&folder).unwrap();
        let tree = tree.unwrap();
        let module = |id: ModuleId| tree.modules[id].name.clone();
        let uses = between(&tree).into_iter();
        uses.map(|u| [module(u.from), module(u.to), u.name])
            .collect()
    }

    #[test]
    fn uses_are_found_through_facades_macros_and_inline_paths() {
        let found = uses(
            "facade",
            &[
                ("lib.rs", "mod a; mod b; mod c; pub use a::deep::Thing;"),
                ("a/mod.rs", "pub mod deep; pub use deep::Thing;"),
                ("a/deep.rs", "pub struct Thing; pub const N: u32 = 1;"),
                ("b.rs", "use crate::Thing; fn f(_: Thing) {}"),
                (
                    "c.rs",
                    "fn f() { println!(\"{}\", crate::a::deep::N); crate::b::f(); }",
                ),
            ],
        );
        for expected in [["b", "deep", "Thing"], ["c", "deep", "N"], ["c", "b", "f"]] {
            assert!(
                found.iter().any(|u| *u == expected),
                "{expected:?} in {found:?}"
            );
        }
        assert!(
            found.iter().all(|[from, ..]| from != "a"),
            "a facade uses nothing: {found:?}"
        );
    }

    #[test]
    fn uses_by_tests_and_of_other_crates_are_ignored() {
        let found = uses(
            "tests",
            &[
                ("lib.rs", "mod a; mod b;"),
                (
                    "a.rs",
                    "use std::fmt; #[cfg(test)] mod tests { use crate::b::X; }",
                ),
                (
                    "b.rs",
                    "pub struct X; #[cfg(test)] fn f() { crate::a::g() }",
                ),
            ],
        );
        assert!(found.is_empty(), "{found:?}");
    }
}
