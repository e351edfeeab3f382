//! Posting: a prepared request is posted on the CPU's lane or on its stream. A call that finds no
//! room is retried here ([`Engine::with_room`]).

use gdsync::gpu::{Event, Lent, WeakStream};
use gdsync::{Status, Stream};

use super::channel::SendChannel;
use super::config::Full;
use super::engine::Engine;
use super::marks::{mark_before, mark_others};
use super::null::NULL_RANK;
use super::packed::{check_stray, staged};
use super::state::{Guard, State, known, no_lane};
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, Patch, Stamp};
use crate::path::{Batch, Lane, List, MOST_BYTES, Put, uncaptured, while_held};
use crate::region::Memory;
use crate::request::entry::{
    Common, Entry, Late, Operation, Outgoing, Passed, Segments, SendState, Waiter,
};
use crate::request::table::{RequestKey, Table};

pub(super) const POST: &str = "post request";

impl Engine {
    /// Retries `attempt` until there is room, if the context is set to wait.
    pub(crate) fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let first = attempt();
        match &first {
            Err(e) if may_pass(e) => {
                if e.kind() == Kind::QueueFull {
                    self.lock().counts(e.rank()).retries += 1;
                }
                if self.config.full != Full::Wait {
                    return first;
                }
            }
            _ => return first,
        }
        drop(first);
        self.wait_for_room(&mut attempt)
    }

    /// Calls `post`, which prepares several requests before it posts them. Calls of other threads
    /// that find these requests wait until they are posted.
    pub(crate) fn as_pair<T>(&self, post: impl FnOnce() -> Result<T>) -> Result<T> {
        self.lock().pairs.begin();
        let posted = post();
        self.lock().pairs.end();
        posted
    }

    #[cold]
    fn wait_for_room<T>(&self, attempt: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let lost = || {
            let state = self.lock();
            state.peers.iter().filter(|peer| !peer.is_here()).count()
        };
        let mut result = None;
        loop {
            let before = lost();
            // A peer that causes the lack of room is given up after one timeout; twice the timeout
            // leaves time to report that.
            let deadline = self.host().now() + self.config.timeout.saturating_mul(2);
            let tried = self.wait(deadline, &mut || {
                self.progress();
                let before = self.lock().pairs.count;
                let answer = attempt();
                let full = match &answer {
                    Err(e) if e.kind() == Kind::QueueFull => true,
                    // The prepared request is of the application, unless there is a pair.
                    Err(e) if may_pass(e) => {
                        let pairs = &self.lock().pairs;
                        pairs.of_others() || pairs.count != before
                    }
                    _ => false,
                };
                result = Some(answer);
                !full
            });
            // A stream that the loss of one peer released may wait for the next peer.
            if tried || lost() == before {
                break;
            }
        }
        let what = "the time limit passed before the call was tried";
        result.unwrap_or_else(|| Err(Error::new(POST, Kind::Timeout, what)))
    }

    /// Repeats `attempt` if an open channel was retired in between.
    #[inline]
    pub(super) fn reopening<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        const TRIES: usize = 32;
        for _ in 1..TRIES {
            match attempt() {
                Err(e) if e.kind() == Kind::Closed => {}
                other => return other,
            }
        }
        attempt()
    }

    /// Numbers a request and, if `post` is set and numbering has not posted it, posts it. One lock
    /// covers both if there is room.
    #[inline]
    pub(super) fn start(
        &self,
        mut locked: Option<Guard<'_>>,
        post: bool,
        mut number: impl FnMut(&mut State) -> Result<(RequestKey, bool)>,
    ) -> Result<RequestKey> {
        self.with_room(|| {
            let mut state = locked.take().unwrap_or_else(|| self.lock());
            let (key, posted) = number(&mut state)?;
            if post
                && !posted
                && let Err(e) = self.post_now(&mut state, key)
            {
                // It has the newest number, and nothing was sent for it: it can be cancelled.
                let _ = self.cancel(&mut state, key);
                self.drop_handle(&mut state, key);
                return Err(e);
            }
            Ok(key)
        })
    }

    /// Posts a prepared request.
    pub fn post(&self, key: RequestKey) -> Result<()> {
        self.with_room(|| {
            let mut state = self.lock();
            self.post_known(&mut state, key)
        })
    }

    /// Posts a prepared request; an error names its peer.
    pub(super) fn post_known(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let posted = self.post_now(state, key);
        posted.map_err(|e| match state.requests.get(key) {
            Some(entry) if entry.peer < self.size => e.of_peer(entry.peer),
            _ => e,
        })
    }

    fn post_now(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let order = state.requests.next_order();
        let entry = unposted(&mut state.requests, key)?;
        entry.order = order;
        if entry.peer == NULL_RANK {
            self.finish(state, key, Status::SUCCESS, 0);
            return Ok(());
        }
        let Entry { common, operation } = entry;
        let send = match operation {
            Operation::Send(send) => send,
            Operation::Transfer(_) => return self.post_transfer(state, key),
            _ => return self.post_recv(state, key),
        };
        if let Some(peer) = state.peers.get(common.peer)
            && !peer.is_here()
        {
            return Err(peer.error(POST));
        }
        let packed = staged(send.packed.as_deref(), common);
        let stream = common.poster.stream.clone();
        if let Some((_, staging)) = packed {
            check_stray(staging, stream.as_ref().map(WeakStream::id))?;
        }
        if let Some(stream) = stream {
            return self.post_send(state, key, &stream);
        }
        if let Some((pieces, staging)) = packed {
            pieces.gather(staging, 0)?;
        }
        read_length(common, send)?;
        send.state = SendState::Queued { announced: false };
        self.push_send(state, key);
        Ok(())
    }

    /// Posts a send on the stream that it was prepared on.
    fn post_send(&self, state: &mut State, key: RequestKey, stream: &WeakStream) -> Result<()> {
        let mut made = Made::default();
        let posted = self.post_send_behind(state, key, stream, &mut made);
        if let (Err(_), Some(staging)) = (&posted, &made.packed_in) {
            staging.set_stray(stream.id());
        }
        if let (Err(_), Some(credit), Ok((common, _, _, link))) =
            (&posted, made.credit, state.outgoing(key))
            && let Some(lane) = link.lane(common.poster.lane)
        {
            // It was posted already, or prepared just now.
            let _ = lane.abort(credit);
        }
        posted
    }

    /// As [`Engine::post_send`]; `made`: what was made so far.
    fn post_send_behind(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &WeakStream,
        made: &mut Made,
    ) -> Result<()> {
        let result_addr = state.requests.result_addr(key).0;
        if may_wait(state, key)? {
            mark_before(state, stream)?;
        }
        let (common, send, channel, link) = state.outgoing(key)?;
        let Some(lane) = link.lane(common.poster.lane) else {
            return Err(no_lane(POST, common.peer));
        };
        let lent = lent(stream)?;
        let stream = &*lent;
        uncaptured(stream, POST)?;
        let mut list = List::<8>::new();
        let by_kernel = common.puts.iter().flatten().any(Put::takes_credit);
        let (number, short) = (common.number, !common.large);
        let lead_in = channel.lead_in(number, short, by_kernel);
        let waits = common.large || lead_in.wait.is_some() || lead_in.credit.is_some();
        lead_in.add_to(&mut list);
        let complete = send.late.as_ref().is_some_and(|late| late.complete);
        let credit = lead_in.credit.filter(|_| !complete);
        let credit = credit.map(|credit| Batch::short(&mut *lane).credit(credit));
        made.credit = credit.transpose()?;
        list.put(made.credit);
        list.put(common.puts.iter().flatten().copied());
        let behind = send.late.as_ref().map_or(0, |late| late.behind.len());
        let packed = staged(send.packed.as_deref(), common);
        if packed.is_some() || behind > 0 {
            // Kernels are enqueued in front of puts.
            let own = common.puts.iter().flatten().copied();
            let late = send
                .late
                .iter()
                .flat_map(|late| late.behind.iter().copied());
            lane.check_order(made.credit.into_iter().chain(own).chain(late))?;
        }
        let packed_in = &mut made.packed_in;
        let mut gather = || -> Result<()> {
            let Some((pieces, staging)) = packed else {
                return Ok(());
            };
            // What is posted behind the gathering then finds room, unless another thread takes it.
            stream.check_room(1 + Lane::submissions(channel.path, behind))?;
            self.gather_on(stream, POST, pieces, staging)?;
            *packed_in = Some(staging.clone());
            Ok(())
        };
        // So that no wait is refused behind the gathering, whose kernel would then pack for no message.
        let holds = |enqueues_wait: bool| packed.is_some() && enqueues_wait;
        let Some(late) = &send.late else {
            let kernel_waits = common.puts.iter().flatten().any(Put::waits);
            while_held(stream, holds(waits || kernel_waits), || {
                gather()?;
                list.post(stream, Some(lane))
            })?;
            let last = common.puts.iter().flatten().next_back();
            let done = SendState::Done(Status::SUCCESS);
            send.state = last.map_or(done, |last| SendState::InFlight(*last));
            return Ok(());
        };
        let mut puts = List::<{ MOST_CHUNKS + 5 }>::new();
        if late.complete {
            // The receive is posted, so its slot is free; or kernels wait for it.
            for put in &late.behind {
                lane.end_in(*put, result_addr, self.error.addr().0);
            }
            puts.put(late.behind.iter().copied());
            let kernel_waits = late.behind.iter().any(Put::waits);
            while_held(stream, holds(kernel_waits), || {
                gather()?;
                puts.post(stream, Some(lane))
            })?;
            let done = SendState::Done(Status::SUCCESS);
            send.state = (late.behind.last()).map_or(done, |last| SendState::InFlight(*last));
            return Ok(());
        }
        if common.large {
            list.wait_for(channel.ready(common.number), common.number, false);
        }
        let mut params = self.stamp_params(common, late, channel, result_addr);
        let found = [late.length.is_some(), late.offset.is_some()];
        let stamp = lane.patch(&late.behind, common.large, found, &mut params)?;
        let room = Lane::submissions(channel.path, behind);
        let mut torn = false;
        let enqueued = while_held(stream, waits, || {
            stream.check_room(room)?;
            gather()?;
            list.post(stream, Some(&mut *lane))?;
            torn = true;
            self.stamp(stream, &params)?;
            puts.put(late.behind.iter().copied());
            puts.post(stream, Some(&mut *lane))
        });
        if let Err(e) = enqueued {
            if !torn {
                return Err(e);
            }
            for put in late.behind.iter().rev() {
                // Puts of the list that were posted are flushed.
                let _ = lane.abort(*put);
            }
            drop(lent);
            self.fail_partly_posted(state, key, &e);
            return Err(e);
        }
        send.state = SendState::InFlight(stamp);
        Ok(())
    }

    /// The parameters of the kernel that completes a send, without its work requests.
    pub(super) fn stamp_params(
        &self,
        common: &Common,
        late: &Late,
        channel: &SendChannel,
        result: u64,
    ) -> Stamp<MOST_CHUNKS> {
        let ready = channel.ready(common.number);
        Stamp {
            ready: if common.large { ready.addr().0 } else { 0 },
            info: channel.place_addr(common.number),
            stamp: channel.stamp_addr(common.number),
            length: late.length.as_ref().map_or(0, |w| w.addr().0),
            offset: late.offset.as_ref().map_or(0, |w| w.addr().0),
            size: common.len,
            source: common.segments.as_slice().first().map_or(0, |s| s.addr()),
            result,
            error: self.error.addr().0,
            stamp_control: 0,
            chunk: MOST_BYTES,
            chunks: 0,
            seq: common.number as u32,
            patch: [Patch::default(); MOST_CHUNKS],
        }
    }

    pub(super) fn stamp(&self, stream: &Stream, params: &Stamp<MOST_CHUNKS>) -> Result<()> {
        let kernels = self.kernels(POST)?;
        // SAFETY: the words belong to the context, the channel and the caller. Their regions are
        // kept by the entry and the state until the request has ended. The work requests are
        // prepared, and are posted after this kernel.
        unsafe {
            match params.chunks {
                0 | 1 => kernels.stamp(stream, params.first()),
                _ => kernels.stamp(stream, params),
            }
        }
    }

    /// As [`Engine::stamp`], for several sends: those of one work request share launches.
    pub(super) fn stamp_all(&self, stream: &Stream, all: &[Stamp<MOST_CHUNKS>]) -> Result<()> {
        let kernels = self.kernels(POST)?;
        let (short, mut long) = (
            all.iter().filter(|params| params.chunks <= 1),
            all.iter().filter(|params| params.chunks > 1),
        );
        // SAFETY: as for `stamp`.
        unsafe { kernels.stamp_all(stream, short.map(Stamp::first)) }?;
        long.try_for_each(|params| self.stamp(stream, params))
    }

    /// Makes a stream wait until a request has ended.
    pub(crate) fn wait_for_result(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
    ) -> Result<()> {
        mark_others(state, stream, 0)?;
        let requests = &mut state.requests;
        let mut list = List::<1>::new();
        let flush = requests.get(key).is_some_and(Entry::lands_in_device);
        let (word, value) = requests.end_word(key);
        list.wait(word, value, flush);
        stream.check_room(2)?;
        list.post(stream, None)?;
        let order = requests.next_order();
        note_waiter(requests, key, stream, order, stream.record().ok())
    }
}

