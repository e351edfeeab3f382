//! The path that the library would use for each purpose: conclusions from the facts of a
//! [`Report`].
//!
//! This describes the gdsync of the same version, not what the machine could do.

use crate::Report;
use crate::cuda::Gpu;
use crate::hip;
use gdsync::decide::{GpuName, SOFT_CAPS, auto_goes_on};
use gdsync::gpu::Caps;
use gdsync::rdma::Lowering;
use gdsync_sys::gpu_choice::LocalRank;
use mp::PathChoice;
use serde::Serialize;

/// One purpose, and the choice for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Use {
    /// The purpose.
    pub purpose: &'static str,
    /// The choice.
    pub choice: String,
    /// The reason.
    pub because: String,
}

impl Use {
    /// The choice for `purpose`, with its reason.
    pub(crate) fn new(
        purpose: &'static str,
        choice: impl Into<String>,
        because: impl Into<String>,
    ) -> Use {
        Use {
            purpose,
            choice: choice.into(),
            because: because.into(),
        }
    }
}

/// The choice if opening fails with the settings of the environment.
pub(crate) const ERROR: &str = "nothing: an error";

pub(crate) const RUNTIME: &str = "GPU runtime";
pub(crate) const LOWERING: &str = "doorbells and waits on a stream";
pub(crate) const NIC: &str = "NIC";
pub(crate) const WORD_ORDER: &str = "mp announces a message by";
pub(crate) const HOST_PATH: &str = "mp between ranks of this host";
pub(crate) const PAYLOAD: &str = "flush of payload from a NIC";

/// The local rank, if a launcher passes one.
pub(crate) fn local_rank(report: &Report) -> Result<Option<LocalRank>, String> {
    LocalRank::find(&|name| report.variables.get(name).cloned())
}

/// Number of GPUs.
pub(crate) fn gpus(report: &Report) -> u32 {
    report.cuda.gpus.len() as u32
}

