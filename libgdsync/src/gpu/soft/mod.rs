//! The software GPU: its options, [`SoftOptions`], for [`Gpu::soft_with`], and the types of the
//! emulator that these calls take. The module exists only with the feature `soft`.
//!
//! In the sources, it is a thin layer over the crate `softgpu`, which executes streams and kernels
//! on threads of this process: `memory` is that of regions, `stream` converts operations, `options` are
//! those of a GPU.

mod memory;
mod options;
mod stream;

use std::any::Any;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub use gds_step::Host;
use gds_step::{MachineId, Thread, Time};
pub use softgpu::{Kernel as SoftKernel, Stream as SoftStream, Weak};

use self::memory::Memory;
pub use self::options::SoftOptions;
use self::options::{LIKE, WARP};
use super::host::{self, HostPool};
use super::identity::Device;
use super::runtime::{
    Allocation, Ends, EventHandle, ModuleHandle, Opener, Owner, Runtime, StreamHandle,
};
use super::{
    Gpu, GpuIdentity, Kernel, KernelImage, Mapped, MemoryKind, SharedMemory, Stream, Unreachable,
    WaitLimits,
};
use crate::error::{Error, Kind, Result};
use crate::memop::{Caps, DevicePtr};
use crate::mutant::{self, Mutant};

/// Numbers the soft GPUs of this process, for their names. Relaxed: only uniqueness matters.
static NEXT_GPU: AtomicU32 = AtomicU32::new(0);

pub(super) const OPENER: Opener = Opener {
    name: "soft",
    numbered: false,
    open: |_| Gpu::soft(),
};

/// With the feature `soft`.
impl Gpu {
    /// Opens a software GPU of this process, which its device thread runs. Every call makes a new
    /// GPU; memory of one is not memory of another.
    ///
    /// The drop of the GPU waits, at most 10 seconds, until a running kernel yields or ends. After
    /// that, a warning names the kernel and its stream, and the library keeps the GPU and all
    /// memory that the kernel may still use until the kernel or the process ends.
    ///
    /// # Errors
    /// `System` if the operating system provides no thread or memory file; `Invalid` for an unknown
    /// value of `GDS_SOFT_CAPS` or `GDS_SOFT_WARP`.
    pub fn soft() -> Result<Gpu> {
        let live = gds_step::Live::global().map_err(|e| {
            let what = format!("start of the device thread failed: {e}");
            Error::new("open soft GPU", Kind::System, what).with_source(e)
        })?;
        SoftRuntime::open(live, SoftOptions::default())
    }

    /// Opens a software GPU on a driver of the caller's choice, with the options given. The driver
    /// steps the GPU and is its clock: threads and real time, or a simulation.
    ///
    /// # Errors
    /// As [`Gpu::soft`]; `Invalid` for an option that is out of its range.
    pub fn soft_with(host: Arc<dyn Host>, options: SoftOptions) -> Result<Gpu> {
        SoftRuntime::open(host, options)
    }
}

/// With the feature `soft`.
impl Kernel {
    /// Makes a kernel for a software GPU of a function of this program.
    pub fn soft(kernel: SoftKernel) -> Kernel {
        Kernel::of(kernel, kernel.name())
    }
}

/// With the feature `soft`.
impl Stream {
    /// The soft GPU's handle, for features that only the soft GPU has (fills); `None` on
    /// another GPU.
    pub fn as_soft(&self) -> Option<&SoftStream> {
        (&**self.handle() as &dyn Any).downcast_ref()
    }
}

/// The memory of `region` as a NIC of this machine accesses it; `None` if the region is not of a
/// soft GPU.
#[cfg(feature = "emulated")]
pub(crate) fn window(region: &super::Region) -> Option<softgpu::Window> {
    let memory: &Memory = (region.backing() as &dyn Any).downcast_ref()?;
    Some(match memory {
        Memory::Device(m) => m.window(),
        Memory::Pinned(m, _) | Memory::Host(m) => m.window(),
    })
}

/// The runtime: one software GPU.
#[derive(Debug)]
pub(crate) struct SoftRuntime {
    gpu: softgpu::Gpu,
    pinned: Arc<HostPool>,
    number: u64,
    host: Arc<dyn Host>,
    engine: MachineId,
    caps: Caps,
    channels: usize,
    name: String,
}

impl SoftRuntime {
    pub fn open(host: Arc<dyn Host>, options: SoftOptions) -> Result<Gpu> {
        LIKE.read()?;
        let number = NEXT_GPU.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpu{number}");
        let warp = options.warp.map_or_else(|| WARP.read(), Ok)?;
        let config = softgpu::Config {
            name: name.clone(),
            caps: softgpu::Caps {
                memops64: options.caps.memops64,
                nor: options.caps.nor,
                flush: options.caps.flush,
                cyclic: options.caps.cyclic,
                batch_limit: options.caps.batch_limit,
            },
            stream_bound: options.stream_bound,
            channels: options.channels,
            weak: options.weak,
            ordered_writes: options.caps.ordered_writes && !mutant::on(Mutant::OrderNotKept),
            kernels: softgpu::GridConfig {
                warp,
                ..softgpu::GridConfig::default()
            },
            ..softgpu::Config::default()
        };
        let env: Arc<dyn Host> = Arc::clone(&host);
        let (gpu, engine) =
            softgpu::Gpu::new(env, config).map_err(|e| system("open soft GPU", &e))?;
        let engine = host.attach(Thread::Device, Box::new(engine));
        Gpu::from_runtime(Box::new(SoftRuntime {
            gpu,
            pinned: Arc::default(),
            number: number.into(),
            host,
            engine,
            caps: options.caps,
            channels: options.channels,
            name: format!("soft {name}"),
        }))
    }