/// What a post of a send has made.
#[derive(Default)]
struct Made {
    /// The put that waits for the credit, prepared.
    credit: Option<Put>,
    /// The staging memory in which an enqueued kernel packs the message.
    packed_in: Option<Memory>,
}

/// Whether the stream of a send may wait for its receive or for its credit.
pub(super) fn may_wait(state: &mut State, key: RequestKey) -> Result<bool> {
    let (common, send, channel, _) = state.outgoing(key)?;
    let plain = send.late.as_ref().is_none_or(|late| late.length.is_none());
    let plain = plain && common.segments.as_slice().len() == 1;
    let waits = common.large && !(plain && channel.has_long_room(common.number, common.len));
    Ok(waits || channel.blocked_by(common.number).is_some())
}

/// Whether a call may succeed later: it found no room, or a prepared request, which may be of a
/// pair that another thread posts.
fn may_pass(e: &Error) -> bool {
    let blocked = Kind::Gdsync(gdsync::Kind::OutOfOrder);
    e.kind() == Kind::QueueFull || e.kind() == blocked
}

/// A request that is prepared and not posted.
///
/// # Errors
/// `Busy` if it was posted.
pub(super) fn unposted(requests: &mut Table, key: RequestKey) -> Result<&mut Entry> {
    let entry = known(requests, key)?;
    let what = match entry.status() {
        None if entry.is_prepared() => return Ok(entry),
        None => "the request was already posted",
        Some(_) => "the request has already ended",
    };
    Err(Error::new(POST, Kind::Busy, what))
}