/// A GPU on which programs would run.
enum Chosen<'a> {
    Cuda(&'a Gpu),
    Hip(&'a hip::Gpu),
    Soft,
}

/// The GPU on which programs would run, with the reason; or the reason why opening a GPU would fail.
fn decide(report: &Report) -> Result<(Chosen<'_>, String), String> {
    let (name, set) = match report.variables.get("GDS_GPU") {
        Some(name) => (name.as_str(), format!("GDS_GPU={name}")),
        None => (
            "auto",
            "CUDA is preferred to HIP, and HIP to the software GPU".to_owned(),
        ),
    };
    let unknown =
        |_| format!("{set}, and the known values are soft, cuda, cuda:N, hip, hip:N, auto");
    match GpuName::parse(name).map_err(unknown)? {
        GpuName::Auto => match cuda(report, set, None, true)? {
            (Chosen::Soft, why) => Ok(match hip(report, None) {
                Ok(gpu) => (Chosen::Hip(gpu), why),
                Err(_) => (Chosen::Soft, why),
            }),
            found => Ok(found),
        },
        GpuName::Of {
            runtime: "soft", ..
        } => Ok((Chosen::Soft, set)),
        GpuName::Of {
            runtime: "hip",
            index,
        } => match hip(report, index) {
            Ok(gpu) => Ok((Chosen::Hip(gpu), set)),
            Err(why) => Err(format!("{set}, but {why}")),
        },
        GpuName::Of { index, .. } => cuda(report, set, index, false),
    }
}

/// The HIP GPU with this index, or for the local rank; or the reason why it cannot be used.
fn hip(report: &Report, index: Option<u32>) -> Result<&hip::Gpu, String> {
    let found = &report.hip;
    let gpus = found.gpus.len();
    let local = match index {
        None => local_rank(report)?,
        Some(_) => None,
    };
    let first = local.as_ref().map_or(0, |local| local.gpu(gpus as u32));
    let gpu = found.gpus.get(index.unwrap_or(first) as usize);
    let gpu = gpu.ok_or_else(|| match (&found.refusal, &found.trouble) {
        _ if !found.library.is_opened() => "there is no usable HIP".to_owned(),
        (Some(why), _) => why.clone(),
        (None, Some(trouble)) => format!(
            "{} returned {} ({})",
            trouble.call, trouble.name, trouble.code
        ),
        (None, None) if gpus == 0 => "HIP reports no GPU".to_owned(),
        (None, None) => format!("the number of GPUs is {gpus}"),
    })?;
    match gpu.refusal {
        None => Ok(gpu),
        Some((_, why)) => Err(format!("GPU {} cannot be used: {why}", gpu.index)),
    }
}

/// As [`decide`], for a CUDA GPU: with this index, or for the local rank.
fn cuda(
    report: &Report,
    set: String,
    named: Option<u32>,
    auto: bool,
) -> Result<(Chosen<'_>, String), String> {
    let gpus = gpus(report);
    let local = match named {
        None => local_rank(report)?,
        Some(_) => None,
    };
    let index = named.unwrap_or_else(|| local.as_ref().map_or(0, |local| local.gpu(gpus)));
    let Some(gpu) = report.cuda.gpus.get(index as usize) else {
        let cuda = &report.cuda;
        let why = match (&cuda.too_old, &cuda.trouble) {
            _ if !cuda.library.is_opened() => "there is no usable CUDA driver".to_owned(),
            (Some(why), _) => why.clone(),
            (None, Some(trouble)) => format!(
                "{} returned {} ({})",
                trouble.call, trouble.name, trouble.code
            ),
            (None, None) if gpus == 0 => "the CUDA driver reports no GPU".to_owned(),
            (None, None) => format!("the number of GPUs is {gpus}"),
        };
        return match auto {
            true => Ok((Chosen::Soft, why)),
            false => Err(format!("{set}, but {why}")),
        };
    };
    let set = match &local {
        Some(local) => format!("{set}, {}", local.reason(gpus)),
        None => set,
    };
    let Some((kind, why)) = gpu.refusal else {
        return Ok((Chosen::Cuda(gpu), set));
    };
    let why = format!("GPU {} cannot be used: {why}", gpu.index);
    match auto && auto_goes_on(kind) {
        true => Ok((Chosen::Soft, why)),
        false => Err(format!("{set}, but {why}")),
    }
}

/// The CUDA GPU on which programs would run, if any.
pub(crate) fn taken(report: &Report) -> Option<&Gpu> {
    match decide(report).ok()?.0 {
        Chosen::Cuda(gpu) => Some(gpu),
        Chosen::Hip(_) | Chosen::Soft => None,
    }
}

/// The capabilities of the streams of the GPU on which programs would run, and its name.
pub(crate) fn caps(report: &Report) -> (Caps, String) {
    let gpu = |index: u32| format!("GPU {index}");
    match decide(report) {
        Ok((Chosen::Cuda(found), _)) => (found.caps, gpu(found.index)),
        Ok((Chosen::Hip(found), _)) => (found.caps, gpu(found.index)),
        Ok((Chosen::Soft, _)) | Err(_) => (SOFT_CAPS, "the software GPU".to_owned()),
    }
}

/// Whether programs would run on a CUDA GPU.
pub(crate) fn on_cuda(report: &Report) -> bool {
    taken(report).is_some()
}

pub(crate) fn runtime(report: &Report) -> Use {
    match decide(report) {
        Ok((Chosen::Cuda(gpu), why)) => {
            let choice = format!("cuda: GPU {}, {}", gpu.index, gpu.name);
            Use::new(RUNTIME, choice, why)
        }
        Ok((Chosen::Hip(gpu), why)) => {
            let choice = format!("hip: GPU {}, {}", gpu.index, gpu.name);
            Use::new(RUNTIME, choice, why)
        }
        Ok((Chosen::Soft, why)) => Use::new(RUNTIME, "soft: the software GPU", why),
        Err(why) => Use::new(RUNTIME, ERROR, why),
    }
}

/// The value of a variable, `auto` if it is not set.
pub(crate) fn setting<'a>(report: &'a Report, variable: &str) -> &'a str {
    let set = report.variables.get(variable);
    set.map_or("auto", String::as_str)
}

pub(crate) fn lowering(report: &Report) -> Use {
    let known = Lowering::VARIABLE;
    let word = setting(report, known.name);
    let set = format!("{}={word}", known.name);
    let (choice, because) = match known.meaning(word) {
        None => (ERROR, format!("{set}, but {}", known.known())),
        Some((_, Lowering::MemOps)) => ("memory operations", set),
        Some((_, Lowering::Kernel)) => ("one small kernel per submission", set),
        Some(_) if on_cuda(report) => (
            "memory operations, or one small kernel for a long list",
            "a kernel costs the host more time and the GPU less; it never polls for a peer that \
             shares the GPU"
                .to_owned(),
        ),
        Some(_) => (
            "memory operations",
            "kernels are not faster on the software GPU".to_owned(),
        ),
    };
    Use::new(LOWERING, choice, because)
}

pub(crate) fn cpu_access(report: &Report) -> Use {
    let (choice, because) = if !on_cuda(report) {
        (
            "plain loads and stores",
            "the memory of the software GPU is memory of the process",
        )
    } else if report.gdrcopy.works {
        (
            "loads and stores through GDRCopy",
            "gdrdrv maps device memory for the CPU",
        )
    } else {
        (
            "copies by the GPU's copy engine, in a separate context; words in pinned host memory",
            "there is no usable GDRCopy",
        )
    };
    Use::new("CPU access to device memory", choice, because)
}

