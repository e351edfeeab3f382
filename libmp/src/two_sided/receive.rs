//! Receives: numbering them, telling senders where large ones lie, taking messages in.

use gdsync::gpu::{Event, MemoryKind};
use gdsync::rdma::{Access, Descriptor, Qp, Work};
use gdsync::{Status, Stream};

use super::channel::{RecvChannel, Run, has_come, wait_for};
use super::post::{List, known};
use super::send::{Batch, total};
use super::spec::{On, Recv, Source};
use crate::context::Inner;
use crate::context::peer::{Lane, Peer, Way};
use crate::context::state::{Guard, State};
use crate::error::{Error, Kind, Result};
use crate::kernels::{SEGMENTS, Segment, Unpack};
use crate::mutant::{Mutant, on};
use crate::region::{Memory, Slice};
use crate::request::table::{Entry, Phase, Poster, RequestKey, Segments};
use crate::wire::word::{self, WordKind};

pub(super) const PREPARE: &str = "prepare receive";
const WAIT: &str = "wait on stream";

/// The rank of a receive that has not found its message's.
pub(crate) const ANYBODY: u32 = u32::MAX;

impl Inner {
    /// Numbers a receive.
    pub fn prepare_recv(&self, spec: &Recv<'_>) -> Result<RequestKey> {
        self.start_recv(spec, false)
    }

    /// Prepares a receive and posts it.
    pub fn recv(&self, spec: &Recv<'_>) -> Result<RequestKey> {
        self.start_recv(spec, true)
    }

    #[inline]
    fn start_recv(&self, spec: &Recv<'_>, post: bool) -> Result<RequestKey> {
        let len = total(&self.pd, PREPARE, spec.segments)?;
        let large = len > self.config.eager_limit as u64;
        let staging = match large && spec.segments.len() > 1 {
            true => {
                let region = self.gpu.alloc(MemoryKind::Pinned, len as usize)?;
                Some(Memory::new(self.pd.register(&region, Access::ALL)?, None))
            }
            false => None,
        };
        let make = || Entry {
            receive: true,
            peer: ANYBODY,
            tag: spec.tag,
            number: 0,
            poster: Poster {
                lane: 0,
                stream: match spec.on {
                    On::Cpu => None,
                    On::Stream(stream, _) => Some(stream.clone()),
                },
            },
            phase: Phase::Prepared,
            held: true,
            len,
            large,
            segments: Segments::new(spec.segments),
            staging: staging.clone(),
            stamped: None,
            work: [None; 2],
            timeout: spec.timeout,
            order: 0,
            waiters: Vec::new(),
            wanted: false,
            since: None,
            named: false,
            void: false,
            refused: false,
            marked: None,
        };
        let Source::Rank(rank) = spec.from else {
            return self.start(None, post, |state| {
                self.make_room(state);
                state.requests.make_place(&self.gpu)?;
                Ok((state.requests.put(make()), false))
            });
        };
        self.reopening(|| {
            let (state, lane) = self.ensure(rank, &spec.on, Way::Recv(spec.tag))?;
            let number = |state: &mut State| self.number_recv(state, rank, lane, make(), post);
            self.start(Some(state), post, number)
        })
        .map_err(|e| e.of_peer(rank))
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
        let gone = || Error::new(PREPARE, Kind::Closed, "no connection").with_rank(rank);
        let tag = entry.tag;
        if let Some(key) = state.wild.iter().find(|key| {
            let wild = state.requests.get(**key);
            wild.is_some_and(|wild| wild.tag == tag)
        }) {
            let what = format!("a receive from anybody under tag {tag} comes first ({key:?})");
            return Err(Error::new(PREPARE, Kind::Busy, what).with_rank(rank));
        }
        let State {
            peers, requests, ..
        } = state;
        let peer = peers[rank as usize].as_deref_mut().ok_or_else(gone)?;
        if !peer.may(lane.into(), Way::Recv(tag)) {
            return Err(match peer.failed {
                Some(_) => peer.error(PREPARE),
                None => gone(),
            });
        }
        let channel = peer.recvs.get_mut(&tag).ok_or_else(gone)?;
        let number = channel.next;
        let slot = channel.shape.slot(number);
        let unclaimed = channel.receives[slot].is_some_and(|before| {
            let before = requests.get(before);
            before.is_some_and(|e| matches!(e.phase, Phase::Prepared | Phase::Posted))
        });
        if unclaimed || channel.is_full() {
            let what = format!("receives under tag {tag} that nobody waits for");
            return Err(Error::new(PREPARE, Kind::QueueFull, what)
                .with_rank(rank)
                .with_limit(channel.shape.depth));
        }
        requests.make_place(&self.gpu)?;
        entry.peer = rank;
        entry.number = number;
        entry.poster.lane = lane;
        // Nothing has to be told of a short one, nor to a peer that was given up, which may have
        // left something in the mailbox.
        let silent = !entry.large || peer.failed.is_some();
        if silent && post {
            entry.order = requests.order();
            entry.phase = Phase::Posted;
        } else if entry.poster.stream.is_some() && !silent {
            let lane = peer.lanes[usize::from(lane)].as_mut().ok_or_else(gone)?;
            entry.work = tell_place(&mut Batch::new(&mut lane.qp), channel, &entry)?;
        }
        let posted = entry.phase == Phase::Posted;
        let key = requests.put(entry);
        channel.next += 1;
        channel.receives[slot] = Some(key);
        Ok((key, posted))
    }

