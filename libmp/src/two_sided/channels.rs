//! The channels to and from one rank, by tag: how they open, wait for room, and retire.
//!
//! A channel opens on first use: each side sends the other its half, either side may start, and
//! each answers a request that it did not expect.

use std::collections::BTreeMap;

use super::channel::{RecvChannel, SendChannel};
use super::peer::Setup;
use crate::error::{Error, Kind, Result};
use crate::wire::control::{Control, Shape};
use crate::wire::record::Record;

/// Maximum number of channels of one direction with a peer, opened by either side.
const COUNTERPARTS: usize = 4096;
/// The highest limit that a side may set for the channels that it opens: the channels of both sides
/// fit.
pub(crate) const MOST_CHANNELS: usize = COUNTERPARTS / 2;
/// Maximum number of bytes of mailboxes for tags that a peer announced and under which nothing was
/// received yet. `UNUSED_TAGS` tags have a mailbox whatever its size. The peer waits with sends
/// under the other tags.
const UNUSED_BYTES: usize = 32 << 20;
const UNUSED_TAGS: usize = 16;
/// Maximum number of channels that one request asks a peer to retire.
const RETIRE: usize = 16;

const OPEN: &str = "open channel";

/// The channels of one peer, by tag.
pub(crate) struct Channels {
    peer: u32,
    pub sends: BTreeMap<u32, SendChannel>,
    pub recvs: BTreeMap<u32, RecvChannel>,
    /// The peer's return block, for tags whose mailbox does not exist yet.
    deferred: BTreeMap<u32, Vec<Record>>,
}

impl Channels {
    pub fn new(peer: u32) -> Channels {
        Channels {
            peer,
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            deferred: BTreeMap::new(),
        }
    }

    /// Whether a channel waits for the peer.
    pub fn is_opening(&self) -> bool {
        self.sends.values().any(|channel| !channel.is_open())
            || self.recvs.values().any(|channel| !channel.is_open())
    }

    #[inline]
    pub fn can_send(&self, tag: u32) -> bool {
        self.sends.get(&tag).is_some_and(SendChannel::is_open)
    }

    #[inline]
    pub fn can_receive(&self, tag: u32) -> bool {
        self.recvs.get(&tag).is_some_and(RecvChannel::is_open)
    }

    /// Makes this side's half of the channel to the peer, if there is none and fewer than `limit`
    /// exist; control messages for the peer are appended to `out`.
    pub fn send_channel(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        limit: usize,
        out: &mut Vec<Control>,
    ) -> Result<&mut SendChannel> {
        if !self.sends.contains_key(&tag) {
            let shape = self.admit(self.sends.len(), limit, setup)?;
            let channel = SendChannel::new(setup.paths, self.peer, shape)?;
            let block = channel.block();
            out.push(Control::Sends { tag, block, shape });
            self.sends.insert(tag, channel);
        }
        Ok(self.sends.get_mut(&tag).expect("it was inserted"))
    }

    /// As [`Channels::send_channel`], for the channel from the peer.
    pub fn recv_channel(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        limit: usize,
        out: &mut Vec<Control>,
    ) -> Result<&mut RecvChannel> {
        if !self.recvs.contains_key(&tag) {
            // A channel that only the peer has opened does not count against this side's limit.
            let channels = self.recvs.values();
            let own = channels.filter(|c| c.numbers.is_used() || !c.is_open());
            let shape = self.admit(own.count(), limit, setup)?;
            let mut channel = RecvChannel::new(setup.paths, self.peer, shape)?;
            if let Some(block) = self.deferred.remove(&tag) {
                channel.open(&block)?;
            }
            let block = channel.block();
            out.push(Control::Receives { tag, block, shape });
            self.recvs.insert(tag, channel);
        }
        Ok(self.recvs.get_mut(&tag).expect("it was inserted"))
    }

    fn admit(&self, channels: usize, limit: usize, setup: &Setup<'_>) -> Result<Shape> {
        if channels >= limit {
            let what = format!(
                "too many tags are in use with rank {}; wait for their messages, or use fewer tags",
                self.peer
            );
            let error = Error::new(OPEN, Kind::QueueFull, what).with_rank(self.peer);
            return Err(error.with_limit(limit, "tags"));
        }
        Ok(setup.config.shape())
    }