/// Maximum number of pairs of GPUs that are named.
const PAIRS: usize = 6;

/// The path between ranks of this host: the choice that `mp` makes for each pair of ranks.
pub(crate) fn host_path(report: &Report) -> Use {
    const MAPPED: &str = "memory that the ranks map";
    const NIC: &str = "the NIC";
    let word = report.variables.get("MP_PATH").map_or("", String::as_str);
    let set = format!("MP_PATH={word}");
    let (choice, because) = match (PathChoice::parse(word), decide(report)) {
        (Err(e), _) => (ERROR, e.reason().to_owned()),
        (Ok(PathChoice::Nic), _) => (NIC, set),
        (Ok(PathChoice::Tcp), _) => ("TCP", set),
        (Ok(PathChoice::Ipc), _) => (MAPPED, set),
        (Ok(_), Err(_)) => ("nothing", "there is no GPU".to_owned()),
        (Ok(_), Ok((Chosen::Soft, _))) => (
            MAPPED,
            "every software GPU reaches the memory of the others; MP_PATH is not nic or tcp"
                .to_owned(),
        ),
        (Ok(_), Ok((Chosen::Hip(_), _))) => (
            "memory that the ranks map, else the NIC",
            "with HIP 7, ranks map uncached memory of GPUs that reach each other".to_owned(),
        ),
        (Ok(_), Ok((Chosen::Cuda(gpu), _)))
            if !gpu.posix_fd || report.cuda.library.lacks("cuMemImportFromShareableHandle") =>
        {
            let why = "the CUDA driver shares no memory between processes by descriptors";
            (NIC, why.to_owned())
        }
        (Ok(_), Ok(_)) => return between_gpus(&report.cuda.gpus, MAPPED),
    };
    Use::new(HOST_PATH, choice, because)
}

/// The path between ranks on these GPUs, any two of which may be those of two ranks.
fn between_gpus(gpus: &[Gpu], mapped: &str) -> Use {
    let reaches = |a: &Gpu, b: &Gpu| a.peers.contains(&b.index);
    let pairs = gpus.iter().enumerate();
    let pairs = pairs.flat_map(|(at, a)| gpus[at + 1..].iter().map(move |b| (a, b)));
    let apart = pairs.filter(|(a, b)| !(reaches(a, b) && reaches(b, a)));
    let apart: Vec<String> = apart
        .map(|(a, b)| format!("{} and {}", a.index, b.index))
        .collect();
    let shown = apart[..apart.len().min(PAIRS)].join(", ");
    let more = match apart.len().saturating_sub(PAIRS) {
        0 => String::new(),
        more => format!(" and {more} other pairs"),
    };
    let (choice, because) = match (gpus.len(), apart.is_empty()) {
        (1, _) => (mapped.to_owned(), "the ranks share the GPU"),
        (_, true) => (
            mapped.to_owned(),
            "each GPU has peer access to each other GPU (cuDeviceCanAccessPeer)",
        ),
        (_, false) => (
            format!("{mapped}; the NIC between GPUs {shown}{more}"),
            "these GPUs have no peer access to each other (cuDeviceCanAccessPeer; `nvidia-smi topo \
             -p2p rw` shows the pairs)",
        ),
    };
    Use::new(HOST_PATH, choice, because)
}

/// How a physical NIC would access GPU memory.
pub(crate) enum RdmaMemory {
    /// By an exported dma-buf.
    DmaBuf,
    /// By the kernel module nvidia_peermem.
    Peermem,
    /// Not possible, for this reason.
    No(&'static str),
}

/// How a physical NIC would access the memory of the GPUs.
pub(crate) fn rdma_memory_path(report: &Report) -> RdmaMemory {
    let gpus = &report.cuda.gpus;
    let verbs = &report.rdma.ibverbs;
    if gpus.is_empty() {
        RdmaMemory::No("there is no GPU")
    } else if report.rdma.devices.is_empty() {
        RdmaMemory::No("there is no RDMA device")
    } else if !gpus.iter().any(|gpu| gpu.gpudirect_rdma) {
        RdmaMemory::No("the GPU does not support GPUDirect RDMA")
    } else if gpus.iter().any(|gpu| gpu.dma_buf)
        && report.system.kernel_since(5, 12)
        && verbs.is_opened()
        && !verbs.lacks("ibv_reg_dmabuf_mr")
    {
        RdmaMemory::DmaBuf
    } else if report.system.peermem {
        RdmaMemory::Peermem
    } else {
        RdmaMemory::No("neither dma-buf nor nvidia_peermem is available")
    }
}
