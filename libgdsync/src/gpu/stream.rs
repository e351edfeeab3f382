//! Streams of the application, and the calls that enqueue work on them.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use gds_step::Mutex;
use zerocopy::{Immutable, IntoBytes};

use super::event::Event;
use super::graph::Recording;
use super::runtime::{Left, StreamHandle};
use super::timeline::Work;
use super::waiting::{Proof, Waiting};
use super::{Dims, Gpu, Kernel, MemoryKind, Span, Word64, next_id};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Entry, Transfer};
#[cfg(feature = "internals")]
use crate::memop::Batch;

/// The maximum number of submissions that `operations` are split into, if up to `glued` operations
/// must stay together.
pub(crate) fn submissions(operations: usize, limit: usize, glued: usize) -> u32 {
    let filled = (limit + 1).saturating_sub(glued).max(1);
    if operations < filled {
        return 1;
    }
    u32::try_from(1 + operations / filled).unwrap_or(u32::MAX)
}

/// A stream of the application (CUDA: `CUstream`). Work that is enqueued on it runs in order. A
/// clone is a handle on the same stream.
///
/// [`Gpu::stream`] creates a stream, [`Gpu::cuda_stream`] adopts one. Calls enqueue work and return
/// before the work has run; they refuse a stream of another GPU. Under graph capture
/// ([`Stream::begin_capture`]) kernels, copies and word operations go into the graph, and all other
/// calls are refused. Once the last clone is dropped, the library makes no call on the
/// stream any more, even if work is in flight: the application may destroy the stream.
///
/// A stream that waits executes nothing else and holds a hardware channel of its GPU: see
/// [`Gpu::max_waiting_streams`]. On CUDA and HIP it accepts 1,000 submissions; more are refused with
/// `QueueFull`, because the driver would block the caller. On a software GPU any stream accepts
/// 1,024 submissions by default; one more blocks the caller, unless it calls
/// [`Stream::check_room`] first.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::gpu::{Condition, MemoryKind};
/// use gdsync::rdma::{Descriptor, post_on};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let memory = gpu.alloc(MemoryKind::Pinned, 64)?;
/// let (gate, done) = (memory.word32(0)?, memory.word32(4)?);
/// let stream = gpu.stream()?;
/// let list = [
///     Descriptor::wait_value(&gate, Condition::Geq, 1),
///     Descriptor::write_value(&done, 7),
/// ];
/// post_on(&stream, &mut [], &list)?; // returns at once
/// assert_eq!(done.load()?, 0);
/// gate.store(1)?;
/// assert!(stream.synchronize(Duration::from_secs(10))?);
/// assert_eq!(done.load()?, 7);
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    inner: Arc<StreamInner>,
    /// Whether this is a handle of the application; `false` for the stream that a [`WeakStream`]
    /// lends.
    counted: bool,
}

/// A weak reference to a stream: the application may drop its handles and destroy the stream.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct WeakStream(Stream);

pub(crate) struct StreamInner {
    id: u64,
    gpu: Gpu,
    handle: Arc<dyn StreamHandle>,
    /// The number of the application's handles. Decremented with release and read with acquire
    /// under the lock of `gone`, so that the end of the stream is ordered after every use by a
    /// handle.
    handles: AtomicUsize,
    /// Locked while the stream is used without a handle, and while the last handle is dropped.
    gone: Mutex<Option<Left>>,
    recording: Recording,
}

impl StreamInner {
    /// Handles the drop of the application's last handle.
    #[cold]
    fn leave(&self) {
        let mut gone = self.gone.lock();
        // The stream may have been adopted again meanwhile.
        if gone.is_some() || self.handles.load(Ordering::Acquire) != 0 {
            return;
        }
        self.gpu.0.streams.fetch_sub(1, Ordering::Relaxed);
        let left = self.handle.leave();
        match &left {
            Left::Ours => {}
            Left::Done => self.gpu.waiting().leave(self.id, None),
            Left::Busy(end) => self.gpu.waiting().leave(self.id, Some(Arc::clone(end))),
        }
        *gone = Some(left);
        drop(gone);
        // The owner's drop is foreign code: it runs outside the lock.
        drop(self.handle.release());
    }
}

