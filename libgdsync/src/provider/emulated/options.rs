//! Options of a virtual NIC.

use std::fmt;

pub use vmlx5::fabric::faults::Faults;
pub use vmlx5::fabric::hub::Hub;

use crate::error::{Error, Kind, Result};
use crate::options::setters;

/// The options of a virtual NIC, for
/// [`Device::emulated_with`](crate::rdma::Device::emulated_with) (feature `emulated`).
///
/// ```
/// use gdsync::{EmulatedOptions, Faults};
/// use gdsync::rdma::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let faults = "loss=0.01,seed=7".parse::<Faults>()?;
/// let device = Device::emulated_with(&gpu, EmulatedOptions::default().faults(faults))?;
/// assert!(device.keeps_write_order()); // only the fault `ooo` changes it
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct EmulatedOptions {
    /// The fabric: a hub, which connects NICs of one process. `None`: the shared memory that
    /// connects processes of one host.
    pub hub: Option<Hub>,
    /// Faults of the packets that it sends and receives. Default: the value of `GDS_FAULTS`, if
    /// set.
    pub faults: Option<Faults>,
}

setters! { EmulatedOptions {} optional {
    hub: Hub,
    faults: Faults,
} }

impl fmt::Debug for EmulatedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fabric = if self.hub.is_some() { "hub" } else { "host" };
        write!(f, "virtual NIC on a {fabric}, faults {:?}", self.faults)
    }
}

/// The faults that `GDS_FAULTS` sets.
pub(super) fn faults_of_environment() -> Result<Option<Faults>> {
    const NAME: &str = "GDS_FAULTS";
    let Ok(words) = std::env::var(NAME) else {
        return Ok(None);
    };
    if words.is_empty() {
        return Ok(None);
    }
    let faults = words.parse().map_err(|why| {
        let what = format!("the value of {NAME} is invalid: {why}");
        Error::new("read environment", Kind::Invalid, what)
    })?;
    Ok(Some(faults))
}
