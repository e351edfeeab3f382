//! A stream waits for several requests at once: a list with all waits and, behind it, a kernel with a
//! block for each message that it takes in. Messages of several segments and of strided pieces have
//! kernels of their own. Waits for the ends of sends follow. If a part is refused, the stream waits for
//! none of them, or for the receives alone.

use std::cell::Cell;

use gdsync::Stream;
use gdsync::gpu::Word64;

use super::channel::Run;
use super::claim::{check_peer, marked_by, needs_flush, polls, unpack};
use super::engine::Engine;
use super::marks::{mark_others, number_others, own_unmarked, posted_by_another, withdraw_mark};
use super::packed::{SCATTERS, scatter_on, staged};
use super::peer::Need;
use super::post::note_waiter;
use super::receive::ANY_RANK;
use super::spec::On;
use super::state::{State, known, no_lane};
use super::wait::WAIT_ON;
use crate::error::{Error, Result};
use crate::kernels::{POLLS, Polls, SEGMENTS, UNPACKS, Unpack};
use crate::path::{Path, Put, uncaptured};
use crate::plan::{LaneId, PeerLanes, Plan};
use crate::request::entry::{Operation, ReceiveState};
use crate::request::table::{InDevice, RequestKey, Table};
use crate::wire::word;

/// What a stream waits for, and does behind the waits. The buffers are kept from call to call.
#[derive(Default)]
pub(crate) struct Waits {
    /// Words, with the values that they reach; `true`: a flush follows.
    words: Vec<(Word64, u64, bool)>,
    puts: Vec<(LaneId, Put, bool)>,
    claims: Vec<Claim>,
    /// Requests that another poster ends.
    noted: Vec<RequestKey>,
    /// Credits returned before the waits, with their puts.
    before: Vec<(Claimed, Run, [Option<Put>; 3])>,
    /// Credits returned behind the kernels.
    runs: Vec<(Claimed, Run)>,
}

impl Waits {
    fn clear(&mut self) {
        self.words.clear();
        self.puts.clear();
        self.claims.clear();
        self.noted.clear();
        self.before.clear();
        self.runs.clear();
    }

    /// Whether the stream waits for nothing in front of the kernels, all of which are of usual messages: other
    /// kernels store no mark.
    fn begins_with_usual(&self) -> bool {
        let none = self.words.is_empty() && self.puts.is_empty() && self.before.is_empty();
        let usual = |claim: &Claim| claim.params.is_usual();
        none && !self.claims.is_empty() && self.claims.iter().all(usual)
    }

    /// Adds the waits for the ends of puts to a plan.
    fn end_in(&self, plan: &mut Plan<'_>) {
        for (at, put, flush) in &self.puts {
            plan.done_flushed(*at, *put, *flush);
        }
    }

    /// Adds a wait for the result word of a request.
    fn add_result(&mut self, requests: &mut Table, key: RequestKey, flush: bool) -> Result<()> {
        let (word, value) = requests.end_word(key);
        self.words.push((word.clone(), value, flush));
        self.noted.push(key);
        Ok(())
    }
}

/// The channel of a receive that a stream takes in, and its number.
#[derive(Clone, Copy)]
struct Claimed {
    at: LaneId,
    tag: u32,
    number: u64,
}

/// A receive whose message a stream takes in.
struct Claim {
    key: RequestKey,
    of: Claimed,
    /// The word that acknowledges the message in host memory.
    taken: Word64,
    /// The words in device memory in which its kernel stores its end.
    report: Option<InDevice>,
    params: Unpack<SEGMENTS>,
    /// Submissions that scatter it, at most.
    scatters: u32,
}

impl Claim {
    /// Whether it shares a kernel with others.
    fn is_short(&self) -> bool {
        self.params.segments <= 1
    }

    /// The word and the value that show that its kernel waits no more, if the kernel polls.
    fn passed(&self) -> Option<(&Word64, u64)> {
        (self.params.waits & POLLS != 0).then_some(self.end())
    }

    /// The word and the value that show that its kernel has run.
    fn end(&self) -> (&Word64, u64) {
        match &self.report {
            Some(report) => (&report.word, report.value),
            None => (&self.taken, word::threshold(self.of.number)),
        }
    }
}

