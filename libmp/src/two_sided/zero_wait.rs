//! How a stream waits for a zero-SM message: it waits for a word, and takes in a message that
//! its sender has left.

use gdsync::Stream;
use gdsync::gpu::Word64;

use super::engine::Engine;
use super::marks::mark_others;
use super::state::{State, known, not_connected};
use super::wait::WAIT_ON;
use super::zero_advance::is_overwritten;
use super::zero_post::overwritten;
use super::zero_sm::{Field, Sends, move_bytes, part, released, value};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::path::{List, while_held};
use crate::request::entry::{Entry, Operation, Passed, Waiter};
use crate::request::table::RequestKey;
use crate::request::zero_sm::Way;

impl Engine {
    /// Makes a stream wait for a zero-SM message that has not ended.
    pub fn zero_sm_wait_on(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
    ) -> Result<()> {
        let entry = known(&mut state.requests, key)?;
        let (rank, tag, number, own) = (
            entry.peer,
            entry.tag,
            entry.number,
            entry.poster.id() == Some(stream.id()),
        );
        let Some(message) = entry.zero_sm() else {
            return Ok(());
        };
        let none = || not_connected(WAIT_ON, rank);
        let (way, claimed) = (message.way, message.claimed);
        let peer = state.peers.get(rank).ok_or_else(none)?;
        if claimed == Some(stream.id()) {
            return Ok(());
        }
        if message.sends {
            let field = match message.queued {
                true => Field::Left,
                false => Sends::end(way),
            };
            if own && field == Field::Sent {
                // The stream stores it in front of this call.
                return Ok(());
            }
            let channel = peer.zero_sm.sends.get(&tag).ok_or_else(none)?;
            let word = channel.entries.word(number, field)?;
            // This rank releases its streams from a wait for the peer.
            let least = match field {
                Field::Sent | Field::Left => value(number),
                _ => released(number),
            };
            return self.zero_sm_wait_for(state, key, stream, &word, least);
        }
        let channel = peer.zero_sm.recvs.get(&tag).ok_or_else(none)?;
        if !peer.is_here() && !channel.entries.has(number, Field::Sent) {
            let e = peer.error(WAIT_ON);
            state.return_fault(key);
            return Err(e);
        }
        if claimed.is_none() && is_overwritten(&channel.entries, number, way) {
            let e = overwritten(WAIT_ON, rank);
            state.return_fault(key);
            return Err(e);
        }
        match (way, claimed) {
            (Way::Direct, _) => {
                let word = channel.entries.word(number, Field::Sent)?;
                self.zero_sm_wait_for(state, key, stream, &word, released(number))
            }
            (_, Some(_)) => {
                let word = channel.entries.word(number, Field::Done)?;
                self.zero_sm_wait_for(state, key, stream, &word, value(number))
            }
            (_, None) => self.zero_sm_take_on(state, key, stream, own),
        }
    }

    /// Makes a stream wait for a word that has reached `value` when the request has ended.
    fn zero_sm_wait_for(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        word: &Word64,
        value: u64,
    ) -> Result<()> {
        mark_others(state, stream, 0)?;
        let mut list = List::<1>::new();
        list.wait_count(word, value);
        list.post(stream, None)?;
        let order = state.requests.next_order();
        let Entry { common, operation } = known(&mut state.requests, key)?;
        match operation {
            Operation::ZeroSm(message) if message.claimed.is_none() => {
                message.claimed = Some(stream.id());
                if !message.sends || message.way == Way::Pulled {
                    (common.order, common.since) = (order, None);
                }
            }
            _ => common.waiters.push(Waiter {
                stream: stream.id(),
                order,
                passed: Passed::WithEnd,
            }),
        }
        Ok(())
    }

    /// Makes a stream take in a message that its sender leaves in a slot or in its own memory.
    fn zero_sm_take_on(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        own: bool,
    ) -> Result<()> {
        mark_others(state, stream, 0)?;
        let order = state.requests.next_order();
        let State {
            peers, requests, ..
        } = &mut *state;
        let entry = known(requests, key)?;
        let (rank, number) = (entry.peer, entry.number);
        let none = || not_connected(WAIT_ON, rank);
        let peer = peers.get(rank).ok_or_else(none)?;
        let channel = peer.zero_sm.recvs.get(&entry.tag).ok_or_else(none)?;
        let Entry { common, operation } = entry;
        let Operation::ZeroSm(message) = operation else {
            return Ok(());
        };
        let entries = &channel.entries;
        let lacks = |field| !entries.has(number, field);
        let (ready, sent) = (
            entries.word(number, Field::Ready)?,
            entries.word(number, Field::Sent)?,
        );
        let awaited = [
            (!own && lacks(Field::Ready) && !on(Mutant::UnreachedReceive))
                .then_some((&ready, value(number))),
            lacks(Field::Sent).then_some((&sent, released(number))),
        ];
        let waits = awaited.iter().any(Option::is_some);
        let done = entries.word(number, Field::Done)?;
        let from = match message.way {
            Way::Staged { slot } => Some(channel.slot(slot)),
            _ => message.far.as_ref().map(|(region, at)| (region, *at)),
        };
        let to = common.segments.as_slice().first().map(part);
        let enqueued = while_held(stream, waits, || {
            stream.check_room(3)?;
            let mut list = List::<4>::new();
            for (word, least) in awaited.into_iter().flatten() {
                list.wait_count(word, least);
            }
            if on(Mutant::EarlyDone) {
                let mut early = List::<1>::new();
                early.store(&done, value(number));
                early.post(stream, None)?;
            }
            let moved = move_bytes(
                stream,
                list,
                to.zip(from),
                message.arriving,
                (&done, value(number)),
            );
            Ok(moved)
        })?;
        message.claimed = Some(stream.id());
        (common.order, common.since) = (order, None);
        if let Err(e) = enqueued {
            self.fail_partly_posted(state, key, &e);
            return Err(e);
        }
        Ok(())
    }
}
