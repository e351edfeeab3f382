//! Receives: numbering them, posting them, telling senders where large ones lie.

use gdsync::Stream;
use gdsync::gpu::{Event, MemoryKind, WeakStream, Word64};

use super::channel::{RecvChannel, WINDOW};
use super::engine::Engine;
use super::peer::Target;
use super::post::lent;
use super::send::total;
use super::spec::{On, RecvOp, Source};
use super::state::{State, gone, known};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Link, List, Put};
use crate::region::Slice;
use crate::request::table::{Entry, Operation, Phase, Receive, RequestKey, Table};
use crate::wire::word::{self, WordKind};

pub(super) const PREPARE: &str = "prepare receive";

/// The rank of a receive that has not found its message's.
pub(crate) const ANYBODY: u32 = u32::MAX;

impl Engine {
    /// Numbers a receive, and posts it if `post` asks for that.
    #[inline]
    pub fn recv(&self, spec: &RecvOp<'_>, post: bool) -> Result<RequestKey> {
        spec.on.check(PREPARE)?;
        let len = total(&self.paths, PREPARE, spec.segments)?;
        let large = len > self.config.eager_limit as u64;
        let staging = match large && spec.segments.len() > 1 {
            true => Some(self.stage(len as usize)?),
            false => None,
        };
        let make = || {
            let receive = Receive {
                staging: staging.clone(),
                ..Receive::default()
            };
            let operation = Operation::Receive(receive);
            let mut entry = Entry::new(operation, ANYBODY, spec.tag, spec.segments);
            if let On::Stream(stream, _) = spec.on {
                entry.poster.stream = Some(stream.downgrade());
            }
            Entry {
                len,
                large,
                timeout: spec.timeout,
                ..entry
            }
        };
        let started = match spec.from {
            Source::Any => self.start(None, post, |state| {
                self.make_room(state);
                state.requests.make_place(&self.gpu)?;
                Ok((state.requests.put(make()), false))
            }),
            Source::Rank(rank) => self
                .reopening(|| {
                    let (state, lane) = self.ensure(rank, &spec.on, Target::Recv(spec.tag))?;
                    let number =
                        |state: &mut State| self.number_recv(state, rank, lane, make(), post);
                    self.start(Some(state), post, number)
                })
                .map_err(|e| e.of_peer(rank)),
        };
        if let Some(staging) = staging
            && matches!(&started, Err(e) if e.kind() == Kind::QueueFull)
        {
            self.unstage(staging);
        }
        started
    }

    /// Answers whether it is posted as well: a short one is, if `post` asks for it.
    fn number_recv(
        &self,
        state: &mut State,
        rank: u32,
        lane: u8,
        mut entry: Entry,
        post: bool,
    ) -> Result<(RequestKey, bool)> {
        self.make_room(state);
        let gone = || gone("no connection", rank);
        let tag = entry.tag;
        if let Some(key) = state.matcher.first(&state.requests, tag) {
            let what = format!("a receive from anybody under tag {tag} comes first ({key:?})");
            return Err(Error::new(PREPARE, Kind::Busy, what).with_rank(rank));
        }
        let peer = state.peers.get_mut(rank).ok_or_else(gone)?;
        if !peer.may(lane, Target::Recv(tag)) {
            return Err(peer.error(PREPARE));
        }
        let here = peer.is_here();
        let channel = peer.channels.recvs.get_mut(&tag).ok_or_else(gone)?;
        let number = channel.numbers.next();
        let unclaimed = channel.newest(number).is_some_and(|before| {
            let before = state.requests.get(before);
            before.is_some_and(|e| matches!(e.phase, Phase::Prepared | Phase::Posted))
        });
        let full = |what: String, limit: u64| {
            let error = Error::new(PREPARE, Kind::QueueFull, what);
            Err(error.with_rank(rank).with_limit(limit))
        };
        if unclaimed {
            let what = format!("receives under tag {tag} that nobody waits for");
            return full(what, channel.shape.depth.into());
        }
        if channel.is_full() {
            let what = format!("receives under tag {tag} whose messages were not taken");
            return full(what, WINDOW);
        }
        state.requests.make_place(&self.gpu)?;
        entry.peer = rank;
        entry.number = number;
        entry.poster.lane = lane;
        // Nothing has to be told of a short one, nor to a peer that was given up, which may have
        // left something in the mailbox.
        let silent = !entry.large || !here;
        if silent && post {
            entry.order = state.requests.order();
            entry.phase = Phase::Posted;
        } else if entry.poster.stream.is_some() && !silent {
            let lane = peer.link.lane(lane).ok_or_else(gone)?;
            entry.puts = tell_place(&mut Batch::new(lane), channel, &entry)?;
        }
        let posted = entry.phase == Phase::Posted;
        let key = state.requests.put(entry);
        channel.numbers.advance();
        *channel.newest(number) = Some(key);
        Ok((key, posted))
    }

