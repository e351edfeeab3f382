//! Kernels of the application: images that a build script compiled, and modules loaded on a GPU.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Dims, Gpu, Kernel, KernelCode, cuda};
use crate::error::{Error, Kind, Result};

/// The module of kernels `NAME` that `gdsync_build::Kernels::new("NAME")` compiled in this
/// package's build script, as a [`KernelImage`](crate::gpu::KernelImage). `docs/kernels.md` has
/// a whole program.
///
/// ```ignore
/// static KERNELS: KernelImage = gdsync::kernel_image!("scale");
///
/// let scale = gpu.load(&KERNELS)?.kernel("scale")?;
/// ```
#[macro_export]
macro_rules! kernel_image {
    ($name:literal) => {
        match ($name, include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"))) {
            // SAFETY: gdsync-build wrote the file from the sources that it compiled into this
            // program, where every name is a GDS_KERNEL with its size of parameters.
            (name, code) => unsafe { $crate::gpu::KernelImage::new(name, code) },
        }
    };
}

/// A kernel compiled for the software GPU: its name, its entry, the size of its parameters.
type SoftKernel = (
    &'static str,
    unsafe extern "C" fn(*const c_void),
    unsafe extern "C" fn() -> usize,
);

/// A module of kernels as code for every GPU runtime, made by [`kernel_image!`](crate::kernel_image).
#[derive(Clone, Copy)]
pub struct KernelImage {
    name: &'static str,
    soft: &'static [SoftKernel],
    ptx: Option<&'static str>,
}

impl fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels {}", self.name)
    }
}

impl KernelImage {
    /// # Safety
    /// Every entry is a `GDS_KERNEL` of `gds_device.hpp`, beside the function that returns the
    /// size of its parameters, and keeps the rules at the top of `softgpu.hpp`.
    #[doc(hidden)]
    pub const unsafe fn new(
        name: &'static str,
        (soft, ptx): (&'static [SoftKernel], Option<&'static str>),
    ) -> KernelImage {
        KernelImage { name, soft, ptx }
    }

    /// Whether both are the same image: entries are functions of the program, at one address each.
    fn is(&self, other: &KernelImage) -> bool {
        self.name == other.name && self.soft.as_ptr() == other.soft.as_ptr()
    }

    /// The kernel `name` for the software GPU.
    pub(crate) fn soft(&self, name: &str) -> Option<Kernel> {
        let (name, entry, size) = *self.soft.iter().find(|(known, ..)| *known == name)?;
        // SAFETY: as `KernelImage::new` was promised.
        let kernel = unsafe { softgpu::Kernel::new(name, entry, size()) };
        Some(Kernel::soft(kernel))
    }

    /// The kernels as text for CUDA; `None` if nvcc was not found when the image was built.
    pub const fn ptx(&self) -> Option<&'static str> {
        self.ptx
    }
}

/// Kernels that were loaded on a GPU. Clones are the same; they stay loaded as long as the GPU is
/// open, because unloading would block behind every wait of the context.
#[derive(Clone)]
pub struct Module {
    gpu: Gpu,
    code: Code,
}

#[derive(Clone)]
enum Code {
    Soft(KernelImage),
    Cuda(Arc<cuda::Module>),
}

/// The images that a GPU has loaded: each once, so that a later load does not block behind waits.
#[derive(Default)]
pub(crate) struct Loaded(Mutex<Vec<(KernelImage, Code)>>);

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module of {:?}", self.gpu)
    }
}

impl Gpu {
    /// Loads the kernels of an image, as this GPU runs them; an image that is loaded already is
    /// the same module. Make the first call before any stream of the context waits: CUDA's driver
    /// blocks loading behind waits.
    ///
    /// # Errors
    /// `Unsupported` on CUDA for an image without PTX; `System` if the driver refuses.
    pub fn load(&self, image: &KernelImage) -> Result<Module> {
        let code = match self.runtime().as_cuda() {
            None => Code::Soft(*image),
            Some(_) => self.load_once(image)?,
        };
        Ok(Module {
            gpu: self.clone(),
            code,
        })
    }

    fn load_once(&self, image: &KernelImage) -> Result<Code> {
        let loaded = &self.modules().0;
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, code)) = loaded.iter().find(|(known, _)| known.is(image)) {
            return Ok(code.clone());
        }
        let ptx = image.ptx.ok_or_else(|| {
            let what = format!(
                "{image:?} have no PTX: nvcc was not found when they were built; install it or \
                 set NVCC, or commit PTX and name it with gdsync_build::Kernels::ptx"
            );
            Error::new("load kernels", Kind::Unsupported, what)
        })?;
        let module = self.runtime().load_module(ptx.as_bytes())?;
        let code = Code::Cuda(Arc::new(module));
        loaded.push((*image, code.clone()));
        Ok(code)
    }

    /// Loads code for CUDA that was compiled elsewhere: PTX, a cubin or a fatbin. Call it before
    /// any stream of the context waits: the driver blocks loading behind waits.
    ///
    /// # Errors
    /// `Unsupported` on a software GPU, which runs a [`KernelImage`]; `Invalid` for what is not
    /// code for this GPU; `System` if the driver refuses.
    pub fn load_module(&self, image: &[u8]) -> Result<Module> {
        let code = Code::Cuda(Arc::new(self.runtime().load_module(image)?));
        Ok(Module {
            gpu: self.clone(),
            code,
        })
    }

    /// A shape for a kernel whose threads share `items` items in a grid-stride loop: blocks of
    /// 256 threads on CUDA, at most 1,024; one thread on the software GPU, where threads take
    /// turns and more of them are not faster.
    pub fn dims_for(&self, items: u64) -> Dims {
        match self.runtime().as_cuda() {
            None => Dims::linear(1, 1),
            Some(_) => Dims::linear(items.div_ceil(256).clamp(1, 1024) as u32, 256),
        }
    }
}

impl Module {
    /// The GPU that it was loaded on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// A kernel by its name in the module, loaded when this returns.
    ///
    /// # Errors
    /// `Invalid` if the module has no kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        match &self.code {
            Code::Cuda(code) => Ok(Kernel(KernelCode::Cuda(code.function(name)?))),
            Code::Soft(image) => image.soft(name).ok_or_else(|| {
                let what = format!("{image:?} have no kernel {name:?}");
                Error::new("find kernel", Kind::Invalid, what)
            }),
        }
    }
}
