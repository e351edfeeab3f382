//! The kernels that a stream runs for a message: copies, and the patches of work requests.
//!
//! Each is one C++ function in `device/`. It is compiled to PTX that is part of the library, for
//! CUDA, and by the host compiler, for the soft GPU.
//! - [`Unpack`]: the receiver takes a message in (`mp_take.cu`: the usual one; `mp_unpack.cu`: any).
//! - [`Stamp`]: the sender completes work requests.
//! - [`Flag`], [`Direct`]: the sender writes into a flagged room, or into the memory of a receive,
//!   which [`Name`] names.
//! - [`Await`], [`Relay`]: a stream waits for a credit, or for a name.
//! - [`ReplayWrite`], [`ReplayPlace`], [`ReplayCopy`], [`ReplayTake`]: messages in graphs (`replay`).
//! - [`Puts`]: puts by copies.
//! - [`Pieces`], [`Moves`]: strided pieces.
//! - [`ReadyWords`], [`StepParts`], [`WholeStep`]: the steps of a neighbourhood (`step`).
//! - [`Collect`]: the end of a collective call.
//!
//! Most have variants for several tasks ([`tasks`]): a launch copies all of its parameters.

mod collect;
mod params;
mod replay;
mod step;
mod tasks;
#[cfg(test)]
mod tests;

use gdsync::gpu::{Dims, Kernel, KernelImage, Word64};
use gdsync::{Gpu, Stream};

use crate::error::Result;

pub(crate) use collect::{Collect, LENS, Shape};
pub(crate) use params::{
    Await, Credit, Direct, End, Flag, IN_HOST, LATER, MOST_CHUNKS, Moves, Name, POLLS, PUTS, Patch,
    Pieces, Puts, ReadyWord, ReadyWords, Relay, ReplayCopy, ReplayPlace, ReplayTake, ReplayWrite,
    Rooms, SEGMENTS, Segment, Stamp, StepGate, StepPart, StepParts, UNKNOWN, Unpack, WholeStep,
};
pub(crate) use tasks::{DIRECTS, FLAGS, NAMES, PUT_TASKS, Polls, STAMPS, UNPACKS};

static IMAGE: KernelImage = gdsync::kernel_image!("mp_kernels");

/// The kernels, loaded on one GPU. Clones refer to the same kernels.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    unpack_1: Kernel,
    unpack_30: Kernel,
    unpack_all_8: Kernel,
    unpack_all_23: Kernel,
    take: Kernel,
    take_all_8: Kernel,
    take_all_23: Kernel,
    stamp_1: Kernel,
    stamp_16: Kernel,
    stamp_all_8: Kernel,
    stamp_all_30: Kernel,
    flag: Kernel,
    flag_all_8: Kernel,
    flag_all_42: Kernel,
    direct: Kernel,
    direct_all_8: Kernel,
    direct_all_25: Kernel,
    name: Kernel,
    name_all_8: Kernel,
    name_all_73: Kernel,
    await_credit: Kernel,
    relay: Kernel,
    replay_write: Kernel,
    replay_write_all_8: Kernel,
    replay_write_all_46: Kernel,
    replay_place: Kernel,
    replay_copy: Kernel,
    replay_take: Kernel,
    replay_take_all_8: Kernel,
    replay_take_all_42: Kernel,
    put: Kernel,
    put_all_8: Kernel,
    put_all_63: Kernel,
    strided: Kernel,
    moves: Kernel,
    step: Kernel,
    whole_step: Kernel,
    ready: Kernel,
    collect: Kernel,
    /// One block that copies payloads.
    copying: Dims,
    /// The largest block that copies a message.
    wide: Dims,
    /// One block that patches work requests.
    patching: Dims,
    /// Maximum number of blocks of several tasks.
    blocks: u32,
    /// Maximum number of blocks that share a message.
    shares: u32,
}

