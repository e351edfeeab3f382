//! The soft GPU as a runtime: a thin layer over the crate `softgpu`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gds_step::{Host, Lane, MachineId, Time};

use super::event::EventHandle;
use super::{
    Allocation, Dims, Ends, Gpu, Kernel, KernelCode, Left, Mapped, MemoryKind, Owner, Runtime,
    StreamHandle, WaitLimits, cuda, sealed,
};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Entry, Transfer};
use crate::memop::{Caps, Condition, DevicePtr, Op, Width};
use crate::mutant::{self, Mutant};

/// Numbers the soft GPUs of this process, for their names. Relaxed: only uniqueness matters.
static NEXT_GPU: AtomicU32 = AtomicU32::new(0);

/// How a soft GPU is made. The defaults are those of a GPU of today under CUDA: 64-bit memory
/// operations, NOR and flush, no masks, 255 operations a batch.
#[derive(Clone, Debug)]
pub struct SoftOptions {
    /// What its streams can do.
    pub caps: Caps,
    /// Submissions that one stream holds; the next one blocks.
    pub stream_bound: usize,
    /// Waiting streams that stop all others.
    pub channels: usize,
    /// Weak memory on purpose, with its seed.
    pub weak: Option<softgpu::Weak>,
}

impl Default for SoftOptions {
    fn default() -> SoftOptions {
        SoftOptions {
            caps: Caps {
                memops64: true,
                nor: true,
                mask: false,
                flush: true,
                inline_copy: false,
                fence: true,
                ordered_writes: false,
                host_flush: true,
                kernels: true,
                batch_limit: 255,
            },
            stream_bound: 1024,
            channels: 8,
            weak: None,
        }
    }
}

/// The memory behind a region.
#[derive(Debug)]
pub(crate) enum Backing {
    Device(softgpu::DeviceMemory),
    Pinned(softgpu::PinnedMemory),
    Host(softgpu::HostRegistration),
}

impl Backing {
    /// Device memory as a descriptor.
    pub fn dma_buf(&self) -> Result<cuda::DmaBuf> {
        const OPERATION: &str = "export dma-buf";
        let Backing::Device(memory) = self else {
            return Err(Error::new(OPERATION, Kind::Unsupported, "host memory"));
        };
        Ok(cuda::DmaBuf {
            fd: memory.export().map_err(|e| system(OPERATION, &e))?,
            offset: 0,
            len: memory.len() as u64,
        })
    }

    /// Frees it at once.
    ///
    /// # Safety
    /// Every enqueued operation that names it is known to have run.
    pub unsafe fn release(self) {
        if let Backing::Host(memory) = self {
            // SAFETY: the caller's promise.
            unsafe { memory.release() };
        }
    }

    /// The memory as a NIC of this machine sees it.
    pub fn window(&self) -> softgpu::Window {
        match self {
            Backing::Device(m) => m.window(),
            Backing::Pinned(m) => m.window(),
            Backing::Host(m) => m.window(),
        }
    }
}

/// The CPU's own mapping of device memory.
pub(crate) struct View {
    mapped: Mapped,
    /// Keeps the mapping that `mapped` points into.
    _view: softgpu::CpuView,
}

impl View {
    pub fn of(backing: &Backing) -> Result<View> {
        let Backing::Device(memory) = backing else {
            return Err(Error::new(
                "map device memory for the CPU",
                Kind::Invalid,
                "host memory needs no mapping",
            ));
        };
        let view = memory
            .map_cpu()
            .map_err(|e| system("map device memory for the CPU", &e))?;
        let base = pointer(view.as_ptr())?;
        // SAFETY: the view maps at least `len` bytes and lives as long as this value, whose
        // `mapped` is only handed out as copies used while the region lives.
        let mapped = unsafe { Mapped::new(base, memory.len()) };
        Ok(View {
            mapped,
            _view: view,
        })
    }

    pub fn mapped(&self) -> Mapped {
        self.mapped
    }
}

