//! Short messages of the CPU that are copied in one step: a send whose slot is free ends within the call
//! that posts it, and a receive ends within the first check that finds its message. Both need mapped
//! memory and a message of one piece. Everything else takes the general way, by `send` and `post`, and by
//! `take` and `finish`.
//!
//! A request that ends here has no result in its word before a caller asks for the address of the word
//! ([`Table::shown_result`](crate::request::table::Table::shown_result)).

use gdsync::Status;

use super::channel::{RecvChannel, SendChannel};
use super::engine::Engine;
use super::peer::{Need, Peer};
use super::send::copy_eager;
use super::spec::{On, SendOp, SizeSource};
use super::state::State;
use super::take::acknowledge;
use crate::mutant::{Mutant, on};
use crate::region::Slice;
use crate::request::entry::{
    Common, Entry, Handle, Incoming, Operation, Outgoing, ReceiveState, SendState,
};
use crate::request::table::RequestKey;
use crate::wire::word::WordKind;

impl Engine {
    /// Sends a message of `len` bytes whose slot is free. Its request has ended. `None`: no message got a
    /// number; the general way finds the same reason, and waits or returns its error.
    #[inline]
    pub(super) fn send_at_once(&self, spec: &SendOp<'_>, len: u64) -> Option<RequestKey> {
        let simple = matches!((&spec.on, &spec.size), (On::Cpu, SizeSource::Segments))
            && spec.packed.is_none()
            && spec.segments.len() <= 1;
        // The mutant is in the general way.
        if !simple || self.paths.to(spec.to).has_queues() || on(Mutant::SwappedMatchOrder) {
            return None;
        }
        let state = &mut *self.lock();
        self.sweep_if_crowded(state);
        state.requests.reserve(&self.gpu).ok()?;
        let peer = state.peers.get_mut(spec.to)?;
        let number = free_number(peer, spec.tag, len)?;
        let channel = peer.channels.sends.get_mut(&spec.tag)?;
        let lane = peer.link.lane(0)?;
        if !copy_eager(lane, channel, number, spec.segments, len).unwrap_or(false) {
            return None;
        }
        channel.numbers.advance();
        let order = state.requests.next_order();
        channel.note_use(order);
        let entry = Entry {
            common: Common {
                number,
                len,
                order,
                ..Common::new(spec.to, spec.tag, &[])
            },
            operation: Operation::Send(Outgoing {
                state: SendState::Done(Status::SUCCESS),
                ..Outgoing::default()
            }),
        };
        let limit = self.config.eager_limit(channel.path) as u64;
        peer.counts.ended(&entry, Status::SUCCESS, len, limit);
        Some(state.requests.put(entry))
    }

    /// Takes the message of a receive of the CPU in, if it has arrived and fits. `true`: the receive has
    /// ended with success. `false`: nothing is done.
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
        if !is_simple(common, receive) {
            return false;
        }
        let Some(peer) = peers.get_mut(common.peer) else {
            return false;
        };
        let Some(channel) = peer.channels.recvs.get_mut(&common.tag) else {
            return false;
        };
        let number = common.number;
        let Some(len) = eager_len(channel, number) else {
            return false;
        };
        if len > common.len || !copy_in(channel, number, common.segments.as_slice(), len) {
            return false;
        }
        acknowledge(channel, peer.link.lane(0), number, WordKind::Taken);
        receive.state = ReceiveState::Done(Status::SUCCESS);
        common.len = len;
        let segments = std::mem::take(&mut common.segments);
        let limit = self.config.eager_limit(channel.path) as u64;
        peer.counts.ended(entry, Status::SUCCESS, len, limit);
        trash.keep_last(segments);
        true
    }
}

/// The number of the next message to `peer` under `tag`, of `len` bytes, if its slot is free and the CPU may
/// send it.
#[inline]
fn free_number(peer: &Peer, tag: u32, len: u64) -> Option<u64> {
    let need = Need::Send { tag, eager: true };
    if !peer.is_here() || !peer.is_open(0, need) {
        return None;
    }
    let channel: &SendChannel = peer.channels.sends.get(&tag)?;
    let number = channel.numbers.next();
    let short = len <= channel.shape.eager.into();
    (short && !channel.is_full() && channel.blocked_by(number).is_none()).then_some(number)
}

/// Whether the CPU has posted a short receive whose end concerns only the CPU, and which stays in the table
/// behind its end.
fn is_simple(common: &Common, receive: &Incoming) -> bool {
    receive.state == ReceiveState::Posted
        && !common.large
        && common.handle == Handle::Held
        && common.poster.stream.is_none()
        && common.waiters.is_empty()
        && common.segments.as_slice().len() <= 1
        && receive.packed.is_none()
        && !receive.result_in_host
}

/// The length of message `number`, if it is in its room.
fn eager_len(channel: &RecvChannel, number: u64) -> Option<u64> {
    let (kind, len) = channel.first_word(number)?;
    let fits = len <= channel.shape.room() as u64 && channel.has_rooms();
    (kind == Some(WordKind::Eager) && fits && !channel.path.has_queues()).then_some(len)
}

/// Copies a message to the memory of its receive, if the CPU reaches both. `false`: it does not.
fn copy_in(channel: &RecvChannel, number: u64, segments: &[Slice], len: u64) -> bool {
    let number = number + u64::from(on(Mutant::WrongPayload));
    let (Ok((room, at)), [into]) = (channel.payload(number), segments) else {
        return len == 0;
    };
    let region = into.memory().region();
    let copied = region.copy_from(into.offset(), room, at, len as usize);
    copied.unwrap_or(false)
}