/// Reads the length and offset words of a CPU send.
fn read_length(common: &mut Common, send: &mut Outgoing) -> Result<()> {
    let Some(late) = &send.late else {
        return Ok(());
    };
    let room = common.len;
    let len = late.length.as_ref().map_or(Ok(room), |w| w.load())?;
    let offset = late.offset.as_ref().map_or(Ok(0), |w| w.load())?;
    if len > room || offset > room - len {
        let what = format!(
            "the length and offset words name {len} bytes at {offset}, which exceed the segment"
        );
        return Err(Error::new(POST, Kind::Invalid, what).with_limit(room, "bytes"));
    }
    if let [one] = common.segments.as_slice() {
        let start = one.offset() + offset as usize;
        let piece = one.memory().slice(start, len as usize)?;
        common.segments = Segments::One(piece);
    }
    send.late = None;
    common.len = len;
    Ok(())
}

/// Records that a stream waits for a request; called after the wait is enqueued. `passed`: the event
/// behind it.
pub(super) fn note_waiter(
    requests: &mut Table,
    key: RequestKey,
    stream: &Stream,
    order: u64,
    passed: Option<Event>,
) -> Result<()> {
    let waiter = Waiter {
        stream: stream.id(),
        order,
        passed: passed.map_or(Passed::Unknown, Passed::At),
    };
    known(requests, key)?.waiters.push(waiter);
    Ok(())
}

/// The stream that a request was prepared on.
///
/// # Errors
/// `Invalid` if the application has dropped its last handle.
pub(super) fn lent(stream: &WeakStream) -> Result<Lent<'_>> {
    stream.lend().ok_or_else(|| {
        let what = format!(
            "the last handle of stream {} was dropped; keep one until the requests that were \
             prepared on the stream are posted",
            stream.id()
        );
        Error::new(POST, Kind::Invalid, what)
    })
}
