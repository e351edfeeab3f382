//! How a send gets its number and its puts (payload and words), and how a send by the CPU advances.

use gdsync::{Status, Stream};

use super::capture::Started;
use super::channel::{SendChannel, WINDOW};
use super::engine::Engine;
use super::marks::mark_others;
use super::null::NULL_RANK;
use super::peer::Need;
use super::progress::READS_APART;
use super::spec::{SendOp, SizeSource, Source};
use super::state::{State, not_connected};
use crate::error::{Error, Kind, Result};
use crate::kernels::MOST_CHUNKS;
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Lane, List, MOST_BYTES, MOST_PIECES, Path, Paths, Put, Span};
use crate::region::{Slice, Strided};
use crate::request::entry::{Common, Entry, Handle, Operation, Outgoing, Poster, SendState};
use crate::request::table::RequestKey;
use crate::wire::word::{self, WordKind};

/// Maximum number of bytes of a message of one segment; a message of several segments uses one put.
const MAX_MESSAGE: u64 = MOST_CHUNKS as u64 * MOST_BYTES;
const _: () = assert!(MAX_MESSAGE < word::TURN);

pub(super) const PREPARE: &str = "prepare send";

/// The total length of the segments in bytes, if they are valid.
pub(super) fn total(paths: &Paths, operation: &'static str, segments: &[Slice]) -> Result<u64> {
    let mut all = segments.iter();
    all.try_for_each(|slice| paths.check(operation, slice.memory().keys(), slice))?;
    if segments.len() > MOST_PIECES {
        let what = format!("{} segments are too many for a message", segments.len());
        return Err(Error::new(operation, Kind::Invalid, what).with_limit(MOST_PIECES, "segments"));
    }
    let total = segments.iter().map(|s| s.len() as u64).sum();
    let limit = match segments.len() {
        0 | 1 => MAX_MESSAGE,
        _ => MOST_BYTES,
    };
    if total > limit {
        let segments = segments.len();
        let what = format!("{total} bytes in {segments} segments are too many for a message");
        return Err(Error::new(operation, Kind::Invalid, what).with_limit(limit, "bytes"));
    }
    Ok(total)
}

fn pair(number: u64, kind: WordKind, len: u64) -> [u8; 16] {
    let half = word::word(number, kind, len).to_le_bytes();
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&half);
    pair[8..].copy_from_slice(&half);
    pair
}

/// Copies an eager message of the CPU, whose slot is free. `false`: it has to be posted.
#[inline]
pub(super) fn copy_eager(
    lane: &Lane,
    channel: &SendChannel,
    number: u64,
    segments: &[Slice],
    len: u64,
) -> Result<bool> {
    // A word set to `number` would answer another message, if this one is refused.
    channel.refresh_ready(number);
    let pieces = segments.iter().map(Slice::piece);
    let half = word::word(number, WordKind::Eager, len);
    let (to, pair) = (channel.payload(number)?, channel.pair(number)?);
    lane.copy_now(pieces, to, &[half; 2], pair)
}

/// Prepares an eager message: payload, then stamp. Returns the stamp.
#[inline]
pub(super) fn plain<const N: usize>(
    batch: &mut Batch<'_, N>,
    channel: &SendChannel,
    number: u64,
    segments: &[Slice],
    len: u64,
) -> Result<Put> {
    if len > 0 {
        batch.put(segments.iter().map(Slice::piece), channel.payload(number)?)?;
    }
    put_stamp(batch, channel, number, WordKind::Eager, len)
}

/// As [`plain`], for a message that a stream posts: it goes to a flagged room if it has at
/// most one segment and the peer has such rooms.
#[inline]
pub(super) fn by_stream<const N: usize>(
    batch: &mut Batch<'_, N>,
    channel: &mut SendChannel,
    number: u64,
    segments: &[Slice],
    len: u64,
) -> Result<Put> {
    if let [] | [_] = segments {
        let piece = segments.first().map(Slice::piece);
        if let Some(put) = channel.put_flagged(batch, number, piece)? {
            return Ok(put);
        }
    }
    plain(batch, channel, number, segments, len)
}

