//! The channels to and from one rank, by tag: how they open, wait for room, and retire.
//!
//! A channel opens on first use: each side sends the other its half, either side may start, and
//! each answers a request that it did not expect. The receiver makes rooms for eager messages when
//! the first one is to come: it knows that from its receive or from its sender.

use std::collections::BTreeMap;

use super::channel::{RecvChannel, SendChannel};
use super::peer::Setup;
use crate::error::{Error, Kind, Result};
use crate::wire::control::{Control, RoomsPlace, Shape};
use crate::wire::record::Record;

/// Maximum number of channels of one direction with a peer, opened by either side.
const COUNTERPARTS: usize = 4096;
/// The highest limit that a side may set for the channels that it opens: the channels of both sides
/// fit.
pub(crate) const MOST_CHANNELS: usize = COUNTERPARTS / 2;
/// Maximum number of bytes of mailboxes with rooms for tags that a peer announced and under which
/// nothing was received yet, with the eager limit of most paths. This gives a number of tags, which is
/// the same by TCP, where rooms are up to 64 times as large. `UNUSED_TAGS` tags have a mailbox whatever
/// its size. The peer waits with sends under the other tags. A mailbox counts with its rooms, which the peer may ask for
/// later.
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
    /// The announcements of tags whose mailbox does not exist yet.
    deferred: BTreeMap<u32, Announced>,
}

