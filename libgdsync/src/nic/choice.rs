//! Which NIC, driven by whom: what a program or the environment says.

use std::fmt;
use std::str::FromStr;

use crate::env;
use crate::error::{Error, Kind, Result};
use crate::options::setters;

/// The variables by which the environment names a NIC.
const NIC: &str = "GDS_NIC";
pub(crate) const GID_INDEX: &str = "GDS_GID_INDEX";

/// What a NIC may be named by, in errors.
const FORMS: &str = "mlx5_0, mlx5_0:2, 0x0002c903002f1190:2";

/// Who drives a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Provider {
    /// What the environment (`GDS_PROVIDER`) says. Else the first that works of: a ConnectX whose
    /// doorbells the GPU reaches; any NIC, by a CPU thread; the virtual one. What is passed over
    /// is told by [`Device::passed_over`](crate::rdma::Device::passed_over), and once for each process by a `tracing` event. A NIC
    /// that was named, by [`DeviceOptions::nic`] or `GDS_NIC`, is never replaced by a virtual one.
    #[default]
    Auto,
    /// A ConnectX, by libmlx5: streams ring it.
    Mlx5,
    /// Any NIC, by libibverbs: a CPU thread posts what streams ask for.
    Verbs,
    /// The virtual ConnectX, in this process.
    Emulated,
}

impl Provider {
    /// What the environment says.
    #[doc(hidden)]
    pub const VARIABLE: env::Variable<Provider> = env::Variable {
        name: "GDS_PROVIDER",
        former_name: None,
        words: &[
            ("auto", Provider::Auto),
            ("mlx5", Provider::Mlx5),
            ("verbs", Provider::Verbs),
            ("emulated", Provider::Emulated),
        ],
        former_words: &[("rdma_core", "mlx5"), ("proxy", "verbs")],
    };

    /// What the environment makes of `Auto`.
    pub(crate) fn resolve(self) -> Result<Provider> {
        match self {
            Provider::Auto => Provider::VARIABLE.read(),
            other => Ok(other),
        }
    }
}

/// As the environment calls it: `mlx5`, `verbs`.
impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Provider::VARIABLE.words.iter();
        f.write_str(
            all.find(|(_, one)| one == self)
                .map_or("", |(name, _)| name),
        )
    }
}

/// What the first provider that works makes, in the order of `Auto`; `None`: the virtual one is left.
/// `attempt` says of its error whether another provider would meet it too, as a setting that is not
/// valid; `said`: that the environment or the program says something of a NIC or its port, which is
/// then not replaced by the virtual one. Why others do not work goes to `passed_over`.
///
/// # Errors
/// That of the attempt behind which nothing else is tried.
pub fn first_that_works<T, E>(
    said: bool,
    passed_over: &mut Vec<(Provider, E)>,
    mut attempt: impl FnMut(Provider) -> std::result::Result<T, (bool, E)>,
) -> std::result::Result<Option<T>, E> {
    for provider in [Provider::Mlx5, Provider::Verbs] {
        match attempt(provider) {
            Ok(works) => return Ok(Some(works)),
            Err((everywhere, e)) if said && (everywhere || provider == Provider::Verbs) => {
                return Err(e);
            }
            Err((_, e)) => passed_over.push((provider, e)),
        }
    }
    Ok(None)
}

/// What a NIC is named by.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NicName {
    /// The kernel's name of it.
    Kernel(String),
    /// Its own, which is the same wherever it is plugged in.
    Guid(u64),
}

impl NicName {
    /// Whether it names the NIC that has this name and this GUID; 0 is no NIC's.
    pub fn is(&self, name: &str, guid: u64) -> bool {
        match self {
            NicName::Kernel(wanted) => wanted == name,
            NicName::Guid(wanted) => *wanted == guid && guid != 0,
        }
    }
}

impl fmt::Display for NicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicName::Kernel(name) => f.write_str(name),
            NicName::Guid(guid) => write!(f, "{guid:#018x}"),
        }
    }
}

/// Names a NIC, and its port if it has several. It is read from text, too: `mlx5_0`, `mlx5_0:2`,
/// `0x0002c903002f1190:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NicChoice {
    /// The NIC.
    #[doc(hidden)]
    pub device: NicName,
    /// From 1 on. `None`: the first that is active.
    #[doc(hidden)]
    pub port: Option<u8>,
}

impl FromStr for NicChoice {
    type Err = Error;

