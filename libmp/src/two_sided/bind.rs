//! Late binding: a request that was prepared without a stream is bound to the stream that posts it.
//! Its puts are prepared then, on the lane of that stream.

use gdsync::Stream;

use super::engine::Engine;
use super::null::NULL_RANK;
use super::peer::Need;
use super::post::{POST, unposted};
use super::receive::{ANY_RANK, advertise};
use super::spec::On;
use super::state::{Guard, State, known, no_lane};
use super::take_back::forget_puts;
use crate::error::{Error, Kind, Result};
use crate::path::Batch;
use crate::request::entry::{Entry, Poster};
use crate::request::table::RequestKey;

impl Engine {
    /// Posts a prepared request on a stream.
    pub fn post_on(&self, key: RequestKey, stream: &Stream) -> Result<()> {
        let on = On::Stream(stream, None);
        on.check(&self.gpu, POST)?;
        self.with_room(|| {
            let (mut state, lane) = self.lane_for(key, &on)?;
            let bound = self.bind(&mut state, key, lane, stream)?;
            let posted = self.post_known(&mut state, key);
            if posted.is_err() && bound {
                unbind(&mut state, key);
            }
            posted
        })
    }

    /// The lane of a stream to the peer of a request, after opening it.
    pub(super) fn lane_for(&self, key: RequestKey, on: &On<'_>) -> Result<(Guard<'_>, u8)> {
        let mut state = self.lock();
        let entry = known(&mut state.requests, key)?;
        let (rank, need) = (entry.peer, Need::of(entry));
        if matches!(rank, ANY_RANK | NULL_RANK) || entry.poster.stream.is_some() {
            let lane = entry.poster.lane;
            return Ok((state, lane));
        }
        drop(state);
        self.ensure(rank, on, need).map_err(|e| e.of_peer(rank))
    }

    /// Binds a prepared request to a stream. `false`: it was prepared for this stream. After an
    /// error the request is as before.
    pub(super) fn bind(
        &self,
        state: &mut State,
        key: RequestKey,
        lane: u8,
        stream: &Stream,
    ) -> Result<bool> {
        self.bind_for(state, key, lane, stream, true)
    }

    /// As [`Engine::bind`]; `now`: it is posted at once.
    pub(super) fn bind_for(
        &self,
        state: &mut State,
        key: RequestKey,
        lane: u8,
        stream: &Stream,
        now: bool,
    ) -> Result<bool> {
        let entry = unposted(&mut state.requests, key)?;
        if is_bound(entry, stream)? {
            return Ok(false);
        }
        let rank = entry.peer;
        let poster = Poster {
            lane,
            stream: Some(stream.downgrade()),
        };
        if matches!(rank, ANY_RANK | NULL_RANK) {
            entry.poster = poster;
            return Ok(true);
        }
        if entry.transfer().is_some() {
            let puts = state.prepare_transfer(key, lane);
            let common = &mut known(&mut state.requests, key)?.common;
            common.puts = puts.map_err(|e| e.of_peer(rank))?;
            common.poster = poster;
            return Ok(true);
        }
        let here = state.given_up(rank).is_none();
        let (is_receive, large) = match state.requests.get(key) {
            Some(entry) => (entry.is_receive(), entry.large),
            None => return Err(Error::unknown_request(POST)),
        };
        if !is_receive {
            let (common, send, channel, link) = state.outgoing(key)?;
            let lane = link.lane(lane).ok_or_else(|| no_lane(POST, rank))?;
            let before = std::mem::replace(&mut common.poster, poster);
            if let Err(e) = self.prepare_puts(lane, channel, common, send, now) {
                common.poster = before;
                return Err(e.of_peer(rank));
            }
            return Ok(true);
        }
        let (common, receive, channel, link) = state.incoming(key)?;
        if large && here {
            let found = link.lane_and_shared(lane);
            let (lane, shared) = found.ok_or_else(|| no_lane(POST, rank))?;
            let before = std::mem::replace(&mut common.poster, poster);
            match advertise(&mut Batch::new(lane), shared, channel, common, receive) {
                Ok(puts) => common.puts = puts,
                Err(e) => {
                    common.poster = before;
                    return Err(e.of_peer(rank));
                }
            }
            return Ok(true);
        }
        common.poster = poster;
        Ok(true)
    }
}

/// Whether a request was prepared for `stream`.
///
/// # Errors
/// `Invalid` if it was prepared for another stream.
pub(super) fn is_bound(entry: &Entry, stream: &Stream) -> Result<bool> {
    match &entry.poster.stream {
        None => Ok(false),
        Some(own) if own.id() == stream.id() => Ok(true),
        Some(own) => {
            let what = format!(
                "the request was prepared for stream {}, not for {stream:?}; post it there, or \
                 prepare it without a stream",
                own.id()
            );
            Err(Error::new(POST, Kind::Invalid, what))
        }
    }
}

/// Undoes [`Engine::bind`] for a request that was not posted.
pub(super) fn unbind(state: &mut State, key: RequestKey) {
    let Some(entry) = state.requests.get_mut(key).filter(|e| e.is_prepared()) else {
        return;
    };
    let peer = state.peers.get_mut(entry.peer);
    if let Some(lane) = peer.and_then(|peer| peer.link.lane(entry.poster.lane)) {
        for put in entry.newest_puts() {
            // It was prepared just now and not posted.
            let _ = lane.abort(put);
        }
    }
    entry.poster = Poster::default();
    forget_puts(state, key);
}
