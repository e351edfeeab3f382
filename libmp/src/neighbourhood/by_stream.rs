//! The parts of a step on a stream: each is one plan over all peers, which are the ranks of the
//! neighbours. A whole step is one plan of one kernel, or its parts.
//!
//! Nothing is put to a peer that was given up: the others complete. A part that is refused because
//! the queue of a peer has failed meanwhile is tried again without that peer. The stream waits for
//! the words of all peers; the background work releases the waits for peers that were given up.

use std::mem;

use gdsync::Stream;

use super::by_kernel::{ByKernel, Writes};
use super::exchange::{Calls, Exchange, Port, Table};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Lane, Put};
use crate::plan::{LaneId, Launch, Plan, Refusal};
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Handle, Operation, Poster};
use crate::request::step::{Sent, Step, parity};
use crate::request::table::RequestKey;
use crate::two_sided::engine::Engine;
use crate::two_sided::{Need, On, State, mark_others, no_lane};

pub(super) const READY: &str = "send ready to neighbours";
pub(super) const SEND: &str = "send to neighbours";
pub(super) const WAIT: &str = "wait for neighbours";
const EXCHANGE: &str = "exchange with neighbours";

impl Calls {
    /// The step whose ready words are due.
    ///
    /// # Errors
    /// `Busy` if an earlier step is not waited for.
    pub fn may_ready(&self, ahead: u64) -> Result<u64> {
        let step = self.ready + 1;
        if step <= self.waited + ahead {
            return Ok(step);
        }
        let what = format!(
            "step {} is not waited for, and step {step} would overwrite its data; call wait_on or \
             wait first, or use Neighbours::double_buffered",
            step - ahead
        );
        Err(Error::new(READY, Kind::Busy, what).with_limit(ahead, "steps"))
    }

    /// The step whose send is due.
    ///
    /// # Errors
    /// `Busy` if the step before is not waited for; `NoSuchRequest` if its ready words were not
    /// sent.
    pub fn may_send(&self) -> Result<u64> {
        let step = self.sent + 1;
        if self.waited < self.sent {
            let what = format!(
                "step {} is not waited for; call wait_on or wait first",
                self.sent
            );
            return Err(Error::new(SEND, Kind::Busy, what));
        }
        if self.ready < step {
            let what = format!(
                "the ready words of step {step} were not sent, and neighbours that do the same \
                 would wait for each other; call ready_on or ready first"
            );
            return Err(Error::new(SEND, Kind::NoSuchRequest, what));
        }
        Ok(step)
    }

    /// The step whose wait is due; `by`: a stream, or the CPU.
    ///
    /// # Errors
    /// `NoSuchRequest` if it was not sent; `Invalid` if another stream, or the CPU, has sent it.
    pub fn may_wait(&self, by: Option<u64>) -> Result<u64> {
        let step = self.waited + 1;
        if self.sent < step {
            let what = format!("step {step} was not sent; call send_on or send first");
            return Err(Error::new(WAIT, Kind::NoSuchRequest, what));
        }
        if self.sender != by {
            let poster = |poster: Option<u64>| match poster {
                Some(stream) => format!("stream {stream}"),
                None => "the CPU".to_owned(),
            };
            let what = format!(
                "{} has sent step {step}, and {} cannot wait for it; use one stream, or the CPU, \
                 for both calls of a step",
                poster(self.sender),
                poster(by)
            );
            return Err(Error::new(WAIT, Kind::Invalid, what));
        }
        Ok(step)
    }
}

/// Why a plan was refused.
pub(super) enum Refused {
    /// The queue of a neighbour has failed.
    Queue,
    Other(Refusal),
}

/// The state of the engine with the lane of a call. `careful`: a queue is checked before its use.
pub(super) struct Open<'g> {
    pub state: &'g mut State,
    lane: u8,
    careful: bool,
}

