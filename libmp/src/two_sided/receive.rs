//! How a receive gets its number and is posted, and how a large one advertises its memory: by its name
//! for kernels of the sender, or by the address (`place`) and the ready word.

use gdsync::gpu::WeakStream;
use gdsync::{Status, Stream};

use super::capture::Started;
use super::channel::{RecvChannel, WINDOW};
use super::channels::receives;
use super::engine::Engine;
use super::marks::mark_before;
use super::null::NULL_RANK;
use super::peer::Need;
use super::post::{POST, lent};
use super::spec::{On, RecvOp, Source};
use super::state::{State, known, no_lane, not_connected};
use crate::error::{Error, Kind, Result};
use crate::kernels::Name;
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Link, List, Path, Put, Shared};
use crate::request::entry::{Common, Entry, Incoming, Operation, Poster, ReceiveState};
use crate::request::reached::Mark;
use crate::request::table::{RequestKey, Table};
use crate::wire::word::{self, WordKind};

pub(super) const PREPARE: &str = "prepare receive";

/// The rank in a receive from any rank that has no match.
pub(crate) const ANY_RANK: u32 = u32::MAX;

impl Engine {
    /// Numbers a receive, and posts it if `post` is set.
    #[inline]
    pub fn recv(&self, spec: &RecvOp<'_>, post: bool) -> Result<Started> {
        if self.is_zero_sm_recv(spec, post)? {
            return self.zero_sm_recv(spec).map(Started::Listed);
        }
        match spec.on.captured(&self.gpu, PREPARE)? {
            Some(stream) => Ok(Started::Captured(Box::new(
                self.capture_recv(stream, spec, post)?,
            ))),
            None => self.start_recv(spec, post).map(Started::Listed),
        }
    }

    #[inline]
    fn start_recv(&self, spec: &RecvOp<'_>, post: bool) -> Result<RequestKey> {
        let len = self.length(PREPARE, spec.segments, spec.packed)?;
        if spec.from == Source::Rank(NULL_RANK) {
            return self.null(spec.tag, || Operation::Receive(Incoming::default()), post);
        }
        let large = self.is_large(spec.from, len)?;
        if post
            && !large
            && let Some(key) = self.recv_by_cpu(spec, len)
        {
            return Ok(key);
        }
        let apart = spec.segments.len() > 1;
        let needs_staging =
            large && (apart || self.is_staged_by_tcp(spec.from, &spec.on, spec.segments, len)?);
        let staging = match spec.packed {
            Some(pieces) => Some(self.stage_pieces(pieces)?),
            None if needs_staging => Some(self.stage(len as usize)?),
            None => None,
        };
        let staging = match large {
            true => self.shared_staging(spec, post, staging, len as usize)?,
            false => staging,
        };
        let packed = match (spec.packed, &staging) {
            (Some(_), Some(staging)) => Some([staging.slice(0, len as usize)?]),
            _ => None,
        };
        let segments = packed.as_ref().map_or(spec.segments, |one| &one[..]);
        let make = || Common {
            poster: Poster {
                lane: 0,
                stream: spec.on.stream().map(Stream::downgrade),
            },
            len,
            large,
            timeout: spec.timeout,
            ..Common::new(ANY_RANK, spec.tag, segments)
        };
        let receive = || Incoming {
            staging: staging.clone().filter(|_| spec.packed.is_none()),
            packed: spec.packed.cloned().map(Box::new),
            ..Incoming::default()
        };
        let started = match spec.from {
            Source::Any => self.start(None, post, |state| {
                self.sweep_if_crowded(state);
                state.requests.reserve(&self.gpu)?;
                let operation = Operation::Receive(receive());
                let common = make();
                Ok((state.requests.put(Entry { common, operation }), false))
            }),
            Source::Rank(rank) => self
                .reopening(|| {
                    let (tag, eager) = (spec.tag, !large);
                    let need = Need::Recv { tag, eager };
                    let (mut state, lane) = self.ensure(rank, &spec.on, need)?;
                    if spec.on.stream().is_some() {
                        self.offer_flagged(&mut state, rank, tag, large);
                    }
                    let number = |state: &mut State| {
                        self.number_recv(state, rank, lane, make, receive(), post)
                    };
                    self.start(Some(state), post, number)
                })
                .map_err(|e| e.of_peer(rank)),
        };
        drop(packed);
        if let Some(staging) = staging
            && matches!(&started, Err(e) if e.kind() == Kind::QueueFull)
        {
            self.unstage(staging);
        }
        started
    }

