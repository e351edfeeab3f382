//! Lists of descriptors: sends, waits and word operations in one submission to a stream.
//!
//! Two passes. The first changes queue state and turns descriptors into [`Item`]s; whatever it
//! refuses is undone as a whole. The second turns items into memory operations or programs and
//! hands them to the runtime. Both work in buffers that are kept from call to call.

mod flushed;
mod lower;

use mlx5_prm::doorbell;
use std::cell::Cell;

use self::flushed::{By, Queues};
use self::lower::{Buffers, Item, Sent, equal, lower};
use super::verbs::{
    Completion, EndpointKind, Locked, Lowering, Qp, QpState, ReceiveRequest, SendRequest, Side,
    Timer, WaitOptions,
};
use crate::error::{Error, Kind, Result};
use crate::gpu::{self, Proof, Region, Span, Stream, Word32, Word64};
use crate::memop::completion::Entry;
use crate::memop::cost;
use crate::memop::post::Ring;
use crate::memop::program;
use crate::memop::{Condition, Inline, Op};
use crate::ring::fifo::PostMark;
use crate::ring::{Poster, RingMemory, Ticket};
use crate::status::Status;

/// One thing for a stream to do.
///
/// A list borrows the words, spans and bytes that it names until it is posted:
///
/// ```compile_fail,E0505
/// # use gdsync::gpu::Word64;
/// # use gdsync::rdma::{Descriptor, Qp};
/// fn mark(qp: &mut Qp, stream: &gdsync::Stream, word: Word64) -> gdsync::Result<()> {
///     let list = [Descriptor::WriteValue64 { word: &word, value: 1 }];
///     drop(word); // `list` borrows it
///     qp.post_on(stream, &list)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Descriptor<'a> {
    /// Ring for a prepared send.
    Send(SendRequest),
    /// Make a prepared receive available.
    Receive(ReceiveRequest),
    /// Stand still until a request has completed with success.
    Wait(Completion, WaitOptions),
    /// Stand still until a word passes.
    WaitValue32 {
        /// The word.
        word: &'a Word32,
        /// How it is compared.
        condition: Condition,
        /// With what.
        value: u32,
        /// Whether what devices wrote before is visible then.
        flush: bool,
    },
    /// As [`Descriptor::WaitValue32`] with 64 bits.
    WaitValue64 {
        /// The word.
        word: &'a Word64,
        /// How it is compared.
        condition: Condition,
        /// With what.
        value: u64,
        /// Whether what devices wrote before is visible then.
        flush: bool,
    },
    /// Store into a word, after everything the stream wrote before.
    WriteValue32 {
        /// The word.
        word: &'a Word32,
        /// What.
        value: u32,
    },
    /// As [`Descriptor::WriteValue32`] with 64 bits.
    WriteValue64 {
        /// The word.
        word: &'a Word64,
        /// What.
        value: u64,
    },
    /// Store bytes that are captured now. Address and length are multiples of 4.
    WriteMemory {
        /// Where.
        to: &'a Span,
        /// What; as long as `to`.
        data: &'a [u8],
    },
    /// What devices wrote to GPU memory so far is visible to what the stream does next.
    Flush,
    /// Does nothing on the stream. Tells the library that what the caller enqueues behind this list
    /// brings `word`, cyclically, to `value`: then the stream is known to have passed the waits
    /// for words in this list. Without, that shows only when the stream has nothing left to do,
    /// and until then it counts among those that wait.
    PassedBy {
        /// The word.
        word: &'a Word64,
        /// The value, or one cyclically greater.
        value: u64,
    },
}

impl Descriptor<'_> {
    /// Stand still until a request has completed with success.
    pub fn wait(completion: impl Into<Completion>) -> Self {
        Descriptor::Wait(completion.into(), WaitOptions::default())
    }

    /// As [`Descriptor::wait`], and what the NIC wrote to GPU memory for it is visible then, by
    /// the means that [`Device::consistency`](super::Device::consistency) names.
    pub fn wait_flushed(completion: impl Into<Completion>) -> Self {
        let options = WaitOptions {
            flush: true,
            timeout: None,
        };
        Descriptor::Wait(completion.into(), options)
    }
}

/// A wait that takes effect on queue state once it is enqueued.
#[derive(Clone, Copy, Debug)]
struct Waited {
    queue: usize,
    side: Side,
    waiter: usize,
    position: u64,
    timeout: Option<std::time::Duration>,
}

