//! Tables of functions of vendor libraries, filled at run time.
//!
//! The crate links no vendor library: [`dl_api!`] declares a table of C functions, and [`library`]
//! opens the shared library with these functions. A library that is missing or too old is a
//! [`LoadError`], which lists the paths that were tried. Tables are raw: their functions are
//! `unsafe extern "C"` under the exact names that the library exports. Return codes of the vendor
//! stay integers, so an unknown code is a number and not undefined behaviour.
//!
//! | table | library | override |
//! | --- | --- | --- |
//! | [`cuda::Cuda`] | `libcuda.so.1`, NVIDIA's CUDA driver | `GDS_CUDA_LIB` |
//! | [`hip::Hip`] | `libamdhip64.so.7`, `.6` or `.5`, AMD's HIP runtime | `GDS_HIP_LIB` |
//! | [`hip::Hsa`] | `libhsa-runtime64.so.1`, the HSA runtime below HIP | `GDS_HSA_LIB` |
//! | [`hip::HipRtc`] | `libhiprtc.so.7`, `.6` or `.5`, HIP's compiler | `GDS_HIPRTC_LIB` |
//! | [`verbs::Ibverbs`] | `libibverbs.so.1`, the verbs of rdma-core | `GDS_IBVERBS_LIB` |
//! | [`mlx5::Mlx5`] | `libmlx5.so.1`, its direct verbs of ConnectX NICs | `GDS_MLX5_LIB` |

#[macro_use]
mod table;
pub mod cuda;
pub mod gpu_choice;
pub mod hip;
pub mod launcher;
pub mod library;
pub mod mlx5;
pub mod verbs;

pub use library::{Library, LoadError, Tried};
