//! Claiming: a stream takes a message in. It stands still until the message is there; a kernel
//! behind the wait copies it, tells the sender and ends the request.

use gdsync::{Status, Stream};

use super::channel::RecvChannel;
use super::engine::Engine;
use super::peer::Target;
use super::progress::arrived;
use super::receive::ANYBODY;
use super::spec::On;
use super::state::{Guard, State, known};
use crate::error::{Error, Result};
use crate::kernels::{SEGMENTS, Segment, Unpack};
use crate::path::List;
use crate::request::table::{Common, Incoming, ReceiveState, RequestKey};
use crate::wire::word::{self, WordKind};

const WAIT: &str = "wait on stream";

impl Engine {
    /// Has a stream take a message in: it stands still until that is there.
    pub fn try_claim<'a>(
        &'a self,
        mut state: Guard<'a>,
        key: RequestKey,
        stream: &Stream,
    ) -> Result<()> {
        let rank = known(&mut state.requests, key)?.peer;
        if rank == ANYBODY {
            return self.claim_now(&mut state, key, stream, 0);
        }
        let on = On::Stream(stream, None);
        let mut lane = self.lane_of(&mut state, &on);
        let peer = state.peers.get(rank);
        let ready = peer.is_some_and(|peer| !peer.is_here() || peer.is_open(lane, Target::Lanes));
        if !ready {
            // At most the time limit, once a call: when it is repeated for want of room the lane is
            // there. Only a receive from anybody may find its rank, and so come here, while the
            // call waits for room already; nothing is held then, and one limit more is the most.
            drop(state);
            (state, lane) = self.ensure(rank, &on, Target::Lanes)?;
        }
        self.claim_now(&mut state, key, stream, lane)
            .map_err(|e| e.of_peer(rank))
    }

    fn claim_now(
        &self,
        state: &mut State,
        key: RequestKey,
        stream: &Stream,
        lane: u8,
    ) -> Result<()> {
        let order = state.requests.order();
        let result = state.requests.result_addr(key).0;
        let entry = known(&mut state.requests, key)?;
        let rank = entry.peer;
        match entry.receive().map(|receive| receive.state) {
            Some(ReceiveState::Posted) => {}
            Some(ReceiveState::Prepared) => return Err(Error::unposted(WAIT)),
            _ => return self.wait_for_result(&mut state.requests, key, stream),
        }
        let kernels = self.kernels(WAIT)?;
        if let Some(peer) = state.peers.get(rank).filter(|peer| !peer.is_here())
            && !arrived(state, key)
        {
            let e = peer.error(WAIT);
            state.return_fault(key);
            return Err(e);
        }
        let (common, receive, channel, link) = state.incoming(key)?;
        let number = common.number;
        let word = channel.word(number, common.large);
        stream.check_room(4)?;
        // The word of a short message is one that a kernel can wait for: no flush belongs to it.
        let spins = !common.large && link.lane(0).is_some_and(|lane| lane.may_spin());
        let words = [result, self.error.addr().0];
        let passed = (channel.taken(number), word::threshold(number));
        match &common.poster.stream {
            // The memory is the poster's until it has come to the receive.
            Some(poster) if poster.id() != stream.id() => poster.precede(stream)?,
            _ => {}
        }
        if !spins {
            let mut list = List::<2>::new();
            list.wait_for(word, number, receive.lands_in_device(common));
            list.passed_by(passed.0, passed.1);
            list.post(stream, None)?;
        }
        let waits = spins.then_some(passed);
        // Words and payload are the channel's and the table's, which the state keeps; the segments
        // are kept by the entry until the kernel has told its result.
        let launched = match common.segments.as_slice().len() {
            0 | 1 => {
                let params = unpack::<1>(channel, common, receive, words, spins);
                // SAFETY: as said above.
                unsafe { kernels.unpack(stream, &params, waits) }
            }
            _ => {
                let params = unpack::<SEGMENTS>(channel, common, receive, words, spins);
                // SAFETY: as said above.
                unsafe { kernels.unpack(stream, &params, waits) }
            }
        };
        let launched = match launched {
            // Nothing of it is on the stream.
            Err(e) if spins => return Err(e),
            other => other,
        };
        common.order = order;
        common.since = None;
        receive.state = ReceiveState::Claimed(stream.id());
        if let Err(e) = launched {
            // The stream waits for a message that nothing would take in.
            let failed = word::word(number, WordKind::Failed, u64::from(Status::CLOSED.0));
            if !channel.has_come(number, common.large) {
                let _ = word.store(failed);
            }
            let _ = channel.taken(number).store(failed);
            self.fail_partly_posted(state, key, &e);
            return Err(e);
        }
        if let Some(run) = channel.count(number, lane, Some(stream.id()))
            && let Some(lane) = link.lane(lane)
            && let Err(e) = channel.credit_on(stream, lane, run)
        {
            tracing::debug!(target: "mp", "the library tells rank {rank} what was taken: {e}");
        }
        Ok(())
    }
}

/// What the kernel is told of a receive: `words` are its result and the context's error.
#[inline]
fn unpack<const N: usize>(
    channel: &RecvChannel,
    common: &Common,
    receive: &Incoming,
    words: [u64; 2],
    waits: bool,
) -> Unpack<N> {
    let number = common.number;
    let segments = common.segments.as_slice();
    let mut list = [Segment::default(); N];
    for (place, segment) in list.iter_mut().zip(segments) {
        *place = Segment {
            addr: segment.addr(),
            len: segment.len() as u64,
        };
    }
    Unpack {
        word: channel.word(number, common.large).addr().0,
        payload: channel.payload_addr(number),
        consumed: channel.taken(number).addr().0,
        result: words[0],
        error: words[1],
        capacity: common.len,
        staging: (receive.staging.as_ref()).map_or(0, |m| m.region().addr().0),
        slot: channel.shape.room() as u32,
        seq: number as u32,
        segments: segments.len() as u32,
        waits: waits.into(),
        segment: list,
    }
}
