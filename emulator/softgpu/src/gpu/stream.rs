//! Streams, into which the host enqueues operations.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gds_step::Time;

use super::graph::{Capture, Graph};
use super::{Core, Gpu};
use crate::backing::Backing;
use crate::event::{Event, Mark};
use crate::op::{DATA, Op, Target, Wait};
use crate::queue::{Line, Producer, Ring, Submission};
use crate::table::Cache;
use crate::{Cond, DevAddr, Dims, Error, Kernel, MemOp, Object, Stamp};

/// A queue of operations that the GPU runs in order. Clones share it. After the last clone is
/// dropped, enqueued operations still run.
///
/// Enqueueing takes no lock that the engine takes, allocates nothing, and blocks only when
/// the stream is full: it holds at most [`Config::stream_bound`](crate::Config::stream_bound)
/// unfinished submissions. Threads that enqueue on one stream take turns.
#[derive(Clone)]
pub struct Stream(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    gpu: Gpu,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Pairs with the engine's acquire load: if the engine observes it, it observes every
        // submission.
        self.shared.closed.store(true, Ordering::Release);
    }
}

/// The state that a stream's handles and the engine share.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) ring: Arc<Ring<Op>>,
    enqueue: Line<Mutex<Enqueue>>,
    /// Whether the stream is capturing: whether `enqueue` has a capture. Changed under that lock,
    /// and read relaxed: enqueuers ask for the capture itself.
    capturing: AtomicBool,
    /// The stream's number in messages. Relaxed: it is set before the first enqueue.
    number: AtomicU64,
    /// The kernel that runs, or that ran last.
    kernel: Mutex<Option<&'static str>>,
    /// The last handle was dropped. Set (release) once, read (acquire) by the engine.
    pub(crate) closed: AtomicBool,
}

/// The producer end of the ring; one thread uses it at a time.
struct Enqueue {
    producer: Producer<Op>,
    cache: Cache,
    /// The capture, if the stream is capturing.
    capture: Option<Capture>,
}

impl Shared {
    pub(crate) fn new(id: u64, producer: Producer<Op>) -> Shared {
        Shared {
            id,
            ring: Arc::clone(producer.ring()),
            enqueue: Line(Mutex::new(Enqueue {
                producer,
                cache: Cache::new(),
                capture: None,
            })),
            capturing: AtomicBool::new(false),
            number: AtomicU64::new(id),
            kernel: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(crate) fn kernel(&self) -> Option<&'static str> {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_kernel(&self, name: &'static str) {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = Some(name);
    }

    fn enqueue(&self) -> MutexGuard<'_, Enqueue> {
        let enqueue = &self.enqueue.0;
        enqueue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of submissions so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.enqueue().producer.submitted()
    }
}

const WIDE: &str = "64-bit memory operations";

/// Checks the operands of one submission and finds their memory.
pub(crate) struct Operands<'a> {
    core: &'a Core,
    memory: Lookup<'a>,
}

