//! Lists of descriptors: sends, waits and word operations in one submission to a stream.
//!
//! A list takes two passes. The first changes queue state and converts descriptors into operations;
//! a refusal there is undone as a whole. The second submits them to the runtime, as memory
//! operations or as programs. Both passes use buffers that are kept from call to call.

mod descriptor;
mod flushed;
mod submit;
#[cfg(test)]
mod tests;

use mlx5_prm::doorbell;
use std::cell::Cell;
use std::time::Duration;

pub use self::descriptor::{Descriptor, Word, WordRef};
use self::flushed::{By, Queues};
use self::submit::{Buffers, ROOM, Sent, is_by_kernel, may_need_kernel, submit};
use super::verbs::{
    Completion, Locked, Lowering, Qp, QpState, ReceiveRequest, RungBy, SendRequest, Side, Timer,
};
use crate::error::{Error, Kind, Result};
use crate::gpu::{self, Proof, Region, Stream};
use crate::memop::Width::Bits32;
use crate::memop::completion::{self, Entry};
use crate::memop::post::{self, Ring};
use crate::memop::{Batch, Caps, Condition, Inline, Op, Role, cost, legal, program};
use crate::mutant::{self, Mutant};
use crate::nic::SharedAddr;
use crate::ring::fifo::PostMark;
use crate::ring::{Poster, RingMemory, Ticket};
use crate::status::Status;

/// A wait that changes queue state once it is enqueued.
#[derive(Clone, Copy, Debug)]
struct Waited {
    queue: usize,
    side: Side,
    waiter: usize,
    position: u64,
    timeout: Option<Duration>,
}

impl Waited {
    /// Whether no later wait is by the same waiter.
    fn is_last(&self, later: &[Waited]) -> bool {
        let same =
            |l: &Waited| l.queue == self.queue && l.side == self.side && l.waiter == self.waiter;
        !later.iter().any(same)
    }
}

#[derive(Default)]
struct Scratch {
    /// The operations of the stream.
    list: Batch,
    waits: Vec<Waited>,
    undo: Vec<(usize, Side, PostMark)>,
    /// The proof that the stream has passed the last wait; `None`: the list has no wait.
    proof: Option<Proof>,
    /// The proof that the stream has passed its earlier waits, of a list without waits.
    shown: Option<Proof>,
    buffers: Buffers,
}

