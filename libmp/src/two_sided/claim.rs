//! Claiming: a stream takes a message in. The stream waits for the message; a kernel after the wait
//! copies it, acknowledges it to the sender and ends the request.

use gdsync::gpu::{MemoryKind, Word64};
use gdsync::{Status, Stream};

use super::channel::RecvChannel;
use super::engine::Engine;
use super::marks::{mark_others, number_others, own_unmarked, posted_by_another, withdraw_mark};
use super::packed::{SCATTERS, arrival, scatter_on, staged};
use super::peer::Need;
use super::progress::arrived;
use super::receive::ANY_RANK;
use super::spec::On;
use super::state::{Guard, State, known};
use super::wait::WAIT_ON;
use crate::error::{Error, Result};
use crate::kernels::{IN_HOST, Kernels, LATER, POLLS, SEGMENTS, Segment, Unpack};
use crate::mutant::{Mutant, on};
use crate::path::{Link, List, Path};
use crate::plan::Refusal;
use crate::region::Slice;
use crate::request::entry::{Common, Incoming, ReceiveState};
use crate::request::reached::Mark;
use crate::request::table::{InDevice, RequestKey};
use crate::wire::word::{self, WordKind};

impl Engine {
    /// Makes a stream take a message in: the stream waits until the message has arrived.
    pub fn try_claim<'a>(
        &'a self,
        mut state: Guard<'a>,
        key: RequestKey,
        stream: &Stream,
    ) -> Result<()> {
        let rank = known(&mut state.requests, key)?.peer;
        if rank == ANY_RANK {
            return self.claim_now(&mut state, key, stream, 0);
        }
        let on = On::Stream(stream, None);
        let mut lane = self.lane_of(&mut state, &on);
        let peer = state.peers.get(rank);
        let ready = peer.is_some_and(|peer| !peer.is_here() || peer.is_open(lane, Need::Lanes));
        if !ready {
            // This waits at most one timeout in a call: an attempt after a full queue finds the
            // lane open. Only a receive from any rank can reach this line for the first time in a
            // later attempt, if it is matched while the call waits for room: then the call takes at
            // most one more timeout. The lock is not held.
            drop(state);
            (state, lane) = self.ensure(rank, &on, Need::Lanes)?;
        }
        self.claim_now(&mut state, key, stream, lane)
            .map_err(|e| e.of_peer(rank))
    }

    fn claim_now(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        lane: u8,
    ) -> Result<()> {
        let order = state.requests.next_order();
        let entry = known(&mut state.requests, key)?;
        let rank = entry.peer;
        // A stream that waits since before the receive was matched waits for the word in host memory.
        let waited = !entry.waiters.is_empty();
        match entry.receive().map(|receive| receive.state) {
            Some(ReceiveState::Posted) if !waited => {}
            Some(ReceiveState::Prepared) => return Err(Error::unposted(WAIT_ON)),
            _ => return self.wait_for_result(state, key, stream),
        }
        let kernels = self.kernels(WAIT_ON)?;
        check_peer(state, key)?;
        let posted = posted_by_another(state, key, stream)?;
        let own = poster_of(state, key) == Some(stream.id());
        let unmarked = own_unmarked(state, key, stream.id());
        let report = self.report(state, key)?;
        let segments = state.incoming(key)?.0.segments.as_slice().len();
        let marked = match report.is_some() && segments <= 1 && posted.is_none() {
            true => number_others(state, stream, unmarked),
            false => mark_others(state, stream, unmarked).map(|()| None),
        };
        let mark = match marked {
            Ok(mark) => mark,
            Err(e) => {
                state.requests.withdraw_report(key);
                return Err(e);
            }
        };
        let before = (posted.as_ref(), mark);
        let claimed = self.enqueue_claim(state, key, stream, kernels, before, report.as_ref());
        if claimed.is_err()
            && let Ok((common, _, channel, _)) = state.incoming(key)
        {
            channel.forget_credit(common.number);
        }
        if let Err(Refusal { error, torn: false }) = claimed {
            state.requests.withdraw_report(key);
            if let Some(mark) = mark {
                withdraw_mark(state, stream, mark, unmarked);
            }
            return Err(error);
        }
        state.reached.forget_receives(stream.id(), unmarked);
        let (common, receive, channel, link) = state.incoming(key)?;
        (common.order, common.since) = (order, None);
        channel.side.taken_by_poster = own;
        receive.state = ReceiveState::Claimed(stream.id());
        if let Err(Refusal { error, .. }) = claimed {
            self.fail_claim(state, key, &error);
            return Err(error);
        }
        if let Some(run) = channel.take_in(common.number, lane, stream.id(), report)
            && let Some(lane) = link.lane(lane)
            && let Err(e) = channel.credit_on(stream, lane, run)
        {
            tracing::debug!(target: "mp", "the library returns the credits of rank {rank}: {e}");
        }
        Ok(())
    }

    /// Enqueues the wait for a message, behind the wait for the word `posted`, and the kernels that
    /// take it in; the first one stores the mark. Nothing but the wait for `posted` is enqueued if it is
    /// refused and not torn.
    fn enqueue_claim(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        kernels: &Kernels,
        (posted, mark): (Option<&(Word64, u64)>, Option<Mark>),
        report: Option<&InDevice>,
    ) -> Result<(), Refusal> {
        let mark = mark.map(|mark| marked_by(state, mark));
        let result = state.requests.result_addr(key).0;
        let (common, receive, channel, link) = state.incoming(key)?;
        let number = common.number;
        let packed = staged(receive.packed.as_deref(), common);
        stream
            .check_room(4 + packed.map_or(0, |_| SCATTERS))
            .map_err(Error::from)?;
        let polls = polls(common, receive, channel, link);
        let words = self.result_words(common, receive, result);
        let passed = match report {
            Some(report) => (&report.word, report.value),
            None => (&channel.taken(number).clone(), word::threshold(number)),
        };
        let mut list = List::<3>::new();
        if let Some((word, count)) = posted {
            list.wait(word, *count, false);
        }
        if !polls {
            let word = channel.word(number, common.large);
            list.wait_for(word, number, needs_flush(common, receive, channel));
            list.passed_by(passed.0, passed.1);
        }
        list.post(stream, None)?;
        let passed = polls.then_some(passed);
        // Words and payload belong to the channel and the table, which the state keeps; the entry
        // keeps the segments until the kernel has stored its result.
        let launched = match common.segments.as_slice().len() {
            0 | 1 => {
                let mut params =
                    unpack::<1>(kernels, channel, common, receive, words, polls, report);
                (params.mark, params.marked) = mark.unwrap_or_default();
                // SAFETY: the comment above names what keeps the memory alive.
                unsafe { kernels.unpack(stream, &params, passed) }
            }
            _ => {
                let params =
                    unpack::<SEGMENTS>(kernels, channel, common, receive, words, polls, report);
                // SAFETY: the comment above names what keeps the memory alive.
                unsafe { kernels.unpack(stream, &params, passed) }
            }
        };
        launched.map_err(|error| Refusal {
            error,
            torn: !polls,
        })?;
        let scattered = packed.map_or(Ok(()), |(pieces, staging)| {
            scatter_on(kernels, stream, pieces, staging, result)
        });
        scattered.map_err(|error| Refusal { error, torn: true })
    }

    /// Releases the stream that waits for a message that no kernel would take in, and ends the
    /// receive.
    #[cold]
    pub(super) fn fail_claim(&self, state: &mut State, key: RequestKey, e: &Error) {
        if let Ok((Common { number, large, .. }, _, channel, _)) = state.incoming(key) {
            let failed = word::word(*number, WordKind::Failed, u64::from(Status::CLOSED.0));
            // Pinned memory, which the CPU reaches: it cannot fail.
            if !channel.has_come(*number, *large) {
                let _ = channel.word(*number, *large).store(failed);
            }
            let _ = channel.taken(*number).store(failed);
        }
        self.fail_partly_posted(state, key, e);
    }

    /// The words in device memory in which the kernel of a receive stores its end, if the kernel polls
    /// there and no other code needs the words in host memory.
    pub(super) fn report(&self, state: &mut State, key: RequestKey) -> Result<Option<InDevice>> {
        let (common, receive, channel, link) = state.incoming(key)?;
        let polls = polls(common, receive, channel, link) && channel.has_flagged(common.number);
        // If the sender does not look for the credit behind the flagged rooms, the stream returns it to host memory.
        let credit_in_host = !channel.credits_in_device(common.number);
        if !polls || receive.packed.is_some() || receive.result_in_host || credit_in_host {
            return Ok(None);
        }
        state
            .requests
            .make_report(key, self.paths.copier())
            .map(Some)
    }

    /// The word for the result of the kernel of a receive, and the context's error word.
    pub(super) fn result_words(
        &self,
        common: &Common,
        receive: &Incoming,
        result: u64,
    ) -> [u64; 2] {
        let packed = staged(receive.packed.as_deref(), common);
        let ended = packed.map_or(result, |(pieces, staging)| arrival(pieces, staging));
        [ended, self.error.addr().0]
    }
}

