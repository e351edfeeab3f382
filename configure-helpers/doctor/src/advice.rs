//! What is missing and the remedy: conclusions from the facts of a [`Report`].
//!
//! The advice is limited to what this machine could have: on a machine without an NVIDIA GPU it
//! does not name the NVIDIA driver.

use crate::Report;
use crate::cuda::{Channels, Gpu};
use crate::library::State;
use crate::machine::Access;
use crate::rdma::Device;
use crate::system::{Limit, PciKind};
use crate::uses::{RdmaMemory, gpus, local_rank, on_cuda, rdma_memory_path};
use gdsync_sys::cuda::CudaResult;
use gdsync_sys::cuda::consts::{CU_COMPUTEMODE_EXCLUSIVE_PROCESS, CU_COMPUTEMODE_PROHIBITED};
use gdsync_sys::hip::HipResult;
use serde::Serialize;

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// What is missing or wrong.
    pub missing: String,
    /// The purpose.
    pub matters: &'static str,
    /// The remedy.
    pub remedy: String,
}

const CUDA: &str = "running on the GPU";
const WAITS: &str = "streams that wait";
const MAPPING: &str = "CPU access to device memory";

#[derive(Default)]
struct List(Vec<Advice>);

impl List {
    fn add(
        &mut self,
        matters: &'static str,
        missing: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Advice {
            missing: missing.into(),
            matters,
            remedy: remedy.into(),
        });
    }

    fn physical(&mut self, missing: impl Into<String>, remedy: impl Into<String>) {
        self.add("a physical NIC", missing, remedy);
    }
}

/// Conclusions from the facts of `report`.
pub(crate) fn conclude(report: &Report) -> Vec<Advice> {
    let mut list = List::default();
    driver(report, &mut list);
    about_gpus(report, &mut list);
    hip(report, &mut list);
    if on_cuda(report) {
        waits(report, &mut list);
        gdrcopy(report, &mut list);
    }
    if !report.rdma.devices.is_empty() || report.system.of(PciKind::Connectx).next().is_some() {
        verbs(report, &mut list);
    }
    if !report.rdma.devices.is_empty() && !report.cuda.gpus.is_empty() {
        gpu_with_nic(report, &mut list);
    }
    list.0
}

fn driver(report: &Report, list: &mut List) {
    let cuda = &report.cuda;
    let system = &report.system;
    let (missing, remedy) = match (&cuda.library, &cuda.trouble, &cuda.too_old) {
        (State::Absent { .. }, ..) => {
            match (system.of(PciKind::NvidiaGpu).next(), &system.nvidia) {
                (None, _) => return, // No GPU, nothing to install.
                (Some(gpu), Some(_)) => (
                    format!(
                        "libcuda.so.1, though the kernel driver of the GPU at {} is loaded",
                        gpu.address
                    ),
                    "install the user-space part of the driver, of the same version (Debian: apt-get \
                 install libcuda1); in a container, start it with --gpus all"
                        .to_owned(),
                ),
                (Some(gpu), None) => (
                    format!("the driver of the NVIDIA GPU at {}", gpu.address),
                    "install it (Debian: apt-get install nvidia-open from NVIDIA's repository, or \
                 nvidia-driver), then modprobe nvidia; in a container, install it on the host \
                 and start the container with --gpus all"
                        .to_owned(),
                ),
            }
        }
        (State::TooOld { path, symbol }, ..) => (
            format!("{symbol} in {}", path.display()),
            "update the NVIDIA driver to 515 or later, or name the driver's own library by \
             GDS_CUDA_LIB"
                .to_owned(),
        ),
        (State::Opened { .. }, Some(trouble), _) => (
            format!(
                "a working CUDA driver: {} returned {} ({})",
                trouble.call, trouble.name, trouble.code
            ),
            remedy_of(report, CudaResult(trouble.code)),
        ),
        (State::Opened { .. }, None, Some(why)) => (
            format!("a newer driver: this is {why}"),
            "update the NVIDIA driver to 525 or later".to_owned(),
        ),
        (State::Opened { .. }, None, None) if cuda.gpus.is_empty() => (
            "a GPU that the driver reports".to_owned(),
            no_device(report),
        ),
        (State::Opened { .. }, None, None) => return,
    };
    list.add(CUDA, missing, remedy);
}

