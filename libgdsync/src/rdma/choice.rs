//! Which NIC, driven by whom: what a program or the environment says, and the order in which
//! providers are tried where nothing is said.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::config::env_choice;
use super::{Device, QpConfig};
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};
use crate::provider::nic::Nic;
use crate::provider::rdma_core::RdmaCoreNic;
use crate::provider::verbs::VerbsNic;

const OPEN: &str = "open device";

/// The variables by which the environment names a NIC.
pub(crate) const NIC: &str = "GDS_NIC";
pub(crate) const GID_INDEX: &str = "GDS_GID_INDEX";

/// What a NIC may be named by, in errors.
const FORMS: &str = "mlx5_0, mlx5_0:2, 0x0002c903002f1190:2";

/// How long a queue pair that was made to try a NIC may take to be gone.
const TRIAL: Duration = Duration::from_secs(2);

/// Who drives a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Provider {
    /// What the environment (`GDS_PROVIDER`) says. Else the first that works of: a ConnectX whose
    /// doorbells the GPU reaches; any NIC, by a CPU thread; the virtual one. What is passed over
    /// is told by [`Device::passed_over`], and once for each process by a `tracing` event. A NIC
    /// that was named, by [`DeviceOptions::nic`] or `GDS_NIC`, is never replaced by a virtual one.
    #[default]
    Auto,
    /// A ConnectX, by libmlx5: streams ring it.
    RdmaCore,
    /// Any NIC, by libibverbs: a CPU thread posts what streams ask for.
    Proxy,
    /// The virtual ConnectX, in this process.
    Emulated,
}

impl Provider {
    /// What the environment makes of `Auto`.
    fn resolve(self) -> Result<Provider> {
        match self {
            Provider::Auto => env_choice(
                "GDS_PROVIDER",
                &[
                    ("auto", Provider::Auto),
                    ("rdma_core", Provider::RdmaCore),
                    ("proxy", Provider::Proxy),
                    ("emulated", Provider::Emulated),
                ],
            ),
            other => Ok(other),
        }
    }
}

/// What a NIC is named by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NicName {
    /// What the kernel calls it, which may change when the machine does: `mlx5_0`.
    Kernel(String),
    /// Its GUID, as `ibv_get_device_guid` has it, in the host's order. In text as hexadecimal
    /// digits behind `0x`. It is the NIC's wherever that is plugged in; 0 is nobody's.
    Guid(u64),
}

impl NicName {
    /// Whether it names the NIC that has this name and this GUID.
    pub(crate) fn is(&self, name: &str, guid: u64) -> bool {
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

/// Names a NIC, and its port if it has several: `mlx5_0`, `mlx5_0:2`, `0x0002c903002f1190:1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NicChoice {
    /// Which NIC.
    pub device: NicName,
    /// From 1 on. `None`: the first that is active.
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
    /// What was chosen in code, else the first that the environment names.
    pub(crate) fn resolve(chosen: Option<&NicChoice>) -> Result<Option<NicChoice>> {
        match chosen {
            Some(chosen) => Ok(Some(chosen.clone())),
            None => Ok(NicChoice::from_env()?.into_iter().next()),
        }
    }

    /// What the environment names; empty if it does not.
    pub(super) fn from_env() -> Result<Vec<NicChoice>> {
        let Ok(said) = std::env::var(NIC) else {
            return Ok(Vec::new());
        };
        let all: Result<Vec<NicChoice>> = said.split(',').map(str::parse).collect();
        all.map_err(|_| {
            let what = format!(
                "{NIC}={said}: it is a NIC, a NIC and a port, or several with commas between them: \
                 {FORMS}"
            );
            Error::new(OPEN, Kind::Invalid, what)
        })
    }
}

/// How [`Device::open_with`] opens a NIC.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Who drives it.
    pub provider: Provider,
    /// Which one. `None`: what the environment (`GDS_NIC`) says, else the one nearest to the GPU
    /// that has an active port. The virtual one has no name to choose it by.
    pub nic: Option<NicChoice>,
    /// Whether a background thread looks after queue pairs. Without one the caller does its
    /// work, by [`Device::progress`] about once a millisecond.
    pub watched: bool,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            provider: Provider::Auto,
            nic: None,
            watched: true,
        }
    }
}

