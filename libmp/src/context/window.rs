//! [`Window`]: the handle on a window, with the one-sided operations.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::Condition;

use super::{Context, Request, wait_all};
use crate::error::Result;
use crate::path::{Atomic, Path};
use crate::region::{Memory, Slice};
use crate::trace::Facts;
use crate::two_sided::On;
use crate::window::{Access, Awaited, Targets, WindowOp};

/// Registered memory of several ranks that each of them can write and read without a receive
/// (MPI: a window; OpenSHMEM: symmetric memory).
///
/// [`Context::window`] makes a window with all ranks. [`Context::expose`] makes one with the memory
/// of this rank alone; [`record`](Window::record) names the memory to another rank, which adds it
/// by [`attach`](Window::attach). The memory of the ranks may have different lengths. Clones refer
/// to the same window.
///
/// ```
/// use std::time::Duration;
///
/// use mp::Context;
/// use mp::gdsync::gpu::{Condition, MemoryKind};
///
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let (me, peer) = (ctx.rank(), 1 - ctx.rank()); // a job of two ranks
///     let stream = ctx.gpu().stream()?;
///     let memory = ctx.alloc(MemoryKind::Device, 64)?;
///     let window = ctx.window(&memory)?; // all ranks call it
///     memory.write(0, &[me as u8 + 1; 8])?;
///
///     // 8 bytes to offset 16 of the peer's memory, then the word 1 to offset 24.
///     let put = window.put_signal_on(&stream, peer, 16, &memory.slice(0, 8)?, 24, 1)?;
///     window.wait_signal_on(&stream, peer, 24, Condition::Geq, 1)?;
///     // Kernels enqueued from here on find the bytes of the peer at offset 16.
///
///     ctx.synchronize(&stream, Duration::from_secs(10))?;
///     let mut bytes = [0; 8];
///     memory.read(16, &mut bytes)?;
///     assert_eq!(bytes, [peer as u8 + 1; 8]);
///     put.wait(Duration::from_secs(10))?;
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
///
/// # Operations and their completion
/// The CPU posts an operation, or a stream posts it (`_on`), behind its earlier work. Each returns
/// a [`Request`], whose completion is local: the source of a put may be written again; what a get
/// or an atomic returns is in place. [`Done`](crate::Done) has the tag 0. A dropped request
/// completes by itself. A [prepared operation](Window::prepare_put) is posted later, several on a
/// stream in one submission. [`put_nbi`](Window::put_nbi) and [`put_inline`](Window::put_inline)
/// return no request, and complete at [`quiet`](Window::quiet). The first operation to a rank, and
/// the first of a stream, opens a connection as [`Context::prepare_send`] does.
///
/// A put that is complete locally may not be visible at the target yet. Two ways show that it is:
/// a signal behind it that the target waits for ([`put_signal`](Window::put_signal),
/// [`signal`](Window::signal)), and [`quiet`](Window::quiet) here.
///
/// # Order
/// The *origin* of an operation is the CPU or a stream. Operations of different origins have no
/// order. To one rank, of one origin, in all windows:
/// - A signal is visible after all earlier puts.
/// - A get reads what all earlier puts have written.
/// - Puts have no order among themselves, except by [`fence`](Window::fence).
/// - A put may overtake an earlier get or atomic: wait for its request first.
///
/// # The null rank
/// An operation on the memory of [`NULL_RANK`](crate::NULL_RANK) does nothing (MPI: an RMA
/// operation with `MPI_PROC_NULL`). Its request has ended when the call returns, with length 0, and
/// nothing is stored: the destination of a get and the former value of an atomic are unchanged. A
/// fence to the null rank and a wait for its signal end at once. The memory of this rank and the
/// stream are checked as for any other rank.
///
/// # Lifetime
/// A window holds its context, as a [`Request`] does. The target keeps its window as long as other
/// ranks use its memory. An operation on memory of which no handle exists any more fails at the
/// target, and the origin gives the rank up. On [`Path::Ipc`] it fails once the origin knows of the
/// release; before, it succeeds, and the bytes are lost.
#[derive(Clone)]
pub struct Window {
    pub(super) context: Context,
    pub(super) targets: Arc<Targets>,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window onto {:?}", self.targets.memory)
    }
}

