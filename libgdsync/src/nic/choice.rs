//! The choice of a NIC and its provider, by a program or the environment.

use std::fmt;
use std::str::FromStr;

use super::TcpOptions;
use crate::env;
use crate::error::{Error, Kind, Result};
use crate::options::setters;

/// The variable by which the environment names NICs.
const NIC: &str = "GDS_NIC";
pub(crate) const GID_INDEX: &str = "GDS_GID_INDEX";

/// The accepted forms of a NIC's name, for errors.
const FORMS: &str = "mlx5_0, mlx5_0:2, 0x0002c903002f1190:2";

/// The provider: the part of the library that drives a NIC. `docs/paths.md` has the conditions of
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Provider {
    /// The provider that the environment (`GDS_PROVIDER`) names. Else the first that works of: a
    /// ConnectX whose doorbells the GPU reaches; any NIC, by a CPU thread; the virtual NIC.
    /// [`Device::passed_over`](crate::rdma::Device::passed_over) reports the providers that were
    /// passed over, and so does a `tracing` event, once per process. A NIC that was named, by
    /// [`DeviceOptions::nic`] or `GDS_NIC`, is never replaced by a virtual one.
    #[default]
    Auto,
    /// A ConnectX, by libmlx5: streams write its doorbells.
    Mlx5,
    /// Any NIC, by libibverbs: a CPU thread posts the requests of streams.
    Verbs,
    /// The virtual ConnectX, in this process.
    Emulated,
    /// No NIC: TCP connections carry the packets of queue pairs, and a CPU thread is their NIC. It
    /// reaches every host that TCP reaches, and is never chosen by [`Provider::Auto`].
    Tcp,
}

impl Provider {
    /// The choices of the environment variable.
    #[doc(hidden)]
    pub const VARIABLE: env::Variable<Provider> = env::Variable {
        name: "GDS_PROVIDER",
        former_name: None,
        words: &[
            ("auto", Provider::Auto),
            ("mlx5", Provider::Mlx5),
            ("verbs", Provider::Verbs),
            ("emulated", Provider::Emulated),
            ("tcp", Provider::Tcp),
        ],
        former_words: &[("rdma_core", "mlx5"), ("proxy", "verbs")],
    };

    /// The provider that the environment selects for `Auto`.
    pub(crate) fn resolve(self) -> Result<Provider> {
        match self {
            Provider::Auto => Provider::VARIABLE.read(),
            other => Ok(other),
        }
    }
}

/// The name of the provider in the environment: `mlx5`, `verbs`.
impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Provider::VARIABLE.words.iter();
        f.write_str(
            all.find(|(_, one)| one == self)
                .map_or("", |(name, _)| name),
        )
    }
}

/// The result of the first provider that works, in the order of `Auto`; `None`: only the virtual
/// NIC remains. `attempt` returns with its error whether other providers would fail with it too,
/// for example on an invalid setting. `named`: the environment or the program names a NIC or a
/// setting of its port, so the virtual NIC must not replace it. The errors of other providers are
/// appended to `passed_over`.
///
/// # Errors
/// The error of an attempt after which no other provider is tried.
pub fn first_that_works<T, E>(
    named: bool,
    passed_over: &mut Vec<(Provider, E)>,
    mut attempt: impl FnMut(Provider) -> std::result::Result<T, (bool, E)>,
) -> std::result::Result<Option<T>, E> {
    for provider in [Provider::Mlx5, Provider::Verbs] {
        match attempt(provider) {
            Ok(works) => return Ok(Some(works)),
            Err((everywhere, e)) if named && (everywhere || provider == Provider::Verbs) => {
                return Err(e);
            }
            Err((_, e)) => passed_over.push((provider, e)),
        }
    }
    Ok(None)
}

/// The name of a NIC.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NicName {
    /// The kernel's name of the NIC.
    Kernel(String),
    /// The NIC's own identifier, which is the same in every slot.
    Guid(u64),
}

