//! The requests of the environment that this machine cannot meet. Programs that need them fail.

use crate::Report;
use crate::uses::{self, Use};
use serde::Serialize;

/// A request of the environment that cannot be met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// The request, and the reason why it cannot be met.
    pub failed: String,
    /// The remedy.
    pub remedy: String,
}

/// The variables that name libraries, with the default of each.
const LIBRARIES: [(&str, &str); 4] = [
    ("GDS_CUDA_LIB", "libcuda.so.1"),
    ("GDS_GDRAPI_LIB", "libgdrapi.so.2"),
    ("GDS_IBVERBS_LIB", "libibverbs.so.1"),
    ("GDS_MLX5_LIB", "libmlx5.so.1"),
];

/// Concludes from the facts and the uses of `report`.
pub(crate) fn conclude(report: &Report) -> Vec<Failure> {
    let failed = report.uses.iter().filter(|used| used.choice == uses::ERROR);
    let mut all: Vec<Failure> = failed.map(|used| of_use(report, used)).collect();
    let states = [
        &report.cuda.library,
        &report.gdrcopy.library,
        &report.rdma.ibverbs,
        &report.rdma.mlx5,
    ];
    for ((name, soname), state) in LIBRARIES.into_iter().zip(states) {
        if let Some(path) = report.variables.get(name)
            && !state.is_opened()
        {
            all.push(Failure {
                failed: format!("{name}={path}: {state}"),
                remedy: format!(
                    "name a library that is present, or unset {name}: gdsync then opens {soname}"
                ),
            });
        }
    }
    all
}

fn of_use(report: &Report, used: &Use) -> Failure {
    let by: &[&str] = match used.purpose {
        uses::RUNTIME => &["GDS_GPU"],
        uses::LOWERING => &["GDS_LOWER"],
        uses::NIC => &["GDS_NIC", "GDS_PROVIDER", "GDS_GID_INDEX"],
        uses::WORD_ORDER => &["MP_TELL"],
        uses::HOST_PATH => &["MP_PATH"],
        uses::PAYLOAD => &["GDS_CONSISTENCY"],
        _ => &[],
    };
    let set = by
        .iter()
        .filter(|name| report.variables.contains_key(**name));
    let set = set.copied().collect::<Vec<_>>().join(", ");
    let install = match used.purpose {
        uses::RUNTIME if !report.cuda.library.is_opened() => {
            "install the driver of the NVIDIA GPU (Debian: apt-get install nvidia-driver), or "
        }
        uses::NIC if !report.rdma.ibverbs.is_opened() => {
            "apt-get install libibverbs1 ibverbs-providers, or "
        }
        _ => "",
    };
    Failure {
        failed: format!("{}: {}", used.purpose, used.because),
        remedy: match set.is_empty() {
            false => format!("{install}unset {set}: gdsync then chooses among what is present"),
            // Without a request, the only error is a GPU that is present and unusable.
            true => "set GDS_GPU=soft, or GDS_GPU=cuda:INDEX for another GPU".to_owned(),
        },
    }
}