/// How the memory of operands is found.
enum Lookup<'a> {
    /// For operations that are enqueued: a free of the memory waits for them.
    Enqueued(&'a mut Cache),
    /// For operations of a graph, which keeps their memory.
    Recorded(&'a mut Vec<Arc<Backing>>),
}

impl Operands<'_> {
    #[inline]
    fn bytes(&mut self, object: Object, addr: DevAddr, len: usize) -> Result<Target, Error> {
        let table = &self.core.table;
        let ptr = match &mut self.memory {
            Lookup::Enqueued(cache) => cache.alias(table, addr, len),
            Lookup::Recorded(kept) => table.hold(addr, len).map(|(memory, ptr)| {
                if !kept.iter().any(|known| Arc::ptr_eq(known, &memory)) {
                    kept.push(memory);
                }
                ptr
            }),
        };
        match ptr {
            Some(ptr) => Ok(Target(ptr)),
            None => Err(Error::BadAddress { object, addr, len }),
        }
    }

    #[inline]
    fn word(&mut self, n: usize, addr: DevAddr, wide: bool) -> Result<Target, Error> {
        // Each case has a constant length.
        match wide {
            true => self.aligned(n, addr, 8),
            false => self.aligned(n, addr, 4),
        }
    }

    #[inline]
    fn aligned(&mut self, n: usize, addr: DevAddr, align: usize) -> Result<Target, Error> {
        let object = Object::MemOp(n);
        if !addr.raw().is_multiple_of(align as u64) {
            return Err(Error::Misaligned {
                object,
                addr,
                align,
            });
        }
        self.bytes(object, addr, align)
    }

    /// Puts the `n`th memory operation of a submission into the ring.
    #[inline]
    fn push(&mut self, to: &mut Submission<'_, Op>, n: usize, op: &MemOp) -> Result<(), Error> {
        let caps = &self.core.caps;
        let need = |has: bool, what| {
            if has {
                Ok(())
            } else {
                Err(Error::Unsupported { what })
            }
        };
        // Each arm writes its item directly into the ring, not through the stack.
        match *op {
            MemOp::Write {
                addr,
                value,
                wide,
                fenced,
            } => {
                need(!wide || caps.memops64, WIDE)?;
                to.push(Op::Write {
                    at: self.word(n, addr, wide)?,
                    value,
                    wide,
                    fenced,
                });
            }
            MemOp::Wait {
                addr,
                value,
                mask,
                cond,
                wide,
                flush,
            } => {
                need(!wide || caps.memops64, WIDE)?;
                need(
                    caps.nor || cond != Cond::Nor,
                    "waits with the condition NOR",
                )?;
                need(caps.flush || !flush, "waits that flush")?;
                to.push(Op::Wait(Wait {
                    at: self.word(n, addr, wide)?,
                    value,
                    mask,
                    cond,
                    wide,
                    flush,
                    cyclic: caps.cyclic,
                }));
            }
            MemOp::Copy { addr, ref data } => {
                if data.is_empty() {
                    return Ok(());
                }
                let at = self.bytes(Object::MemOp(n), addr, data.len())?;
                let len = data.len() as u8;
                to.push(Op::Inline { at, len });
                for part in data.chunks(DATA) {
                    let mut bytes = [0; DATA];
                    bytes[..part.len()].copy_from_slice(part);
                    to.push(Op::Data(bytes));
                }
            }
            MemOp::Fence => to.push(Op::Fence),
            MemOp::FlushRemote => {
                need(caps.flush, "flushing remote writes")?;
                to.push(Op::FlushRemote);
            }
        }
        Ok(())
    }
}

