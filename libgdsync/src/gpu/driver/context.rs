//! The two contexts of a device: the application's, on whose streams the library enqueues, and the
//! library's, for all work that must not block behind the application's waits.
//!
//! With CUDA a wait on one stream blocks calls and engines of its whole context: frees, unmappings,
//! module loads, and with enough waiting streams every copy. Streams and kernels can use host
//! memory of another context of the same process as well (one address space), but frees of that
//! memory and copies on streams of that context do not block behind those waits. Therefore pinning,
//! registration, freeing and the copies of virtual NICs all use the library's context. Device
//! memory belongs to neither context; `pool` says why.
//!
//! A CUDA device in the compute mode EXCLUSIVE_PROCESS, and each HIP device, has one context. There
//! the application's context serves for both purposes, and the library frees memory only while all
//! streams are idle.

use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use super::calls::{Called, Driver, Handle, MISSING};
use super::deferred::{self, DeferredFrees};
use super::engine::Engine;
use super::pool::DevicePool;
use super::stream_pool::StreamPool;
use crate::error::{Error, Kind, Result};
use crate::gpu::host::HostPool;

/// The contexts of one device; see the module.
pub(crate) struct Context {
    pub driver: &'static dyn Driver,
    pub device: i32,
    /// The application's context.
    pub app: Handle,
    /// The library's context; equal to `app` if the device allows only one.
    own: Handle,
    pub engine: Engine,
    pub deferred: DeferredFrees,
    pub pool: DevicePool,
    pub host: HostPool,
    pub streams: StreamPool,
    /// See [`Driver::maps`].
    pub maps: bool,
    /// Whether driver and device have dependent launches.
    pub dependent_launch: bool,
    /// Locked shared during an enqueue, exclusive while the owner of an application's memory is
    /// dropped.
    enqueueing: RwLock<()>,
    name: String,
    /// The code of the error that lost the context; 0 while the context is usable. Set once; read
    /// relaxed, because it orders nothing: a thread that reads a stale 0 gets the code from the
    /// driver.
    lost: AtomicI32,
}

// SAFETY: handles of the driver, which is thread-safe; everything else inside is Sync itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A guard that restores the thread's previous context when it is dropped.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    /// The thread's previous context, if it was another one.
    previous: Option<Handle>,
    /// The thread's previous capture mode.
    mode: Option<u32>,
}

impl Entered<'_> {
    fn relaxed(mut self) -> Self {
        self.mode = self.context.driver.exchange_capture_mode(None);
        self
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        let driver = self.context.driver;
        if let Some(previous) = self.previous {
            // SAFETY: `enter` changed the context.
            unsafe { driver.leave(previous) };
        }
        if self.mode.is_some() {
            driver.exchange_capture_mode(self.mode);
        }
    }
}

impl Context {
    /// Makes the library's context beside `app`; if `alone`, the device allows no second context,
    /// and `app` serves for both.
    pub fn new(
        driver: &'static dyn Driver,
        device: i32,
        app: Handle,
        name: String,
        alone: bool,
    ) -> Result<Context> {
        let mut context = Context {
            driver,
            device,
            app,
            own: app,
            engine: Engine::default(),
            deferred: DeferredFrees::default(),
            pool: DevicePool::default(),
            host: HostPool::default(),
            streams: StreamPool::default(),
            maps: driver.maps(device),
            dependent_launch: driver.has_dependent_launch(device),
            enqueueing: RwLock::new(()),
            name,
            lost: AtomicI32::new(0),
        };
        if !alone {
            // SAFETY: stores a context.
            let created = unsafe { driver.context_create(&mut context.own, device) };
            context.check(created, "create context")?;
        }
        context.engine = Engine::new(&context)?;
        context.streams.fill(&context);
        Ok(context)
    }

