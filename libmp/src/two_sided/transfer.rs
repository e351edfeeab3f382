//! Posting operations of windows that were prepared: on the CPU's lane or on that of a stream.

use super::bind::unbind;
use super::engine::Engine;
use super::post::{POST, lent};
use super::state::{State, no_lane};
use crate::error::{Error, Result};
use crate::path::{Batch, List, Put};
use crate::request::entry::Poster;
use crate::request::table::RequestKey;
use crate::request::transfer::TransferState;

impl State {
    /// Prepares the puts of an operation of a window on a lane.
    pub(super) fn prepare_transfer(
        &mut self,
        key: RequestKey,
        lane: u8,
    ) -> Result<[Option<Put>; 3]> {
        let (entry, peer) = self.request(key)?;
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        let (rank, memory) = (entry.peer, entry.common.segments.as_slice().first());
        let none = || no_lane(POST, rank);
        let mut batch = Batch::short(peer.link.lane(lane).ok_or_else(none)?);
        match entry.transfer().map(|transfer| &transfer.state) {
            Some(TransferState::Prepared(work, _)) => work.prepare(&mut batch, memory)?,
            _ => return Err(Error::unknown_request(POST)),
        }
        Ok(batch.first_three())
    }
}

impl Engine {
    /// Posts an operation of a window: by the CPU, or on the stream that it is bound to.
    pub(super) fn post_transfer(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let by_stream = state.request(key)?.0.poster.stream.clone();
        if by_stream.is_none() {
            let puts = state.prepare_transfer(key, 0)?;
            state.request(key)?.0.puts = puts;
        }
        let (entry, peer) = state.request(key)?;
        let Poster { lane, .. } = entry.poster;
        let puts = entry.puts.into_iter().flatten();
        let posted = match (&by_stream, peer.link.lane(lane)) {
            (None, Some(lane)) => {
                let ordered = lane.order(puts.clone(), None);
                ordered.and_then(|()| lane.post(puts.clone()))
            }
            (None, None) => Err(peer.error(POST)),
            (Some(stream), mut lane) => lent(stream).and_then(|stream| {
                if let Some(lane) = &mut lane {
                    lane.order(puts.clone(), Some(&stream))?;
                }
                let mut list = List::<3>::new();
                list.put(puts.clone());
                list.post(&stream, lane)
            }),
        };
        if let Err(e) = posted {
            if by_stream.is_none() {
                unbind(state, key);
            }
            return Err(e);
        }
        let (entry, _) = state.request(key)?;
        entry.puts = [None; 3];
        if let Some(transfer) = entry.transfer_mut() {
            transfer.post(lane, puts.last());
        }
        Ok(())
    }
}
