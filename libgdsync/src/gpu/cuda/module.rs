//! CUDA code: modules, kernels, launches.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use gdsync_sys::cuda::types::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUmodule};
use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use super::stream::CudaStream;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::ModuleHandle;
use crate::gpu::{Dims, Kernel};

/// A loaded module. It is never unloaded: unloading would block behind every wait of the context.
pub(super) struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

// SAFETY: a handle of the driver, which is thread-safe.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a module.
pub(super) struct Function {
    context: Arc<Context>,
    raw: CUfunction,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

impl Module {
    /// Loads `image` into the application's context.
    pub(super) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module> {
        const OPERATION: &str = "load module";
        let elf = image.starts_with(b"\x7fELF") || image.starts_with(b"\x50\xed\x55\xba");
        if elf && !is_whole(image) {
            let what = format!("the binary code of {} bytes is truncated", image.len());
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        // The driver takes a pointer without a length: text must end at a zero byte, and binary
        // code states its length in its header.
        let text = match elf {
            true => None,
            false => {
                let text = image.strip_suffix(b"\0").unwrap_or(image);
                let text = CString::new(text).map_err(|e| {
                    Error::new(
                        OPERATION,
                        Kind::Invalid,
                        "the PTX text contains a zero byte",
                    )
                    .with_source(e)
                })?;
                Some(text)
            }
        };
        let start: *const c_void = match &text {
            Some(text) => text.as_ptr().cast(),
            None => image.as_ptr().cast(),
        };
        let _app = context.enter_app()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is zero-terminated text, or binary code that contains its length.
        let loaded = unsafe { (context.cuda.cuModuleLoadData)(&mut raw, start) };
        context.check(loaded, OPERATION, "cuModuleLoadData")?;
        Ok(Module {
            context: Arc::clone(context),
            raw,
        })
    }
}

/// Percent of the memory of a multiprocessor that a waiting kernel prefers as shared memory. It needs hardly any.
/// But a kernel that needs more shared memory than the present division has cannot start beside it.
const ALL_SHARED: i32 = 100;

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
        let found =
            unsafe { (context.cuda.cuModuleGetFunction)(&mut raw, self.raw, c_name.as_ptr()) };
        if found == CudaResult::NOT_FOUND {
            let what = format!("the module has no kernel {name:?}");
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        context.check(found, OPERATION, "cuModuleGetFunction")?;
        // SAFETY: a live function. On a driver without the first call, the second one loads the
        // function too.
        let ready = unsafe {
            match context.cuda.cuFuncLoad {
                Some(load) => load(raw),
                None => {
                    let mut registers = 0;
                    let attribute = consts::CU_FUNC_ATTRIBUTE_NUM_REGS;
                    (context.cuda.cuFuncGetAttribute)(&mut registers, attribute, raw)
                }
            }
        };
        context.check(ready, OPERATION, "cuFuncLoad")?;
        if waits && let Some(set) = context.cuda.cuFuncSetAttribute {
            let division = consts::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: a live function.
            let preferred = unsafe { set(raw, division, ALL_SHARED) };
            let preferred = context.check(preferred, OPERATION, "cuFuncSetAttribute");
            // A preference. Without it the kernel works, too.
            if let Err(e) = preferred {
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

/// Whether binary code is at least as long as its header states: up to the end of the table of
/// section headers in an ELF file, header and body in a fatbin. The driver gets no length: it would
/// read past the end of a truncated image.
fn is_whole(image: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        let bytes = image.get(at..at + len)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0_u64, |n, b| n << 8 | u64::from(*b)),
        )
    };
    let end = if image.starts_with(b"\x7fELF") {
        // e_shoff, e_shentsize, e_shnum of a 64-bit file.
        let table = number(0x28, 8).zip(number(0x3a, 2).zip(number(0x3c, 2)));
        table.and_then(|(start, (size, n))| start.checked_add(size * n))
    } else {
        // The size of the header and the size of the body after it.
        let sizes = number(6, 2).zip(number(8, 8));
        sizes.and_then(|(header, body)| header.checked_add(body))
    };
    end.is_some_and(|end| end <= image.len() as u64)
}

impl Function {
    /// Whether the function belongs to this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Enqueues a launch. `args` is the parameter structure.
    pub(super) fn launch(&self, stream: &CudaStream, dims: Dims, args: &[u8]) -> Result<()> {
        /// `CU_LAUNCH_PARAM_*` of cuda.h.
        const END: *mut c_void = std::ptr::null_mut();
        const POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
        const SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
        let mut size = args.len();
        let mut extra = [
            POINTER,
            args.as_ptr().cast_mut().cast(),
            SIZE,
            (&raw mut size).cast(),
            END,
        ];
        let ([gx, gy, gz], [bx, by, bz]) = (dims.grid, dims.block);
        let context = &self.context;
        let _app = context.enter_to_enqueue()?;
        if dims.dependent
            && let Some(launch) = context.dependent_launch
        {
            let which = consts::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            let mut attribute = CUlaunchAttribute::int(which, 1);
            let config = CUlaunchConfig {
                grid: dims.grid,
                block: dims.block,
                shared_bytes: dims.shared,
                stream: stream.handle(),
                attributes: &mut attribute,
                count: 1,
            };
            // SAFETY: as below; the driver copies the attribute too.
            let launched =
                unsafe { launch(&config, self.raw, std::ptr::null_mut(), extra.as_mut_ptr()) };
            stream.count();
            return context.check(launched, "launch kernel", "cuLaunchKernelEx");
        }
        // SAFETY: live function and stream of one context; the driver copies the parameters before
        // it returns. The caller of the launch promises that they fit the kernel.
        let launched = unsafe {
            (context.cuda.cuLaunchKernel)(
                self.raw,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                dims.shared,
                stream.handle(),
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        stream.count();
        context.check(launched, "launch kernel", "cuLaunchKernel")
    }
}