    /// Whether the application's context is the only one.
    pub fn is_alone(&self) -> bool {
        self.own == self.app
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until NIC writes to memory of this device are visible to its streams. The call uses
    /// the library's context, where no call blocks behind a wait of the application's streams.
    pub fn host_flush(&self) -> Result<()> {
        let _own = self.enter_own()?;
        // SAFETY: waits for writes of others, and accesses no memory of the process.
        let flushed = unsafe { self.driver.host_flush(self.device) };
        self.check(flushed, "flush remote writes")
    }

    /// Makes the library's context current, for allocation, freeing and copying. Meanwhile the
    /// thread may make calls that a capture of the application would forbid.
    pub fn enter_own(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.own)?.relaxed())
    }

    /// Makes the application's context current, for queries that a capture of the application would
    /// forbid.
    pub fn enter_to_ask(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.app)?.relaxed())
    }

    /// Makes the application's context current.
    #[inline]
    pub fn enter_app(&self) -> Result<Entered<'_>> {
        self.enter(self.app)
    }

    /// Makes the application's context current for an enqueue. No owner is dropped while the guard
    /// is held.
    #[inline]
    pub fn enter_to_enqueue(&self) -> Result<(Entered<'_>, Option<RwLockReadGuard<'_, ()>>)> {
        let allowed = match deferred::is_disposing() {
            // The thread holds the lock itself already.
            true => None,
            false => Some(
                self.enqueueing
                    .read()
                    .unwrap_or_else(PoisonError::into_inner),
            ),
        };
        Ok((self.enter(self.app)?, allowed))
    }

    /// Blocks enqueues while the guard is held; `None` if an enqueue is in progress.
    pub fn quiet(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.enqueueing.try_write() {
            Ok(quiet) => Some(quiet),
            Err(TryLockError::Poisoned(quiet)) => Some(quiet.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn enter(&self, context: Handle) -> Result<Entered<'_>> {
        self.alive()?;
        let current = self.driver.current();
        if current != context {
            // SAFETY: both contexts live as long as `self`; `Entered` leaves the context.
            let entered = unsafe { self.driver.enter(context) };
            self.check(entered, "make context current")?;
        }
        Ok(Entered {
            context: self,
            previous: (current != context).then_some(current),
            mode: None,
        })
    }

    /// Fails once the context is known to be lost.
    #[inline]
    pub fn alive(&self) -> Result<()> {
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(self.lost_error("use GPU", "an earlier call", code)),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Turns the result of a call into a result of `operation`, and records the loss of the context.
    #[inline]
    pub fn check(&self, called: Called, operation: &'static str) -> Result<()> {
        if called.is_ok() {
            return Ok(());
        }
        Err(self.failure(called, operation))
    }

    #[cold]
    fn failure(&self, called: Called, operation: &'static str) -> Error {
        let error = refused(self.driver, called, operation, &self.name);
        if error.kind() != Kind::DeviceLost {
            return error;
        }
        // Only the first code is kept: later ones are its consequences.
        let _ = self
            .lost
            .compare_exchange(0, called.code, Ordering::Relaxed, Ordering::Relaxed);
        self.lost_error(operation, called.name(), called.code)
    }

    fn lost_error(&self, operation: &'static str, call: &str, code: i32) -> Error {
        let what = format!(
            "{} is lost to this process; restart the process: {call} failed: {}",
            self.name,
            describe(self.driver, code)
        );
        Error::new(operation, Kind::DeviceLost, what)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // If streams still use memory of the library, or the GPU is lost, the context stays until
        // the process ends.
        if !self.is_lost() && !self.is_alone() && self.deferred.is_empty() {
            // SAFETY: every user of the context's memory holds the context; no user is left.
            unsafe { self.driver.context_destroy(self.own) };
        }
    }
}

/// As [`Context::check`], for calls before a context exists.
pub(crate) fn check(
    driver: &dyn Driver,
    called: Called,
    operation: &'static str,
    gpu: &str,
) -> Result<()> {
    match called.is_ok() {
        true => Ok(()),
        false => Err(refused(driver, called, operation, gpu)),
    }
}

#[cold]
fn refused(driver: &dyn Driver, called: Called, operation: &'static str, gpu: &str) -> Error {
    let call = called.name();
    if called.code == MISSING {
        let api = driver.api();
        let what = format!("{api} has no {call}; a newer release may have it");
        return Error::new(operation, Kind::Unsupported, what);
    }
    let what = format!("{call} on {gpu} failed: {}", describe(driver, called.code));
    Error::new(operation, driver.kind(called.code), what)
}

/// The name and the driver's description of a code; its number if the driver has neither.
fn describe(driver: &dyn Driver, code: i32) -> String {
    match driver.describe(code) {
        [Some(name), Some(meaning)] => format!("{name} ({code}): {meaning}"),
        [Some(name), None] => format!("{name} ({code})"),
        _ => {
            let api = driver.api();
            format!("{api} error {code}, which the driver does not name")
        }
    }
}
