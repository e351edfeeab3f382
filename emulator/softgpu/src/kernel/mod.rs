//! Kernels of the software GPU: C++ sources built by the host compiler.
//!
//! A kernel is a C++ function written against `gds_device.hpp` of gdsync-build, the same source
//! that nvcc and hipcc compile. Here its blocks are tasks, and the threads of a block are fibers.
//! One thread runs at a time, on the OS thread that steps the grid. It yields only at a barrier, a
//! warp operation, a spin or a sleep. A run is therefore deterministic: in order or, with a seed,
//! randomly interleaved.

mod abi;
mod block;
mod fiber;
mod grid;
mod hook;
mod pool;
mod shared;
#[cfg(test)]
mod tests;
mod warp;
mod work;

use std::ffi::c_void;

pub(crate) use grid::{Grid, GridState};
pub(crate) use hook::{KernelContext, StoreHook};
pub use pool::GridPool;

/// The entry of a kernel, as `GDS_KERNEL` defines it.
pub type Entry = unsafe extern "C" fn(params: *const c_void);

/// The maximal number of threads of a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// The maximal dynamic shared memory of a block in bytes.
pub const MAX_DYNAMIC_SHARED: u32 = 227 * 1024;
/// The maximal size of a kernel's parameters in bytes.
pub const MAX_ARGS: usize = 4096;

/// A kernel: a C++ function and the size of its parameters.
///
/// Build scripts compile kernels with the package `gdsync-build`, which also names the entry and
/// the size of its parameters; `docs/kernels.md` has a whole program.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    name: &'static str,
    entry: Entry,
    args_len: usize,
}

impl Kernel {
    /// Describes a kernel; `name` is used in messages and traces.
    ///
    /// # Safety
    /// `entry` was defined by `GDS_KERNEL` of this crate's `gds_device.hpp` with parameters of
    /// `args_len` bytes, aligned to at most 16. It observes the rules at the top of `softgpu.hpp`:
    /// it throws nothing, uses no `thread_local`, and holds no object with a needed destructor
    /// across a suspension.
    pub const unsafe fn new(name: &'static str, entry: Entry, args_len: usize) -> Kernel {
        Kernel {
            name,
            entry,
            args_len,
        }
    }

    /// The kernel's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The size of the kernel's parameters in bytes.
    pub const fn args_len(&self) -> usize {
        self.args_len
    }

    /// Checks the parameter size of a launch.
    pub(crate) fn check_args(&self, got: usize) -> Result<(), LaunchError> {
        let (kernel, want) = (self.name, self.args_len);
        if want > MAX_ARGS {
            return Err(LaunchError::ArgsTooLarge { kernel, want });
        }
        if want != got {
            return Err(LaunchError::ArgsLength { kernel, want, got });
        }
        Ok(())
    }
}

/// The dimensions of a launch, within the limits of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

impl Dims {
    /// `grid` blocks of `block` threads, each in x, y, z, with `shared` bytes of dynamic
    /// shared memory for each block.
    ///
    /// # Errors
    /// A dimension is zero or above its limit; the error names it.
    pub fn new(grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<Dims, LaunchError> {
        if grid.contains(&0) || block.contains(&0) {
            return Err(LaunchError::ZeroDimension { grid, block });
        }
        // Each factor is checked before the product, which then cannot overflow.
        if block.iter().any(|&n| n > MAX_BLOCK_THREADS)
            || block.iter().product::<u32>() > MAX_BLOCK_THREADS
        {
            return Err(LaunchError::BlockTooLarge { block });
        }
        let blocks = grid.iter().try_fold(1u64, |n, &g| n.checked_mul(g.into()));
        if blocks.is_none() {
            return Err(LaunchError::GridTooLarge { grid });
        }
        if shared > MAX_DYNAMIC_SHARED {
            return Err(LaunchError::SharedTooLarge { shared });
        }
        Ok(Dims {
            grid,
            block,
            shared,
        })
    }

    /// `blocks` blocks of `threads` threads in one dimension, without dynamic shared memory.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn linear(blocks: u32, threads: u32) -> Result<Dims, LaunchError> {
        Dims::new([blocks, 1, 1], [threads, 1, 1], 0)
    }