impl Context {
    /// Makes a window of the `memory` of all ranks. Collective: each rank calls this function, in
    /// the same order among all its calls. The call returns when the records of all ranks have
    /// arrived. The lengths of the memory may differ; [`Window::len_of`] returns them.
    ///
    /// # Errors
    /// - `Invalid` for memory of another context, or that is shorter than 8 bytes.
    /// - `Missing`, naming the ranks that did not take part within
    ///   [`Builder::timeout`](crate::Builder::timeout). Ranks that have the record of this rank may
    ///   have succeeded.
    /// - `PeerFailed` if a rank was given up, naming it; `Protocol` if it sent an invalid record.
    /// - `BootstrapLost` if the other ranks cannot be reached.
    /// - Errors of gdsync.
    pub fn window(&self, memory: &Memory) -> Result<Window> {
        let window = self.without_ranks(memory)?;
        let what = ["window", "Context::window"];
        let engine = self.engine();
        engine.join_window(&window.targets, what, |_, _| Ok(()))?;
        Ok(window)
    }

    /// Makes a window of the `memory` of this rank alone. Other ranks attach its
    /// [`record`](Window::record), and this rank attaches theirs. Not collective.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn rank(ctx: &Context) -> mp::Result<()> {
    ///     let peer = 1 - ctx.rank(); // a job of two ranks
    ///     let limit = Duration::from_secs(10);
    ///     let memory = ctx.alloc(MemoryKind::Pinned, 64)?;
    ///     let window = ctx.expose(&memory)?;
    ///
    ///     // The application exchanges the records, here by messages.
    ///     let record = window.record();
    ///     let mine = ctx.alloc(MemoryKind::Pinned, 512)?;
    ///     let theirs = ctx.alloc(MemoryKind::Pinned, 512)?;
    ///     mine.write(0, &record)?;
    ///     let recv = ctx.irecv(peer, 0, &theirs.all())?;
    ///     ctx.isend(peer, 0, &mine.slice(0, record.len())?)?.wait(limit)?;
    ///     let mut record = vec![0; recv.wait(limit)?.len as usize];
    ///     theirs.read(0, &mut record)?;
    ///     assert_eq!(window.attach(&record)?, peer);
    ///
    ///     mine.write(0, b"from afar")?;
    ///     window.put(peer, 8, &mine.slice(0, 9)?)?.wait(limit)?;
    ///     window.quiet(limit)?; // the bytes are in the peer's memory
    ///     // Neither rank releases its memory before the other is done.
    ///     let (done, theirs) = (mine.slice(0, 0)?, theirs.slice(0, 0)?);
    ///     ctx.sendrecv((peer, 1, &done), (peer, 1, &theirs), limit)?;
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
    ///
    /// # Errors
    /// `Invalid` for memory of another context, or that is shorter than 8 bytes; errors of gdsync.
    pub fn expose(&self, memory: &Memory) -> Result<Window> {
        let window = self.without_ranks(memory)?;
        window.attach(&window.record())?;
        Ok(window)
    }

    fn without_ranks(&self, memory: &Memory) -> Result<Window> {
        let targets = self.engine().new_window(memory)?;
        Ok(Window {
            context: self.clone(),
            targets: Arc::new(targets),
        })
    }
}

impl Window {
    /// This rank's memory in the window.
    pub fn memory(&self) -> &Memory {
        &self.targets.memory
    }

    /// The length of the memory of `rank` in bytes; `None` if the window has none of this rank.
    pub fn len_of(&self, rank: u32) -> Option<u64> {
        let target = self.targets.of("look up window", rank);
        target.ok().map(|target| target.len())
    }

    /// The path of puts, gets and signals to the memory of `rank`; `None` if the window has none of
    /// this rank. It is [`Path::Nic`] or [`Path::Tcp`] for memory of a rank on [`Path::Ipc`] that this
    /// rank cannot map: what the application has allocated (`adopt_vec`, `register_host`,
    /// `register_device`), and what [`attach`](Window::attach) has added. Atomics of other ranks use
    /// the NIC or TCP always.
    pub fn path(&self, rank: u32) -> Option<Path> {
        let target = self.targets.of("look up window", rank).ok()?;
        Some(match rank == self.context.rank() {
            true => Path::Local,
            false => target.path(),
        })
    }

    /// The bytes that name this rank's memory to [`attach`](Window::attach) of another rank of the
    /// job: at most 512, valid as long as this window, for contexts of the same name
    /// ([`Builder::name`](crate::Builder::name)).
    pub fn record(&self) -> Vec<u8> {
        self.targets.record(self.context.rank())
    }

