//! A [`Report`] for people.

use crate::Report;
use crate::cuda::{Channels, Gpu};
use crate::machine::Access;
use crate::rdma::Device;
use crate::system::{Limit, PciKind};
use gdsync::rdma::NicChoice;
use std::fmt::{self, Display, Formatter};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "gdsync {}: what this machine offers", self.gdsync)?;
        runtimes(self, f)?;
        for gpu in &self.cuda.gpus {
            about_gpu(gpu, f)?;
        }
        if !self.cuda.gpus.is_empty() {
            streams(self, f)?;
        }
        rdma(self, f)?;
        system(self, f)?;

        writeln!(f, "\nWhat would be used")?;
        for used in &self.uses {
            line(f, used.purpose, &used.choice)?;
            line(f, "", format_args!("because {}", used.because))?;
        }
        if !self.errors.is_empty() {
            writeln!(f, "\nWhat is requested and absent")?;
        }
        for (i, error) in self.errors.iter().enumerate() {
            writeln!(f, "  {}. {}", i + 1, error.failed)?;
            writeln!(f, "     do:   {}", error.remedy)?;
        }
        match (self.advice.is_empty(), self.errors.is_empty()) {
            (true, true) => return write!(f, "\nNothing that could be here is missing."),
            (true, false) => return write!(f, "\nNothing else that could be here is missing."),
            (false, _) => write!(f, "\nWhat is missing")?,
        }
        for (i, advice) in self.advice.iter().enumerate() {
            write!(f, "\n  {}. {}", i + 1, advice.missing)?;
            write!(f, "\n     for:  {}", advice.matters)?;
            write!(f, "\n     do:   {}", advice.remedy)?;
        }
        Ok(())
    }
}

/// A name, and what is said of it.
fn line(f: &mut Formatter<'_>, name: &str, said: impl Display) -> fmt::Result {
    writeln!(f, "  {name:<32} {said}")
}

fn yes(it: bool) -> &'static str {
    if it { "yes" } else { "no" }
}

fn runtimes(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nGPU runtimes")?;
    line(f, "soft", "always here: streams and kernels run on the CPU")?;
    let cuda = &report.cuda;
    line(f, "cuda: library", &cuda.library)?;
    if let Some(version) = &cuda.version {
        line(f, "cuda: version of the driver", version)?;
    }
    if let Some(trouble) = &cuda.trouble {
        let (call, name, code) = (trouble.call, &trouble.name, trouble.code);
        line(
            f,
            "cuda: trouble",
            format_args!("{call} returned {name} ({code})"),
        )?;
    } else if let Some(why) = &cuda.too_old {
        line(f, "cuda: trouble", why)?;
    } else if cuda.library.is_opened() {
        line(f, "cuda: GPUs", cuda.gpus.len())?;
    }
    line(f, "hip: library", &report.hip)?;
    line(
        f,
        "hip: runtime",
        "none in this version, also where the library is here",
    )
}

fn about_gpu(gpu: &Gpu, f: &mut Formatter<'_>) -> fmt::Result {
    let (major, minor) = gpu.compute_capability;
    writeln!(f, "\nGPU {}: {}", gpu.index, gpu.name)?;
    if let Some((_, why)) = gpu.refusal {
        line(f, "cannot be used", why)?;
    }
    if let Some(pci) = &gpu.pci {
        line(f, "PCI address", pci)?;
    }
    if let Some(uuid) = &gpu.uuid {
        line(f, "UUID", uuid)?;
    }
    line(f, "compute capability", format_args!("{major}.{minor}"))?;
    line(f, "memory", format_args!("{} MiB", gpu.memory >> 20))?;
    line(f, "multiprocessors", gpu.multiprocessors)?;
    let operations = gpu.memory_operations;
    line(
        f,
        "memory operations",
        format_args!(
            "32-bit yes, 64-bit {}, NOR waits {}, flushing waits {}",
            yes(operations.bits64),
            yes(operations.nor),
            yes(operations.flush)
        ),
    )?;
    line(f, "GPUDirect RDMA", yes(gpu.gpudirect_rdma))?;
    let ordering = match gpu.writes_ordering {
        200.. => "for every GPU",
        100.. => "for this GPU",
        _ => "for nobody",
    };
    line(f, "NIC writes in order", ordering)?;
    line(f, "flush by the CPU", yes(gpu.host_flush))?;
    line(f, "flush policy", gpu.flush_policy)?;
    line(f, "dma-buf export", yes(gpu.dma_buf))?;
    line(
        f,
        "mappable memory (cuMemMap)",
        format_args!(
            "{}, as file descriptor {}, as fabric handle {}",
            yes(gpu.virtual_memory),
            yes(gpu.posix_fd),
            yes(gpu.fabric)
        ),
    )?;
    line(
        f,
        "host memory can be registered",
        format_args!(
            "{}, at the same address {}",
            yes(gpu.host_register),
            yes(gpu.same_host_address)
        ),
    )?;
    let mode = match gpu.compute_mode {
        0 => "default".to_owned(),
        2 => "prohibited".to_owned(),
        3 => "exclusive process".to_owned(),
        other => other.to_string(),
    };
    line(
        f,
        "compute mode",
        format_args!("{mode}{}", if gpu.mps { ", through MPS" } else { "" }),
    )?;
    if let Some(node) = gpu.numa_node {
        line(f, "NUMA node", node)?;
    }
    if let Some(iommu) = &gpu.iommu {
        line(f, "IOMMU", iommu)?;
    }
    Ok(())
}