/// The runtime: one software GPU.
#[derive(Debug)]
pub(crate) struct SoftRuntime {
    gpu: softgpu::Gpu,
    host: Arc<dyn Host>,
    engine: MachineId,
    caps: Caps,
    channels: usize,
    name: String,
    /// The library's own, in the order of [`Entry::ALL`]; empty if it is to have none.
    kernels: Vec<Kernel>,
}

impl SoftRuntime {
    pub fn open(host: Arc<dyn Host>, options: SoftOptions) -> Result<Gpu> {
        let name = format!("gpu{}", NEXT_GPU.fetch_add(1, Ordering::Relaxed));
        let config = softgpu::Config {
            name: name.clone(),
            caps: softgpu::Caps {
                memops64: options.caps.memops64,
                nor: options.caps.nor,
                flush: options.caps.flush,
                batch_limit: options.caps.batch_limit,
            },
            stream_bound: options.stream_bound,
            channels: options.channels,
            weak: options.weak,
            ordered_writes: options.caps.ordered_writes && !mutant::on(Mutant::OrderNotKept),
            ..softgpu::Config::default()
        };
        let env: Arc<dyn Host> = Arc::clone(&host);
        let (gpu, engine) =
            softgpu::Gpu::new(env, config).map_err(|e| system("open soft GPU", &e))?;
        let engine = host.attach(Lane::Device, Box::new(engine));
        let kernels = match options.caps.kernels {
            true => Entry::ALL.map(Entry::soft).to_vec(),
            false => Vec::new(),
        };
        Gpu::from_runtime(Box::new(SoftRuntime {
            gpu,
            host,
            engine,
            caps: options.caps,
            channels: options.channels,
            name: format!("soft {name}"),
            kernels,
        }))
    }

    fn soft<'s>(&self, stream: &'s StreamHandle) -> Result<&'s softgpu::Stream> {
        match stream {
            StreamHandle::Soft(stream) => Ok(stream),
            StreamHandle::Cuda(_) => Err(foreign("a CUDA stream", &self.name)),
        }
    }
}

impl SoftRuntime {
    fn lacks(&self, operation: &'static str) -> Error {
        let what = format!("{}, whose memory is this process's alone", self.name);
        Error::new(operation, Kind::Unsupported, what)
    }
}

impl Drop for SoftRuntime {
    fn drop(&mut self) {
        self.host.detach(self.engine);
    }
}

impl sealed::Sealed for SoftRuntime {}

