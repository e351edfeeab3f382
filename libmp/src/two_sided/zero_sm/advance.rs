//! The background work for zero-SM messages: how they end, what the CPU takes in, and what is settled.

use gdsync::Status;

use super::channel::{Field, Sends};
use super::post::{At, part};
use crate::request::entry::{Entry, Operation};
use crate::request::fault::Name;
use crate::request::table::RequestKey;
use crate::request::zero_sm::Way;
use crate::two_sided::engine::Engine;
use crate::two_sided::progress::arrived;
use crate::two_sided::state::State;
use crate::two_sided::take::copy_region;

/// How a message ends.
enum End {
    With(Status, u64),
    /// The message is longer than its receive, whose streams wait still.
    Cut(u64),
    /// The CPU takes it in.
    Take,
    /// The CPU copies it to its receiver.
    Leave,
}

impl Engine {
    /// Advances a zero-SM message. `true`: its state changed.
    pub(in crate::two_sided) fn advance_zero_sm(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        if entry.status().is_some() {
            return state.requests.forget(key);
        }
        let (rank, tag, number) = (entry.peer, entry.tag, entry.number);
        let (cut, (status, len)) = match self.end_of_zero_sm(state, key) {
            None => return false,
            Some(End::With(status, len)) => (false, (status, len)),
            Some(End::Cut(len)) => (true, (Status::TRUNCATED, len)),
            Some(End::Take) => (false, self.take_zero_sm(state, key)),
            Some(End::Leave) => (false, self.leave_zero_sm(state, key)),
        };
        self.finish(state, key, status, len);
        if cut
            && let Some(peer) = state.peers.get(rank)
            && let Some(channel) = peer.zero_sm.recvs.get(&tag)
        {
            // Behind the error word.
            channel.entries.set(number, Field::Sent);
        }
        true
    }

    fn end_of_zero_sm(&self, state: &State, key: RequestKey) -> Option<End> {
        let entry = state.requests.get(key)?;
        let message = entry.zero_sm()?;
        let peer = state.peers.get(entry.peer)?;
        let number = entry.number;
        let lost = || End::With(peer.failed().unwrap_or(Status::CLOSED), 0);
        if message.sends {
            let channel = peer.zero_sm.sends.get(&entry.tag)?;
            if channel.window.get(number).is_some_and(|flight| flight.lost) {
                return Some(lost());
            }
            let load = |field| channel.entries.load(number, field);
            if message.queued {
                return channel.may_leave(number).then_some(End::Leave);
            }
            if !channel.entries.has(number, Sends::end(message.way)) {
                return None;
            }
            let pulled = message.way == Way::Pulled;
            let status = match pulled && load(Field::Capacity) < entry.len {
                true => Status::TRUNCATED,
                false => Status::SUCCESS,
            };
            return Some(End::With(status, entry.len));
        }
        let channel = peer.zero_sm.recvs.get(&entry.tag)?;
        if channel.window.get(number).is_some_and(|flight| flight.lost) {
            return Some(lost());
        }
        let has = |field| channel.entries.has(number, field);
        if message.way == Way::Direct {
            let len = channel.entries.load(number, Field::Len);
            return match (has(Field::Sent), has(Field::Cut)) {
                // The peer has stored more than the receive has room for, or says so.
                (true, _) if len > entry.len => Some(End::With(Status::BAD_RESPONSE, 0)),
                (true, _) => Some(End::With(Status::SUCCESS, len)),
                (false, true) if len > entry.len => Some(End::Cut(len)),
                (false, true) => Some(End::With(Status::BAD_RESPONSE, 0)),
                (false, false) => None,
            };
        }
        if message.claimed.is_some() {
            let done = End::With(Status::SUCCESS, message.arriving);
            return has(Field::Done).then_some(done);
        }
        let reached = || {
            let poster = entry.poster.stream.as_ref();
            has(Field::Ready) || poster.is_none_or(|stream| stream.has_ended())
        };
        (message.wanted && has(Field::Sent) && reached()).then_some(End::Take)
    }

