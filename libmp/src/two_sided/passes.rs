//! Prepares the puts of requests that a stream posts in one submission, pass by pass, and lists what the
//! stream does for them.

use super::channel::{LeadIn, SendChannel};
use super::engine::Engine;
use super::null::NULL_RANK;
use super::post::POST;
use super::post_all::{Part, Posts, receives};
use super::receive::{ANY_RANK, advertise, check_ready_order};
use super::send::{announce, announce_and_wait, by_stream, complete, unstamped};
use super::state::{State, known, no_lane};
use crate::error::Result;
use crate::kernels::{MOST_CHUNKS, Stamp};
use crate::path::{Batch, Lane, Put};
use crate::plan::{LaneId, PeerLanes};
use crate::request::entry::{Common, Outgoing};
use crate::request::table::RequestKey;
use crate::wire::word;

/// The passes over the requests, in the order of their parts: what peers wait for comes first.
pub(super) const PASSES: [Pass; 5] = [
    Pass::Receives,
    Pass::Whole,
    Pass::Announced,
    Pass::Short,
    Pass::Large,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Receives,
    /// Operations of windows, and sends without a kernel.
    Whole,
    /// The announcements of the others.
    Announced,
    /// Their payloads: of those that wait for no receive, and of the large ones.
    Short,
    Large,
}

impl Engine {
    /// Prepares what a pass concerns of each request.
    pub(super) fn decide_all(
        &self,
        state: &mut State,
        pass: Pass,
        posts: &mut Posts,
    ) -> Result<()> {
        for at in 0..posts.members.len() {
            let member = &posts.members[at];
            let (key, rank) = (member.key, known(&mut state.requests, member.key)?.peer);
            if member.alone || matches!(rank, ANY_RANK | NULL_RANK) {
                continue;
            }
            let (receive, lane) = (receives(state, member), member.lane);
            if known(&mut state.requests, key)?.transfer().is_some() {
                if pass == Pass::Whole {
                    let puts = state.prepare_transfer(key, lane);
                    let puts = puts.map_err(|e| e.of_peer(rank))?.into_iter().flatten();
                    posts.members[at].last = puts.clone().last();
                    let of = LaneId { rank, lane };
                    let copies = puts.clone().any(|put| put.is_copy());
                    posts.made.extend(puts.clone().map(|put| (of, put)));
                    if let Some(ends) = state.peers.lane(of) {
                        let before = ends.follows(puts.clone()).map_err(|e| e.of_peer(rank))?;
                        posts.front.extend(before.map(|put| Part::Done(of, put)));
                    }
                    posts.front.extend(copies.then_some(Part::Next));
                    posts.front.extend(puts.map(|put| Part::Put(of, put)));
                    posts.front.extend(copies.then_some(Part::Next));
                }
                continue;
            }
            if receive != (pass == Pass::Receives) || member.last.is_some() {
                continue;
            }
            let decided = match pass {
                Pass::Receives => decide_receive(state, key, posts),
                Pass::Whole => self.decide_whole(state, at, posts),
                Pass::Announced => {
                    let announced = self.decide_announcement(state, at, posts);
                    announced.map(|()| None)
                }
                Pass::Short | Pass::Large => {
                    let large = known(&mut state.requests, key)?.large;
                    match large == (pass == Pass::Large) {
                        true => self.decide_payload(state, key, posts).map(Some),
                        false => Ok(None),
                    }
                }
            };
            if let Some(last) = decided.map_err(|e| e.of_peer(rank))? {
                posts.members[at].last = Some(last);
            }
        }
        Ok(())
    }

    /// Prepares a send without a kernel, and returns its last put; `None`: it needs a kernel.
    fn decide_whole(
        &self,
        state: &mut State,
        member: usize,
        posts: &mut Posts,
    ) -> Result<Option<Put>> {
        let key = posts.members[member].key;
        let result = state.requests.result_addr(key).0;
        let rank = known(&mut state.requests, key)?.peer;
        if let Some(peer) = state.peers.get(rank).filter(|peer| !peer.is_here()) {
            return Err(peer.error(POST));
        }
        let (common, send, channel, link) = state.outgoing(key)?;
        let (number, len, segments) = (common.number, common.len, common.segments.as_slice());
        let lane = common.poster.lane;
        if send.late.is_some() || send.packed.is_some() {
            return Ok(None);
        }
        let mut batch = Batch::new(link.lane(lane).ok_or_else(|| no_lane(POST, rank))?);
        let at = LaneId { rank, lane };
        if common.large {
            let Some(last) = complete(&mut batch, channel, common, true)? else {
                return Ok(None);
            };
            batch.lane().end_in(last, result, self.error.addr().0);
            if !last.waits() {
                // The receive is posted, so its slot is free.
                keep(batch.all(), at, &mut posts.made, &mut posts.front);
                return Ok(Some(last));
            }
            let late = channel.late(send);
            late.complete = true;
            late.behind.push(last);
            posts.members[member].behind = true;
            keep([last].into_iter(), at, &mut posts.made, &mut posts.ready);
            // Its kernel may be behind one that waits for another receive.
            if last.waits_for_receive() && channel.blocked_by(number).is_none() {
                let announced = announce(&mut batch, channel, number, len)?;
                keep(
                    [announced].into_iter(),
                    at,
                    &mut posts.made,
                    &mut posts.front,
                );
            }
            return Ok(Some(last));
        }
        let last = by_stream(&mut batch, channel, number, segments, len)?;
        let by_kernel = last.takes_credit();
        let (made, front) = (&mut posts.made, &mut posts.front);
        lead_in(
            channel,
            number,
            [true, by_kernel],
            (batch.lane(), at),
            made,
            front,
        )?;
        keep(batch.all(), at, &mut posts.made, &mut posts.front);
        Ok(Some(last))
    }