impl Clone for Stream {
    #[inline]
    fn clone(&self) -> Stream {
        if self.counted {
            // Relaxed: a handle exists, so the count cannot become 0 meanwhile.
            self.inner.handles.fetch_add(1, Ordering::Relaxed);
        }
        Stream {
            inner: Arc::clone(&self.inner),
            counted: self.counted,
        }
    }
}

impl Drop for Stream {
    #[inline]
    fn drop(&mut self) {
        if self.counted && self.inner.handles.fetch_sub(1, Ordering::Release) == 1 {
            self.inner.leave();
        }
    }
}

/// A stream borrowed from a [`WeakStream`]. The drop of the last handle waits until this value is
/// dropped.
#[doc(hidden)]
pub struct Lent<'a> {
    stream: &'a Stream,
    _gone: MutexGuard<'a, Option<Left>>,
}

impl Deref for Lent<'_> {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        self.stream
    }
}

impl WeakStream {
    /// The stream's number; see [`Stream::id`].
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Borrows the stream; `None` if the application's last handle on it is dropped. Under capture
    /// it accepts only [`Stream::launch`].
    pub fn lend(&self) -> Option<Lent<'_>> {
        let gone = self.0.inner.gone.lock();
        gone.is_none().then_some(Lent {
            stream: &self.0,
            _gone: gone,
        })
    }

    /// Whether the application's last handle is dropped and all enqueued work has run. Streams of a
    /// lost GPU have ended. On any other error the answer is `false`.
    pub fn has_ended(&self) -> bool {
        let inner = &self.0.inner;
        let ended = match &*inner.gone.lock() {
            None => return false,
            Some(Left::Done) => return true,
            Some(Left::Ours) => inner.handle.is_idle(),
            Some(Left::Busy(end)) => end.is_done(),
        };
        ended.unwrap_or_else(|e| e.kind() == Kind::DeviceLost)
    }

    /// An event that is done when this stream has run all work enqueued so far; `None`: it has. This does not
    /// wait for room in the stream.
    ///
    /// # Errors
    /// Those of [`Stream::record`]; `QueueFull` also if the stream does not wait.
    pub fn end(&self) -> Result<Option<Event>> {
        let inner = &self.0.inner;
        Ok(match &*inner.gone.lock() {
            None | Some(Left::Ours) => {
                Waiting::check_full(&self.0, "record event")?;
                Some(self.0.record()?)
            }
            Some(Left::Done) => None,
            Some(Left::Busy(end)) => Some(Event::new(inner.gpu.clone(), Arc::clone(end))),
        })
    }

    /// Makes `stream` wait until this stream has run all work enqueued so far.
    ///
    /// # Errors
    /// Those of [`WeakStream::end`] and [`Stream::wait_event`].
    pub fn precede(&self, stream: &Stream) -> Result<()> {
        match self.end()? {
            Some(event) => stream.wait_event(&event),
            None => Ok(()),
        }
    }
}

/// The application's streams that have a [`Stream`] now. Each has only one, so that the library
/// knows the order of the work that several handles enqueue on it.
#[derive(Default)]
pub(crate) struct Adopted(Mutex<Vec<Weak<StreamInner>>>);

impl Adopted {
    /// The stream with the native handle `raw`; `make` creates it if it is not known.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(&self, raw: *mut c_void, make: impl FnOnce() -> Result<Stream>) -> Result<Stream> {
        let mut known = self.0.lock();
        for inner in known.iter().filter_map(Weak::upgrade) {
            // A stream without handles may have been destroyed, and its address reused for another.
            let gone = inner.gone.lock();
            if inner.handle.raw() == raw && gone.is_none() {
                inner.handles.fetch_add(1, Ordering::Relaxed);
                drop(gone);
                let counted = true;
                return Ok(Stream { inner, counted });
            }
        }
        let made = make()?;
        known.retain(|s| s.upgrade().is_some_and(|inner| inner.gone.lock().is_none()));
        known.push(Arc::downgrade(&made.inner));
        Ok(made)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {:?}", self.id(), self.gpu())
    }
}

impl Stream {
    pub(crate) fn new(gpu: Gpu, handle: Arc<dyn StreamHandle>) -> Stream {
        let id = next_id();
        handle.set_number(id);
        gpu.0.streams.fetch_add(1, Ordering::Relaxed);
        let inner = StreamInner {
            id,
            gpu,
            handle,
            handles: AtomicUsize::new(1),
            gone: Mutex::default(),
            recording: Recording::default(),
        };
        Stream {
            inner: Arc::new(inner),
            counted: true,
        }
    }