#[derive(Default)]
struct Scratch {
    items: Vec<Item>,
    waits: Vec<Waited>,
    undo: Vec<(usize, Side, PostMark)>,
    /// How it will show that the stream has passed the last wait; `None`: there is none.
    proof: Option<Proof>,
    buffers: Buffers,
}

thread_local! {
    /// Taken for the length of a call; a call that finds it taken (a rank that shares its thread
    /// with others) makes do with a new one.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Posts, waits and does word operations on `stream`, in the order of `list`, in one
/// submission where the runtime's limit allows. `queues` are the queue pairs that the list names.
///
/// # Errors
/// `Foreign` for a stream, word or request of another GPU or queue pair; `OutOfOrder`,
/// `NoSuchRequest` (also: a wait for something not posted), `Failed`, `WrongState` as for single
/// calls; `Unsupported` for a capturing stream or an operation that the runtime lacks; `Invalid`
/// for sizes and alignments. In all these cases nothing was posted. If the runtime fails in the
/// middle of a list that takes several submissions, the queue pairs named go into error.
pub fn post_on(stream: &Stream, queues: &mut [&mut Qp], list: &[Descriptor<'_>]) -> Result<()> {
    stream.check(stream.gpu(), OPERATION)?;
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let caps = stream.gpu().caps();
    let result = match flushed::by_others(caps) && list.iter().any(Descriptor::flushes) {
        false => run(
            stream,
            &Queues::named(queues),
            list,
            By::Stream,
            &mut scratch,
        ),
        true => flushed::with_flusher(stream, queues, |queues, by| {
            run(stream, queues, list, by, &mut scratch)
        }),
    };
    SCRATCH.set(Some(scratch));
    result
}

impl Qp {
    /// Posts, waits and does word operations on `stream`, all in one submission where the
    /// runtime's limit allows. Same as [`post_on`] with this queue pair alone.
    ///
    /// # Errors
    /// See [`post_on`].
    pub fn post_on(&mut self, stream: &Stream, list: &[Descriptor<'_>]) -> Result<()> {
        post_on(stream, &mut [self], list)
    }
}

const OPERATION: &str = "post list";

fn run(
    stream: &Stream,
    queues: &Queues<'_, '_>,
    list: &[Descriptor<'_>],
    by: By<'_>,
    s: &mut Scratch,
) -> Result<()> {
    s.items.clear();
    s.waits.clear();
    s.undo.clear();
    s.proof = None;
    let mut held = None;
    let decided = flushed::decide_all(stream, queues, list, by, s, &mut held)
        .and_then(|()| announce(queues, s, &mut held));
    drop(held);
    let kernel = decided.is_ok() && by_kernel(queues, s);
    let lowered = decided
        .and_then(|()| stream.admit(OPERATION, submissions(stream, s, kernel), s.proof.take()))
        .and_then(|()| lower(stream, &s.items, &mut s.buffers, kernel));
    match lowered {
        Ok(Sent::All) => {
            commit(queues, s);
            for queue in queues.all() {
                queue.core.expect_posts();
            }
            Ok(())
        }
        Ok(Sent::Part(e)) => {
            for queue in queues.all() {
                let ends = stream.gpu().runtime().ends();
                let mut state = queue.core.lock();
                state.torn = Some(ends);
                queue.core.fail(&mut state, Side::Send, Status::CLOSED);
            }
            Err(e)
        }
        Err(e) => {
            for (queue, side, mark) in s.undo.drain(..).rev() {
                let mut state = queues.get(queue).core.lock();
                match side {
                    Side::Send => state.send.restore(mark),
                    Side::Receive => state.recv.restore(mark),
                }
            }
            queues.take_back();
            Err(e)
        }
    }
}

/// Submissions that the list takes at most.
fn submissions(stream: &Stream, s: &Scratch, kernel: bool) -> u32 {
    /// Record and the halves of a doorbell.
    const GLUED: usize = 3;
    /// Room that a program is given up with.
    const ROOM: usize = 8;
    let caps = stream.gpu().caps();
    let operations: usize = s.items.iter().map(Item::operations).sum();
    let (limit, glued) = match kernel {
        true => (program::MAX_OPS, ROOM),
        false => (caps.batch_limit, GLUED),
    };
    let mut n = gpu::submissions(operations, limit, glued);
    if !(caps.nor && caps.ordered_writes) {
        // Waits and flushes may change between kernels and memory operations, each time anew.
        n += 2 * s.items.len() as u32;
    }
    n
}

/// Whether a list goes by a kernel. The queue pairs it names say so, or leave it to the cost.
fn by_kernel(queues: &Queues<'_, '_>, s: &Scratch) -> bool {
    let any = |lowering| queues.given().any(|qp| qp.lowering == lowering);
    if any(Lowering::Kernel) || queues.given().next().is_none() || any(Lowering::MemOps) {
        return any(Lowering::Kernel);
    }
    // Who will write a word of the application's is not known: it may need this GPU.
    let foreign = |item: &Item| matches!(item, Item::Op(op) if op.is_wait());
    if s.items.iter().any(foreign) || !s.waits.iter().all(|w| queues.get(w.queue).spin) {
        return false;
    }
    cost::kernel_wins(s.items.iter().map(Item::operations).sum())
}

fn find(queues: &Queues<'_, '_>, id: u64) -> Result<usize> {
    queues.given().position(|q| q.id == id).ok_or_else(|| {
        Error::new(
            OPERATION,
            Kind::Foreign,
            "a request of a queue pair that is not given",
        )
    })
}

fn check_region(stream: &Stream, region: &Region) -> Result<()> {
    if region.gpu().is(stream.gpu()) {
        return Ok(());
    }
    Err(Error::new(
        OPERATION,
        Kind::Foreign,
        format!("{region:?} with {stream:?}"),
    ))
}

/// The queue pair that is locked now: descriptors of one list mostly name the same.
type Held<'q> = Option<(usize, Locked<'q>)>;

fn hold<'q, 'h>(
    queues: &'q Queues<'_, '_>,
    queue: usize,
    held: &'h mut Held<'q>,
) -> &'h mut QpState {
    if held.as_ref().is_none_or(|(known, _)| *known != queue) {
        // One at a time: nobody may wait for a lock with another in hand.
        *held = None;
    }
    &mut held
        .get_or_insert_with(|| (queue, queues.get(queue).core.lock()))
        .1
}

fn decide<'q>(
    stream: &Stream,
    queues: &'q Queues<'_, '_>,
    descriptor: &Descriptor<'_>,
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    match *descriptor {
        Descriptor::Send(request) => {
            let queue = find(queues, request.queue)?;
            let state = hold(queues, queue, held);
            decide_send(stream, (queue, queues.get(queue), state), request, s)
        }
        Descriptor::Receive(request) => {
            let queue = find(queues, request.queue)?;
            let state = hold(queues, queue, held);
            decide_receive(stream, (queue, queues.get(queue), state), request, s)
        }
        Descriptor::Wait(completion, options) => {
            let queue = find(queues, completion.queue)?;
            let state = hold(queues, queue, held);
            decide_wait(
                stream,
                (queue, queues.get(queue), state),
                completion,
                options,
                s,
            )
        }
        Descriptor::WaitValue32 {
            word,
            condition,
            value,
            flush,
        } => {
            check_region(stream, word.region())?;
            s.proof = Some(Proof::Idle);
            s.items.push(Item::Op(Op::Wait32 {
                at: word.addr(),
                value,
                mask: u32::MAX,
                condition,
                flush,
            }));
            Ok(())
        }
        Descriptor::WaitValue64 {
            word,
            condition,
            value,
            flush,
        } => {
            check_region(stream, word.region())?;
            s.proof = Some(Proof::Idle);
            s.items.push(Item::Op(Op::Wait64 {
                at: word.addr(),
                value,
                mask: u64::MAX,
                condition,
                flush,
            }));
            Ok(())
        }
        Descriptor::WriteValue32 { word, value } => {
            check_region(stream, word.region())?;
            s.items.push(Item::Op(Op::Write32 {
                at: word.addr(),
                value,
                fenced: true,
            }));
            Ok(())
        }
        Descriptor::WriteValue64 { word, value } => {
            check_region(stream, word.region())?;
            s.items.push(Item::Op(Op::Write64 {
                at: word.addr(),
                value,
                fenced: true,
            }));
            Ok(())
        }
        Descriptor::WriteMemory { to, data } => {
            check_region(stream, to.region())?;
            if to.len() != data.len() || data.len() % 4 != 0 || to.addr().0 % 4 != 0 {
                let what = format!("{} bytes to {to:?}, in whole words of 4", data.len());
                return Err(Error::new(OPERATION, Kind::Invalid, what));
            }
            for (i, piece) in data.chunks(Inline::MAX).enumerate() {
                if let Some(data) = Inline::new(piece) {
                    s.items.push(Item::Op(Op::Copy {
                        at: to.addr().offset((i * Inline::MAX) as u64),
                        data,
                    }));
                }
            }
            Ok(())
        }
        Descriptor::Flush => {
            s.items.push(Item::Op(Op::Flush));
            Ok(())
        }
        Descriptor::PassedBy { word, value } => {
            check_region(stream, word.region())?;
            if let (Some(proof), Ok(mapped)) = (&mut s.proof, word.mapped()) {
                *proof = Proof::Word {
                    memory: word.region().downgrade(),
                    word: mapped,
                    value,
                };
            }
            Ok(())
        }
    }
}

/// Refuses unless the queue pair is of the stream's GPU, not in error, and knows the request.
fn check(stream: &Stream, qp: &Qp, state: &QpState, request: Completion) -> Result<()> {
    if !qp.core.gpu.is(stream.gpu()) {
        let what = format!("{stream:?} with {qp:?}");
        return Err(Error::new(OPERATION, Kind::Foreign, what));
    }
    if let Some(status) = state.failed() {
        return Err(Error::new(
            OPERATION,
            Kind::Failed(status),
            format!("{qp:?}"),
        ));
    }
    qp.known(state, request, OPERATION)
}

fn decide_send(
    stream: &Stream,
    (queue, qp, state): (usize, &Qp, &mut QpState),
    request: SendRequest,
    s: &mut Scratch,
) -> Result<()> {
    check(stream, qp, state, request.into())?;
    let mark = state.send.mark();
    let posted = state
        .send
        .post(Ticket(request.ticket), Poster::Stream(stream.id()))
        .map_err(|e| qp.refused(OPERATION, e))?;
    s.undo.push((queue, Side::Send, mark));
    let places = &qp.core.places;
    if posted.edge.is_some() {
        s.proof = Some(Proof::Idle);
    }
    state.rung_by_streams |= qp.core.kind == EndpointKind::Ring;
    let item = match qp.core.kind {
        EndpointKind::Ring => Item::Post(Ring {
            record: places.record.gpu.offset(doorbell::SND as u64),
            record_value: doorbell::record_value(posted.index),
            doorbell: places.doorbell.gpu,
            doorbell_value: u64::from_ne_bytes(posted.doorbell),
            edge: posted.edge.map(doorbell::record_value),
        }),
        EndpointKind::Proxy => {
            if posted.edge.is_some() {
                let before = equal(places.send.trigger.gpu, mark.posted() as u32);
                s.items.push(Item::Op(before));
            }
            Item::Op(Op::Write32 {
                at: places.send.trigger.gpu,
                value: state.send.fifo.posted() as u32,
                fenced: true,
            })
        }
    };
    if !s.items.last_mut().is_some_and(|last| last.absorb(&item)) {
        s.items.push(item);
    }
    Ok(())
}

fn decide_receive(
    stream: &Stream,
    (queue, qp, state): (usize, &Qp, &mut QpState),
    request: ReceiveRequest,
    s: &mut Scratch,
) -> Result<()> {
    check(stream, qp, state, request.into())?;
    let mark = state.recv.mark();
    let (index, edge) = state
        .recv
        .post(Ticket(request.ticket), Poster::Stream(stream.id()))
        .map_err(|e| qp.refused(OPERATION, e))?;
    s.undo.push((queue, Side::Receive, mark));
    if edge.is_some() {
        s.proof = Some(Proof::Idle);
    }
    let places = &qp.core.places;
    match qp.core.kind {
        EndpointKind::Ring => s.items.push(Item::PostReceive {
            record: places.record.gpu.offset(doorbell::RCV as u64),
            value: doorbell::record_value(index),
            edge: edge.map(doorbell::record_value),
        }),
        EndpointKind::Proxy => {
            if let Some(index) = edge {
                s.items
                    .push(Item::Op(equal(places.recv.trigger.gpu, index)));
            }
            s.items.push(Item::Op(Op::Write32 {
                at: places.recv.trigger.gpu,
                value: index,
                fenced: true,
            }));
        }
    }
    Ok(())
}

fn decide_wait(
    stream: &Stream,
    (queue, qp, state): (usize, &Qp, &mut QpState),
    completion: Completion,
    options: WaitOptions,
    s: &mut Scratch,
) -> Result<()> {
    check(stream, qp, state, completion)?;
    let (cq, posted, slot) = match completion.side {
        Side::Send => (
            &mut state.send.cq,
            state.send.fifo.posted(),
            state.send.fifo.slot(completion.ticket).map(|s| s.entry),
        ),
        Side::Receive => (
            &mut state.recv.cq,
            state.recv.fifo.posted(),
            state.recv.fifo.slot(completion.ticket).map(|s| s.entry),
        ),
    };
    if completion.ticket >= posted {
        let what = format!(
            "{qp:?}: a wait for request {}, which is not posted",
            completion.ticket
        );
        return Err(Error::new(OPERATION, Kind::NoSuchRequest, what));
    }
    let flush = options.flush && !crate::mutant::on(crate::mutant::Mutant::DroppedFlush);
    let position = match slot {
        // So old that its slot is used again: complete.
        None => None,
        Some(None) => {
            let what = format!("{qp:?}: request {} raises no completion", completion.ticket);
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        Some(Some(position)) => Some(position),
    };
    let Some(position) = position.filter(|p| !cq.is_behind(*p)) else {
        // Nothing to wait for; what it brought may still have to be made visible.
        if flush {
            s.items.push(Item::Op(Op::Flush));
        }
        return Ok(());
    };
    let places = qp.core.side(completion.side);
    let waiter = cq
        .waiter(stream.id())
        .map_err(|e| qp.refused(OPERATION, e))?;
    let spot = cq.spot(position);
    if options.timeout.is_some() {
        let (word, mark) = (4 * waiter, cq.next_mark(waiter));
        if places.arrived.cpu.load32(word) == mark {
            // Of 2^32 waits ago, or of none.
            places.arrived.cpu.store32(word, mark.wrapping_sub(1));
        }
        s.items.push(Item::Op(Op::Write32 {
            at: places.arrived.gpu.offset(word as u64),
            value: mark,
            fenced: true,
        }));
    }
    match qp.core.kind {
        EndpointKind::Ring => s.items.push(Item::Wait(Entry {
            word: places.cq.gpu.offset(spot.offset as u64),
            owner: spot.owner,
            first_lap: spot.first_lap,
            send: completion.side == Side::Send,
            flush,
        })),
        EndpointKind::Proxy => s.items.push(Item::Op(Op::Wait32 {
            at: places.done.gpu,
            value: (position as u32).wrapping_add(1),
            mask: u32::MAX,
            condition: Condition::Geq,
            flush,
        })),
    }
    s.waits.push(Waited {
        queue,
        side: completion.side,
        waiter,
        position,
        timeout: options.timeout,
    });
    Ok(())
}

/// Appends, for each waiter used, the mark that says it has passed.
fn announce<'q>(queues: &'q Queues<'_, '_>, s: &mut Scratch, held: &mut Held<'q>) -> Result<()> {
    for i in 0..s.waits.len() {
        let w = s.waits[i];
        let later = s.waits[i + 1..]
            .iter()
            .any(|l| l.queue == w.queue && l.side == w.side && l.waiter == w.waiter);
        if later {
            continue;
        }
        let qp = queues.get(w.queue);
        let state = hold(queues, w.queue, held);
        let cq = match w.side {
            Side::Send => &state.send.cq,
            Side::Receive => &state.recv.cq,
        };
        let places = qp.core.side(w.side);
        // Announcements come last, so this one speaks for every wait before.
        if qp.core.gpu.waiting().counts() {
            s.proof = Some(Proof::Mark {
                memory: qp.core.control.downgrade(),
                word: places.passed.cpu.part(4 * w.waiter, 4),
                count: cq.next_mark(w.waiter),
            });
        }
        s.items.push(Item::Mark {
            at: places.passed.gpu.offset(4 * w.waiter as u64),
            value: cq.next_mark(w.waiter),
        });
    }
    Ok(())
}

fn commit(queues: &Queues<'_, '_>, s: &mut Scratch) {
    for (i, w) in s.waits.iter().enumerate() {
        let later = s.waits[i + 1..]
            .iter()
            .any(|l| l.queue == w.queue && l.side == w.side && l.waiter == w.waiter);
        let mut state = queues.get(w.queue).core.lock();
        let state = &mut *state;
        let cq = match w.side {
            Side::Send => &mut state.send.cq,
            Side::Receive => &mut state.recv.cq,
        };
        cq.note_wait(w.waiter, w.position);
        if let Some(limit) = w.timeout {
            state.timers.push(Timer {
                side: w.side,
                waiter: w.waiter,
                position: w.position,
                mark: cq.next_mark(w.waiter),
                limit,
                since: None,
            });
        }
        // The mark was enqueued behind the last of the waiter's waits.
        if !later {
            cq.commit_mark(w.waiter);
        }
    }
}
