//! [`Collectives`]: the handle on a team of ranks, with the collective calls.

use std::fmt;
use std::time::Duration;

use gdsync::Stream;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Context;
use crate::collective::op::{Number, Op};
use crate::collective::{Buffers, CollectiveCall, TeamHandle};
use crate::error::{Error, Kind, Result};
use crate::region::Slice;
use crate::wire::collective::Call;

/// Collective calls of all ranks of a job, for small data: barrier, broadcast, all-gather,
/// all-to-all and all-reduce (MPI: the functions of these names on a communicator).
///
/// [`Context::collectives`] makes it on all ranks. The CPU makes a call and waits for it, or a
/// stream makes it (`_on`), behind its earlier work and before its later work. Ranks may mix the two
/// forms: in one call, some ranks may use the CPU and others a stream.
///
/// ```
/// use std::time::Duration;
///
/// use mp::gdsync::gpu::MemoryKind;
/// use mp::{Context, Op};
///
/// /// The time step of a simulation: the smallest that a rank requires.
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let limit = Duration::from_secs(10);
///     let mut all = ctx.collectives(1024)?; // contributions of up to 1024 bytes
///
///     let mut step = [0.25 + f64::from(ctx.rank())];
///     all.all_reduce(&mut step, Op::Min, limit)?;
///     assert_eq!(step, [0.25]);
///
///     // The same on a stream, for a step that a kernel has computed.
///     let stream = ctx.gpu().stream()?;
///     let memory = ctx.alloc(MemoryKind::Device, 8)?;
///     memory.write_slice(0, &[0.5 + f64::from(ctx.rank())])?;
///     all.all_reduce_on::<f64>(&stream, &memory.all(), Op::Min)?;
///     // Kernels enqueued from here on find the minimum in `memory`.
///     ctx.synchronize(&stream, limit)?;
///     memory.read_slice(0, &mut step)?;
///     assert_eq!(step, [0.5]);
///     ctx.close(limit)
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(3) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #         });
/// #     }
/// # });
/// ```
///
/// # Order
/// The calls of an object have one order on each rank, and all ranks make the same calls in the
/// same order. Each call is also a barrier: it ends when all ranks have started it. A call of the
/// CPU first waits for the stream of the call before, and a stream for another stream. Two objects
/// are independent: use one for each stream, to have several calls in flight.
///
/// # Results
/// An all-reduce combines the contributions in the order of the ranks. Its result has the same bits
/// on all ranks, also for floating-point numbers, and whether a rank uses the CPU or a stream. All
/// results that are NaN have the same bits.
///
/// # Memory and cost
/// Each rank puts its contribution to every other rank, in one step: the calls are for jobs of up
/// to about 64 ranks. An object has pinned memory of `4 * ranks * max_bytes` bytes. A stream's call
/// is a copy, one list of puts and waits, and one kernel, whatever the number of ranks. The first
/// call of the CPU, and the first of a stream, opens connections as [`Context::prepare_send`] does.
///
/// # Failures
/// If a call fails after its arguments were accepted, the object fails on all ranks: their current
/// and later calls return the failure, which names the rank that is the reason. Make another object
/// with the ranks that are left.
/// - A rank that has not made the call within the limit: `Timeout`. On a stream the limit is
///   [`Builder::timeout`](crate::Builder::timeout), and the failure is `Failed(TIMEOUT)`. The text
///   names all absent ranks. They are not given up.
/// - A rank that died or left: `PeerFailed`.
/// - A rank that has made another call, or with another length, root, type or operation: `Protocol`.
///
/// A stream that waits is released after the status is stored in [`Context::error_word`], the memory
/// for the result is unchanged, and [`Context::synchronize`] returns the failure.
///
/// After a rank has dropped its object, calls of other ranks fail with `PeerFailed`, and the
/// rank is given up. The memory of an object that has failed is kept until its context is dropped.
pub struct Collectives {
    context: Context,
    handle: TeamHandle,
}

impl fmt::Debug for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.team.fmt(f)
    }
}