impl Kernels {
    /// The kernels of `gpu`, loaded with its first context: the driver lets module loading wait
    /// behind waiting streams, so later contexts must not load.
    ///
    /// # Errors
    /// Those of [`Gpu::load`].
    pub fn of(gpu: &Gpu) -> Result<Kernels> {
        let module = gpu.load(&IMAGE)?;
        let block = |threads: u32| {
            // One thread of the soft GPU copies as fast as many threads.
            Dims::linear(1, if gpu.is_software() { 1 } else { threads })
        };
        // All of them, so that they start beside blocks that wait, and other kernels beside theirs.
        let kernel = |name| module.waiting_kernel(name);
        Ok(Kernels {
            unpack_1: kernel("mp_unpack_1")?,
            unpack_30: kernel("mp_unpack_30")?,
            unpack_all_8: kernel("mp_unpack_all_8")?,
            unpack_all_23: kernel("mp_unpack_all_23")?,
            take: kernel("mp_take")?,
            take_all_8: kernel("mp_take_all_8")?,
            take_all_23: kernel("mp_take_all_23")?,
            stamp_1: kernel("mp_stamp_1")?,
            stamp_16: kernel("mp_stamp_16")?,
            stamp_all_8: kernel("mp_stamp_all_8")?,
            stamp_all_30: kernel("mp_stamp_all_30")?,
            flag: kernel("mp_flag")?,
            flag_all_8: kernel("mp_flag_all_8")?,
            flag_all_42: kernel("mp_flag_all_42")?,
            direct: kernel("mp_direct")?,
            direct_all_8: kernel("mp_direct_all_8")?,
            direct_all_25: kernel("mp_direct_all_25")?,
            name: kernel("mp_name")?,
            name_all_8: kernel("mp_name_all_8")?,
            name_all_73: kernel("mp_name_all_73")?,
            await_credit: kernel("mp_await")?,
            relay: kernel("mp_relay")?,
            replay_write: kernel("mp_replay_write")?,
            replay_write_all_8: kernel("mp_replay_write_all_8")?,
            replay_write_all_46: kernel("mp_replay_write_all_46")?,
            replay_place: kernel("mp_replay_place")?,
            replay_copy: kernel("mp_replay_copy")?,
            replay_take: kernel("mp_replay_take")?,
            replay_take_all_8: kernel("mp_replay_take_all_8")?,
            replay_take_all_42: kernel("mp_replay_take_all_42")?,
            put: kernel("mp_put")?,
            put_all_8: kernel("mp_put_all_8")?,
            put_all_63: kernel("mp_put_all_63")?,
            strided: kernel("mp_strided")?,
            moves: kernel("mp_moves")?,
            step: kernel("mp_step")?,
            whole_step: kernel("mp_whole_step")?,
            ready: kernel("mp_ready")?,
            collect: kernel("mp_collect")?,
            copying: block(256),
            wide: block(512),
            patching: block(32),
            // As `moves_of`: one block of the soft GPU executes all tasks.
            blocks: if gpu.is_software() { 1 } else { u32::MAX },
            // Two blocks of the soft GPU show what more of them would.
            shares: if gpu.is_software() { 2 } else { u32::MAX },
        })
    }

    /// Enqueues the receiver's kernel of a message. A kernel that polls for the word also gives the
    /// word and value that show that it has passed: `passed`.
    ///
    /// # Safety
    /// Every address in `params` that is not 0 is valid on the stream's GPU until the stream has
    /// run the kernel, for as many bytes as [`Unpack`] documents, and no other code depends on the
    /// bytes that it overwrites. The segments overlap neither each other nor the source of the
    /// copy.
    ///
    /// # Errors
    /// Those of [`Stream::launch`] and [`Stream::launch_waiting`].
    #[inline]
    pub unsafe fn unpack<const N: usize>(
        &self,
        stream: &Stream,
        params: &Unpack<N>,
        passed: Option<(&Word64, u64)>,
    ) -> Result<()> {
        const { assert!(N == 1 || N == SEGMENTS) };
        debug_assert!(params.segments as usize <= N);
        debug_assert!(params.waits & POLLS != 0 || passed.is_none());
        let kernel = match N == 1 {
            true if params.is_usual() => &self.take,
            true => &self.unpack_1,
            false => &self.unpack_30,
        };
        // It awaits the earlier work before it accesses memory that this work may use.
        let block = match params.waits & POLLS != 0 {
            true => self.taking(params),
            false => self.copying,
        };
        let dims = block.grid([params.shares, 1, 1]).dependent().flexible();
        // SAFETY: the kernel accesses what `Unpack` names, which the caller guarantees to be valid.
        unsafe {
            match passed {
                None => stream.launch(kernel, dims, params.bytes())?,
                passed => stream.launch_waiting(kernel, dims, params.bytes(), passed)?,
            }
        }
        Ok(())
    }

    /// Enqueues the sender's kernel of a message.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Stamp`]; fields of work requests belong to requests whose
    /// doorbell was not written and that stay prepared until the stream has run the kernel.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    #[inline]
    pub unsafe fn stamp<const N: usize>(&self, stream: &Stream, params: &Stamp<N>) -> Result<()> {
        const { assert!(N == 1 || N == MOST_CHUNKS) };
        debug_assert!(params.chunks as usize <= N);
        debug_assert!(u64::from(params.chunks).saturating_mul(params.chunk) >= params.size);
        let kernel = if N == 1 {
            &self.stamp_1
        } else {
            &self.stamp_16
        };
        // SAFETY: the kernel accesses what `Stamp` names, which the caller guarantees to be valid.
        unsafe { stream.launch(kernel, self.patching, params.bytes()) }?;
        Ok(())
    }

