//! The background work for zero-SM messages: how they end, what the CPU takes in, and what is settled.

use std::sync::atomic::{Ordering, fence};

use gdsync::Status;

use super::engine::Engine;
use super::progress::arrived;
use super::state::State;
use super::take::copy_region;
use super::zero_sm::{Entries, Field, Sends, part};
use crate::request::entry::{Entry, Operation};
use crate::request::table::RequestKey;
use crate::request::zero_sm::Way;

/// Bytes that the CPU copies at a time, because other calls wait meanwhile.
const PART: u64 = 4 << 20;

/// How a message ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    With(Status, u64),
    /// The message of this length is longer than its receive, as the other rank says; streams of this rank may
    /// wait still.
    Cut(u64),
    /// Once the CPU has copied it.
    Copied,
}

/// How a message to the memory of a receive with this room ends, if it has.
fn end_of_direct(entries: &Entries, number: u64, room: u64) -> Option<End> {
    let (sent, cut) = (
        entries.has(number, Field::Sent),
        entries.has(number, Field::Cut),
    );
    // Behind the words that follow it: the entry may have the length of an earlier message before.
    let len = entries.load(number, Field::Len);
    match (sent, cut) {
        // The peer has stored more than the receive has room for, or says so.
        (true, _) if len > room => Some(End::With(Status::BAD_RESPONSE, 0)),
        (true, _) => Some(End::With(Status::SUCCESS, len)),
        (false, true) if len > room => Some(End::Cut(len)),
        (false, true) => Some(End::With(Status::BAD_RESPONSE, 0)),
        (false, false) => None,
    }
}

/// Whether the sender of a message in a slot has given this rank up, and may have written another message there.
pub(super) fn is_overwritten(entries: &Entries, number: u64, way: Way) -> bool {
    matches!(way, Way::Staged { .. }) && entries.has(number, Field::Cut)
}

impl Engine {
    /// Advances a zero-SM message. `true`: its state changed.
    pub fn advance_zero_sm(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        if entry.status().is_some() {
            return state.requests.forget(key);
        }
        let (rank, tag, number) = (entry.peer, entry.tag, entry.number);
        let sends = !entry.is_receive();
        let (status, len) = match self.end_of_zero_sm(state, key) {
            None => return false,
            Some(End::With(status, len)) => (status, len),
            Some(End::Cut(len)) => {
                self.finish(state, key, Status::TRUNCATED, len);
                // Behind the error word.
                if let Some(peer) = state.peers.get(rank) {
                    peer.zero_sm.end_cut(sends, tag, number);
                }
                return true;
            }
            Some(End::Copied) => match self.copy_zero_sm(state, key) {
                Some(end) => end,
                None => return true,
            },
        };
        self.finish(state, key, status, len);
        true
    }

    fn end_of_zero_sm(&self, state: &State, key: RequestKey) -> Option<End> {
        let entry = state.requests.get(key)?;
        let message = entry.zero_sm()?;
        let peer = state.peers.get(entry.peer)?;
        let number = entry.number;
        let lost = || End::With(peer.failed().unwrap_or(Status::REMOTE_ABORTED), 0);
        if message.sends {
            let channel = peer.zero_sm.sends.get(&entry.tag)?;
            if channel.window.get(number).is_some_and(|flight| flight.lost) {
                return Some(lost());
            }
            if message.queued {
                return channel.may_leave(number).then_some(End::Copied);
            }
            let has = |field| channel.entries.has(number, field);
            return match (has(Sends::end(message.way)), message.way) {
                (true, _) => Some(End::With(Status::SUCCESS, entry.len)),
                (false, Way::Pulled) => has(Field::Cut).then_some(End::Cut(entry.len)),
                (false, _) => None,
            };
        }
        let channel = peer.zero_sm.recvs.get(&entry.tag)?;
        if channel.window.get(number).is_some_and(|flight| flight.lost) {
            return Some(lost());
        }
        let has = |field| channel.entries.has(number, field);
        if message.way == Way::Direct {
            return end_of_direct(&channel.entries, number, entry.len);
        }
        // Loaded behind `done`.
        let done = message.claimed.is_some().then(|| has(Field::Done));
        let overwritten = is_overwritten(&channel.entries, number, message.way);
        match done {
            Some(false) => return None,
            None if !overwritten => {}
            _ if overwritten => return Some(lost()),
            _ => return Some(End::With(Status::SUCCESS, message.arriving)),
        }
        let reached = || {
            let poster = entry.poster.stream.as_ref();
            has(Field::Ready) || poster.is_none_or(|stream| stream.has_ended())
        };
        (message.wanted && has(Field::Sent) && reached()).then_some(End::Copied)
    }

