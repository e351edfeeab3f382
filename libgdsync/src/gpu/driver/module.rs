//! Code of a driver: modules, kernels, launches.

use std::ffi::CString;
use std::sync::Arc;

use super::calls::{Handle, MISSING, NOT_FOUND};
use super::context::Context;
use super::stream::DriverStream;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::ModuleHandle;
use crate::gpu::{Dims, Kernel};

/// A loaded module. It is never unloaded: unloading would block behind every wait of the context.
pub(super) struct Module {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: a handle of the driver, which is thread-safe.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a module.
pub(super) struct Function {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

impl Module {
    /// Loads `image` into the application's context.
    pub(super) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module> {
        const OPERATION: &str = "load module";
        let code = context.driver.loadable(image)?;
        let _app = context.enter_app()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the code states its length, as `loadable` promises.
        let loaded = unsafe { context.driver.module_load(&mut raw, code.as_ptr()) };
        context.check(loaded, OPERATION)?;
        Ok(Module {
            context: Arc::clone(context),
            raw,
        })
    }
}

impl ModuleHandle for Module {
    /// Loads the kernel now: a launch that loads it would block behind waits.
    fn kernel(&self, name: &str, waits: bool) -> Result<Kernel> {
        const OPERATION: &str = "find kernel";
        let context = &self.context;
        let c_name = CString::new(name).map_err(|e| {
            let what = format!("the kernel name {name:?} contains a zero byte");
            Error::new(OPERATION, Kind::Invalid, what).with_source(e)
        })?;
        let _app = context.enter_app()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a live module and a C string.
        let found = unsafe { context.driver.module_function(&mut raw, self.raw, &c_name) };
        if found.code == NOT_FOUND {
            let what = format!("the module has no kernel {name:?}");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        context.check(found, OPERATION)?;
        // SAFETY: a live kernel.
        let ready = unsafe { context.driver.function_load(raw) };
        context.check(ready, OPERATION)?;
        if waits {
            // A waiting kernel needs hardly any shared memory. But a kernel that needs more than the
            // present division has cannot start beside it.
            // SAFETY: a live kernel.
            let preferred = unsafe { context.driver.function_shares(raw) };
            // A preference. Without it the kernel works, too.
            if preferred.code != MISSING
                && let Err(e) = context.check(preferred, OPERATION)
            {
                tracing::debug!(target: "gdsync", "kernel {name}: {e}");
            }
        }
        let function = Function {
            context: Arc::clone(context),
            raw,
        };
        Ok(Kernel::of(function, name))
    }
}

impl Function {
    /// Whether the function belongs to this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Enqueues a launch. `args` is the parameter structure.
    pub(super) fn launch(&self, stream: &DriverStream, dims: Dims, args: &[u8]) -> Result<()> {
        let context = &self.context;
        let _app = context.enter_to_enqueue()?;
        let dependent = dims.dependent && context.dependent_launch;
        // SAFETY: live kernel and stream of one context; the driver copies the parameters before
        // it returns. The caller of the launch promises that they fit the kernel.
        let launched = unsafe {
            let raw = stream.handle();
            match dependent {
                true => context.driver.launch_dependent(self.raw, &dims, raw, args),
                false => context.driver.launch(self.raw, &dims, raw, args),
            }
        };
        stream.count();
        context.check(launched, "launch kernel")
    }
}