    /// # Errors
    /// `Invalid` for anything but a name or a GUID, with a port or without.
    fn from_str(said: &str) -> Result<NicChoice> {
        let wrong = || {
            let what = format!("{said}: it is a NIC, or a NIC and a port: {FORMS}");
            Error::new("choose a NIC", Kind::Invalid, what)
        };
        let (name, port) = match said.split_once(':') {
            None => (said, None),
            Some((name, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (name, Some(port.ok_or_else(wrong)?))
            }
        };
        let device = match name.strip_prefix("0x") {
            _ if name.is_empty() => return Err(wrong()),
            None => NicName::Kernel(name.to_owned()),
            Some(digits) => {
                // `from_str_radix` would take a sign.
                let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                let guid = u64::from_str_radix(digits, 16).ok();
                let guid = guid.filter(|guid| plain && *guid != 0);
                NicName::Guid(guid.ok_or_else(wrong)?)
            }
        };
        Ok(NicChoice { device, port })
    }
}

impl fmt::Display for NicChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl NicChoice {
    /// The NIC that the kernel calls so, which may change when the machine does: `mlx5_0`.
    pub fn kernel(name: impl Into<String>) -> NicChoice {
        NicChoice {
            device: NicName::Kernel(name.into()),
            port: None,
        }
    }

    /// The NIC with this GUID, as `ibv_get_device_guid` has it, in the host's order. In text as
    /// hexadecimal digits behind `0x`. It is the NIC's wherever that is plugged in; no NIC has 0.
    pub fn guid(guid: u64) -> NicChoice {
        NicChoice {
            device: NicName::Guid(guid),
            port: None,
        }
    }

    /// Its port, from 1 on. Without: the first that is active.
    #[must_use]
    pub fn port(mut self, port: u8) -> NicChoice {
        self.port = Some(port);
        self
    }

    /// What was chosen in code, else the first that the environment names.
    pub(crate) fn resolve(chosen: Option<&NicChoice>) -> Result<Option<NicChoice>> {
        match chosen {
            Some(chosen) => Ok(Some(chosen.clone())),
            None => Ok(NicChoice::from_env()?.into_iter().next()),
        }
    }

    /// What the environment names; empty if it does not.
    pub(crate) fn from_env() -> Result<Vec<NicChoice>> {
        std::env::var(NIC).map_or(Ok(Vec::new()), |said| NicChoice::list(&said))
    }

    /// What [`NIC`] names by `said`: one at least.
    #[doc(hidden)]
    pub fn list(said: &str) -> Result<Vec<NicChoice>> {
        let all: Result<Vec<NicChoice>> = said.split(',').map(str::parse).collect();
        all.map_err(|_| {
            let what = format!(
                "{NIC}={said}: it is a NIC, a NIC and a port, or several with commas between them: \
                 {FORMS}"
            );
            Error::new("open device", Kind::Invalid, what)
        })
    }
}

/// How [`Device::open_with`](crate::rdma::Device::open_with) opens a NIC.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Who drives it.
    pub provider: Provider,
    /// Which one. `None`: what the environment (`GDS_NIC`) says, else the one nearest to the GPU
    /// that has an active port. The virtual one has no name to choose it by.
    pub nic: Option<NicChoice>,
    /// Whether a background thread looks after queue pairs. Without one the caller does its
    /// work, by [`Device::progress`](crate::rdma::Device::progress) about once a millisecond.
    pub watched: bool,
}

setters! { DeviceOptions {
    provider: Provider,
    watched: bool,
} optional {
    nic: NicChoice,
} }

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            provider: Provider::Auto,
            nic: None,
            watched: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_named_with_its_port_or_without() {
        let guid = "0x0002c903002f1190";
        for said in ["mlx5_0", "mlx5_1:2", "rxe0:255", guid, &format!("{guid}:1")] {
            let nic: NicChoice = said.parse().unwrap();
            assert_eq!(nic.to_string(), said);
        }
        let nic: NicChoice = "mlx5_1:2".parse().unwrap();
        assert_eq!(nic.device, NicName::Kernel("mlx5_1".to_owned()));
        assert!(nic.port == Some(2) && nic.device.is("mlx5_1", 0));
        let nic: NicChoice = "0x2c903002F1190".parse().unwrap();
        assert_eq!(nic.to_string(), guid);
        assert!(nic.device.is("mlx5_1", 0x0002_c903_002f_1190));
        assert!(!nic.device.is("0x2c903002F1190", 1));
        for wrong in [
            "",
            ":1",
            "mlx5_0:",
            "mlx5_0:0",
            "mlx5_0:x",
            "mlx5_0:1:2",
            "mlx5_0:256",
            "0x",
            "0x0",
            "0x+1",
            "0x12345678123456781",
            "0xmlx5",
        ] {
            let e = wrong.parse::<NicChoice>().unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid);
        }
    }
}