fn hip(report: &Report, list: &mut List) {
    let Some(gpu) = report.system.of(PciKind::AmdGpu).next() else {
        return; // Nothing to install.
    };
    let hip = &report.hip;
    let no_device = hip.trouble.as_ref().is_none_or(|trouble| {
        HipResult(trouble.code) == HipResult::NO_DEVICE && trouble.call == "hipGetDeviceCount"
    });
    let (missing, remedy) = match (&hip.library, &hip.kfd) {
        (State::Absent { .. }, _) => (
            format!("libamdhip64 for the AMD GPU at {}", gpu.address),
            "install ROCm 6.0 or later (the package hip-runtime-amd of AMD's repository), or name \
             its library by GDS_HIP_LIB"
                .to_owned(),
        ),
        (State::TooOld { path, symbol }, _) => (
            format!("{symbol} in {}", path.display()),
            "update ROCm, or name its own library by GDS_HIP_LIB".to_owned(),
        ),
        (State::Opened { .. }, _) if let Some(why) = &hip.refusal => {
            ("a HIP that gdsync can use".to_owned(), why.clone())
        }
        (State::Opened { .. }, Access::Absent) => (
            format!(
                "/dev/kfd, the device file of the AMD GPU at {}",
                gpu.address
            ),
            match hip.amdgpu {
                true => "start the container with --device=/dev/kfd --device=/dev/dri".to_owned(),
                false => "modprobe amdgpu; in a container, do so on the host".to_owned(),
            },
        ),
        (State::Opened { .. }, Access::Refused(why)) => (
            format!("access to /dev/kfd: {why}"),
            "add the user to the groups render and video, which own /dev/kfd and /dev/dri; in a \
             container, start it with --group-add for both"
                .to_owned(),
        ),
        (State::Opened { .. }, Access::Granted)
            if !hip.gpus.is_empty() && hip.trouble.is_none() =>
        {
            return;
        }
        (State::Opened { .. }, Access::Granted) if no_device => (
            "a GPU that HIP reports".to_owned(),
            match hip.hidden_by.first_key_value() {
                Some((name, value)) => format!("unset {name}, which is {value:?}"),
                None => {
                    "read dmesg and rocminfo: the kernel driver does not offer the GPU".to_owned()
                }
            },
        ),
        (State::Opened { .. }, Access::Granted) => {
            let trouble = hip.trouble.as_ref();
            let (call, name) = trouble.map_or(("", ""), |t| (t.call, &t.name));
            (
                format!("a working HIP: {call} returned {name}"),
                "read dmesg and rocminfo".to_owned(),
            )
        }
    };
    list.add(CUDA, missing, remedy);
}

fn no_device(report: &Report) -> String {
    if let Some(visible) = &report.cuda.visible_devices {
        return format!("unset CUDA_VISIBLE_DEVICES, which is {visible:?}");
    }
    if report.system.nvidia.is_none() && report.system.of(PciKind::NvidiaGpu).next().is_none() {
        return "none: there is no NVIDIA GPU, and gdsync uses the software GPU".into();
    }
    match &report.system.nvidiactl {
        Access::Absent => "run nvidia-modprobe -c 0 -u, which creates the device files; in a \
                           container, start it with --gpus all"
            .into(),
        Access::Refused(why) => format!("add the user to the group of /dev/nvidiactl ({why})"),
        Access::Granted => {
            "read dmesg and nvidia-smi: the kernel driver does not offer the GPU".into()
        }
    }
}

