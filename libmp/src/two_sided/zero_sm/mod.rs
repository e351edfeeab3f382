//! Zero-SM messages: two-sided messages between ranks of one host by copy engines and memory operations of
//! streams alone, without a kernel.
//!
//! The channel of a tag in one direction has numbers of its own: zero-SM messages match each other in the
//! order in which the two ranks post them, and never match other messages. `protocol` has what the two
//! sides agree on, `channel` their memory, `half` how a side enqueues its half of a message. The operations
//! of the engine are in `zero_choice`, `zero_post`, `zero_wait` and `zero_advance`.
//!
//! The receiver makes the memory, when its program posts the first receive or when the sender asks. So the first
//! send under a tag waits for the background work of the receiver, and a receive does not. A call that posts
//! a receive, or a send above the eager limit, waits until the other rank has mapped its memory.

mod channel;
mod half;
mod protocol;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Kind, Result};
use crate::path::Paths;
use crate::request::zero_sm::Way;
use crate::wire::control::{Control, ZeroSmRoom};

use channel::OPEN;
pub(super) use channel::{Entries, Field, Recvs, Sends};
pub(super) use half::{Half, POST, Tried, move_bytes, part, receive, send};
pub(super) use protocol::{ENTRIES, released, value};

/// Maximum number of channels that a peer opens before this rank posts under their tags.
const AHEAD: usize = 2048;

/// What a channel is made from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub paths: &'a Paths,
    /// Bytes of a slot.
    pub room: usize,
}

/// The channels of zero-SM messages to and from one rank, by tag.
#[derive(Default)]
pub(crate) struct ZeroSmChannels {
    pub(super) sends: BTreeMap<u32, Sends>,
    pub(super) recvs: BTreeMap<u32, Recvs>,
    /// The tags for whose memory the peer was asked.
    asked: BTreeSet<u32>,
    /// Number of channels for which the peer has asked, and under which this rank has posted nothing.
    unused: usize,
}