    /// Copies a message to the memory of its receive, by the CPU.
    fn take_zero_sm(&self, state: &State, key: RequestKey) -> (Status, u64) {
        let closed = (Status::CLOSED, 0);
        let Some(entry) = state.requests.get(key) else {
            return closed;
        };
        let Some((message, peer)) = entry.zero_sm().zip(state.peers.get(entry.peer)) else {
            return closed;
        };
        let Some(channel) = peer.zero_sm.recvs.get(&entry.tag) else {
            return closed;
        };
        let len = message.arriving;
        let from = match message.way {
            Way::Staged { slot } => Some(channel.slot(slot)),
            _ => message.far.as_ref().map(|(region, at)| (region, *at)),
        };
        let to = entry.segments.as_slice().first().map(part);
        let ended = self.copied(to.zip(from), len);
        channel.entries.set(entry.number, Field::Done);
        ended
    }

    /// Copies a message from its memory to that of its receive, or to a slot, by the CPU.
    fn leave_zero_sm(&self, state: &State, key: RequestKey) -> (Status, u64) {
        let closed = (Status::CLOSED, 0);
        let Some(entry) = state.requests.get(key) else {
            return closed;
        };
        let Some((message, peer)) = entry.zero_sm().zip(state.peers.get(entry.peer)) else {
            return closed;
        };
        let Some(channel) = peer.zero_sm.sends.get(&entry.tag) else {
            return closed;
        };
        let to = message.far.as_ref().map(|(region, at)| (region, *at));
        let from = entry.segments.as_slice().first().map(part);
        let ended = self.copied(to.zip(from), entry.len);
        channel.entries.set(entry.number, Field::Sent);
        ended
    }

    /// Copies `len` bytes between regions, by the CPU, and returns how the message ends.
    fn copied(&self, memory: Option<(At<'_>, At<'_>)>, len: u64) -> (Status, u64) {
        let copied = match memory.filter(|_| len > 0) {
            Some((to, from)) => copy_region(to, from, len as usize),
            None => Ok(()),
        };
        match copied {
            Ok(()) => (Status::SUCCESS, len),
            Err(e) => {
                tracing::warn!(target: "mp", "rank {}: {e}", self.rank);
                (e.status().unwrap_or(Status::LOCAL_ACCESS), 0)
            }
        }
    }

    /// Settles the messages with a rank, and reports sends that had ended with success and were too long.
    pub(in crate::two_sided) fn settle_zero_sm(&self, state: &mut State, rank: u32) {
        let Some(peer) = state.peers.get_mut(rank).filter(|p| !p.zero_sm.is_empty()) else {
            return;
        };
        for (tag, number, len) in peer.zero_sm.settle() {
            self.zero_sm_was_cut(state, (rank, tag, number), len);
        }
    }

    /// Handles a short message that was longer than its receive, as of other short messages.
    #[cold]
    fn zero_sm_was_cut(&self, state: &mut State, (rank, tag, number): (u32, u32, u64), len: u64) {
        self.set_error(Status::TRUNCATED);
        let found = state.requests.iter().find(|(_, entry)| {
            let sends = matches!(&entry.operation, Operation::ZeroSm(message) if message.sends);
            sends && (entry.peer, entry.tag, entry.number) == (rank, tag, number)
        });
        match found.map(|(key, _)| key) {
            Some(key) => self.fail_ended(state, key, len),
            None => {
                let name = Name {
                    receive: false,
                    one_sided: None,
                    peer: Some(rank),
                    tag,
                    number,
                    size: len,
                };
                self.keep_truncation(state, name);
            }
        }
    }

    /// Stores the results of the messages that are lost with a rank, before streams are released.
    pub(in crate::two_sided) fn fail_zero_sm(&self, state: &State, rank: u32, status: Status) {
        for (key, entry) in state.requests.iter() {
            if entry.peer == rank && entry.zero_sm().is_some() && !arrived(state, key) {
                state.requests.set_result(key, status, 0);
            }
        }
    }

    /// Asks the CPU to complete a zero-SM receive.
    pub(in crate::two_sided) fn want_zero_sm(entry: &mut Entry) {
        if let Operation::ZeroSm(message) = &mut entry.operation {
            message.wanted = true;
        }
    }
}
