//! [`PathChoice`]: which path the program or the environment selects.

use crate::error::{Error, Kind, Result};

/// The path to other ranks of this host, for [`Builder::path`](crate::Builder::path).
/// All ranks must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PathChoice {
    /// [`PathChoice::Nic`].
    #[default]
    Auto,
    /// [`Path::Nic`](crate::Path::Nic).
    Nic,
    /// [`Path::Ipc`](crate::Path::Ipc): the ranks map each other's memory.
    Ipc,
}

impl PathChoice {
    /// The choice in `MP_PATH`.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    pub(crate) fn from_env() -> Result<PathChoice> {
        PathChoice::parse(&std::env::var("MP_PATH").unwrap_or_default())
    }

    /// The choice that `value` of `MP_PATH` names.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    #[doc(hidden)]
    pub fn parse(value: &str) -> Result<PathChoice> {
        match value {
            "" | "auto" => Ok(PathChoice::Auto),
            "nic" => Ok(PathChoice::Nic),
            "ipc" => Ok(PathChoice::Ipc),
            _ => {
                let what = format!("MP_PATH={value} is not valid; set it to auto, nic or ipc");
                Err(Error::new("read environment", Kind::Invalid, what))
            }
        }
    }
}