    /// Makes flagged rooms for the messages of a tag that streams receive, if the path has them.
    #[inline]
    fn offer_flagged(&self, state: &mut State, rank: u32, tag: u32, large: bool) {
        let Some(peer) = state.peers.get_mut(rank) else {
            return;
        };
        let channel = peer.channels.recvs.get_mut(&tag);
        let Some(channel) = channel.filter(|channel| channel.lacks_flagged(large)) else {
            return;
        };
        let lane = peer.link.lane(0);
        let beside = lane.is_some_and(|lane| lane.runs_beside_peer());
        if beside
            && channel.make_flagged(&self.paths, large)
            && let Ok(message) = receives(tag, channel)
        {
            self.send_control(state, rank, vec![message]);
        }
    }

    /// Posts a short receive of the CPU whose channel is open. `None`: no receive got a number; the general
    /// way finds the same reason, and waits or returns its error.
    #[inline]
    fn recv_by_cpu(&self, spec: &RecvOp<'_>, len: u64) -> Option<RequestKey> {
        let (On::Cpu, None, Source::Rank(rank)) = (&spec.on, spec.packed, spec.from) else {
            return None;
        };
        let common = || Common {
            len,
            timeout: spec.timeout,
            ..Common::new(rank, spec.tag, spec.segments)
        };
        let state = &mut *self.lock();
        let posted = self.number_recv(state, rank, 0, common, Incoming::default(), true);
        posted.ok().map(|(key, _)| key)
    }

    /// Numbers a receive. The flag in the result says whether it is posted: a short one is, if
    /// `post` is set. `common` is a closure, so that its fields are not copied once more.
    #[inline]
    fn number_recv(
        &self,
        state: &mut State,
        rank: u32,
        lane: u8,
        common: impl FnOnce() -> Common,
        mut receive: Incoming,
        post: bool,
    ) -> Result<(RequestKey, bool)> {
        self.sweep_if_crowded(state);
        let none = || not_connected(PREPARE, rank);
        let mut common = common();
        let tag = common.tag;
        if state.matcher.first(&state.requests, tag).is_some() {
            let what = format!(
                "a receive from any rank under tag {tag} is unmatched; wait for it, or cancel it"
            );
            return Err(Error::new(PREPARE, Kind::Busy, what).with_rank(rank));
        }
        let peer = state.peers.get_mut(rank).ok_or_else(none)?;
        let eager = !common.large;
        if !peer.can_post(lane, Need::Recv { tag, eager }) {
            return Err(peer.error(PREPARE));
        }
        let here = peer.is_here();
        let channel = peer.channels.recvs.get_mut(&tag).ok_or_else(none)?;
        check_room(channel, &state.requests, rank, tag)?;
        let number = channel.numbers.next();
        state.requests.reserve(&self.gpu)?;
        channel.refresh_words(number);
        common.peer = rank;
        common.number = number;
        common.poster.lane = lane;
        // A short receive sends nothing to its sender. A peer that was given up is sent nothing
        // either; it may have left a message in its slot.
        let silent = !common.large || !here;
        if silent && post {
            if let Some(stream) = &common.poster.stream {
                receive.reached = state
                    .reached
                    .note_or_mark(stream, channel.side.taken_by_poster)?;
            }
            common.order = state.requests.next_order();
            receive.state = ReceiveState::Posted;
        } else if common.poster.stream.is_some() && !silent {
            let (lane, shared) = peer.link.lane_and_shared(lane).ok_or_else(none)?;
            common.puts = advertise(&mut Batch::new(lane), shared, channel, &common, &receive)?;
        }
        let operation = Operation::Receive(receive);
        let key = state.requests.put(Entry { common, operation });
        channel.numbers.advance();
        *channel.newest(number) = Some(key);
        Ok((key, silent && post))
    }

    pub(super) fn post_recv(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let entry = known(&mut state.requests, key)?;
        let (rank, large, poster) = (entry.peer, entry.large, entry.poster.stream.clone());
        let tag = entry.tag;
        if rank == ANY_RANK {
            let mark = match &poster {
                Some(stream) => {
                    let mark = state.reached.mark_on(stream)?;
                    lent(stream)?;
                    mark
                }
                None => None,
            };
            set_posted(state, key, ReceiveState::Unmatched, mark);
            state.matcher.add(key);
            self.match_any(state);
            return Ok(());
        }
        if !large || state.given_up(rank).is_some() {
            // A message that a lost peer left is in its slot.
            let own = state
                .receiving(rank, tag)
                .is_some_and(|c| c.side.taken_by_poster);
            let mark = match &poster {
                Some(stream) => state.reached.note_or_mark(stream, own)?,
                None => None,
            };
            set_posted(state, key, ReceiveState::Posted, mark);
            return Ok(());
        }
        self.post_ready_word(state, key, (rank, tag), poster.as_ref())
    }

