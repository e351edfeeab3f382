//! The watchdog: which streams wait at which messages, for how long, and the timeout of their
//! requests.

use std::time::Duration;

use gds_step::Time;
use gdsync::Status;

use super::engine::Engine;
use super::liveness::Life;
use super::peer::Peers;
use super::progress::arrived;
use super::spec::Source;
use super::state::State;
use super::texts::lack;
use crate::request::entry::{Entry, ReceiveState};
use crate::request::one_sided::SignalWait;
use crate::request::table::{RequestKey, Table};
use crate::request::zero_sm::Way;

/// A stream that has waited for at least [`Builder::watchdog`](crate::Builder::watchdog), and the
/// request that it waits for: from [`Context::stuck`](crate::Context::stuck).
///
/// `Display` writes one line, as the watchdog's warning has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// This rank, whose stream waits.
    pub rank: u32,
    /// The rank whose message, receive or credit is missing.
    pub peer: Source,
    /// The message's tag.
    pub tag: u32,
    /// The message's number under peer and tag, from 0; 0 for a receive from any rank that is
    /// unmatched.
    pub number: u64,
    /// What the stream waits for, and what to check, as a text.
    pub what: String,
    /// The stream's number ([`Stream::id`](gdsync::Stream::id)).
    pub stream: u64,
    /// How long the stream has waited.
    pub since: Duration,
}

/// The first request that a stream has not passed. Of several at one position, which one call
/// enqueued, one that lacks something.
#[derive(Clone, Copy, Debug)]
struct Front {
    stream: u64,
    order: u64,
    key: RequestKey,
    lacks: bool,
}

/// The requests at which streams wait.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// One for each stream, as of the last check.
    fronts: Vec<Front>,
}

impl Watch {
    /// Finds, for each stream, the first request that it has not passed, and records since when the
    /// stream waits there.
    fn look(&mut self, requests: &mut Table, peers: &Peers, now: Time) {
        self.fronts.clear();
        for (key, entry) in requests.iter() {
            for (stream, order) in waits_of(entry) {
                let new = Front {
                    stream,
                    order,
                    key,
                    lacks: lack(peers, entry).is_some(),
                };
                match self.fronts.iter_mut().find(|front| front.stream == stream) {
                    Some(front) if front.order < order => {}
                    Some(front) if front.order == order && (front.lacks || !new.lacks) => {}
                    Some(front) => *front = new,
                    None => self.fronts.push(new),
                }
            }
        }
        for front in &self.fronts {
            if let Some(entry) = requests.get_mut(front.key) {
                entry.since = lack(peers, entry).map(|_| entry.since.unwrap_or(now));
            }
        }
    }
}

impl Engine {
    /// Finds the waiting streams, reports those that have waited for long, and ends the requests
    /// whose timeout has expired.
    pub(super) fn watch(&self, state: &mut State, now: Time) {
        state.watch.look(&mut state.requests, &state.peers, now);
        let watch = std::mem::take(&mut state.watch);
        for at in 0..state.keys.len() {
            let key = state.keys[at];
            let Some(entry) = state.requests.get_mut(key) else {
                continue;
            };
            if entry.status().is_some() {
                continue;
            }
            let receive = entry.receive().map(|receive| receive.state);
            let open = matches!(
                receive,
                Some(ReceiveState::Posted | ReceiveState::Unmatched)
            );
            let timed = match entry.zero_sm() {
                // No stream waits for the receive of a long message.
                Some(message) if message.sends => message.queued || message.way == Way::Pulled,
                Some(_) => entry.timeout.is_some(),
                None => open && entry.timeout.is_some(),
            };
            if entry.is_queued() || timed {
                entry.since.get_or_insert(now);
            }
            let (rank, Some(since)) = (entry.peer, entry.since) else {
                continue;
            };
            let waited = now.since(since);
            let limit = entry.timeout.unwrap_or(self.config.timeout);
            let mut late = waited >= limit;
            if late
                && entry.step().is_some()
                && self.life(state.peers.get(rank), Some(since)) == Life::Alive
            {
                // The neighbour may wait as long for a dead one before it continues.
                late = waited >= limit + limit / 8;
            }
            let warns = !entry.warned && waited >= self.config.watchdog;
            if (late || warns) && self.is_there(state, key) {
                if let Some(entry) = state.requests.get_mut(key) {
                    entry.since = None;
                }
                continue;
            }
            let Some(entry) = state.requests.get_mut(key) else {
                continue;
            };
            if warns {
                entry.warned = true;
                for front in watch.fronts.iter().filter(|front| front.key == key) {
                    if let Some(stuck) = self.describe(state, front, now) {
                        tracing::warn!(target: "mp", "{stuck}");
                    }
                }
            }
            if late {
                self.time_out(state, key);
            } else if !self.probe_team(state, key, since) {
                self.probe(state, rank, since, now);
            }
        }
        state.watch = watch;
    }

