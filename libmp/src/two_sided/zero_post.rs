//! How zero-SM sends and receives (`zero_sm`) get their requests, and are posted.

use gdsync::{Status, Stream};

use super::engine::Engine;
use super::marks::mark_others;
use super::peer::Cause;
use super::send::total;
use super::spec::{On, RecvOp, SendOp, Source};
use super::state::{State, not_connected};
use super::zero_sm::{self, ENTRIES, Half, POST, Tried};
use crate::error::{Error, Kind, Result};
use crate::path::Path;
use crate::request::entry::{Common, Entry, Operation, Poster};
use crate::request::table::RequestKey;
use crate::request::zero_sm::ZeroSm;

/// Number of times that a half is tried. The other rank enqueues its half once, so an honest peer needs two.
const TRIES: usize = 4;

impl Engine {
    /// Posts a zero-SM send.
    pub fn zero_sm_send(&self, spec: &SendOp<'_>) -> Result<RequestKey> {
        let (rank, memory) = (spec.to, spec.segments.first());
        let len = total(&self.paths, POST, spec.segments)?;
        let sent = self.open_zero_sm(rank, spec.tag, true).and_then(|()| {
            if len > self.config.eager_limit(Path::Ipc) as u64 {
                self.show(rank, memory)?;
            }
            let common = || Common {
                len,
                timeout: spec.timeout,
                ..Common::new(rank, spec.tag, spec.segments)
            };
            self.post_half(&spec.on, true, &common, &mut |state| {
                self.try_send_half(state, spec, len)
            })
        });
        sent.map_err(|e| e.of_peer(rank))
    }

    /// Posts a zero-SM receive.
    pub fn zero_sm_recv(&self, spec: &RecvOp<'_>) -> Result<RequestKey> {
        let Source::Rank(rank) = spec.from else {
            let what = "the receive names no rank";
            return Err(Error::new(POST, Kind::Unsupported, what));
        };
        let memory = spec.segments.first();
        let len = total(&self.paths, POST, spec.segments)?;
        let received = self.open_zero_sm(rank, spec.tag, false).and_then(|()| {
            self.show(rank, memory)?;
            let common = || Common {
                len,
                timeout: spec.timeout,
                ..Common::new(rank, spec.tag, spec.segments)
            };
            self.post_half(&spec.on, false, &common, &mut |state| {
                self.try_recv_half(state, spec, rank, len)
            })
        });
        received.map_err(|e| e.of_peer(rank))
    }

    /// Enqueues a half by `attempt`, once there is room, and adds its request.
    fn post_half(
        &self,
        on: &On<'_>,
        sends: bool,
        common: &dyn Fn() -> Common,
        attempt: &mut dyn FnMut(&mut State) -> Result<Tried>,
    ) -> Result<RequestKey> {
        self.with_room(|| {
            let state = &mut *self.lock();
            let mut common = common();
            let half = self.enqueue_half(state, (common.peer, common.tag), on, attempt)?;
            common.number = half.number;
            common.order = state.requests.next_order();
            common.poster = Poster {
                lane: 0,
                stream: on.stream().map(Stream::downgrade),
            };
            Ok(self.add_zero_sm(state, common, sends, half))
        })
    }

    /// Enqueues a half by `attempt`, which is repeated if the other half becomes the first one meanwhile.
    fn enqueue_half(
        &self,
        state: &mut State,
        (rank, tag): (u32, u32),
        on: &On<'_>,
        attempt: &mut dyn FnMut(&mut State) -> Result<Tried>,
    ) -> Result<Half> {
        self.sweep_if_crowded(state);
        self.settle_zero_sm(state, rank, Some(tag));
        state.requests.reserve(&self.gpu)?;
        if let Some(stream) = on.stream() {
            // The stream may wait for the peer in this message.
            mark_others(state, stream, 0)?;
        }
        let mut tried = Ok(Tried::Overtaken);
        for _ in 0..TRIES {
            tried = attempt(state);
            if !matches!(tried, Ok(Tried::Overtaken)) {
                break;
            }
        }
        let (error, cause) = match tried {
            Ok(Tried::Enqueued(half)) => return Ok(half),
            Ok(Tried::Torn(e)) => {
                let text = format!("only a part of a message under tag {tag} was enqueued: {e}");
                (e, Cause::Other(text))
            }
            Ok(Tried::Overtaken) => {
                let what = "the peer changes the agreement on a message";
                let e = Error::new(POST, Kind::Protocol, what);
                let text = e.sentence();
                (e, Cause::Protocol(text))
            }
            Err(e) if e.kind() == Kind::Protocol => {
                let text = e.sentence();
                (e, Cause::Protocol(text))
            }
            Err(e) => return Err(e),
        };
        let status = match cause {
            Cause::Protocol(_) => Status::BAD_RESPONSE,
            _ => Status::CLOSED,
        };
        self.give_up(state, rank, status, cause);
        Err(error)
    }