    /// Posts what advertises the memory of a large receive.
    fn post_ready_word(
        &self,
        state: &mut State,
        key: RequestKey,
        (rank, tag): (u32, u32),
        poster: Option<&WeakStream>,
    ) -> Result<()> {
        let number = known(&mut state.requests, key)?.number;
        let channel = state.receiving(rank, tag);
        let waits = poster
            .zip(channel)
            .is_some_and(|(stream, channel)| channel.blocked_by(number, stream.id()).is_some());
        let own = !waits && channel.is_some_and(|channel| channel.side.taken_by_poster);
        let mark = match poster {
            Some(stream) => {
                if waits {
                    mark_before(state, stream)?;
                }
                state.reached.note_or_number(stream, own)?
            }
            None => None,
        };
        let reached = mark.map(|mark| state.reached.word(mark));
        let reached = reached.map(|(word, count)| (word.clone(), count));
        let (common, receive, channel, link) = state.incoming(key)?;
        check_ready_order(channel, link, number, common.poster.lane)
            .map_err(|e| e.with_rank(rank))?;
        let free = channel.is_free(number);
        let mut later = None;
        match poster {
            Some(stream) => {
                let lane = link.lane(common.poster.lane);
                let lane = lane.ok_or_else(|| no_lane(POST, rank))?;
                let stream = &*lent(stream)?;
                let mut list = List::<5>::new();
                // In one submission with the puts: a call that finds no room is repeated.
                if let Some((word, count)) = &reached {
                    list.store(word, *count);
                }
                if let Some((word, value)) = channel.blocked_by(number, stream.id()) {
                    // A stream will take the previous message of the slot. Until it has, place and
                    // ready word in the sender's memory belong to the receive of that message.
                    list.wait(word, value, false);
                }
                list.put(common.puts.iter().flatten().copied());
                list.post(stream, Some(lane))?;
                let last = common.puts.iter().flatten().next_back();
                *channel.ready_put(number) = last.map(|put| (common.poster.lane, *put));
            }
            None if !free => {
                let what =
                    "the previous message in this slot is not received yet; wait for its receive";
                return Err(Error::new(PREPARE, Kind::QueueFull, what).with_rank(rank));
            }
            None => match advertise_by_cpu(common, receive, channel, link) {
                // The sender may not have mapped the memory yet. The background work repeats this.
                Err(e) if channel.path == Path::Ipc && e.kind() == Kind::QueueFull => {
                    later = receive.landing(common).cloned();
                    receive.unadvertised = true;
                }
                advertised => advertised?,
            },
        }
        receive.state = ReceiveState::Posted;
        receive.reached = mark;
        later.map_or(Ok(()), |memory| self.offer(state, rank, memory.keys()))
    }

    /// Advertises the memory of a receive of the CPU that could not be advertised when it was
    /// posted. `true`: it is.
    pub(super) fn advertise_late(&self, state: &mut State, key: RequestKey) -> bool {
        let rank = state.requests.get(key).map(|entry| entry.peer);
        if rank.is_some_and(|rank| state.given_up(rank).is_some()) {
            // The background work ends the receive, and releases a stream that waits for the message.
            if let Some(receive) = state.requests.receive_mut(key) {
                receive.unadvertised = false;
            }
            return false;
        }
        let Ok((common, receive, channel, link)) = state.incoming(key) else {
            return false;
        };
        let ordered = check_ready_order(channel, link, common.number, common.poster.lane);
        match ordered.and_then(|()| advertise_by_cpu(common, receive, channel, link)) {
            Ok(()) => {
                receive.unadvertised = false;
                true
            }
            Err(e) if e.kind() == Kind::QueueFull => false,
            Err(e) => {
                tracing::warn!(target: "mp", "rank {}: {e}", self.rank);
                receive.unadvertised = false;
                let claimed = matches!(receive.state, ReceiveState::Claimed(_));
                let status = e.status().unwrap_or(Status::LOCAL_QP_OPERATION);
                match claimed {
                    // The background work releases the stream that waits for the message.
                    true => self.give_up_for(state, key, status, e.to_string()),
                    false => self.finish(state, key, status, 0),
                }
                true
            }
        }
    }
}

