//! The rules of `deny.toml`, and their check on a resolved graph.

use anyhow::{Context, Result};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::graph::{Graph, Package};

/// The parser's mode. Licences on crates.io are SPDX, but old crates write `MIT/Apache-2.0`, and a
/// withdrawn identifier must be refused as a licence and not as a syntax error.
const CRATES_IO: ParseMode = ParseMode {
    allow_slash_as_or_operator: true,
    allow_imprecise_license_names: false,
    allow_postfix_plus_on_gpl: true,
    allow_deprecated: true,
    allow_unknown: false,
};

/// The allowed licences and registries.
#[derive(Debug)]
pub struct Policy {
    allow: Vec<Licensee>,
    registries: Vec<String>,
}

#[derive(Deserialize)]
struct DenyToml {
    licenses: Licenses,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

impl Policy {
    /// Reads the text of a `deny.toml`.
    ///
    /// # Errors
    /// The text is not TOML, lacks a list, or has an entry that is not an SPDX licence.
    pub fn parse(deny_toml: &str) -> Result<Policy> {
        let deny: DenyToml = toml::from_str(deny_toml).context("not a usable deny.toml")?;
        let licence = |entry: &String| {
            let no_licence = || format!("licenses.allow: `{entry}` is not an SPDX licence");
            Licensee::parse(entry).with_context(no_licence)
        };
        Ok(Policy {
            allow: deny
                .licenses
                .allow
                .iter()
                .map(licence)
                .collect::<Result<_>>()?,
            registries: deny.sources.allow_registry,
        })
    }

    /// The violations of the packages of `graph`, one rule a line; empty if there are none.
    pub fn judge(&self, graph: &Graph) -> Vec<String> {
        let of = |p: &Package| {
            let broken = [self.licence(p), self.source(p)].into_iter().flatten();
            let lines = broken.map(|rule| format!("{p}: {rule}"));
            lines.collect::<Vec<_>>()
        };
        graph.packages.iter().flat_map(of).collect()
    }

    /// A licence file alone is not accepted.
    fn licence(&self, p: &Package) -> Option<String> {
        let Some(licence) = &p.license else {
            return Some("gives no SPDX licence".to_owned());
        };
        let Ok(expression) = Expression::parse_mode(licence, CRATES_IO) else {
            return Some(format!("licence `{licence}` is not an SPDX expression"));
        };
        let allowed = |req: &_| self.allow.iter().any(|l| l.satisfies(req));
        let refused = expression.evaluate_with_failures(allowed).err()?;
        let refused: Vec<_> = refused.iter().map(|r| r.req.to_string()).collect();
        let refused = refused.join(", ");
        Some(format!(
            "licence `{licence}` is not allowed (not in licenses.allow: {refused})"
        ))
    }

    fn source(&self, p: &Package) -> Option<String> {
        let origin = match &p.source {
            None if p.member => return None,
            None => "a path outside the workspace",
            Some(source) => source,
        };
        let url = origin.strip_prefix("registry+").unwrap_or(origin);
        let allowed = self.registries.iter().any(|r| r == url);
        (!allowed)
            .then(|| format!("source {origin} is not allowed (not in sources.allow-registry)"))
    }
}
