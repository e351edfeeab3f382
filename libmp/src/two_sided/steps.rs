//! The background work of an exchange with neighbours: it ends the records of steps, and releases
//! the streams that wait for a peer that was given up.

use std::sync::Arc;

use gdsync::Status;

use super::engine::Engine;
use super::peer::Peer;
use super::state::State;
use crate::path::Link;
use crate::request::entry::Entry;
use crate::request::step::{ExchangeWords, PeerState, Sent, parity, reached};
use crate::request::table::RequestKey;

impl Engine {
    /// Ends a step when the stream has passed its waits. Releases the waits for peers that were
    /// given up, and finds the peer for which the stream waits.
    pub(crate) fn advance_step(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(step) = state.requests.get(key).and_then(Entry::step) else {
            return false;
        };
        let (words, number) = (Arc::clone(&step.words), step.number);
        let passed = step.is_passed();
        if passed {
            self.find_failed_puts(state, key, &words, number);
        }
        for (at, peer) in words.peers.iter().enumerate() {
            let Some(status) = state.given_up(peer.rank) else {
                continue;
            };
            if peer.is_lost(number) {
                // The peer was late: it has stored its word over the one that releases.
                if peer.lacks(number).is_some() {
                    peer.release_waits(words.ended());
                }
                continue;
            }
            peer.close();
            let unsent = matches!(state.sent(&words, at, number), Some(false));
            // Stored before the streams continue.
            if unsent || state.fails_step(key, peer.rank) {
                self.set_error(status);
            }
            words.lose(peer, number, unsent);
        }
        if passed || self.is_over(state, key, &words) {
            self.end_step(state, key);
            return true;
        }
        let Some(entry) = state.requests.get_mut(key) else {
            return false;
        };
        let Some(step) = entry.step() else {
            return false;
        };
        let mut peers = words.peers.iter();
        let ready = peers.all(|peer| reached(&peer.ready[parity(number)], number));
        // The stream has passed, or will pass, the waits of the send.
        let order = step.wait.filter(|_| ready).unwrap_or(entry.order);
        let missing = step.lack().map(|(peer, _)| (peer.rank, peer.receive));
        entry.order = order;
        if let Some((rank, tag)) = missing {
            (entry.peer, entry.tag) = (rank, tag);
        }
        false
    }

    /// Ends a step whose waits have ended: with the failure of the first peer that was given up, or
    /// with success.
    fn end_step(&self, state: &mut State, key: RequestKey) {
        let step = state.requests.get(key).and_then(Entry::step);
        let lost = step.and_then(|step| step.lost().map(|peer| (peer.rank, peer.receive)));
        let State {
            requests, peers, ..
        } = &mut *state;
        if let Some(step) = requests.get(key).and_then(Entry::step) {
            step.words.end(step.number);
            let here = |peer: &&PeerState| !peer.is_lost(step.number);
            for peer in step.words.peers.iter().filter(here) {
                if let Some(Peer { counts, .. }) = peers.get_mut(peer.rank) {
                    counts.steps += peer.count;
                    counts.exchanged(peer.bytes);
                }
            }
        }
        let status = match lost {
            None => Status::SUCCESS,
            Some((rank, tag)) => {
                if let Some(entry) = state.requests.get_mut(key) {
                    (entry.peer, entry.tag) = (rank, tag);
                }
                state.given_up(rank).unwrap_or(Status::CLOSED)
            }
        };
        self.finish(state, key, status, 0);
    }

    /// As [`Engine::end_step`], for a call that returns the failure itself.
    pub(crate) fn end_step_of_call(&self, state: &mut State, key: RequestKey) {
        state.return_fault(key);
        self.end_step(state, key);
    }

    /// Gives up peers whose put has failed: the failure has released the stream.
    fn find_failed_puts(
        &self,
        state: &mut State,
        key: RequestKey,
        words: &ExchangeWords,
        number: u64,
    ) {
        for (at, peer) in words.peers.iter().enumerate() {
            if state.sent(words, at, number) == Some(false) && state.given_up(peer.rank).is_none() {
                let link = state.peers.get_mut(peer.rank).map(|peer| &mut peer.link);
                let error = link.and_then(Link::error);
                let status = error.unwrap_or(Status::CLOSED);
                if let Some(entry) = state.requests.get_mut(key) {
                    (entry.peer, entry.tag) = (peer.rank, peer.send);
                }
                let text = self.status_text(state, peer.rank, status);
                self.give_up_for(state, key, status, text);
            }
        }
    }

    /// Whether a step without a wait has ended because no handle is left, and its puts and its kernel have ended.
    fn is_over(&self, state: &mut State, key: RequestKey, words: &ExchangeWords) -> bool {
        let step = state.requests.get(key).and_then(Entry::step);
        let Some(number) = step.filter(|step| step.wait.is_none()).map(|s| s.number) else {
            return false;
        };
        let ended = |at: usize| state.sent(words, at, number).is_some();
        let has_kernel = words.last().has_kernel(number);
        words.is_abandoned()
            && (!has_kernel || reached(&words.left, number))
            && (0..words.peers.len()).all(ended)
    }
}

impl State {
    /// Whether the put of a step to a peer has ended, and succeeded; `None`: it is in flight.
    /// Steps before the last count as sent.
    pub fn sent(&mut self, words: &ExchangeWords, at: usize, step: u64) -> Option<bool> {
        let last = words.last();
        if last.step != step {
            return Some(true);
        }
        let (lane, put) = match last.sent[at] {
            Sent::Not => return Some(false),
            Sent::Kernel if reached(&words.peers[at].left, step) => return Some(true),
            Sent::Kernel => return self.given_up(words.peers[at].rank).map(|_| false),
            Sent::Put(lane, put) => (lane, put),
        };
        let peer = self.peers.get_mut(words.peers[at].rank);
        let lane = peer.and_then(|peer| peer.link.lane(lane));
        match lane.map(|lane| lane.poll(put)) {
            Some(Ok(None)) => None,
            // So old that the queue has no state for it, or done.
            Some(Err(_) | Ok(Some(Status::SUCCESS))) => Some(true),
            None | Some(Ok(Some(_))) => Some(false),
        }
    }

    /// Whether a step fails if `rank` is given up.
    pub fn fails_step(&mut self, key: RequestKey, rank: u32) -> bool {
        let Some(step) = self.requests.get(key).and_then(Entry::step) else {
            return false;
        };
        let (words, number) = (Arc::clone(&step.words), step.number);
        let mut peers = words.peers.iter();
        let Some(at) = peers.position(|peer| peer.rank == rank) else {
            return false;
        };
        words.peers[at].lacks(number).is_some() || self.sent(&words, at, number) != Some(true)
    }
}