impl Device {
    /// Opens the NIC that suits the GPU best, or that the environment names: `GDS_PROVIDER`,
    /// `GDS_NIC`. All ranks of a job have to come to the same kind of NIC.
    ///
    /// # Errors
    /// As [`Device::open_with`].
    pub fn from_env(gpu: &Gpu) -> Result<Device> {
        Device::open_with(gpu, &DeviceOptions::default())
    }

    /// Opens a NIC.
    ///
    /// # Errors
    /// `Absent` if there is no such library or NIC, `Unsupported` if the libraries lack something,
    /// `Invalid` for variables that make no sense, `System` if the NIC cannot be opened. With
    /// [`Provider::Auto`] and no NIC named, only what keeps the virtual one from being opened.
    pub fn open_with(gpu: &Gpu, options: &DeviceOptions) -> Result<Device> {
        let nic = NicChoice::resolve(options.nic.as_ref())?;
        let (nic, passed_over): (Arc<dyn Nic>, _) = match options.provider.resolve()? {
            Provider::RdmaCore => (Arc::new(RdmaCoreNic::open(gpu, nic.as_ref())?), Vec::new()),
            Provider::Proxy => (Arc::new(VerbsNic::open(gpu, nic.as_ref())?), Vec::new()),
            Provider::Emulated => (emulated(gpu)?, Vec::new()),
            Provider::Auto => best(gpu, nic.as_ref())?,
        };
        Device::open(gpu, nic, options.watched, passed_over)
    }
}

fn emulated(gpu: &Gpu) -> Result<Arc<dyn Nic>> {
    Ok(Arc::new(EmulatedNic::open(
        gpu,
        EmulatedOptions::default(),
    )?))
}

/// Opens a NIC in one way.
type Attempt<'a> = dyn Fn() -> Result<Arc<dyn Nic>> + 'a;

/// The first that works, and why others do not.
fn best(gpu: &Gpu, named: Option<&NicChoice>) -> Result<(Arc<dyn Nic>, Vec<String>)> {
    let direct = || Ok(Arc::new(RdmaCoreNic::open(gpu, named)?) as Arc<dyn Nic>);
    let by_thread = || Ok(Arc::new(VerbsNic::open(gpu, named)?) as Arc<dyn Nic>);
    let attempts: [(&str, &Attempt<'_>); 2] = [("rdma_core", &direct), ("proxy", &by_thread)];
    let told = named.is_some() || std::env::var_os(GID_INDEX).is_some();
    let mut passed_over = Vec::new();
    let mut absent = true;
    for (name, attempt) in attempts {
        let (nonsense, e) = match attempt() {
            Ok(nic) => match tried(gpu, &nic) {
                Ok(()) => {
                    report(&passed_over, name, absent);
                    return Ok((nic, passed_over));
                }
                // Whatever it says: NIC and GPU were found as they were named.
                Err(e) => (false, e),
            },
            Err(e) => (e.kind() == Kind::Invalid, e),
        };
        // What was said makes no sense, or the named NIC can be had in no way.
        if told && (nonsense || name == "proxy") {
            return Err(e);
        }
        absent &= e.kind() == Kind::Absent;
        passed_over.push(format!("{name}: {e}"));
    }
    report(&passed_over, "emulated", absent);
    Ok((emulated(gpu)?, passed_over))
}

/// Whether it can be used: whether a queue pair can be made, whose doorbell the GPU reaches.
fn tried(gpu: &Gpu, nic: &Arc<dyn Nic>) -> Result<()> {
    let device = Device::open(gpu, Arc::clone(nic), true, Vec::new())?;
    let config = QpConfig {
        send_blocks: 4,
        recv_entries: 4,
        ..QpConfig::default()
    };
    drop(device.alloc_pd()?.create_qp(&config)?);
    device.close(TRIAL)
}

/// Says once for each process what was passed over for what. That nothing is there is no news.
fn report(passed_over: &[String], taken: &str, absent: bool) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    for why in passed_over {
        let news = format!("{taken} is used, not {why}");
        if told.contains(&news) {
            continue;
        }
        match absent {
            true => tracing::info!(target: "gdsync", "{news}"),
            false => tracing::warn!(target: "gdsync", "{news}"),
        }
        told.insert(news);
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
