//! How zero-SM sends and receives are checked, numbered and posted.

use gdsync::gpu::Region;
use gdsync::{Status, Stream};

use super::channel::{Field, Recvs, Sends};
use super::protocol::{ENTRIES, First, Flight, SLOTS, released, value};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::path::{List, Shared};
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Operation, Poster};
use crate::request::table::RequestKey;
use crate::request::zero_sm::{Way, ZeroSm};
use crate::two_sided::engine::Engine;
use crate::two_sided::marks::mark_others;
use crate::two_sided::peer::Cause;
use crate::two_sided::send::total;
use crate::two_sided::spec::{On, RecvOp, SendOp, Source};
use crate::two_sided::state::{State, not_connected};

pub(super) const POST: &str = "post zero-SM message";

/// Number of times that a half is tried: the other rank enqueues its half once.
const TRIES: usize = 4;

/// A half that was enqueued.
pub(super) struct Half {
    number: u64,
    pub way: Way,
    /// Of a receive whose send was first.
    pub arriving: u64,
    pub far: Option<(Region, usize)>,
    /// The CPU copies it later.
    queued: bool,
    /// The message is longer than its receive.
    pub cut: bool,
}

/// The result of a try to enqueue a half.
enum Tried {
    /// The other half became the first one meanwhile: nothing is enqueued.
    Overtaken,
    Enqueued(Half),
    /// The other rank knows of the half, and only a part is enqueued.
    Torn(Error),
}

