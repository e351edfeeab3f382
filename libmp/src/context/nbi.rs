//! The calls of [`Window`] that put without a request (OpenSHMEM: `nbi`, non-blocking implicit).

use gdsync::Stream;

use super::Window;
use crate::error::Result;
use crate::region::Slice;
use crate::two_sided::On;
use crate::window::{Access, WindowOp};

/// # Puts without a request
/// [`put_nbi`](Window::put_nbi) and [`put_inline`](Window::put_inline) return no [`Request`]. They
/// complete at [`quiet`](Window::quiet) or [`quiet_on`](Window::quiet_on) of their origin, as
/// `MPI_Put` does at `MPI_Win_flush` and `shmem_put_nbi` at `shmem_quiet`. The request of a later
/// signal or get of the same origin ends after them, too. A put of this kind costs one work request:
/// the NIC writes no completion entry for it, and the context keeps no state of it.
/// The failure of one is the failure of its rank, which quiet and later calls return.
///
/// [`Request`]: crate::Request
///
/// ```
/// use std::time::Duration;
///
/// # use mp::{Context, gdsync::gpu::{Condition, MemoryKind}};
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let limit = Duration::from_secs(10);
///     let memory = ctx.alloc(MemoryKind::Pinned, 1024)?;
///     let window = ctx.window(&memory)?; // all ranks call it
///     for row in 0..8 {
///         window.put_nbi(peer, 256 + 64 * row, &memory.slice(8 * row, 8)?)?;
///     }
///     // A word of 32 bits behind them, which the peer waits for.
///     window.fence(peer)?;
///     window.put_inline(peer, 64, &1_u32.to_le_bytes())?;
///     ctx.wait_value(peer, &memory.slice(64, 4)?, Condition::Eq, 1, limit)?;
///     window.quiet(limit)?; // the rows may be written again
///     ctx.close(limit)
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #         });
/// #     }
/// # });
/// ```
impl Window {
    fn nbi(&self, rank: u32, offset: usize, access: Access<'_>, on: On<'_>) -> Result<()> {
        let op = WindowOp::new(rank, offset, access, on);
        let engine = self.context.engine();
        let _call = engine.observers.call(op.call(), || op.facts());
        engine.put_nbi(&self.targets, &op)
    }

    /// Copies `from` to the memory of `rank`, from byte `offset` on, by the CPU, without a request:
    /// as [`put`](Window::put), and `from` may be written again after [`quiet`](Window::quiet).
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn put_nbi(&self, rank: u32, offset: usize, from: &Slice) -> Result<()> {
        self.nbi(rank, offset, Access::PutNbi { from }, On::Cpu)
    }

    /// As [`put_nbi`](Window::put_nbi), posted by `stream`: `from` is read when the stream reaches
    /// the put, and may be written again after [`quiet_on`](Window::quiet_on).
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn put_nbi_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        from: &Slice,
    ) -> Result<()> {
        let on = On::Stream(stream, None);
        self.nbi(rank, offset, Access::PutNbi { from }, on)
    }

    /// Stores `bytes`, at most 256, into the memory of `rank`, from byte `offset` on, by the CPU,
    /// without a request. They are copied into the work request before the call returns (inline),
    /// and need no registered memory. An aligned word of 8 bytes is written as a whole, and one of 4
    /// bytes as well unless `rank` is this rank itself. Behind a [`fence`](Window::fence) such a word is
    /// a signal, which the target waits for by [`Context::wait_value`](crate::Context::wait_value).
    ///
    /// # Errors
    /// As [`put`](Window::put); `Invalid` also for more than 256 bytes.
    pub fn put_inline(&self, rank: u32, offset: usize, bytes: &[u8]) -> Result<()> {
        self.nbi(rank, offset, Access::Inline { bytes }, On::Cpu)
    }

    /// As [`put_inline`](Window::put_inline), posted by `stream`. The bytes are those of the call,
    /// also if the stream reaches the put later.
    ///
    /// # Errors
    /// As [`put_inline`](Window::put_inline).
    pub fn put_inline_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let on = On::Stream(stream, None);
        self.nbi(rank, offset, Access::Inline { bytes }, on)
    }
}