    pub(super) fn post_recv(&self, state: &mut State, key: RequestKey) -> Result<()> {
        let State {
            peers, requests, ..
        } = state;
        let entry = known(requests, key)?;
        if entry.peer == ANYBODY {
            if let Some(stream) = entry.poster.stream.clone() {
                let marked = set_mark(&stream, requests.mark_word(key))?;
                known(requests, key)?.marked = Some(marked);
            }
            known(requests, key)?.phase = Phase::Unmatched;
            state.wild.push(key);
            self.match_wild(state);
            return Ok(());
        }
        let Some(Peer {
            recvs,
            lanes,
            failed: given_up,
            ..
        }) = peers[entry.peer as usize].as_deref_mut()
        else {
            return Err(Error::new(PREPARE, Kind::Closed, "no connection").with_rank(entry.peer));
        };
        if !entry.large || given_up.is_some() {
            // What a peer left that was given up is in its mailbox.
            entry.phase = Phase::Posted;
            return Ok(());
        }
        let Some(channel) = recvs.get_mut(&entry.tag) else {
            return Err(Error::new(PREPARE, Kind::Closed, "no channel").with_rank(entry.peer));
        };
        let slot = channel.shape.slot(entry.number);
        settle_told(channel, lanes, slot, entry.poster.lane)
            .map_err(|e| e.with_rank(entry.peer))?;
        let Some(lane) = lanes[usize::from(entry.poster.lane)].as_mut() else {
            return Err(Error::new(PREPARE, Kind::Closed, "no lane").with_rank(entry.peer));
        };
        let before = channel.shape.previous(entry.number);
        let free = channel.is_free(entry.number);
        match &entry.poster.stream {
            Some(stream) => {
                let mut list = List::<3>::new();
                if let Some(before) = before.filter(|_| !free) {
                    // Taken in on another stream: the word there is still this one's.
                    list.push(wait_for(channel.taken(entry.number), before, false));
                }
                for request in entry.work.iter().flatten() {
                    list.push(Descriptor::Send(*request));
                }
                list.post(stream, Some(&mut lane.qp))?;
                let last = entry.work[1].map(|request| (entry.poster.lane, request));
                channel.told[slot] = last;
            }
            None if !free => {
                let what = "the message before in this slot was not taken yet";
                return Err(Error::new(PREPARE, Kind::QueueFull, what).with_rank(entry.peer));
            }
            None => {
                let mut batch = Batch::new(&mut lane.qp);
                tell_place(&mut batch, channel, entry)?;
                if !on(Mutant::MissingReadyWord) {
                    channel.told[slot] = Some((entry.poster.lane, batch.post()?));
                }
            }
        }
        entry.phase = Phase::Posted;
        Ok(())
    }

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
        let ready = match state.peer(rank) {
            Some(peer) => peer.failed.is_some() || peer.is_open(lane.into(), Way::Lanes),
            None => false,
        };
        if !ready {
            drop(state);
            (state, lane) = self.ensure(rank, &on, Way::Lanes)?;
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
        let State {
            peers, requests, ..
        } = state;
        let result = requests.result_addr(key).0;
        let entry = known(requests, key)?;
        match entry.phase {
            Phase::Posted => {}
            Phase::Prepared => {
                return Err(Error::new(WAIT, Kind::NoSuchRequest, "it is not posted"));
            }
            _ => return self.wait_for_result(requests, key, stream),
        }
        let Some(kernels) = &self.kernels else {
            return Err(Error::new(
                WAIT,
                Kind::Unsupported,
                "the GPU runs no kernels",
            ));
        };
        let Some(peer) = peers[entry.peer as usize].as_deref_mut() else {
            return Err(Error::new(WAIT, Kind::Closed, "no connection").with_rank(entry.peer));
        };
        let number = entry.number;
        let there = |channel: &RecvChannel| has_come(channel.word(number, entry.large), number);
        if peer.failed.is_some() && !peer.recvs.get(&entry.tag).is_some_and(there) {
            return Err(peer.error(WAIT));
        }
        let Peer { recvs, lanes, .. } = peer;
        let Some(channel) = recvs.get_mut(&entry.tag) else {
            return Err(Error::new(WAIT, Kind::Closed, "no channel").with_rank(entry.peer));
        };
        let word = channel.word(number, entry.large);
        stream.check_room(4)?;
        let mut list = List::<2>::new();
        list.push(wait_for(word, number, lands_in_device(entry)));
        let segments = entry.segments.as_slice();
        let params = Unpack {
            word: word.addr().0,
            payload: channel.payload_addr(number),
            consumed: channel.taken(number).addr().0,
            result,
            error: self.error.addr().0,
            capacity: entry.len,
            staging: entry.staging.as_ref().map_or(0, |m| m.region().addr().0),
            slot: channel.shape.room() as u32,
            seq: number as u32,
            segments: segments.len() as u32,
            reserved: 0,
            segment: [piece(segments.first())],
        };
        list.push(Descriptor::PassedBy {
            word: channel.taken(number),
            value: word::threshold(number),
        });
        if let Some(poster) = entry
            .poster
            .stream
            .as_ref()
            .filter(|p| p.id() != stream.id())
        {
            // The memory is the poster's until it has come to the receive.
            stream.wait_event(&poster.record()?)?;
        }
        list.post(stream, None)?;
        // SAFETY: words and payload are the channel's and the table's, which the state keeps; the
        // segments are kept by the entry until the kernel has told its result.
        let launched = unsafe {
            match segments.len() {
                0 | 1 => kernels.unpack(stream, &params),
                _ => kernels.unpack(stream, &scattered(&params, segments)),
            }
        };
        entry.order = order;
        entry.since = None;
        entry.phase = Phase::Claimed(stream.id());
        let rank = entry.peer;
        if let Err(e) = launched {
            // The stream waits for a message that nothing would take in.
            let failed = word::word(number, WordKind::Failed, u64::from(Status::CLOSED.0));
            if !has_come(word, number) {
                let _ = word.store(failed);
            }
            let _ = channel.taken(number).store(failed);
            self.give_up(state, rank, Status::CLOSED);
            self.finish(state, key, Status::CLOSED, 0);
            return Err(e);
        }
        if let Some(run) = count(channel, number, lane, Some(stream.id()))
            && let Some(lane) = lanes[usize::from(lane)].as_mut()
            && let Err(e) = credit_on(stream, &mut lane.qp, channel, &run)
        {
            tracing::debug!(target: "mp", "the library tells rank {rank} what was taken: {e}");
            channel.stale.push(run);
        }
        Ok(())
    }

