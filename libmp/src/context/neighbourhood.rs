//! [`Neighbourhood`]: the handle on an exchange with neighbours, and [`Neighbours`], which builds
//! it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::DevicePtr;

use super::Context;
use crate::error::Result;
use crate::neighbourhood::{Exchange, Neighbour};

/// A persistent exchange of data with any number of neighbours (MPI: persistent requests to all
/// neighbours, or a neighbourhood collective): the halo exchange of a stencil.
///
/// [`Context::neighbourhood`] builds it. Memory, addresses and keys are fixed then; a step of the
/// exchange allocates nothing and exchanges no addresses. Each step has three calls, in this order:
/// - [`ready_on`](Neighbourhood::ready_on): sends a ready word to all neighbours, which may then
///   write the data of this step here.
/// - [`send_on`](Neighbourhood::send_on): waits for the ready words of all neighbours, and sends.
/// - [`wait_on`](Neighbourhood::wait_on): waits for the data of all neighbours.
///
/// Each call is one submission to the stream for all neighbours, or a kernel and a submission where
/// pieces are copied. It is enqueued as a whole or not at all.
///
/// A program without work between these calls uses [`exchange_on`](Neighbourhood::exchange_on) for all three: it takes
/// less time of the CPU and of the GPU.
///
/// ```
/// use std::time::Duration;
///
/// use mp::gdsync::gpu::MemoryKind;
/// use mp::{Context, Neighbour};
///
/// /// A ring of ranks, each with 1000 cells and a ghost cell on each side.
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let (me, size) = (ctx.rank(), ctx.size());
///     let (left, right) = ((me + size - 1) % size, (me + 1) % size);
///     let field = ctx.alloc(MemoryKind::Device, 1002)?;
///     field.write(1, &[me as u8; 1000])?;
///
///     const LEFTWARDS: u32 = 0; // the tag of the data that moves to the left
///     const RIGHTWARDS: u32 = 1;
///     let to_left = Neighbour::new(left, LEFTWARDS, RIGHTWARDS)
///         .send(&field.slice(1, 1)?)
///         .receive(&field.slice(0, 1)?);
///     let to_right = Neighbour::new(right, RIGHTWARDS, LEFTWARDS)
///         .send(&field.slice(1000, 1)?)
///         .receive(&field.slice(1001, 1)?);
///     let halo = ctx.neighbourhood().neighbour(to_left).neighbour(to_right).build()?;
///
///     let stream = ctx.gpu().stream()?;
///     for _ in 0..10 {
///         halo.ready_on(&stream)?; // the ghost cells may be overwritten
///         // a kernel that computes the cells at the edges
///         halo.send_on(&stream)?;
///         // a kernel that computes the inner cells, while the data moves
///         halo.wait_on(&stream)?;
///     }
///     ctx.synchronize(&stream, Duration::from_secs(10))?; // returns the first failure
///     let mut ghosts = [0; 2];
///     field.read(0, &mut ghosts[..1])?;
///     field.read(1001, &mut ghosts[1..])?;
///     assert_eq!(ghosts, [left as u8, right as u8]);
///     drop(halo);
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
/// # Order and memory
/// The memory that is received may be overwritten between `ready_on` and the end of the wait. The
/// memory that is sent is read between `send_on` and the end of the wait: it may be written again
/// behind `wait_on`. A stream orders these calls with its kernels. If a program uses several
/// streams, it orders them by events, as it does for the memory; one stream makes both `send_on` and
/// `wait_on` of a step.
///
/// With [double buffering](Neighbours::double_buffered) the data arrives in memory of the library,
/// and the stream copies it to the pieces in `wait_on`. `ready_on` may then be called for the next
/// step before `wait_on` of this step, so that no neighbour waits for it.
///
/// Without double buffering, the NIC writes data that is received as one contiguous piece directly
/// into that piece; one kernel, for all neighbours, copies all other received data. The NIC gathers
/// what is sent in up to 30 pieces to a rank that is one neighbour, and what is sent in one piece
/// to a rank that is several; one kernel, for all neighbours, packs all other data.
///
/// `ready`, `send` and `wait` do the same by the CPU. A program may mix calls of the CPU and of
/// streams; one stream, or the CPU, makes both `send` and `wait` of a step.
///
/// # Failures
/// If a neighbour is given up ([failures](crate#failures)), the step fails with one error, which
/// names the rank, the tag under which this rank receives from it, and the step:
/// [`Context::synchronize`], [`Context::close`] or [`wait`](Neighbourhood::wait) returns it. The
/// waits of the stream are released. The data of the other neighbours is complete; the memory that
/// is received from the lost rank has undefined contents. Later steps end in the same way: nothing
/// is sent to the lost rank, the other neighbours complete, and the step fails. So the surviving
/// neighbours do not wait for each other while they find the loss.
///
/// A stream that has waited for a neighbour for [`Builder::timeout`](crate::Builder::timeout) gives
/// it up; a neighbour that answers has an eighth more.
///
/// # Lifetime
/// A neighbourhood holds its context and the memory of its pieces. Drop it when all its steps are
/// enqueued and the neighbours need no further step; the steps complete by themselves.
#[derive(Clone)]
pub struct Neighbourhood {
    context: Context,
    exchange: Arc<Exchange>,
}