    fn device(&self, memory: softgpu::DeviceMemory) -> Allocation {
        Allocation {
            addr: DevicePtr(memory.addr().raw()),
            len: memory.len(),
            cpu: None,
            backing: Box::new(Memory::Device(memory)),
        }
    }

    /// Makes host memory known to the GPU.
    ///
    /// # Safety
    /// As for [`Runtime::register`].
    unsafe fn host_memory(
        &self,
        operation: &'static str,
        base: NonNull<u8>,
        len: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
        of: impl FnOnce(softgpu::HostRegistration) -> Memory,
    ) -> Result<Allocation> {
        // SAFETY: the caller's promise.
        let memory = unsafe { self.gpu.register_host(base.as_ptr(), len, owner) };
        let memory = memory.map_err(|e| system(operation, &e))?;
        Ok(Allocation {
            addr: DevicePtr(memory.addr().raw()),
            len,
            // SAFETY: as the caller promises; the region hands out copies only while it lives.
            cpu: Some(unsafe { Mapped::new(base, len) }),
            backing: Box::new(of(memory)),
        })
    }

    #[cold]
    fn refuse(&self, operation: &'static str, kind: Kind, why: &str) -> Error {
        let what = format!("{} {why}", self.name);
        Error::new(operation, kind, what)
    }
}

impl Drop for SoftRuntime {
    fn drop(&mut self) {
        self.host.detach(self.engine);
    }
}

impl Runtime for SoftRuntime {
    fn gpu_name(&self) -> String {
        self.name.clone()
    }

    fn runtime_name(&self) -> &'static str {
        OPENER.name
    }

    fn is_software(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        self.gpu.waiting_streams() > 0
    }

    fn identity(&self) -> GpuIdentity {
        GpuIdentity(Device::Soft {
            process: process(),
            gpu: self.number,
        })
    }

    /// Its memory is memory of the host.
    fn reaches(&self, _: &GpuIdentity) -> Result<(), Unreachable> {
        Ok(())
    }

    fn wait_limits(&self) -> Option<WaitLimits> {
        let channels = u32::try_from(self.channels).unwrap_or(u32::MAX);
        Some(WaitLimits {
            channels,
            setting: "SoftOptions::channels",
            // If waiting streams hold all channels, no other stream progresses.
            streams: channels.saturating_sub(1).clamp(1, MOST_SLOTS),
            // A full stream blocks the caller, as its options say.
            submissions: None,
            multiprocessors: None,
        })
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation> {
        match kind {
            MemoryKind::Device => {
                let memory = self
                    .gpu
                    .alloc_device(len)
                    .map_err(|e| system("allocate device memory", &e))?;
                Ok(self.device(memory))
            }
            MemoryKind::Pinned => {
                const OPERATION: &str = "allocate pinned memory";
                let reserved = self.gpu.reserve(len).map_err(|e| system(OPERATION, &e))?;
                let owned = Arc::new((host::Owned::new(&self.pinned, len)?, reserved));
                let base = owned.0.piece().base();
                let owner = Arc::clone(&owned);
                let of = |memory| Memory::Pinned(memory, owned);
                // SAFETY: the owner keeps the memory, which only devices and regions access.
                unsafe { self.host_memory(OPERATION, base, len, Some(owner), of) }
            }
        }
    }

    unsafe fn register(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Allocation> {
        let owner = owner.map(|owner| Arc::new(owner) as _);
        let base = pointer(ptr)?;
        // SAFETY: the caller promises that the memory outlives its owner.
        unsafe { self.host_memory("register host memory", base, len, owner, Memory::Host) }
    }

    unsafe fn adopt(&self, _: DevicePtr, _: usize, _: Option<Owner>) -> Result<Allocation> {
        let why = "is a software GPU, which adopts no memory; register host memory by \
                   `Gpu::register_host`";
        Err(self.refuse("adopt memory", Kind::Foreign, why))
    }

    fn allocate_exportable(&self, len: usize) -> Result<Allocation> {
        self.allocate(MemoryKind::Device, len)
    }

    unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Allocation> {
        const OPERATION: &str = "open shared memory";
        let refused = |why: &str| self.refuse(OPERATION, Kind::Invalid, why);
        let (fd, len) = match shared {
            SharedMemory::File { fd, offset: 0, len } => (fd, len),
            SharedMemory::Host { fd, offset, len } => {
                let (mapping, inside) = host::open(fd.as_fd(), *offset, *len)?;
                // SAFETY: inside the mapping.
                let base = unsafe { mapping.base().add(inside) };
                let (len, owner) = (*len as usize, Some(Arc::new(mapping) as _));
                // SAFETY: the owner keeps the mapping, which only devices and regions access.
                return unsafe { self.host_memory(OPERATION, base, len, owner, Memory::Host) };
            }
            _ => {
                return Err(refused(
                    "cannot open the handle: a soft GPU did not create it",
                ));
            }
        };
        let len = usize::try_from(*len)
            .map_err(|_| refused("cannot open the handle: its length exceeds the address space"))?;
        let fd = fd.try_clone();
        let fd = fd.map_err(|e| {
            let why = format!("cannot open the handle: dup of its descriptor failed: {e}");
            self.refuse(OPERATION, Kind::System, &why)
        })?;
        let memory = self.gpu.import(fd, len);
        Ok(self.device(memory.map_err(|e| system(OPERATION, &e))?))
    }

    fn new_stream(&self, _waits: &dyn Fn() -> bool) -> Result<Arc<dyn StreamHandle>> {
        let stream = self.gpu.stream().map_err(|e| system("create stream", &e))?;
        Ok(Arc::new(stream))
    }

    fn ends(&self) -> Ends {
        let ends = self.gpu.ends();
        Ends(Box::new(move || ends.is_reached()))
    }

    fn passed_at(&self, event: &dyn EventHandle) -> Option<Time> {
        (event as &dyn Any).downcast_ref::<softgpu::Stamp>()?.at()
    }

    fn flush_remote_writes(&self) {
        self.gpu.flush_remote_writes();
    }

    fn host_flush(&self) -> Result<()> {
        self.gpu.flush_remote_writes();
        Ok(())
    }

    fn load(&self, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>> {
        if image.soft.is_empty() {
            let why = format!(
                "cannot run {image:?}: they were built without the feature `soft` of gdsync-build"
            );
            return Err(self.refuse("load kernels", Kind::Unsupported, &why));
        }
        Ok(Arc::new(*image))
    }

    fn load_binary(&self, _: &[u8]) -> Result<Arc<dyn ModuleHandle>> {
        let why = "loads no code: its kernels are functions of the program";
        Err(self.refuse("load module", Kind::Unsupported, why))
    }
}

impl ModuleHandle for KernelImage {
    fn kernel(&self, name: &str, _waits: bool) -> Result<Kernel> {
        let found = self.soft.iter().find(|(known, ..)| *known == name);
        let (name, entry, size) = *found.ok_or_else(|| {
            let what = format!("{self:?} have no kernel {name:?}");
            Error::new("find kernel", Kind::Invalid, what)
        })?;
        // SAFETY: the caller of `KernelImage::new` promised this.
        Ok(Kernel::soft(unsafe {
            softgpu::Kernel::new(name, entry, size())
        }))
    }
}

/// A random number of this process.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    // The keys of the standard library's hashers are random.
    *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish())
}