    /// Takes a message in by the CPU, if it is there. `true`: it has ended.
    pub(super) fn take(&self, state: &mut State, key: RequestKey) -> bool {
        let State {
            peers, requests, ..
        } = state;
        let Some(entry) = requests.get(key) else {
            return false;
        };
        let Some(peer) = peers[entry.peer as usize].as_deref_mut() else {
            return false;
        };
        let Some(channel) = peer.recvs.get_mut(&entry.tag) else {
            return false;
        };
        let number = entry.number;
        let Ok(w) = channel.word(number, entry.large).load() else {
            return false;
        };
        if !word::reached(w, number) {
            return false;
        }
        if !self.refuse(state, key) {
            return false;
        }
        let State {
            peers, requests, ..
        } = state;
        let Some(entry) = requests.get(key) else {
            return false;
        };
        let Some(peer) = peers[entry.peer as usize].as_deref_mut() else {
            return false;
        };
        let Some(channel) = peer.recvs.get_mut(&entry.tag) else {
            return false;
        };
        if lands_in_device(entry) {
            self.gpu.flush_remote_writes();
        }
        let (status, len) = match take_in(channel, entry, w) {
            Ok(end) => end,
            Err(e) => {
                tracing::warn!(target: "mp", "rank {}: {e}", self.rank);
                (e.status().unwrap_or(Status::LOCAL_ACCESS), 0)
            }
        };
        let kind = match status {
            Status::SUCCESS => WordKind::Taken,
            Status::TRUNCATED => WordKind::TooLong,
            _ => WordKind::Failed,
        };
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = channel.taken(number).store(word::word(number, kind, 0));
        if let Some(run) = count(channel, number, 0, None) {
            credit_by_cpu(
                peer.lanes[0].as_mut().map(|lane| &mut lane.qp),
                channel,
                run,
            );
        }
        self.finish(state, key, status, len);
        true
    }
}

