//! Kernels, the application's and the library's own: images that a build script compiled, and
//! modules loaded on a GPU.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use gds_step::Mutex;

use super::Gpu;
use super::runtime::{ModuleHandle, Runtime};
use crate::error::Result;
use crate::kernels::Entry;
use crate::options::setters;

/// The library's own kernels.
pub static KERNELS: KernelImage = crate::kernel_image!("gds_kernels");

/// A kernel that [`Stream::launch`](super::Stream::launch) runs, in its runtime's own form.
#[derive(Clone, Debug)]
pub struct Kernel(pub(super) Arc<dyn Any + Send + Sync>);

/// The shape of a launch: blocks, threads of a block, bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dims {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl Dims {
    /// `blocks` blocks of `threads` threads, no dynamic shared memory.
    pub fn linear(blocks: u32, threads: u32) -> Dims {
        Dims {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared: 0,
        }
    }
}

setters! { Dims {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
} }

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
    pub(super) soft: &'static [SoftKernel],
    ptx: Option<&'static str>,
    hip: Option<&'static [u8]>,
}

/// What [`kernel_image!`](crate::kernel_image) includes: code for the software GPU, for CUDA, for HIP.
type Code = (
    &'static [SoftKernel],
    Option<&'static str>,
    Option<&'static [u8]>,
);

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
    pub const unsafe fn new(name: &'static str, (soft, ptx, hip): Code) -> KernelImage {
        KernelImage {
            name,
            soft,
            ptx,
            hip,
        }
    }

    /// Whether both are the same image: its code is in the program once, at one address.
    fn is(&self, other: &KernelImage) -> bool {
        let code = |image: &KernelImage| {
            let (ptx, hip) = (image.ptx.map(str::as_ptr), image.hip.map(<[u8]>::as_ptr));
            (image.soft.as_ptr(), ptx, hip)
        };
        self.name == other.name && code(self) == code(other)
    }

    /// The kernels as text for CUDA; `None` if nvcc was not found when the image was built.
    pub const fn ptx(&self) -> Option<&'static str> {
        self.ptx
    }

    /// The kernels as binary code for HIP.
    #[doc(hidden)]
    pub const fn hip(&self) -> Option<&'static [u8]> {
        self.hip
    }
}

/// Kernels that were loaded on a GPU. Clones are the same; they stay loaded as long as the GPU is
/// open, because unloading would block behind every wait of the context.
#[derive(Clone)]
pub struct Module {
    gpu: Gpu,
    handle: Arc<dyn ModuleHandle>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module of {:?}", self.gpu)
    }
}

/// The images that a GPU has loaded: each once, so that a later load does not block behind waits.
#[derive(Default)]
pub(super) struct Loaded(Mutex<Vec<(KernelImage, Arc<dyn ModuleHandle>)>>);

impl Loaded {
    /// Loads an image that is not loaded yet: the one place where kernels are loaded.
    fn load(&self, runtime: &dyn Runtime, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>> {
        let mut loaded = self.0.lock();
        if let Some((_, handle)) = loaded.iter().find(|(known, _)| known.is(image)) {
            return Ok(Arc::clone(handle));
        }
        let handle = runtime.load(image)?;
        loaded.push((*image, Arc::clone(&handle)));
        Ok(handle)
    }

    /// The library's own kernels, in the order of [`Entry::ALL`].
    pub fn own(&self, runtime: &dyn Runtime) -> Result<Vec<Kernel>> {
        let module = self.load(runtime, &KERNELS)?;
        let kernel = |entry: Entry| module.kernel(entry.name());
        Entry::ALL.into_iter().map(kernel).collect()
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
        Ok(Module {
            gpu: self.clone(),
            handle: self.modules().load(self.runtime(), image)?,
        })
    }

    /// Loads code for CUDA that was compiled elsewhere: PTX, a cubin or a fatbin. Call it before
    /// any stream of the context waits: the driver blocks loading behind waits.
    ///
    /// # Errors
    /// `Unsupported` on a software GPU, which runs a [`KernelImage`]; `Invalid` for what is not
    /// code for this GPU; `System` if the driver refuses.
    pub fn load_module(&self, image: &[u8]) -> Result<Module> {
        Ok(Module {
            gpu: self.clone(),
            handle: self.runtime().load_binary(image)?,
        })
    }

    /// A shape for a kernel whose threads share `items` items in a grid-stride loop: blocks of
    /// 256 threads, at most 1,024; one thread on the software GPU, where one thread runs at a time and
    /// more of them are not faster.
    pub fn dims_for(&self, items: u64) -> Dims {
        match self.is_software() {
            true => Dims::linear(1, 1),
            false => Dims::linear(items.div_ceil(256).clamp(1, 1024) as u32, 256),
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
        self.handle.kernel(name)
    }
}
