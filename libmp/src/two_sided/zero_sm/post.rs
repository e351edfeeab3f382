//! How zero-SM sends and receives are checked, numbered and posted.

use gdsync::gpu::Region;
use gdsync::{Status, Stream};

use super::channel::{Field, Recvs, Sends};
use super::protocol::{ENTRIES, First, Flight, SLOTS, released, value};
use crate::error::{Error, Kind, Result, time};
use crate::mutant::{Mutant, on};
use crate::path::{List, Path, Shared};
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Operation, Poster};
use crate::request::table::RequestKey;
use crate::request::zero_sm::{Way, ZeroSm};
use crate::two_sided::engine::Engine;
use crate::two_sided::marks::mark_others;
use crate::two_sided::null::NULL_RANK;
use crate::two_sided::peer::{Cause, Need};
use crate::two_sided::send::total;
use crate::two_sided::spec::{On, RecvOp, SendOp, SizeSource, Source};
use crate::two_sided::state::{State, not_connected};

const POST: &str = "post zero-SM message";

/// Number of times that a half is tried: the other rank enqueues its half once.
const TRIES: usize = 4;

/// What a call that sends or receives asks for.
struct Asked<'a> {
    /// The choice of the request itself.
    own: Option<bool>,
    on: &'a On<'a>,
    /// `None`: a receive from any rank.
    rank: Option<u32>,
    post: bool,
    /// It has at most one piece, of a fixed length.
    plain: bool,
}