/// Whether the NIC writes the message to GPU memory, so that who waits for it has to flush.
pub(super) fn lands_in_device(entry: &Entry) -> bool {
    let device = |s: &Slice| s.memory().region().kind() == MemoryKind::Device;
    entry.receive
        && entry.large
        && entry.staging.is_none()
        && entry.segments.as_slice().iter().any(device)
}

/// Copies a message to where its receive wants it.
fn take_in(channel: &RecvChannel, entry: &Entry, w: u64) -> Result<(Status, u64)> {
    let (low, kind, len) = word::parse(w);
    if low != entry.number as u16 {
        return Ok((Status::BAD_RESPONSE, 0));
    }
    let room = entry.len;
    let segments = entry.segments.as_slice();
    match kind {
        Some(WordKind::Eager) if len > channel.shape.room() as u64 => Ok((Status::BAD_RESPONSE, 0)),
        Some(WordKind::Eager) if len > room => Ok((Status::TRUNCATED, len)),
        Some(WordKind::Eager) => {
            scatter(segments, len, |at, bytes| {
                channel.read_payload(entry.number, at, bytes)
            })?;
            Ok((Status::SUCCESS, len))
        }
        Some(WordKind::Direct) if len > room => Ok((Status::BAD_RESPONSE, 0)),
        Some(WordKind::Direct) => {
            if let Some(staging) = &entry.staging {
                scatter(segments, len, |at, bytes| staging.read(at, bytes))?;
            }
            Ok((Status::SUCCESS, len))
        }
        Some(WordKind::TooLong | WordKind::Announce) => Ok((Status::TRUNCATED, len)),
        Some(WordKind::Failed) => Ok((word::failure(len), 0)),
        _ => Ok((Status::BAD_RESPONSE, 0)),
    }
}

/// Copies `len` bytes that `read` gives, by offset, into segments.
fn scatter(
    segments: &[Slice],
    len: u64,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    const PIECE: usize = 4096;
    let mut buffer = [0; PIECE];
    let mut from = 0;
    for segment in segments {
        let mut at = 0;
        while at < segment.len() && from < len as usize {
            let n = PIECE.min(segment.len() - at).min(len as usize - from);
            read(from, &mut buffer[..n])?;
            segment
                .memory()
                .write(segment.offset() + at, &buffer[..n])?;
            at += n;
            from += n;
        }
    }
    Ok(())
}

fn piece(segment: Option<&Slice>) -> Segment {
    segment.map_or(Segment::default(), |s| Segment {
        addr: s.addr(),
        len: s.len() as u64,
    })
}

fn scattered(params: &Unpack<1>, segments: &[Slice]) -> Unpack<SEGMENTS> {
    let mut list = [Segment::default(); SEGMENTS];
    for (place, segment) in list.iter_mut().zip(segments) {
        *place = piece(Some(segment));
    }
    Unpack {
        word: params.word,
        payload: params.payload,
        consumed: params.consumed,
        result: params.result,
        error: params.error,
        capacity: params.capacity,
        staging: params.staging,
        slot: params.slot,
        seq: params.seq,
        segments: params.segments,
        reserved: 0,
        segment: list,
    }
}

/// Prepares what tells a sender where a large receive lies, and that it is there.
pub(super) fn tell_place(
    batch: &mut Batch<'_>,
    channel: &RecvChannel,
    entry: &Entry,
) -> Result<[Option<gdsync::rdma::SendRequest>; 2]> {
    let (addr, mr) = match (&entry.staging, entry.segments.as_slice()) {
        (Some(staging), _) => (staging.region().addr().0, staging.mr()),
        (None, [one]) => (one.addr(), one.memory().mr()),
        _ => {
            return Err(Error::new(
                PREPARE,
                Kind::Invalid,
                "a large receive without memory",
            ));
        }
    };
    let Some(rkey) = mr.remote().rkeys[0] else {
        return Err(Error::new(
            PREPARE,
            Kind::Invalid,
            "memory without a key for lane 0",
        ));
    };
    let mut info = [0; 16];
    info[..8].copy_from_slice(&addr.to_le_bytes());
    info[8..12].copy_from_slice(&rkey.to_le_bytes());
    let ready = word::word(entry.number, WordKind::Ready, entry.len).to_le_bytes();
    let first = batch.add(&Work::write_inline(&[&info], channel.info(entry.number)?))?;
    let to = channel.ready(entry.number)?;
    let second = batch.add(&Work::write_inline(&[&ready], to).signaled())?;
    Ok([Some(first), Some(second)])
}