impl NicName {
    /// Whether it names the NIC that has this name and this GUID; no NIC has GUID 0.
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

/// Names a NIC, and its port if it has several, for [`DeviceOptions`]. It is also parsed from text,
/// in the form that `GDS_NIC` has.
///
/// ```
/// use gdsync::rdma::{DeviceOptions, NicChoice, Provider};
///
/// # fn main() -> gdsync::Result<()> {
/// let second: NicChoice = "mlx5_0:2".parse()?; // the name that the kernel gives it, and the port
/// assert_eq!(second, NicChoice::kernel("mlx5_0").port(2));
/// let by_guid: NicChoice = "0x0002c903002f1190".parse()?; // the first active port
/// let options = DeviceOptions::default().provider(Provider::Mlx5).nic(second);
/// # assert_ne!(options.nic, Some(by_guid));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NicChoice {
    /// The NIC.
    #[doc(hidden)]
    pub device: NicName,
    /// The port, from 1 on. `None`: the first that is active.
    #[doc(hidden)]
    pub port: Option<u8>,
}

impl FromStr for NicChoice {
    type Err = Error;

    /// # Errors
    /// `Invalid` unless the text is a name or a GUID, with or without a port.
    fn from_str(text: &str) -> Result<NicChoice> {
        let wrong = || {
            let what =
                format!("{text} does not name a NIC, or a NIC and a port; examples are {FORMS}");
            Error::new("choose NIC", Kind::Invalid, what)
        };
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (name, Some(port.ok_or_else(wrong)?))
            }
        };
        let device = match name.strip_prefix("0x") {
            _ if name.is_empty() => return Err(wrong()),
            None => NicName::Kernel(name.to_owned()),
            Some(digits) => {
                // `from_str_radix` would accept a sign.
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
    /// The NIC with this kernel name, `mlx5_0`. The name may change when the machine's hardware
    /// does.
    pub fn kernel(name: impl Into<String>) -> NicChoice {
        NicChoice {
            device: NicName::Kernel(name.into()),
            port: None,
        }
    }

    /// The NIC with this GUID, as `ibv_get_device_guid` returns it, in the host's byte order. Its
    /// text form is `0x` and hexadecimal digits. The GUID stays the same in every slot; no NIC has
    /// 0.
    pub fn guid(guid: u64) -> NicChoice {
        NicChoice {
            device: NicName::Guid(guid),
            port: None,
        }
    }

    /// Sets the port, from 1 on. Default: the first that is active.
    #[must_use]
    pub fn port(mut self, port: u8) -> NicChoice {
        self.port = Some(port);
        self
    }

    /// The NIC chosen in code, else the first that the environment names.
    pub(crate) fn resolve(chosen: Option<&NicChoice>) -> Result<Option<NicChoice>> {
        match chosen {
            Some(chosen) => Ok(Some(chosen.clone())),
            None => Ok(NicChoice::from_env()?.into_iter().next()),
        }
    }

    /// The NICs that the environment names; empty if it names none.
    pub(crate) fn from_env() -> Result<Vec<NicChoice>> {
        std::env::var(NIC).map_or(Ok(Vec::new()), |names| NicChoice::list(&names))
    }

    /// The NICs that [`NIC`] names by `names`: at least one.
    #[doc(hidden)]
    pub fn list(names: &str) -> Result<Vec<NicChoice>> {
        let all: Result<Vec<NicChoice>> = names.split(',').map(str::parse).collect();
        all.map_err(|_| {
            let what = format!(
                "{NIC}={names} does not name a NIC, a NIC and a port, or several with commas between \
                 them; examples are {FORMS}"
            );
            Error::new("open device", Kind::Invalid, what)
        })
    }
}

/// The options of [`Device::open_with`](crate::rdma::Device::open_with): provider, NIC, background
/// thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// The provider that drives the NIC. Default: [`Provider::Auto`].
    pub provider: Provider,
    /// The NIC. `None`: the one that the environment (`GDS_NIC`) names, else the one nearest to the
    /// GPU that has an active port. The virtual NIC cannot be chosen by name.
    pub nic: Option<NicChoice>,
    /// Whether a background thread serves the queue pairs. Without it, the caller calls
    /// [`Device::progress`](crate::rdma::Device::progress) about once a millisecond. Default: true.
    pub watched: bool,
    /// The options of [`Provider::Tcp`].
    pub tcp: TcpOptions,
}

setters! { DeviceOptions {
    provider: Provider,
    watched: bool,
    tcp: TcpOptions,
} optional {
    nic: NicChoice,
} }

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            provider: Provider::Auto,
            nic: None,
            watched: true,
            tcp: TcpOptions::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_named_with_its_port_or_without() {
        let guid = "0x0002c903002f1190";
        for text in ["mlx5_0", "mlx5_1:2", "rxe0:255", guid, &format!("{guid}:1")] {
            let nic: NicChoice = text.parse().unwrap();
            assert_eq!(nic.to_string(), text);
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
