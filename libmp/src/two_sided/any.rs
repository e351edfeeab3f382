//! The matcher of receives from any rank.
//!
//! It runs on the CPU, in the background work and in calls that wait. A receive from any rank
//! becomes an ordinary CPU receive when a message under its tag has arrived, or is announced, from
//! some rank. Receives under one tag match in the order in which they were posted.

use gdsync::Status;

use super::engine::Engine;
use super::peer::{Need, Peers};
use super::receive::{advertise, check_ready_order};
use super::state::State;
use crate::error::{Kind, Result};
use crate::path::{Batch, Path};
use crate::request::entry::{Entry, Operation, ReceiveState};
use crate::request::reached::Reached;
use crate::request::table::{RequestKey, Table};
use crate::wire::word::WordKind;

/// Receives from any rank that no message has matched.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    /// Oldest first.
    waiting: Vec<RequestKey>,
    /// The rank at which the next search starts.
    from: u32,
}

/// One pass over the receives.
#[derive(Debug, Default)]
struct Pass {
    at: usize,
    /// Tags whose oldest receive has no match: later receives do not overtake it.
    blocked: Vec<u32>,
}

impl Matcher {
    pub fn add(&mut self, key: RequestKey) {
        self.waiting.push(key);
    }

    pub fn remove(&mut self, key: RequestKey) {
        self.waiting.retain(|other| *other != key);
    }

    /// The oldest receive under `tag`.
    pub fn first(&self, requests: &Table, tag: u32) -> Option<RequestKey> {
        let same = |key: &&RequestKey| requests.get(**key).is_some_and(|entry| entry.tag == tag);
        self.waiting.iter().find(same).copied()
    }

    /// The tags of all unmatched receives.
    pub fn tags(&self, requests: &Table) -> Vec<u32> {
        let entries = self.waiting.iter().filter_map(|key| requests.get(*key));
        entries.map(|entry| entry.tag).collect()
    }

    /// Removes the next receive of a pass for which there is a message. Returns it with its tag and
    /// the message's rank.
    fn next(
        &mut self,
        pass: &mut Pass,
        requests: &Table,
        reached: &Reached,
        peers: &Peers,
    ) -> Option<(RequestKey, u32, u32)> {
        while let Some(key) = self.waiting.get(pass.at).copied() {
            let Some(entry) = requests.get(key) else {
                self.waiting.remove(pass.at);
                continue;
            };
            let mark = entry.receive().and_then(|receive| receive.reached);
            let there = mark.is_none_or(|mark| reached.has(mark));
            if there
                && !pass.blocked.contains(&entry.tag)
                && let Some(rank) = unexpected(peers, entry.tag, self.from)
            {
                self.waiting.remove(pass.at);
                return Some((key, entry.tag, rank));
            }
            if !pass.blocked.contains(&entry.tag) {
                pass.blocked.push(entry.tag);
            }
            pass.at += 1;
        }
        None
    }

    /// Reinserts a receive that could not be matched now.
    fn put_back(&mut self, pass: &mut Pass, key: RequestKey, tag: u32) {
        self.waiting.insert(pass.at, key);
        pass.blocked.push(tag);
        pass.at += 1;
    }
}

impl Engine {
    /// Matches receives with unexpected messages. `true`: at least one was matched.
    pub(crate) fn match_any(&self, state: &mut State) -> bool {
        let (mut matched, mut pass) = (false, Pass::default());
        while let Some((key, tag, rank)) =
            state
                .matcher
                .next(&mut pass, &state.requests, &state.reached, &state.peers)
        {
            match self.match_with(state, key, rank) {
                // The lane has no room: it is retried in the next round.
                Err(e) if matches!(e.kind(), Kind::QueueFull | Kind::Busy) => {
                    state.matcher.put_back(&mut pass, key, tag);
                    continue;
                }
                Err(e) => {
                    tracing::warn!(target: "mp", "rank {}: from rank {rank}: {e}", self.rank);
                    let status = e.status().unwrap_or(Status::LOCAL_QP_OPERATION);
                    self.finish(state, key, status, 0);
                }
                Ok(()) => {}
            }
            state.matcher.from = (rank + 1) % self.size;
            matched = true;
        }
        matched
    }

