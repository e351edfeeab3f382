//! How a virtual NIC is made.

use std::fmt;

use vmlx5::fabric::faults::Faults;
use vmlx5::fabric::hub::Hub;

use crate::error::{Error, Kind, Result};

/// What connects virtual NICs (feature `emulated`).
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Fabric {
    /// Processes of one host, by shared memory.
    #[default]
    Host,
    /// NICs of one process that share this hub; with its links under the hub's control.
    Hub(Hub),
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fabric::Host => "host",
            Fabric::Hub(_) => "hub",
        })
    }
}

/// How a virtual NIC is made (feature `emulated`).
#[derive(Clone, Debug, Default)]
pub struct EmulatedOptions {
    /// What it is plugged into.
    pub fabric: Fabric,
    /// What happens to what it sends and receives. Default: what `GDS_FAULTS` says, if anything.
    pub faults: Option<Faults>,
}

/// What `GDS_FAULTS` says.
pub(super) fn faults_of_environment() -> Result<Option<Faults>> {
    const NAME: &str = "GDS_FAULTS";
    let Ok(words) = std::env::var(NAME) else {
        return Ok(None);
    };
    if words.is_empty() {
        return Ok(None);
    }
    let faults = words.parse().map_err(|why| {
        let what = format!("{NAME}: {why}");
        Error::new("read environment", Kind::Invalid, what)
    })?;
    Ok(Some(faults))
}
