//! GPU names, and the choice that `auto` makes.

use super::{NOT_BUILT, Opener, RUNTIMES};
use crate::error::{Error, Kind, Result};

/// The GPU that a name selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// `auto`: the first runtime that has a usable GPU.
    Auto,
    /// A GPU of one runtime.
    Of {
        /// The runtime's name; this build may omit the runtime.
        runtime: &'static str,
        /// The GPU's index in the runtime; `None`: the runtime chooses.
        index: Option<u32>,
    },
}

impl GpuName {
    /// Parses a GPU name.
    ///
    /// # Errors
    /// `Invalid` for a name of no runtime.
    pub fn parse(name: &str) -> Result<GpuName> {
        let unknown = || {
            let numbered = |opener: &Opener| match opener.numbered {
                true => format!("{0}, {0}:N", opener.name),
                false => opener.name.to_owned(),
            };
            let known = RUNTIMES.iter().map(numbered).collect::<Vec<_>>().join(", ");
            let what = format!("{name:?} is not a known GPU; the known GPUs are {known}, auto");
            Error::new("open GPU", Kind::Invalid, what)
        };
        if name == "auto" {
            return Ok(GpuName::Auto);
        }
        let (runtime, index) = match name.split_once(':') {
            Some((runtime, index)) => (runtime, Some(index.parse().map_err(|_| unknown())?)),
            None => (name, None),
        };
        let built = RUNTIMES.iter().map(|opener| (opener.name, opener.numbered));
        let all = built.chain(NOT_BUILT.iter().map(|name| (*name, false)));
        let mut named =
            all.filter(|(name, numbered)| *name == runtime && (*numbered || index.is_none()));
        let (runtime, _) = named.next().ok_or_else(unknown)?;
        Ok(GpuName::Of { runtime, index })
    }
}

/// Whether `auto` tries the next runtime after an error of this kind. It does not replace a broken
/// runtime silently.
pub fn auto_goes_on(kind: Kind) -> bool {
    matches!(kind, Kind::Absent | Kind::Unsupported)
}
