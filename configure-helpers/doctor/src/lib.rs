//! Reports what a machine offers for messages that GPU streams send.
//!
//! [`examine`] examines a [`Machine`] and returns a [`Report`]: facts by subject, then the paths
//! that the library would use ([`uses`]), the requests of the environment that the machine cannot
//! meet ([`errors`]), then what is missing and the remedy ([`advice`]). Facts are only collected,
//! and conclusions depend on facts alone, so a test can check both on simulated machines: a folder
//! replaces `/`, and other libraries replace the installed ones. Decisions of gdsync and mp come
//! from these libraries themselves (`gdsync::decide`).
//!
//! The doctor changes nothing: it creates no GPU context, allocates no device memory and loads no
//! kernel module.

pub mod advice;
mod consistency;
pub mod cuda;
pub mod errors;
pub mod gdrcopy;
pub mod hip;
pub mod library;
mod machine;
mod nic;
pub mod rdma;
pub mod system;
mod text;
pub mod uses;

pub use machine::{Access, Libraries, Machine};

use gdsync_sys::launcher;
use serde::Serialize;
use std::collections::BTreeMap;

/// All facts and conclusions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The version of gdsync that this doctor describes.
    pub gdsync: &'static str,
    /// NVIDIA GPUs and their driver.
    pub cuda: cuda::Cuda,
    /// AMD GPUs and HIP.
    pub hip: hip::Hip,
    /// Device memory mapped for the CPU.
    pub gdrcopy: gdrcopy::Gdrcopy,
    /// RDMA devices and their drivers.
    pub rdma: rdma::Rdma,
    /// The kernel, its modules and limits.
    pub system: system::System,
    /// The variables of gdsync that are set and choose a path.
    pub variables: BTreeMap<&'static str, String>,
    /// The path that the library would use for each purpose.
    pub uses: Vec<uses::Use>,
    /// The requests of the environment that this machine cannot meet.
    pub errors: Vec<errors::Failure>,
    /// What is missing, and the remedy.
    pub advice: Vec<advice::Advice>,
}

/// Examines `machine`.
pub fn examine(machine: &Machine) -> Report {
    let mut report = Report {
        gdsync: env!("CARGO_PKG_VERSION"),
        cuda: cuda::look(machine),
        hip: hip::look(machine),
        gdrcopy: gdrcopy::look(machine),
        rdma: rdma::look(machine),
        system: system::look(machine),
        variables: [
            "GDS_CONSISTENCY",
            "GDS_CUDA_LIB",
            "GDS_DOORBELL",
            "GDS_GDRAPI_LIB",
            "GDS_GID_INDEX",
            "GDS_GPU",
            "GDS_HIP_LIB",
            "GDS_IBVERBS_LIB",
            "GDS_LOWER",
            "GDS_MLX5_LIB",
            "GDS_NIC",
            "GDS_PROVIDER",
            "MP_PATH",
            "MP_TELL",
            "MP_TRACE",
        ]
        .into_iter()
        .chain(launcher::local_ranks().flat_map(<[_; 2]>::from))
        .chain([launcher::SLURM_NODE])
        .filter_map(|name| Some((name, machine.variable(name)?)))
        .collect(),
        uses: Vec::new(),
        errors: Vec::new(),
        advice: Vec::new(),
    };
    let mut used = vec![uses::runtime(&report), uses::lowering(&report)];
    used.extend(nic::uses(&report));
    used.push(uses::host_path(&report));
    used.extend([uses::cpu_access(&report), consistency::policy(&report)]);
    report.uses = used;
    report.errors = errors::conclude(&report);
    report.advice = advice::conclude(&report);
    report
}