impl Context {
    /// Makes an object for collective calls with contributions of at most `max_bytes` bytes: the
    /// elements of a rank, and of an all-to-all the elements of a rank for another. Collective:
    /// each rank calls this function with the same length, in the same order among its calls of
    /// this function and of [`window`](Context::window).
    ///
    /// # Errors
    /// - `Invalid` if `max_bytes` exceeds 16,777,215.
    /// - `Missing`, naming the ranks that did not take part within
    ///   [`Builder::timeout`](crate::Builder::timeout).
    /// - `PeerFailed` if a rank was given up, naming it; `Protocol` if it has made an object with
    ///   another length, or a window of another length.
    /// - `BootstrapLost` if the other ranks cannot be reached.
    /// - Errors of gdsync.
    pub fn collectives(&self, max_bytes: usize) -> Result<Collectives> {
        Ok(Collectives {
            context: self.clone(),
            handle: TeamHandle::new(self.engine(), max_bytes)?,
        })
    }
}

impl Collectives {
    /// The greatest length of a contribution in bytes.
    pub fn max_bytes(&self) -> usize {
        self.handle.most
    }

    /// Waits on the CPU, at most `limit`, until all ranks have called it. No memory is ordered with
    /// it.
    ///
    /// # Errors
    /// - As the section "Failures" of [`Collectives`] describes; then the object has failed.
    /// - `Timeout` also if the stream of the call before has not executed it within `limit`; this
    ///   leaves the object usable, and the call may be repeated.
    /// - `QueueFull` as configured by [`Builder::full`](crate::Builder::full), `BootstrapLost` if a
    ///   connection is needed: the object stays usable if nothing was posted.
    /// - Errors of gdsync.
    pub fn barrier(&mut self, limit: Duration) -> Result<()> {
        let call = CollectiveCall::new(Call::Barrier, 0);
        self.call(&call, &[], limit, |_, _| Ok(()))
    }

