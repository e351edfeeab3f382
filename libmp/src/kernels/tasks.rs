//! Launches of several tasks of one kernel: a block for each, or several if the task has shares. A kernel
//! has two sizes of them, because a launch copies all of its parameters. These are the number of tasks
//! (32 bits), 32 bits of 0, and the parameters of each task, as `device/mp_tasks.hpp` declares.

use gdsync::Stream;
use gdsync::gpu::{Dims, Kernel, Word64};
use zerocopy::IntoBytes;

use super::{Direct, Flag, Kernels, Name, POLLS, PUTS, Puts, Stamp, Unpack};
use crate::error::Result;

/// Maximum bytes of parameters: the limit of CUDA.
const BYTES: usize = 4096;

/// Bytes before the first task.
const HEAD: usize = 8;

/// Tasks of the small size.
const FEW: usize = 8;

/// Maximum number of messages that one launch takes in.
pub(crate) const UNPACKS: usize = most(size_of::<Unpack<1>>());

/// Maximum number of sends that one launch completes.
pub(crate) const STAMPS: usize = most(size_of::<Stamp<1>>());

/// Maximum number of messages to flagged rooms that one launch writes.
pub(crate) const FLAGS: usize = most(size_of::<Flag>());

/// Maximum number of messages that one launch writes into the memory of their receives.
pub(crate) const DIRECTS: usize = most(size_of::<Direct>());

/// Maximum number of receives whose memory one launch names.
pub(crate) const NAMES: usize = most(size_of::<Name>());

/// Maximum number of groups of puts that one launch executes.
pub(crate) const PUT_TASKS: usize = most(size_of::<Puts<PUTS>>());

/// Tasks of the large size, of this many bytes each.
const fn most(task: usize) -> usize {
    (BYTES - HEAD) / task
}

/// Which tasks of a call wait for peers.
#[derive(Clone, Copy)]
pub(crate) enum Polls<'a> {
    None,
    /// One, which stores the value into the word when its wait is over; see
    /// [`Stream::launch_waiting`].
    One(&'a Word64, u64),
    /// Several, in any order: no word shows that all have ended.
    Several,
}

impl<'a> Polls<'a> {
    /// Of the words and values of the tasks that wait.
    pub fn of(mut waits: impl Iterator<Item = (&'a Word64, u64)>) -> Polls<'a> {
        match (waits.next(), waits.next()) {
            (None, _) => Polls::None,
            (Some((word, value)), None) => Polls::One(word, value),
            _ => Polls::Several,
        }
    }
}

/// A block for each task.
fn one_each(tasks: u32) -> [u32; 3] {
    [tasks, 1, 1]
}

impl Kernels {
    /// Enqueues the receivers' kernel of messages with at most one segment each: a launch for each
    /// [`UNPACKS`] messages.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn unpack_all<'t>(
        &self,
        stream: &Stream,
        tasks: impl Iterator<Item = &'t Unpack<1>> + Clone,
        polls: Polls<'_>,
    ) -> Result<()> {
        let tasks = tasks.inspect(|task| debug_assert!(task.segments <= 1));
        let kernels = match tasks.clone().all(Unpack::is_usual) {
            true => [&self.take, &self.take_all_8, &self.take_all_23],
            false => [&self.unpack_1, &self.unpack_all_8, &self.unpack_all_23],
        };
        let polled = tasks.clone().filter(|task| task.waits & POLLS != 0);
        let threads = polled.map(|task| self.taking(task).block[0]).max();
        let block = threads.map_or(self.copying, |threads| Dims::linear(1, threads));
        let shares = tasks.clone().map(|task| task.shares);
        let tasks = tasks.map(Unpack::bytes);
        // SAFETY: the kernels access what `Unpack` names, which the caller guarantees to be valid.
        unsafe { self.share_all(stream, kernels, block, tasks, shares, polls) }
    }

    /// Enqueues the senders' kernel of messages with at most one work request each: a launch for
    /// each [`STAMPS`] messages.
    ///
    /// # Safety
    /// As for [`Kernels::stamp`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn stamp_all<'t>(
        &self,
        stream: &Stream,
        tasks: impl Iterator<Item = &'t Stamp<1>>,
    ) -> Result<()> {
        let tasks = tasks.inspect(|task| debug_assert!(task.chunks <= 1));
        let kernels = [&self.stamp_1, &self.stamp_all_8, &self.stamp_all_30];
        // SAFETY: the kernels access what `Stamp` names, which the caller guarantees to be valid.
        unsafe {
            self.launch_all(
                stream,
                kernels,
                (self.patching, one_each),
                tasks.map(Stamp::bytes),
                Polls::None,
            )
        }
    }