    /// Whether a mailbox may be made for a tag under which nothing is received.
    fn has_mailbox_room(&self, setup: &Setup<'_>) -> bool {
        let places = UNUSED_BYTES / setup.config.shape().mailbox_len();
        let places = places.clamp(UNUSED_TAGS, COUNTERPARTS);
        let channels = self.recvs.values();
        let unused = channels.filter(|c| c.is_open() && !c.numbers.is_used());
        unused.count() < places
    }

    /// Handles `Sends`: the peer will send under `tag`, and has named its return block. Without
    /// room for a mailbox the block is kept until a mailbox may be made, and the peer's first send
    /// under the tag waits.
    pub fn peer_sends(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        block: &[Record],
        out: &mut Vec<Control>,
    ) -> Result<()> {
        if self.recvs.contains_key(&tag) || self.has_mailbox_room(setup) {
            let channel = self.recv_channel(setup, tag, COUNTERPARTS, out)?;
            return channel.open(block);
        }
        self.admit(self.recvs.len() + self.deferred.len(), COUNTERPARTS, setup)?;
        match self.deferred.insert(tag, block.to_vec()) {
            Some(known) if known != block => {
                let rank = self.peer;
                let what = format!("rank {rank} announced tag {tag} twice, with different memory");
                Err(Error::new(OPEN, Kind::Protocol, what).with_rank(rank))
            }
            _ => Ok(()),
        }
    }

    /// Handles `Receives`: the peer will receive under `tag`, and has named its mailbox.
    pub fn peer_receives(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        mailbox: &[Record],
        out: &mut Vec<Control>,
    ) -> Result<()> {
        let channel = self.send_channel(setup, tag, COUNTERPARTS, out)?;
        channel.open(mailbox)
    }

    /// Whether the peer waits for a mailbox.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Makes the mailboxes that the peer waits for: those of `wanted` tags, under which a receive
    /// from any rank waits, and others as far as the bound allows.
    pub fn make_mailboxes(
        &mut self,
        setup: &Setup<'_>,
        wanted: &[u32],
        out: &mut Vec<Control>,
    ) -> Result<()> {
        let tags: Vec<u32> = self.deferred.keys().copied().collect();
        for tag in tags {
            if wanted.contains(&tag) || self.has_mailbox_room(setup) {
                self.recv_channel(setup, tag, COUNTERPARTS, out)?;
            }
        }
        Ok(())
    }

    /// Whether more than three quarters of the channels to the peer are in use.
    pub fn is_crowded(&self, limit: usize) -> bool {
        self.sends.len() > limit / 4 * 3
    }

    /// If the channels are crowded, asks the peer whether the least recently used idle ones can be
    /// retired.
    pub fn retire(&mut self, limit: usize, busy: &[u32], out: &mut Vec<Control>) {
        if !self.is_crowded(limit) {
            return;
        }
        let most = RETIRE.min(self.sends.len() - limit / 2);
        let sends = self.sends.iter_mut();
        let mut idle: Vec<_> = sends
            .filter(|(tag, channel)| channel.is_idle() && !busy.contains(tag))
            .collect();
        idle.sort_unstable_by_key(|(tag, channel)| (channel.side.last_use, **tag));
        for (tag, channel) in idle.into_iter().take(most) {
            channel.side.retiring = true;
            let (tag, next) = (*tag, channel.numbers.next());
            out.push(Control::Retire { tag, next });
        }
    }

    /// Keeps a channel whose peer could not be asked to retire it.
    pub fn unretire(&mut self, tag: u32) {
        if let Some(channel) = self.sends.get_mut(&tag) {
            channel.side.retiring = false;
        }
    }

    /// Handles `Retire`: the peer asks whether its channel under `tag` can be retired. The
    /// channel's next message has the number `next`; `written`: no ready word for it is in flight.
    pub fn peer_retires(
        &mut self,
        tag: u32,
        next: u64,
        written: impl FnOnce(&RecvChannel) -> bool,
    ) -> Control {
        let channel = self.recvs.get(&tag);
        let gone = channel.is_none_or(|channel| channel.is_idle(next) && written(channel));
        if gone {
            self.recvs.remove(&tag);
            self.deferred.remove(&tag);
        }
        Control::Retired { tag, gone }
    }

