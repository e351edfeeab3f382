//! [`Scope`]: messages of borrowed host memory, copied through memory of the context.

use std::time::Duration;

use gdsync::gpu::MemoryKind;

use super::{Context, Request, wait_all};
use crate::error::Result;
use crate::region::Memory;
use crate::two_sided::Source;

/// Sends and receives of borrowed bytes, by the CPU. All of them have ended, or have timed out,
/// when [`Context::scope`] returns.
///
/// The bytes are copied through memory of the context, so no NIC accesses borrowed memory: a
/// message that times out continues without the caller's memory.
///
/// ```
/// # use std::time::Duration;
/// # use mp::Context;
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let mut bytes = [0; 8];
///     ctx.scope(|scope| {
///         scope.irecv(peer, 7, &mut bytes)?;
///         scope.isend(peer, 7, b"borrowed")
///     })?;
///     assert_eq!(&bytes, b"borrowed");
///     Ok(())
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #             ctx.close(Duration::from_secs(10)).unwrap();
/// #         });
/// #     }
/// # });
/// ```
///
/// The scope borrows the memory of a receive until the scope ends, and the memory must outlive the
/// scope:
///
/// ```compile_fail,E0503
/// # use mp::Context;
/// fn first(ctx: &Context) -> mp::Result<u8> {
///     let mut bytes = [0; 8];
///     ctx.scope(|scope| {
///         scope.irecv(0, 7, &mut bytes)?;
///         Ok(bytes[0]) // read it after the scope
///     })
/// }
/// ```
///
/// ```compile_fail,E0597
/// # use mp::Context;
/// fn receive(ctx: &Context) -> mp::Result<()> {
///     ctx.scope(|scope| {
///         let mut bytes = [0; 8]; // ends before the scope does
///         scope.irecv(0, 7, &mut bytes)
///     })
/// }
/// ```
#[derive(Debug)]
pub struct Scope<'env> {
    context: Context,
    sends: Vec<Request>,
    receives: Vec<(Request, Memory, &'env mut [u8])>,
}

impl<'env> Scope<'env> {
    fn memory(&self, len: usize) -> Result<Memory> {
        self.context.alloc(MemoryKind::Pinned, len.max(1))
    }

    /// Sends `bytes` to rank `to` under `tag`. They are copied now, and may be changed after the
    /// call.
    ///
    /// # Errors
    /// As [`Context::alloc`] and [`Context::isend`].
    pub fn isend(&mut self, to: u32, tag: u32, bytes: &[u8]) -> Result<()> {
        let memory = self.memory(bytes.len())?;
        memory.write(0, bytes)?;
        let request = self
            .context
            .isend(to, tag, &memory.slice(0, bytes.len())?)?;
        self.sends.push(request);
        Ok(())
    }

    /// Receives a message from `from` under `tag` into `bytes`, which are written when the scope
    /// ends. A message may be shorter; the rest is unchanged.
    ///
    /// # Errors
    /// As [`Context::alloc`] and [`Context::irecv`].
    pub fn irecv(
        &mut self,
        from: impl Into<Source>,
        tag: u32,
        bytes: &'env mut [u8],
    ) -> Result<()> {
        let memory = self.memory(bytes.len())?;
        let request = self
            .context
            .irecv(from, tag, &memory.slice(0, bytes.len())?)?;
        self.receives.push((request, memory, bytes));
        Ok(())
    }

    /// Waits for all requests, and returns the first error.
    fn end(self, limit: Duration) -> Result<()> {
        let host = self.context.gpu().host();
        let deadline = host.now() + limit;
        let mut result = wait_all(&self.sends, limit).map(drop);
        for (request, memory, bytes) in self.receives {
            let left = deadline.since(host.now());
            let ended = request.wait(left).and_then(|done| {
                let whole = &mut bytes[..done.len as usize];
                memory.read(0, whole)
            });
            result = result.and(ended);
        }
        result
    }
}

impl Context {
    /// Runs `body` with a [`Scope`], then waits on the CPU until every message that it started has
    /// ended, at most the [timeout](crate::Builder::timeout) of the context.
    ///
    /// # Errors
    /// The error of `body`; otherwise the first error of a message, as [`Request::wait`]. The bytes
    /// of a receive that failed are unchanged.
    pub fn scope<'env, T>(&self, body: impl FnOnce(&mut Scope<'env>) -> Result<T>) -> Result<T> {
        let mut scope = Scope {
            context: self.clone(),
            sends: Vec::new(),
            receives: Vec::new(),
        };
        let result = body(&mut scope);
        let ended = scope.end(self.engine().config.timeout);
        let value = result?;
        ended.map(|()| value)
    }
}