    /// Enqueues groups of puts by copies, in any order among each other: a launch for each
    /// [`PUT_TASKS`] groups.
    ///
    /// # Safety
    /// As for [`Kernels::put`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn put_all<'t>(
        &self,
        stream: &Stream,
        tasks: impl Iterator<Item = &'t Puts<PUTS>>,
    ) -> Result<()> {
        let kernels = [&self.put, &self.put_all_8, &self.put_all_63];
        // SAFETY: the kernels access what `Puts` names, which the caller guarantees to be valid.
        unsafe {
            self.launch_all(
                stream,
                kernels,
                (self.copying, one_each),
                tasks.map(Puts::bytes),
                Polls::None,
            )
        }
    }

    /// Enqueues messages to flagged rooms, in any order among each other: a launch for each [`FLAGS`]
    /// messages.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Flag`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn flag_all(&self, stream: &Stream, tasks: &[Flag], polls: Polls<'_>) -> Result<()> {
        let kernels = [&self.flag, &self.flag_all_8, &self.flag_all_42];
        let longest = tasks
            .iter()
            .map(|task| task.len.div_ceil(task.shares))
            .max();
        let block = self.block(longest.unwrap_or(0));
        let shares = tasks.iter().map(|task| task.shares as u32);
        let tasks = tasks.iter().map(Flag::as_bytes);
        // SAFETY: the kernels access what `Flag` names, which the caller guarantees to be valid.
        unsafe { self.share_all(stream, kernels, block, tasks, shares, polls) }
    }

    /// Enqueues messages to the memory of their receives, in any order among each
    /// other: a launch for each [`DIRECTS`] messages.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Direct`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn direct_all(
        &self,
        stream: &Stream,
        tasks: &[Direct],
        polls: Polls<'_>,
    ) -> Result<()> {
        let kernels = [&self.direct, &self.direct_all_8, &self.direct_all_25];
        let shares = tasks.iter().map(|task| task.shares as u32);
        let tasks = tasks.iter().map(Direct::as_bytes);
        // SAFETY: the kernels access what `Direct` names, which the caller guarantees to be valid.
        unsafe { self.share_all(stream, kernels, self.wide, tasks, shares, polls) }
    }

    /// Enqueues the names of the memory of receives, in any order among each other: a launch for each
    /// [`NAMES`] receives.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`Name`], with all `tasks`.
    ///
    /// # Errors
    /// Those of [`Stream::launch`]; earlier launches of the call are enqueued.
    pub unsafe fn name_all(&self, stream: &Stream, tasks: &[Name]) -> Result<()> {
        let kernels = [&self.name, &self.name_all_8, &self.name_all_73];
        let tasks = tasks.iter().map(Name::as_bytes);
        /// More blocks would be resident while the kernel in front of them waits.
        const MOST: u32 = 4;
        let blocks = |tasks: u32| [tasks.min(MOST), 1, 1];
        let block = self.patching.dependent();
        // SAFETY: the kernels access what `Name` names, which the caller guarantees to be valid.
        unsafe { self.launch_all(stream, kernels, (block, blocks), tasks, Polls::None) }
    }

    /// As [`Kernels::launch_all`], for tasks that have shares, as dependent launches.
    ///
    /// # Safety
    /// As for [`Kernels::launch_all`].
    pub(super) unsafe fn share_all<'t>(
        &self,
        stream: &Stream,
        kernels: [&Kernel; 3],
        block: Dims,
        tasks: impl Iterator<Item = &'t [u8]>,
        shares: impl Iterator<Item = u32>,
        polls: Polls<'_>,
    ) -> Result<()> {
        // Each task has a block: no task waits for the end of one that waits for a peer.
        let most = shares.max().unwrap_or(1);
        let blocks = |tasks| [most, tasks, 1];
        let block = block.dependent().flexible();
        // SAFETY: the caller's promise.
        unsafe { self.launch_all(stream, kernels, (block, blocks), tasks, polls) }
    }

    /// Enqueues tasks of equal length. `kernels`: for one task, for few, and for most; `block`: the
    /// dimensions of one; `blocks`: those of a launch of so many tasks.
    ///
    /// # Safety
    /// Those of the kernels, with the parameters of the tasks.
    unsafe fn launch_all<'t>(
        &self,
        stream: &Stream,
        [one, few, large]: [&Kernel; 3],
        (block, blocks): (Dims, impl Fn(u32) -> [u32; 3]),
        tasks: impl Iterator<Item = &'t [u8]>,
        polls: Polls<'_>,
    ) -> Result<()> {
        let mut tasks = tasks.peekable();
        let mut args = [0_u64; BYTES / 8];
        let args = args.as_mut_bytes();
        while let Some(len) = tasks.peek().map(|task| task.len()) {
            let mut count = 0;
            let (head, params) = args.split_at_mut(HEAD);
            for (param, task) in params.chunks_exact_mut(len).zip(&mut tasks) {
                param.copy_from_slice(task);
                count += 1;
            }
            head[..4].copy_from_slice(&(count as u32).to_ne_bytes());
            let (kernel, args) = match count {
                1 => (one, &args[HEAD..][..len]),
                2..=FEW => (few, &args[..HEAD + FEW * len]),
                _ => (large, &args[..HEAD + most(len) * len]),
            };
            let dims = block.grid(blocks(self.blocks.min(count as u32)));
            // SAFETY: the caller's promise; the parameters have the layout of the kernel.
            unsafe {
                match polls {
                    Polls::None => stream.launch(kernel, dims, args)?,
                    Polls::One(word, value) => {
                        stream.launch_waiting(kernel, dims, args, Some((word, value)))?
                    }
                    Polls::Several => stream.launch_waiting(kernel, dims, args, None)?,
                }
            }
        }
        Ok(())
    }
}
