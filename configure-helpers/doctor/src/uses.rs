//! Which path would be used for what: conclusions from the facts of a [`Report`].
//!
//! This says what the gdsync of the same version does, not what the machine could do.

use crate::Report;
use crate::cuda::Gpu;
use gdsync_sys::gpu_choice::{GpuName, LocalRank};
use serde::Serialize;

/// One purpose, and what would serve it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Use {
    /// What for.
    pub purpose: &'static str,
    /// What would be used.
    pub choice: String,
    /// Why that.
    pub because: String,
}

impl Use {
    /// What serves `purpose`, and why.
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

/// The choice if opening what the environment asks for fails.
pub(crate) const ERROR: &str = "nothing: an error";

pub(crate) const RUNTIME: &str = "GPU runtime";
pub(crate) const LOWERING: &str = "doorbells and waits on a stream";
pub(crate) const NIC: &str = "NIC";
pub(crate) const PAYLOAD: &str = "payload from a NIC in the GPU";

/// What `GDS_GPU` asks for, if it is known.
fn asked(report: &Report) -> Option<GpuName> {
    let name = report.variables.get("GDS_GPU");
    GpuName::parse(name.map_or("auto", String::as_str))
}

/// The local rank, if a launcher passes one.
pub(crate) fn local_rank(report: &Report) -> Result<Option<LocalRank>, String> {
    LocalRank::find(&|name| report.variables.get(name).cloned())
}

/// How many GPUs there are.
pub(crate) fn gpus(report: &Report) -> u32 {
    report.cuda.gpus.len() as u32
}

/// The index of the GPU that is taken if none is named.
fn by_rank(report: &Report) -> usize {
    let local = local_rank(report).ok().flatten();
    local.map_or(0, |local| local.gpu(gpus(report)) as usize)
}

/// The CUDA GPU that programs would run on, if they would on one.
pub(crate) fn chosen(report: &Report) -> Option<&Gpu> {
    let index = match asked(report)? {
        GpuName::Auto | GpuName::Cuda => by_rank(report),
        GpuName::Index(index) => index as usize,
        GpuName::Soft => return None,
    };
    report.cuda.gpus.get(index)
}

/// Whether programs would run on a CUDA GPU.
pub(crate) fn on_cuda(report: &Report) -> bool {
    chosen(report).is_some_and(|gpu| gpu.unusable().is_none())
}

pub(crate) fn runtime(report: &Report) -> Use {
    let soft = || "soft: the software GPU".to_owned();
    let error = || ERROR.to_owned();
    let why_no_gpu = || match &report.cuda.trouble {
        _ if !report.cuda.library.is_opened() => "there is no usable CUDA driver".to_owned(),
        Some(trouble) => format!(
            "{} returned {} ({})",
            trouble.call, trouble.name, trouble.code
        ),
        None => "the CUDA driver knows no GPU".to_owned(),
    };
    let mut set = match report.variables.get("GDS_GPU") {
        Some(value) => format!("GDS_GPU={value}"),
        None => "a GPU goes before the software GPU".to_owned(),
    };
    let asked = asked(report);
    if matches!(asked, Some(GpuName::Auto | GpuName::Cuda)) && gpus(report) > 0 {
        match local_rank(report) {
            Ok(None) => {}
            Ok(Some(local)) => set = format!("{set}, {}", local.reason(gpus(report))),
            Err(wrong) => return Use::new(RUNTIME, ERROR, wrong),
        }
    }
    let (choice, because) = match (asked, chosen(report)) {
        (Some(GpuName::Soft), _) => (soft(), set),
        (None, _) => (error(), format!("{set}, and {}", GpuName::KNOWN)),
        (_, Some(gpu)) => match gpu.unusable() {
            None => (format!("cuda: GPU {}, {}", gpu.index, gpu.name), set),
            Some(why) => (
                error(),
                format!("{set}, but GPU {} cannot be used: {why}", gpu.index),
            ),
        },
        (Some(GpuName::Auto), None) => (soft(), why_no_gpu()),
        (Some(_), None) => {
            let why = match report.cuda.gpus.len() {
                0 => why_no_gpu(),
                n => format!("of GPUs there are only {n}"),
            };
            (error(), format!("{set}, and {why}"))
        }
    };
    Use::new(RUNTIME, choice, because)
}

pub(crate) fn lowering(report: &Report) -> Use {
    let (choice, because) = match report.variables.get("GDS_LOWER").map(String::as_str) {
        None | Some("auto") if on_cuda(report) => (
            "memory operations, or one small kernel for a list of many",
            "a kernel takes the host longer and the GPU less time; it never spins for a peer \
             that shares the GPU"
                .to_owned(),
        ),
        None | Some("auto") => (
            "memory operations",
            "kernels of the software GPU win nothing".to_owned(),
        ),
        Some("memops") => ("memory operations", "GDS_LOWER=memops".to_owned()),
        Some("kernel") => (
            "one small kernel a submission",
            "GDS_LOWER=kernel".to_owned(),
        ),
        Some(other) => (
            ERROR,
            format!("GDS_LOWER={other}, and known are auto, memops, kernel"),
        ),
    };
    Use::new(LOWERING, choice, because)
}

pub(crate) fn cpu_access(report: &Report) -> Use {
    let (choice, because) = if !on_cuda(report) {
        (
            "plain loads and stores",
            "the software GPU's memory is the process's",
        )
    } else if report.gdrcopy.works {
        (
            "loads and stores through GDRCopy",
            "gdrdrv maps device memory for the CPU",
        )
    } else {
        (
            "copies by the GPU's copy engine, in a context of their own; words in pinned host memory",
            "there is no usable GDRCopy",
        )
    };
    Use::new("CPU access to device memory", choice, because)
}

/// How a physical NIC would get at GPU memory.
pub(crate) enum RdmaMemory {
    /// By exporting a dma-buf.
    DmaBuf,
    /// By the kernel module nvidia_peermem.
    Peermem,
    /// Not at all, for this reason.
    No(&'static str),
}

/// How a physical NIC would get at the GPUs' memory.
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
        RdmaMemory::No("neither dma-buf nor nvidia_peermem is there")
    }
}
