//! Kernels of the application and of the library: images that a build script compiled, and modules
//! loaded on a GPU.

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

/// The library's kernels.
pub static KERNELS: KernelImage = crate::kernel_image!("gds_kernels");

/// A kernel for [`Stream::launch`](super::Stream::launch), loaded on a GPU by [`Module::kernel`]. A
/// clone is the same kernel.
#[derive(Clone, Debug)]
pub struct Kernel(pub(super) Arc<dyn Any + Send + Sync>, Arc<str>);

impl Kernel {
    /// A kernel of a runtime, with its name in its module.
    pub(super) fn of(handle: impl Any + Send + Sync, name: &str) -> Kernel {
        Kernel(Arc::new(handle), name.into())
    }

    pub(super) fn name(&self) -> &str {
        &self.1
    }
}

/// The shape of a launch: number of blocks, threads per block, bytes of dynamic shared memory.
/// [`Gpu::dims_for`] makes the shape of a grid-stride loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dims {
    /// Number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// See [`Dims::dependent`].
    pub(super) dependent: bool,
    /// See [`Dims::flexible`].
    pub(super) flexible: bool,
}

impl Dims {
    /// A shape of `blocks` blocks of `threads` threads, without dynamic shared memory.
    pub fn linear(blocks: u32, threads: u32) -> Dims {
        Dims {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared: 0,
            dependent: false,
            flexible: false,
        }
    }

    /// A *dependent launch*: the kernel may start before the work in front of it in its stream has
    /// ended (CUDA: programmatic stream serialization). It waits for the end of that work itself
    /// (`griddepcontrol.wait`) before it uses memory that the work reads or writes. A launch like any
    /// other on the software GPU, with a driver without `cuLaunchKernelEx`, and on a GPU older than
    /// compute capability 9.0.
    #[doc(hidden)]
    #[must_use]
    pub fn dependent(mut self) -> Dims {
        self.dependent = true;
        self
    }

    /// A kernel that also works with fewer blocks in x, at least one. A stream that waits launches it with fewer
    /// blocks if the blocks of waiting streams could otherwise occupy all multiprocessors.
    #[doc(hidden)]
    #[must_use]
    pub fn flexible(mut self) -> Dims {
        self.flexible = true;
        self
    }
}

setters! { Dims {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
} }

/// Includes the kernel module `NAME` that `gdsync_build::Kernels::new("NAME")` compiled in this
/// package's build script. The value is a [`KernelImage`](crate::gpu::KernelImage), for a `static`.
/// `docs/kernels.md` has a whole program.
///
/// ```
/// use gdsync::gpu::KernelImage;
///
/// // build.rs: gdsync_build::Kernels::new("gds_kernels").source("device/gds_pattern.cu").compile()
/// static KERNELS: KernelImage = gdsync::kernel_image!("gds_kernels");
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let fill = gpu.load(&KERNELS)?.kernel("gds_fill")?;
/// # Ok(())
/// # }
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

/// A kernel compiled for the software GPU: its name, its entry point, and the function that returns
/// the size of its parameters.
type SoftKernel = (
    &'static str,
    unsafe extern "C" fn(*const c_void),
    unsafe extern "C" fn() -> usize,
);

/// The code of a module of kernels, for every GPU runtime: compiled by `gdsync-build` in a build
/// script, included by [`kernel_image!`](crate::kernel_image), loaded by [`Gpu::load`].
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::gpu::{KernelImage, MemoryKind};
/// # use gdsync::internals::Fill;
///
/// // The build script has compiled `device/gds_pattern.cu` under this name. Its kernel `gds_fill`
/// // has the parameters `Fill`: an address, a length in bytes, and the seed of a pattern.
/// static KERNELS: KernelImage = gdsync::kernel_image!("gds_kernels");
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let fill = gpu.load(&KERNELS)?.kernel("gds_fill")?; // before any stream waits
/// let memory = gpu.alloc(MemoryKind::Device, 64)?;
/// let stream = gpu.stream()?;
/// let params = Fill { at: memory.addr(), len: 64, seed: 1 };
/// // SAFETY: the parameters are those of the kernel, and the memory outlives it.
/// unsafe { stream.launch(&fill, gpu.dims_for(64), params.bytes())? };
/// assert!(stream.synchronize(Duration::from_secs(10))?);
/// let mut bytes = [0; 64];
/// memory.read(0, &mut bytes)?;
/// assert_ne!(bytes, [0; 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct KernelImage {
    name: &'static str,
    pub(super) soft: &'static [SoftKernel],
    ptx: Option<&'static str>,
    code_objects: CodeObjects,
    hip_source: &'static str,
}

/// Code objects, with the processors that they are for.
type CodeObjects = &'static [(&'static str, &'static [u8])];

/// The parts of an image that [`kernel_image!`](crate::kernel_image) includes: code for the
/// software GPU, for CUDA, for HIP, and the source for HIP.
type Code = (
    &'static [SoftKernel],
    Option<&'static str>,
    CodeObjects,
    &'static str,
);

impl fmt::Debug for KernelImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels {}", self.name)
    }
}

impl KernelImage {
    /// Makes an image of the code that a build script compiled.
    ///
    /// # Safety
    /// Every entry is a `GDS_KERNEL` of `gds_device.hpp`, paired with the function that returns the
    /// size of its parameters, and follows the rules at the top of `softgpu.hpp`.
    #[doc(hidden)]
    pub const unsafe fn new(
        name: &'static str,
        (soft, ptx, code_objects, hip_source): Code,
    ) -> KernelImage {
        KernelImage {
            name,
            soft,
            ptx,
            code_objects,
            hip_source,
        }
    }

