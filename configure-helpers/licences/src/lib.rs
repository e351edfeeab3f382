//! Licence and source rules for the dependencies of a workspace.
//!
//! [`Policy`] is what `deny.toml` allows, [`Graph`] is what `cargo metadata` resolved, and
//! [`Policy::judge`] names every package that breaks a rule. The rules are the two of
//! cargo-deny's that need no network: each package's SPDX expression can be met with the
//! allowed licences alone, and each package comes from an allowed registry or is a member
//! of the workspace. Where cargo-deny knows a way round (`exceptions`, `clarify`), there is
//! none here: such a package fails.

mod graph;
mod policy;

pub use graph::Graph;
pub use policy::Policy;
