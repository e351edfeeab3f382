//! Opening of a driver's GPUs, and adoption of the application's streams.

use std::any::Any;
use std::sync::{Arc, Once};

use gds_step::Mutex;
use gdsync_sys::gpu_choice::LocalRank;

use super::DriverRuntime;
use super::calls::{Driver, Handle, MISSING};
use super::context::Context;
use super::deferred::Poller;
use super::stream::DriverStream;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::Owner;
use crate::gpu::{Gpu, Stream, WaitLimits};
use crate::memop::Caps;

/// The open GPUs, by context: a context has one [`Gpu`], which stays open.
static OPEN: Mutex<Vec<(Key, Gpu)>> = Mutex::new(Vec::new());

/// The API, the address of a context, and its number, if the driver has one.
type Key = (&'static str, usize, u64);

/// What the folder of a runtime knows of a GPU that it opens.
pub(in crate::gpu) struct Opened {
    pub device: i32,
    pub name: String,
    /// Whether the device has one context.
    pub alone: bool,
    pub caps: Caps,
    /// A number of the GPU that is the same in every process, and not 0.
    pub number: u64,
    /// See [`Runtime::runs_processes_beside`](crate::gpu::runtime::Runtime::runs_processes_beside).
    pub processes_beside: bool,
    pub limits: WaitLimits,
    /// Whether the device accesses registered host memory at the host's addresses.
    pub same_address: bool,
}

/// Returns the GPU of a context, and opens it if it is not open.
///
/// `id` is the number of the context; 0 if the driver has none.
///
/// # Safety
/// The context is a live one of the device, and outlives the GPU and everything made from it.
pub(in crate::gpu) unsafe fn open(
    driver: &'static dyn Driver,
    (app, id): (Handle, u64),
    gpu: impl FnOnce() -> Opened,
) -> Result<Gpu> {
    let key = (driver.api(), app as usize, id);
    let mut open = OPEN.lock();
    if let Some((_, gpu)) = open.iter().find(|(at, _)| *at == key) {
        return Ok(gpu.clone());
    }
    let opened = gpu();
    let context = Context::new(driver, opened.device, app, opened.name, opened.alone)?;
    let context = Arc::new(context);
    let live = gds_step::Live::global().map_err(|e| {
        let what = format!("start of the library's threads failed: {e}");
        Error::new("open GPU", Kind::System, what).with_source(e)
    })?;
    let host: Arc<dyn gds_step::Host> = live;
    let poller = Box::new(Poller(Arc::clone(&context)));
    let poller = host.attach(gds_step::Thread::Watch, poller);
    let gpu = Gpu::from_runtime(Box::new(DriverRuntime {
        context,
        host,
        poller,
        caps: opened.caps,
        number: opened.number,
        processes_beside: opened.processes_beside,
        limits: opened.limits,
        clock: Mutex::default(),
        same_address: opened.same_address,
    }))?;
    open.push((key, gpu.clone()));
    Ok(gpu)
}

/// The GPU for the local rank of this process; the first GPU if the process is not a rank. `shown`: the
/// variable by which a launcher shows each rank a different GPU.
pub(in crate::gpu) fn by_local_rank(
    count: impl FnOnce() -> Result<u32>,
    gpu: impl FnOnce(u32) -> Result<Gpu>,
    shown: &str,
) -> Result<Gpu> {
    static LOGGED: Once = Once::new();
    let local = LocalRank::find(&|name| std::env::var(name).ok())
        .map_err(|e| Error::new("choose GPU", Kind::Invalid, e))?;
    let Some(local) = local else {
        return gpu(0);
    };
    let gpus = count()?;
    let gpu = gpu(local.gpu(gpus))?;
    LOGGED.call_once(|| {
        let why = local.reason(gpus);
        tracing::info!(target: "gdsync", "{}: {why}", gpu.name());
        if let Some(cost) = local.crowding(gpus)
            && !gpu.runs_processes_beside()
        {
            let given = gpus == 1 && std::env::var_os(shown).is_some();
            match (local.rank, given) {
                (0, false) => tracing::warn!(target: "gdsync", "{cost}"),
                (_, false) => tracing::info!(target: "gdsync", "{cost}"),
                (_, true) => tracing::info!(
                    target: "gdsync",
                    "{cost}, unless {shown} names another GPU for each rank"
                ),
            }
        }
    });
    Ok(gpu)
}

fn runtime<'a>(gpu: &'a Gpu, api: &str, operation: &'static str) -> Result<&'a DriverRuntime> {
    let runtime: Option<&DriverRuntime> = (gpu.runtime() as &dyn Any).downcast_ref();
    let ours = runtime.filter(|runtime| runtime.context.driver.api() == api);
    ours.ok_or_else(|| {
        let what = format!("{gpu:?} is not a {api} GPU");
        Error::new(operation, Kind::Foreign, what)
    })
}

/// As [`adopt_stream`], and refuses a default stream. `remedy`: what to do instead of that of 0 or 1.
///
/// # Safety
/// As [`adopt_stream`].
pub(in crate::gpu) unsafe fn adopt_created(
    gpu: &Gpu,
    api: &str,
    operation: &'static str,
    raw: Handle,
    remedy: &str,
) -> Result<Stream> {
    // CUDA and HIP give these streams the same numbers.
    let what = match raw.addr() {
        0 | 1 => format!(
            "the stream is the default stream, which synchronises with other streams; {remedy}"
        ),
        2 => "the stream is the per-thread default stream, which differs on each thread; create a \
              stream"
            .to_owned(),
        // SAFETY: the caller's promise.
        _ => return unsafe { adopt_stream(gpu, api, operation, raw) },
    };
    Err(Error::new(operation, Kind::Invalid, what))
}

/// Adopts a stream of the application, on a GPU of this API.
///
/// # Safety
/// `raw` is a live stream of the GPU's context, and is not destroyed while the [`Stream`] or a clone of it
/// is held.
pub(in crate::gpu) unsafe fn adopt_stream(
    gpu: &Gpu,
    api: &str,
    operation: &'static str,
    raw: Handle,
) -> Result<Stream> {
    let runtime = runtime(gpu, api, operation)?;
    let context = &runtime.context;
    gpu.adopted().get(raw, || {
        let mut owner = context.app;
        {
            let _app = context.enter_app()?;
            // SAFETY: a live stream, as the caller promises.
            let asked = unsafe { context.driver.stream_context(raw, &mut owner) };
            if asked.code != MISSING {
                context.check(asked, operation)?;
            }
        }
        if owner != context.app {
            let what = format!("the stream belongs to another context than that of {gpu:?}");
            return Err(Error::new(operation, Kind::Foreign, what));
        }
        let handle = runtime.known(DriverStream::adopted(context, raw));
        Ok(Stream::new(gpu.clone(), handle))
    })
}

fn of_driver(stream: &Stream) -> Option<&DriverStream> {
    (&**stream.handle() as &dyn Any).downcast_ref()
}

/// Keeps the owner of an adopted stream as long as a handle on the stream is held.
pub(in crate::gpu) fn keep_owner(stream: &Stream, owner: Owner) {
    if let Some(stream) = of_driver(stream) {
        stream.keep(owner);
    }
}

/// The native handle of a stream of this runtime.
pub(in crate::gpu) fn raw_stream(stream: &Stream, runtime: &str) -> Option<Handle> {
    let stream = of_driver(stream)?;
    (stream.context().driver.runtime() == runtime).then(|| stream.handle())
}

/// The text of an error, with its causes.
pub(in crate::gpu) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

/// A number of the GPU with this UUID that is the same in every process, and not 0.
pub(in crate::gpu) fn number(uuid: Option<[u8; 16]>) -> u64 {
    let Some(uuid) = uuid else {
        // GPUs without a UUID must count as the same GPU, because they may be.
        return 1;
    };
    let half = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    (half(&uuid[..8]) ^ half(&uuid[8..])).max(1)
}
