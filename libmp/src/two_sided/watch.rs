//! The watchdog: which streams stand at which messages, for how long, and the end of those whose
//! time is over.

use gds_step::Time;
use gdsync::Status;

use super::channel::has_come;
use super::spec::Source;
use crate::context::Inner;
use crate::context::state::{Front, State, Stuck};
use crate::request::table::{Entry, Phase, RequestKey};

impl Inner {
    /// Finds who stands, names those who have stood for long, and gives those up whose time is
    /// over.
    pub(super) fn watch(&self, state: &mut State, now: Time) {
        find_fronts(state, now);
        let fronts = std::mem::take(&mut state.fronts);
        for at in 0..state.keys.len() {
            let key = state.keys[at];
            let Some(entry) = state.requests.get_mut(key) else {
                continue;
            };
            match entry.phase {
                Phase::Done(_) => continue,
                Phase::Queued { .. } => _ = entry.since.get_or_insert(now),
                Phase::Posted | Phase::Unmatched if entry.timeout.is_some() => {
                    entry.since.get_or_insert(now);
                }
                _ => {}
            }
            let Some(since) = entry.since else { continue };
            let waited = now.since(since);
            let limit = entry.timeout.unwrap_or(self.config.timeout);
            if !entry.named && waited >= self.config.watchdog {
                entry.named = true;
                for front in fronts.iter().filter(|front| front.key == key) {
                    if let Some(stuck) = self.describe(state, front, now) {
                        tracing::warn!(target: "mp", "{stuck}");
                    }
                }
            }
            if waited >= limit {
                self.time_out(state, key);
            }
        }
        state.fronts = fronts;
    }

    fn time_out(&self, state: &mut State, key: RequestKey) {
        let Some(entry) = state.requests.get(key) else {
            return;
        };
        let rank = entry.peer;
        match entry.phase {
            Phase::Unmatched => {
                state.wild.retain(|other| *other != key);
                self.finish(state, key, Status::TIMEOUT, 0);
            }
            _ => self.give_up(state, rank, Status::TIMEOUT),
        }
    }

    fn describe(&self, state: &State, front: &Front, now: Time) -> Option<Stuck> {
        let what = waits_for(state, front.key)?;
        let entry = state.requests.get(front.key)?;
        Some(Stuck {
            rank: self.rank,
            peer: match entry.phase {
                Phase::Unmatched => Source::Any,
                _ => Source::Rank(entry.peer),
            },
            tag: entry.tag,
            number: entry.number,
            what,
            stream: front.stream,
            since: now.since(entry.since?),
        })
    }

    pub(crate) fn stuck(&self) -> Vec<Stuck> {
        let now = self.host().now();
        let mut state = self.lock();
        find_fronts(&mut state, now);
        let named = state
            .fronts
            .iter()
            .filter_map(|front| self.describe(&state, front, now));
        named.filter(|s| s.since >= self.config.watchdog).collect()
    }
}

/// Finds, for each stream, the first request that it has not passed, and notes since when it
/// stands there.
fn find_fronts(state: &mut State, now: Time) {
    let mut fronts = std::mem::take(&mut state.fronts);
    fronts.clear();
    for (key, entry) in state.requests.iter() {
        for (stream, order) in places(entry) {
            match fronts.iter_mut().find(|front| front.stream == stream) {
                Some(front) if front.order < order => {}
                Some(front) => *front = Front { stream, order, key },
                None => fronts.push(Front { stream, order, key }),
            }
        }
    }
    for front in &fronts {
        let stands = waits_for(state, front.key).is_some();
        let Some(entry) = state.requests.get_mut(front.key) else {
            continue;
        };
        match stands {
            true => _ = entry.since.get_or_insert(now),
            false => entry.since = None,
        }
    }
    state.fronts = fronts;
}

/// The streams that may stand at a request, with the order in which they were told to: the one
/// that does its work, and those that wait for its result.
fn places(entry: &Entry) -> impl Iterator<Item = (u64, u64)> {
    let worker = match entry.phase {
        Phase::Claimed(stream) => Some(stream),
        Phase::Sent(_) => entry.poster.stream.as_ref().map(|stream| stream.id()),
        _ => None,
    };
    let waiters = match entry.phase {
        Phase::Done(_) => &[],
        _ => &entry.waiters[..],
    };
    let worker = worker.map(|stream| (stream, entry.order));
    let waiters = waiters.iter().map(|w| (w.stream, w.order));
    worker.into_iter().chain(waiters)
}

/// What a stream waits for with this request, if it does: something of the peer's, or of this
/// rank's CPU.
fn waits_for(state: &State, key: RequestKey) -> Option<&'static str> {
    let entry = state.requests.get(key)?;
    if entry.phase == Phase::Unmatched {
        return Some(match state.has_mail(entry.tag) {
            true => "and for progress() to take in",
            false => "to send",
        });
    }
    let peer = state.peers.get(entry.peer as usize)?.as_deref()?;
    if entry.receive {
        let channel = peer.recvs.get(&entry.tag)?;
        let there = has_come(channel.word(entry.number, entry.large), entry.number);
        return (!there).then_some("to send");
    }
    let channel = peer.sends.get(&entry.tag)?;
    if channel.room(entry.number).is_some() {
        return Some("to take earlier messages, for room for");
    }
    if entry.large && channel.reply(entry.number).is_none() {
        return Some("to receive");
    }
    matches!(entry.phase, Phase::Queued { .. }).then_some("and for progress() to send")
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Stuck {
            rank,
            peer,
            tag,
            number,
            what,
            stream,
            since,
        } = self;
        write!(
            f,
            "rank {rank}: stream {stream} has stood for {since:?}: it waits for "
        )?;
        match peer {
            Source::Rank(peer) => write!(f, "rank {peer} {what} message {number} under tag {tag}"),
            Source::Any => write!(f, "anybody {what} a message under tag {tag}"),
        }
    }
}
