//! How a side enqueues its half of a message: it finds which half is first, publishes what the other side needs,
//! and enqueues the operations of its stream, or leaves the copy to the CPU.

use gdsync::Stream;
use gdsync::gpu::{Region, Word64};

use super::channel::{Field, Recvs, Sends};
use super::protocol::{First, Flight, SLOTS, released, value};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::path::{List, Shared, while_held};
use crate::region::Slice;
use crate::request::zero_sm::Way;

pub const POST: &str = "post zero-SM message";

/// A half that was enqueued.
pub struct Half {
    pub number: u64,
    pub way: Way,
    /// Of a receive whose send was first.
    pub arriving: u64,
    pub far: Option<(Region, usize)>,
    /// The CPU copies it later.
    pub queued: bool,
    /// The message is longer than its receive.
    pub cut: bool,
}

/// The result of a try to enqueue a half.
pub enum Tried {
    /// The other half became the first one meanwhile: nothing is enqueued.
    Overtaken,
    Enqueued(Half),
    /// The other rank knows of the half, and only a part is enqueued.
    Torn(Error),
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

/// Enqueues a send of `len` bytes from `source`; `eager`: the longest message that is copied to a slot.
///
/// # Errors
/// As [`receive`].
pub fn send(
    channel: &mut Sends,
    shared: &Shared,
    (source, len): (Option<&Slice>, u64),
    eager: u64,
    stream: Option<&Stream>,
) -> Result<Tried> {
    match channel.entries.agreed(channel.window.next())? {
        Some(First::Receive) => send_direct(channel, shared, source, len, stream),
        Some(First::Send) => {
            let what = "the peer says that a message was enqueued which was not";
            Err(Error::new(POST, Kind::Protocol, what))
        }
        None if len <= eager => send_staged(channel, source, len, stream),
        None => send_pulled(channel, source, len, stream),
    }
}

/// Enqueues a receive with room for `len` bytes at `place`. The caller has found a free entry.
///
/// # Errors
/// `Protocol` for what the peer has stored; those of the stream.
pub fn receive(
    channel: &mut Recvs,
    shared: &Shared,
    place: Option<&Slice>,
    len: u64,
    stream: Option<&Stream>,
) -> Result<Tried> {
    let (number, entries) = (channel.window.next(), &channel.entries);
    let first = entries.agreed(number)?;
    if first == Some(First::Receive) {
        let what = "the peer says that a receive was enqueued which was not";
        return Err(Error::new(POST, Kind::Protocol, what));
    }
    let arriving = first.map(|_| arriving(channel, shared, number, len));
    let arriving = arriving.transpose()?;
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
    channel.push(Flight {
        discards: half.cut,
        ..Flight::new(half.way, len)
    });
    Ok(Tried::Enqueued(half))
}

/// The key of the memory of a message, and the offset there.
fn place_of(slice: &Slice) -> (u64, u64) {
    let key = slice.memory().keys().copy_key();
    (key.into(), slice.offset() as u64)
}

/// Memory of the peer that it has named by key and offset, if it has room for `len` bytes there.
pub fn find(shared: &Shared, [key, offset]: [u64; 2], len: u64) -> Result<(Region, usize)> {
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
pub fn arriving(channel: &Recvs, shared: &Shared, number: u64, room: u64) -> Result<Half> {
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
        channel.push(Flight {
            queued: true,
            ..Flight::new(Way::Direct, len)
        });
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
        let mut list = List::<4>::new();
        if waits {
            list.wait_count(&ready, released(number));
        }
        let to = to.as_ref().map(|(region, at)| (region, *at));
        let copied = to.zip(source.map(part));
        let enqueued = move_bytes(stream, list, copied, len, (&sent, value(number)));
        Ok(enqueued.map_or_else(Tried::Torn, |()| Tried::Enqueued(half)))
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
        queued: stream.is_none(),
        ..Flight::new(Way::Staged { slot }, len)
    };
    let mut half = Half::new(number, Way::Staged { slot });
    let agree = || {
        entries.store(number, Field::Len, len);
        entries.store(number, Field::Slot, slot + 1);
        entries.agree(number, First::Send)
    };
    let Some(stream) = stream else {
        if !agree()? {
            return Ok(Tried::Overtaken);
        }
        (half.far, half.queued) = (Some((room.0.clone(), room.1)), true);
        channel.push(flight);
        return Ok(Tried::Enqueued(half));
    };
    let enqueue = || -> Result<Tried> {
        stream.check_room(if behind.is_some() { 3 } else { 2 })?;
        if !agree()? {
            return Ok(Tried::Overtaken);
        }
        let mut list = List::<4>::new();
        if let Some((before, taken)) = behind.zip(taken.as_ref()) {
            list.wait_count(taken, released(before));
        }
        let copied = source.map(|from| (room, part(from)));
        let enqueued = move_bytes(stream, list, copied, len, (&sent, value(number)));
        Ok(enqueued.map_or_else(Tried::Torn, |()| Tried::Enqueued(half)))
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

/// A region and an offset.
pub type At<'a> = (&'a Region, usize);

/// The memory of a slice.
pub fn part(slice: &Slice) -> At<'_> {
    (slice.memory().region(), slice.offset())
}

/// Enqueues waits, behind them a copy by an engine to and from memory, and behind that the store of a word,
/// which shows that the stream has passed the waits, and those of earlier messages.
pub fn move_bytes<'w>(
    stream: &Stream,
    mut waits: List<'w, 4>,
    copied: Option<(At<'_>, At<'_>)>,
    len: u64,
    (word, value): (&'w Word64, u64),
) -> Result<()> {
    let Some((to, from)) = copied.filter(|_| len > 0) else {
        waits.store(word, value);
        waits.passed_by(word, value);
        return waits.post(stream, None);
    };
    if !waits.is_empty() {
        waits.passed_by(word, value);
        waits.post(stream, None)?;
    }
    let span = |(region, offset): At<'_>| region.span(offset, len as usize);
    stream.copy(&span(to)?, &span(from)?)?;
    let mut list = List::<2>::new();
    list.store(word, value);
    list.passed_by(word, value);
    list.post(stream, None)
}
