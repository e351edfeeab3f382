//! The null rank: a send to it and a receive from it complete at once, without a message.

use super::engine::Engine;
use super::state::State;
use crate::error::Result;
use crate::request::entry::{Common, Entry, Operation};
use crate::request::table::RequestKey;

/// The null rank, as `MPI_PROC_NULL`: the neighbour of a rank at the edge of a domain without
/// periodic boundary.
///
/// A send to it and a receive from it, by the CPU or on a stream, complete when they are posted:
/// nothing is sent or enqueued, the memory is unchanged, and waits return at once. The result has
/// this rank as [`peer`](crate::Done::peer), and length 0. Operations of a
/// [`Window`](crate::Window) with it, and waits for its signals, end in the same way. The arguments
/// are checked as for any other rank. A receive from [`Source::Any`](crate::Source::Any) receives
/// nothing from it.
///
/// The value is not `u32::MAX`, so that `rank - 1` at rank 0 stays a rank outside the job, an
/// error.
///
/// ```
/// use std::time::Duration;
///
/// use mp::NULL_RANK;
/// # use mp::{Context, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
///
/// let left = ctx.rank().checked_sub(1).unwrap_or(NULL_RANK); // rank 0 has no left neighbour
/// let ghost = ctx.alloc(MemoryKind::Device, 4096)?;
/// let recv = ctx.irecv(left, 7, &ghost.all())?; // no branch for the edge
/// assert_eq!(recv.wait(Duration::ZERO)?.len, 0);
/// # Ok::<(), mp::Error>(())
/// ```
pub const NULL_RANK: u32 = u32::MAX - 1;

impl Engine {
    /// Makes a request with the null rank, and ends it if `post` is set.
    #[cold]
    pub(super) fn null(
        &self,
        tag: u32,
        operation: fn() -> Operation,
        post: bool,
    ) -> Result<RequestKey> {
        self.start(None, post, |state: &mut State| {
            self.sweep_if_crowded(state);
            state.requests.reserve(&self.gpu)?;
            let (common, operation) = (Common::new(NULL_RANK, tag, &[]), operation());
            Ok((state.requests.put(Entry { common, operation }), false))
        })
    }
}
