//! Messages of at most the eager limit that the CPU copies at once: it sends one within the call that
//! posts it, and takes one in within the first check that finds it. Both do what `send`, `post`,
//! `take` and `finish` do for a message of one piece that needs nothing else; these do the rest.

use gdsync::Status;

use super::channel::RecvChannel;
use super::engine::Engine;
use super::peer::Need;
use super::receive::check_room;
use super::send::copy_now;
use super::spec::{On, RecvOp, SendOp, SizeSource, Source};
use super::state::State;
use super::take::acknowledge;
use crate::mutant::{Mutant, on};
use crate::path::Path;
use crate::region::Slice;
use crate::request::entry::{
    Common, Entry, Handle, Incoming, Operation, Outgoing, ReceiveState, SendState,
};
use crate::request::table::RequestKey;
use crate::wire::word::{self, WordKind};

impl Engine {
    /// Sends a message of `len` bytes whose slot is free, by mapped memory. Its request has ended.
    /// `None`: nothing is done.
    #[inline]
    pub(super) fn send_at_once(&self, spec: &SendOp<'_>, len: u64) -> Option<RequestKey> {
        let plain = matches!((&spec.on, &spec.size), (On::Cpu, SizeSource::Segments))
            && spec.packed.is_none()
            && spec.segments.len() <= 1;
        if !plain || !is_mapped(self.paths.to(spec.to)) || on(Mutant::SwappedMatchOrder) {
            return None;
        }
        let state = &mut *self.lock();
        self.sweep_if_crowded(state);
        let (tag, eager) = (spec.tag, true);
        let peer = state.peers.get_mut(spec.to)?;
        if !peer.is_here() || !peer.is_open(0, Need::Send { tag, eager }) {
            return None;
        }
        let channel = peer.channels.sends.get_mut(&tag)?;
        let number = channel.numbers.next();
        let fits = len <= channel.shape.eager.into();
        if !fits || channel.is_full() || channel.blocked_by(number).is_some() {
            return None;
        }
        state.requests.reserve(&self.gpu).ok()?;
        channel.refresh_ready(number);
        if let Some(ready) = channel.stale(number) {
            ready.store(word::threshold(number)).ok()?;
        }
        let lane = peer.link.lane(0)?;
        if !copy_now(lane, channel, number, spec.segments, len).unwrap_or(false) {
            return None;
        }
        channel.numbers.advance();
        let order = state.requests.next_order();
        channel.side.last_use = order;
        channel.side.first_use = channel.side.first_use.min(order);
        let entry = Entry {
            common: Common {
                number,
                len,
                order,
                ..Common::new(spec.to, tag, &[])
            },
            operation: Operation::Send(Outgoing {
                state: SendState::Done(Status::SUCCESS),
                ..Outgoing::default()
            }),
        };
        let limit = channel.shape.eager.into();
        peer.counts.ended(&entry, Status::SUCCESS, len, limit);
        Some(state.requests.put(entry))
    }

    /// Numbers and posts a receive of the CPU with room for `len` bytes. `None`: nothing is done.
    #[inline]
    pub(super) fn recv_at_once(&self, spec: &RecvOp<'_>, len: u64) -> Option<RequestKey> {
        let (On::Cpu, None, Source::Rank(rank)) = (&spec.on, spec.packed, spec.from) else {
            return None;
        };
        let state = &mut *self.lock();
        self.sweep_if_crowded(state);
        let (tag, eager) = (spec.tag, true);
        let peer = state.peers.get_mut(rank)?;
        let unmatched = state.matcher.first(&state.requests, tag);
        if unmatched.is_some() || !peer.is_here() || !peer.is_open(0, Need::Recv { tag, eager }) {
            return None;
        }
        let channel = peer.channels.recvs.get_mut(&tag)?;
        check_room(channel, &state.requests, rank, tag).ok()?;
        state.requests.reserve(&self.gpu).ok()?;
        let number = channel.numbers.next();
        channel.refresh_words(number);
        let order = state.requests.next_order();
        let key = state.requests.put(Entry {
            common: Common {
                number,
                len,
                timeout: spec.timeout,
                order,
                ..Common::new(rank, tag, spec.segments)
            },
            operation: Operation::Receive(Incoming {
                state: ReceiveState::Posted,
                ..Incoming::default()
            }),
        });
        channel.numbers.advance();
        *channel.newest(number) = Some(key);
        Some(key)
    }

    /// Takes the message of a receive of the CPU in, if it has arrived by mapped memory and fits. `true`:
    /// the receive has ended with success. `false`: nothing is done.
    #[inline]
    pub(super) fn take_at_once(&self, state: &mut State, key: RequestKey) -> bool {
        let State {
            requests,
            peers,
            trash,
            ..
        } = state;
        let Some(entry) = requests.get_mut(key) else {
            return false;
        };
        let Entry { common, operation } = &mut *entry;
        let Operation::Receive(receive) = operation else {
            return false;
        };
        if !is_plain(common, receive) {
            return false;
        }
        let Some(peer) = peers.get_mut(common.peer) else {
            return false;
        };
        let Some(channel) = peer.channels.recvs.get_mut(&common.tag) else {
            return false;
        };
        let number = common.number;
        let Some(len) = arrived(channel, number) else {
            return false;
        };
        if len > common.len || !copied(channel, number, common.segments.as_slice(), len) {
            return false;
        }
        acknowledge(channel, peer.link.lane(0), number, WordKind::Taken);
        receive.state = ReceiveState::Done(Status::SUCCESS);
        common.len = len;
        let segments = std::mem::take(&mut common.segments);
        let limit = channel.shape.eager.into();
        peer.counts.ended(entry, Status::SUCCESS, len, limit);
        if segments.as_slice().iter().any(Slice::is_last) {
            trash.segments.push(segments);
        }
        true
    }
}

/// Whether this rank copies what it sends by `path`.
fn is_mapped(path: Path) -> bool {
    matches!(path, Path::Local | Path::Ipc)
}

/// Whether the CPU has posted a receive whose end concerns the CPU alone.
fn is_plain(common: &Common, receive: &Incoming) -> bool {
    receive.state == ReceiveState::Posted
        && !common.large
        && common.handle == Handle::Held
        && common.poster.stream.is_none()
        && common.waiters.is_empty()
        && common.segments.as_slice().len() <= 1
        && receive.packed.is_none()
        && !receive.result_in_host
}

/// The length of message `number`, if its eager payload has arrived by mapped memory.
fn arrived(channel: &RecvChannel, number: u64) -> Option<u64> {
    let eager = channel.first_word(number);
    let len = eager.and_then(|(kind, len)| (kind == Some(WordKind::Eager)).then_some(len))?;
    let fits = len <= channel.shape.room() as u64;
    (fits && channel.has_rooms() && is_mapped(channel.path)).then_some(len)
}

/// Copies a message to the memory of its receive, if the CPU reaches both.
fn copied(channel: &RecvChannel, number: u64, segments: &[Slice], len: u64) -> bool {
    let (Ok((room, at)), [into]) = (channel.payload(number), segments) else {
        return len == 0;
    };
    let region = into.memory().region();
    let copied = region.copy_from(into.offset(), room, at, len as usize);
    copied.unwrap_or(false)
}
