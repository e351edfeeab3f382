//! The launches of the kernels of a neighbourhood's step (`device/mp_step.cu`).

use gdsync::Stream;
use gdsync::gpu::{Dims, Word64};

use super::{Kernels, Pieces, ReadyWords, StepPart, StepParts, WholeStep};
use crate::error::Result;

/// Maximum number of blocks of a launch, unless it has more parts: as many as copy a long message (`Direct`).
const MOST_BLOCKS: u32 = 48;
/// Maximum number of rows of blocks. A row executes several parts in turn if there are more parts.
const MOST_ROWS: u32 = 64;
/// Bytes of a share: each thread of a block makes one access.
const SHARE: u64 = 4 << 10;
/// The same on the software GPU: so short that tests divide their pieces.
const SHARE_SOFT: u64 = 64;

impl Kernels {
    /// Divides a part, one of `parts`, with these pieces into shares. As many of them divide a piece as the
    /// longest piece needs. Returns the bytes of the longest share of a piece.
    pub fn divide(&self, part: &mut StepPart, pieces: &[Pieces], parts: usize) -> u64 {
        let share = match self.blocks {
            1 => SHARE_SOFT,
            _ => SHARE,
        };
        let bytes: u64 = pieces.iter().map(|piece| piece.len).sum();
        let longest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
        let most = (u64::from(MOST_BLOCKS) / parts.max(1) as u64).clamp(1, self.shares.into());
        let wanted = bytes.div_ceil(share).clamp(1, most);
        let split = (wanted * longest).div_ceil(bytes.max(1)).max(1);
        let groups = (wanted / split).clamp(1, pieces.len().max(1) as u64);
        part.count = pieces.len() as u32;
        (part.split, part.shares) = (split as u32, (split * groups) as u32);
        longest.div_ceil(split)
    }

    /// The dimensions of a launch of parts; `longest`: the bytes of the longest share of a piece.
    pub fn step_dims(&self, parts: &[StepPart], longest: u64) -> Dims {
        let shares = parts.iter().map(|part| part.shares).max().unwrap_or(1);
        let rows = (parts.len() as u32).clamp(1, self.blocks.min(MOST_ROWS));
        self.block(longest)
            .grid([shares, rows, 1])
            .dependent()
            .flexible()
    }

    /// Enqueues the data of a step; see [`Kernels::step_dims`]. `passed` is the word that `params` names.
    ///
    /// # Safety
    /// As for [`Kernels::unpack`], with [`StepParts`] and the tables that it names. Parts do not overlap.
    /// The memory of a rank that was not given up is mapped.
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`].
    pub unsafe fn step(
        &self,
        stream: &Stream,
        params: &StepParts,
        dims: Dims,
        passed: &Word64,
    ) -> Result<()> {
        let passed = Some((passed, params.step));
        // SAFETY: the kernel accesses what the tables name, which the caller guarantees to be valid.
        Ok(unsafe { stream.launch_waiting(&self.step, dims, params, passed) }?)
    }

    /// Enqueues a whole step; `send` and `receive`: the dimensions of its halves alone. `passed` is the word that
    /// `params.send` names.
    ///
    /// # Safety
    /// As for [`Kernels::step`] and [`Kernels::ready`], with [`WholeStep`].
    ///
    /// # Errors
    /// Those of [`Stream::launch_waiting`].
    pub unsafe fn whole_step(
        &self,
        stream: &Stream,
        params: &WholeStep,
        [send, receive]: [Dims; 2],
        passed: &Word64,
    ) -> Result<()> {
        let threads = send.block[0].max(receive.block[0]);
        let shares = send.grid[0].max(receive.grid[0]);
        let rows = send.grid[1].max(receive.grid[1]);
        let dims = Dims::linear(1, threads).grid([shares, rows, 1]);
        let passed = Some((passed, params.send.step));
        // SAFETY: the kernel accesses what the tables name, which the caller guarantees to be valid.
        Ok(unsafe {
            stream.launch_waiting(
                &self.whole_step,
                dims.dependent().flexible(),
                params,
                passed,
            )
        }?)
    }

    /// Enqueues the ready words of a step.
    ///
    /// # Safety
    /// As for [`Kernels::step`], with [`ReadyWords`].
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    pub unsafe fn ready(&self, stream: &Stream, params: &ReadyWords) -> Result<()> {
        let threads = params.count.next_multiple_of(32).min(self.wide.block[0]);
        let dims = Dims::linear(1, threads).dependent();
        // SAFETY: as above.
        Ok(unsafe { stream.launch(&self.ready, dims, params) }?)
    }
}