/// Prepares both words of a message, after all earlier puts. Returns the put.
#[inline]
fn put_stamp<const N: usize>(
    batch: &mut Batch<'_, N>,
    channel: &SendChannel,
    number: u64,
    kind: WordKind,
    len: u64,
) -> Result<Put> {
    let stamp = pair(number, kind, len);
    batch.announce(&stamp, channel.pair(number)?)
}

/// Posts an eager message on a stream.
#[inline]
fn post_short(
    stream: &Stream,
    batch: &mut Batch<'_, 3>,
    channel: &SendChannel,
    number: u64,
) -> Result<()> {
    let mut list = List::<6>::new();
    let by_kernel = batch.all().any(|put| put.takes_credit());
    let lead_in = channel.lead_in(number, true, by_kernel);
    lead_in.add_to(&mut list);
    let credit = lead_in.credit.map(|credit| batch.credit(credit));
    let credit = credit.transpose()?;
    list.put(credit);
    list.put(batch.all().filter(|put| Some(*put) != credit));
    list.post(stream, Some(batch.lane()))
}

/// Prepares the payload of a large message, written to memory that starts at `to`.
fn payload(batch: &mut Batch<'_>, segments: &[Slice], len: u64, to: Span) -> Result<()> {
    if let ([one], true) = (segments, len > MOST_BYTES) {
        for (chunk, at) in one.chunks(len, to) {
            batch.put([chunk].into_iter(), at)?;
        }
    } else if len > 0 {
        batch.put(segments.iter().map(Slice::piece), to)?;
    }
    Ok(())
}

impl Engine {
    /// Numbers a send, and posts it if `post` is set; otherwise, if a stream posts it, prepares its
    /// work requests.
    #[inline]
    pub fn send(&self, spec: &SendOp<'_>, post: bool) -> Result<Started> {
        if self.is_zero_sm_send(spec, post)? {
            return self.zero_sm_send(spec).map(Started::Listed);
        }
        match spec.on.captured(&self.gpu, PREPARE)? {
            Some(stream) => Ok(Started::Captured(Box::new(
                self.capture_send(stream, spec, post)?,
            ))),
            None => self.start_send(spec, post).map(Started::Listed),
        }
    }

    #[inline]
    fn start_send(&self, spec: &SendOp<'_>, post: bool) -> Result<RequestKey> {
        let len = self.length(PREPARE, spec.segments, spec.packed)?;
        let count = spec.packed.map_or(spec.segments.len(), Strided::count);
        if matches!(spec.size, SizeSource::Word { .. }) && count != 1 {
            let what = format!("a send with a length word has {count} segments; use one");
            return Err(Error::new(PREPARE, Kind::Unsupported, what));
        }
        if spec.to == NULL_RANK {
            return self.null(spec.tag, || Operation::Send(Outgoing::default()), post);
        }
        if post && let Some(key) = self.send_at_once(spec, len) {
            return Ok(key);
        }
        let whole = match (spec.packed, spec.size) {
            (None, SizeSource::Segments)
                if self.is_staged_by_tcp(
                    Source::Rank(spec.to),
                    &spec.on,
                    spec.segments,
                    len,
                )? =>
            {
                spec.segments.first().map(Strided::whole)
            }
            _ => None,
        };
        match spec.packed.or(whole.as_ref()) {
            Some(pieces) => self.pack(spec, pieces, len, post),
            None => self.number_and_post(spec, len, post),
        }
    }

    /// As [`Engine::number_and_post`], of a message that is packed.
    fn pack(
        &self,
        spec: &SendOp<'_>,
        pieces: &Strided,
        len: u64,
        post: bool,
    ) -> Result<RequestKey> {
        let staging = self.stage_pieces(pieces)?;
        let one = [staging.slice(0, len as usize)?];
        let packed = SendOp {
            segments: &one,
            packed: Some(pieces),
            ..*spec
        };
        let started = self.number_and_post(&packed, len, post);
        drop(one);
        if let Err(e) = &started
            && matches!(
                e.kind(),
                Kind::QueueFull
                    | Kind::Gdsync(gdsync::Kind::TooManyWaits | gdsync::Kind::OutOfOrder)
            )
        {
            self.unstage(staging);
        }
        started
    }