    /// A weak reference, which does not keep a handle on the stream.
    #[doc(hidden)]
    #[inline]
    pub fn downgrade(&self) -> WeakStream {
        WeakStream(Stream {
            inner: Arc::clone(&self.inner),
            counted: false,
        })
    }

    /// The stream's number in traces and errors.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The GPU that runs the stream.
    pub fn gpu(&self) -> &Gpu {
        &self.inner.gpu
    }

    pub(super) fn handle(&self) -> &Arc<dyn StreamHandle> {
        &self.inner.handle
    }

    pub(super) fn recording(&self) -> &Recording {
        &self.inner.recording
    }

    /// Whether its word operations go into a graph by kernels, because captures do not record them.
    #[inline]
    pub(crate) fn records_kernels(&self) -> bool {
        !self.gpu().caps().captures && self.inner.recording.is_on()
    }

    /// Whether it is borrowed from a [`WeakStream`].
    pub(super) fn is_lent(&self) -> bool {
        !self.counted
    }

    /// Refuses a stream of another GPU, and a stream under graph capture.
    #[inline]
    pub(crate) fn check(&self, gpu: &Gpu, operation: &'static str) -> Result<()> {
        match self.gpu().is(gpu) && !self.is_capturing()? {
            true => Ok(()),
            false => Err(self.refusal(gpu, operation)),
        }
    }

    #[cold]
    fn refusal(&self, gpu: &Gpu, operation: &'static str) -> Error {
        let (kind, what) = match self.gpu().is(gpu) {
            false => (
                Kind::Foreign,
                format!("{self:?} does not belong to {gpu:?}"),
            ),
            true => (
                Kind::Unsupported,
                format!(
                    "{self:?} is being captured into a graph, which cannot contain this; end the \
                     capture first"
                ),
            ),
        };
        Error::new(operation, kind, what)
    }

    /// Whether the stream is under graph capture: enqueued work goes into a graph and does not run.
    ///
    /// # Errors
    /// `System`, `DeviceLost` if the runtime cannot answer.
    pub fn is_capturing(&self) -> Result<bool> {
        self.handle().is_capturing()
    }

    /// Whether all work enqueued so far has run. Does not block.
    ///
    /// # Errors
    /// `System` if the stream failed, `DeviceLost` if the GPU did.
    pub fn is_idle(&self) -> Result<bool> {
        self.handle().is_idle()
    }

    /// Enqueues word operations.
    ///
    /// # Errors
    /// `Unsupported` if the application captures the stream by other calls than
    /// [`Stream::begin_capture`], or the runtime lacks an operation; `TooManyWaits` if `batch` has a wait and too many streams of the GPU wait already;
    /// `QueueFull` if the stream waits and holds the maximum number of submissions. After each of
    /// these errors nothing is enqueued. `System` if the runtime refuses, `DeviceLost` if the GPU
    /// is lost.
    ///
    /// # Safety
    /// Every address in `batch` is in memory of this GPU that stays allocated until the stream has
    /// run the batch (under capture: until the graph is dropped and its launches have run), and no other code relies on the values there. (Operations on
    /// [`Word32`](super::Word32) and [`Span`] in a list need no promise.)
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub unsafe fn submit(&self, batch: &Batch) -> Result<()> {
        const OPERATION: &str = "submit batch";
        self.check_recordable(OPERATION)?;
        let waits = batch.ops().iter().any(|op| op.is_wait());
        let limit = self.gpu().caps().batch_limit;
        let n = submissions(batch.len(), limit, batch.longest_glued());
        self.admit(OPERATION, n, waits.then_some(Proof::Idle))?;
        let mut scratch = Batch::with_capacity(batch.len() + 8);
        self.gpu()
            .submit(self, &mut batch.clone(), &mut scratch, &mut false)
    }