/// The maximum number of wait slots: a soft GPU with more channels has no limit that matters.
const MOST_SLOTS: u32 = 1024;

fn pointer(ptr: *mut u8) -> Result<NonNull<u8>> {
    NonNull::new(ptr).ok_or_else(|| {
        let what = "the soft GPU mapped the memory at address 0";
        Error::new("map memory", Kind::System, what)
    })
}

/// Converts an error of the soft GPU into an error of this crate.
fn system(operation: &'static str, e: &softgpu::Error) -> Error {
    use softgpu::Error as E;
    let kind = match e {
        E::Unsupported { .. } | E::Capturing { .. } | E::BatchTooLong { .. } => Kind::Unsupported,
        E::BadAddress { .. }
        | E::Misaligned { .. }
        | E::Launch(_)
        | E::BadLength { .. }
        | E::Overlap { .. }
        | E::InlineTooLong { .. }
        | E::BadConfig { .. }
        | E::BadWarp(_)
        | E::BadImport { .. }
        | E::AlreadyRegistered { .. } => Kind::Invalid,
        E::NotCapturing { .. } => Kind::WrongState,
        E::OtherGpu { .. } => Kind::Foreign,
        _ => Kind::System,
    };
    let what = match e {
        E::BatchTooLong { stream, ops, .. } => {
            format!("stream {stream} cannot take {ops} memory operations in one submission")
        }
        E::InlineTooLong { len, .. } => format!("an inline copy cannot have {len} bytes"),
        E::BadConfig {
            what, value, min, ..
        } => format!("the setting {what} cannot be {value}; its lowest value is {min}"),
        E::OutOfMemory {
            what, len, used, ..
        } => format!("{what} of {len} bytes is not available: the GPU has {used} bytes in use"),
        e => e.to_string(),
    };
    let error = Error::new(operation, kind, what).with_source(e.clone());
    match e {
        E::BatchTooLong { limit, .. } => error.with_limit(*limit as u64, "operations"),
        E::InlineTooLong { limit, .. } | E::OutOfMemory { limit, .. } => {
            error.with_limit(*limit as u64, "bytes")
        }
        E::BadConfig { max, .. } => error.with_limit(*max as u64, "as the highest value"),
        _ => error,
    }
}