    /// Blocks in x, y, z.
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads of a block in x, y, z.
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Bytes of dynamic shared memory of a block.
    pub const fn shared(&self) -> u32 {
        self.shared
    }

    /// Blocks of the grid.
    pub const fn blocks(&self) -> u64 {
        self.grid[0] as u64 * self.grid[1] as u64 * self.grid[2] as u64
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.block[0] * self.block[1] * self.block[2]
    }
}

/// An invalid launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A grid or a block without threads.
    #[error("launch of a grid {grid:?} of blocks {block:?}: a dimension is zero")]
    ZeroDimension {
        /// The requested number of blocks.
        grid: [u32; 3],
        /// The requested number of threads of a block.
        block: [u32; 3],
    },
    /// A block has more threads than the limit.
    #[error("launch of blocks {block:?}: a block has at most {MAX_BLOCK_THREADS} threads")]
    BlockTooLarge {
        /// The requested number of threads of a block.
        block: [u32; 3],
    },
    /// The number of blocks is above the limit.
    #[error("launch of a grid {grid:?}: a grid has fewer than 2^64 blocks")]
    GridTooLarge {
        /// The requested number of blocks.
        grid: [u32; 3],
    },
    /// A block has more dynamic shared memory than the limit.
    #[error(
        "the launch asks for {shared} bytes of dynamic shared memory; the limit is {MAX_DYNAMIC_SHARED}"
    )]
    SharedTooLarge {
        /// The requested number of bytes.
        shared: u32,
    },
    /// The size of the parameters is not that of the kernel.
    #[error("kernel {kernel} takes {want} bytes of parameters, but {got} bytes were given")]
    ArgsLength {
        /// The kernel.
        kernel: &'static str,
        /// The parameter size of the kernel in bytes.
        want: usize,
        /// The size of the given parameters in bytes.
        got: usize,
    },
    /// The parameters of the kernel are above the limit of a launch.
    #[error("kernel {kernel} takes {want} bytes of parameters; the limit is {MAX_ARGS}")]
    ArgsTooLarge {
        /// The kernel.
        kernel: &'static str,
        /// The parameter size of the kernel in bytes.
        want: usize,
    },
}

/// The execution of grids: limits, order, and the pool of stacks.
#[derive(Clone, Debug)]
pub struct GridConfig {
    /// The maximal number of resident blocks, as if that many fitted on the GPU. A grid of more
    /// blocks completes if its blocks do not wait for blocks that have not started.
    pub resident_blocks: u32,
    /// The maximal number of resident threads; at least one block is always resident.
    pub resident_threads: u32,
    /// The stack size of a thread in bytes, without its guard page.
    pub stack_bytes: usize,
    /// The seed of a random interleaving, the same in each run; `None`: in order.
    pub seed: Option<u64>,
    /// The threads of a warp: 32, or 64 as on most GPUs of AMD.
    pub warp: u32,
    /// The pool of stacks and tables.
    pub pool: GridPool,
}

impl Default for GridConfig {
    fn default() -> GridConfig {
        GridConfig {
            resident_blocks: 64,
            resident_threads: 8192,
            stack_bytes: 64 * 1024,
            seed: None,
            warp: 32,
            pool: GridPool::default(),
        }
    }
}

/// The reason for which a grid failed. It cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Every live thread of a block waits, and none of the waits can end.
    #[error("kernel {kernel}, block {block:?}: threads diverged, no barrier can complete: {waits}")]
    Divergence {
        /// The kernel.
        kernel: &'static str,
        /// The block, in x, y, z.
        block: [u32; 3],
        /// The waiting threads and their places.
        waits: String,
    },
    /// A thread made an invalid call.
    #[error("kernel {kernel}, block {block:?}, thread {thread:?}: {what}")]
    Thread {
        /// The kernel.
        kernel: &'static str,
        /// The block, in x, y, z.
        block: [u32; 3],
        /// The thread, in x, y, z.
        thread: [u32; 3],
        /// The invalid call.
        what: String,
    },
    /// The system has no memory for another thread's stack.
    #[error("kernel {kernel}: no stack for a thread, {stacks} in use: {reason}")]
    NoStack {
        /// The kernel.
        kernel: &'static str,
        /// The number of stacks that the grid holds.
        stacks: usize,
        /// The error of the operating system.
        reason: String,
    },
}