    /// Adds the memory that another rank has named by its [`record`](Window::record). Returns that
    /// rank. The call waits until the path to the rank is chosen ([`Context::path`]).
    ///
    /// # Errors
    /// `Protocol` for bytes that are not the record of a window of this version; `Invalid` for a
    /// rank outside the job; `Busy` if the window has memory of this rank; `Timeout`, naming the
    /// rank, if it does not answer within the context's timeout.
    pub fn attach(&self, record: &[u8]) -> Result<u32> {
        let engine = self.context.engine();
        engine.attach_window(&self.targets, record)
    }

    fn post(&self, rank: u32, offset: usize, access: Access<'_>, on: On<'_>) -> Result<Request> {
        let op = WindowOp::new(rank, offset, access, on);
        let engine = self.context.engine();
        let _call = engine.observers.call(op.call(), || op.facts());
        let key = engine.transfer(&self.targets, &op)?;
        Ok(Request::new(&self.context, key))
    }

    /// Copies `from` to the memory of `rank`, from byte `offset` on, by the CPU: the memory must
    /// contain the bytes when this is called. `from` may have any length up to 16 GiB, and need not
    /// be in the window. The request completes when `from` may be written again.
    ///
    /// # Errors
    /// Nothing is posted then.
    /// - `Invalid` if the bytes exceed the window of `rank` (the limit is its length), for a rank
    ///   that the window has no memory of, or for memory of another context.
    /// - `PeerFailed`, naming the rank, if it was given up; `Timeout`, naming it, if it does not
    ///   answer when the connection is opened; `BootstrapLost` if it cannot be asked.
    /// - `QueueFull` if too many operations are in flight;
    ///   [`Builder::full`](crate::Builder::full) sets whether the call waits for room first.
    /// - `Unsupported` for a stream that is being captured into a graph; for a get or a quiet if
    ///   the NIC executes no READs, unless they are copies; for an atomic to this rank itself; and
    ///   for a stream's copy ([`path`](Window::path)) if the GPU runs no kernels.
    /// - `Gdsync(OutOfOrder)` for a stream on which a request to or from `rank` is prepared and not
    ///   posted; other errors of gdsync.
    pub fn put(&self, rank: u32, offset: usize, from: &Slice) -> Result<Request> {
        self.post(rank, offset, Access::put(from), On::Cpu)
    }