    #[inline]
    fn number_and_post(&self, spec: &SendOp<'_>, len: u64, post: bool) -> Result<RequestKey> {
        let large = self.is_large(Source::Rank(spec.to), len)?;
        self.reopening(|| {
            let need = Need::Send {
                tag: spec.tag,
                eager: !large,
            };
            let (state, lane) = self.ensure(spec.to, &spec.on, need)?;
            let number = |state: &mut State| self.number_send(state, spec, (lane, need), len, post);
            self.start(Some(state), post, number)
        })
        .map_err(|e| e.of_peer(spec.to))
    }

    /// Whether a message of `len` bytes with this peer is above the eager limit. A receive from any rank
    /// may be: it takes an eager message as well.
    #[inline]
    pub(super) fn is_large(&self, peer: Source, len: u64) -> Result<bool> {
        let limit = |path| self.config.eager_limit(path) as u64;
        let (least, most) = (limit(Path::Nic), limit(Path::Tcp));
        Ok(match peer {
            Source::Rank(rank) if (least + 1..=most).contains(&len) => {
                len > limit(self.path_to(rank)?)
            }
            _ => len > least,
        })
    }

    /// Numbers a send. The flag in the result says whether it is posted: a short message on a
    /// stream is, if `post` is set.
    fn number_send(
        &self,
        state: &mut State,
        spec: &SendOp<'_>,
        (lane, need): (u8, Need),
        len: u64,
        post: bool,
    ) -> Result<(RequestKey, bool)> {
        self.sweep_if_crowded(state);
        let order = state.requests.next_order();
        let rank = spec.to;
        if let Some(stream) = spec.on.stream().filter(|_| post) {
            let blocked = |c: &SendChannel| c.blocked_by(c.numbers.next()).is_some();
            if state.sending(rank, spec.tag).is_some_and(blocked) {
                mark_others(state, stream, 0)?;
            }
        }
        let none = || not_connected(PREPARE, rank);
        let peer = state.peers.get_mut(spec.to).ok_or_else(none)?;
        if !peer.can_post(lane, need) {
            return Err(peer.error(PREPARE));
        }
        let channel = peer.channels.sends.get_mut(&spec.tag).ok_or_else(none)?;
        channel.note_use(order);
        let number = next_number(channel, rank, spec.tag)?;
        if channel.has_device_block() {
            channel.refresh_ready(number);
        }
        let stream = spec.on.stream();
        state.requests.reserve(&self.gpu)?;
        let large = matches!(need, Need::Send { eager: false, .. });
        let mut common = Common {
            number,
            poster: Poster {
                lane,
                stream: stream.map(Stream::downgrade),
            },
            len,
            large,
            timeout: spec.timeout,
            order,
            ..Common::new(spec.to, spec.tag, spec.segments)
        };
        let mut send = Outgoing {
            packed: spec.packed.cloned().map(Box::new),
            ..Outgoing::default()
        };
        if let SizeSource::Word { len, offset } = spec.size {
            let late = channel.late(&mut send);
            (late.length, late.offset) = (Some(len.clone()), offset.cloned());
        }
        if let Some(stream) = stream {
            let lane = peer.link.lane(lane).ok_or_else(none)?;
            // Pieces are gathered when the request is posted.
            if post && !large && send.late.is_none() && send.packed.is_none() {
                let mut batch = Batch::short(lane);
                let stamp = by_stream(&mut batch, channel, number, spec.segments, len)?;
                if let Err(e) = post_short(stream, &mut batch, channel, number) {
                    batch.undo();
                    return Err(e);
                }
                send.state = SendState::InFlight(stamp);
            } else {
                self.prepare_puts(lane, channel, &mut common, &mut send, post)?;
            }
        }
        let posted = send.state != SendState::Prepared;
        let operation = Operation::Send(send);
        channel.numbers.advance();
        let key = state.requests.put(Entry { common, operation });
        Ok((key, posted))
    }