impl Engine {
    /// Makes a stream wait for requests: for all or, after an error, for none, or for the receives alone.
    pub fn wait_all_on(
        &self,
        keys: impl ExactSizeIterator<Item = RequestKey> + Clone,
        stream: &Stream,
    ) -> Result<()> {
        if keys.len() < 2 {
            return keys.clone().try_for_each(|key| self.wait_on(key, stream));
        }
        uncaptured(stream, WAIT_ON)?;
        (keys.clone()).try_for_each(|key| self.before_plan(key, stream))?;
        self.with_room(|| {
            let mut state = self.lock();
            let mut waits = std::mem::take(&mut state.waits);
            let waited = self.try_wait_all_on(&mut state, keys.clone(), stream, &mut waits);
            waits.clear();
            state.waits = waits;
            waited
        })
    }

    /// Makes a stream wait for a zero-SM message, because copies of engines are no part of a plan. For a receive of
    /// another kind, opens the lane by which the stream returns its credit.
    fn before_plan(&self, key: RequestKey, stream: &Stream) -> Result<()> {
        let mut state = self.lock();
        let Some(entry) = state.requests.get(key) else {
            return Ok(());
        };
        if entry.zero_sm().is_some() {
            drop(state);
            return self.wait_on(key, stream);
        }
        let receive = entry.receive().map(|receive| receive.state);
        if receive != Some(ReceiveState::Posted) || entry.peer == ANY_RANK {
            return Ok(());
        }
        let (rank, on) = (entry.peer, &On::Stream(stream, None));
        let lane = self.lane_of(&mut state, on);
        let peer = state.peers.get(rank);
        if peer.is_some_and(|peer| !peer.is_here() || peer.is_open(lane, Need::Lanes)) {
            return Ok(());
        }
        drop(state);
        let opened = self.ensure(rank, on, Need::Lanes);
        opened.map(drop).map_err(|e| e.of_peer(rank))
    }

    fn try_wait_all_on(
        &self,
        state: &mut State,
        mut keys: impl Iterator<Item = RequestKey>,
        stream: &Stream,
        waits: &mut Waits,
    ) -> Result<()> {
        let decided = keys.try_for_each(|key| self.decide_wait(state, key, stream, waits));
        let claims = waits.claims.iter().map(|claim| claim.key);
        let unmarked = claims
            .map(|key| own_unmarked(state, key, stream.id()))
            .sum();
        let mut mark = None;
        let marked = decided.and_then(|()| match waits.begins_with_usual() {
            true => {
                mark = number_others(state, stream, unmarked)?;
                if let (Some(mark), Some(first)) = (mark, waits.claims.first_mut()) {
                    (first.params.mark, first.params.marked) = marked_by(state, mark);
                }
                Ok(())
            }
            false => mark_others(state, stream, unmarked),
        });
        let posted = marked.and_then(|()| self.post_waits(state, stream, waits));
        if posted.is_err() {
            if let Some(mark) = mark {
                withdraw_mark(state, stream, mark, unmarked);
            }
            for claim in &waits.claims {
                let peer = state.peers.get_mut(claim.of.at.rank);
                let channel = peer.and_then(|peer| peer.channels.recvs.get_mut(&claim.of.tag));
                if let Some(channel) = channel {
                    channel.forget_credit(claim.of.number);
                }
                if let Some(receive) = state.requests.receive_mut(claim.key)
                    && receive.state == ReceiveState::Claimed(stream.id())
                {
                    receive.state = ReceiveState::Posted;
                    state.requests.withdraw_report(claim.key);
                }
            }
            for (of, _, puts) in waits.before.iter().rev() {
                if let Some(lane) = state.peers.lane(of.at) {
                    for put in puts.iter().rev().flatten() {
                        // A put that the plan has posted or aborted is refused.
                        let _ = lane.abort(*put);
                    }
                }
            }
            let before = waits.before.drain(..).map(|(of, run, _)| (of, run));
            keep_credits(state, before);
            return posted;
        }
        state.reached.forget_receives(stream.id(), unmarked);
        // The stream waits for all of them in one place.
        let order = state.requests.next_order();
        for claim in &waits.claims {
            let entry = known(&mut state.requests, claim.key)?;
            (entry.order, entry.since) = (order, None);
        }
        self.return_credits(state, stream, waits);
        let ended = self.post_ends(state, stream, waits);
        if waits.noted.is_empty() {
            return ended;
        }
        let passed = stream.record().ok();
        for key in &waits.noted {
            note_waiter(&mut state.requests, *key, stream, order, passed.clone())?;
        }
        ended
    }