/// Whether a kernel polls for the message of a receive: one whose word needs no flush.
pub(super) fn polls(
    common: &Common,
    receive: &Incoming,
    channel: &RecvChannel,
    link: &mut Link,
) -> bool {
    let flagged = channel.has_flagged(common.number);
    let lane = link
        .lane(0)
        .filter(|_| !needs_flush(common, receive, channel));
    lane.is_some_and(|lane| lane.may_spin(channel.path, flagged))
}

/// Whether a stream that waits for a message flushes what a NIC has written to the GPU. By TCP, a copy engine
/// of the GPU has stored the bytes before the word of the message.
pub(super) fn needs_flush(common: &Common, receive: &Incoming, channel: &RecvChannel) -> bool {
    channel.path == Path::Nic && receive.lands_in_device(common)
}

/// # Errors
/// The failure of the peer of a receive, if it was given up and has left no message.
pub(super) fn check_peer(state: &mut State, key: RequestKey) -> Result<()> {
    let rank = known(&mut state.requests, key)?.peer;
    if let Some(peer) = state.peers.get(rank).filter(|peer| !peer.is_here())
        && !arrived(state, key)
    {
        let e = peer.error(WAIT_ON);
        state.return_fault(key);
        return Err(e);
    }
    Ok(())
}

/// The address of the word of a mark, for kernels, and its value.
pub(super) fn marked_by(state: &State, mark: Mark) -> (u64, u64) {
    let (word, count) = state.reached.word(mark);
    (word.addr().0, count)
}