impl Open<'_> {
    /// The lane to a peer; `None` if the peer is lost.
    pub fn at(&mut self, rank: u32) -> Option<LaneId> {
        let peer = self.state.peers.get(rank)?;
        if !peer.is_here() {
            return None;
        }
        let lane = peer.stand_in[usize::from(self.lane)];
        if self.careful {
            let link = &mut self.state.peers.get_mut(rank)?.link;
            if link.error_of(lane).is_some() {
                return None;
            }
        }
        Some(LaneId { rank, lane })
    }

    /// The lane of [`Open::at`].
    pub fn lane_to(&mut self, rank: u32) -> Option<&mut Lane> {
        let at = self.at(rank)?;
        self.state.peers.get_mut(rank)?.link.lane(at.lane)
    }

    /// Prepares puts to a peer for a plan.
    pub fn prepare(
        &mut self,
        plan: &mut Plan<'_>,
        at: LaneId,
        prepare: impl FnOnce(&mut Batch<'_, 3>) -> Result<Put>,
    ) -> Result<Put, Refused> {
        let link = self.state.peers.get_mut(at.rank).map(|peer| &mut peer.link);
        let lane = link
            .and_then(|link| link.lane(at.lane))
            .ok_or_else(|| refused(no_lane(EXCHANGE, at.rank)))?;
        let mut batch = Batch::short(lane);
        // A batch of which a part is refused has undone itself.
        let last = prepare(&mut batch).and_then(|put| batch.reach().map(|()| put));
        let last = last.map_err(|e| e.of_peer(at.rank));
        if last.is_ok() {
            plan.puts(at, batch.all());
        }
        last.map_err(|e| self.refused(e, false))
    }

    /// Notes that the wait of a step is enqueued.
    fn note_wait(&mut self, record: Option<RequestKey>) {
        let requests = &mut self.state.requests;
        let order = requests.next_order();
        if let Some(step) = record.and_then(|key| requests.step_mut(key)) {
            step.wait = Some(order);
        }
    }

    /// Whether an error is the failure of a neighbour's queue, which the call has not found before.
    pub fn refused(&mut self, error: Error, torn: bool) -> Refused {
        let failed = matches!(error.kind(), Kind::PeerFailed(_) | Kind::Failed(_));
        match failed && !self.careful && !torn {
            true => Refused::Queue,
            false => Refused::Other(Refusal { error, torn }),
        }
    }
}

