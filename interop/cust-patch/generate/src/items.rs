//! The published bindings as a list of items. They are the output of bindgen and rustfmt, so an
//! item ends with the first line at depth zero that closes it, and no parser of Rust is needed.

use std::collections::{BTreeMap, BTreeSet};

/// A function of the driver.
pub struct Function {
    pub name: String,
    /// Name and type of each argument.
    pub args: Vec<(String, String)>,
}

/// A C enum: its numbers.
pub struct Enum {
    pub name: String,
    pub numbers: Vec<i64>,
}

/// The contents of the bindings.
#[derive(Default)]
pub struct Items {
    /// Types, aliases, constants and implementations, as source text.
    pub kept: Vec<String>,
    pub functions: Vec<Function>,
    pub enums: BTreeMap<String, Enum>,
    /// Structures: the type of each field. Unions are absent, because their value has no certain
    /// type.
    pub structs: BTreeMap<String, Vec<String>>,
    /// Aliases and the names that they stand for.
    pub aliases: BTreeMap<String, String>,
    /// Type, size, alignment.
    pub layouts: Vec<(String, u64, u64)>,
}

/// Splits `source` into items.
pub fn split(source: &str) -> Result<Items, String> {
    let mut items = Items::default();
    let (mut text, mut depth) = (String::new(), 0i32);
    for line in source.lines() {
        if text.is_empty() && (line.is_empty() || line.starts_with("/*")) {
            continue;
        }
        text.push_str(line);
        text.push('\n');
        depth += count(line, "([{") - count(line, ")]}");
        if depth == 0 && !line.starts_with('#') && (line.ends_with('}') || line.ends_with(';')) {
            items.add(std::mem::take(&mut text))?;
        }
    }
    if !text.is_empty() {
        return Err(format!("no end of item: {text}"));
    }
    Ok(items)
}

fn count(line: &str, of: &str) -> i32 {
    line.chars().filter(|c| of.contains(*c)).count() as i32
}

/// The text between the first `from` and the next `to`.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let rest = &text[text.find(from)? + from.len()..];
    Some(&rest[..rest.find(to)?])
}

impl Items {
    fn add(&mut self, text: String) -> Result<(), String> {
        let bad = || format!("cannot parse: {text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if flat.starts_with("#[test]") {
            let name = between(&flat, "size_of::<", ">").ok_or_else(bad)?;
            let mut numbers = flat.split("usize, concat!(").filter_map(|before| {
                let number = before.rsplit(' ').next()?;
                number.parse().ok()
            });
            let (size, align) = numbers.next().zip(numbers.next()).ok_or_else(bad)?;
            let name = name.trim_matches([' ', ',']).to_owned();
            self.layouts.push((name, size, align));
            return Ok(());
        }
        if flat.starts_with("extern \"C\"") {
            let name = between(&flat, "pub fn ", "(").ok_or_else(bad)?.to_owned();
            let args = between(&flat, "(", ") -> CUresult;").ok_or_else(bad)?;
            let args = args.trim_matches([' ', ',']);
            let args = args.split(',').filter(|a| !a.is_empty()).map(|a| {
                let (name, ty) = a.split_once(": ")?;
                Some((name.trim().to_owned(), ty.trim().to_owned()))
            });
            let args = args.collect::<Option<_>>().ok_or_else(bad)?;
            self.functions.push(Function { name, args });
            return Ok(());
        }
        if let Some(name) = between(&flat, "pub enum ", " {") {
            let body = between(&flat, &format!("pub enum {name} {{"), "}").ok_or_else(bad)?;
            let numbers = body.split(',').filter(|v| !v.trim().is_empty());
            let numbers = numbers.map(|v| v.split_once(" = ")?.1.trim().parse().ok());
            let numbers = numbers.collect::<Option<_>>().ok_or_else(bad)?;
            let name = name.to_owned();
            self.enums.insert(name.clone(), Enum { name, numbers });
        } else if let Some(name) = between(&flat, "pub struct ", " {") {
            let body = between(&flat, &format!("pub struct {name} {{"), "}").ok_or_else(bad)?;
            let fields = body.split(',').filter_map(|f| f.split_once(": "));
            let fields = fields.map(|(_, ty)| ty.trim().to_owned()).collect();
            self.structs.insert(name.to_owned(), fields);
        } else if let Some(alias) = between(&flat, "pub use self::", ";") {
            let (of, alias) = alias.split_once(" as ").ok_or_else(bad)?;
            self.aliases.insert(alias.to_owned(), of.to_owned());
        } else if let Some(alias) = between(&flat, "pub type ", ";") {
            let (alias, of) = alias.split_once(" = ").ok_or_else(bad)?;
            self.aliases.insert(alias.to_owned(), of.to_owned());
        }
        self.kept.push(text);
        Ok(())
    }

    /// The type that a name stands for, through all aliases.
    pub fn resolve<'a>(&'a self, mut name: &'a str) -> &'a str {
        while let Some(of) = self.aliases.get(name) {
            name = of;
        }
        name
    }

    /// The enum that a name stands for.
    pub fn as_enum(&self, name: &str) -> Option<&Enum> {
        self.enums.get(self.resolve(name))
    }

    /// The enums that a value of structure `name` contains.
    pub fn enums_in(&self, name: &str) -> BTreeSet<&str> {
        let fields = self.structs.get(self.resolve(name)).into_iter().flatten();
        let mut found = BTreeSet::new();
        for field in fields {
            match self.as_enum(field) {
                Some(e) => drop(found.insert(e.name.as_str())),
                None => found.extend(self.enums_in(field)),
            }
        }
        found
    }
}
