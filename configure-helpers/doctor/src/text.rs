//! A [`Report`] as text.

use crate::Report;
use crate::cuda::{Channels, Gpu};
use crate::hip;
use crate::machine::Access;
use crate::rdma::Device;
use crate::system::{Limit, Nvidia, PciKind, System};
use gdsync::rdma::NicChoice;
use std::fmt::{self, Display, Formatter};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut page = Page(String::new());
        page.runtimes(self);
        for gpu in &self.cuda.gpus {
            page.gpu(gpu);
        }
        if !self.cuda.gpus.is_empty() {
            page.streams(self);
        }
        for gpu in &self.hip.gpus {
            page.amd_gpu(gpu);
        }
        page.rdma(self);
        page.system(self);

        page.title("What would be used");
        for used in &self.uses {
            page.line(used.purpose, &used.choice);
            page.line("", format_args!("because {}", used.because));
        }
        let version = self.gdsync;
        write!(f, "gdsync {version}: what this machine offers\n{}", page.0)?;
        if !self.errors.is_empty() {
            writeln!(f, "\nWhat the environment requests and this machine lacks")?;
        }
        for (i, error) in self.errors.iter().enumerate() {
            writeln!(f, "  {}. {}", i + 1, error.failed)?;
            writeln!(f, "     do:   {}", error.remedy)?;
        }
        match (self.advice.is_empty(), self.errors.is_empty()) {
            (true, true) => return write!(f, "\nNothing is missing that this machine could have."),
            (true, false) => {
                return write!(f, "\nNothing else is missing that this machine could have.");
            }
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

fn yes(it: bool) -> &'static str {
    if it { "yes" } else { "no" }
}

fn access(access: &Access) -> String {
    match access {
        Access::Granted => "accessible".into(),
        Access::Absent => "absent".into(),
        Access::Refused(why) => format!("refused: {why}"),
    }
}

/// The facts, by subject.
struct Page(String);

impl Page {
    fn title(&mut self, title: impl Display) {
        self.0 += &format!("\n{title}\n");
    }

    /// A line with a name and its value.
    fn line(&mut self, name: &str, value: impl Display) {
        self.0 += &format!("  {name:<32} {value}\n");
    }