    /// Decides what a stream does to wait for a request.
    fn decide_wait(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        waits: &mut Waits,
    ) -> Result<()> {
        if !self.needs_wait(state, key)? {
            return Ok(());
        }
        let Some(entry) = state.requests.get_mut(key) else {
            return Err(Error::unknown_request(WAIT_ON));
        };
        if entry.needs_no_wait_by(stream.id()) {
            self.leave_end(entry);
            return Ok(());
        }
        let poster = entry.poster.id();
        let flush = entry.lands_in_device();
        match (&entry.operation, entry.in_flight()) {
            // The stream waits for it in front of this.
            (Operation::ZeroSm(_), _) => Ok(()),
            (_, Some(put)) if poster.is_some() => {
                let at = LaneId {
                    rank: entry.peer,
                    lane: entry.poster.lane,
                };
                let peer = state.peers.get_mut(at.rank);
                let Some(lane) = peer.and_then(|peer| peer.link.lane(at.lane)) else {
                    return Err(no_lane(WAIT_ON, at.rank));
                };
                match lane.done_word(put) {
                    Some((word, value)) => waits.words.push((word.clone(), value, false)),
                    None if put.is_copy() => {}
                    None => waits.puts.push((at, put, flush)),
                }
                if poster != Some(stream.id()) {
                    waits.noted.push(key);
                }
                Ok(())
            }
            (Operation::Receive(receive), _) => match receive.state {
                // See `claim_now`.
                ReceiveState::Posted if entry.waiters.is_empty() => {
                    self.decide_claim(state, key, stream, waits)
                }
                // Its kernel is before this call's waits, or in this call.
                ReceiveState::Claimed(by) if by == stream.id() => Ok(()),
                _ => waits.add_result(&mut state.requests, key, flush),
            },
            _ => waits.add_result(&mut state.requests, key, flush),
        }
    }

    /// Decides how a stream takes a message in.
    fn decide_claim(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        waits: &mut Waits,
    ) -> Result<()> {
        let kernels = self.kernels(WAIT_ON)?;
        let result = state.requests.result_addr(key).0;
        let rank = known(&mut state.requests, key)?.peer;
        check_peer(state, key).map_err(|e| e.of_peer(rank))?;
        let lane = self.lane_of(state, &On::Stream(stream, None));
        let lane = state.open_lane(rank, lane, Need::Lanes);
        waits.words.extend(
            posted_by_another(state, key, stream)?.map(|(word, count)| (word, count, false)),
        );
        let (common, _, channel, link) = state.incoming(key)?;
        let number = common.number;
        let of = Claimed {
            at: LaneId { rank, lane },
            tag: common.tag,
            number,
        };
        if let Some(lane) = link.lane(lane)
            && let Some(run) = channel.credit_for(number, of.at.lane, stream.id())
        {
            match channel.path != Path::Local {
                true => {
                    let puts = channel.prepare_credit(lane, run)?;
                    waits.before.push((of, run, puts));
                }
                false => channel.credit_on(stream, lane, run)?,
            }
        }
        let report = self.report(state, key)?;
        let (common, receive, channel, link) = state.incoming(key)?;
        let words = self.result_words(common, receive, result);
        let polls = polls(common, receive, channel, link);
        if !polls {
            let word = channel.word(number, common.large).clone();
            let flush = needs_flush(common, receive, channel);
            waits.words.push((word, word::threshold(number), flush));
        }
        channel.side.taken_by_poster = common.poster.id() == Some(stream.id());
        waits.claims.push(Claim {
            key,
            of,
            taken: channel.taken(number).clone(),
            params: unpack(
                kernels,
                channel,
                common,
                receive,
                words,
                polls,
                report.as_ref(),
            ),
            report,
            scatters: receive.packed.as_ref().map_or(0, |_| SCATTERS),
        });
        // A second wait for the same request finds it claimed.
        receive.state = ReceiveState::Claimed(stream.id());
        Ok(())
    }

    /// Enqueues what was decided.
    fn post_waits(&self, state: &mut State, stream: &Stream, waits: &Waits) -> Result<()> {
        let mut plan: Plan<'_> = std::mem::take(&mut state.plan).emptied();
        for (of, _, puts) in &waits.before {
            plan.puts(of.at, puts.iter().flatten().copied());
        }
        for (word, value, flush) in &waits.words {
            plan.wait(word, *value, *flush);
        }
        if waits.claims.is_empty() {
            waits.end_in(&mut plan);
        }
        if let Some(last) = waits.claims.last() {
            if !waits.words.is_empty() {
                let (word, value) = last.end();
                plan.passed_by(word, value);
            }
            // The event behind all, the kernels, and the scattering.
            let shared = waits.claims.iter().filter(|claim| claim.is_short()).count();
            let alone = waits.claims.len() - shared;
            let scatters: u32 = waits.claims.iter().map(|claim| claim.scatters).sum();
            let kernels = alone + shared.div_ceil(UNPACKS);
            plan.kernels_here(1 + kernels as u32 + scatters);
        }
        let State {
            peers, requests, ..
        } = &mut *state;
        let launched = Cell::new(false);
        let launch =
            |stream: &Stream, _: usize| self.take_all_in(requests, stream, waits, &launched);
        let posted = plan.post(stream, peers, Some(&launch));
        state.plan = plan.emptied();
        let Err(refusal) = posted else {
            return Ok(());
        };
        if refusal.torn || launched.get() {
            for claim in &waits.claims {
                self.fail_claim(state, claim.key, &refusal.error);
            }
        }
        Err(refusal.error)
    }