impl fmt::Debug for Neighbourhood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<u32> = self.neighbours().collect();
        let step = self.step();
        write!(f, "neighbourhood with ranks {ranks:?}, after {step} steps")
    }
}

/// Builds a [`Neighbourhood`]: from [`Context::neighbourhood`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built without Neighbours::build"]
pub struct Neighbours {
    context: Context,
    all: Vec<Neighbour>,
    double: bool,
}

impl Context {
    /// Builds an exchange with neighbours. [`Neighbourhood`] has an example.
    pub fn neighbourhood(&self) -> Neighbours {
        Neighbours {
            context: self.clone(),
            all: Vec::new(),
            double: false,
        }
    }
}

impl Neighbours {
    /// Adds a neighbour. [`NULL_RANK`](crate::NULL_RANK) adds none.
    pub fn neighbour(mut self, neighbour: Neighbour) -> Neighbours {
        self.all.push(neighbour);
        self
    }

    /// Adds neighbours.
    pub fn neighbours(mut self, neighbours: impl IntoIterator<Item = Neighbour>) -> Neighbours {
        self.all.extend(neighbours);
        self
    }

    /// Sets whether the data of two steps may be in flight: `ready_on` of a step may precede
    /// `wait_on` of the step before. Default: no. It takes memory for the received data of two
    /// steps, and each step copies its data. The neighbours need not have the same setting.
    pub fn double_buffered(mut self, on: bool) -> Neighbours {
        self.double = on;
        self
    }

    /// Builds the neighbourhood. Collective among the neighbours: each of them calls this function,
    /// with this rank as a neighbour and the two tags in exchanged places. Two ranks that build
    /// several neighbourhoods with the same tags build them in the same order. All neighbours that
    /// are one rank are of one neighbourhood there. The call returns when the records of all
    /// neighbours (sizes, addresses and keys) have arrived.
    ///
    /// # Errors
    /// - `Invalid`, naming the rank, if this rank sends another number of bytes than the neighbour
    ///   receives, or receives another number than it sends; the reason has both numbers, and the
    ///   call of the neighbour fails in the same way.
    /// - `Invalid`, naming two neighbours that are one rank, if they are of two neighbourhoods there.
    /// - `Missing`, naming rank and tag, if a neighbour did not call this function within
    ///   [`Builder::timeout`](crate::Builder::timeout). Neighbours that have the record of this
    ///   rank may have succeeded.
    /// - `Invalid` for a rank outside the job, a rank that is named twice with the same tags, memory
    ///   of another context, more than 1 GiB for one neighbour, or a rank that is too many neighbours
    ///   for the send queue to it (21 by default).
    /// - `PeerFailed` if a neighbour was given up, naming it; `Protocol` if it sent an invalid
    ///   record.
    /// - `BootstrapLost` if the neighbours cannot be reached.
    /// - Errors of gdsync.
    pub fn build(self) -> Result<Neighbourhood> {
        let engine = self.context.engine();
        let exchange = engine.build_neighbourhood(self.all, self.double)?;
        Ok(Neighbourhood {
            exchange: Arc::new(exchange),
            context: self.context,
        })
    }
}