    /// The same, if there is a value.
    fn known(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    fn runtimes(&mut self, report: &Report) {
        self.title("GPU runtimes");
        self.line(
            "soft",
            "always available: streams and kernels run on the CPU",
        );
        let cuda = &report.cuda;
        self.line("cuda: library", &cuda.library);
        self.known("cuda: version of the driver", cuda.version.as_ref());
        if let Some(trouble) = &cuda.trouble {
            let (call, name, code) = (trouble.call, &trouble.name, trouble.code);
            let value = format_args!("{call} returned {name} ({code})");
            self.line("cuda: error", value);
        } else if let Some(why) = &cuda.too_old {
            self.line("cuda: error", why);
        } else if cuda.library.is_opened() {
            self.line("cuda: GPUs", cuda.gpus.len());
        }
        let hip = &report.hip;
        self.line("hip: library", &hip.library);
        self.known("hip: version", hip.version.as_ref());
        if let Some(trouble) = &hip.trouble {
            let (call, name, code) = (trouble.call, &trouble.name, trouble.code);
            let value = format_args!("{call} returned {name} ({code})");
            self.line("hip: error", value);
        } else if let Some(why) = &hip.refusal {
            self.line("hip: error", why);
        } else if hip.library.is_opened() {
            self.line("hip: GPUs", hip.gpus.len());
        }
    }

    fn amd_gpu(&mut self, gpu: &hip::Gpu) {
        self.title(format_args!("AMD GPU {}: {}", gpu.index, gpu.name));
        self.known("cannot be used", gpu.refusal.map(|(_, why)| why));
        self.known("PCI address", gpu.pci.as_ref());
        self.known("architecture", gpu.architecture.as_ref());
        let (gib, units) = (gpu.memory >> 30, gpu.compute_units);
        self.line(
            "memory",
            format_args!("{gib} GiB, with {units} compute units"),
        );
        self.line("streams wait for a word", yes(gpu.wait_values));
        self.line("fine-grained memory", yes(gpu.fine_grained));
        self.line("all memory visible on PCI", yes(gpu.large_bar));
    }

    fn gpu(&mut self, gpu: &Gpu) {
        let (major, minor) = gpu.compute_capability;
        let operations = gpu.memory_operations;
        let ordering = match gpu.writes_ordering {
            200.. => "for every GPU",
            100.. => "for this GPU",
            _ => "for no GPU",
        };
        let mode = match gpu.compute_mode {
            0 => "default".to_owned(),
            2 => "prohibited".to_owned(),
            3 => "exclusive process".to_owned(),
            other => other.to_string(),
        };
        let mps = if gpu.mps { ", through MPS" } else { "" };
        self.title(format_args!("GPU {}: {}", gpu.index, gpu.name));
        self.known("cannot be used", gpu.refusal.map(|(_, why)| why));
        self.known("PCI address", gpu.pci.as_ref());
        self.known("UUID", gpu.uuid.as_ref());
        self.line("compute capability", format_args!("{major}.{minor}"));
        self.line("memory", format_args!("{} MiB", gpu.memory >> 20));
        self.line("multiprocessors", gpu.multiprocessors);
        let value = format_args!(
            "32-bit yes, 64-bit {}, NOR waits {}, flushing waits {}",
            yes(operations.bits64),
            yes(operations.nor),
            yes(operations.flush)
        );
        self.line("memory operations", value);
        self.line("GPUDirect RDMA", yes(gpu.gpudirect_rdma));
        self.line("NIC writes in order", ordering);
        self.line("flush by the CPU", yes(gpu.host_flush));
        self.line("flush policy", gpu.flush_policy);
        self.line("dma-buf export", yes(gpu.dma_buf));
        let value = format_args!(
            "{}; export as file descriptor {}, as fabric handle {}",
            yes(gpu.virtual_memory),
            yes(gpu.posix_fd),
            yes(gpu.fabric)
        );
        self.line("mappable memory (cuMemMap)", value);
        let (registers, same) = (yes(gpu.host_register), yes(gpu.same_host_address));
        let value = format_args!("{registers}, at the same address {same}");
        self.line("host memory can be registered", value);
        self.line("compute mode", format_args!("{mode}{mps}"));
        let peers: Vec<String> = gpu.peers.iter().map(|peer| format!("GPU {peer}")).collect();
        self.known("peer access", (!peers.is_empty()).then(|| peers.join(", ")));
        self.known("NUMA node", gpu.numa_node);
        self.known("IOMMU", gpu.iommu.as_ref());
    }

    fn streams(&mut self, report: &Report) {
        self.title("Streams of a CUDA context");
        let channels = &report.cuda.channels;
        let why = match (&channels.variable, channels.understood) {
            (None, _) => "the default; CUDA_DEVICE_MAX_CONNECTIONS is not set".to_owned(),
            (Some(value), true) => format!("CUDA_DEVICE_MAX_CONNECTIONS={value}"),
            (Some(value), false) => format!(
                "CUDA_DEVICE_MAX_CONNECTIONS={value}, which is not a number from 1 to {}",
                Channels::MOST
            ),
        };
        let (count, waiting) = (channels.count, channels.waiting);
        self.line("hardware channels", format_args!("{count} ({why})"));
        let value = "at a time: if more wait, no other stream of the context executes";
        self.line("streams that may wait", format_args!("{waiting} {value}"));
        let loading = match &report.cuda.module_loading {
            Some(set) => format!("CUDA_MODULE_LOADING={set}"),
            None => "CUDA_MODULE_LOADING is not set: lazy since CUDA 12.2".to_owned(),
        };
        self.line("kernel loading", loading);
    }

    fn rdma(&mut self, report: &Report) {
        let rdma = &report.rdma;
        self.title("RDMA");
        self.line("kernel verbs (ib_core)", yes(rdma.ib_core));
        self.line("libibverbs", &rdma.ibverbs);
        self.line("libmlx5", &rdma.mlx5);
        self.line("nvidia_peermem", yes(report.system.peermem));
        self.line("devices", rdma.devices.len());
        for device in &rdma.devices {
            self.device(device);
        }
    }

    fn device(&mut self, device: &Device) {
        let guid = |guid| format!("GUID {}", NicChoice::guid(guid));
        let facts = [
            device.board.clone(),
            device.driver.clone(),
            device.pci.as_ref().map(|pci| format!("at {pci}")),
            device.guid.map(guid),
            device.firmware.as_ref().map(|fw| format!("firmware {fw}")),
            device.numa_node.map(|node| format!("NUMA node {node}")),
            device.iommu.as_ref().map(|kind| format!("IOMMU {kind}")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        self.line(&format!("  {}", device.name), facts.join(", "));
        let uverbs = device.uverbs.as_deref().unwrap_or("verbs file");
        self.line("", format_args!("{uverbs}: {}", access(&device.access)));
        for port in &device.ports {
            let value = [&*port.state, &port.physical, &port.link, &port.rate].join(", ");
            self.line("", format_args!("port {}: {value}", port.number));
        }
    }

    fn system(&mut self, report: &Report) {
        let system = &report.system;
        self.title("System");
        let kernel = system.kernel.as_deref().unwrap_or("unknown");
        let modules = match system.loadable_modules {
            true => "",
            false => ", without loadable modules",
        };
        self.line("Linux", format_args!("{kernel}{modules}"));
        for device in &system.pci {
            let kind = match device.kind {
                PciKind::NvidiaGpu => "NVIDIA GPU",
                PciKind::AmdGpu => "AMD GPU",
                PciKind::Connectx => "ConnectX",
            };
            let name = format!("PCI {}", device.address);
            self.line(&name, format_args!("{kind} ({})", device.id));
        }
        match &system.nvidia {
            None => self.line("NVIDIA kernel driver", "not loaded"),
            Some(nvidia) => self.nvidia(nvidia, system),
        }
        let gdr = &report.gdrcopy;
        let version = match &gdr.version {
            Some(version) => format!(", version {version}"),
            None => String::new(),
        };
        self.line("libgdrapi", format_args!("{}{version}", gdr.library));
        self.line("gdrdrv", yes(gdr.module));
        self.line("  /dev/gdrdrv", access(&gdr.device));
        self.known("  error", gdr.trouble.as_ref());
        let iommu = if system.iommu {
            "on"
        } else {
            "off, or not visible"
        };
        self.line("IOMMU", iommu);
        let memlock = match system.memlock {
            Limit::Unlimited => "unlimited".to_owned(),
            Limit::Bytes(bytes) => format!("{} KiB", bytes / 1024),
            Limit::Unknown => "unknown".to_owned(),
        };
        self.line("limit of locked memory", memlock);
    }

    fn nvidia(&mut self, nvidia: &Nvidia, system: &System) {
        let version = nvidia.version.as_deref().unwrap_or("unknown version");
        let flavour = if nvidia.open { "open" } else { "proprietary" };
        let value = format_args!("{version}, {flavour}");
        self.line("NVIDIA kernel driver", value);
        let whose = match nvidia.peer_mapping_override {
            true => "set: every user may let the GPU write to NICs",
            false => "not set: only root may let the GPU write to NICs",
        };
        self.line("  PeerMappingOverride", whose);
        if let Some(enabled) = nvidia.stream_memops_v1 {
            let value = "only CUDA interfaces that gdsync does not use depend on it";
            let enabled = u8::from(enabled);
            self.line("  EnableStreamMemOPs", format_args!("{enabled}; {value}"));
        }
        self.known("  RegistryDwords", nvidia.registry_dwords.as_ref());
        self.line("  /dev/nvidiactl", access(&system.nvidiactl));
        self.line("  /dev/nvidia-uvm", access(&system.nvidia_uvm));
        self.line("  fabric (IMEX) channel", yes(system.imex_channel));
    }
}