/// The number of ring items of a memory operation.
#[inline]
fn items(op: &MemOp) -> usize {
    match op {
        MemOp::Copy { data, .. } => 1 + data.len().div_ceil(DATA),
        _ => 1,
    }
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, gpu: Gpu) -> Stream {
        Stream(Arc::new(Handle { shared, gpu }))
    }

    /// The stream's identifier within its GPU.
    pub fn id(&self) -> u64 {
        self.0.shared.id
    }

    /// The stream's GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// Enqueues memory operations as one submission, all or none. Waits while the stream is full.
    /// An empty list is no submission. The iterator may create the operations during the enqueue,
    /// so no list of them has to exist.
    ///
    /// # Errors
    /// There are too many operations; the GPU lacks an operation; an address is misaligned or
    /// outside live memory; or the GPU has stopped.
    #[inline]
    pub fn submit(
        &self,
        ops: impl IntoIterator<Item = MemOp, IntoIter: ExactSizeIterator + Clone>,
    ) -> Result<(), Error> {
        let ops = ops.into_iter();
        let limit = self.0.gpu.core().caps.batch_limit;
        if ops.len() > limit {
            let (stream, ops) = (self.id(), ops.len());
            return Err(Error::BatchTooLong { stream, ops, limit });
        }
        let n = ops.clone().map(|op| items(&op)).sum();
        self.enqueue(n, |submission, operands| {
            for (n, op) in ops.clone().enumerate() {
                operands.push(submission, n, &op)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Enqueues a copy of `len` bytes in any kind of memory. Earlier writes of the stream are
    /// visible before it starts.
    ///
    /// # Errors
    /// A range is outside live memory, or the ranges overlap; otherwise as for
    /// [`submit`](Self::submit).
    pub fn copy(&self, dst: DevAddr, src: DevAddr, len: usize) -> Result<(), Error> {
        if len == 0 {
            return self.0.gpu.core().running();
        }
        if dst.raw().abs_diff(src.raw()) < len as u64 {
            return Err(Error::Overlap { dst, src, len });
        }
        self.enqueue(1, |submission, operands| {
            let to = operands.bytes(Object::CopyTo, dst, len)?;
            let from = operands.bytes(Object::CopyFrom, src, len)?;
            submission.push(Op::Copy { to, from, len });
            Ok(())
        })?;
        Ok(())
    }

    /// Enqueues a fill of `len` bytes.
    ///
    /// # Errors
    /// The range is outside live memory; otherwise as for [`submit`](Self::submit).
    pub fn fill(&self, dst: DevAddr, byte: u8, len: usize) -> Result<(), Error> {
        if len == 0 {
            return self.0.gpu.core().running();
        }
        self.enqueue(1, |submission, operands| {
            let to = operands.bytes(Object::Fill, dst, len)?;
            submission.push(Op::Fill { to, len, byte });
            Ok(())
        })?;
        Ok(())
    }

    /// Enqueues a kernel. `args` are the bytes of its parameters, copied now. The GPU does not
    /// check addresses in them; their memory must live until the launch is enqueued.
    ///
    /// # Errors
    /// The length of `args` is not the kernel's parameter size; otherwise as for
    /// [`submit`](Self::submit).
    pub fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<(), Error> {
        kernel.check_args(args.len())?;
        let mut launch = Some(self.0.gpu.core().launches.take(kernel, dims, args));
        self.enqueue(1, |submission, _| {
            if let Some(launch) = launch.take() {
                submission.push(Op::Launch(launch));
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Records `event` at this position in the stream.
    ///
    /// # Errors
    /// The stream is capturing; otherwise as for [`submit`](Self::submit).
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        let upto = self.enqueue(1, |submission, _| {
            submission.push(Op::Record);
            Ok(())
        })?;
        let ring = Arc::clone(&self.0.shared.ring);
        event.set(Mark { ring, upto });
        Ok(())
    }

    /// Enqueues a stamp, which notes the time at which the stream reaches it; `None` if the stream
    /// is more than half full, so that stamps do not take the room of the caller's work.
    ///
    /// # Errors
    /// The stream is capturing; otherwise as for [`submit`](Self::submit).
    pub fn stamp(&self) -> Result<Option<Stamp>, Error> {
        let core = self.0.gpu.core();
        if self.pending() > core.stream_bound / 2 {
            return Ok(None);
        }
        let stamp = Stamp::new(self.0.gpu.clock());
        self.enqueue(1, |submission, _| {
            submission.push(Op::Stamp(stamp.clone()));
            Ok(())
        })?;
        Ok(Some(stamp))
    }

    /// Makes the stream wait until the position that `event` marks now is reached, in whichever
    /// stream it is.
    ///
    /// # Errors
    /// The stream is capturing; otherwise as for [`submit`](Self::submit).
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        let own = &self.0.shared.ring;
        let Some(mark) = event.mark().filter(|m| !Arc::ptr_eq(&m.ring, own)) else {
            return self.check();
        };
        self.enqueue(1, |submission, _| {
            submission.push(Op::WaitEvent {
                ring: Arc::clone(&mark.ring),
                upto: mark.upto,
            });
            Ok(())
        })?;
        Ok(())
    }

    /// Starts a capture. Until its end, memory operations, copies, fills and kernels go into a
    /// graph and do not run; each call is checked as if it enqueued them. Operations that a graph
    /// cannot contain (events, stamps, other graphs) and [`synchronize`](Self::synchronize) are
    /// refused with [`Error::Capturing`].
    ///
    /// # Errors
    /// The stream is already capturing, or the GPU has stopped.
    pub fn begin_capture(&self) -> Result<(), Error> {
        let shared = &self.0.shared;
        let mut enqueue = shared.enqueue();
        self.check()?;
        enqueue.capture = Some(Capture::default());
        shared.capturing.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the capture, and returns the graph of its operations.
    ///
    /// # Errors
    /// The stream is not capturing.
    pub fn end_capture(&self) -> Result<Graph, Error> {
        let shared = &self.0.shared;
        let mut enqueue = shared.enqueue();
        let capture = enqueue.capture.take();
        shared.capturing.store(false, Ordering::Relaxed);
        drop(enqueue);
        let not = Error::NotCapturing { stream: self.id() };
        let capture = capture.ok_or(not)?;
        Ok(Graph::new(Arc::clone(self.0.gpu.core()), capture))
    }

    /// Enqueues the operations of a graph, in order, as one submission; see [`Graph::launch`].
    pub(crate) fn launch_graph(&self, graph: &Graph) -> Result<(), Error> {
        if !graph.is_of(self.0.gpu.core()) {
            return Err(Error::OtherGpu { stream: self.id() });
        }
        if graph.is_empty() {
            return self.check();
        }
        let ring = &self.0.shared.ring;
        self.enqueue(2, |submission, _| {
            // Refused before the graph changes.
            if self.is_capturing() {
                return Err(Error::Capturing { stream: self.id() });
            }
            let mark = Mark {
                ring: Arc::clone(ring),
                upto: submission.number(),
            };
            if let Some(Mark { ring, upto }) = graph.set_last(mark)
                && !Arc::ptr_eq(&ring, &self.0.shared.ring)
            {
                submission.push(Op::WaitEvent { ring, upto });
            }
            submission.push(Op::Graph(graph.recorded()));
            Ok(())
        })?;
        Ok(())
    }

    /// Sets the stream's number in messages.
    pub fn set_number(&self, number: u64) {
        self.0.shared.number.store(number, Ordering::Relaxed);
    }

    /// Whether the stream is capturing.
    pub fn is_capturing(&self) -> bool {
        self.0.shared.capturing.load(Ordering::Relaxed)
    }

    /// Whether everything enqueued so far has completed and is visible.
    pub fn query(&self) -> bool {
        self.pending() == 0
    }

    /// The number of submissions that have not completed.
    pub fn pending(&self) -> usize {
        let submitted = self.0.shared.submitted();
        // The ring may have retired later submissions meanwhile.
        submitted.saturating_sub(self.0.shared.ring.retired()) as usize
    }

    /// The maximum number of unfinished submissions; see
    /// [`Config::stream_bound`](crate::Config::stream_bound).
    pub fn bound(&self) -> usize {
        self.0.gpu.core().stream_bound
    }

    /// Waits until all enqueued operations have completed and are visible (returns `true`), or the
    /// deadline has passed (returns `false`).
    ///
    /// # Errors
    /// The stream is capturing, or the GPU has stopped.
    pub fn synchronize(&self, deadline: Option<Time>) -> Result<bool, Error> {
        self.check()?;
        let core = self.0.gpu.core();
        let ring = &self.0.shared.ring;
        let target = self.0.shared.submitted();
        let env = self.0.gpu.env();
        let mut done = false;
        env.wait_until(deadline, &mut || {
            done = ring.retired() >= target;
            done || core.running().is_err()
        });
        if !done {
            core.running()?;
        }
        Ok(done)
    }

    /// Whether the state of the stream or of the GPU refuses operations.
    fn check(&self) -> Result<(), Error> {
        self.0.gpu.core().running()?;
        if self.is_capturing() {
            return Err(Error::Capturing { stream: self.id() });
        }
        Ok(())
    }

    /// Enqueues the items of `fill` as a submission of at most `items` items, or records them if
    /// the stream is capturing. Returns the number of submissions so far.
    #[inline]
    fn enqueue(
        &self,
        items: usize,
        mut fill: impl FnMut(&mut Submission<'_, Op>, &mut Operands<'_>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let shared = &*self.0.shared;
        let (core, env) = (self.0.gpu.core(), self.0.gpu.env());
        loop {
            let mut guard = shared.enqueue();
            core.running()?;
            let Enqueue {
                producer,
                cache,
                capture,
            } = &mut *guard;
            if let Some(capture) = capture {
                capture.record(shared.id, items, |submission, kept| {
                    let memory = Lookup::Recorded(kept);
                    fill(submission, &mut Operands { core, memory })
                })?;
                return Ok(producer.submitted());
            }
            let submitted = match producer.begin(items) {
                Some(mut submission) => {
                    let memory = Lookup::Enqueued(cache);
                    fill(&mut submission, &mut Operands { core, memory })?;
                    Some(submission.publish())
                }
                None => None,
            };
            drop(guard);
            if let Some(submitted) = submitted {
                env.ring();
                return Ok(submitted);
            }
            // No lock is held during the wait, in which other actors step.
            env.wait_until(None, &mut || {
                core.running().is_err() || shared.enqueue().producer.begin(items).is_some()
            });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.id())
            .field("pending", &self.pending())
            .finish()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.id)
    }
}