/// Posts the address and the ready word of a receive by the CPU.
fn advertise_by_cpu(
    common: &Common,
    receive: &Incoming,
    channel: &mut RecvChannel,
    link: &mut Link,
) -> Result<()> {
    let (number, at) = (common.number, common.poster.lane);
    let found = link.lane_and_shared(at);
    let (lane, shared) = found.ok_or_else(|| no_lane(POST, common.peer))?;
    let mut batch = Batch::new(lane);
    advertise(&mut batch, shared, channel, common, receive)?;
    if !on(Mutant::MissingReadyWord) {
        *channel.ready_put(number) = Some((at, batch.post()?));
    }
    Ok(())
}

/// Checks that one more receive from `rank` under `tag` has a slot.
///
/// # Errors
/// `QueueFull`, with the limit.
fn check_room(channel: &mut RecvChannel, requests: &Table, rank: u32, tag: u32) -> Result<()> {
    let newest = *channel.newest(channel.numbers.next());
    let before = newest.and_then(|key| requests.get(key)?.receive());
    let unclaimed = before.is_some_and(|before| {
        matches!(before.state, ReceiveState::Prepared | ReceiveState::Posted)
    });
    let full = |what: String, limit: u64| {
        let error = Error::new(PREPARE, Kind::QueueFull, what);
        Err(error.with_rank(rank).with_limit(limit, "receives"))
    };
    if unclaimed {
        let what = format!(
            "too many receives from rank {rank} under tag {tag} are not waited for; wait for the \
             oldest"
        );
        return full(what, channel.shape.depth.into());
    }
    if channel.is_full() {
        let what = format!(
            "too many receives from rank {rank} under tag {tag} wait for their messages; retry \
             when messages have arrived"
        );
        return full(what, WINDOW);
    }
    Ok(())
}

fn set_posted(state: &mut State, key: RequestKey, posted: ReceiveState, mark: Option<Mark>) {
    if let Some(receive) = state.requests.receive_mut(key) {
        (receive.state, receive.reached) = (posted, mark);
    }
}

/// Prepares the puts that advertise the memory of a large receive to its sender: its name, which kernels
/// of the sender poll, or its place and its ready word in host memory.
pub(super) fn advertise(
    batch: &mut Batch<'_>,
    shared: &Shared,
    channel: &mut RecvChannel,
    common: &Common,
    receive: &Incoming,
) -> Result<[Option<Put>; 3]> {
    let (addr, memory) = match (&receive.staging, common.segments.as_slice()) {
        (Some(staging), _) => (staging.region().addr().0, staging),
        (None, [one]) => (one.addr(), one.memory()),
        _ => {
            let what = "a receive above the eager limit has no memory";
            return Err(Error::new(PREPARE, Kind::Invalid, what));
        }
    };
    let place = memory.keys().place(channel.path, addr, shared)?;
    if common.poster.stream.is_some()
        && let Some(lines) = channel.lines_of_place(common.number)?
    {
        let params = Name {
            to: place.addr,
            len: common.len,
            key: place.keys[0].unwrap_or(0).into(),
            lost: channel.lost_addr(),
            number: common.number,
            ..Name::default()
        };
        if on(Mutant::MissingName) {
            return Ok([None; 3]);
        }
        batch.name(lines, params)?;
        return Ok(batch.first_three());
    }
    let place = place.encode();
    let ready = word::word(common.number, WordKind::Ready, common.len).to_le_bytes();
    batch.put_bytes(&place, channel.place(common.number)?)?;
    batch.announce(&ready, channel.ready(common.number)?)?;
    Ok(batch.first_three())
}

/// Checks that the last ready word in the slot of `number` is written, or went through `lane`,
/// which writes the next one. A taken message does not imply that: a short message is sent without
/// a wait for the word.
///
/// # Errors
/// `QueueFull` while it is not written.
pub(super) fn check_ready_order(
    channel: &mut RecvChannel,
    link: &mut Link,
    number: u64,
    lane: u8,
) -> Result<()> {
    let other = |last: &(u8, Put)| last.0 != lane && !on(Mutant::EarlyTell);
    let Some((before, put)) = channel.ready_put(number).filter(other) else {
        return Ok(());
    };
    if link.lane(before).is_some_and(|lane| lane.is_pending(put)) {
        let what = "the ready word of the previous receive in this slot is in flight; retry later";
        return Err(Error::new(PREPARE, Kind::QueueFull, what));
    }
    *channel.ready_put(number) = None;
    Ok(())
}
