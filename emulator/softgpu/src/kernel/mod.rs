//! Kernels of the software GPU: C++ sources built by the host compiler.
//!
//! A kernel is a C++ function written against `gds_device.hpp` of gdsync-build, the one source that
//! nvcc and hipcc compile too. Here its blocks are tasks and the threads of a block are
//! fibers; one thread runs at a time, on whichever OS thread steps the grid, and gives way
//! only at a barrier, a warp operation, a spin or a sleep. A run is therefore deterministic,
//! in order or, with a seed, randomly interleaved.

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

/// The most threads a block has.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// The most bytes of dynamic shared memory a block has.
pub const MAX_DYNAMIC_SHARED: u32 = 227 * 1024;
/// The most bytes a kernel's parameters have.
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
    /// Describes a kernel; `name` is for messages and traces.
    ///
    /// # Safety
    /// `entry` was defined by `GDS_KERNEL` of this crate's `gds_device.hpp` with parameters
    /// of `args_len` bytes, aligned to at most 16, and keeps the rules at the top of
    /// `softgpu.hpp`: nothing thrown, no `thread_local`, no destructor that matters across
    /// a suspension.
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

    /// Checks the number of bytes that a launch gives as parameters.
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

/// The shape of a launch, within the limits of a GPU.
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
    /// A dimension is zero, or a limit is passed; the error names it.
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

/// A launch that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A grid or a block without threads.
    #[error("launch of a grid {grid:?} of blocks {block:?}: a dimension is zero")]
    ZeroDimension {
        /// Blocks asked for.
        grid: [u32; 3],
        /// Threads of a block asked for.
        block: [u32; 3],
    },
    /// More threads than a block has.
    #[error("launch of blocks {block:?}: a block has at most {MAX_BLOCK_THREADS} threads")]
    BlockTooLarge {
        /// Threads of a block asked for.
        block: [u32; 3],
    },
    /// More blocks than can be counted.
    #[error("launch of a grid {grid:?}: a grid has fewer than 2^64 blocks")]
    GridTooLarge {
        /// Blocks asked for.
        grid: [u32; 3],
    },
    /// More dynamic shared memory than a block has.
    #[error("launch with {shared} bytes of dynamic shared memory: at most {MAX_DYNAMIC_SHARED}")]
    SharedTooLarge {
        /// Bytes asked for.
        shared: u32,
    },
    /// Parameters of another size than the kernel takes.
    #[error("kernel {kernel} takes {want} bytes of parameters, {got} were given")]
    ArgsLength {
        /// The kernel.
        kernel: &'static str,
        /// Bytes the kernel takes.
        want: usize,
        /// Bytes given.
        got: usize,
    },
    /// A kernel whose parameters are too many for any launch.
    #[error("kernel {kernel} takes {want} bytes of parameters: at most {MAX_ARGS}")]
    ArgsTooLarge {
        /// The kernel.
        kernel: &'static str,
        /// Bytes the kernel takes.
        want: usize,
    },
}

/// How grids are run: bounds, order, and where its stacks come from.
#[derive(Clone, Debug)]
pub struct GridConfig {
    /// The most blocks that run at the same time, as if that many fitted on the GPU. A grid
    /// of more blocks finishes as long as its blocks do not wait for ones not yet started.
    pub resident_blocks: u32,
    /// The most threads that run at the same time; at least one block always does.
    pub resident_threads: u32,
    /// Bytes of stack of a thread, without its guard page.
    pub stack_bytes: usize,
    /// Interleaves threads at random, the same way each time; `None`: in order.
    pub seed: Option<u64>,
    /// Where stacks and tables come from, and go back to.
    pub pool: GridPool,
}

impl Default for GridConfig {
    fn default() -> GridConfig {
        GridConfig {
            resident_blocks: 64,
            resident_threads: 8192,
            stack_bytes: 64 * 1024,
            seed: None,
            pool: GridPool::default(),
        }
    }
}

/// Why a grid stopped before its end. It cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Every live thread of a block waits, and none of the waits can end.
    #[error("kernel {kernel}, block {block:?}: threads diverged, no barrier can complete: {waits}")]
    Divergence {
        /// The kernel.
        kernel: &'static str,
        /// The block, in x, y, z.
        block: [u32; 3],
        /// Which threads wait where.
        waits: String,
    },
    /// A thread did what no GPU allows.
    #[error("kernel {kernel}, block {block:?}, thread {thread:?}: {what}")]
    Thread {
        /// The kernel.
        kernel: &'static str,
        /// The block, in x, y, z.
        block: [u32; 3],
        /// The thread, in x, y, z.
        thread: [u32; 3],
        /// What it did.
        what: String,
    },
    /// There is no memory for another thread's stack.
    #[error("kernel {kernel}: no stack for a thread, {stacks} in use: {reason}")]
    NoStack {
        /// The kernel.
        kernel: &'static str,
        /// Stacks the grid holds.
        stacks: usize,
        /// What the operating system said.
        reason: String,
    },
}