/// A half that was enqueued.
struct Half {
    number: u64,
    way: Way,
    /// Of a receive whose send was first.
    arriving: u64,
    source: Option<(Region, usize)>,
    /// The message is longer than its receive.
    cut: bool,
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
    /// The stream of a send that is a zero-SM message.
    ///
    /// # Errors
    /// `Unsupported` if it is to be one and cannot.
    #[inline]
    pub(in crate::two_sided) fn zero_sm_send_on<'s>(
        &self,
        spec: &SendOp<'s>,
        post: bool,
    ) -> Result<Option<&'s Stream>> {
        if spec.zero_sm == Some(false) || spec.zero_sm.is_none() && !self.zero_sm_by_default() {
            return Ok(None);
        }
        let plain = matches!(spec.size, SizeSource::Segments) && spec.packed.is_none();
        let asked = Asked {
            own: spec.zero_sm,
            on: &spec.on,
            rank: Some(spec.to),
            post,
            plain: plain && spec.segments.len() <= 1,
        };
        match self.is_zero_sm(&asked)? {
            true => Ok(spec.on.stream()),
            false => Ok(None),
        }
    }

    /// As [`Engine::zero_sm_send_on`], of a receive.
    #[inline]
    pub(in crate::two_sided) fn zero_sm_recv_on<'s>(
        &self,
        spec: &RecvOp<'s>,
        post: bool,
    ) -> Result<Option<&'s Stream>> {
        if spec.zero_sm == Some(false) || spec.zero_sm.is_none() && !self.zero_sm_by_default() {
            return Ok(None);
        }
        let asked = Asked {
            own: spec.zero_sm,
            on: &spec.on,
            rank: match spec.from {
                Source::Rank(rank) => Some(rank),
                Source::Any => None,
            },
            post,
            plain: spec.packed.is_none() && spec.segments.len() <= 1,
        };
        match self.is_zero_sm(&asked)? {
            true => Ok(spec.on.stream()),
            false => Ok(None),
        }
    }

    /// Whether messages of streams to ranks of this host are zero-SM messages by default.
    #[inline]
    pub(crate) fn zero_sm_by_default(&self) -> bool {
        self.config.zero_sm == Some(true)
    }

    /// Whether a request that asks for it, by itself or by the default of the context, is a zero-SM
    /// message.
    fn is_zero_sm(&self, asked: &Asked<'_>) -> Result<bool> {
        let by_default = asked.own.is_none();
        let applies = match asked.rank {
            Some(NULL_RANK) => return Ok(false),
            Some(rank) if rank >= self.size => return Ok(false),
            Some(rank) => !by_default || self.paths.is_near(rank),
            None => !by_default || self.paths.maps(),
        };
        if !applies {
            return Ok(false);
        }
        let refuse = |why: &str| {
            let whose = match by_default {
                true => {
                    "Builder::zero_sm or MP_ZERO_SM asks for zero-SM messages with ranks of this host"
                }
                false => "zero_sm(true) asks for a zero-SM message",
            };
            let what =
                format!("{whose}: {why}; or call zero_sm(false) on the send and on its receive");
            let error = Error::new(POST, Kind::Unsupported, what);
            Err(match asked.rank {
                Some(rank) => error.with_rank(rank),
                None => error,
            })
        };
        let Some(rank) = asked.rank else {
            return refuse("a receive from any rank is matched by the CPU; name the rank");
        };
        if asked.on.stream().is_none() {
            return refuse("the CPU posts none; post the message on a stream");
        }
        if let Some(stream) = asked.on.captured(&self.gpu, POST)? {
            return refuse(&format!(
                "{stream:?} is being captured, and a graph has none; post the message outside of the \
                 capture"
            ));
        }
        if !asked.post {
            return refuse(
                "the two ranks agree on it when it is posted; prepare and post it by one call, as \
                 isend_on and irecv_on do",
            );
        }
        if !asked.plain {
            return refuse("it has one piece, and its length is fixed; send the pieces separately");
        }
        if rank == self.rank {
            return refuse("it goes to another rank, and this is the rank itself");
        }
        if self.paths.chosen(rank).is_none() {
            drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
        }
        match self.paths.chosen(rank) {
            Some((Path::Ipc, _)) => Ok(true),
            Some((path, reason)) => refuse(&format!(
                "it needs memory that both ranks map, and the path to rank {rank} is {path:?} \
                 ({reason}); set MP_PATH=ipc"
            )),
            None => Err(not_connected(POST, rank)),
        }
    }

    /// Posts a zero-SM send.
    pub(in crate::two_sided) fn zero_sm_send(
        &self,
        spec: &SendOp<'_>,
        stream: &Stream,
    ) -> Result<RequestKey> {
        let (rank, memory) = (spec.to, spec.segments.first());
        let len = total(&self.paths, POST, spec.segments)?;
        let sent = self.open_zero_sm(rank, spec.tag, true).and_then(|()| {
            if len > self.config.eager_limit as u64 {
                self.show(rank, memory)?;
            }
            self.with_room(|| {
                let state = &mut *self.lock();
                let half = self.enqueue_half(state, (rank, spec.tag), stream, &mut |state| {
                    self.try_send_half(state, spec, stream, len)
                })?;
                let common = Common {
                    len,
                    timeout: spec.timeout,
                    ..Common::new(rank, spec.tag, spec.segments)
                };
                Ok(self.add_zero_sm(state, common, stream, true, half))
            })
        });
        sent.map_err(|e| e.of_peer(rank))
    }

    /// Posts a zero-SM receive.
    pub(in crate::two_sided) fn zero_sm_recv(
        &self,
        spec: &RecvOp<'_>,
        stream: &Stream,
    ) -> Result<RequestKey> {
        let Source::Rank(rank) = spec.from else {
            return Err(Error::new(
                POST,
                Kind::Unsupported,
                "the receive names no rank",
            ));
        };
        let memory = spec.segments.first();
        let len = total(&self.paths, POST, spec.segments)?;
        let received = self.open_zero_sm(rank, spec.tag, false).and_then(|()| {
            self.show(rank, memory)?;
            self.with_room(|| {
                let state = &mut *self.lock();
                let half = self.enqueue_half(state, (rank, spec.tag), stream, &mut |state| {
                    self.try_recv_half(state, spec, stream, len)
                })?;
                let common = Common {
                    len,
                    timeout: spec.timeout,
                    ..Common::new(rank, spec.tag, spec.segments)
                };
                Ok(self.add_zero_sm(state, common, stream, false, half))
            })
        });
        received.map_err(|e| e.of_peer(rank))
    }

    /// Waits until a channel is open.
    fn open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<()> {
        let mut answer = self.try_open_zero_sm(rank, tag, sends);
        if matches!(answer, Ok(false)) {
            drop(self.ensure(rank, &On::Cpu, Need::Lanes)?);
            let deadline = self.host().now() + self.config.timeout;
            self.wait(deadline, &mut || {
                self.progress();
                answer = self.try_open_zero_sm(rank, tag, sends);
                !matches!(answer, Ok(false))
            });
        }
        if answer? {
            return Ok(());
        }
        let what = format!(
            "rank {rank} did not answer within {} (Builder::timeout); check that it calls progress() if \
             it has Progress::Manual",
            time(self.config.timeout)
        );
        Err(Error::new(POST, Kind::Timeout, what).with_rank(rank))
    }

    fn try_open_zero_sm(&self, rank: u32, tag: u32, sends: bool) -> Result<bool> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let setup = self.setup(&state.lanes);
        let Some(peer) = state.peers.get_mut(rank) else {
            return Ok(false);
        };
        let channels = &mut peer.zero_sm;
        if channels.sends.contains_key(&tag) && sends || channels.is_used(tag) && !sends {
            // Also of a rank that was given up: it may have left a message.
            return Ok(true);
        }
        if !peer.is_here() {
            return Err(peer.error(POST));
        }
        if !peer.is_open(0, Need::Lanes) {
            return Ok(false);
        }
        let mut out = Vec::new();
        let begun = peer.zero_sm.begin(&setup, (tag, sends), &mut out);
        self.send_control(state, rank, out);
        begun
    }

    /// Makes a rank map the memory of a message.
    fn show(&self, rank: u32, memory: Option<&Slice>) -> Result<()> {
        let Some(keys) = memory.map(|slice| slice.memory().keys()) else {
            return Ok(());
        };
        if !keys.can_share() {
            let what = "another rank cannot map the memory, which a zero-SM message needs; use memory of \
                        Context::alloc, or call zero_sm(false) on the send and on its receive";
            return Err(Error::new(POST, Kind::Unsupported, what));
        }
        self.await_mapped(rank, keys)
    }

    /// Enqueues a half by `attempt`, which is repeated if the other half becomes the first one meanwhile.
    fn enqueue_half(
        &self,
        state: &mut State,
        (rank, tag): (u32, u32),
        stream: &Stream,
        attempt: &mut dyn FnMut(&mut State) -> Result<Tried>,
    ) -> Result<Half> {
        self.sweep_if_crowded(state);
        self.settle_zero_sm(state, rank);
        state.requests.reserve(&self.gpu)?;
        // The stream may wait behind this.
        mark_others(state, stream, 0)?;
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
        mut common: Common,
        stream: &Stream,
        sends: bool,
        half: Half,
    ) -> RequestKey {
        common.number = half.number;
        common.order = state.requests.next_order();
        common.poster = Poster {
            lane: 0,
            stream: Some(stream.downgrade()),
        };
        let (rank, len) = (common.peer, common.len);
        let message = ZeroSm {
            sends,
            way: half.way,
            arriving: half.arriving,
            source: half.source,
            claimed: None,
            wanted: false,
            done: None,
        };
        let operation = Operation::ZeroSm(Box::new(message));
        let key = state.requests.put(Entry { common, operation });
        if half.cut {
            let len = if sends { len } else { half.arriving };
            self.finish(state, key, Status::TRUNCATED, len);
            self.settle_zero_sm(state, rank);
        }
        key
    }

    fn try_send_half(
        &self,
        state: &mut State,
        spec: &SendOp<'_>,
        stream: &Stream,
        len: u64,
    ) -> Result<Tried> {
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
        let source = spec.segments.first();
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
        stream: &Stream,
        len: u64,
    ) -> Result<Tried> {
        let Source::Rank(rank) = spec.from else {
            return Err(not_connected(POST, self.rank));
        };
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
        let place = spec.segments.first();
        stream.check_room(1)?;
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
        let ready = entries.word(number, Field::Ready)?;
        let mut list = List::<1>::new();
        list.store(&ready, value(number));
        if let Err(e) = list.post(stream, None) {
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
            source: None,
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
fn find(shared: &Shared, [key, offset]: [u64; 2], len: u64) -> Result<(Region, usize)> {
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
fn arriving(channel: &Recvs, shared: &Shared, number: u64, room: u64) -> Result<Half> {
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
        source: source.transpose()?,
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
    stream: &Stream,
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
    stream: &Stream,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    let (slot, behind) = channel.next_slot();
    let behind = behind.filter(|_| !on(Mutant::EarlySlot));
    let sent = entries.word(number, Field::Sent)?;
    let taken = behind.map(|before| entries.word(before, Field::Done));
    let taken = taken.transpose()?;
    let room = channel.slot(slot);
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
            Ok(()) => Tried::Enqueued(Half::new(number, Way::Staged { slot })),
            Err(e) => Tried::Torn(e),
        })
    };
    let tried = while_held(stream, behind.is_some(), enqueue)?;
    if let Tried::Enqueued(_) = &tried {
        channel.push(Flight {
            behind,
            ..Flight::new(Way::Staged { slot }, len)
        });
    }
    Ok(tried)
}

/// Shows a long message whose receive is not posted.
fn send_pulled(
    channel: &mut Sends,
    source: Option<&Slice>,
    len: u64,
    stream: &Stream,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    stream.check_room(1)?;
    let (key, offset) = source.map_or((0, 0), place_of);
    entries.store(number, Field::Len, len);
    entries.store(number, Field::Slot, 0);
    entries.store(number, Field::SourceKey, key);
    entries.store(number, Field::SourceOffset, offset);
    if !entries.agree(number, First::Send)? {
        return Ok(Tried::Overtaken);
    }
    let sent = entries.word(number, Field::Sent)?;
    let mut list = List::<1>::new();
    list.store(&sent, value(number));
    if let Err(e) = list.post(stream, None) {
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
type At<'a> = (&'a Region, usize);

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
