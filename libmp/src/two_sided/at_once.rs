//! Short messages of the CPU that are copied in one step: a send whose slot is free ends within the call
//! that posts it, and a receive ends within the first check that finds its message. Both need mapped
//! memory, or memory of this rank. Everything else takes the general way, by `send` and `post`, and by
//! `take` and `finish`.
//!
//! A request that ends here has no result in its word before a stream waits for the word
//! ([`Table::end_word`](crate::request::table::Table::end_word)) or a caller asks for its address
//! ([`Table::shown_result`](crate::request::table::Table::shown_result)).

use gdsync::Status;

use super::engine::Engine;
use super::peer::Need;
use super::send::copy_eager;
use super::spec::{On, SendOp, SizeSource};
use super::state::State;
use super::take::{acknowledge, take_in};
use crate::mutant::{Mutant, on};
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
        // `SwappedMatchOrder` changes numbers in the general way alone.
        if !simple || self.paths.to(spec.to).has_queues() || on(Mutant::SwappedMatchOrder) {
            return None;
        }
        let state = &mut *self.lock();
        self.sweep_if_crowded(state);
        state.requests.reserve(&self.gpu).ok()?;
        let (tag, eager) = (spec.tag, true);
        let peer = state.peers.get_mut(spec.to)?;
        if !peer.can_post(0, Need::Send { tag, eager }) {
            return None;
        }
        let channel = peer.channels.sends.get_mut(&tag)?;
        let number = channel.numbers.next();
        let short = len <= channel.shape.eager.into();
        if !short || channel.is_full() || channel.blocked_by(number).is_some() {
            return None;
        }
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
                ..Common::new(spec.to, tag, &[])
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

    /// Takes the message of a receive of the CPU in, if it has arrived and fits. `Some`: the receive has
    /// ended with success. `None`: nothing is done.
    #[inline]
    pub(super) fn take_at_once(&self, state: &mut State, key: RequestKey) -> Option<()> {
        let entry = state.requests.get_mut(key)?;
        let Entry { common, operation } = &mut *entry;
        let Operation::Receive(receive) = operation else {
            return None;
        };
        if !is_simple(common, receive) {
            return None;
        }
        let peer = state.peers.get_mut(common.peer)?;
        let channel = peer.channels.recvs.get_mut(&common.tag)?;
        let number = common.number;
        // Not in a flagged room: to look there takes a copy of an engine.
        if channel.path.has_queues() || !channel.has_word(number, false) {
            return None;
        }
        let w = channel.arrived(number, false)?;
        let Ok((Status::SUCCESS, len)) = take_in(channel, common, receive, w, None) else {
            return None;
        };
        acknowledge(channel, peer.link.lane(0), number, WordKind::Taken);
        receive.state = ReceiveState::Done(Status::SUCCESS);
        common.len = len;
        let segments = std::mem::take(&mut common.segments);
        let limit = self.config.eager_limit(channel.path) as u64;
        peer.counts.ended(entry, Status::SUCCESS, len, limit);
        state.trash.free_later(segments);
        Some(())
    }
}

/// Whether the receive is short, of the CPU and posted, its memory is not packed, its handle is held, and nothing
/// but the CPU waits for its result.
fn is_simple(common: &Common, receive: &Incoming) -> bool {
    receive.state == ReceiveState::Posted
        && !common.large
        && common.handle == Handle::Held
        && common.poster.stream.is_none()
        && common.waiters.is_empty()
        && receive.packed.is_none()
        && !receive.result_in_host
}
