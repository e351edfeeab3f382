//! The modules of a crate: files and the inline modules within them, tests left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta};

/// The number of a module in its tree.
pub type ModuleId = usize;

/// A module.
pub struct Module {
    pub name: String,
    pub parent: Option<ModuleId>,
    pub children: Vec<ModuleId>,
    pub items: Vec<Item>,
    /// The first sentence of its documentation.
    pub summary: String,
    file: PathBuf,
}

/// The modules of a crate; module 0 is its root.
pub struct Tree {
    pub modules: Vec<Module>,
}

impl Tree {
    /// Reads the crate whose root module is the file `root`.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree {
            modules: Vec::new(),
        };
        let folder = root.parent().context("a root module without a folder")?;
        tree.read_file("crate", None, root, folder)?;
        Ok(tree)
    }

    pub fn root(&self) -> ModuleId {
        0
    }

    fn read_file(
        &mut self,
        name: &str,
        parent: Option<ModuleId>,
        file: &Path,
        folder: &Path,
    ) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.add(name, parent, &parsed.attrs, parsed.items, file, folder)
    }

    /// Adds a module and those below it. `folder` contains the files of its children.
    fn add(
        &mut self,
        name: &str,
        parent: Option<ModuleId>,
        attributes: &[Attribute],
        items: Vec<Item>,
        file: &Path,
        folder: &Path,
    ) -> Result<()> {
        let id = self.modules.len();
        if let Some(parent) = parent {
            self.modules[parent].children.push(id);
        }
        let (inner, items): (Vec<Item>, Vec<Item>) = items
            .into_iter()
            .filter(|item| !is_test(attributes_of(item)))
            .partition(|item| matches!(item, Item::Mod(_)));
        self.modules.push(Module {
            name: name.to_owned(),
            parent,
            children: Vec::new(),
            items,
            summary: summary(attributes),
            file: file.to_owned(),
        });
        for item in inner {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let below = folder.join(&name);
            if let Some((_, items)) = module.content {
                self.add(&name, Some(id), &module.attrs, items, file, &below)?;
            } else if let Some(path) = path_of(&module, file) {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                self.read_file(&name, Some(id), &path, &folder)?;
            } else {
                let beside = folder.join(format!("{name}.rs"));
                let inside = below.join("mod.rs");
                let path = if beside.exists() { beside } else { inside };
                self.read_file(&name, Some(id), &path, &below)?;
            }
        }
        Ok(())
    }

    /// The modules that have modules below them.
    pub fn folders(&self) -> impl Iterator<Item = ModuleId> {
        (0..self.modules.len()).filter(|&id| self.is_folder(id))
    }

    /// Whether modules in separate files are below it.
    pub fn is_folder(&self, id: ModuleId) -> bool {
        let file = &self.modules[id].file;
        self.modules[id]
            .children
            .iter()
            .any(|&c| self.modules[c].file != *file)
    }

    pub fn children(&self, id: ModuleId) -> &[ModuleId] {
        &self.modules[id].children
    }

    /// Whether `module` is `folder` or below it.
    pub fn is_within(&self, module: ModuleId, folder: ModuleId) -> bool {
        module == folder
            || self.modules[module]
                .parent
                .is_some_and(|parent| self.is_within(parent, folder))
    }

    pub fn file(&self, id: ModuleId) -> String {
        let file = &self.modules[id].file;
        let here = std::env::current_dir().unwrap_or_default();
        file.strip_prefix(here)
            .unwrap_or(file)
            .display()
            .to_string()
    }
}

fn path_of(module: &ItemMod, file: &Path) -> Option<PathBuf> {
    let value = module.attrs.iter().find_map(|a| text_of(a, "path"))?;
    Some(file.parent()?.join(value))
}

/// The text of `#[NAME = "text"]`.
fn text_of(attribute: &Attribute, name: &str) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident(name) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// The first sentence of a documentation, on one line, without its full stop.
fn summary(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|a| text_of(a, "doc"));
    let first: Vec<String> = lines
        .map(|line| line.trim().to_owned())
        .take_while(|line| !line.is_empty())
        .collect();
    let mut text = first.join(" ");
    // A link is replaced by its text.
    while let Some(start) = text.find("](")
        && let Some(len) = text[start..].find(')')
    {
        text.replace_range(start..=start + len, "");
    }
    let end = text.find(". ").unwrap_or(text.len());
    text[..end]
        .trim_end_matches(['.', ':'])
        .replace(['`', '[', ']'], "")
}

/// Whether an item is compiled only for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}