    /// Adds the request of a half that was enqueued.
    fn add_zero_sm(
        &self,
        state: &mut State,
        common: Common,
        sends: bool,
        half: Half,
    ) -> RequestKey {
        let (rank, tag, len) = (common.peer, common.tag, common.len);
        let message = ZeroSm {
            sends,
            way: half.way,
            arriving: half.arriving,
            far: half.far,
            queued: half.queued,
            moved: 0,
            claimed: None,
            // The memory of a receive by the CPU may be written now.
            wanted: !sends && common.poster.stream.is_none(),
            done: None,
        };
        let operation = Operation::ZeroSm(message);
        let key = state.requests.put(Entry { common, operation });
        if half.cut {
            let len = if sends { len } else { half.arriving };
            self.finish(state, key, Status::TRUNCATED, len);
            self.settle_zero_sm(state, rank, Some(tag));
        } else if half.queued {
            self.advance(state, key);
        }
        key
    }

    fn try_send_half(&self, state: &mut State, spec: &SendOp<'_>, len: u64) -> Result<Tried> {
        let none = || not_connected(POST, spec.to);
        let peer = state.peers.get_mut(spec.to).ok_or_else(none)?;
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        let channel = peer.zero_sm.sends.get_mut(&spec.tag).ok_or_else(none)?;
        if channel.is_full() {
            return Err(full(spec.to, spec.tag, "messages to", "has received"));
        }
        let message = (spec.segments.first(), len);
        let eager = self.config.eager_limit(Path::Ipc) as u64;
        zero_sm::send(channel, &peer.link.shared, message, eager, spec.on.stream())
    }

    fn try_recv_half(
        &self,
        state: &mut State,
        spec: &RecvOp<'_>,
        rank: u32,
        len: u64,
    ) -> Result<Tried> {
        let none = || not_connected(POST, rank);
        let peer = state.peers.get_mut(rank).ok_or_else(none)?;
        let here = peer.is_here();
        let channel = peer.zero_sm.recvs.get_mut(&spec.tag).ok_or_else(none)?;
        // A rank that was given up may have left a message.
        let lost = channel.has_lost_next();
        if !here && (lost || !channel.has_next()) {
            return Err(peer.error(POST));
        }
        if lost {
            return Err(overwritten(POST, rank));
        }
        if channel.is_full() {
            return Err(full(rank, spec.tag, "receives from", "has sent"));
        }
        let place = spec.segments.first();
        zero_sm::receive(channel, &peer.link.shared, place, len, spec.on.stream())
    }
}

/// The error of a message in a slot that its sender has written to again.
#[cold]
pub(super) fn overwritten(operation: &'static str, rank: u32) -> Error {
    let what = "the peer has given this rank up, and the memory of the message has another use";
    Error::new(operation, Kind::PeerFailed(Status::REMOTE_ABORTED), what).with_rank(rank)
}

/// The error of a channel whose entries are all in use.
#[cold]
fn full(rank: u32, tag: u32, what: &str, has: &str) -> Error {
    let what = format!(
        "too many zero-SM {what} rank {rank} under tag {tag} are in flight; retry when it {has} some"
    );
    let error = Error::new(POST, Kind::QueueFull, what).with_rank(rank);
    error.with_limit(ENTRIES, "messages")
}