    /// Prepares the puts of a send for its stream. `now`: it is posted at once.
    pub(super) fn prepare_puts(
        &self,
        lane: &mut Lane,
        channel: &mut SendChannel,
        common: &mut Common,
        send: &mut Outgoing,
        now: bool,
    ) -> Result<()> {
        let (number, len, large) = (common.number, common.len, common.large);
        let segments = common.segments.as_slice();
        let mut batch = Batch::new(lane);
        let whole = large && send.late.is_none();
        if whole && complete(&mut batch, channel, common, now)?.is_some() {
            let late = channel.late(send);
            late.complete = true;
            late.behind.extend(batch.all());
            return Ok(());
        }
        if large || send.late.is_some() || send.packed.is_some() {
            self.kernels(PREPARE)?;
        }
        if large || send.late.is_some() {
            channel.make_stamps(&self.paths)?;
            let front = stamped(&mut batch, channel, number, large, segments, len)?;
            common.puts[..2].copy_from_slice(&front);
            let behind = batch.all().skip(front.iter().flatten().count());
            channel.late(send).behind.extend(behind);
        } else {
            let mut batch = Batch::short(lane);
            by_stream(&mut batch, channel, number, segments, len)?;
            common.puts = batch.first_three();
        }
        Ok(())
    }

    /// Advances a CPU send as far as possible now. `true`: its state changed.
    pub(super) fn push_send(&self, state: &mut State, key: RequestKey) -> bool {
        match self.try_send(state, key) {
            Ok(moved) => moved,
            Err(e) if matches!(e.kind(), Kind::QueueFull | Kind::Busy) => false,
            Err(e) => {
                let status = e.status().unwrap_or(Status::LOCAL_QP_OPERATION);
                self.finish(state, key, status, 0);
                true
            }
        }
    }

    fn try_send(&self, state: &mut State, key: RequestKey) -> Result<bool> {
        let Ok((common, send, channel, link)) = state.outgoing(key) else {
            return Ok(false);
        };
        let (SendState::Queued { announced }, Some(lane)) = (send.state, link.lane(0)) else {
            return Ok(false);
        };
        let (number, len, segments) = (common.number, common.len, common.segments.as_slice());
        if channel.blocked_by(number).is_some() {
            return Ok(false);
        }
        let mut too_long = false;
        let void = common.handle == Handle::Void;
        if !void && !common.large && copy_eager(lane, channel, number, segments, len)? {
            self.finish(state, key, Status::SUCCESS, len);
            return Ok(true);
        }
        let mut batch = Batch::new(lane);
        if void {
            put_stamp(&mut batch, channel, number, WordKind::TooLong, 0)?;
        } else if !common.large {
            plain(&mut batch, channel, number, segments, len)?;
        } else {
            if self.gpu.is_software() {
                channel.find_place(number);
            } else if let now = self.host().now()
                && now >= send.next_look
            {
                channel.find_place(number);
                send.next_look = now + READS_APART;
            }
            match channel.reply(number) {
                None if announced => return Ok(false),
                None => {
                    announce(&mut batch, channel, number, len)?;
                    batch.post()?;
                    send.state = SendState::Queued { announced: true };
                    return Ok(true);
                }
                Some((Some(WordKind::Ready), room)) if len <= room => {
                    let place = channel.place(number)?;
                    direct(&mut batch, channel, number, segments, len, place)?;
                }
                Some((Some(WordKind::Ready), _)) => {
                    put_stamp(&mut batch, channel, number, WordKind::TooLong, len)?;
                    too_long = true;
                }
                Some((kind, code)) => {
                    let status = match kind {
                        Some(WordKind::Refused) => Status::TRUNCATED,
                        Some(WordKind::Failed) => word::failure(code),
                        _ => Status::BAD_RESPONSE,
                    };
                    self.finish(state, key, status, len);
                    return Ok(true);
                }
            }
        }
        send.state = SendState::InFlight(batch.post()?);
        common.since = None;
        if too_long {
            self.set_error(Status::TRUNCATED);
            state.requests.set_result(key, Status::TRUNCATED, len);
        }
        Ok(true)
    }
}