    /// Prepares what precedes the kernel of a send: what the stream does before the message, and the
    /// announcement.
    fn decide_announcement(
        &self,
        state: &mut State,
        member: usize,
        posts: &mut Posts,
    ) -> Result<()> {
        self.kernels(POST)?;
        let (common, _, channel, link) = state.outgoing(posts.members[member].key)?;
        let (number, rank, lane) = (common.number, common.peer, common.poster.lane);
        let at = LaneId { rank, lane };
        let of_lane = link.lane(lane).ok_or_else(|| no_lane(POST, rank))?;
        let (made, front) = (&mut posts.made, &mut posts.front);
        lead_in(
            channel,
            number,
            [!common.large, false],
            (&mut *of_lane, at),
            made,
            front,
        )?;
        if common.large {
            let mut batch = Batch::new(of_lane);
            let front = announce_and_wait(&mut batch, channel, number, common.len)?;
            for (put, parts) in front.into_iter().zip([&mut posts.front, &mut posts.ready]) {
                keep(put.into_iter(), at, &mut posts.made, parts);
            }
            let (ready, value) = (channel.ready(number), word::threshold(number));
            posts.ready.push(Part::Wait(ready.clone(), value));
        }
        posts.members[member].behind = true;
        Ok(())
    }

    /// Prepares the payload of a send behind its kernel, and returns its last put.
    fn decide_payload(&self, state: &mut State, key: RequestKey, posts: &mut Posts) -> Result<Put> {
        let result = state.requests.result_addr(key).0;
        let (common, send, channel, link) = state.outgoing(key)?;
        let (rank, lane) = (common.peer, common.poster.lane);
        let (number, len, large) = (common.number, common.len, common.large);
        let segments = common.segments.as_slice();
        let mut batch = Batch::new(link.lane(lane).ok_or_else(|| no_lane(POST, rank))?);
        let stamped = large || send.late.is_some();
        let last = match stamped {
            true => {
                channel.make_stamps(&self.paths)?;
                unstamped(&mut batch, channel, number, large, segments, len)?
            }
            false => by_stream(&mut batch, channel, number, segments, len)?,
        };
        let at = LaneId { rank, lane };
        let [short, long] = &mut posts.stamps;
        let (parts, stamps) = match large {
            true => (&mut posts.back, long),
            false => (&mut posts.short, short),
        };
        keep(batch.all(), at, &mut posts.made, parts);
        if stamped {
            self.add_stamp(&batch, common, send, channel, result, stamps)?;
        }
        Ok(last)
    }

    /// Adds the parameters of the kernel that completes the puts of a send.
    fn add_stamp(
        &self,
        batch: &Batch<'_>,
        common: &Common,
        send: &mut Outgoing,
        channel: &mut SendChannel,
        result: u64,
        stamps: &mut Vec<Stamp<MOST_CHUNKS>>,
    ) -> Result<()> {
        let late = channel.late(send);
        late.behind.extend(batch.all());
        let mut params = self.stamp_params(common, late, channel, result);
        let found = [late.length.is_some(), late.offset.is_some()];
        batch
            .of_lane()
            .patch(&late.behind, common.large, found, &mut params)?;
        stamps.push(params);
        Ok(())
    }
}

/// Appends puts that were prepared together.
fn keep(
    puts: impl Iterator<Item = Put>,
    at: LaneId,
    made: &mut Vec<(LaneId, Put)>,
    parts: &mut Vec<Part>,
) {
    for put in puts {
        made.push((at, put));
        parts.push(Part::Put(at, put));
    }
}

/// Appends what the stream does before a message.
fn lead_in(
    channel: &SendChannel,
    number: u64,
    [short, by_kernel]: [bool; 2],
    (lane, at): (&mut Lane, LaneId),
    made: &mut Vec<(LaneId, Put)>,
    parts: &mut Vec<Part>,
) -> Result<()> {
    let mut batch = Batch::short(lane);
    let LeadIn {
        wait,
        credit,
        store,
    } = channel.lead_in(number, short, by_kernel);
    if let Some(credit) = credit {
        let put = batch.credit(credit)?;
        keep([put].into_iter(), at, made, parts);
    }
    parts.extend(wait.map(|(word, value)| Part::Wait(word.clone(), value)));
    parts.extend(store.map(|(word, value)| Part::Store(word.clone(), value)));
    Ok(())
}

/// Prepares the puts of a receive.
fn decide_receive(state: &mut State, key: RequestKey, posts: &mut Posts) -> Result<Option<Put>> {
    let entry = known(&mut state.requests, key)?;
    let (rank, large) = (entry.peer, entry.large);
    if !large || state.given_up(rank).is_some() {
        return Ok(None);
    }
    let (common, receive, channel, link) = state.incoming(key)?;
    let (number, lane) = (common.number, common.poster.lane);
    check_ready_order(channel, link, number, lane).map_err(|e| e.with_rank(rank))?;
    let stream = common.poster.id().unwrap_or(0);
    if let Some((word, value)) = channel.blocked_by(number, stream) {
        posts.front.push(Part::Wait(word.clone(), value));
    }
    let found = link.lane_and_shared(lane);
    let (of_lane, shared) = found.ok_or_else(|| no_lane(POST, rank))?;
    let mut batch = Batch::new(of_lane);
    advertise(&mut batch, shared, channel, common, receive)?;
    keep(
        batch.all(),
        LaneId { rank, lane },
        &mut posts.made,
        &mut posts.front,
    );
    Ok(batch.all().last())
}