    /// Enqueues a kernel, behind all earlier work of the stream. `args` is its parameter structure,
    /// or the bytes of it, and is copied before the call returns. A kernel behind a wait for
    /// received data needs no fence to see the data. On a stream under capture the kernel goes into
    /// the graph, also if the application captures by calls of its own.
    ///
    /// ```
    /// use gdsync::gpu::{KernelImage, MemoryKind};
    /// use zerocopy::{Immutable, IntoBytes};
    ///
    /// static KERNELS: KernelImage = gdsync::kernel_image!("gds_kernels");
    ///
    /// /// The parameters of `gds_fill`, as its source declares them.
    /// #[derive(IntoBytes, Immutable)]
    /// #[repr(C)]
    /// struct Fill {
    ///     at: u64,
    ///     len: u64,
    ///     seed: u64,
    /// }
    ///
    /// # fn main() -> gdsync::Result<()> {
    /// # let gpu = gdsync::Gpu::soft()?;
    /// let fill = gpu.load(&KERNELS)?.kernel("gds_fill")?; // before any stream waits
    /// let memory = gpu.alloc(MemoryKind::Device, 64)?;
    /// let stream = gpu.stream()?;
    /// let args = Fill { at: memory.addr().0, len: 64, seed: 1 };
    /// // SAFETY: the parameters are those of the kernel, and the memory outlives it.
    /// unsafe { stream.launch(&fill, gpu.dims_for(64), &args)? };
    /// assert!(stream.synchronize(std::time::Duration::from_secs(10))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A structure with padding is refused, because the bytes of the padding have no value:
    ///
    /// ```compile_fail,E0277
    /// #[derive(zerocopy::IntoBytes, zerocopy::Immutable)]
    /// #[repr(C)]
    /// struct Scale {
    ///     numbers: u64,
    ///     factor: f32, // 4 bytes of padding follow
    /// }
    /// ```
    ///
    /// # Safety
    /// `args` has the size and the layout of the kernel's parameter structure. The kernel uses its
    /// arguments as its language allows: pointers are valid on this GPU until it has run, and no
    /// other code relies on the memory that it overwrites. Under capture this holds for every launch
    /// of the graph.
    ///
    /// # Errors
    /// `Invalid` for a shape or argument size that the runtime refuses, `Foreign` for a kernel of
    /// another runtime or, on CUDA, of another GPU, `QueueFull` if the stream waits and holds the
    /// maximum number of submissions, `System` if the runtime refuses, `DeviceLost` if the GPU is lost.
    pub unsafe fn launch<A>(&self, kernel: &Kernel, dims: Dims, args: &A) -> Result<()>
    where
        A: IntoBytes + Immutable + ?Sized,
    {
        self.launch_counted("launch kernel", kernel, dims, args.as_bytes(), None)
    }