/// The number of the next send to `rank` under `tag`.
///
/// # Errors
/// `QueueFull`, with the limit.
fn next_number(channel: &SendChannel, rank: u32, tag: u32) -> Result<u64> {
    if channel.is_full() {
        let what = format!(
            "too many messages to rank {rank} under tag {tag} are in flight; retry when it has \
             received some"
        );
        let error = Error::new(PREPARE, Kind::QueueFull, what).with_rank(rank);
        return Err(error.with_limit(WINDOW, "messages"));
    }
    Ok(match on(Mutant::SwappedMatchOrder) {
        true => channel.numbers.next() ^ 1,
        false => channel.numbers.next(),
    })
}

/// Prepares a message whose place or length is known only when the stream reaches it. A large
/// message has an announcement first, and may have a kernel that waits for its receive; these are
/// returned. The payload and the stamp, from memory that the kernel writes, follow the kernel.
fn stamped(
    batch: &mut Batch<'_>,
    channel: &SendChannel,
    number: u64,
    large: bool,
    segments: &[Slice],
    len: u64,
) -> Result<[Option<Put>; 2]> {
    let front = match large {
        true => announce_and_wait(batch, channel, number, len)?,
        false => [None; 2],
    };
    unstamped(batch, channel, number, large, segments, len)?;
    Ok(front)
}

/// Prepares the announcement of a large message of a stream, and the kernel that waits for its receive
/// if a kernel of the peer names that.
pub(super) fn announce_and_wait(
    batch: &mut Batch<'_>,
    channel: &SendChannel,
    number: u64,
    len: u64,
) -> Result<[Option<Put>; 2]> {
    let announced = announce(batch, channel, number, len)?;
    let relay = channel.relay(number).map(|params| batch.relay(params));
    Ok([Some(announced), relay.transpose()?])
}

/// Prepares the announcement of a large message.
pub(super) fn announce(
    batch: &mut Batch<'_>,
    channel: &SendChannel,
    number: u64,
    len: u64,
) -> Result<Put> {
    let announce = word::word(number, WordKind::Announce, len).to_le_bytes();
    batch.put_bytes(&announce, channel.pair(number)?)
}

/// Prepares a large message whose receive is posted: payload to its `place`, then stamp.
pub(super) fn direct(
    batch: &mut Batch<'_>,
    channel: &SendChannel,
    number: u64,
    segments: &[Slice],
    len: u64,
    place: Span,
) -> Result<Put> {
    payload(batch, segments, len, place)?;
    put_stamp(batch, channel, number, WordKind::Direct, len)
}

/// Prepares a large message of a stream that needs no announcement of the CPU and no stamp of a kernel,
/// and returns its last put: it goes to a long room, or its kernel finds the memory of the receive, or
/// the receive is known to be posted, which is checked if the message is posted `now`.
pub(super) fn complete(
    batch: &mut Batch<'_>,
    channel: &mut SendChannel,
    common: &Common,
    now: bool,
) -> Result<Option<Put>> {
    let (number, len, segments) = (common.number, common.len, common.segments.as_slice());
    if let [one] = segments {
        if let Some(put) = channel.put_flagged(batch, number, Some(one.piece()))? {
            return Ok(Some(put));
        }
        if let Some(put) = channel.put_direct(batch, number, one.piece())? {
            return Ok(Some(put));
        }
    }
    let known = now.then(|| channel.known_place(number, len)).flatten();
    let sent = known.map(|place| direct(batch, channel, number, segments, len, place));
    sent.transpose()
}

/// Prepares payload and stamp of a message that a kernel completes.
pub(super) fn unstamped(
    batch: &mut Batch<'_>,
    channel: &SendChannel,
    number: u64,
    large: bool,
    segments: &[Slice],
    len: u64,
) -> Result<Put> {
    let pair = channel.pair(number)?;
    let to = match large {
        // The kernel sets the destination.
        true => pair,
        false => channel.payload(number)?,
    };
    payload(batch, segments, len, to)?;
    let none = || {
        let what = "the channel has no memory for the words of this message";
        Error::new(PREPARE, Kind::System, what)
    };
    batch.announce_from(channel.stamp(number).ok_or_else(none)?, pair)
}