impl Runtime for SoftRuntime {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> &'static str {
        "soft"
    }

    fn wait_limits(&self) -> Option<WaitLimits> {
        let channels = u32::try_from(self.channels).unwrap_or(u32::MAX);
        Some(WaitLimits {
            channels,
            // With all channels held nothing else moves.
            streams: channels.saturating_sub(1).clamp(1, MOST_SEATS),
            // A full stream makes the caller wait, which stands in its options.
            submissions: None,
        })
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    #[allow(private_interfaces)]
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation> {
        match kind {
            MemoryKind::Device => {
                let memory = self
                    .gpu
                    .alloc_device(len)
                    .map_err(|e| system("allocate device memory", &e))?;
                Ok(Allocation {
                    addr: DevicePtr(memory.addr().raw()),
                    len,
                    cpu: None,
                    backing: Backing::Device(memory).into(),
                })
            }
            MemoryKind::Pinned => {
                let memory = self
                    .gpu
                    .alloc_pinned(len)
                    .map_err(|e| system("allocate pinned memory", &e))?;
                let base = pointer(memory.as_ptr())?;
                Ok(Allocation {
                    addr: DevicePtr(memory.addr().raw()),
                    len,
                    // SAFETY: the memory is at least `len` bytes and lives in `backing`, beside
                    // this; the region hands out copies only while it lives.
                    cpu: Some(unsafe { Mapped::new(base, len) }),
                    backing: Backing::Pinned(memory).into(),
                })
            }
        }
    }

    #[allow(private_interfaces)]
    unsafe fn register(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Allocation> {
        // SAFETY: the caller promises that the memory outlives its owner.
        let memory = unsafe {
            match owner {
                Some(owner) => self.gpu.register_host_owned(ptr, len, Arc::new(owner)),
                None => self.gpu.register_host(ptr, len),
            }
        }
        .map_err(|e| system("register host memory", &e))?;
        let base = pointer(ptr)?;
        Ok(Allocation {
            addr: DevicePtr(memory.addr().raw()),
            len,
            // SAFETY: as the caller promises.
            cpu: Some(unsafe { Mapped::new(base, len) }),
            backing: Backing::Host(memory).into(),
        })
    }

    #[allow(private_interfaces)]
    unsafe fn adopt(&self, _: DevicePtr, _: usize, _: Option<Owner>) -> Result<Allocation> {
        Err(self.lacks("adopt memory"))
    }

    #[allow(private_interfaces)]
    fn allocate_exportable(&self, _: usize) -> Result<Allocation> {
        Err(self.lacks("allocate exportable memory"))
    }

    #[allow(private_interfaces)]
    unsafe fn open_shared(&self, _: &cuda::SharedMemory) -> Result<Allocation> {
        Err(self.lacks("open shared memory"))
    }

    #[allow(private_interfaces)]
    fn as_cuda(&self) -> Option<&cuda::CudaRuntime> {
        None
    }

    fn new_stream(&self, _waits: &dyn Fn() -> bool) -> Result<StreamHandle> {
        let stream = self.gpu.stream().map_err(|e| system("make stream", &e))?;
        Ok(StreamHandle::Soft(stream))
    }

    fn submit(&self, stream: &StreamHandle, ops: &[Op]) -> Result<()> {
        self.soft(stream)?
            .submit_each(ops.iter().map(translate))
            .map_err(|e| system("submit batch", &e))
    }

    fn launch(
        &self,
        stream: &StreamHandle,
        kernel: &Kernel,
        dims: Dims,
        args: &[u8],
    ) -> Result<()> {
        let KernelCode::Soft(kernel) = &kernel.0 else {
            return Err(foreign("a CUDA kernel", &self.name));
        };
        let dims = softgpu::Dims::new(dims.grid, dims.block, dims.shared)
            .map_err(|e| Error::new("launch kernel", Kind::Invalid, e.to_string()).source(e))?;
        self.soft(stream)?
            .launch(kernel, dims, args)
            .map_err(|e| system("launch kernel", &e))
    }

    fn copy(&self, stream: &StreamHandle, transfer: &Transfer, _: bool) -> Result<()> {
        let addr = |at: DevicePtr| softgpu::DevAddr::from_raw(at.0);
        let (to, from) = (addr(transfer.to), addr(transfer.from));
        self.soft(stream)?
            .copy(to, from, transfer.len as usize)
            .map_err(|e| system("enqueue copy", &e))
    }

    fn idle(&self, stream: &StreamHandle) -> Result<bool> {
        Ok(self.soft(stream)?.query())
    }

    fn leave(&self, _: &StreamHandle) -> Left {
        Left::Ours
    }

    fn ends(&self) -> Ends {
        Ends::Soft(self.gpu.ends())
    }

    fn record(&self, stream: &StreamHandle) -> Result<EventHandle> {
        let event = softgpu::Event::new();
        self.soft(stream)?
            .record(&event)
            .map_err(|e| system("record event", &e))?;
        Ok(EventHandle::Soft(event))
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        let EventHandle::Soft(event) = event else {
            return Err(foreign("a CUDA event", &self.name));
        };
        self.soft(stream)?
            .wait_event(event)
            .map_err(|e| system("wait for event", &e))
    }

    fn is_done(&self, event: &EventHandle) -> Result<bool> {
        match event {
            EventHandle::Soft(event) => Ok(event.query()),
            EventHandle::Cuda(_) => Err(foreign("a CUDA event", &self.name)),
        }
    }

    fn capturing(&self, stream: &StreamHandle) -> Result<bool> {
        Ok(self.soft(stream)?.is_capturing())
    }

    fn synchronize(&self, stream: &StreamHandle, deadline: Option<Time>) -> Result<bool> {
        self.soft(stream)?
            .synchronize(deadline)
            .map_err(|e| system("synchronize stream", &e))
    }

    fn flush_remote_writes(&self) {
        self.gpu.flush_remote_writes();
    }

    fn host_flush(&self) -> Result<()> {
        self.gpu.flush_remote_writes();
        Ok(())
    }

    fn kernel(&self, entry: Entry) -> Option<&Kernel> {
        self.kernels.get(entry as usize)
    }

    fn load_module(&self, _: &[u8]) -> Result<cuda::Module> {
        let what = format!("{}: its kernels are functions of the program", self.name);
        Err(Error::new("load module", Kind::Unsupported, what))
    }
}

#[inline]
fn translate(op: &Op) -> softgpu::MemOp {
    let addr = |at: DevicePtr| softgpu::DevAddr::from_raw(at.0);
    let cond = |c: Condition| match c {
        Condition::Geq => softgpu::Cond::Geq,
        Condition::Eq => softgpu::Cond::Eq,
        Condition::And => softgpu::Cond::And,
        Condition::Nor => softgpu::Cond::Nor,
    };
    match *op {
        Op::Write {
            width,
            at,
            value,
            fenced,
        } => match width {
            Width::Bits32 => softgpu::MemOp::Write32 {
                addr: addr(at),
                value: value as u32,
                fenced,
            },
            Width::Bits64 => softgpu::MemOp::Write64 {
                addr: addr(at),
                value,
                fenced,
            },
        },
        Op::Wait {
            width,
            at,
            value,
            mask,
            condition,
            flush,
        } => match width {
            Width::Bits32 => softgpu::MemOp::Wait32 {
                addr: addr(at),
                value: value as u32,
                mask: mask as u32,
                cond: cond(condition),
                flush,
            },
            Width::Bits64 => softgpu::MemOp::Wait64 {
                addr: addr(at),
                value,
                mask,
                cond: cond(condition),
                flush,
            },
        },
        Op::WaitEntry(_) => unreachable!("no batch is legal that has one"),
        Op::Copy { at, data } => softgpu::MemOp::Copy {
            addr: addr(at),
            data: softgpu::InlineData::new(data.bytes()).expect("it holds more than ours"),
        },
        Op::Fence => softgpu::MemOp::Fence,
        Op::Flush => softgpu::MemOp::FlushRemote,
    }
}

/// More seats than this are never needed: a soft GPU with more channels has no such limit.
const MOST_SEATS: u32 = 1024;

fn foreign(what: &str, gpu: &str) -> Error {
    Error::new("use", Kind::Foreign, format!("{what} on {gpu}"))
}

fn pointer(ptr: *mut u8) -> Result<NonNull<u8>> {
    NonNull::new(ptr).ok_or_else(|| Error::new("map memory", Kind::System, "a null mapping"))
}

/// What the soft GPU refused, in this crate's terms.
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
        | E::AlreadyRegistered { .. } => Kind::Invalid,
        E::StreamFull { .. } => Kind::QueueFull,
        _ => Kind::System,
    };
    let limit = match e {
        E::BatchTooLong { limit, .. } | E::InlineTooLong { limit, .. } => Some(*limit),
        E::StreamFull { bound, .. } => Some(*bound),
        E::BadConfig { max, .. } => Some(*max),
        E::OutOfMemory { limit, .. } => Some(*limit),
        _ => None,
    };
    let error = Error::new(operation, kind, e.to_string());
    match limit {
        Some(limit) => error.limit(limit as u64).source(e.clone()),
        None => error.source(e.clone()),
    }
}