impl Engine {
    /// Posts a zero-SM send.
    pub(in crate::two_sided) fn zero_sm_send(&self, spec: &SendOp<'_>) -> Result<RequestKey> {
        let (rank, memory) = (spec.to, spec.segments.first());
        let len = total(&self.paths, POST, spec.segments)?;
        let sent = self.open_zero_sm(rank, spec.tag, true).and_then(|()| {
            if len > self.config.eager_limit as u64 {
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
    pub(in crate::two_sided) fn zero_sm_recv(&self, spec: &RecvOp<'_>) -> Result<RequestKey> {
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
        self.settle_zero_sm(state, rank);
        state.requests.reserve(&self.gpu)?;
        if let Some(stream) = on.stream() {
            // It may wait behind this.
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
        let (rank, len) = (common.peer, common.len);
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
        let operation = Operation::ZeroSm(Box::new(message));
        let key = state.requests.put(Entry { common, operation });
        if half.cut {
            let len = if sends { len } else { half.arriving };
            self.finish(state, key, Status::TRUNCATED, len);
            self.settle_zero_sm(state, rank);
        } else if half.queued {
            self.advance(state, key);
        }
        key
    }

    fn try_send_half(&self, state: &mut State, spec: &SendOp<'_>, len: u64) -> Result<Tried> {
        let rank = spec.to;
        let none = || not_connected(POST, rank);
        let peer = state.peers.get_mut(rank).ok_or_else(none)?;
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        let shared = &peer.link.shared;
        let channel = peer.zero_sm.sends.get_mut(&spec.tag).ok_or_else(none)?;
        if channel.is_full() {
            return Err(full(rank, spec.tag, "messages to", "has received"));
        }
        let (source, stream) = (spec.segments.first(), spec.on.stream());
        match channel.entries.agreed(channel.window.next())? {
            Some(First::Receive) => send_direct(channel, shared, source, len, stream),
            Some(First::Send) => {
                let what = "the peer says that a message was enqueued which was not";
                Err(Error::new(POST, Kind::Protocol, what))
            }
            None if len <= self.config.eager_limit as u64 => {
                send_staged(channel, source, len, stream)
            }
            None => send_pulled(channel, source, len, stream),
        }
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
        let next = peer.zero_sm.recvs.get(&spec.tag).ok_or_else(none)?;
        let next = next.window.next();
        if !peer.is_here() && !peer.zero_sm.has_come(spec.tag, next) {
            return Err(peer.error(POST));
        }
        let shared = &peer.link.shared;
        let channel = peer.zero_sm.recvs.get_mut(&spec.tag).ok_or_else(none)?;
        if channel.is_full() {
            return Err(full(rank, spec.tag, "receives from", "has sent"));
        }
        let (number, entries) = (channel.window.next(), &channel.entries);
        let first = entries.agreed(number)?;
        if first == Some(First::Receive) {
            let what = "the peer says that a receive was enqueued which was not";
            return Err(Error::new(POST, Kind::Protocol, what));
        }
        let arriving = first.map(|_| arriving(channel, shared, number, len));
        let arriving = arriving.transpose()?;
        let (place, stream) = (spec.segments.first(), spec.on.stream());
        stream.map_or(Ok(()), |stream| stream.check_room(1))?;
        entries.store(number, Field::Capacity, len);
        let half = match arriving {
            Some(half) => half,
            None => {
                let at = place.map_or((0, 0), place_of);
                entries.store(number, Field::RoomKey, at.0);
                entries.store(number, Field::RoomOffset, at.1);
                if !entries.agree(number, First::Receive)? {
                    return Ok(Tried::Overtaken);
                }
                Half::new(number, Way::Direct)
            }
        };
        if let Err(e) = entries.set_on(stream, number, Field::Ready) {
            return Ok(Tried::Torn(e));
        }
        channel.window.push(Flight {
            discards: half.cut,
            ..Flight::new(half.way, len)
        });
        Ok(Tried::Enqueued(half))
    }
}

impl Half {
    fn new(number: u64, way: Way) -> Half {
        Half {
            number,
            way,
            arriving: 0,
            far: None,
            queued: false,
            cut: false,
        }
    }
}

/// The key of the memory of a message, and the offset there.
fn place_of(slice: &Slice) -> (u64, u64) {
    let key = slice.memory().keys().copy_key();
    (key.into(), slice.offset() as u64)
}

/// Memory of the peer that it has named by key and offset, if it has room for `len` bytes there.
pub(super) fn find(shared: &Shared, [key, offset]: [u64; 2], len: u64) -> Result<(Region, usize)> {
    let key = u32::try_from(key).ok();
    let region = key.and_then(|key| shared.region(key));
    let end = offset.checked_add(len);
    let inside = region
        .zip(end)
        .filter(|(region, end)| *end <= region.len() as u64);
    let (region, _) = inside.ok_or_else(|| {
        let what =
            format!("the peer named memory for {len} bytes of a message that it does not share");
        Error::new(POST, Kind::Protocol, what)
    })?;
    Ok((region.clone(), offset as usize))
}

/// What a receive with room for `room` bytes finds of a send that was first.
pub(super) fn arriving(channel: &Recvs, shared: &Shared, number: u64, room: u64) -> Result<Half> {
    let load = |field| channel.entries.load(number, field);
    let (len, slot) = (load(Field::Len), load(Field::Slot));
    let way = match slot.checked_sub(1) {
        None => Way::Pulled,
        Some(slot) if slot < SLOTS && len <= channel.room as u64 => Way::Staged { slot },
        Some(slot) => {
            let what =
                format!("the peer has sent {len} bytes to slot {slot}, which has no room for them");
            return Err(Error::new(POST, Kind::Protocol, what));
        }
    };
    let cut = len > room;
    let source = (way == Way::Pulled && !cut).then(|| {
        let at = [load(Field::SourceKey), load(Field::SourceOffset)];
        find(shared, at, len)
    });
    Ok(Half {
        arriving: len,
        far: source.transpose()?,
        cut,
        ..Half::new(number, way)
    })
}

/// Sends to the memory of a receive that was first.
fn send_direct(
    channel: &mut Sends,
    shared: &Shared,
    source: Option<&Slice>,
    len: u64,
    stream: Option<&Stream>,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    let mut half = Half::new(number, Way::Direct);
    half.cut = len > entries.load(number, Field::Capacity);
    if half.cut {
        entries.store(number, Field::Len, len);
        entries.set(number, Field::Cut);
        channel.push(Flight::new(Way::Direct, len));
        return Ok(Tried::Enqueued(half));
    }
    let to = match len {
        0 => None,
        _ => {
            let at = [Field::RoomKey, Field::RoomOffset].map(|field| entries.load(number, field));
            Some(find(shared, at, len)?)
        }
    };
    let Some(stream) = stream else {
        entries.store(number, Field::Len, len);
        channel.push(Flight::new(Way::Direct, len));
        return Ok(Tried::Enqueued(Half {
            far: to,
            queued: true,
            ..half
        }));
    };
    let [ready, sent] = [Field::Ready, Field::Sent].map(|field| entries.word(number, field));
    let (ready, sent) = (ready?, sent?);
    let waits = !entries.has(number, Field::Ready) && !on(Mutant::MissingReadyWait);
    let enqueue = || -> Result<Tried> {
        stream.check_room(if waits { 3 } else { 2 })?;
        entries.store(number, Field::Len, len);
        let enqueued = (|| {
            let mut list = List::<4>::new();
            if waits {
                list.wait(&ready, released(number), false);
                list.passed_by(&sent, value(number));
            }
            let copied = to.as_ref().zip(source);
            move_bytes(
                stream,
                list,
                copied.map(|((to, at), from)| ((to, *at), part(from))),
                len,
                (&sent, value(number)),
            )
        })();
        Ok(match enqueued {
            Ok(()) => Tried::Enqueued(half),
            Err(e) => Tried::Torn(e),
        })
    };
    let tried = while_held(stream, waits, enqueue)?;
    if let Tried::Enqueued(_) = &tried {
        channel.push(Flight::new(Way::Direct, len));
    }
    Ok(tried)
}

/// Sends a short message whose receive is not posted.
fn send_staged(
    channel: &mut Sends,
    source: Option<&Slice>,
    len: u64,
    stream: Option<&Stream>,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    let (slot, behind) = channel.next_slot();
    let behind = behind.filter(|_| !on(Mutant::EarlySlot));
    let sent = entries.word(number, Field::Sent)?;
    let taken = behind.map(|before| entries.word(before, Field::Done));
    let taken = taken.transpose()?;
    let room = channel.slot(slot);
    let flight = Flight {
        behind,
        ..Flight::new(Way::Staged { slot }, len)
    };
    let mut half = Half::new(number, Way::Staged { slot });
    let Some(stream) = stream else {
        entries.store(number, Field::Len, len);
        entries.store(number, Field::Slot, slot + 1);
        if !entries.agree(number, First::Send)? {
            return Ok(Tried::Overtaken);
        }
        (half.far, half.queued) = (Some((room.0.clone(), room.1)), true);
        channel.push(flight);
        return Ok(Tried::Enqueued(half));
    };
    let enqueue = || -> Result<Tried> {
        stream.check_room(if behind.is_some() { 3 } else { 2 })?;
        entries.store(number, Field::Len, len);
        entries.store(number, Field::Slot, slot + 1);
        if !entries.agree(number, First::Send)? {
            return Ok(Tried::Overtaken);
        }
        let mut list = List::<4>::new();
        if let Some((before, taken)) = behind.zip(taken.as_ref()) {
            list.wait(taken, released(before), false);
            list.passed_by(&sent, value(number));
        }
        let copied = source.map(|from| (room, part(from)));
        let enqueued = move_bytes(stream, list, copied, len, (&sent, value(number)));
        Ok(match enqueued {
            Ok(()) => Tried::Enqueued(half),
            Err(e) => Tried::Torn(e),
        })
    };
    let tried = while_held(stream, behind.is_some(), enqueue)?;
    if let Tried::Enqueued(_) = &tried {
        channel.push(flight);
    }
    Ok(tried)
}

/// Shows a long message whose receive is not posted.
fn send_pulled(
    channel: &mut Sends,
    source: Option<&Slice>,
    len: u64,
    stream: Option<&Stream>,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    stream.map_or(Ok(()), |stream| stream.check_room(1))?;
    let (key, offset) = source.map_or((0, 0), place_of);
    entries.store(number, Field::Len, len);
    entries.store(number, Field::Slot, 0);
    entries.store(number, Field::SourceKey, key);
    entries.store(number, Field::SourceOffset, offset);
    if !entries.agree(number, First::Send)? {
        return Ok(Tried::Overtaken);
    }
    if let Err(e) = entries.set_on(stream, number, Field::Sent) {
        return Ok(Tried::Torn(e));
    }
    channel.push(Flight::new(Way::Pulled, len));
    Ok(Tried::Enqueued(Half::new(number, Way::Pulled)))
}

/// Calls `enqueue`, as a stream that waits if it does.
pub(super) fn while_held<T>(
    stream: &Stream,
    waits: bool,
    enqueue: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match waits {
        true => stream.hold_wait(enqueue).map_err(Error::from).flatten(),
        false => enqueue(),
    }
}

/// A region and an offset.
pub(super) type At<'a> = (&'a Region, usize);

/// The memory of a slice.
pub(super) fn part(slice: &Slice) -> At<'_> {
    (slice.memory().region(), slice.offset())
}

/// Enqueues a list, behind it a copy by an engine to and from memory, and behind that the store of a word.
pub(super) fn move_bytes<'w>(
    stream: &Stream,
    mut list: List<'w, 4>,
    copied: Option<(At<'_>, At<'_>)>,
    len: u64,
    (word, value): (&'w gdsync::gpu::Word64, u64),
) -> Result<()> {
    let Some((to, from)) = copied.filter(|_| len > 0) else {
        list.store(word, value);
        return list.post(stream, None);
    };
    list.post(stream, None)?;
    let span = |(region, offset): At<'_>| region.span(offset, len as usize);
    stream.copy(&span(to)?, &span(from)?)?;
    let mut list = List::<1>::new();
    list.store(word, value);
    list.post(stream, None)
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