fn remedy_of(report: &Report, code: CudaResult) -> String {
    match code {
        CudaResult::NO_DEVICE | CudaResult::INVALID_DEVICE => no_device(report),
        CudaResult::STUB_LIBRARY => "remove the toolkit's folder of stubs from LD_LIBRARY_PATH, \
                                     or name the driver's own library by GDS_CUDA_LIB"
            .into(),
        CudaResult::SYSTEM_NOT_READY => {
            "systemctl start nvidia-fabricmanager; its version must be the driver's".into()
        }
        CudaResult::SYSTEM_DRIVER_MISMATCH => "libcuda and the kernel driver are of different \
                                               versions: reboot after an update, or remove the \
                                               other libcuda from LD_LIBRARY_PATH"
            .into(),
        CudaResult::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "remove the CUDA compatibility package from LD_LIBRARY_PATH, or update the driver"
                .into()
        }
        CudaResult::OPERATING_SYSTEM | CudaResult::UNKNOWN
            if report.system.nvidia_uvm != Access::Granted =>
        {
            "run nvidia-modprobe -c 0 -u, which loads nvidia-uvm and creates /dev/nvidia-uvm; in a \
             container, start it with --gpus all"
                .into()
        }
        _ => "read the lines of NVRM in dmesg, and nvidia-smi; a reset or a reboot restores a GPU \
              that is lost"
            .into(),
    }
}

