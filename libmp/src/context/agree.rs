//! [`Context::agree`]: the set of lost ranks, the same at all survivors.

use std::time::Duration;

use super::Context;
use crate::agreement::Decision;
use crate::error::Result;

/// The result of [`Context::agree`], equal at all ranks that survive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreed {
    /// The lost ranks, ascending; those of earlier agreements included.
    pub lost: Vec<u32>,
    /// The greatest of the values that the surviving ranks passed to the call.
    pub value: u64,
}

impl Context {
    /// Agrees with all other ranks on the set of lost ranks (MPI ULFM: `MPIX_Comm_agree`,
    /// `MPIX_Comm_failure_ack`). Collective among the ranks that live: the call returns when each
    /// of them has called it, and all of them return the same set and the same value. Ranks may be
    /// lost during the call.
    ///
    /// The set contains each rank that was lost before a surviving rank called: ranks that have
    /// left the job or have died, and ranks that a call or a request of any rank has given up. A
    /// rank counts as lost as well if it answers no ping for half of `limit`, at least for 50 ms. A
    /// rank answers once it has built its context; with
    /// [`Progress::Manual`](crate::Progress::Manual), in [`progress`](Context::progress). All lost
    /// ranks are given up afterwards: requests with them fail, and streams that wait for them are
    /// released. Of two ranks that live and gave each other up, at least one is lost.
    ///
    /// A rank that has lost no other rank finds by
    /// [`is_asked_to_agree`](Context::is_asked_to_agree) that others have called. The call is also
    /// a barrier of the surviving ranks. It does not wait for streams or requests.
    ///
    /// The value is the greatest of those of the surviving ranks, for example the last step that
    /// one of them has begun. For the least value, pass `!value`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
    /// # std::thread::scope(|threads| {
    /// #     for job in Local::ranks(3) {
    /// #         threads.spawn(move || {
    /// #             let gpu = Gpu::soft().unwrap();
    /// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
    /// #             rank(&ctx).unwrap();
    /// #         });
    /// #     }
    /// # });
    /// fn rank(ctx: &Context) -> mp::Result<()> {
    ///     let step = 10 + u64::from(ctx.rank());
    ///     if ctx.rank() == 2 {
    ///         return Ok(()); // its context is dropped: the rank is lost
    ///     }
    ///     let agreed = ctx.agree(step, Duration::from_secs(10))?;
    ///     assert_eq!((agreed.lost, agreed.value), (vec![2], 11));
    ///     # ctx.close(Duration::from_secs(10)).ok();
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// - `Missing`, naming the ranks that live and did not call within `limit`. The agreement
    ///   continues in the background; the next call continues it, with the value of the first.
    /// - `Timeout` if all have called, and did not confirm the set within `limit`; as `Missing`.
    /// - `PeerFailed`, naming a rank that has given this rank up, if this rank is lost to the
    ///   others. So does every later call.
    /// - `BootstrapLost` if the other ranks cannot be reached.
    /// - `Busy` if another thread of this rank is in the call: the ranks count their calls.
    pub fn agree(&self, value: u64, limit: Duration) -> Result<Agreed> {
        let _call = self.observe(c"agree", None, None);
        let Decision { lost, value } = self.engine().agree(value, limit)?;
        Ok(Agreed { lost, value })
    }

    /// Whether another rank waits in [`agree`](Context::agree) for this rank. The call does not
    /// wait; the background work receives the messages of the other ranks.
    pub fn is_asked_to_agree(&self) -> bool {
        self.engine().is_asked_to_agree()
    }
}