impl ZeroSmChannels {
    /// Makes this side's part of a channel; control messages for the peer are appended to `out`. `true`: the
    /// channel is open.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn begin(
        &mut self,
        from: Origin<'_>,
        (tag, sends): (u32, bool),
        out: &mut Vec<Control>,
    ) -> Result<bool> {
        if sends {
            let open = self.sends.contains_key(&tag);
            if !open && self.asked.insert(tag) {
                out.push(Control::AskZeroSm { tag });
            }
            return Ok(open);
        }
        if !self.recvs.contains_key(&tag) {
            self.make(from, tag, out)?;
        }
        Ok(self.use_open(tag, sends))
    }

    /// Marks a channel as used, because the caller posts under its tag. False: it is not open.
    pub fn use_open(&mut self, tag: u32, sends: bool) -> bool {
        if sends {
            return self.sends.contains_key(&tag);
        }
        let Some(channel) = self.recvs.get_mut(&tag) else {
            return false;
        };
        if !std::mem::replace(&mut channel.used, true) {
            self.unused -= 1;
        }
        true
    }

    fn make(&mut self, from: Origin<'_>, tag: u32, out: &mut Vec<Control>) -> Result<()> {
        let channel = Recvs::make(from.paths, from.room)?;
        out.push(Control::ZeroSm(Box::new(channel.record(tag)?)));
        self.recvs.insert(tag, channel);
        self.unused += 1;
        Ok(())
    }

    /// Handles the question of a peer that will send under a tag.
    ///
    /// # Errors
    /// `Protocol` for too many tags; those of the memory.
    pub fn peer_asks(&mut self, from: Origin<'_>, tag: u32, out: &mut Vec<Control>) -> Result<()> {
        if self.recvs.contains_key(&tag) {
            // The memory was sent when it was made.
            return Ok(());
        }
        if self.unused >= AHEAD {
            let what = "the peer sends zero-SM messages under too many tags under which this rank has \
                        posted no receive";
            let error = Error::new(OPEN, Kind::Protocol, what);
            return Err(error.with_limit(AHEAD, "tags"));
        }
        self.make(from, tag, out)
    }

    /// Handles the memory of a peer that receives under a tag.
    ///
    /// # Errors
    /// `Protocol` for memory that does not fit, a second answer, or too many tags.
    pub fn peer_made(&mut self, from: Origin<'_>, theirs: &ZeroSmRoom) -> Result<()> {
        let tag = theirs.tag;
        if self.sends.contains_key(&tag) {
            let what = "the peer named the memory of a channel twice";
            return Err(Error::new(OPEN, Kind::Protocol, what));
        }
        let asked = |tag: &&u32| self.asked.contains(*tag);
        let unasked = self.sends.keys().filter(|tag| !asked(tag)).count();
        if !asked(&&tag) && unasked >= AHEAD {
            let what = "the peer receives zero-SM messages under too many tags under which this rank \
                        has posted no send";
            let error = Error::new(OPEN, Kind::Protocol, what);
            return Err(error.with_limit(AHEAD, "tags"));
        }
        let channel = Sends::open(from.paths, from.room, theirs)?;
        self.sends.insert(tag, channel);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.recvs.is_empty()
    }

    /// Whether the memory of a channel is awaited.
    pub fn is_opening(&self) -> bool {
        let mut asked = self.asked.iter();
        asked.any(|tag| !self.sends.contains_key(tag))
    }

    /// Whether no send of this rank will copy to memory of the peer.
    pub fn is_quiet(&self) -> bool {
        self.sends.values().all(Sends::is_quiet)
    }

    /// Whether the message of a receive has arrived.
    pub fn has_come(&self, tag: u32, number: u64) -> bool {
        let channel = self.recvs.get(&tag);
        channel.is_some_and(|channel| channel.entries.has(number, Field::Sent))
    }

    /// Whether the word is set with which a send ends.
    pub fn has_left(&self, tag: u32, number: u64, way: Way) -> bool {
        let channel = self.sends.get(&tag);
        channel.is_some_and(|channel| channel.entries.has(number, Sends::end(way)))
    }

    /// Whether a send waits for the peer.
    pub fn send_lacks(&self, tag: u32, number: u64) -> bool {
        let channel = self.sends.get(&tag);
        channel.is_some_and(|channel| channel.lacks(number))
    }

    /// Releases the streams that wait for a message that was longer than its receive.
    pub fn end_cut(&self, sends: bool, tag: u32, number: u64) {
        if sends {
            if let Some(channel) = self.sends.get(&tag) {
                channel.entries.set(number, Field::Done);
            }
        } else if let Some(channel) = self.recvs.get(&tag) {
            channel.entries.set(number, Field::Sent);
        }
    }

    /// Notes that a request has ended.
    pub fn ended(&mut self, sends: bool, tag: u32, number: u64) {
        let window = match sends {
            true => self.sends.get_mut(&tag).map(|channel| &mut channel.window),
            false => self.recvs.get_mut(&tag).map(|channel| &mut channel.window),
        };
        if let Some(flight) = window.and_then(|window| window.get_mut(number)) {
            flight.ended = true;
        }
    }

    /// Settles what both sides need no more, of all tags or of one. Returns tags, numbers and lengths of sends that
    /// had ended with success and were longer than their receives.
    pub fn settle(&mut self, tag: Option<u32>) -> Vec<(u32, u64, u64)> {
        let tags = tag.unwrap_or(0)..=tag.unwrap_or(u32::MAX);
        for (_, channel) in self.recvs.range_mut(tags.clone()) {
            channel.settle();
        }
        let mut cut = Vec::new();
        for (tag, channel) in self.sends.range_mut(tags) {
            channel.settle(|number, len| cut.push((*tag, number, len)));
        }
        cut
    }

    /// Releases the streams of this rank: the peer was given up.
    pub fn fail(&mut self) {
        self.sends.values_mut().for_each(Sends::fail);
        self.recvs.values_mut().for_each(Recvs::fail);
    }
}