/// The names of the GPUs for which `lacks` is true; `None` if it is true for none.
fn those(report: &Report, lacks: impl Fn(&Gpu) -> bool) -> Option<String> {
    let named = |gpu: &Gpu| format!("GPU {} ({})", gpu.index, gpu.name);
    let gpus = report.cuda.gpus.iter().filter(|gpu| lacks(gpu));
    let names: Vec<String> = gpus.map(named).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn about_gpus(report: &Report, list: &mut List) {
    let prohibited = |gpu: &Gpu| gpu.compute_mode == CU_COMPUTEMODE_PROHIBITED as i32;
    if let Some(gpus) = those(report, prohibited) {
        list.add(
            CUDA,
            format!("permission to create contexts on {gpus}"),
            "nvidia-smi -i INDEX -c DEFAULT, as root",
        );
    }
    let exclusive = |gpu: &Gpu| gpu.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS as i32;
    if let Some(gpus) = those(report, exclusive) {
        list.add(
            "memory that is allocated and freed while streams wait",
            format!(
                "permission to create a second context on {gpus}, whose compute mode is \
                 EXCLUSIVE_PROCESS: one process at a time can use it, and its memory calls block \
                 behind waits of streams"
            ),
            "nvidia-smi -i INDEX -c DEFAULT, as root",
        );
    }
    let local = local_rank(report).ok().flatten();
    if let Some(cost) = local.and_then(|local| local.crowding(gpus(report)))
        && on_cuda(report)
    {
        list.add(
            "a GPU for each rank",
            cost,
            "make more GPUs visible to the ranks, or start fewer ranks",
        );
    }
    let unusable = |gpu: &Gpu| gpu.refusal.is_some() && !prohibited(gpu);
    if let Some(gpus) = those(report, unusable) {
        list.add(
            CUDA,
            format!(
                "compute capability 7.0, 64-bit memory operations and mappable memory \
                 (cuMemCreate), of {gpus}"
            ),
            "choose another GPU by GDS_GPU=cuda:INDEX, or the software GPU by GDS_GPU=soft",
        );
    }
    if let Some(gpus) = those(report, |gpu| !gpu.memory_operations.nor) {
        list.add(
            "waits for completions",
            format!("NOR waits of {gpus}"),
            "none: gdsync compares the sign bit to wait for one clear bit, and refuses other NOR \
             waits",
        );
    }
    if let Some(gpus) = those(report, |gpu| !gpu.virtual_memory || !gpu.posix_fd) {
        list.add(
            "memory that outlives the process that exported it",
            format!("memory that can be exported as a file descriptor, of {gpus}"),
            "update the driver; some virtual GPUs do not support it and share memory by CUDA IPC",
        );
    }
    let unordered = |gpu: &Gpu| !gpu.caps.ordered_writes && !gpu.caps.flush;
    if let Some(gpus) = those(report, unordered) {
        list.physical(
            format!("NIC writes in order, or streams that flush them, on {gpus}"),
            "if latency matters, receive payload for streams into pinned host memory: each flush \
             needs the CPU or a READ by the NIC",
        );
    }
    if report.rdma.devices.is_empty() {
        return;
    }
    if let Some(gpus) = those(report, |gpu| !gpu.gpudirect_rdma) {
        list.physical(
            format!("GPUDirect RDMA of {gpus}"),
            "none on this model: payload goes through pinned host memory",
        );
    }
    let unexported = |gpu: &Gpu| gpu.gpudirect_rdma && !gpu.dma_buf && !report.system.peermem;
    if let Some(gpus) = those(report, unexported) {
        let open = report.system.nvidia.as_ref().is_some_and(|n| n.open);
        list.physical(
            format!("dma-buf export of {gpus}"),
            match open {
                false => {
                    "use the open kernel modules (apt-get install nvidia-open), or modprobe \
                     nvidia_peermem, which needs the verbs of DOCA-OFED"
                }
                true => "update the driver, or modprobe nvidia_peermem",
            },
        );
    }
}

fn waits(report: &Report, list: &mut List) {
    let channels = &report.cuda.channels;
    if !channels.understood {
        list.add(
            WAITS,
            format!(
                "a valid CUDA_DEVICE_MAX_CONNECTIONS: it is {:?}",
                channels.variable.as_deref().unwrap_or_default()
            ),
            format!("set it to a number from 1 to {}", Channels::MOST),
        );
    } else if channels.count < Channels::MOST {
        list.add(
            WAITS,
            format!(
                "hardware channels for more than {} waiting streams",
                channels.waiting
            ),
            format!(
                "export CUDA_DEVICE_MAX_CONNECTIONS={} before the program starts: {} streams can \
                 then wait",
                Channels::MOST,
                Channels::MOST - 2
            ),
        );
    }
    if !matches!(report.cuda.module_loading.as_deref(), Some("EAGER")) {
        list.add(
            WAITS,
            "eager loading of kernels: a kernel that is first launched while a stream waits is \
             loaded at that moment, and the load may block until that wait ends",
            "export CUDA_MODULE_LOADING=EAGER, or launch each of your kernels once before the \
             first wait (gdsync loads its own eagerly)",
        );
    }
}

fn gdrcopy(report: &Report, list: &mut List) {
    let gdr = &report.gdrcopy;
    let (missing, remedy) = match (&gdr.library, &gdr.device) {
        _ if gdr.works => return,
        (State::TooOld { path, symbol }, _) => {
            let missing = format!("{symbol} in {}", path.display());
            return list.add(MAPPING, missing, "install GDRCopy 2.5 or later");
        }
        (State::Absent { .. }, _) if gdr.module => (
            "GDRCopy's library",
            "install libgdrapi of the kernel module's version (NVIDIA's repository: apt-get \
             install libgdrapi), or name it by GDS_GDRAPI_LIB",
        ),
        (State::Absent { .. }, _) => (
            "GDRCopy's library",
            "install GDRCopy 2.x (NVIDIA's repository: apt-get install libgdrapi gdrdrv-dkms), \
             then modprobe gdrdrv",
        ),
        (_, Access::Refused(why)) => {
            let remedy = "chmod 666 /dev/gdrdrv, as root; in a container, add --device /dev/gdrdrv";
            return list.add(MAPPING, format!("access to /dev/gdrdrv: {why}"), remedy);
        }
        (_, Access::Absent) if gdr.module => (
            "/dev/gdrdrv, though the kernel module is loaded",
            "mknod /dev/gdrdrv c $(awk '$2 == \"gdrdrv\" { print $1 }' /proc/devices) 0 && chmod \
             666 /dev/gdrdrv, as root; in a container, add --device /dev/gdrdrv",
        ),
        (_, Access::Absent) => (
            "the kernel module gdrdrv",
            "modprobe gdrdrv (NVIDIA's repository: apt-get install gdrdrv-dkms), on the host",
        ),
        (_, Access::Granted) => (
            "a gdrdrv that is compatible with the library",
            "install libgdrapi and gdrdrv of one version, then modprobe -r gdrdrv and modprobe \
             gdrdrv",
        ),
    };
    list.add(MAPPING, missing, remedy);
}

fn verbs(report: &Report, list: &mut List) {
    let rdma = &report.rdma;
    if rdma.devices.is_empty() {
        let nics: Vec<&str> = report
            .system
            .of(PciKind::Connectx)
            .map(|nic| nic.address.as_str())
            .collect();
        list.physical(
            format!("verbs of the ConnectX at {}", nics.join(", ")),
            if rdma.ib_core || report.system.loadable_modules {
                "modprobe mlx5_ib; in a container, on the host"
            } else {
                "boot a kernel with the driver mlx5_ib: this one cannot load modules"
            },
        );
        return;
    }
    for device in &rdma.devices {
        about_device(device, list);
    }
    if !rdma.ibverbs.is_opened() {
        list.physical(
            "libibverbs.so.1",
            "apt-get install libibverbs1 ibverbs-providers",
        );
    } else if rdma.ibverbs.lacks("ibv_reg_dmabuf_mr") {
        list.physical(
            "ibv_reg_dmabuf_mr in libibverbs",
            "update rdma-core to 34 or later",
        );
    }
    if rdma.devices.iter().any(Device::is_mlx5) && !rdma.mlx5.is_opened() {
        list.physical("libmlx5.so.1", "apt-get install ibverbs-providers");
    }
    if let Limit::Bytes(bytes) = report.system.memlock {
        list.physical(
            format!("permission to lock more memory than {} KiB", bytes / 1024),
            "ulimit -l unlimited; permanently, \"* - memlock unlimited\" in \
             /etc/security/limits.conf, or LimitMEMLOCK=infinity in the systemd unit",
        );
    }
}

fn about_device(device: &Device, list: &mut List) {
    let name = &device.name;
    match (&device.uverbs, &device.access) {
        (None, _) => list.physical(format!("the verbs file of {name}"), "modprobe ib_uverbs"),
        (Some(uverbs), Access::Absent) => list.physical(
            format!("/dev/infiniband/{uverbs} of {name}"),
            "in a container, add --device /dev/infiniband; elsewhere restart udev",
        ),
        (Some(uverbs), Access::Refused(why)) => list.physical(
            format!("access to /dev/infiniband/{uverbs} of {name}: {why}"),
            "add the user to the file's group, or chmod 666 the file, as root",
        ),
        (Some(_), Access::Granted) => {}
    }
    if device.is_active() {
        return;
    }
    for port in &device.ports {
        let remedy = match (port.physical.as_str(), port.link.as_str()) {
            ("LinkUp", "InfiniBand") => "start a subnet manager: opensm, or the one in the switch",
            ("LinkUp", _) => "ip link set INTERFACE up",
            ("Disabled", _) => "enable the port: ip link set INTERFACE up",
            _ => "check the cable, the transceiver and the switch port",
        };
        list.physical(
            format!(
                "an active port {} of {name}: it is {}, {}",
                port.number, port.state, port.physical
            ),
            remedy,
        );
    }
}

fn gpu_with_nic(report: &Report, list: &mut List) {
    let mlx5 = report.rdma.devices.iter().any(Device::is_mlx5);
    let nvidia = report.system.nvidia.as_ref();
    if mlx5 && !nvidia.is_some_and(|nvidia| nvidia.peer_mapping_override) {
        list.physical(
            "permission for the GPU to write a NIC's doorbells (PeerMappingOverride): without it, \
             only root may let the GPU do so",
            "echo 'options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > \
             /etc/modprobe.d/gdsync.conf, update-initramfs -u, reboot",
        );
    }
    if let RdmaMemory::DmaBuf | RdmaMemory::Peermem = rdma_memory_path(report) {
        // The path works; the remaining advice is about its speed.
        let translated =
            |kind: &Option<String>| kind.as_deref().is_some_and(|kind| kind.starts_with("DMA"));
        let nics = report.rdma.devices.iter().any(|d| translated(&d.iommu));
        if nics || report.cuda.gpus.iter().any(|gpu| translated(&gpu.iommu)) {
            list.physical(
                "a direct path between GPU and NIC: the IOMMU translates addresses, so traffic \
                 goes through the root complex, or fails",
                "add iommu=pt to the kernel's command line",
            );
        }
    } else if !report.system.kernel_since(5, 12)
        && report.cuda.gpus.iter().any(|gpu| gpu.gpudirect_rdma)
    {
        list.physical(
            "dma-buf in the kernel's verbs",
            "Linux 5.12 or later, or DOCA-OFED with modprobe nvidia_peermem",
        );
    }
}