/// Whether what last told a sender of a receive in `slot` is done, or went by the lane that tells
/// of the next one.
///
/// # Errors
/// `QueueFull` while it is not.
pub(super) fn settle_told(
    channel: &mut RecvChannel,
    lanes: &mut [Option<Lane>],
    slot: usize,
    lane: u8,
) -> Result<()> {
    let Some((before, request)) = channel.told[slot].filter(|(before, _)| *before != lane) else {
        return Ok(());
    };
    let pending = lanes[usize::from(before)]
        .as_mut()
        .is_some_and(|lane| matches!(lane.qp.poll(request), Ok(None)));
    if pending {
        let what = "the receive before in this slot is still being told of";
        return Err(Error::new(PREPARE, Kind::QueueFull, what));
    }
    channel.told[slot] = None;
    Ok(())
}

/// Counts a message as taken by a poster. Answers a run that its sender is to be told now.
fn count(channel: &mut RecvChannel, number: u64, lane: u8, stream: Option<u64>) -> Option<Run> {
    let new = Run {
        lane,
        stream,
        from: number,
        to: number + 1,
    };
    match &mut channel.run {
        Some(run) if run.lane == lane && run.stream == stream && run.to == number => run.to += 1,
        place => {
            if let Some(old) = place.replace(new) {
                channel.stale.push(old);
            }
        }
    }
    let full = |run: &Run| run.to - run.from >= u64::from(channel.shape.depth / 2);
    let run = channel.run.take_if(|run| full(run))?;
    (!(on(Mutant::LostCredit) && run.from % 3 == 0)).then_some(run)
}

/// Tells a sender what was taken, when the stream gets there.
fn credit_on(stream: &Stream, qp: &mut Qp, channel: &RecvChannel, run: &Run) -> Result<()> {
    let mut batch = Batch::new(qp);
    let requests = credit(&mut batch, channel, run)?;
    let mut list = List::<2>::new();
    for request in requests.iter().flatten() {
        list.push(Descriptor::Send(*request));
    }
    if let Err(e) = list.post(stream, Some(batch.qp())) {
        batch.undo();
        return Err(e.into());
    }
    Ok(())
}

fn credit(
    batch: &mut Batch<'_>,
    channel: &RecvChannel,
    run: &Run,
) -> Result<[Option<gdsync::rdma::SendRequest>; 2]> {
    let mut requests = [None; 2];
    for (place, piece) in requests.iter_mut().zip(channel.credit(run)?) {
        if let Some(piece) = piece {
            let from = piece.outbox.sge(piece.at, piece.len);
            *place = Some(batch.add(&Work::write(&[from], piece.to))?);
        }
    }
    Ok(requests)
}

/// Tells a sender what was taken, or keeps it for the next round. `true`: it was told.
pub(super) fn credit_by_cpu(qp: Option<&mut Qp>, channel: &mut RecvChannel, run: Run) -> bool {
    let told = qp.is_some_and(|qp| {
        let mut batch = Batch::new(qp);
        credit(&mut batch, channel, &run).is_ok() && batch.post().is_ok()
    });
    if !told {
        channel.stale.push(run);
    }
    told
}

/// Tells senders what was taken and they were not told yet. `true`: something was told.
pub(super) fn tell_the_rest(peer: &mut Peer) -> bool {
    let Peer { recvs, lanes, .. } = peer;
    let Some(lane) = &mut lanes[0] else {
        return false;
    };
    let mut told = false;
    for channel in recvs.values_mut() {
        if channel.run.is_none() && channel.stale.is_empty() {
            continue;
        }
        for _ in 0..channel.stale.len() {
            let run = channel.stale.remove(0);
            match channel.is_taken(&run) {
                true => told |= credit_by_cpu(Some(&mut lane.qp), channel, run),
                false => channel.stale.push(run),
            }
        }
        if let Some(run) = channel.run
            && channel.is_taken(&run)
            && !on(Mutant::LostCredit)
        {
            channel.run = None;
            told |= credit_by_cpu(Some(&mut lane.qp), channel, run);
        }
    }
    told
}

/// Has a stream say that it has come to where a request was posted. The word is the request's
/// until what is answered is done.
pub(super) fn set_mark(stream: &Stream, mark: &gdsync::gpu::Word64) -> Result<Event> {
    stream.check_room(2)?;
    mark.store(0)?;
    let mut list = List::<1>::new();
    list.push(Descriptor::WriteValue64 {
        word: mark,
        value: 1,
    });
    list.post(stream, None)?;
    Ok(stream.record()?)
}