    pub(super) fn post_recv(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let entry = known(&mut state.requests, key)?;
        if entry.peer == ANYBODY {
            let stream = entry.poster.stream.clone();
            let marked = match &stream {
                Some(stream) => Some(set_mark(&*lent(stream)?, state.requests.mark_word(key))?),
                None => None,
            };
            let entry = known(&mut state.requests, key)?;
            entry.phase = Phase::Unmatched;
            if let Some(receive) = entry.receive_mut() {
                receive.marked = marked;
            }
            state.matcher.add(key);
            self.match_any(state);
            return Ok(());
        }
        let (rank, large) = (entry.peer, entry.large);
        if !large || state.given_up(rank).is_some() {
            // What a peer left that was given up is in its mailbox.
            known(&mut state.requests, key)?.phase = Phase::Posted;
            return Ok(());
        }
        let (entry, channel, link) = state.incoming(key)?;
        let number = entry.number;
        settle_told(channel, link, number, entry.poster.lane).map_err(|e| e.with_rank(rank))?;
        let Some(lane) = link.lane(entry.poster.lane) else {
            return Err(gone("no lane", rank));
        };
        let before = channel.numbers.previous(number);
        let free = channel.is_free(number);
        match &entry.poster.stream {
            Some(stream) => {
                let stream = &*lent(stream)?;
                let mut list = List::<4>::new();
                if let Some(before) = before.filter(|_| !free) {
                    // Taken in on another stream: the word there is still this one's.
                    list.wait_for(channel.taken(number), before, false);
                }
                list.put(entry.puts.iter().flatten().copied());
                list.post(stream, Some(lane))?;
                let last = entry.puts.iter().flatten().next_back();
                *channel.told(number) = last.map(|request| (entry.poster.lane, *request));
            }
            None if !free => {
                let what = "the message before in this slot was not taken yet";
                return Err(Error::new(PREPARE, Kind::QueueFull, what).with_rank(entry.peer));
            }
            None => {
                let mut batch = Batch::new(lane);
                tell_place(&mut batch, channel, entry)?;
                if !on(Mutant::MissingReadyWord) {
                    *channel.told(number) = Some((entry.poster.lane, batch.post()?));
                }
            }
        }
        entry.phase = Phase::Posted;
        Ok(())
    }
}

/// Whether the NIC writes the message to GPU memory, so that who waits for it has to flush.
pub(super) fn lands_in_device(entry: &Entry) -> bool {
    let device = |s: &Slice| s.memory().region().kind() == MemoryKind::Device;
    entry.is_receive()
        && entry.large
        && entry.staging().is_none()
        && entry.segments.as_slice().iter().any(device)
}

/// Prepares what tells a sender where a large receive lies, and that it is there.
pub(super) fn tell_place(
    batch: &mut Batch<'_>,
    channel: &RecvChannel,
    entry: &Entry,
) -> Result<[Option<Put>; 3]> {
    let (addr, memory) = match (entry.staging(), entry.segments.as_slice()) {
        (Some(staging), _) => (staging.region().addr().0, staging),
        (None, [one]) => (one.addr(), one.memory()),
        _ => {
            let what = "a large receive without memory";
            return Err(Error::new(PREPARE, Kind::Invalid, what));
        }
    };
    let place = memory.keys().place(channel.path, addr)?.encode();
    let ready = word::word(entry.number, WordKind::Ready, entry.len).to_le_bytes();
    batch.put_bytes(&place, channel.place(entry.number)?)?;
    batch.announce(&ready, channel.ready(entry.number)?)?;
    Ok(batch.first_three())
}

/// Checks that the last ready word in the slot of `number` is written, or went by `lane`, which writes the next
/// one. A taken message does not imply that: a short one is sent without waiting for the word.
///
/// # Errors
/// `QueueFull` while it is not.
pub(super) fn settle_told(
    channel: &mut RecvChannel,
    link: &mut Link,
    number: u64,
    lane: u8,
) -> Result<()> {
    let other = |told: &(u8, Put)| told.0 != lane && !on(Mutant::EarlyTell);
    let Some((before, put)) = channel.told(number).filter(other) else {
        return Ok(());
    };
    if link.lane(before).is_some_and(|lane| lane.is_pending(put)) {
        let what = "the receive before in this slot is still being told of";
        return Err(Error::new(PREPARE, Kind::QueueFull, what));
    }
    *channel.told(number) = None;
    Ok(())
}

/// Has a stream say that it has come to where a request was posted. The word is the request's
/// until what is answered is done.
pub(super) fn set_mark(stream: &Stream, mark: &Word64) -> Result<Event> {
    stream.check_room(2)?;
    mark.store(0)?;
    let mut list = List::<1>::new();
    list.store(mark, 1);
    list.post(stream, None)?;
    Ok(stream.record()?)
}

/// Whether the stream that posted a receive has reached it. If no mark is enqueued yet, this
/// enqueues one; a stream without handles has reached it when it has run everything.
pub(super) fn has_come_to(requests: &mut Table, key: RequestKey, stream: &WeakStream) -> bool {
    let mark = requests.mark_word(key).clone();
    let Some(receive) = requests.get_mut(key).and_then(Entry::receive_mut) else {
        return false;
    };
    if receive.marked.is_none()
        && let Some(stream) = stream.lend()
    {
        // While the stream is full or captured it is asked again, in the rounds that follow.
        receive.marked = set_mark(&stream, &mark).ok();
    }
    let told = receive.marked.is_some() && mark.load().unwrap_or(0) == 1;
    told || stream.has_ended()
}