    /// Copies `data` of rank `root` to `data` of all other ranks, by the CPU, within `limit`. It has
    /// the same length on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Collectives::barrier); `Invalid` for data longer than
    /// [`max_bytes`](Collectives::max_bytes) and a root outside the job.
    pub fn broadcast<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        root: u32,
        data: &mut [T],
        limit: Duration,
    ) -> Result<()> {
        let call = CollectiveCall::new(Call::Broadcast { root }, size_of_val(data));
        match root == self.context.rank() {
            true => self.call(&call, data.as_bytes(), limit, |_, _| Ok(())),
            false => self.call(&call, &[], limit, |handle, number| {
                handle.read(&call, number, root, data.as_mut_bytes())
            }),
        }
    }

    /// Copies `from` of all ranks to `into` of all ranks, in the order of the ranks, by the CPU,
    /// within `limit`. `into` has as many elements for each rank as `from`, which has the same
    /// length on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Collectives::barrier); `Invalid` for data longer than
    /// [`max_bytes`](Collectives::max_bytes), and if the lengths of `from` and `into` do not match.
    pub fn all_gather<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        from: &[T],
        into: &mut [T],
        limit: Duration,
    ) -> Result<()> {
        let call = CollectiveCall::new(Call::AllGather, size_of_val(from));
        self.gather(&call, from.as_bytes(), into.as_mut_bytes(), limit)
    }

    /// Copies part `r` of `from` to rank `r`, for each rank, where it becomes the part of this rank
    /// in `into`; by the CPU, within `limit`. Both have one part for each rank, in the order of the
    /// ranks, all of one length.
    ///
    /// # Errors
    /// As [`all_gather`](Collectives::all_gather), with the lengths of the parts.
    pub fn all_to_all<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        from: &[T],
        into: &mut [T],
        limit: Duration,
    ) -> Result<()> {
        let call = CollectiveCall::new(Call::AllToAll, self.part(size_of_val(from)));
        self.gather(&call, from.as_bytes(), into.as_mut_bytes(), limit)
    }

    /// As [`all_to_all`](Collectives::all_to_all), with parts of any length: the part for rank `r`
    /// has `sends[r]` elements, and that of rank `r` in `into` has `receives[r]`. `sends[r]` of
    /// this rank equals the element of `receives` for this rank at rank `r`.
    ///
    /// # Errors
    /// As [`all_to_all`](Collectives::all_to_all); `Protocol` if a rank sends another length than
    /// this rank receives; `Invalid` for a number of lengths other than that of the ranks, and if
    /// their sums are not the lengths of `from` and `into`.
    pub fn all_to_all_v<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        from: &[T],
        sends: &[usize],
        into: &mut [T],
        receives: &[usize],
        limit: Duration,
    ) -> Result<()> {
        let bytes = |counts: &[usize]| -> Vec<usize> {
            let bytes = |count: &usize| count.saturating_mul(size_of::<T>());
            counts.iter().map(bytes).collect()
        };
        let (sends, receives) = (bytes(sends), bytes(receives));
        let call = CollectiveCall::varied(&sends, &receives);
        self.gather(&call, from.as_bytes(), into.as_mut_bytes(), limit)
    }

    /// Combines `data` of all ranks, element by element, by the CPU, within `limit`; `data` of all
    /// ranks has the result. It has the same length on all ranks.
    ///
    /// # Errors
    /// As [`barrier`](Collectives::barrier); `Invalid` for data longer than
    /// [`max_bytes`](Collectives::max_bytes), and for a bitwise operation on floating-point numbers.
    pub fn all_reduce<T: Number>(&mut self, data: &mut [T], op: Op, limit: Duration) -> Result<()> {
        let call = CollectiveCall::reduce::<T>(op, size_of_val(data))?;
        let engine = self.context.engine();
        let _call = engine
            .observers
            .call(call.call_name(false), || call.facts(engine, None));
        let number = self.handle.call(engine, &call, data.as_bytes(), limit)?;
        self.handle.reduce(&call, number, op, data)?;
        self.handle.end(number)
    }

    /// Enqueues a [`barrier`](Collectives::barrier) on `stream`: later work of the stream runs when
    /// the streams, or CPUs, of all ranks have reached it.
    ///
    /// # Errors
    /// Nothing is enqueued then that another rank can observe.
    /// - The failure of the object, if it has failed; `PeerFailed` if a rank was given up: the
    ///   object fails. Later failures: see the section "Failures" of [`Collectives`].
    /// - `Unsupported` on a GPU that runs no kernels, and for a stream that is being captured into
    ///   a graph.
    /// - `QueueFull` as configured by [`Builder::full`](crate::Builder::full);
    ///   `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    /// - `Timeout`, naming the rank, if it does not answer when the connection is opened;
    ///   `BootstrapLost` if it cannot be asked.
    /// - Errors of gdsync. If only a part of the call could be enqueued, the object fails.
    pub fn barrier_on(&mut self, stream: &Stream) -> Result<()> {
        self.call_on(&CollectiveCall::new(Call::Barrier, 0), stream, None, None)
    }

    /// Enqueues a [`broadcast`](Collectives::broadcast) of the bytes of `data` on `stream`.
    ///
    /// # Errors
    /// As [`barrier_on`](Collectives::barrier_on) and, for lengths and root,
    /// [`broadcast`](Collectives::broadcast); `Invalid` for memory of another context.
    pub fn broadcast_on(&mut self, stream: &Stream, root: u32, data: &Slice) -> Result<()> {
        let call = CollectiveCall::new(Call::Broadcast { root }, data.len());
        match root == self.context.rank() {
            true => self.call_on(&call, stream, Some(data), None),
            false => self.call_on(&call, stream, None, Some(data)),
        }
    }

    /// Enqueues an [`all_gather`](Collectives::all_gather) of bytes on `stream`. `from` may be a
    /// part of `into`.
    ///
    /// # Errors
    /// As [`barrier_on`](Collectives::barrier_on) and, for lengths,
    /// [`all_gather`](Collectives::all_gather); `Invalid` for memory of another context.
    pub fn all_gather_on(&mut self, stream: &Stream, from: &Slice, into: &Slice) -> Result<()> {
        let call = CollectiveCall::new(Call::AllGather, from.len());
        self.call_on(&call, stream, Some(from), Some(into))
    }

    /// Enqueues an [`all_to_all`](Collectives::all_to_all) of bytes on `stream`. `from` and `into`
    /// may be the same.
    ///
    /// # Errors
    /// As [`all_gather_on`](Collectives::all_gather_on).
    pub fn all_to_all_on(&mut self, stream: &Stream, from: &Slice, into: &Slice) -> Result<()> {
        let call = CollectiveCall::new(Call::AllToAll, self.part(from.len()));
        self.call_on(&call, stream, Some(from), Some(into))
    }

    /// Enqueues an [`all_to_all_v`](Collectives::all_to_all_v) of bytes on `stream`; `sends` and
    /// `receives` are lengths in bytes. The CPU reads them now.
    ///
    /// # Errors
    /// As [`all_gather_on`](Collectives::all_gather_on) and, for the lengths,
    /// [`all_to_all_v`](Collectives::all_to_all_v).
    pub fn all_to_all_v_on(
        &mut self,
        stream: &Stream,
        from: &Slice,
        sends: &[usize],
        into: &Slice,
        receives: &[usize],
    ) -> Result<()> {
        let call = CollectiveCall::varied(sends, receives);
        self.call_on(&call, stream, Some(from), Some(into))
    }

    /// Enqueues an [`all_reduce`](Collectives::all_reduce) of the elements of `data` on `stream`.
    ///
    /// # Errors
    /// As [`barrier_on`](Collectives::barrier_on) and, for length and operation,
    /// [`all_reduce`](Collectives::all_reduce); `Invalid` for memory of another context, and for
    /// memory whose address or length is not a multiple of the size of `T`.
    pub fn all_reduce_on<T: Number>(
        &mut self,
        stream: &Stream,
        data: &Slice,
        op: Op,
    ) -> Result<()> {
        let call = CollectiveCall::reduce::<T>(op, data.len())?;
        let size = size_of::<T>();
        if !data.len().is_multiple_of(size) || !data.addr().is_multiple_of(size as u64) {
            let what = format!(
                "{data:?} does not contain whole, aligned elements of {}, which has {size} bytes",
                std::any::type_name::<T>()
            );
            return Err(Error::new(call.name(), Kind::Invalid, what));
        }
        self.call_on(&call, stream, Some(data), Some(data))
    }

    /// The length of each of as many parts of `len` bytes as there are ranks. The check of the
    /// lengths refuses a rest.
    fn part(&self, len: usize) -> usize {
        len / self.context.size() as usize
    }

    /// Makes a call of the CPU; `take` takes the result from the slots.
    fn call(
        &mut self,
        call: &CollectiveCall<'_>,
        data: &[u8],
        limit: Duration,
        take: impl FnOnce(&TeamHandle, u64) -> Result<()>,
    ) -> Result<()> {
        let engine = self.context.engine();
        let _call = engine
            .observers
            .call(call.call_name(false), || call.facts(engine, None));
        let number = self.handle.call(engine, call, data, limit)?;
        take(&self.handle, number)?;
        self.handle.end(number)
    }

    /// Makes a call of the CPU whose result has the contributions of all ranks, one after the other.
    fn gather(
        &mut self,
        call: &CollectiveCall<'_>,
        from: &[u8],
        into: &mut [u8],
        limit: Duration,
    ) -> Result<()> {
        self.check_lens(call, from.len(), into.len())?;
        self.call(call, from, limit, |handle, number| {
            let mut rest = into;
            for rank in 0.. {
                if rest.is_empty() {
                    return Ok(());
                }
                let (part, behind) = rest.split_at_mut(call.from(rank));
                handle.read(call, number, rank, part)?;
                rest = behind;
            }
            Ok(())
        })
    }

    fn call_on(
        &mut self,
        call: &CollectiveCall<'_>,
        stream: &Stream,
        from: Option<&Slice>,
        into: Option<&Slice>,
    ) -> Result<()> {
        if let (Some(from), Some(into)) = (from, into) {
            self.check_lens(call, from.len(), into.len())?;
        }
        let engine = self.context.engine();
        let _call = engine
            .observers
            .call(call.call_name(true), || call.facts(engine, Some(stream)));
        let buffers = Buffers { from, into };
        self.handle.call_on(engine, call, stream, buffers)
    }

    /// Checks the lengths of what this rank sends and receives in one call.
    ///
    /// # Errors
    /// `Invalid`.
    fn check_lens(&self, call: &CollectiveCall<'_>, from: usize, into: usize) -> Result<()> {
        let (me, ranks) = (self.context.rank(), self.context.size());
        call.check(me, ranks, self.handle.most)?;
        for (len, due, what) in [
            (from, call.sent(me, ranks), "contributions"),
            (into, call.received(ranks), "result"),
        ] {
            if len != due {
                let what = format!("the memory of the {what} has {len} bytes in place of {due}");
                return Err(Error::new(call.name(), Kind::Invalid, what));
            }
        }
        Ok(())
    }
}
