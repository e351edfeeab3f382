//! The configuration from the environment.

use std::sync::OnceLock;
use std::time::Duration;

use vmlx5_core::fabric::faults::Faults;
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::address::{Fabric, LinkLayer, MAX_DEVICES, MAX_PORTS};

/// The access to the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Directly; a fault handler catches faults.
    Signal,
    /// By system calls.
    Syscall,
}

/// The interface by which libraries issue commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// By ioctl, as current kernels offer it.
    Ioctl,
    /// By writing, as with kernels before 4.20.
    Write,
}

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub fabric: Fabric,
    pub uar: UarMode,
    pub abi: Abi,
    pub dir: Option<String>,
    pub trace: bool,
    pub nap: Option<Duration>,
    pub spin: Option<Duration>,
    pub guard: Guard,
    pub priority: bool,
    /// Faults of frames and ports.
    pub faults: Option<Faults>,
}

/// The value of a variable; an empty value counts as unset.
fn var(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    (!value.is_empty()).then_some(value)
}

fn choice<T: Copy>(name: &str, of: &[(&str, T)]) -> Result<T, String> {
    let value = var(name);
    let chosen = match &value {
        None => of.first(),
        Some(value) => of.iter().find(|(known, _)| known == value),
    };
    chosen.map(|(_, it)| *it).ok_or_else(|| {
        let names: Vec<&str> = of.iter().map(|(known, _)| *known).collect();
        format!(
            "{name} is '{}': it must be one of {}",
            value.unwrap_or_default(),
            names.join(", ")
        )
    })
}

fn count(name: &str, most: u32) -> Result<u32, String> {
    let Some(value) = var(name) else {
        return Ok(1);
    };
    let count = value.parse().ok().filter(|n| (1..=most).contains(n));
    count.ok_or_else(|| format!("{name} is '{value}': it must be a number from 1 to {most}"))
}

fn micros(name: &str) -> Result<Option<Duration>, String> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    let micros = value.parse().ok().filter(|&n: &u64| n <= 1_000_000);
    let micros = micros.ok_or_else(|| {
        format!("{name} is '{value}': it must be a number of microseconds up to 1000000")
    })?;
    Ok(Some(Duration::from_micros(micros)))
}

fn faults(name: &str, ports: u8) -> Result<Option<Faults>, String> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    let faults: Faults = value.parse().map_err(|why| format!("{name}: {why}"))?;
    match faults.port_down.iter().find(|(port, _)| *port > ports) {
        Some((port, _)) => Err(format!("{name} takes port {port} down: there are {ports}")),
        None => Ok(Some(faults)),
    }
}

impl Config {
    /// Reads the variables `VMLX5_*`.
    ///
    /// # Errors
    /// A text that names the invalid variable and its permitted values.
    pub fn from_env() -> Result<Config, String> {
        let name = var("VMLX5_FABRIC").unwrap_or_else(|| "default".into());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!(
                "VMLX5_FABRIC is '{name}': it must be a name of at most 64 letters, digits, \
                 '-', '_' and '.'"
            ));
        }
        let ports = count("VMLX5_PORTS", MAX_PORTS.into())? as u8;
        Ok(Config {
            faults: faults("VMLX5_FAULTS", ports)?,
            fabric: Fabric {
                name,
                devices: count("VMLX5_DEVICES", MAX_DEVICES)?,
                ports,
                link: choice(
                    "VMLX5_LINK",
                    &[("ib", LinkLayer::InfiniBand), ("roce", LinkLayer::Ethernet)],
                )?,
            },
            uar: choice(
                "VMLX5_UAR",
                &[("dyn", UarMode::Dynamic), ("static", UarMode::Static)],
            )?,
            abi: choice("VMLX5_ABI", &[("ioctl", Abi::Ioctl), ("write", Abi::Write)])?,
            dir: var("VMLX5_DIR"),
            trace: choice("VMLX5_TRACE", &[("0", false), ("1", true)])?,
            nap: micros("VMLX5_NAP_US")?,
            spin: micros("VMLX5_SPIN_US")?,
            guard: choice(
                "VMLX5_GUARD",
                &[("signal", Guard::Signal), ("syscall", Guard::Syscall)],
            )?,
            priority: choice("VMLX5_SCHED", &[("high", true), ("none", false)])?,
        })
    }
}

/// The configuration, after the start.
static SETUP: OnceLock<Setup> = OnceLock::new();

/// The values that are fixed at the start.
pub struct Setup {
    pub config: Config,
    /// The path of the tree, without a slash at the end.
    pub tree: Vec<u8>,
}

/// The configuration; `None` before the start, or if it was invalid.
pub fn setup() -> Option<&'static Setup> {
    SETUP.get()
}

/// Sets the configuration. Must be called once, at the start.
pub fn set_up(setup: Setup) {
    let _ = SETUP.set(setup);
}