/// An announcement of a peer that sends under a tag.
struct Announced {
    /// Its return block.
    block: Vec<Record>,
    /// Whether it asks for rooms.
    eager: bool,
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
        self.sends.values().any(SendChannel::is_opening)
            || self.recvs.values().any(|channel| !channel.is_open())
    }

    /// Whether messages can be sent under the tag: also eager ones, or only large ones.
    #[inline]
    pub fn can_send(&self, tag: u32, eager: bool) -> bool {
        let ready = |channel: &SendChannel| channel.is_open() && (!eager || channel.has_rooms());
        self.sends.get(&tag).is_some_and(ready)
    }

    /// As [`Channels::can_send`], for receives of at most the eager limit and for larger ones.
    #[inline]
    pub fn can_receive(&self, tag: u32, eager: bool) -> bool {
        let ready = |channel: &RecvChannel| channel.is_open() && (!eager || channel.has_rooms());
        self.recvs.get(&tag).is_some_and(ready)
    }

    /// Makes this side's half of the channel to the peer, if there is none and fewer than `limit`
    /// exist, and asks for rooms if it is for `eager` messages; control messages for the peer are
    /// appended to `out`.
    pub fn send_channel(
        &mut self,
        setup: &Setup<'_>,
        (tag, eager): (u32, bool),
        limit: usize,
        out: &mut Vec<Control>,
    ) -> Result<&mut SendChannel> {
        if !self.sends.contains_key(&tag) {
            let shape = self.admit(self.sends.len(), limit, setup)?;
            let mut channel = SendChannel::new(setup.paths, self.peer, shape)?;
            channel.side.asked = eager;
            out.push(sends(tag, &channel)?);
            self.sends.insert(tag, channel);
        }
        let channel = self.sends.get_mut(&tag).expect("it was inserted");
        if eager && channel.asks() {
            out.push(sends(tag, channel)?);
        }
        Ok(channel)
    }

    /// As [`Channels::send_channel`], for the channel from the peer; makes the rooms.
    pub fn recv_channel(
        &mut self,
        setup: &Setup<'_>,
        (tag, mut eager): (u32, bool),
        limit: usize,
        out: &mut Vec<Control>,
    ) -> Result<&mut RecvChannel> {
        if !self.recvs.contains_key(&tag) {
            // A channel that only the peer has opened does not count against this side's limit.
            let channels = self.recvs.values();
            let own = channels.filter(|c| c.numbers.is_used() || !c.is_open());
            let shape = self.admit(own.count(), limit, setup)?;
            let mut channel = RecvChannel::new(setup.paths, self.peer, shape)?;
            if let Some(announced) = self.deferred.get(&tag) {
                channel.open(&announced.block)?;
                eager |= announced.eager;
            }
            if eager {
                // Before anything changes that an error would have to undo.
                channel.make_rooms(setup.paths)?;
            }
            self.deferred.remove(&tag);
            out.push(receives(tag, &channel)?);
            self.recvs.insert(tag, channel);
        }
        let channel = self.recvs.get_mut(&tag).expect("it was inserted");
        if eager && channel.make_rooms(setup.paths)? {
            out.push(receives(tag, channel)?);
        }
        Ok(channel)
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
        Ok(setup.shape(self.peer))
    }

    /// Whether a mailbox may be made for a tag under which nothing is received.
    fn has_mailbox_room(&self, setup: &Setup<'_>) -> bool {
        let most = most_unused(&setup.settings());
        let channels = self.recvs.values();
        let unused = channels.filter(|c| c.is_open() && !c.numbers.is_used());
        unused.count() < most
    }

    /// Handles `Sends`: the peer will send under `tag`, and has named its return block. Without
    /// room for a mailbox the block is kept until a mailbox may be made, and the peer's first send
    /// under the tag waits.
    pub fn peer_sends(
        &mut self,
        setup: &Setup<'_>,
        (tag, eager): (u32, bool),
        block: &[Record],
        out: &mut Vec<Control>,
    ) -> Result<()> {
        if self.recvs.contains_key(&tag) || self.has_mailbox_room(setup) {
            let channel = self.recv_channel(setup, (tag, eager), COUNTERPARTS, out)?;
            return channel.open(block);
        }
        if let Some(known) = self.deferred.get_mut(&tag) {
            known.eager |= eager;
            return match known.block == block {
                true => Ok(()),
                false => {
                    let rank = self.peer;
                    let what =
                        format!("rank {rank} announced tag {tag} twice, with different memory");
                    Err(Error::new(OPEN, Kind::Protocol, what).with_rank(rank))
                }
            };
        }
        self.admit(self.recvs.len() + self.deferred.len(), COUNTERPARTS, setup)?;
        let block = block.to_vec();
        self.deferred.insert(tag, Announced { block, eager });
        Ok(())
    }

    /// Handles `Receives`: the peer will receive under `tag`, and has named its mailbox, and its
    /// rooms, flagged rooms and long rooms if it has any.
    pub fn peer_receives(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        [mailbox, rooms, flagged, long]: [&[Record]; 4],
        flags: [RoomsPlace; 2],
        out: &mut Vec<Control>,
    ) -> Result<()> {
        let channel = self.send_channel(setup, (tag, false), COUNTERPARTS, out)?;
        channel.open(mailbox, rooms)?;
        channel.open_flagged([flagged, long], flags)?;
        let made = channel.make_device_block(setup.paths);
        let from = channel.numbers.next();
        out.extend(made.map(|(record, offset)| Control::DeviceBlock {
            tag,
            block: vec![record],
            offset,
            from,
        }));
        Ok(())
    }

    /// Handles `DeviceBlock`: the peer, which sends under `tag`, has named its device block.
    pub fn peer_device_block(&mut self, tag: u32, memory: &[Record], at: (u64, u64)) -> Result<()> {
        match self.recvs.get_mut(&tag) {
            Some(channel) => channel.open_device_block(memory, at),
            // It was retired.
            None => Ok(()),
        }
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
                self.recv_channel(setup, (tag, false), COUNTERPARTS, out)?;
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

/// The number of tags under which nothing is received that may have a mailbox: the same by all paths, although
/// rooms by TCP are larger.
fn most_unused(shape: &Shape) -> usize {
    let tags = UNUSED_BYTES / (shape.mailbox_len() + shape.rooms_len());
    tags.clamp(UNUSED_TAGS, COUNTERPARTS)
}

fn sends(tag: u32, channel: &SendChannel) -> Result<Control> {
    Ok(Control::Sends {
        tag,
        block: channel.block()?,
        shape: channel.shape,
        eager: channel.side.asked,
    })
}

pub(super) fn receives(tag: u32, channel: &RecvChannel) -> Result<Control> {
    let [(flagged, flags), (long, long_flags)] = channel.flagged_rooms();
    Ok(Control::Receives {
        flagged,
        flags,
        long,
        long_flags,
        tag,
        block: channel.block()?,
        rooms: channel.rooms()?,
        shape: channel.shape,
    })
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::rdma::{Device, Doorbell};

    use super::*;
    use crate::path::Paths;
    use crate::two_sided::config::Config;
    use crate::two_sided::lanes::StreamLanes;

    const FLAGS: [RoomsPlace; 2] = [RoomsPlace {
        offset: 0,
        from: 0,
        bytes: 0,
    }; 2];

    /// The last control message for the peer: whether it asks for rooms, and the memory.
    fn announced(out: &mut Vec<Control>) -> (bool, Vec<Record>) {
        match out.pop() {
            Some(Control::Sends { eager, block, .. }) => (eager, block),
            other => panic!("{other:?}"),
        }
    }

    /// The mailbox and the rooms in the last control message for the peer.
    fn named(out: &mut Vec<Control>) -> [Vec<Record>; 4] {
        match out.pop() {
            Some(Control::Receives {
                block,
                rooms,
                flagged,
                long,
                ..
            }) => [block, rooms, flagged, long],
            other => panic!("{other:?}"),
        }
    }

    fn as_slices(memory: &[Vec<Record>; 4]) -> [&[Record]; 4] {
        memory.each_ref().map(Vec::as_slice)
    }

    fn with_setup(body: impl FnOnce(&Setup<'_>)) {
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap());
        let (config, lanes) = (Config::default(), StreamLanes::new(Doorbell::Auto));
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
            a.send_channel(setup, (7, true), 1, &mut out).unwrap();
            let (eager, block) = announced(&mut out);
            assert!(eager && a.is_opening() && !a.can_send(7, false));
            b.peer_sends(setup, (7, eager), &block, &mut out).unwrap();
            assert!(b.can_receive(7, true));
            // Kernels store places to a device block: no NIC path has one.
            b.peer_device_block(7, &[], (0, 0)).unwrap();
            let refused = b.peer_device_block(7, &block, (0, 0)).unwrap_err();
            assert_eq!(refused.kind(), Kind::Protocol);
            let memory = named(&mut out);
            a.peer_receives(setup, 7, as_slices(&memory), FLAGS, &mut out)
                .unwrap();
            assert!(a.can_send(7, true) && !a.is_opening() && out.is_empty());
            let full = a.send_channel(setup, (8, true), 1, &mut out).err().unwrap();
            assert_eq!(full.kind(), Kind::QueueFull);
            // Other memory under the tag is refused.
            a.recv_channel(setup, (7, true), 1, &mut out).unwrap();
            let other = named(&mut out);
            for memory in [
                [&other[0], &memory[1], &other[2], &other[3]],
                [&memory[0], &other[1], &other[2], &other[3]],
            ] {
                let memory = memory.map(Vec::as_slice);
                assert!(a.peer_receives(setup, 7, memory, FLAGS, &mut out).is_err());
            }

            assert_eq!(a.retired(7, true).unwrap_err().kind(), Kind::Protocol);
            for gone in [false, true] {
                a.retire(1, &[], &mut out);
                let Some(Control::Retire { tag: 7, next: 0 }) = out.pop() else {
                    panic!("it was not asked about");
                };
                assert!(!a.can_send(7, false));
                let answer = b.peer_retires(7, 0, |_| gone);
                assert_eq!(answer, Control::Retired { tag: 7, gone });
                assert_eq!(b.can_receive(7, false), !gone);
                a.retired(7, gone).unwrap();
                assert_eq!(a.can_send(7, true), !gone);
            }
        });
    }

    #[test]
    fn channel_for_large_messages_gets_rooms_before_its_first_eager_message() {
        with_setup(|setup| {
            let (mut a, mut b, mut out) = (Channels::new(1), Channels::new(0), Vec::new());
            a.send_channel(setup, (7, false), 1, &mut out).unwrap();
            let (eager, block) = announced(&mut out);
            b.peer_sends(setup, (7, eager), &block, &mut out).unwrap();
            let memory = named(&mut out);
            a.peer_receives(setup, 7, as_slices(&memory), FLAGS, &mut out)
                .unwrap();
            assert!(!eager && memory[1].is_empty());
            assert!(a.can_send(7, false) && !a.can_send(7, true) && !a.is_opening());
            assert!(b.can_receive(7, false) && !b.can_receive(7, true));
            // A peer that may remove the channel is not asked.
            a.retire(1, &[], &mut out);
            out.clear();
            a.send_channel(setup, (7, true), 1, &mut out).unwrap();
            assert!(out.is_empty());
            a.retired(7, false).unwrap();
            // It is asked once, and answers once.
            for _ in 0..2 {
                a.send_channel(setup, (7, true), 1, &mut out).unwrap();
            }
            assert_eq!((out.len(), announced(&mut out)), (1, (true, block.clone())));
            assert!(a.is_opening());
            a.retire(1, &[], &mut out);
            assert!(out.is_empty(), "it is in use");
            for _ in 0..2 {
                b.peer_sends(setup, (7, true), &block, &mut out).unwrap();
            }
            let (rooms, count) = (named(&mut out), out.len());
            assert!(count == 0 && rooms[0] == memory[0]);
            a.peer_receives(setup, 7, as_slices(&rooms), FLAGS, &mut out)
                .unwrap();
            assert!(a.can_send(7, true) && b.can_receive(7, true) && !a.is_opening());
            // A receive of at most the eager limit makes them too.
            b.recv_channel(setup, (8, false), 9, &mut out).unwrap();
            assert!(named(&mut out)[1].is_empty());
            b.recv_channel(setup, (8, true), 9, &mut out).unwrap();
            assert!(!named(&mut out)[1].is_empty());
        });
    }

    #[test]
    fn a_peer_that_announces_too_many_tags_waits_for_mailboxes() {
        with_setup(|setup| {
            let (mut a, mut b, mut out) = (Channels::new(1), Channels::new(0), Vec::new());
            let most = most_unused(&setup.settings());
            a.send_channel(setup, (0, true), 1, &mut out).unwrap();
            let (_, block) = announced(&mut out);
            let mut tags = 0..;
            for tag in tags.by_ref().take(most) {
                b.peer_sends(setup, (tag, true), &block, &mut out).unwrap();
            }
            let late = tags.next().unwrap();
            assert!(!b.has_deferred() && out.len() == most);
            // It asks for rooms later.
            for eager in [false, true] {
                b.peer_sends(setup, (late, eager), &block, &mut out)
                    .unwrap();
            }
            assert!(b.peer_sends(setup, (late, true), &[], &mut out).is_err());
            b.make_mailboxes(setup, &[], &mut out).unwrap();
            assert!(b.has_deferred() && out.len() == most);
            b.make_mailboxes(setup, &[late], &mut out).unwrap();
            assert!(!b.has_deferred() && b.can_receive(late, true));
        });
    }
}
