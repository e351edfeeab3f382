//! What `deny.toml` allows, and the judgement over a resolved graph.

use std::fmt;

use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::graph::{Graph, Package};

/// Licences of the crates.io index are SPDX, but old crates write `MIT/Apache-2.0`, and
/// withdrawn identifiers shall be refused by name and not as a syntax error.
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

/// A `deny.toml` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The text is not TOML, or lacks `licenses.allow` or `sources.allow-registry`.
    #[error("not a usable deny.toml")]
    Toml(#[from] toml::de::Error),
    /// An entry of `licenses.allow` is not one SPDX licence.
    #[error("licenses.allow: `{entry}` is not an SPDX licence")]
    Licence {
        /// The entry as written.
        entry: String,
        /// What is wrong with it.
        source: spdx::ParseError,
    },
}

/// A package that breaks a rule.
#[derive(Debug, thiserror::Error)]
pub enum Offence {
    /// The licence cannot be met with allowed ones alone.
    #[error("{package}: licence `{licence}` is not allowed (not in licenses.allow: {refused})")]
    Licence {
        /// Name and version.
        package: String,
        /// The SPDX expression as the package writes it.
        licence: String,
        /// Its terms that are not allowed.
        refused: String,
    },
    /// The package gives no SPDX expression; a licence file alone is not judged.
    #[error("{package}: gives no SPDX licence")]
    NoLicence {
        /// Name and version.
        package: String,
    },
    /// The package's licence is not an SPDX expression.
    #[error("{package}: licence `{licence}` is not an SPDX expression")]
    Unreadable {
        /// Name and version.
        package: String,
        /// The text in its place.
        licence: String,
        /// What is wrong with it.
        source: spdx::ParseError,
    },
    /// The package comes from somewhere else than an allowed registry or the workspace.
    #[error("{package}: source {origin} is not allowed (not in sources.allow-registry)")]
    Source {
        /// Name and version.
        package: String,
        /// Cargo's name of the source, or words for a path.
        origin: String,
    },
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
    /// The text is not TOML, lacks a list, or allows something that is not an SPDX licence.
    pub fn parse(deny_toml: &str) -> Result<Policy, PolicyError> {
        let deny: DenyToml = toml::from_str(deny_toml)?;
        let allow = deny
            .licenses
            .allow
            .into_iter()
            .map(|entry| {
                Licensee::parse(&entry).map_err(|source| PolicyError::Licence { entry, source })
            })
            .collect::<Result<_, _>>()?;
        Ok(Policy {
            allow,
            registries: deny.sources.allow_registry,
        })
    }

    /// Every package of `graph` that breaks a rule; empty when all is well.
    pub fn judge(&self, graph: &Graph) -> Vec<Offence> {
        let of = |p| [self.licence(p), self.source(p)];
        graph.packages.iter().flat_map(of).flatten().collect()
    }

    fn licence(&self, p: &Package) -> Option<Offence> {
        let package = p.to_string();
        let Some(licence) = p.license.clone() else {
            return Some(Offence::NoLicence { package });
        };
        let expression = match Expression::parse_mode(&licence, CRATES_IO) {
            Ok(expression) => expression,
            Err(source) => {
                return Some(Offence::Unreadable {
                    package,
                    licence,
                    source,
                });
            }
        };
        let allowed = |req: &_| self.allow.iter().any(|l| l.satisfies(req));
        let refused = expression.evaluate_with_failures(allowed).err()?;
        let refused: Vec<_> = refused.iter().map(|r| r.req.to_string()).collect();
        Some(Offence::Licence {
            package,
            licence,
            refused: refused.join(", "),
        })
    }

    fn source(&self, p: &Package) -> Option<Offence> {
        let origin = match &p.source {
            None if p.member => return None,
            None => "a path outside the workspace".to_owned(),
            Some(source) => {
                let url = source.strip_prefix("registry+").unwrap_or(source);
                if self.registries.iter().any(|r| r == url) {
                    return None;
                }
                source.clone()
            }
        };
        Some(Offence::Source {
            package: p.to_string(),
            origin,
        })
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}