    /// Enqueues the waits for the ends of puts behind the kernels: the answer to a send often arrives with
    /// a message. If they are refused, the stream waits for the receives all the same.
    fn post_ends(&self, state: &mut State, stream: &Stream, waits: &Waits) -> Result<()> {
        if waits.claims.is_empty() || waits.puts.is_empty() {
            return Ok(());
        }
        let mut plan: Plan<'_> = std::mem::take(&mut state.plan).emptied();
        waits.end_in(&mut plan);
        let posted = plan.post(stream, &mut state.peers, None);
        state.plan = plan.emptied();
        posted.map_err(|refusal| refusal.error)
    }

    /// Launches the kernels that take messages in. `launched`: at least one of them.
    fn take_all_in(
        &self,
        requests: &Table,
        stream: &Stream,
        waits: &Waits,
        launched: &Cell<bool>,
    ) -> Result<()> {
        let kernels = self.kernels(WAIT_ON)?;
        let short = || waits.claims.iter().filter(|claim| claim.is_short());
        let polls = Polls::of(short().filter_map(Claim::passed));
        launched.set(short().count() > UNPACKS);
        // SAFETY: words and payload belong to the channel and the table, which the state keeps; the
        // entry keeps the segments until the kernel has stored its result.
        unsafe { kernels.unpack_all(stream, short().map(|claim| claim.params.first()), polls)? };
        launched.set(short().next().is_some());
        for claim in &waits.claims {
            if !claim.is_short() {
                // SAFETY: as above.
                unsafe { kernels.unpack(stream, &claim.params, claim.passed())? };
                launched.set(true);
            }
            let packed = requests.get(claim.key).and_then(|entry| {
                let pieces = entry.receive()?.packed.as_deref();
                staged(pieces, &entry.common)
            });
            if let Some((pieces, staging)) = packed {
                let result = requests.result_addr(claim.key).0;
                scatter_on(kernels, stream, pieces, staging, result)?;
            }
        }
        Ok(())
    }

    /// Returns the credits that are due, in one submission.
    fn return_credits(&self, state: &mut State, stream: &Stream, waits: &mut Waits) {
        let mut plan: Plan<'_> = std::mem::take(&mut state.plan).emptied();
        for claim in &mut waits.claims {
            let of = claim.of;
            let Some(peer) = state.peers.get_mut(of.at.rank) else {
                continue;
            };
            let lane = peer.link.lane(of.at.lane);
            let channel = peer.channels.recvs.get_mut(&of.tag);
            let Some((channel, lane)) = channel.zip(lane) else {
                continue;
            };
            let report = claim.report.take();
            let Some(run) = channel.take_in(of.number, of.at.lane, stream.id(), report) else {
                continue;
            };
            let returned = match channel.path != Path::Local {
                true => channel.prepare_credit(lane, run).map(|puts| {
                    plan.puts(of.at, puts.into_iter().flatten());
                    waits.runs.push((of, run));
                }),
                false => channel.credit_on(stream, lane, run),
            };
            if let Err(e) = returned {
                let rank = of.at.rank;
                tracing::debug!(target: "mp", "the library returns the credits of rank {rank}: {e}");
            }
        }
        if let Err(refusal) = plan.post(stream, &mut state.peers, None) {
            tracing::debug!(target: "mp", "the library returns credits: {}", refusal.error);
            keep_credits(state, waits.runs.drain(..));
        }
        state.plan = plan.emptied();
    }
}

/// Keeps credits that the stream does not return, for the library.
fn keep_credits(state: &mut State, runs: impl Iterator<Item = (Claimed, Run)>) {
    for (of, run) in runs {
        let peer = state.peers.get_mut(of.at.rank);
        if let Some(channel) = peer.and_then(|p| p.channels.recvs.get_mut(&of.tag)) {
            channel.keep_credit(run);
        }
    }
}