fn streams(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nStreams of a CUDA context")?;
    let channels = &report.cuda.channels;
    let why = match (&channels.variable, channels.understood) {
        (None, _) => "the default; CUDA_DEVICE_MAX_CONNECTIONS is not set".to_owned(),
        (Some(value), true) => format!("CUDA_DEVICE_MAX_CONNECTIONS={value}"),
        (Some(value), false) => format!(
            "CUDA_DEVICE_MAX_CONNECTIONS={value}, which is no number from 1 to {}",
            Channels::MOST
        ),
    };
    line(
        f,
        "hardware channels",
        format_args!("{} ({why})", channels.count),
    )?;
    line(
        f,
        "streams that may wait",
        format_args!(
            "{} at a time: with more of them, nothing else of the context would move",
            channels.waiting
        ),
    )?;
    let loading = match &report.cuda.module_loading {
        Some(set) => format!("CUDA_MODULE_LOADING={set}"),
        None => "CUDA_MODULE_LOADING is not set: lazy since CUDA 12.2".to_owned(),
    };
    line(f, "kernels are loaded", loading)
}

fn access(access: &Access) -> String {
    match access {
        Access::Granted => "may be used".into(),
        Access::Absent => "absent".into(),
        Access::Refused(why) => format!("refused: {why}"),
    }
}

fn rdma(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    let rdma = &report.rdma;
    writeln!(f, "\nRDMA")?;
    line(f, "kernel verbs (ib_core)", yes(rdma.ib_core))?;
    line(f, "libibverbs", &rdma.ibverbs)?;
    line(f, "libmlx5", &rdma.mlx5)?;
    line(f, "nvidia_peermem", yes(report.system.peermem))?;
    line(f, "devices", rdma.devices.len())?;
    for device in &rdma.devices {
        about_device(device, f)?;
    }
    Ok(())
}

fn about_device(device: &Device, f: &mut Formatter<'_>) -> fmt::Result {
    let facts = [
        device.board.clone(),
        device.driver.clone(),
        device.pci.as_ref().map(|pci| format!("at {pci}")),
        device
            .guid
            .map(|guid| format!("GUID {}", NicChoice::guid(guid))),
        device.firmware.as_ref().map(|fw| format!("firmware {fw}")),
        device.numa_node.map(|node| format!("NUMA node {node}")),
        device.iommu.as_ref().map(|kind| format!("IOMMU {kind}")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    line(f, &format!("  {}", device.name), facts.join(", "))?;
    let uverbs = device.uverbs.as_deref().unwrap_or("no verbs file");
    line(f, "", format_args!("{uverbs}: {}", access(&device.access)))?;
    for port in &device.ports {
        line(
            f,
            "",
            format_args!(
                "port {}: {}, {}, {}, {}",
                port.number, port.state, port.physical, port.link, port.rate
            ),
        )?;
    }
    Ok(())
}

fn system(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    let system = &report.system;
    writeln!(f, "\nSystem")?;
    let kernel = system.kernel.as_deref().unwrap_or("unknown");
    let modules = if system.loadable_modules {
        ""
    } else {
        ", without loadable modules"
    };
    line(f, "Linux", format_args!("{kernel}{modules}"))?;
    for device in &system.pci {
        let kind = match device.kind {
            PciKind::NvidiaGpu => "NVIDIA GPU",
            PciKind::AmdGpu => "AMD GPU",
            PciKind::Connectx => "ConnectX",
        };
        line(
            f,
            &format!("PCI {}", device.address),
            format_args!("{kind} ({})", device.id),
        )?;
    }
    match &system.nvidia {
        None => line(f, "NVIDIA kernel driver", "not loaded")?,
        Some(nvidia) => {
            let version = nvidia.version.as_deref().unwrap_or("unknown version");
            let flavour = if nvidia.open { "open" } else { "proprietary" };
            line(
                f,
                "NVIDIA kernel driver",
                format_args!("{version}, {flavour}"),
            )?;
            line(
                f,
                "  PeerMappingOverride",
                if nvidia.peer_mapping_override {
                    "set: the GPU may write to NICs for everyone"
                } else {
                    "not set: the GPU may write to NICs for root alone"
                },
            )?;
            if let Some(enabled) = nvidia.stream_memops_v1 {
                line(
                    f,
                    "  EnableStreamMemOPs",
                    format_args!(
                        "{}; only older interfaces than those used here depend on it",
                        u8::from(enabled)
                    ),
                )?;
            }
            if let Some(dwords) = &nvidia.registry_dwords {
                line(f, "  RegistryDwords", dwords)?;
            }
            line(f, "  /dev/nvidiactl", access(&system.nvidiactl))?;
            line(f, "  /dev/nvidia-uvm", access(&system.nvidia_uvm))?;
            line(f, "  fabric (IMEX) channel", yes(system.imex_channel))?;
        }
    }
    let gdr = &report.gdrcopy;
    let version = match &gdr.version {
        Some(version) => format!(", version {version}"),
        None => String::new(),
    };
    line(f, "libgdrapi", format_args!("{}{version}", gdr.library))?;
    line(f, "gdrdrv", yes(gdr.module))?;
    line(f, "  /dev/gdrdrv", access(&gdr.device))?;
    if let Some(why) = &gdr.trouble {
        line(f, "  trouble", why)?;
    }
    line(
        f,
        "IOMMU",
        if system.iommu {
            "on"
        } else {
            "off, or not seen"
        },
    )?;
    let memlock = match system.memlock {
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::Bytes(bytes) => format!("{} KiB", bytes / 1024),
        Limit::Unknown => "unknown".to_owned(),
    };
    line(f, "memory that may be locked", memlock)
}