    /// Copies a part of a message by the CPU: to the memory of its receive, or to a slot. `None`: it was not the
    /// last one.
    fn copy_zero_sm(&self, state: &mut State, key: RequestKey) -> Option<(Status, u64)> {
        let State {
            peers, requests, ..
        } = &mut *state;
        let Entry { common, operation } = requests.get_mut(key)?;
        let Operation::ZeroSm(message) = operation else {
            return None;
        };
        let peer = peers.get(common.peer)?;
        let far = message.far.as_ref().map(|(region, at)| (region, *at));
        let own = common.segments.as_slice().first().map(part);
        let (entries, to, from, len) = match message.sends {
            true => {
                let channel = peer.zero_sm.sends.get(&common.tag)?;
                (&channel.entries, far, own, common.len)
            }
            false => {
                let channel = peer.zero_sm.recvs.get(&common.tag)?;
                let slot = match message.way {
                    Way::Staged { slot } => Some(channel.slot(slot)),
                    _ => far,
                };
                (&channel.entries, own, slot, message.arriving)
            }
        };
        let (at, n) = (message.moved as usize, PART.min(len - message.moved));
        let copied = match to.zip(from) {
            Some((to, from)) if n > 0 => {
                copy_region((to.0, to.1 + at), (from.0, from.1 + at), n as usize)
            }
            _ => Ok(()),
        };
        message.moved += n;
        if let Err(e) = copied {
            let status = e.status().unwrap_or(Status::LOCAL_ACCESS);
            // The other rank finds no word, and this one lost.
            let why = format!("the message cannot be copied: {e}");
            self.give_up_for(state, key, status, why);
            return Some((status, 0));
        }
        if message.moved < len {
            return None;
        }
        if message.sends {
            entries.set(common.number, Field::Sent);
            entries.set(common.number, Field::Left);
            return Some((Status::SUCCESS, len));
        }
        // Behind the copy: the sender stores the word before it writes to the slot again.
        fence(Ordering::Acquire);
        if is_overwritten(entries, common.number, message.way) {
            let status = peer.failed().unwrap_or(Status::REMOTE_ABORTED);
            return Some((status, 0));
        }
        entries.set(common.number, Field::Done);
        Some((Status::SUCCESS, len))
    }

    /// Settles the messages with a rank, or those of one tag, and reports sends that had ended with success and were
    /// longer than their receives.
    pub fn settle_zero_sm(&self, state: &mut State, rank: u32, tag: Option<u32>) {
        let Some(peer) = state.peers.get_mut(rank).filter(|p| !p.zero_sm.is_empty()) else {
            return;
        };
        for (tag, number, len) in peer.zero_sm.settle(tag) {
            self.zero_sm_was_cut(state, (rank, tag, number), len);
        }
    }

    /// Reports a short message that was longer than its receive, and whose send had ended with success.
    #[cold]
    fn zero_sm_was_cut(&self, state: &mut State, (rank, tag, number): (u32, u32, u64), len: u64) {
        self.set_error(Status::TRUNCATED);
        let found = state.requests.iter().find(|(_, entry)| {
            let sends = matches!(&entry.operation, Operation::ZeroSm(message) if message.sends);
            sends && (entry.peer, entry.tag, entry.number) == (rank, tag, number)
        });
        match found.map(|(key, _)| key) {
            Some(key) => self.fail_ended(state, key, len),
            None => self.keep_truncation(state, (rank, tag, number), len),
        }
    }

    /// Stores the results of the messages that are lost with a rank, before streams are released.
    pub fn fail_zero_sm(&self, state: &State, rank: u32, status: Status) {
        for (key, entry) in state.requests.iter() {
            if entry.peer == rank && entry.zero_sm().is_some() && !arrived(state, key) {
                state.requests.set_result(key, status, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use gdsync::Gpu;
    use gdsync::rdma::Device;

    use super::*;
    use crate::path::Paths;
    use crate::two_sided::zero_sm::{ENTRIES, Recvs};

    /// The entry is used again: its length is that of an earlier message until the sender stores the new one,
    /// in front of `sent` or `cut`.
    #[test]
    fn length_is_that_of_the_message_that_was_sent() {
        const MESSAGES: u64 = 100_000;
        const ROOM: u64 = 64;
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap()).with_mapped(2);
        let entries = Recvs::make(&paths, 128).unwrap().entries;
        // Messages of one entry. Every second one is longer than the room.
        let number = |i: u64| i * ENTRIES;
        let fits = |i: u64| i.is_multiple_of(2);
        let len = |i: u64| if fits(i) { 1 + i % ROOM } else { ROOM + i };
        let mut wrong = Vec::new();
        thread::scope(|threads| {
            threads.spawn(|| {
                for i in 1..MESSAGES {
                    while !entries.has(number(i - 1), Field::Done) && i > 1 {
                        thread::yield_now();
                    }
                    entries.store(number(i), Field::Len, len(i));
                    let end = if fits(i) { Field::Sent } else { Field::Cut };
                    entries.set(number(i), end);
                }
            });
            for i in 1..MESSAGES {
                let end = loop {
                    match end_of_direct(&entries, number(i), ROOM) {
                        None => thread::yield_now(),
                        Some(end) => break end,
                    }
                };
                let expected = match fits(i) {
                    true => End::With(Status::SUCCESS, len(i)),
                    false => End::Cut(len(i)),
                };
                if end != expected {
                    wrong.push((i, end));
                }
                entries.set(number(i), Field::Done);
            }
        });
        assert_eq!(wrong, []);
    }
}
