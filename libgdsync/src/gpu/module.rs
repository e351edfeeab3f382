//! Kernels of the application.

use std::fmt;
use std::sync::Arc;

use super::{Gpu, Kernel, KernelCode, cuda};
use crate::error::Result;

/// A piece of code that was loaded on a GPU. Clones are the same; it stays loaded as long as
/// the GPU is open, because unloading would stand behind every wait of the context.
#[derive(Clone)]
pub struct Module {
    gpu: Gpu,
    code: Arc<cuda::Module>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module of {:?}", self.gpu)
    }
}

impl Gpu {
    /// Loads code: PTX, a cubin or a fatbin. All its kernels that are asked for are loaded at
    /// once. To be called before any stream of the context waits: the driver lets loading stand
    /// behind waits.
    ///
    /// # Errors
    /// `Unsupported` on a soft GPU, whose kernels are functions of the program
    /// ([`Kernel::soft`]); `Invalid` for what is not code for this GPU; `System` if the driver
    /// refuses.
    pub fn load_module(&self, image: &[u8]) -> Result<Module> {
        let code = Arc::new(self.runtime().load_module(image)?);
        Ok(Module {
            gpu: self.clone(),
            code,
        })
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
    /// `Invalid` if there is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let function = self.code.function(name)?;
        Ok(Kernel(KernelCode::Cuda(function)))
    }
}
