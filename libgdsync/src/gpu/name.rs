//! What the name of a GPU asks for, and what `auto` comes to.

use super::{NOT_BUILT, Opener, RUNTIMES};
use crate::error::{Error, Kind, Result};

/// What a name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// `auto`: the first runtime that has a usable GPU.
    Auto,
    /// A GPU of one runtime.
    Of {
        /// The runtime's name; it may be one that this build does not have.
        runtime: &'static str,
        /// Its number there; `None`: what the runtime chooses.
        index: Option<u32>,
    },
}

impl GpuName {
    /// What `name` asks for.
    ///
    /// # Errors
    /// `Invalid` for a name that no runtime has.
    pub fn parse(name: &str) -> Result<GpuName> {
        let unknown = || {
            let numbered = |opener: &Opener| match opener.numbered {
                true => format!("{0}, {0}:N", opener.name),
                false => opener.name.to_owned(),
            };
            let known = RUNTIMES.iter().map(numbered).collect::<Vec<_>>().join(", ");
            let what = format!("{name:?}: known are {known}, auto");
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

/// Whether `auto` goes on to the next runtime where one cannot be opened by an error of this kind:
/// one that is broken is not replaced in silence.
pub fn auto_goes_on(kind: Kind) -> bool {
    matches!(kind, Kind::Absent | Kind::Unsupported)
}
