//! The kernel: devices on the PCI bus, modules, the NVIDIA driver's settings, limits.

use crate::machine::{Access, Machine};
use serde::Serialize;

/// The kernel and its devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct System {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Whether the kernel can load modules.
    pub loadable_modules: bool,
    /// GPUs and NICs on the PCI bus, with or without a driver.
    pub pci: Vec<PciDevice>,
    /// The NVIDIA kernel driver, if it is loaded.
    pub nvidia: Option<Nvidia>,
    /// `/dev/nvidiactl`.
    pub nvidiactl: Access,
    /// `/dev/nvidia-uvm`.
    pub nvidia_uvm: Access,
    /// Whether the kernel module nvidia_peermem is loaded.
    pub peermem: bool,
    /// Whether a channel for fabric handles exists.
    pub imex_channel: bool,
    /// Whether an IOMMU is on.
    pub iommu: bool,
    /// Limit of the memory that the process may lock.
    pub memlock: Limit,
}

impl System {
    /// Devices of a vendor on the PCI bus.
    pub fn of(&self, kind: PciKind) -> impl Iterator<Item = &PciDevice> {
        self.pci.iter().filter(move |device| device.kind == kind)
    }

    /// Whether the kernel's release is at least this; true if it is unknown.
    pub fn kernel_since(&self, major: u32, minor: u32) -> bool {
        let Some(release) = &self.kernel else {
            return true;
        };
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|n| n.parse().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        found >= (major, minor)
    }
}

/// A GPU or NIC on the PCI bus.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PciDevice {
    /// Its address.
    pub address: String,
    /// Its kind.
    pub kind: PciKind,
    /// Vendor and device id.
    pub id: String,
}

/// The kind of a device on the PCI bus, by vendor and class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PciKind {
    /// A GPU of NVIDIA.
    NvidiaGpu,
    /// A GPU of AMD.
    AmdGpu,
    /// A NIC of the ConnectX or BlueField family.
    Connectx,
}

/// The NVIDIA kernel driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Nvidia {
    /// Its version.
    pub version: Option<String>,
    /// Whether it is the open driver, which dma-bufs require.
    pub open: bool,
    /// Whether an unprivileged process may let the GPU write to other PCI devices.
    pub peer_mapping_override: bool,
    /// Whether the first version of memory operations is enabled, if the driver reports it.
    pub stream_memops_v1: Option<bool>,
    /// The value of `RegistryDwords`.
    pub registry_dwords: Option<String>,
}

/// A limit of the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// No limit.
    Unlimited,
    /// A limit in bytes.
    Bytes(u64),
    /// The limit could not be read.
    Unknown,
}

/// Examines the system.
pub(crate) fn look(machine: &Machine) -> System {
    System {
        kernel: machine.read("proc/sys/kernel/osrelease"),
        loadable_modules: machine.exists("proc/modules"),
        pci: pci(machine),
        nvidia: nvidia(machine),
        nvidiactl: machine.access("dev/nvidiactl"),
        nvidia_uvm: machine.access("dev/nvidia-uvm"),
        peermem: machine.module("nvidia_peermem"),
        imex_channel: !machine.list("dev/nvidia-caps-imex-channels").is_empty(),
        iommu: !machine.list("sys/class/iommu").is_empty(),
        memlock: machine
            .read("proc/self/limits")
            .map_or(Limit::Unknown, |limits| memlock(&limits)),
    }
}

fn pci(machine: &Machine) -> Vec<PciDevice> {
    let of_use = |address: String| {
        let read = |file: &str| {
            let text = machine.read(&format!("sys/bus/pci/devices/{address}/{file}"))?;
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        };
        let (vendor, class) = (read("vendor")?, read("class")?);
        let kind = match (vendor, class >> 8) {
            // Display controllers, and processing accelerators.
            (0x10de, 0x0300..=0x03ff | 0x1200) => PciKind::NvidiaGpu,
            (0x1002, 0x0300..=0x03ff | 0x1200) => PciKind::AmdGpu,
            // Ethernet and InfiniBand controllers.
            (0x15b3, 0x0200 | 0x0207) => PciKind::Connectx,
            _ => return None,
        };
        Some(PciDevice {
            kind,
            id: format!("{vendor:04x}:{:04x}", read("device").unwrap_or(0)),
            address,
        })
    };
    machine
        .list("sys/bus/pci/devices")
        .into_iter()
        .filter_map(of_use)
        .collect()
}

fn nvidia(machine: &Machine) -> Option<Nvidia> {
    let version = machine.read("proc/driver/nvidia/version")?;
    let params = machine
        .read("proc/driver/nvidia/params")
        .unwrap_or_default();
    let param = |name: &str| {
        params
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .map(|value| value.trim_matches('"').to_owned())
            .filter(|value| !value.is_empty())
    };
    let registry_dwords = param("RegistryDwords");
    let first = version.lines().next().unwrap_or_default();
    Some(Nvidia {
        // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
        version: first
            .split_whitespace()
            .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
            .map(str::to_owned),
        open: first.contains("Open Kernel Module"),
        peer_mapping_override: registry_dwords.as_ref().is_some_and(|dwords| {
            dwords
                .split(';')
                .filter_map(|dword| dword.split_once('='))
                .any(|(name, value)| {
                    name.trim() == "PeerMappingOverride" && !matches!(value.trim(), "0" | "0x0")
                })
        }),
        stream_memops_v1: param("EnableStreamMemOPs").map(|value| value != "0"),
        registry_dwords,
    })
}

fn memlock(limits: &str) -> Limit {
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|rest| rest.split_whitespace().next());
    match soft {
        Some("unlimited") => Limit::Unlimited,
        Some(bytes) => bytes.parse().map_or(Limit::Unknown, Limit::Bytes),
        None => Limit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_limit_is_the_soft_limit() {
        let limits = |soft: &str| {
            format!("Limit  Soft\nMax locked memory         {soft}   unlimited   bytes\n")
        };
        assert_eq!(memlock(&limits("unlimited")), Limit::Unlimited);
        assert_eq!(memlock(&limits("8388608")), Limit::Bytes(8_388_608));
        assert_eq!(memlock(&limits("?")), Limit::Unknown);
        assert_eq!(memlock(""), Limit::Unknown);
    }
}