    /// Whether device memory shows what a request seems to wait for: the CPU does not look there all the
    /// time.
    fn is_there(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state
            .requests
            .get(key)
            .filter(|entry| !entry.is_unmatched() && entry.zero_sm().is_none())
        else {
            return false;
        };
        let (rank, tag, number, large) = (entry.peer, entry.tag, entry.number, entry.large);
        let streams = entry.claimed_by().is_some() || entry.in_flight().is_some();
        match (entry.is_receive(), entry.send().is_some()) {
            (true, _) if streams => arrived(state, key),
            (_, true) if streams && large => state.sending(rank, tag).is_some_and(|channel| {
                channel.find_place(number);
                channel.blocked_by(number).is_none() && channel.reply(number).is_some()
            }),
            _ => false,
        }
    }

    fn time_out(&self, state: &mut State, key: RequestKey) {
        let Some(entry) = state.requests.get(key) else {
            return;
        };
        if entry.is_unmatched() {
            state.matcher.remove(key);
            state.counts.timeouts += 1;
            return self.finish(state, key, Status::TIMEOUT, 0);
        }
        // Its message or signal has arrived; no stream and no call waits for it yet.
        let signal = entry.signal().is_some_and(SignalWait::is_met);
        let step = entry.step().is_some_and(|step| step.lack().is_none());
        if signal || step || entry.is_receive() && arrived(state, key) {
            return;
        }
        if entry.collective().is_some() {
            return self.time_out_collective(state, key);
        }
        let (text, rank) = (self.timeout_text(state, entry), entry.peer);
        state.counts(Some(rank)).timeouts += 1;
        self.give_up_for(state, key, Status::TIMEOUT, text);
    }

    fn describe(&self, state: &State, front: &Front, now: Time) -> Option<Stuck> {
        let entry = state.requests.get(front.key)?;
        Some(Stuck {
            rank: self.rank,
            peer: match entry.is_unmatched() {
                true => Source::Any,
                false => Source::Rank(entry.peer),
            },
            tag: entry.tag,
            number: entry.number,
            what: self.wait_text(state, entry)?,
            stream: front.stream,
            since: now.since(entry.since?),
        })
    }

    /// Describes what `stream` waits for, and what to check.
    pub(super) fn stream_text(&self, stream: u64) -> Option<String> {
        let now = self.host().now();
        let state = &mut *self.lock();
        state.watch.look(&mut state.requests, &state.peers, now);
        let mut fronts = state.watch.fronts.iter();
        let front = fronts.find(|front| front.stream == stream)?;
        self.wait_text(state, state.requests.get(front.key)?)
    }

    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        let now = self.host().now();
        let mut guard = self.lock();
        let state = &mut *guard;
        state.watch.look(&mut state.requests, &state.peers, now);
        let fronts = state.watch.fronts.iter();
        let named = fronts.filter_map(|front| self.describe(state, front, now));
        named.filter(|s| s.since >= self.config.watchdog).collect()
    }
}

/// The streams that may wait at a request, with the positions of their waits: the stream that
/// executes it, and those that wait for its result.
fn waits_of(entry: &Entry) -> impl Iterator<Item = (u64, u64)> {
    let at_work = entry.in_flight().is_some()
        || entry.signal().is_some()
        || entry.step().is_some()
        || entry.collective().is_some()
        || entry
            .zero_sm()
            .is_some_and(|m| m.sends && m.way != Way::Pulled && !m.queued);
    let sender = entry.poster.id().filter(|_| at_work);
    let waiters = match (entry.status(), sender) {
        (None, None) => &entry.waiters[..],
        // Whether the stream that executes a send has reached it is unknown to the other streams.
        _ => &[],
    };
    let worker = sender.or(entry.claimed_by());
    let worker = worker.map(|stream| (stream, entry.order));
    let waiters = waiters.iter().map(|w| (w.stream, w.order));
    worker.into_iter().chain(waiters)
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, stream, since) = (self.rank, self.stream, self.since);
        let what = &self.what;
        write!(
            f,
            "rank {rank}: stream {stream} has waited for {since:?}: {what}"
        )
    }
}