    /// Enqueues puts by copies, of at most `bytes` bytes.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Puts`] and the WQEs that it names.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn put(&self, stream: &Stream, params: &Puts<PUTS>, bytes: u64) -> Result<()> {
        // Blocks do not wait for each other, so one block executes all ordered puts.
        let dims = match (params.count, params.done) {
            (1, 0) => stream.gpu().dims_for(bytes / 64),
            _ => self.copying,
        };
        // SAFETY: the kernel accesses what `Puts` names, which the caller guarantees to be valid.
        Ok(unsafe { stream.launch(&self.put, dims, params.bytes()) }?)
    }

    /// A block that copies `bytes` bytes in lines: a thread for each 8 bytes, and above 2 KiB for each 16
    /// bytes, up to the largest block.
    fn block(&self, bytes: u64) -> Dims {
        let most = self.wide.block[0];
        let threads = bytes.div_ceil(8).min(256).max(bytes.div_ceil(16));
        let threads = threads.next_multiple_of(32).min(most.into()) as u32;
        // A block that waits needs two warps.
        Dims::linear(1, threads.max(64.min(most)))
    }

    /// A block of a kernel that takes a message in.
    fn taking<const N: usize>(&self, params: &Unpack<N>) -> Dims {
        let room = match params.shares {
            1 => params.slot.into(),
            _ => params.long_len,
        };
        self.block(params.capacity.min(room).div_ceil(params.shares.into()))
    }

    /// The shares of a message in a long room.
    pub fn shares_of_flag(&self, len: u64) -> u32 {
        Flag::shares_of(len).min(self.shares)
    }

    /// The shares of a message to the memory of its receive; see [`Direct::room_lines`].
    pub fn shares_of_direct(&self, len: u64, room_lines: u64) -> u32 {
        Direct::shares_of(len, room_lines).min(self.shares)
    }

    /// Enqueues the kernel that waits for a credit. `passed`: as for [`Kernels::unpack`].
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Await`].
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`].
    pub unsafe fn await_credit(
        &self,
        stream: &Stream,
        params: &Await,
        passed: (&Word64, u64),
    ) -> Result<()> {
        let (kernel, dims) = (&self.await_credit, Dims::linear(1, 1));
        // SAFETY: the kernel accesses what `Await` names, which the caller guarantees to be valid.
        Ok(unsafe { stream.launch_waiting(kernel, dims, params, Some(passed)) }?)
    }

    /// Enqueues the kernel that waits until a receive is named. `passed`: as for [`Kernels::unpack`].
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Relay`].
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`].
    pub unsafe fn relay(
        &self,
        stream: &Stream,
        params: &Relay,
        passed: (&Word64, u64),
    ) -> Result<()> {
        let dims = Dims::linear(1, 1);
        // SAFETY: the kernel accesses what `Relay` names, which the caller guarantees to be valid.
        Ok(unsafe { stream.launch_waiting(&self.relay, dims, params, Some(passed)) }?)
    }

    /// Enqueues the kernel that gathers pieces, or scatters to them behind [`Kernels::unpack`].
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Pieces`].
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn strided(&self, stream: &Stream, params: &Pieces) -> Result<()> {
        // Blocks do not wait for each other, so one block stores the result.
        let dims = match params.result {
            0 => stream.gpu().dims_for(params.len / 16),
            _ => self.copying,
        };
        let dims = dims.dependent().flexible();
        // SAFETY: the kernel accesses what `Pieces` names, which the caller guarantees to be valid.
        Ok(unsafe { stream.launch(&self.strided, dims, params) }?)
    }

    /// Enqueues the moves of a table; see [`moves_of`].
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Moves`] and the [`Pieces`] of the table, whose bytes do
    /// not overlap.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn moves(&self, stream: &Stream, params: &Moves, dims: Dims) -> Result<()> {
        debug_assert!(dims.grid[0].is_multiple_of(params.blocks));
        // SAFETY: the kernel accesses what the table names, which the caller guarantees to be
        // valid.
        Ok(unsafe { stream.launch(&self.moves, dims, params) }?)
    }
}

/// The blocks that share a move of at most `longest` bytes, and the dimensions of a launch of
/// `count` moves: a group of blocks for each move, up to a limit.
pub(crate) fn moves_of(gpu: &Gpu, count: u32, longest: u64) -> (u32, Dims) {
    /// Bytes that a thread moves at a time, and accesses that a thread makes before more blocks
    /// share the move.
    const WIDE: u64 = 16;
    const TIMES: u64 = 4;
    const MOST_BLOCKS: u32 = 1024;
    let one = gpu.dims_for(longest.div_ceil(WIDE * TIMES));
    let blocks = one.grid[0].min(32);
    let groups = match gpu.is_software() {
        true => 1,
        false => count.clamp(1, MOST_BLOCKS / blocks),
    };
    (blocks, Dims::linear(blocks * groups, one.block[0]))
}
