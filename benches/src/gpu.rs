//! The GPU that a benchmark runs on: its choice by name, and its description.

use std::fs;

use anyhow::{Context, Result, ensure};
use gdsync::Gpu;
use gdsync::decide::GpuName;
use gdsync::gpu::Stream;
use gdsync_sys::cuda::types::CUstream;
use gdsync_sys::cuda::{Cuda, CudaResult};
use serde::{Deserialize, Serialize};

/// Whether `text` is a valid name of a GPU.
pub fn name(text: &str) -> Result<String, String> {
    let known = GpuName::parse(text).map(|_| text.to_owned());
    known.map_err(|_| "GPUs are soft, cuda, cuda:N, hip, hip:N and auto".to_owned())
}

/// The GPU of rank `number`: of several names each rank takes the next.
pub fn open(names: &[String], number: u32) -> Result<Gpu> {
    let name = names
        .get(number as usize % names.len().max(1))
        .map_or("auto", String::as_str);
    Gpu::open(name).with_context(|| format!("opening the GPU {name}"))
}

/// The runtime name to which targets for NVIDIA GPUs apply.
pub const CUDA: &str = "cuda";

/// The driver of a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Driver {
    /// The CUDA version that it supports, for example `13.0`.
    pub cuda: String,
    /// The version of the kernel module, if it is known.
    pub module: Option<String>,
}

impl Driver {
    /// The driver of `gpu`; `None` for a GPU that has none.
    pub fn of(gpu: &Gpu) -> Option<Driver> {
        let cuda = Cuda::get().ok().filter(|_| !gpu.is_software())?;
        let mut version = 0;
        // SAFETY: stores a number.
        let asked = unsafe { (cuda.cuDriverGetVersion)(&mut version) };
        asked.is_success().then(|| Driver {
            cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            module: fs::read_to_string("/proc/driver/nvidia/version")
                .ok()
                .and_then(|text| module_version(&text)),
        })
    }
}

/// The CUDA driver, with the context of `stream` current on this thread, as in a program that uses
/// CUDA; `None` for a stream of another runtime.
pub fn driver(stream: &Stream) -> Result<Option<(&'static Cuda, CUstream)>> {
    let Some(raw) = stream.as_cuda() else {
        return Ok(None);
    };
    let cuda = Cuda::get().context("loading CUDA")?;
    let raw: CUstream = raw.cast();
    let mut context = std::ptr::null_mut();
    // SAFETY: a live stream; stores its context, which lives as long as its GPU is open.
    unsafe {
        check((cuda.cuStreamGetCtx)(raw, &mut context))?;
        check((cuda.cuCtxSetCurrent)(context))?;
    }
    Ok(Some((cuda, raw)))
}

/// Fails unless a CUDA call succeeded.
pub fn check(result: CudaResult) -> Result<()> {
    ensure!(result.is_success(), "CUDA: {result}");
    Ok(())
}

/// The version in the description of the kernel module: the first word that consists of numbers
/// with dots between them.
fn module_version(text: &str) -> Option<String> {
    let is_version =
        |w: &&str| w.contains('.') && w.split('.').all(|part| part.parse::<u32>().is_ok());
    let found = text.lines().next()?.split_whitespace().find(is_version)?;
    Some(found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gpus_are_parsed() {
        for good in ["soft", "cuda", "cuda:0", "cuda:7", "hip", "hip:1", "auto"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "metal", "cuda:", "cuda:-1", "cuda:x", "soft:0", " cuda"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranks_take_gpus_in_turn() {
        let names = ["soft".to_owned(), "none".to_owned()];
        assert!(open(&names, 0).unwrap().is_software());
        assert!(open(&names, 2).unwrap().is_software());
        let e = format!("{:#}", open(&names, 1).unwrap_err());
        assert!(e.contains("GPU none"), "{e}");
    }

    #[test]
    fn version_of_the_kernel_module_is_parsed() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.01  Release";
        assert_eq!(module_version(open).as_deref(), Some("580.159.01"));
        assert_eq!(module_version("NVRM version: none"), None);
    }

    #[test]
    fn soft_gpu_has_no_driver() {
        assert!(Driver::of(&Gpu::soft().unwrap()).is_none());
    }
}