thread_local! {
    /// Taken for the duration of a call. A call that finds it taken (ranks that share one thread)
    /// uses a new one.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Posts, waits and does word operations on `stream`, in the order of `list`, in one submission if
/// the runtime's limit allows. `queues` are the queue pairs that the list names; none for a list of
/// word operations. The call returns when the list is enqueued; it does not wait for the stream.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::rdma::{Descriptor, Work, post_on};
/// # use gdsync::{gpu::MemoryKind, rdma::{Access, Device, QpConfig}};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let config = QpConfig::default();
/// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(&b.address())?;
/// # b.connect(&a.address())?;
/// # let memory = pd.register(&gpu.alloc(MemoryKind::Device, 64)?, Access::ALL)?;
/// # let stream = gpu.stream()?;
/// let recv = b.prepare_receive(&[memory.sge(32, 32)])?;
/// let send = a.prepare(&Work::send(&[memory.sge(0, 32)]).signaled())?;
/// let list = [
///     Descriptor::Receive(recv),
///     Descriptor::Send(send),
///     Descriptor::wait(send),
///     Descriptor::wait_flushed(recv),
/// ];
/// post_on(&stream, &mut [&mut a, &mut b], &list)?; // one submission for both queue pairs
/// assert!(stream.synchronize(Duration::from_secs(10))?);
/// assert_eq!((a.error(), b.error()), (None, None)); // a failure would have released the stream
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// After each of these errors nothing is posted:
///
/// - `Foreign` for a stream, word or request of another GPU or queue pair.
/// - `OutOfOrder` if an earlier request of a queue is neither posted nor aborted.
/// - `NoSuchRequest` for a request that is posted or aborted already, and for a wait for a request
///   that is not posted.
/// - `Invalid` for a wait for an unsignaled request, and for sizes and alignments.
/// - `Failed` if a queue pair is in error.
/// - `Unsupported` for a stream under capture (a list without queue pairs goes into the graph if
///   [`Stream::begin_capture`] began the capture), for an operation that the runtime lacks, and for a
///   flush without a policy ([`Device::consistency`](crate::rdma::Device::consistency)).
/// - `TooManyWaits` if the list waits and too many streams of the GPU wait already.
/// - `QueueFull` if the stream waits and holds the maximum number of submissions, or if more than 8
///   streams wait for completions of one queue.
/// - `System`, `DeviceLost` if the runtime refuses.
///
/// If the runtime fails in the middle of a list that takes several submissions, the queue pairs
/// named go into error ([`Status::CLOSED`]).
pub fn post_on(stream: &Stream, queues: &mut [&mut Qp], list: &[Descriptor<'_>]) -> Result<()> {
    let caps = stream.gpu().caps();
    let by_others = flushed::by_others(caps) && list.iter().any(Descriptor::flushes);
    match queues.is_empty() && !by_others {
        true => stream.check_recordable(OPERATION)?,
        false => stream.check(stream.gpu(), OPERATION)?,
    }
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = match by_others {
        false => run(
            stream,
            &Queues::of_list(queues),
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
    /// Posts, waits and does word operations on `stream`, as [`post_on`] does for this queue pair
    /// alone. [`Descriptor`] has an example.
    ///
    /// # Errors
    /// As [`post_on`].
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
    s.list.clear();
    s.waits.clear();
    s.undo.clear();
    s.proof = None;
    s.shown = None;
    let mut held = None;
    let lowered = flushed::lower_all(stream, queues, list, by, s, &mut held)
        .and_then(|()| append_marks(queues, s, &mut held));
    drop(held);
    let submitted = lowered.and_then(|()| {
        let kernel = by_kernel(queues, s) || stream.records_kernels();
        let n = submissions(stream, &s.list, kernel);
        stream.admit(OPERATION, n, s.proof.take())?;
        if let Some(proof) = s.shown.take() {
            stream.gpu().waiting().show(stream, proof);
        }
        submit(stream, &mut s.list, &mut s.buffers, kernel)
    });
    match submitted {
        Ok(Sent::All) => {
            note_waits(queues, s);
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
                state.work(side).0.restore(mark);
            }
            queues.take_back();
            Err(e)
        }
    }
}

/// The maximum number of submissions of the list.
fn submissions(stream: &Stream, list: &Batch, kernel: bool) -> u32 {
    /// The doorbell record and the two halves of a doorbell stay together.
    const GLUED: usize = 3;
    let caps = stream.gpu().caps();
    let (operations, limit, glued) = match kernel {
        true => (program::operations(list), program::MAX_OPS, ROOM),
        false if caps.memops64 => (list.cost(), caps.batch_limit, GLUED),
        false => (2 * list.cost(), caps.batch_limit, GLUED),
    };
    let mut n = gpu::submissions(operations, limit, glued);
    if kernel || may_need_kernel(list, caps) {
        // Kernels and memory operations alternate around operations that only one of them supports.
        let alone = |i: &usize| match list.ops()[*i] {
            Op::Flush | Op::Wait { flush: true, .. } => true,
            _ => is_by_kernel(list, *i, caps),
        };
        n += 2 * (0..list.len()).filter(alone).count() as u32;
    }
    n
}

/// Whether a kernel runs the list. Its queue pairs fix that, or leave it to the cost.
fn by_kernel(queues: &Queues<'_, '_>, s: &Scratch) -> bool {
    let any = |lowering| queues.given().any(|qp| qp.lowering == lowering);
    if any(Lowering::Kernel) || queues.given().next().is_none() || any(Lowering::MemOps) {
        return any(Lowering::Kernel);
    }
    // The writer of an application's word is unknown: it may need this GPU.
    cost::kernel_wins(s.list.cost())
        && !s.list.waits_for_others()
        && s.waits.iter().all(|w| queues.get(w.queue).spin)
}

fn find(queues: &Queues<'_, '_>, id: u64, from: usize) -> Result<usize> {
    queues.find(id, from).ok_or_else(|| {
        let what = "a request belongs to a queue pair that was not passed to the call, or that was \
                    reset since";
        Error::new(OPERATION, Kind::Foreign, what)
    })
}

fn check_region(stream: &Stream, region: &Region) -> Result<()> {
    if region.gpu().is(stream.gpu()) {
        return Ok(());
    }
    let what = format!("{region:?} is not on the GPU of {stream:?}");
    Err(Error::new(OPERATION, Kind::Foreign, what))
}

/// The queue pair that is locked now: the descriptors of one list mostly name the same.
type Held<'q> = Option<(usize, Locked<'q>)>;

fn hold<'q, 'h>(
    queues: &'q Queues<'_, '_>,
    queue: usize,
    held: &'h mut Held<'q>,
) -> &'h mut QpState {
    if held.as_ref().is_none_or(|(known, _)| *known != queue) {
        // One lock at a time: no thread may wait for a lock while it holds another.
        *held = None;
    }
    &mut held
        .get_or_insert_with(|| (queue, queues.get(queue).core.lock()))
        .1
}

/// A queue pair of the list, by its index there, and its state.
type Found<'h> = (usize, &'h Qp, &'h mut QpState);

#[inline]
fn found<'q, 'h>(queues: &'q Queues<'_, '_>, id: u64, held: &'h mut Held<'q>) -> Result<Found<'h>> {
    let from = held.as_ref().map_or(0, |(queue, _)| *queue);
    let queue = find(queues, id, from)?;
    Ok((queue, queues.get(queue), hold(queues, queue, held)))
}

/// Whether two descriptors are sends of one queue pair.
fn are_sends_of_one(a: &Descriptor<'_>, b: &Descriptor<'_>) -> bool {
    matches!((a, b), (Descriptor::Send(a), Descriptor::Send(b)) if a.queue == b.queue)
}

/// Lowers one descriptor, or several sends of one queue pair.
#[inline]
fn lower_run<'q>(
    stream: &Stream,
    queues: &'q Queues<'_, '_>,
    run: &[Descriptor<'_>],
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    let [Descriptor::Send(first), ..] = run else {
        let mut each = run.iter();
        return each.try_for_each(|descriptor| lower_one(stream, queues, descriptor, s, held));
    };
    let requests = run.iter().filter_map(|descriptor| match descriptor {
        Descriptor::Send(request) => Some(*request),
        _ => None,
    });
    lower_sends(stream, found(queues, first.queue, held)?, requests, s)
}

fn lower_one<'q>(
    stream: &Stream,
    queues: &'q Queues<'_, '_>,
    descriptor: &Descriptor<'_>,
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    match *descriptor {
        Descriptor::Send(request) => {
            let found = found(queues, request.queue, held)?;
            lower_sends(stream, found, [request].into_iter(), s)
        }
        Descriptor::Receive(request) => {
            lower_receive(stream, found(queues, request.queue, held)?, request, s)
        }
        Descriptor::Wait {
            completion,
            flush,
            timeout,
        } => {
            let found = found(queues, completion.queue, held)?;
            lower_wait(stream, found, completion, flush, timeout, s)
        }
        _ => lower_words(stream, descriptor, s),
    }
}

/// Lowers a descriptor that names no queue pair.
fn lower_words(stream: &Stream, descriptor: &Descriptor<'_>, s: &mut Scratch) -> Result<()> {
    if let Some(region) = descriptor.region() {
        check_region(stream, region)?;
        stream.keep(region);
    }
    let caps = stream.gpu().caps();
    match *descriptor {
        Descriptor::WaitValue {
            word,
            condition,
            value,
            flush,
        } => {
            let (width, at) = word.at();
            let wait = Op::wait(width, at, condition, value);
            s.proof = Some(Proof::Idle);
            push_wait(&mut s.list, wait, flush && !caps.ordered_writes, caps);
        }
        Descriptor::WaitCount { word, count, flush } => {
            let wait = Op::wait_count(word.addr(), count, caps);
            s.proof = Some(Proof::Idle);
            push_wait(&mut s.list, wait, flush && !caps.ordered_writes, caps);
        }
        Descriptor::WriteValue { word, value } => {
            let (width, at) = word.at();
            s.list.push(Op::write(width, at, value));
        }
        Descriptor::WriteMemory { to, data } => {
            if to.len() != data.len() || data.len() % 4 != 0 || to.addr().0 % 4 != 0 {
                let what = match to.len() == data.len() {
                    false => format!(
                        "{} bytes of data are written to {to:?}; both lengths must be equal",
                        data.len()
                    ),
                    true => format!(
                        "{to:?} do not consist of whole words; address and length must be multiples \
                         of 4 bytes"
                    ),
                };
                return Err(Error::new(OPERATION, Kind::Invalid, what));
            }
            for (i, piece) in data.chunks(Inline::MAX).enumerate() {
                if let Some(data) = Inline::new(piece) {
                    let at = to.addr().offset((i * Inline::MAX) as u64);
                    s.list.push(Op::Copy { at, data });
                }
            }
        }
        Descriptor::Flush if caps.ordered_writes => {}
        Descriptor::Flush => s.list.push(Op::Flush),
        Descriptor::PassedBy { word, value } => {
            let proof = match &mut s.proof {
                Some(proof) => proof,
                None => s.shown.insert(Proof::Idle),
            };
            *proof = Proof::by_word(word, value);
        }
        Descriptor::Send(_) | Descriptor::Receive(_) | Descriptor::Wait { .. } => {}
    }
    Ok(())
}

/// Appends a wait. Of a wait that may become part of a program, the flush is an operation behind it.
fn push_wait(list: &mut Batch, wait: Op, flush: bool, caps: &Caps) {
    let apart = flush && legal::is_by_kernel(&wait, caps);
    list.push(wait.flushing(flush && !apart));
    if apart {
        list.push(Op::Flush);
    }
}

/// Refuses a queue pair that is of another GPU than the stream, is in error, or does not know the
/// request.
fn check(stream: &Stream, qp: &Qp, state: &QpState, request: Completion) -> Result<()> {
    if !qp.core.gpu.is(stream.gpu()) {
        let what = format!("{stream:?} is not on the GPU of {qp:?}");
        return Err(Error::new(OPERATION, Kind::Foreign, what));
    }
    if let Some(status) = state.failed() {
        return Err(qp.in_error(OPERATION, status));
    }
    qp.known(state, request, OPERATION)
}

/// Lowers requests of one queue pair that follow each other: one doorbell covers them. There is at
/// least one.
#[inline]
fn lower_sends(
    stream: &Stream,
    (queue, qp, state): Found<'_>,
    requests: impl Iterator<Item = SendRequest>,
    s: &mut Scratch,
) -> Result<()> {
    let mark = state.send.fifo.mark();
    s.undo.push((queue, Side::Send, mark));
    let mut edge = None;
    let mut last = None;
    for request in requests {
        match last {
            None => check(stream, qp, state, request.into())?,
            Some(_) => qp.known(state, request.into(), OPERATION)?,
        }
        let poster = Poster::Stream(stream.id());
        let posted = state.send.post(Ticket(request.ticket), poster);
        let posted = posted.map_err(|e| qp.refused(OPERATION, e))?;
        edge = edge.or(posted.edge);
        last = Some(posted);
    }
    let Some(posted) = last else {
        return Ok(());
    };
    let addrs = &qp.core.addrs;
    if edge.is_some() {
        s.proof = Some(Proof::Idle);
    }
    state.rung_by_streams |= qp.core.rung_by == RungBy::Poster;
    let record = addrs.record.gpu.offset(doorbell::SND as u64);
    let record_value = doorbell::record_value(posted.index);
    let before = edge.map(doorbell::record_value);
    match qp.core.rung_by {
        RungBy::Poster if addrs.reads_doorbell => post::push(
            &mut s.list,
            &Ring {
                record,
                record_value,
                doorbell: addrs.doorbell.gpu,
                doorbell_value: u64::from_ne_bytes(posted.doorbell),
                edge: before,
            },
        ),
        RungBy::Poster => post::push_record(&mut s.list, record, record_value, before),
        RungBy::CpuThread => {
            let edge = edge.map(|_| mark.posted() as u32);
            let value = state.send.fifo.posted() as u32;
            trigger(&mut s.list, addrs.send.trigger, value, edge);
        }
    }
    Ok(())
}

/// Appends the store that makes the CPU thread write the doorbell: its word gets `value`, once it
/// has the value of the stream that posted last.
fn trigger(list: &mut Batch, word: SharedAddr, value: u32, edge: Option<u32>) {
    if let Some(before) = edge {
        list.push(Op::wait(Bits32, word.gpu, Condition::Eq, before));
    }
    list.push(Op::write(Bits32, word.gpu, value));
}

fn lower_receive(
    stream: &Stream,
    (queue, qp, state): Found<'_>,
    request: ReceiveRequest,
    s: &mut Scratch,
) -> Result<()> {
    check(stream, qp, state, request.into())?;
    let mark = state.recv.fifo.mark();
    let (index, edge) = state
        .recv
        .post(Ticket(request.ticket), Poster::Stream(stream.id()))
        .map_err(|e| qp.refused(OPERATION, e))?;
    s.undo.push((queue, Side::Receive, mark));
    if edge.is_some() {
        s.proof = Some(Proof::Idle);
    }
    let addrs = &qp.core.addrs;
    match qp.core.rung_by {
        RungBy::Poster => post::push_record(
            &mut s.list,
            addrs.record.gpu.offset(doorbell::RCV as u64),
            doorbell::record_value(index),
            edge.map(doorbell::record_value),
        ),
        RungBy::CpuThread => trigger(&mut s.list, addrs.recv.trigger, index, edge),
    }
    Ok(())
}

fn lower_wait(
    stream: &Stream,
    (queue, qp, state): Found<'_>,
    completion: Completion,
    flush: bool,
    timeout: Option<Duration>,
    s: &mut Scratch,
) -> Result<()> {
    check(stream, qp, state, completion)?;
    let (fifo, cq) = state.work(completion.side);
    if completion.ticket >= fifo.posted() {
        let what = format!(
            "request {} of {qp:?} is not posted; post it before a stream waits for it",
            completion.ticket
        );
        return Err(Error::new(OPERATION, Kind::NoSuchRequest, what));
    }
    let caps = stream.gpu().caps();
    let flush = flush && !caps.ordered_writes && !mutant::on(Mutant::DroppedFlush);
    let position = match fifo.slot(completion.ticket).map(|slot| slot.entry) {
        // The request is so old that its slot is reused: it is complete.
        None => None,
        Some(None) => {
            let what = format!(
                "request {} of {qp:?} raises no completion; prepare it with `signaled`",
                completion.ticket
            );
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        Some(Some(position)) => Some(position),
    };
    let Some(position) = position.filter(|p| !cq.is_behind(*p)) else {
        // The request is complete, so the stream does not wait; its payload may still need a flush.
        if flush {
            s.list.push(Op::Flush);
        }
        return Ok(());
    };
    let addrs = qp.core.side(completion.side);
    let waiter = cq
        .waiter(stream.id())
        .map_err(|e| qp.refused(OPERATION, e))?;
    let spot = cq.spot(position);
    if timeout.is_some() {
        let (word, mark) = (4 * waiter, cq.next_mark(waiter));
        if addrs.arrived.cpu.load32(word) == mark {
            // A value of a wait 2^32 waits ago, or of none.
            addrs.arrived.cpu.store32(word, mark.wrapping_sub(1));
        }
        let arrived = addrs.arrived.gpu.offset(word as u64);
        s.list.push(Op::write(Bits32, arrived, mark));
    }
    match qp.core.rung_by {
        RungBy::Poster => {
            let entry = Entry {
                word: addrs.cq.gpu.offset(spot.offset as u64),
                owner: spot.owner,
                first_lap: spot.first_lap,
                send: completion.side == Side::Send,
                flush,
            };
            completion::push(&mut s.list, &entry, caps);
        }
        RungBy::CpuThread => {
            let (at, done) = (addrs.done.gpu, position + 1);
            let wait = match !caps.cyclic && caps.memops64 {
                true => Op::wait_count(at, done, caps),
                false => Op::wait(Bits32, at, Condition::Geq, done as u32),
            };
            push_wait(&mut s.list, wait, flush, caps);
        }
    }
    s.waits.push(Waited {
        queue,
        side: completion.side,
        waiter,
        position,
        timeout,
    });
    Ok(())
}

/// Appends the final mark of each waiter used.
fn append_marks<'q>(
    queues: &'q Queues<'_, '_>,
    s: &mut Scratch,
    held: &mut Held<'q>,
) -> Result<()> {
    for i in 0..s.waits.len() {
        let w = s.waits[i];
        if !w.is_last(&s.waits[i + 1..]) {
            continue;
        }
        let qp = queues.get(w.queue);
        let state = hold(queues, w.queue, held);
        let (_, cq) = state.work(w.side);
        let addrs = qp.core.side(w.side);
        // Marks come last, so this one proves every earlier wait.
        if qp.core.gpu.waiting().counts() {
            s.proof = Some(Proof::Mark {
                memory: qp.core.control.downgrade(),
                word: addrs.passed.cpu.part(4 * w.waiter, 4),
                count: cq.next_mark(w.waiter),
            });
        }
        let word = addrs.passed.gpu.offset(4 * w.waiter as u64);
        let mark = Op::write(Bits32, word, cq.next_mark(w.waiter));
        s.list.add(mark, Role::Mark, false);
    }
    Ok(())
}

fn note_waits(queues: &Queues<'_, '_>, s: &mut Scratch) {
    let mut held = None;
    for (i, w) in s.waits.iter().enumerate() {
        let state = hold(queues, w.queue, &mut held);
        let (_, cq) = state.work(w.side);
        cq.note_wait(w.waiter, w.position);
        let mark = cq.next_mark(w.waiter);
        // The mark was enqueued behind the last of the waiter's waits.
        if w.is_last(&s.waits[i + 1..]) {
            cq.commit_mark(w.waiter);
        }
        if let Some(limit) = w.timeout {
            state.timers.push(Timer {
                side: w.side,
                waiter: w.waiter,
                position: w.position,
                mark,
                limit,
                since: None,
            });
        }
    }
}