    /// Enqueues a kernel that may start before the work in front of it has ended, as
    /// [`Stream::launch`] does with [`Dims::dependent`].
    ///
    /// # Safety
    /// As for [`Stream::launch`], also while the work in front of the kernel runs: until its
    /// `griddepcontrol.wait` the kernel uses no memory that this work reads or writes.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    #[doc(hidden)]
    pub unsafe fn launch_dependent<A>(&self, kernel: &Kernel, dims: Dims, args: &A) -> Result<()>
    where
        A: IntoBytes + Immutable + ?Sized,
    {
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, dims.dependent(), args) }
    }

    /// Enqueues a kernel that waits for a store by another party, as [`Stream::launch`] does. The
    /// stream counts as waiting until the word of `passed` reaches its value (compared cyclically) or
    /// the stream is idle. The kernel must store the value into the word when its waits are over.
    ///
    /// The word may be in device memory that the CPU cannot map. Then a copy engine reads it, as
    /// [`Region::read`](super::Region::read) does, when another stream needs the wait slot and this
    /// one is not idle. A call that only enqueues does not read it. If the word's memory is freed,
    /// or the read fails, the stream counts as waiting until it is idle.
    ///
    /// Under capture, a launch of the graph counts as waiting until its stream is idle.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    ///
    /// # Errors
    /// As [`Stream::launch`]; `Foreign` for a word of another GPU; `TooManyWaits` if too many
    /// streams of the GPU wait already; `Unsupported` under capture if `passed` names a word, which
    /// reaches its value once, or if the application captures by other calls than
    /// [`Stream::begin_capture`].
    pub unsafe fn launch_waiting<A>(
        &self,
        kernel: &Kernel,
        dims: Dims,
        args: &A,
        passed: Option<(&Word64, u64)>,
    ) -> Result<()>
    where
        A: IntoBytes + Immutable + ?Sized,
    {
        const OPERATION: &str = "launch kernel";
        let mut proof = Proof::Idle;
        if let Some((word, value)) = passed {
            if !word.region().gpu().is(self.gpu()) {
                let what = format!("{:?} is not on the GPU of {self:?}", word.region());
                return Err(Error::new(OPERATION, Kind::Foreign, what));
            }
            proof = Proof::by_word(word, value);
        }
        match passed {
            // A graph may run many times.
            Some(_) => self.check(self.gpu(), OPERATION)?,
            None => self.check_recordable(OPERATION)?,
        }
        self.launch_counted(OPERATION, kernel, dims, args.as_bytes(), Some(proof))
    }

    /// Enqueues a kernel as one submission; a proof marks one that waits. Its blocks are recorded if they may be
    /// resident while the stream waits, and limited if it is flexible.
    fn launch_counted(
        &self,
        operation: &'static str,
        kernel: &Kernel,
        mut dims: Dims,
        args: &[u8],
        wait: Option<Proof>,
    ) -> Result<()> {
        let mut _held = None;
        if dims.dependent || wait.is_some() {
            if self.recording().is_on()
                && let Some(in_graph) = self.record_blocks(dims)?
            {
                dims = in_graph;
            } else {
                let waiting = self.gpu().waiting();
                (dims, _held) = waiting.share(self, operation, dims, wait.is_some())?;
            }
        }
        self.admit(operation, 1, wait)?;
        self.launch_observed(kernel, dims, args)
    }

    /// Enqueues one of the library's kernels.
    ///
    /// # Errors
    /// `Unsupported` if the runtime runs no kernels; other errors as [`Stream::launch`].
    pub(crate) fn launch_own(&self, entry: Entry, dims: Dims, args: &[u8]) -> Result<()> {
        let kernel = self.gpu().own_kernel(entry).ok_or_else(|| {
            let what = format!("{:?} runs no kernels, which this call needs", self.gpu());
            Error::new("lower to a kernel", Kind::Unsupported, what)
        })?;
        self.launch_observed(kernel, dims, args)
    }

    /// Counts `n` more submissions; a proof marks submissions that may make the stream wait.
    ///
    /// # Errors
    /// `TooManyWaits`, `QueueFull`: see [`Stream::launch_waiting`].
    #[inline]
    pub(crate) fn admit(&self, operation: &'static str, n: u32, wait: Option<Proof>) -> Result<()> {
        if self.recording().is_on() && self.records(n, wait.is_some())? {
            return Ok(());
        }
        self.gpu().waiting().admit(self, operation, n, wait)
    }

    /// Checks that the stream can take `n` more submissions now, so that the caller does not start
    /// a sequence that it cannot finish. A copy, a launch and an event are one submission each, and
    /// so is a list that is not split. On a GPU that does not compare cyclically, each counts as
    /// three: a list may consist of operations, a kernel that waits, and operations. Only a stream
    /// that waits has a limit.
    ///
    /// # Errors
    /// `QueueFull`, with the limit, if the stream waits and has no room for `n` submissions.
    pub fn check_room(&self, n: u32) -> Result<()> {
        self.check_submissions(match self.gpu().caps().cyclic {
            true => n,
            false => n.saturating_mul(3),
        })
    }

    /// As [`Stream::check_room`], for a caller that has counted the kernels that wait.
    #[doc(hidden)]
    pub fn check_submissions(&self, n: u32) -> Result<()> {
        if self.recording().is_on() && self.records(0, false)? {
            return Ok(());
        }
        self.gpu().waiting().check(self, "enqueue", n)
    }

    /// As [`Stream::check_room`] of one submission, but also refuses if the stream is full and does not wait.
    #[doc(hidden)]
    pub fn check_free(&self) -> Result<()> {
        Waiting::check_full(self, "enqueue")?;
        self.check_room(1)
    }

    /// Calls `enqueue` while the stream counts as waiting, and returns its result. For a caller
    /// that enqueues work which it cannot undo, and then a wait: the wait is not refused with
    /// `TooManyWaits`.
    ///
    /// # Errors
    /// `TooManyWaits` if too many streams of the GPU wait already; `enqueue` is not called then.
    pub fn hold_wait<T>(&self, enqueue: impl FnOnce() -> T) -> Result<T> {
        if self.recording().is_on() && self.records(0, false)? {
            return Ok(enqueue());
        }
        let waiting = self.gpu().waiting();
        waiting.hold(self, "enqueue wait")?;
        let enqueued = enqueue();
        waiting.release(self);
        Ok(enqueued)
    }

    /// Enqueues a copy between two spans of equal length that do not overlap. A copy within host
    /// memory runs as a kernel on CUDA and HIP, because the driver would block the caller until the
    /// stream reaches the copy. So does a copy of host memory that has several registrations,
    /// because the driver refuses it.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ, `Foreign` for memory of another GPU, `Unsupported` if the
    /// application captures the stream by other calls than [`Stream::begin_capture`], `QueueFull` as for [`Stream::launch`]; `System`, `DeviceLost` if
    /// the runtime refuses.
    pub fn copy(&self, to: &Span, from: &Span) -> Result<()> {
        /// Threads per block of the copy kernel, and its maximum number of blocks.
        const SHAPE: (u32, u64) = (256, 32);
        if to.len() != from.len() {
            let what = format!(
                "the source has {} bytes and the destination {} bytes; both must be equal",
                from.len(),
                to.len()
            );
            return Err(Error::new("enqueue copy", Kind::Invalid, what));
        }
        for span in [to, from] {
            if !span.region().gpu().is(self.gpu()) {
                let what = format!("{span:?} is not on the GPU of {self:?}");
                return Err(Error::new("enqueue copy", Kind::Foreign, what));
            }
        }
        self.check_recordable("enqueue copy")?;
        self.keep(to.region());
        self.keep(from.region());
        self.admit("enqueue copy", 1, None)?;
        let transfer = Transfer {
            to: to.addr(),
            from: from.addr(),
            len: to.len() as u64,
        };
        let spans = [to, from];
        let host = |span: &&Span| span.region().kind() == MemoryKind::Pinned;
        let blocks = spans.iter().all(host) && self.gpu().runtime().host_copy_blocks();
        if blocks || !spans.iter().all(|span| span.is_whole()) {
            let blocks = transfer.len.div_ceil(16 * u64::from(SHAPE.0));
            let dims = Dims::linear(blocks.clamp(1, SHAPE.1) as u32, SHAPE.0);
            return self.launch_own(Entry::Transfer, dims, transfer.bytes());
        }
        let work = || Work::Copy(transfer.len);
        self.observed(work, |handle| handle.copy(&transfer))
    }

    /// Records an event at the current end of the stream: it is done when all work enqueued so far
    /// has run.
    ///
    /// # Errors
    /// `Unsupported` if the stream is under capture; `QueueFull` as for [`Stream::launch`];
    /// `System` if the runtime refuses.
    pub fn record(&self) -> Result<Event> {
        self.check(self.gpu(), "record event")?;
        self.admit("record event", 1, None)?;
        let handle = self.handle().record()?;
        Ok(Event::new(self.gpu().clone(), handle))
    }

    /// Makes the stream wait until `event` is done: work that is enqueued from now on runs after
    /// it. The event may be of another GPU of the same runtime.
    ///
    /// # Errors
    /// `Foreign` for an event of another runtime; `Unsupported`, `TooManyWaits`, `QueueFull` as for
    /// [`Stream::launch_waiting`]; `System` if the runtime refuses.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        if event.gpu().runtime().type_id() != self.gpu().runtime().type_id() {
            let what = format!("the {event:?} belongs to another runtime than {self:?}");
            return Err(Error::new("wait for event", Kind::Foreign, what));
        }
        self.check(self.gpu(), "wait for event")?;
        let wait = (!event.is_done()?).then_some(Proof::Idle);
        self.admit("wait for event", 1, wait)?;
        self.observed(|| Work::Event, |handle| handle.wait_event(event.handle()))
    }

    /// Blocks the CPU until all work enqueued so far has run: `true`; or until `limit` has passed:
    /// `false`, and the work continues. A failed request does not show here, because it releases
    /// the stream: check [`Qp::error`](crate::rdma::Qp::error).
    ///
    /// # Errors
    /// `System` if the stream failed, `DeviceLost` if the GPU did.
    pub fn synchronize(&self, limit: Duration) -> Result<bool> {
        let host = self.gpu().host();
        self.handle().synchronize(&**host, Some(host.now() + limit))
    }
}