/// The stream that posted a request.
pub(super) fn poster_of(state: &State, key: RequestKey) -> Option<u64> {
    state.requests.get(key)?.poster.id()
}

/// The parameters of the kernel of a receive: `words` are the word for its result and the context's
/// error word. With `report`, notes the credit that the kernel returns; if it is not enqueued, call
/// [`RecvChannel::forget_credit`].
#[inline]
pub(super) fn unpack<const N: usize>(
    kernels: &Kernels,
    channel: &mut RecvChannel,
    common: &Common,
    receive: &Incoming,
    words: [u64; 2],
    polls: bool,
    report: Option<&InDevice>,
) -> Unpack<N> {
    let number = common.number;
    let segments = common.segments.as_slice();
    let mut list = [Segment::default(); N];
    for (filled, segment) in list.iter_mut().zip(segments) {
        *filled = Segment {
            addr: segment.addr(),
            len: segment.len() as u64,
        };
    }
    // A large receive may be first under its tag: the rooms are made later if its message is eager.
    let (payload, later) = match channel.payload_addr(number) {
        Some(payload) => (payload, 0),
        None if on(Mutant::EarlyRoom) => (0, 0),
        None => (channel.room_addr(number), LATER),
    };
    let in_host = |slice: &Slice| slice.memory().region().kind() != MemoryKind::Device;
    let host = segments.iter().any(in_host) && report.is_some();
    let bits = later | if polls { POLLS } else { 0 } | if host { IN_HOST } else { 0 };
    let (long_room, long_len, count) = channel.long_room(number);
    let addr = |word: &Word64| word.addr().0;
    // The word `consumed` is the credit of any other receive: once the sender has the credit, the next message
    // of the slot may come, and a later store of this kernel could land over its word.
    let (credit, consumed) = match report {
        Some(_) => (channel.credit_addr(number), channel.expect_credit(number)),
        None => (0, addr(channel.taken(number))),
    };
    let slot = channel.shape.room() as u32;
    // A longer message is copied to the receive, and more blocks that poll would slow the copy.
    let wide = segments.len() <= 1 && common.len > slot.into() && common.len <= long_len;
    let shares = match polls && wide {
        true => kernels.shares_of_flag(common.len),
        false => 1,
    };
    Unpack {
        word: channel.word(number, common.large).addr().0,
        payload,
        consumed,
        result: words[0],
        error: words[1],
        capacity: common.len,
        staging: (receive.staging.as_ref()).map_or(0, |m| m.region().addr().0),
        flagged: channel.flagged_addr(number),
        long_room,
        long_len,
        credit,
        ended: report.map_or(0, |report| addr(&report.word)),
        value: report.map_or(0, |report| report.value),
        before: report.map_or(0, |report| report.before),
        count,
        mark: 0,
        marked: 0,
        slot,
        shares,
        segments: segments.len() as u32,
        waits: bits,
        number,
        segment: list,
    }
}
