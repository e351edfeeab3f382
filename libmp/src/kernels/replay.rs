//! The launches of the kernels of messages in graphs (`device/mp_replay.cu`). The stream is being
//! captured: a launch becomes a node of the graph. [`Kernels::replay_place`] alone waits for no peer.

use gdsync::Stream;
use zerocopy::IntoBytes;

use super::tasks::Polls;
use super::{Kernels, ReplayCopy, ReplayPlace, ReplayTake, ReplayWrite};
use crate::error::Result;

impl Kernels {
    /// Records the sender's kernels of messages whose lines have room, in any order among each other.
    ///
    /// # Safety
    /// Every address in `tasks` is valid on the stream's GPU as long as the graph may run, for as many
    /// bytes as [`ReplayWrite`] documents. No other kernel uses the words of the end, except the others of
    /// its message.
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`]; earlier launches of the call are recorded.
    pub unsafe fn replay_write(&self, stream: &Stream, tasks: &[ReplayWrite]) -> Result<()> {
        let kernels = [
            &self.replay_write,
            &self.replay_write_all_8,
            &self.replay_write_all_46,
        ];
        let part = |task: &ReplayWrite| task.len.div_ceil(task.end.shares);
        let block = self.block(tasks.iter().map(part).max().unwrap_or(0));
        let shares = tasks.iter().map(|task| task.end.shares as u32);
        let tasks = tasks.iter().map(ReplayWrite::as_bytes);
        // SAFETY: the kernels access what `ReplayWrite` names, which the caller guarantees to be valid.
        unsafe { self.share_all(stream, kernels, block, tasks, shares, Polls::Several) }
    }

    /// Records the receiver's kernel that shows the memory of a receive.
    ///
    /// # Safety
    /// As for [`Kernels::replay_write`], with [`ReplayPlace`].
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn replay_place(&self, stream: &Stream, params: &ReplayPlace) -> Result<()> {
        let dims = self.patching.dependent();
        // SAFETY: as above.
        Ok(unsafe { stream.launch(&self.replay_place, dims, params) }?)
    }

    /// Records the sender's kernel of a message to the memory of its receive.
    ///
    /// # Safety
    /// As for [`Kernels::replay_write`], with [`ReplayCopy`].
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`].
    pub unsafe fn replay_copy(&self, stream: &Stream, params: &ReplayCopy) -> Result<()> {
        let shares = params.end.shares as u32;
        let dims = self.wide.grid([shares, 1, 1]).dependent().flexible();
        // SAFETY: as above.
        Ok(unsafe { stream.launch_waiting(&self.replay_copy, dims, params, None) }?)
    }

    /// Records the receiver's kernels of messages, in any order among each other.
    ///
    /// # Safety
    /// As for [`Kernels::replay_write`], with [`ReplayTake`].
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`]; earlier launches of the call are recorded.
    pub unsafe fn replay_take(&self, stream: &Stream, tasks: &[ReplayTake]) -> Result<()> {
        let kernels = [
            &self.replay_take,
            &self.replay_take_all_8,
            &self.replay_take_all_42,
        ];
        let part = |task: &ReplayTake| task.capacity.min(task.bytes).div_ceil(task.end.shares);
        let block = self.block(tasks.iter().map(part).max().unwrap_or(0));
        let shares = tasks.iter().map(|task| task.end.shares as u32);
        let tasks = tasks.iter().map(ReplayTake::as_bytes);
        // SAFETY: as above.
        unsafe { self.share_all(stream, kernels, block, tasks, shares, Polls::Several) }
    }
}