    /// Whether both are the same image: the program contains its code once, at one address.
    fn is(&self, other: &KernelImage) -> bool {
        let code = |image: &KernelImage| {
            let (ptx, hip) = (image.ptx.map(str::as_ptr), image.hip_source.as_ptr());
            (image.soft.as_ptr(), ptx, hip)
        };
        self.name == other.name && code(self) == code(other)
    }

    /// The PTX of the kernels for CUDA; `None` if nvcc was not found when the image was built.
    pub const fn ptx(&self) -> Option<&'static str> {
        self.ptx
    }

    /// The code object of the kernels for a target of HIP, as `hipDeviceProp_t::gcnArchName` names it: `gfx942`, or
    /// `gfx942:sramecc+:xnack-`. The code works with any setting of the features behind the colon. `None` if the image
    /// has none for this processor: HIP then compiles [`hip_source`](KernelImage::hip_source).
    pub fn code_object(&self, target: &str) -> Option<&'static [u8]> {
        let processor = target.split(':').next()?;
        let found = self
            .code_objects
            .iter()
            .find(|(name, _)| *name == processor);
        found.map(|(_, code)| *code)
    }

    /// The processors for which the image has a code object: `gfx942`.
    pub fn code_targets(&self) -> impl Iterator<Item = &'static str> {
        self.code_objects.iter().map(|(name, _)| *name)
    }

    /// The source of the kernels for HIP: one text with all headers in it, which HIPRTC compiles as C++17.
    pub const fn hip_source(&self) -> &'static str {
        self.hip_source
    }
}

/// A module of kernels loaded on a GPU. A clone is the same module. A module stays loaded as long
/// as the GPU is open, because unloading would block until every wait of the context has passed.
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

/// The images that a GPU has loaded. Each is loaded once, so that a later load does not block
/// behind waits.
#[derive(Default)]
pub(super) struct Loaded(Mutex<Vec<(KernelImage, Arc<dyn ModuleHandle>)>>);

impl Loaded {
    /// Returns the module of an image, and loads the image if it is not loaded yet. All image loads
    /// go through here.
    fn load(&self, runtime: &dyn Runtime, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>> {
        let mut loaded = self.0.lock();
        if let Some((_, handle)) = loaded.iter().find(|(known, _)| known.is(image)) {
            return Ok(Arc::clone(handle));
        }
        let handle = runtime.load(image)?;
        loaded.push((*image, Arc::clone(&handle)));
        Ok(handle)
    }

    /// The library's kernels, in the order of [`Entry::ALL`].
    pub fn own(&self, runtime: &dyn Runtime) -> Result<Vec<Kernel>> {
        let module = self.load(runtime, &KERNELS)?;
        let kernel = |entry: Entry| module.kernel(entry.name(), true);
        Entry::ALL.into_iter().map(kernel).collect()
    }
}

impl Gpu {
    /// Loads the kernels of an image for this GPU. An image that is loaded already yields the same
    /// module. Make the first call before any stream of the context waits: CUDA's driver blocks a
    /// load until the waits have passed.
    ///
    /// # Errors
    /// `Unsupported` on CUDA for an image without PTX, on HIP for an image without code for this GPU
    /// or source for it, and on a software GPU for an image that was built without the feature `soft`
    /// of `gdsync-build`; `Invalid` for code that the driver does not accept; `System` if the driver
    /// refuses for another reason.
    pub fn load(&self, image: &KernelImage) -> Result<Module> {
        Ok(Module {
            gpu: self.clone(),
            handle: self.modules().load(self.runtime(), image)?,
        })
    }

    /// Loads code that was compiled elsewhere: for CUDA, PTX (text, with or without a zero byte at its
    /// end), a cubin or a fatbin; for HIP, a code object. Call it before any stream of the context
    /// waits: the driver blocks a load until the waits have passed. Each call loads the code again.
    ///
    /// # Errors
    /// `Unsupported` on a software GPU, which runs a [`KernelImage`]; `Invalid` if `image` is not
    /// code for this GPU, if it is binary code and shorter than its header states, or if it is text
    /// with a zero byte in it; `System` if the driver refuses for another reason.
    pub fn load_module(&self, image: &[u8]) -> Result<Module> {
        Ok(Module {
            gpu: self.clone(),
            handle: self.runtime().load_binary(image)?,
        })
    }

    /// A launch shape for a kernel whose threads share `items` items in a grid-stride loop: at most
    /// 1,024 blocks of 256 threads. On the software GPU the shape is one thread: it runs one thread
    /// at a time, so more threads are not faster.
    pub fn dims_for(&self, items: u64) -> Dims {
        match self.is_software() {
            true => Dims::linear(1, 1),
            false => Dims::linear(items.div_ceil(256).clamp(1, 1024) as u32, 256),
        }
    }
}

impl Module {
    /// The GPU on which the module is loaded.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The kernel with this name in the module. It is loaded when the call returns, so that its
    /// first launch does not block behind waits.
    ///
    /// # Errors
    /// `Invalid` if the module has no kernel of this name; `System`, `DeviceLost` if the driver
    /// refuses.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        self.handle.kernel(name, false)
    }

    /// As [`Module::kernel`], a kernel whose blocks wait for stores of other parties. On CUDA it prefers
    /// multiprocessors with all of the variable memory as shared memory
    /// (`CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, CUDA driver API). Otherwise a kernel that needs more
    /// shared memory cannot start on a multiprocessor where such a block waits, although it has room.
    ///
    /// # Errors
    /// As [`Module::kernel`].
    pub fn waiting_kernel(&self, name: &str) -> Result<Kernel> {
        self.handle.kernel(name, true)
    }
}
