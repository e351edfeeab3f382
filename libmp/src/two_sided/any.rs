//! Receives from anybody: the matcher.
//!
//! It runs on the CPU, in the background work and in calls that wait: such a receive becomes an
//! ordinary one of the CPU's when a message under its tag has come, or is announced, from some
//! rank. Receives under one tag match in the order in which they were posted.

use gdsync::Status;

use super::channel::has_come;
use super::engine::Engine;
use super::peer::Target;
use super::receive::{settle_told, tell_place};
use super::state::State;
use crate::error::{Kind, Result};
use crate::path::Batch;
use crate::request::table::{Phase, RequestKey};
use crate::wire::word::{self, WordKind};

impl Engine {
    /// Matches what can be matched. `true`: something was.
    pub(crate) fn match_any(&self, state: &mut State) -> bool {
        let mut matched = false;
        let mut at = 0;
        let mut blocked: Vec<u32> = Vec::new();
        while let Some(key) = state.any_source.get(at).copied() {
            let Some((tag, stands)) = state.requests.get(key).map(|entry| {
                let marked = entry.receive().and_then(|receive| receive.marked.as_ref());
                let there =
                    marked.is_none() || state.requests.mark_word(key).load().unwrap_or(0) == 1;
                (entry.tag, there && !blocked.contains(&entry.tag))
            }) else {
                state.any_source.remove(at);
                continue;
            };
            let found = if stands { find(state, tag) } else { None };
            match found {
                Some(rank) => match self.adopt(state, key, rank) {
                    // No room on the lane: it is tried again in the next round.
                    Err(e) if matches!(e.kind(), Kind::QueueFull | Kind::Busy) => {
                        blocked.push(tag);
                        at += 1;
                    }
                    adopted => {
                        state.any_source.remove(at);
                        state.any_from = (rank + 1) % self.size;
                        if let Err(e) = adopted {
                            tracing::warn!(target: "mp", "rank {}: from rank {rank}: {e}", self.rank);
                            let status = e.status().unwrap_or(Status::LOCAL_QP_OPERATION);
                            self.finish(state, key, status, 0);
                        }
                        matched = true;
                    }
                },
                None => {
                    blocked.push(tag);
                    at += 1;
                }
            }
        }
        matched
    }

    /// Makes the receive one from `rank`, whose next message is there or announced.
    fn adopt(&self, state: &mut State, key: RequestKey, rank: u32) -> Result<()> {
        let State {
            peers, requests, ..
        } = state;
        let (Some(entry), Some(peer)) =
            (requests.get_mut(key), peers[rank as usize].as_deref_mut())
        else {
            return Ok(());
        };
        let Some(channel) = peer.recvs.get_mut(&entry.tag) else {
            return Ok(());
        };
        let number = channel.next;
        let slot = channel.shape.slot(number);
        entry.number = number;
        let first = channel.word(number, false).load()?;
        let announced = word::parse(first).1 == Some(WordKind::Announce);
        if announced && entry.large {
            settle_told(channel, &mut peer.link, slot, 0)?;
            if let Some(lane) = peer.link.lane(0) {
                let mut batch = Batch::new(lane);
                tell_place(&mut batch, channel, entry)?;
                channel.told[slot] = Some((0, batch.post()?));
            }
        }
        entry.peer = rank;
        // Matched, it is the CPU's, who took it up when its stream was there.
        entry.poster.lane = 0;
        entry.end.stream = entry.poster.stream.take().map(|stream| stream.id());
        entry.phase = Phase::Posted;
        channel.next += 1;
        channel.receives[slot] = Some(key);
        Ok(())
    }
}

impl State {
    /// Whether a receive from anybody under `tag` could be matched.
    pub(super) fn has_mail(&self, tag: u32) -> bool {
        find(self, tag).is_some()
    }
}

/// A rank whose next message under `tag` is there or announced, and which a receive can take.
fn find(state: &State, tag: u32) -> Option<u32> {
    let size = state.peers.len() as u32;
    (0..size).map(|i| (state.any_from + i) % size).find(|rank| {
        let Some(peer) = state.known(*rank) else {
            return false;
        };
        let Some(channel) = peer.recvs.get(&tag).filter(|c| c.is_open()) else {
            return false;
        };
        let number = channel.next;
        let ready = match peer.failed {
            Some(_) => channel.has_mail(),
            None => peer.is_open(0, Target::Lanes),
        };
        ready && channel.is_free(number) && has_come(channel.word(number, false), number)
    })
}
