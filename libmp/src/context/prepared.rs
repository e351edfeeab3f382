//! The calls of [`Window`] that prepare operations, which the CPU or a stream posts later.

use super::{Request, Window};
use crate::error::Result;
use crate::path::Atomic;
use crate::region::Slice;
use crate::two_sided::On;
use crate::window::{Access, WindowOp};

/// # Prepared operations
/// The `prepare` calls check an operation and open the connection to its rank; nothing is posted.
/// [`Request::post`] posts it by the CPU, [`Request::post_on`] on a stream, and
/// [`Context::post_all_on`](crate::Context::post_all_on) with others, sends and receives included,
/// in one submission, all or none. The origin of the operation is then the CPU or the stream, and
/// its place in the order is that of the post. A request is posted once. Any number of operations
/// may be prepared, in any order, and posted in any other. A request that is dropped before it is
/// posted is cancelled; nothing is sent for it.
///
/// ```
/// use std::time::Duration;
///
/// # use mp::{Context, gdsync::gpu::{Condition, MemoryKind}};
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let memory = ctx.alloc(MemoryKind::Device, 96)?;
///     let window = ctx.window(&memory)?; // all ranks call it
///     let halves = [memory.slice(0, 16)?, memory.slice(16, 16)?];
///     let puts = [
///         window.prepare_put(peer, 32, &halves[0])?,
///         window.prepare_put_signal(peer, 48, &halves[1], 64, 1)?,
///     ];
///
///     let stream = ctx.gpu().stream()?; // chosen when the puts are due
///     ctx.post_all_on(&stream, &puts)?; // one submission
///     window.wait_signal_on(&stream, peer, 64, Condition::Geq, 1)?;
///     ctx.synchronize(&stream, Duration::from_secs(10))?;
///     mp::wait_all(&puts, Duration::from_secs(10))?;
///     ctx.close(Duration::from_secs(10))
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
    fn prepare(&self, rank: u32, offset: usize, access: Access<'_>) -> Result<Request> {
        let op = WindowOp::new(rank, offset, access, On::Cpu);
        let engine = self.context.engine();
        let _call = engine.observers.call(c"prepare", || op.facts());
        let key = engine.prepare_transfer(&self.targets, &op)?;
        Ok(Request::new(&self.context, key))
    }

    /// Prepares a [`put`](Window::put) of at most 1 GiB. `from` is read when the put is posted by
    /// the CPU, or when the stream reaches it.
    ///
    /// # Errors
    /// Those of [`put`](Window::put) that concern the arguments and the connection; `Invalid` also
    /// for more than 1 GiB; `QueueFull` if too many requests are unfinished or held. The post returns
    /// the others.
    pub fn prepare_put(&self, rank: u32, offset: usize, from: &Slice) -> Result<Request> {
        self.prepare(rank, offset, Access::put(from))
    }

    /// Prepares a [`put_signal`](Window::put_signal) of at most 1 GiB.
    ///
    /// # Errors
    /// As [`prepare_put`](Window::prepare_put); `Invalid` also for a word that is not aligned.
    pub fn prepare_put_signal(
        &self,
        rank: u32,
        offset: usize,
        from: &Slice,
        signal_offset: usize,
        value: u64,
    ) -> Result<Request> {
        let access = Access::put_signal(from, signal_offset, value);
        self.prepare(rank, offset, access)
    }

    /// Prepares a [`signal`](Window::signal).
    ///
    /// # Errors
    /// As [`prepare_put_signal`](Window::prepare_put_signal).
    pub fn prepare_signal(&self, rank: u32, offset: usize, value: u64) -> Result<Request> {
        self.prepare(rank, offset, Access::Signal { value })
    }

    /// Prepares a [`get`](Window::get) of at most 1 GiB. `into` may be written from the post on.
    ///
    /// # Errors
    /// As [`prepare_put`](Window::prepare_put).
    pub fn prepare_get(&self, rank: u32, offset: usize, into: &Slice) -> Result<Request> {
        self.prepare(rank, offset, Access::Get { into })
    }

    /// Prepares a [`fetch_add`](Window::fetch_add).
    ///
    /// # Errors
    /// As [`prepare_put_signal`](Window::prepare_put_signal). The post returns `Unsupported` for a
    /// word of this rank itself.
    pub fn prepare_fetch_add(
        &self,
        rank: u32,
        offset: usize,
        add: u64,
        old: &Slice,
    ) -> Result<Request> {
        let atomic = Atomic::FetchAdd(add);
        self.prepare(rank, offset, Access::Atomic { old, atomic })
    }

    /// Prepares a [`compare_swap`](Window::compare_swap).
    ///
    /// # Errors
    /// As [`prepare_fetch_add`](Window::prepare_fetch_add).
    pub fn prepare_compare_swap(
        &self,
        rank: u32,
        offset: usize,
        compare: u64,
        swap: u64,
        old: &Slice,
    ) -> Result<Request> {
        let atomic = Atomic::CompareSwap { compare, swap };
        self.prepare(rank, offset, Access::Atomic { old, atomic })
    }
}