    /// Turns the receive into one from `rank`, whose next message has arrived or is announced.
    fn match_with(&self, state: &mut State, key: RequestKey, rank: u32) -> Result<()> {
        if self.paths.to(rank) == Path::Ipc
            && let Some(memory) = state.requests.get(key).and_then(Entry::landing).cloned()
        {
            self.offer(state, rank, memory.keys())?;
        }
        let (Some(entry), Some(peer)) = (state.requests.get_mut(key), state.peers.get_mut(rank))
        else {
            return Ok(());
        };
        let Entry { common, operation } = entry;
        let channel = peer.channels.recvs.get_mut(&common.tag);
        let (Operation::Receive(receive), Some(channel)) = (operation, channel) else {
            return Ok(());
        };
        let number = channel.numbers.next();
        common.number = number;
        channel.refresh_words(number);
        let announced = matches!(
            channel.first_word(number),
            Some((Some(WordKind::Announce), _))
        );
        if announced && common.large {
            check_ready_order(channel, &mut peer.link, number, 0)?;
            if let Some((lane, shared)) = peer.link.lane_and_shared(0) {
                let mut batch = Batch::new(lane);
                // The CPU posts it, and stores nothing in device memory.
                let stream = common.poster.stream.take();
                let advertised = advertise(&mut batch, shared, channel, common, receive);
                common.poster.stream = stream;
                advertised?;
                *channel.ready_put(number) = Some((0, batch.post()?));
            }
        }
        common.peer = rank;
        // A matched receive belongs to the CPU; the matcher takes it only after its stream has
        // reached it.
        common.poster.lane = 0;
        common.end.stream = common.poster.stream.take().map(|stream| stream.id());
        receive.state = ReceiveState::Posted;
        *channel.newest(number) = Some(key);
        channel.numbers.advance();
        Ok(())
    }
}

/// A rank whose next message under `tag` is unexpected: it has arrived or is announced, and no
/// receive matches it. The search starts at `from`.
pub(super) fn unexpected(peers: &Peers, tag: u32, from: u32) -> Option<u32> {
    let size = peers.size();
    (0..size).map(|i| (from + i) % size).find(|rank| {
        let Some(peer) = peers.get(*rank) else {
            return false;
        };
        let Some(channel) = peer.channels.recvs.get(&tag).filter(|c| c.is_open()) else {
            return false;
        };
        let number = channel.numbers.next();
        let ready = match peer.is_here() {
            true => peer.is_open(0, Need::Lanes),
            false => channel.has_unexpected(),
        };
        ready && channel.is_free(number) && channel.has_come(number, false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::entry::{Common, Incoming};
    use crate::two_sided::receive::ANY_RANK;

    #[test]
    fn receives_keep_their_order_and_released_ones_are_removed() {
        let (mut matcher, mut requests) = (Matcher::default(), Table::new());
        let gpu = gdsync::Gpu::soft().unwrap();
        requests.reserve(&gpu).unwrap();
        let mut post = |tag| {
            let operation = Operation::Receive(Incoming::default());
            let common = Common::new(ANY_RANK, tag, &[]);
            requests.put(Entry { common, operation })
        };
        let keys = [post(1), post(2), post(1)];
        keys.into_iter().for_each(|key| matcher.add(key));
        assert_eq!(matcher.tags(&requests), [1, 2, 1]);
        assert_eq!(matcher.first(&requests, 1), Some(keys[0]));
        matcher.remove(keys[0]);
        assert_eq!(matcher.first(&requests, 1), Some(keys[2]));
        // There is no message: each tag is searched for once.
        let mut pass = Pass::default();
        let (reached, peers) = (Reached::new(&gpu, None), Peers::new(2));
        assert_eq!(matcher.next(&mut pass, &requests, &reached, &peers), None);
        assert_eq!(pass.blocked, [2, 1]);
        matcher.waiting.remove(1);
        let mut pass = Pass::default();
        matcher.put_back(&mut pass, keys[2], 1);
        assert_eq!((matcher.waiting, pass.at), (vec![keys[2], keys[1]], 1));
    }
}