impl Engine {
    /// Opens the lanes of `on` to all neighbours that are not lost, and calls `attempt`, again
    /// after a queue has failed. Undoes nothing: `attempt` does.
    pub(super) fn with_lanes<T>(
        &self,
        x: &Exchange,
        on: On<'_>,
        calls: &mut Calls,
        mut attempt: impl FnMut(&mut Open<'_>) -> Result<T, Refused>,
    ) -> Result<T> {
        let mut careful = false;
        self.with_room(|| {
            loop {
                let mut guard = self.lock();
                let lane = self.lane_of(&mut guard, &on);
                self.sweep_if_crowded(&mut guard);
                let closed = |rank: u32| match guard.peers.get(rank) {
                    None => true,
                    Some(peer) => {
                        let lane = peer.stand_in[usize::from(lane)];
                        peer.is_here() && !peer.is_open(lane, Need::Lanes)
                    }
                };
                let mut ranks = x.words.peers.iter().map(|peer| peer.rank);
                if let Some(rank) = ranks.find(|rank| closed(*rank)) {
                    drop(guard);
                    self.ensure(rank, &on, Need::Lanes)?;
                    continue;
                }
                let mut open = Open {
                    state: &mut guard,
                    lane,
                    careful,
                };
                match attempt(&mut open) {
                    Ok(done) => return Ok(done),
                    Err(Refused::Queue) => careful = true,
                    Err(Refused::Other(Refusal { error, torn })) => {
                        calls.torn |= torn;
                        return Err(error);
                    }
                }
            }
        })
    }

    /// Makes the stream send the ready words of the next step to all neighbours.
    pub fn ready_on(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let on = On::Stream(stream, None);
        if on.captured(&self.gpu, READY)?.is_some() {
            return self.capture_ready(x, stream);
        }
        let mut calls = x.calls(READY)?;
        let step = calls.may_ready(x.ahead)?;
        self.with_lanes(x, on, &mut calls, |open| {
            let by_kernel = open.by_kernel(self, x, stream, (READY, step, Writes::Ready))?;
            // A plan with puts and a kernel makes the stream count as waiting: beside other peers, all words
            // are put.
            let by_kernel = by_kernel.filter(|by_kernel| by_kernel.has_all());
            let launch = |stream: &Stream, _: usize| match by_kernel {
                Some(by_kernel) => by_kernel.ready(self.kernels(READY)?, stream, step),
                None => Ok(()),
            };
            with_plan(open, |open, plan| {
                for (i, (peer, port)) in x.words.peers.iter().zip(&x.ports).enumerate() {
                    if !has(by_kernel, i)
                        && let Some(at) = open.at(peer.rank)
                    {
                        put_ready(open, plan, at, port, step)?;
                    }
                }
                plan.kernel_here_if(by_kernel.is_some());
                post(open, plan, stream, Some(&launch))
            })
        })?;
        calls.ready = step;
        Ok(())
    }

    /// Makes the stream wait for the ready words of all neighbours for the next step, and send them
    /// its data.
    pub fn send_on(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let on = On::Stream(stream, None);
        if on.captured(&self.gpu, SEND)?.is_some() {
            return self.capture_send_to_neighbours(x, stream);
        }
        let mut calls = x.calls(SEND)?;
        let step = calls.may_send()?;
        self.need_kernels(SEND, x.pack.moves.is_empty())?;
        let record = self.with_lanes(x, on, &mut calls, |open| {
            mark_others(open.state, stream, 0).map_err(refused)?;
            reserve(self, open)?;
            let by_kernel = open.by_kernel(self, x, stream, (SEND, step, Writes::Data))?;
            let tables = by_kernel.map_or(&x.pack.tables, |by_kernel| &by_kernel.pack);
            let table = tables[parity(step)].as_ref();
            let launch = |stream: &Stream, index: usize| match (by_kernel, table, index) {
                (_, Some(_), 0) | (None, ..) => self.launch(table, stream),
                (Some(by_kernel), ..) => {
                    by_kernel.send(self.kernels(SEND)?, stream, step, &x.words)
                }
            };
            with_plan(open, |open, plan| {
                plan.kernel_here_if(table.is_some());
                let (waits_for, word) = match on_stale_ready(step) {
                    true => (step - 1, parity(step - 1)),
                    false => (step, parity(step)),
                };
                for (i, peer) in x.words.peers.iter().enumerate() {
                    if !has(by_kernel, i) {
                        plan.wait(&peer.ready[word], waits_for, false);
                    }
                }
                self.prepare_data(x, open, plan, step, by_kernel)?;
                // Last: a kernel that was launched in front of a refused list would be launched again.
                plan.kernel_here_if(by_kernel.is_some());
                post(open, plan, stream, Some(&launch))
            })?;
            Ok(self.record_step(x, open, step, Some(stream)))
        })?;
        calls.sent = step;
        calls.sender = Some(stream.id());
        calls.record = record;
        Ok(())
    }

    /// Makes the stream wait for the data of the step that was sent last, and for its own puts.
    pub fn wait_on_neighbours(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let on = On::Stream(stream, None);
        if on.captured(&self.gpu, WAIT)?.is_some() {
            return self.capture_wait_for_neighbours(x, stream);
        }
        let mut calls = x.calls(WAIT)?;
        let step = calls.may_wait(Some(stream.id()))?;
        let record = calls.record;
        self.need_kernels(WAIT, x.unpack.moves.is_empty())?;
        let table = x.unpack.tables[landing(step)].as_ref();
        self.with_lanes(x, on, &mut calls, |open| {
            mark_others(open.state, stream, 0).map_err(refused)?;
            let by_kernel = open.by_kernel(self, x, stream, (WAIT, step, Writes::Nothing))?;
            let launch = |stream: &Stream, _: usize| match by_kernel {
                Some(by_kernel) => by_kernel.receive(self.kernels(WAIT)?, stream, step, &x.words),
                None => self.launch(table, stream),
            };
            let posted = with_plan(open, |open, plan| {
                let last = x.words.last();
                for (peer, sent) in x.words.peers.iter().zip(&last.sent) {
                    // The copies of a stream are done when the stream has passed them.
                    if let (Some(at), Sent::Put(lane, put)) = (open.at(peer.rank), *sent)
                        && !put.is_copy()
                    {
                        plan.done(LaneId { lane, ..at }, put);
                    }
                }
                drop(last);
                let peers = x.words.peers.iter().enumerate();
                let mut waits = peers.filter(|(i, _)| !has(by_kernel, *i)).peekable();
                while let Some((_, peer)) = waits.next() {
                    // One flush behind all waits makes the data of all neighbours visible.
                    let flush = x.flushes && waits.peek().is_none();
                    plan.wait(&peer.arrived[parity(step)], step, flush);
                }
                if by_kernel.is_none() {
                    plan.store(&x.words.passed, step);
                    plan.passed_by(&x.words.passed, step);
                }
                plan.kernel_here_if(by_kernel.is_some() || table.is_some());
                post(open, plan, stream, Some(&launch))
            });
            // Of a torn call the waits are enqueued: the background work releases them as well.
            let waits = match &posted {
                Ok(()) => true,
                Err(Refused::Other(refusal)) => refusal.torn,
                Err(Refused::Queue) => false,
            };
            if waits {
                open.note_wait(record);
            }
            posted
        })?;
        calls.waited = step;
        Ok(())
    }

    /// Makes the stream execute a whole step: by one kernel if it can, else by the three calls.
    pub fn exchange_on(&self, x: &Exchange, stream: &Stream) -> Result<()> {
        let on = On::Stream(stream, None);
        let captured = on.captured(&self.gpu, EXCHANGE)?.is_some();
        if !captured && self.exchange_by_kernel(x, stream)? {
            return Ok(());
        }
        let (ready, sent) = {
            let calls = x.calls(EXCHANGE)?;
            let begun = |step: u64| !captured && step > calls.waited;
            (begun(calls.ready), begun(calls.sent))
        };
        if !ready {
            self.ready_on(x, stream)?;
        }
        if !sent {
            self.send_on(x, stream)?;
        }
        self.wait_on_neighbours(x, stream)
    }

    /// Enqueues the kernel of a whole step. `false`: nothing is enqueued, because the step has begun, or one kernel
    /// cannot execute it.
    fn exchange_by_kernel(&self, x: &Exchange, stream: &Stream) -> Result<bool> {
        let on = On::Stream(stream, None);
        let mut calls = x.calls(EXCHANGE)?;
        let step = calls.waited + 1;
        if calls.ready >= step {
            return Ok(false);
        }
        let record = self.with_lanes(x, on, &mut calls, |open| {
            let by_kernel = open.by_kernel(self, x, stream, (EXCHANGE, step, Writes::Data))?;
            let Some(by_kernel) = by_kernel.filter(|by_kernel| by_kernel.in_one_kernel) else {
                return Ok(None);
            };
            mark_others(open.state, stream, 0).map_err(refused)?;
            reserve(self, open)?;
            let launch = |stream: &Stream, _: usize| {
                by_kernel.whole_step(self.kernels(EXCHANGE)?, stream, step, &x.words)
            };
            with_plan(open, |open, plan| {
                self.prepare_data(x, open, plan, step, Some(by_kernel))?;
                plan.kernel_here_if(true);
                post(open, plan, stream, Some(&launch))
            })?;
            let record = self.record_step(x, open, step, Some(stream));
            open.note_wait(record);
            Ok(Some(record))
        })?;
        let Some(record) = record else {
            return Ok(false);
        };
        (calls.ready, calls.sent, calls.waited) = (step, step, step);
        (calls.sender, calls.record) = (Some(stream.id()), record);
        Ok(true)
    }

    /// Prepares puts of the data of a step and the word behind it, to each peer that is not of `by_kernel`.
    /// Notes how each peer is sent its data.
    pub(super) fn prepare_data(
        &self,
        x: &Exchange,
        open: &mut Open<'_>,
        plan: &mut Plan<'_>,
        step: u64,
        by_kernel: Option<&ByKernel>,
    ) -> Result<(), Refused> {
        let mut last = x.words.last();
        last.step = step;
        for (i, (peer, port)) in x.words.peers.iter().zip(&x.ports).enumerate() {
            last.sent[i] = Sent::Not;
            let Some(at) = open.at(peer.rank) else {
                continue;
            };
            if has(by_kernel, i) {
                // The kernel sends nothing to a peer that an earlier call has closed.
                if !peer.is_closed() {
                    last.sent[i] = Sent::Kernel;
                }
                continue;
            }
            for data in &port.data {
                let (from, to) = (data.from.iter().map(Slice::piece), data.to[parity(step)]);
                open.prepare(plan, at, |batch| batch.put(from, to))?;
            }
            let arrived = port.arrived[parity(step)];
            let put = open.prepare(plan, at, |batch| {
                batch.announce(&step.to_le_bytes(), arrived)
            })?;
            last.sent[i] = Sent::Put(at.lane, put);
        }
        Ok(())
    }

    /// Puts the record of a step that was sent into the table; none if no neighbour is another rank.
    pub(super) fn record_step(
        &self,
        x: &Exchange,
        open: &mut Open<'_>,
        number: u64,
        stream: Option<&Stream>,
    ) -> Option<RequestKey> {
        let first = x.words.peers.first()?;
        let requests = &mut open.state.requests;
        let common = Common {
            number,
            poster: Poster {
                lane: 0,
                stream: stream.map(Stream::downgrade),
            },
            handle: Handle::Dropped,
            order: requests.next_order(),
            ..Common::new(first.rank, first.receive, &[])
        };
        let operation = Operation::Step(Step {
            words: x.words.clone(),
            number,
            wait: None,
            done: None,
        });
        Some(requests.put(Entry { common, operation }))
    }

    /// # Errors
    /// `Unsupported` if the GPU runs no kernels, and they are needed.
    fn need_kernels(&self, operation: &'static str, none: bool) -> Result<()> {
        match none {
            true => Ok(()),
            false => self.kernels(operation).map(drop),
        }
    }

    /// Enqueues the moves of a table.
    pub(super) fn launch(&self, table: Option<&Table>, stream: &Stream) -> Result<()> {
        let Some(table) = table else {
            return Ok(());
        };
        let kernels = self.kernels(SEND)?;
        // SAFETY: the table names pieces, which `Strided` has checked, and library memory with room
        // for all of them. The exchange holds the table, and the words, which hold all of that
        // memory. Memory that is returned stays accessible until the stream has run what was
        // enqueued before.
        unsafe { kernels.moves(stream, &table.params, table.dims) }
    }
}

/// Whether the kernels execute the part of a peer.
fn has(by_kernel: Option<&ByKernel>, at: usize) -> bool {
    by_kernel.is_some_and(|by_kernel| by_kernel.has(at))
}

/// Whether the mutant sends the data of this step by a ready word of an earlier one.
pub(super) fn on_stale_ready(step: u64) -> bool {
    on(Mutant::StaleReady) && step > 1
}

/// The parity of the memory in which the data of a step has arrived.
pub(super) fn landing(step: u64) -> usize {
    parity(step + u64::from(on(Mutant::WrongParity)))
}

/// Reserves room for the record of a step.
pub(super) fn reserve(engine: &Engine, open: &mut Open<'_>) -> Result<(), Refused> {
    open.state.requests.reserve(&engine.gpu).map_err(refused)
}

/// Prepares the put of the ready word of a step.
pub(super) fn put_ready(
    open: &mut Open<'_>,
    plan: &mut Plan<'_>,
    at: LaneId,
    port: &Port,
    step: u64,
) -> Result<(), Refused> {
    let to = port.ready[parity(step)];
    open.prepare(plan, at, |batch| batch.put_word(step, to))
        .map(drop)
}

/// The refusal of a call of which nothing is enqueued.
pub(super) fn refused(error: Error) -> Refused {
    Refused::Other(error.into())
}

/// Calls `collect` with an empty plan, which it posts, and keeps the buffers. If it fails, its puts
/// are aborted.
pub(super) fn with_plan<'a, T>(
    open: &mut Open<'_>,
    collect: impl FnOnce(&mut Open<'_>, &mut Plan<'a>) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let mut plan = mem::take(&mut open.state.plan).emptied();
    let collected = collect(open, &mut plan);
    if collected.is_err() {
        plan.undo(&mut open.state.peers);
    }
    open.state.plan = plan.emptied();
    collected
}

fn post<'a>(
    open: &mut Open<'_>,
    plan: &mut Plan<'a>,
    stream: &Stream,
    kernel: Option<Launch<'_>>,
) -> Result<(), Refused> {
    let posted = plan.post(stream, &mut open.state.peers, kernel);
    posted.map_err(|Refusal { error, torn }| open.refused(error, torn))
}
