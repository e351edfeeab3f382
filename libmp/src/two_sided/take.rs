//! Taking in by the CPU: copies an arrived message to the memory of its receive, acknowledges it to
//! the sender, and ends the receive. A stream does the same by a kernel, see `claim`; `at_once` does it for
//! simple short messages.

use gdsync::Status;
use gdsync::gpu::Region;

use super::channel::RecvChannel;
use super::claim::needs_flush;
use super::engine::Engine;
use super::packed::staged;
use super::state::State;
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::path::Lane;
use crate::region::Slice;
use crate::request::entry::{Common, Incoming};
use crate::request::table::RequestKey;
use crate::wire::word::{self, WordKind};

impl Engine {
    /// Takes a message in by the CPU, if it has arrived. `true`: the receive has ended.
    pub(super) fn take_by_cpu(&self, state: &mut State, key: RequestKey) -> bool {
        let Ok((common, _, channel, _)) = state.incoming(key) else {
            return false;
        };
        let number = common.number;
        let Some(w) = channel.arrived(number, common.large) else {
            return false;
        };
        if !self.refuse(state, key) {
            return false;
        }
        let Ok((common, receive, channel, link)) = state.incoming(key) else {
            return false;
        };
        if needs_flush(common, receive, channel) {
            self.gpu.flush_remote_writes();
        }
        let payload = match flagged(channel, common, w) {
            // A part of the message is on its way.
            Ok(Some(None)) => return false,
            Ok(payload) => Ok(payload.flatten()),
            Err(e) => Err(e),
        };
        let taken = payload
            .and_then(|payload| take_in(channel, common, receive, w, payload.as_deref()))
            .and_then(|(status, len)| {
                let packed = staged(receive.packed.as_deref(), common);
                if let (Status::SUCCESS, Some((pieces, staging))) = (status, packed) {
                    pieces.scatter(staging, 0, len)?;
                }
                Ok((status, len))
            });
        let (status, len) = match taken {
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
        acknowledge(channel, link.lane(0), number, kind);
        self.finish(state, key, status, len);
        true
    }
}

/// Stores that the CPU has taken message `number` in, and returns the credits that are due to its sender.
#[inline]
pub(super) fn acknowledge(
    channel: &mut RecvChannel,
    lane: Option<&mut Lane>,
    number: u64,
    kind: WordKind,
) {
    // Pinned memory, which the CPU reaches: it cannot fail.
    let _ = channel.taken(number).store(word::word(number, kind, 0));
    channel.side.taken_by_poster = false;
    channel.count_for_library(number);
    if channel.are_credits_late() {
        channel.return_credits(lane);
    }
}

/// The payload of a message in a flagged room, which is not longer than its receive, or `None` while a
/// part is missing.
fn flagged(channel: &RecvChannel, common: &Common, w: u64) -> Result<Option<Option<Vec<u8>>>> {
    let number = common.number;
    match word::parse(w) {
        (low, Some(WordKind::Flagged), len)
            if low == number as u16
                && len <= common.len.max(channel.longest_flagged())
                && channel.has_flagged(number) =>
        {
            channel.flagged_payload(number, len as usize).map(Some)
        }
        _ => Ok(None),
    }
}

/// Copies a message to the memory of its receive. `flagged`: the payload, if it is in a flagged room.
#[inline]
pub(super) fn take_in(
    channel: &RecvChannel,
    common: &Common,
    receive: &Incoming,
    w: u64,
    flagged: Option<&[u8]>,
) -> Result<(Status, u64)> {
    let (low, kind, len) = word::parse(w);
    if low != common.number as u16 {
        return Ok((Status::BAD_RESPONSE, 0));
    }
    let room = common.len;
    let segments = common.segments.as_slice();
    match kind {
        Some(WordKind::Eager) if len > channel.shape.room() as u64 || !channel.has_rooms() => {
            Ok((Status::BAD_RESPONSE, 0))
        }
        Some(WordKind::Eager | WordKind::Flagged) if len > room => Ok((Status::TRUNCATED, len)),
        Some(WordKind::Flagged) => match flagged {
            Some(payload) => {
                scatter(segments, len, |into, to, at, n| {
                    Ok(into.write(to, &payload[at..at + n])?)
                })?;
                Ok((Status::SUCCESS, len))
            }
            None => Ok((Status::BAD_RESPONSE, 0)),
        },
        Some(WordKind::Eager) => {
            let of = common.number + u64::from(on(Mutant::WrongPayload));
            let (rooms, at) = channel.payload(of)?;
            scatter_region(segments, len, rooms, at)?;
            Ok((Status::SUCCESS, len))
        }
        Some(WordKind::Direct) if len > room => Ok((Status::BAD_RESPONSE, 0)),
        Some(WordKind::Direct) => {
            if let Some(staging) = &receive.staging {
                scatter_region(segments, len, staging.region(), 0)?;
            }
            Ok((Status::SUCCESS, len))
        }
        Some(WordKind::TooLong | WordKind::Announce) => Ok((Status::TRUNCATED, len)),
        Some(WordKind::Failed) => Ok((word::failure(len), 0)),
        _ => Ok((Status::BAD_RESPONSE, 0)),
    }
}

/// Copies `len` bytes into segments; `copy` copies a number of bytes to an offset of a region, from an
/// offset in the message.
#[inline]
fn scatter(
    segments: &[Slice],
    len: u64,
    mut copy: impl FnMut(&Region, usize, usize, usize) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    for segment in segments {
        let n = segment.len().min(len as usize - done);
        copy(segment.memory().region(), segment.offset(), done, n)?;
        done += n;
    }
    Ok(())
}

/// Copies the `len` bytes at byte `start` of `source` into segments.
#[inline]
fn scatter_region(segments: &[Slice], len: u64, source: &Region, start: usize) -> Result<()> {
    scatter(segments, len, |into, to, at, n| {
        copy_region((into, to), (source, start + at), n)
    })
}

/// Copies `len` bytes from region to region.
#[inline]
pub(super) fn copy_region(
    into: (&Region, usize),
    from: (&Region, usize),
    len: usize,
) -> Result<()> {
    match into.0.copy_from(into.1, from.0, from.1, len)? {
        true => Ok(()),
        false => copy_by_engine(into, from, len),
    }
}

/// Copies `len` bytes between regions of which the CPU cannot access one.
#[cold]
fn copy_by_engine(into: (&Region, usize), from: (&Region, usize), len: usize) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let mut buffer = vec![0; PIECE.min(len)];
    for done in (0..len).step_by(PIECE) {
        let piece = &mut buffer[..PIECE.min(len - done)];
        from.0.read(from.1 + done, piece)?;
        into.0.write(into.1 + done, piece)?;
    }
    Ok(())
}