    /// As [`put`](Window::put), posted by `stream`: `from` is read when the stream reaches the put.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn put_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        from: &Slice,
    ) -> Result<Request> {
        self.post(rank, offset, Access::put(from), On::Stream(stream, None))
    }

    /// Copies `from` to the memory of `rank`, as [`put`](Window::put), and then stores `value` into
    /// the word at `signal_offset` of its window. The word becomes visible after all earlier puts
    /// of the CPU to this rank, this one included. It is 64 bits, aligned to 8 bytes.
    ///
    /// # Errors
    /// As [`put`](Window::put); `Invalid` also for a word that is not aligned.
    pub fn put_signal(
        &self,
        rank: u32,
        offset: usize,
        from: &Slice,
        signal_offset: usize,
        value: u64,
    ) -> Result<Request> {
        let access = Access::put_signal(from, signal_offset, value);
        self.post(rank, offset, access, On::Cpu)
    }

    /// As [`put_signal`](Window::put_signal), posted by `stream`: the word becomes visible after
    /// all earlier puts of this stream to the rank.
    ///
    /// # Errors
    /// As [`put_signal`](Window::put_signal).
    pub fn put_signal_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        from: &Slice,
        signal_offset: usize,
        value: u64,
    ) -> Result<Request> {
        let access = Access::put_signal(from, signal_offset, value);
        self.post(rank, offset, access, On::Stream(stream, None))
    }

    /// Stores `value` into the word at `offset` of the window of `rank`. It becomes visible after
    /// all earlier puts of the CPU to this rank.
    ///
    /// # Errors
    /// As [`put_signal`](Window::put_signal).
    pub fn signal(&self, rank: u32, offset: usize, value: u64) -> Result<Request> {
        self.post(rank, offset, Access::Signal { value }, On::Cpu)
    }

    /// As [`signal`](Window::signal), posted by `stream`: after all earlier puts of this stream to
    /// the rank.
    ///
    /// # Errors
    /// As [`put_signal`](Window::put_signal).
    pub fn signal_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        value: u64,
    ) -> Result<Request> {
        let on = On::Stream(stream, None);
        self.post(rank, offset, Access::Signal { value }, on)
    }

    /// Copies the memory of `rank`, from byte `offset` on, to `into`, by the CPU. It reads what all
    /// earlier puts of the CPU to this rank have written. The request completes when the bytes are
    /// in place.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn get(&self, rank: u32, offset: usize, into: &Slice) -> Result<Request> {
        self.post(rank, offset, Access::Get { into }, On::Cpu)
    }

    /// As [`get`](Window::get), posted by `stream`, after all earlier puts of this stream to the
    /// rank. The stream does not wait for the bytes: [`Request::wait_on`] makes it wait.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn get_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        into: &Slice,
    ) -> Result<Request> {
        let on = On::Stream(stream, None);
        self.post(rank, offset, Access::Get { into }, on)
    }

    /// Adds `add`, modulo 2^64, to the word at `offset` of the window of `rank`, and stores its
    /// former value into `old`, a slice of 8 bytes. The NIC or the TCP device of `rank` executes it: it
    /// is atomic with all fetch-adds and compare-swaps of other ranks on the word, if the same device
    /// executes them, and not with stores of the CPU or of kernels. If a physical NIC reaches only a
    /// part of the ranks, select [`PathChoice::Tcp`](crate::PathChoice::Tcp). The word is aligned to 8
    /// bytes.
    ///
    /// # Errors
    /// As [`put_signal`](Window::put_signal); `Unsupported` for a word of this rank itself, because
    /// its NIC is not used, and if the NIC of this rank executes no atomics.
    pub fn fetch_add(&self, rank: u32, offset: usize, add: u64, old: &Slice) -> Result<Request> {
        let atomic = Atomic::FetchAdd(add);
        self.post(rank, offset, Access::Atomic { old, atomic }, On::Cpu)
    }

    /// As [`fetch_add`](Window::fetch_add), posted by `stream`. [`Request::wait_on`] makes the
    /// stream wait for the former value.
    ///
    /// # Errors
    /// As [`fetch_add`](Window::fetch_add).
    pub fn fetch_add_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        add: u64,
        old: &Slice,
    ) -> Result<Request> {
        let (atomic, on) = (Atomic::FetchAdd(add), On::Stream(stream, None));
        self.post(rank, offset, Access::Atomic { old, atomic }, on)
    }

    /// Stores `swap` into the word at `offset` of the window of `rank` if its value is `compare`,
    /// and stores its former value into `old`, a slice of 8 bytes. Atomic as
    /// [`fetch_add`](Window::fetch_add).
    ///
    /// # Errors
    /// As [`fetch_add`](Window::fetch_add).
    pub fn compare_swap(
        &self,
        rank: u32,
        offset: usize,
        compare: u64,
        swap: u64,
        old: &Slice,
    ) -> Result<Request> {
        let atomic = Atomic::CompareSwap { compare, swap };
        self.post(rank, offset, Access::Atomic { old, atomic }, On::Cpu)
    }

    /// As [`compare_swap`](Window::compare_swap), posted by `stream`.
    ///
    /// # Errors
    /// As [`fetch_add`](Window::fetch_add).
    pub fn compare_swap_on(
        &self,
        stream: &Stream,
        rank: u32,
        offset: usize,
        compare: u64,
        swap: u64,
        old: &Slice,
    ) -> Result<Request> {
        let atomic = Atomic::CompareSwap { compare, swap };
        let on = On::Stream(stream, None);
        self.post(rank, offset, Access::Atomic { old, atomic }, on)
    }

    /// Waits on the CPU, at most `limit`, until the word at `offset` of this rank's own memory
    /// satisfies `condition` with `value`. The puts that precede the signal are visible then.
    /// `from` is the rank that stores the word: if it fails, the wait fails.
    ///
    /// # Errors
    /// - `Timeout` after `limit`, with the word's value, naming `from`: the call may be repeated.
    /// - `PeerFailed`, naming `from`, if it was given up and the signal has not arrived.
    /// - `Invalid` for a word outside the memory or not aligned to 8 bytes, for a rank outside the
    ///   job, and for a condition that no word satisfies.
    pub fn wait_signal(
        &self,
        from: u32,
        offset: usize,
        condition: Condition,
        value: u64,
        limit: Duration,
    ) -> Result<()> {
        let offset = offset as u64;
        let signal = Awaited::signal(&self.targets, from, offset, condition, value)?;
        let engine = self.context.engine();
        let _call = engine.observers.call(c"wait_signal", || signal.facts());
        engine.wait_word(&signal, limit)
    }

    /// Makes `stream` wait until the word at `offset` of this rank's own memory satisfies
    /// `condition` with `value`. The puts that precede the signal are visible to work that is
    /// enqueued on the stream behind the wait. `from` is the rank that stores the word.
    ///
    /// If `from` fails, or the stream has waited for [`Builder::timeout`](crate::Builder::timeout),
    /// the rank is given up: the library stores the status into [`Context::error_word`], and then
    /// `value` into the word, which releases the stream. [`Context::synchronize`] returns the
    /// failure.
    ///
    /// # Errors
    /// - As [`wait_signal`](Window::wait_signal), except `Timeout`.
    /// - `QueueFull` as configured by [`Builder::full`](crate::Builder::full);
    ///   `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    /// - `Unsupported` for a stream that is being captured into a graph, and for
    ///   [`Condition::Nor`] on a GPU whose streams do not have it.
    /// - Errors of gdsync.
    pub fn wait_signal_on(
        &self,
        stream: &Stream,
        from: u32,
        offset: usize,
        condition: Condition,
        value: u64,
    ) -> Result<()> {
        let offset = offset as u64;
        let signal = Awaited::signal(&self.targets, from, offset, condition, value)?;
        let engine = self.context.engine();
        let _call = engine.observers.call(c"wait_signal_on", || Facts {
            stream: Some(stream.id()),
            ..signal.facts()
        });
        engine.wait_word_on(stream, &signal)
    }

    /// Orders the puts of the CPU to `rank`, in all windows: later puts are visible after the
    /// earlier ones. It does not wait. It costs nothing where the connection keeps the order of puts
    /// ([`WordOrder::Plain`](crate::WordOrder::Plain)), and a round trip of the NIC elsewhere.
    /// Signals need no fence.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn fence(&self, rank: u32) -> Result<()> {
        let _call = self.context.observe(c"fence", Some(rank), None);
        let engine = self.context.engine();
        engine.fence(&self.targets, rank, &On::Cpu)
    }

    /// As [`fence`](Window::fence), for the puts of `stream`.
    ///
    /// # Errors
    /// As [`put`](Window::put).
    pub fn fence_on(&self, stream: &Stream, rank: u32) -> Result<()> {
        let _call = self.context.observe(c"fence_on", Some(rank), Some(stream));
        let engine = self.context.engine();
        engine.fence(&self.targets, rank, &On::Stream(stream, None))
    }

    /// Waits on the CPU, at most `limit`, until all earlier puts and signals of the CPU to this
    /// window are visible in the memory of their targets. Costs one READ to each rank that the CPU
    /// has put to: the completion of a WRITE says that the target's NIC has the bytes, and a READ
    /// behind it is executed when they are in memory.
    ///
    /// The target may use the bytes when the origin has reported the end of quiet, for instance by
    /// a message. If its memory is in the GPU, it calls
    /// [`Gpu::flush_remote_writes`](gdsync::Gpu::flush_remote_writes) first; a wait for a signal
    /// does that itself.
    ///
    /// # Errors
    /// After all ranks were asked: the first failure, which names its rank: `PeerFailed` if it was
    /// given up, `Timeout` after `limit`; others as [`put`](Window::put).
    pub fn quiet(&self, limit: Duration) -> Result<()> {
        let _call = self.context.observe(c"quiet", None, None);
        let (engine, mut requests) = (self.context.engine(), Vec::new());
        let asked = engine.quiet(&self.targets, On::Cpu, |key| {
            requests.push(Request::new(&self.context, key));
        });
        wait_all(&requests, limit)?;
        asked
    }

    /// Makes `stream` wait until all its earlier puts and signals to this window are visible in the
    /// memory of their targets, as [`quiet`](Window::quiet) does on the CPU.
    ///
    /// # Errors
    /// As [`put`](Window::put) and [`Request::wait_on`], for the first rank that fails; the stream
    /// waits for the other ranks.
    pub fn quiet_on(&self, stream: &Stream) -> Result<()> {
        let _call = self.context.observe(c"quiet_on", None, Some(stream));
        let engine = self.context.engine();
        let mut keys = mem::take(&mut engine.lock().quiets);
        let on = On::Stream(stream, None);
        let asked = engine.quiet(&self.targets, on, |key| keys.push(key));
        let mut waited = Ok(());
        for key in keys.drain(..) {
            waited = waited.and(Request::new(&self.context, key).wait_on(stream));
        }
        engine.lock().quiets = keys;
        waited.and(asked)
    }
}
