//! Licence and source rules for the dependencies of a workspace.
//!
//! [`Policy`] has the rules of `deny.toml`, [`Graph`] has the packages that `cargo metadata`
//! resolved, and [`Policy::judge`] returns every package that breaks a rule. There are two rules,
//! those of cargo-deny that need no network: the allowed licences alone meet the SPDX expression of
//! each package, and each package is from an allowed registry or is a member of the workspace. The
//! exceptions of cargo-deny (`exceptions`, `clarify`) do not exist here: a package that needs one
//! fails.

mod graph;
mod policy;

pub use graph::Graph;
pub use policy::Policy;