impl Neighbourhood {
    /// The other ranks that are neighbours, ascending, each once.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> + '_ {
        self.exchange
            .words
            .peers
            .iter()
            .map(|neighbour| neighbour.rank)
    }

    /// The number of steps whose send was posted.
    pub fn step(&self) -> u64 {
        self.exchange.step()
    }

    /// The GPU address of a 64-bit word in pinned memory, for kernels: the number of the last step
    /// whose data has arrived, as streams find it. A stream stores it in `wait_on`, before its later
    /// work. Valid as long as the neighbourhood.
    pub fn step_word(&self) -> DevicePtr {
        self.exchange.words.passed.addr()
    }

    /// Makes `stream` send the ready word of the next step to all neighbours: they may write its
    /// data here when the stream has reached the call.
    ///
    /// A stream that is being captured records the three calls of a step, in one capture, and each launch of
    /// the graph exchanges the data with all neighbours, which launch graphs as often
    /// ([messages in graphs](Context#messages-in-graphs)). Captured steps do not count in
    /// [`step`](Neighbourhood::step) and [`step_word`](Neighbourhood::step_word), one of them is in progress
    /// at a time also with double buffering, and they need mapped memory to all neighbours. Steps outside of
    /// graphs may be between the launches.
    ///
    /// The first call of a stream opens a connection to each neighbour, as
    /// [`Context::prepare_send`] does.
    ///
    /// # Errors
    /// Nothing is enqueued then.
    /// - `Busy` if the step before is not waited for; with double buffering, the step two before.
    /// - `PeerFailed`, naming the rank, if a neighbour is lost while the connection to it is opened;
    ///   `Timeout`, naming it, if it does not answer; `BootstrapLost` if it cannot be asked.
    /// - `QueueFull` if too many operations are in flight;
    ///   [`Builder::full`](crate::Builder::full) sets whether the call waits for room first.
    /// - `Unsupported` for a stream that is being captured into a graph, if a neighbour is not reached by
    ///   mapped memory; `Gdsync(Foreign)` for a stream of another GPU.
    /// - `Closed` if the GPU accepted only a part of an earlier call.
    /// - Errors of gdsync.
    pub fn ready_on(&self, stream: &Stream) -> Result<()> {
        let _call = self
            .context
            .observe(c"neighbours_ready_on", None, Some(stream));
        self.context.engine().ready_on(&self.exchange, stream)
    }

    /// Makes `stream` wait for the ready words of all neighbours for the next step, and send them
    /// its data.
    ///
    /// # Errors
    /// As [`ready_on`](Neighbourhood::ready_on); `Busy` if the step before is
    /// not waited for; `NoSuchRequest` if its ready words were not sent; `Unsupported` if pieces
    /// are packed and the GPU runs no kernels; `Gdsync(TooManyWaits)` if too many streams of the GPU
    /// wait.
    pub fn send_on(&self, stream: &Stream) -> Result<()> {
        let _call = self
            .context
            .observe(c"neighbours_send_on", None, Some(stream));
        self.context.engine().send_on(&self.exchange, stream)
    }

    /// Makes `stream` wait for the data of all neighbours, and for its own puts. Work that is
    /// enqueued behind it finds the data in place, and may write the memory that was sent.
    ///
    /// # Errors
    /// As [`send_on`](Neighbourhood::send_on); `NoSuchRequest` if the step was not sent; `Invalid`
    /// if the CPU or another stream has sent it.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        let _call = self
            .context
            .observe(c"neighbours_wait_on", None, Some(stream));
        let engine = self.context.engine();
        engine.wait_on_neighbours(&self.exchange, stream)
    }

    /// Makes `stream` execute a step: [`ready_on`](Neighbourhood::ready_on), [`send_on`](Neighbourhood::send_on)
    /// and [`wait_on`](Neighbourhood::wait_on) in one call. Work that is enqueued behind it finds the data in place,
    /// and may write the memory that was sent. If memory that is sent and memory that is received overlap, the
    /// contents of both are undefined.
    ///
    /// Neighbours may execute the step by the three calls. If the step has begun, this call executes only the calls
    /// that are missing.
    ///
    /// The step is one kernel if
    /// - there is another rank among the neighbours;
    /// - mapped memory reaches all neighbours ([`Path::Ipc`](crate::Path::Ipc)), and their kernels run beside those
    ///   of this rank;
    /// - this rank sends itself no data, or receives it as one contiguous piece without double buffering (other data
    ///   to itself is packed first, and a second kernel unpacks it);
    /// - the step has not begun, and the stream is not being captured.
    ///
    /// Otherwise it is the three calls.
    ///
    /// # Errors
    /// As the three calls. A part of the step that was enqueued before the failure stays enqueued; the call may be
    /// repeated, except on a stream that is being captured.
    pub fn exchange_on(&self, stream: &Stream) -> Result<()> {
        let _call = self
            .context
            .observe(c"neighbours_exchange_on", None, Some(stream));
        self.context.engine().exchange_on(&self.exchange, stream)
    }

    /// As [`ready_on`](Neighbourhood::ready_on), by the CPU: the neighbours may write the data from
    /// this call on.
    ///
    /// # Errors
    /// As [`ready_on`](Neighbourhood::ready_on).
    pub fn ready(&self) -> Result<()> {
        let _call = self.context.observe(c"neighbours_ready", None, None);
        self.context.engine().ready_by_cpu(&self.exchange)
    }

    /// Waits on the CPU, at most `limit`, for the ready words of all neighbours for the next step,
    /// and sends them its data. The memory must contain the data when this is called.
    ///
    /// # Errors
    /// `Timeout` after `limit`, naming the rank and the tag: nothing is sent, and the call may be
    /// repeated. Others as [`send_on`](Neighbourhood::send_on).
    pub fn send(&self, limit: Duration) -> Result<()> {
        let _call = self.context.observe(c"neighbours_send", None, None);
        self.context.engine().send_by_cpu(&self.exchange, limit)
    }

    /// Waits on the CPU, at most `limit`, for the data of all neighbours and for the own puts of the
    /// step. The data is in place when the call returns.
    ///
    /// # Errors
    /// - `Timeout` after `limit`, naming the rank and the tag: the call may be repeated.
    /// - `PeerFailed`, naming the first neighbour that was given up: the data of the others is in
    ///   place, and the step has ended.
    /// - `NoSuchRequest` if the step was not sent; `Invalid` if a stream has sent it.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let _call = self.context.observe(c"neighbours_wait", None, None);
        self.context.engine().wait_by_cpu(&self.exchange, limit)
    }
}