    /// Handles `Retired`, the peer's answer.
    pub fn retired(&mut self, tag: u32, gone: bool) -> Result<()> {
        match self.sends.get_mut(&tag).filter(|c| c.side.retiring) {
            Some(channel) if !gone => {
                channel.side.retiring = false;
                // Other channels are asked about first.
                channel.side.last_use = u64::MAX;
            }
            Some(_) => _ = self.sends.remove(&tag),
            None => {
                let what = format!("rank {} retired tag {tag} without a request", self.peer);
                return Err(Error::new(OPEN, Kind::Protocol, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::rdma::{Device, Doorbell};

    use super::*;
    use crate::path::Paths;
    use crate::two_sided::config::Config;
    use crate::two_sided::lanes::Lanes;

    /// The tag and the memory in the last control message for the peer.
    fn named(out: &mut Vec<Control>) -> (u32, Vec<Record>) {
        match out.pop() {
            Some(Control::Sends { tag, block, .. } | Control::Receives { tag, block, .. }) => {
                (tag, block)
            }
            other => panic!("{other:?}"),
        }
    }

    fn with_setup(body: impl FnOnce(&Setup<'_>)) {
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap());
        let (config, lanes) = (Config::default(), Lanes::new(Doorbell::Auto));
        let (paths, config, lanes) = (&paths, &config, &lanes);
        body(&Setup {
            paths,
            config,
            lanes,
        });
    }

    #[test]
    fn two_sides_open_a_channel_and_retire_it_when_it_is_idle() {
        with_setup(|setup| {
            let (mut a, mut b, mut out) = (Channels::new(1), Channels::new(0), Vec::new());
            a.send_channel(setup, 7, 1, &mut out).unwrap();
            let (tag, block) = named(&mut out);
            assert!(a.is_opening() && !a.can_send(tag));
            b.peer_sends(setup, tag, &block, &mut out).unwrap();
            assert!(b.can_receive(tag));
            let (tag, mailbox) = named(&mut out);
            a.peer_receives(setup, tag, &mailbox, &mut out).unwrap();
            assert!(a.can_send(tag) && !a.is_opening() && out.is_empty());
            let full = a.send_channel(setup, 8, 1, &mut out).err().unwrap();
            assert_eq!(full.kind(), Kind::QueueFull);
            // Other memory under the tag is refused.
            a.recv_channel(setup, 7, 1, &mut out).unwrap();
            let (_, other) = named(&mut out);
            assert!(a.peer_receives(setup, tag, &other, &mut out).is_err());

            assert_eq!(a.retired(tag, true).unwrap_err().kind(), Kind::Protocol);
            for gone in [false, true] {
                a.retire(1, &[], &mut out);
                let Some(Control::Retire { tag: 7, next: 0 }) = out.pop() else {
                    panic!("it was not asked about");
                };
                assert!(!a.can_send(7));
                let answer = b.peer_retires(7, 0, |_| gone);
                assert_eq!(answer, Control::Retired { tag: 7, gone });
                assert_eq!(b.can_receive(7), !gone);
                a.retired(7, gone).unwrap();
                assert_eq!(a.can_send(7), !gone);
            }
        });
    }

    #[test]
    fn a_peer_that_announces_too_many_tags_waits_for_mailboxes() {
        with_setup(|setup| {
            let (mut a, mut b, mut out) = (Channels::new(1), Channels::new(0), Vec::new());
            let places = (UNUSED_BYTES / setup.config.shape().mailbox_len()).max(UNUSED_TAGS);
            a.send_channel(setup, 0, 1, &mut out).unwrap();
            let (_, block) = named(&mut out);
            let mut announced = 0..;
            for tag in announced.by_ref().take(places) {
                b.peer_sends(setup, tag, &block, &mut out).unwrap();
            }
            let late = announced.next().unwrap();
            assert!(!b.has_deferred() && out.len() == places);
            b.peer_sends(setup, late, &block, &mut out).unwrap();
            b.make_mailboxes(setup, &[], &mut out).unwrap();
            assert!(b.has_deferred() && out.len() == places);
            b.make_mailboxes(setup, &[late], &mut out).unwrap();
            assert!(!b.has_deferred() && b.can_receive(late));
        });
    }
}
