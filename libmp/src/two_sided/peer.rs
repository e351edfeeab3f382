//! Peers: the link and the channels to one rank, and how they come about.
//!
//! Lanes and channels open on first use: each side tells the other its half, whichever comes
//! first, and answers what it did not ask for.

use std::collections::BTreeMap;

use gds_step::Time;
use gdsync::Status;

use super::channel::{RecvChannel, SendChannel};
use super::config::Config;
use super::lanes::Lanes;
use crate::error::{Error, Kind, Result};
use crate::path::{Link, Nic, Put};
use crate::request::fault::Name;
use crate::request::table::RequestKey;
use crate::wire::control::{Control, Shape};
use crate::wire::record::Record;

/// Channels of one direction that there may be with a peer, whichever side opened them.
const COUNTERPARTS: usize = 4096;
/// The highest limit that a side may set for those that it opens: both together fit.
pub(crate) const MOST_CHANNELS: usize = COUNTERPARTS / 2;
/// Bytes of mailboxes for tags that a peer announced and under which nothing was received from it
/// yet; `UNUSED_TAGS` tags have one whatever its size. The peer waits with the other tags.
const UNUSED_BYTES: usize = 32 << 20;
const UNUSED_TAGS: usize = 16;
/// Channels that a peer is asked about at a time, whether they can go.
const RETIRE: usize = 16;

/// One rank, as another has to do with it.
pub(crate) struct Peer {
    pub rank: u32,
    pub link: Link,
    pub sends: BTreeMap<u32, SendChannel>,
    pub recvs: BTreeMap<u32, RecvChannel>,
    /// By tag: the peer's return block, for tags whose mailbox is not made yet.
    deferred: BTreeMap<u32, Vec<Record>>,
    /// How it failed, if it was given up.
    pub failed: Option<Status>,
    /// It is about to leave, and waits to be told that nothing is under way to it.
    pub leaving: bool,
    /// Whether this side is about to leave.
    pub closing: Closing,
    /// What it said that made no sense here.
    pub why: Option<String>,
    /// Why it was given up, or is about to be.
    pub cause: Option<Cause>,
    /// The bootstrap has said that it is gone.
    pub gone: bool,
    /// When a control message of it last arrived.
    pub heard: Option<Time>,
    /// When it was last asked whether it is alive.
    pub probed: Option<Time>,
}

/// How far this side is with leaving, towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It was not asked.
    No,
    /// The peer was asked whether anything of it is under way.
    Asked,
    /// It has answered that nothing is.
    Answered,
}

/// Why a peer was given up.
pub(crate) struct Cause {
    /// The request that the peer failed.
    pub culprit: Option<(RequestKey, Name)>,
    /// The position of its failure in the order of failures.
    pub order: u64,
    /// In words.
    pub text: String,
}

impl Cause {
    /// In words, for other requests than the culprit.
    pub fn of_others(&self, rank: u32) -> String {
        match &self.culprit {
            Some((_, name)) => {
                let text = &self.text;
                format!("rank {rank} was given up after another request failed: {name}: {text}")
            }
            None => self.text.clone(),
        }
    }
}

/// What is to be open before something can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Lanes alone.
    Lanes,
    /// The channel to the peer under a tag.
    Send(u32),
    /// The channel from the peer under a tag.
    Recv(u32),
}

/// What peers are made with.
pub(crate) struct Setup<'a> {
    pub nic: &'a Nic,
    pub config: &'a Config,
    pub lanes: &'a Lanes,
}

impl Peer {
    pub fn new(rank: u32) -> Peer {
        Peer {
            rank,
            link: Link::new(rank),
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            deferred: BTreeMap::new(),
            failed: None,
            leaving: false,
            closing: Closing::No,
            why: None,
            cause: None,
            gone: false,
            heard: None,
            probed: None,
        }
    }

    /// The error of a request that cannot be, as the peer was given up.
    #[cold]
    pub fn error(&self, operation: &'static str) -> Error {
        let status = self.failed.unwrap_or(Status::CLOSED);
        let error = match &self.why {
            Some(why) => Error::new(operation, Kind::Protocol, why.as_str()),
            None => {
                let rank = self.rank;
                let what = match &self.cause {
                    Some(cause) => cause.of_others(rank),
                    None => format!("rank {rank} was given up: {status}"),
                };
                Error::new(operation, Kind::PeerFailed(status), what).whole()
            }
        };
        error.with_rank(self.rank)
    }

    /// Whether this side waits for a control message of the peer's.
    pub fn owes_answer(&self) -> bool {
        self.link.is_opening()
            || self.closing == Closing::Asked
            || self.sends.values().any(|channel| !channel.is_open())
            || self.recvs.values().any(|channel| !channel.is_open())
    }

    /// Whether everything is there to post on `lane`.
    pub fn is_open(&self, lane: u8, target: Target) -> bool {
        self.link.is_open(0)
            && self.link.is_open(lane)
            && match target {
                Target::Lanes => true,
                Target::Send(tag) => self.sends.get(&tag).is_some_and(SendChannel::is_open),
                Target::Recv(tag) => self.recvs.get(&tag).is_some_and(RecvChannel::is_open),
            }
    }

    /// Whether a request may use `target`: all is open, or the peer was given up but left a message
    /// that can still be taken.
    pub fn may(&self, lane: u8, target: Target) -> bool {
        match (self.failed, target) {
            (None, _) => self.is_open(lane, target),
            (Some(_), Target::Recv(tag)) => self.recvs.get(&tag).is_some_and(RecvChannel::has_mail),
            (Some(_), _) => false,
        }
    }

    /// Makes this side's part of what is to be open; what the peer must know goes to `say`.
    pub fn begin(
        &mut self,
        setup: &Setup<'_>,
        lane: u8,
        target: Target,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        self.lane(setup, 0, say)?;
        self.lane(setup, lane, say)?;
        match target {
            Target::Lanes => {}
            Target::Send(tag) => {
                self.send_channel(setup, tag, setup.config.channels, say)?;
            }
            Target::Recv(tag) => {
                self.recv_channel(setup, tag, setup.config.channels, say)?;
            }
        }
        Ok(())
    }

    /// Makes this side's end of a lane; what the peer must know goes to `say`.
    fn lane(&mut self, setup: &Setup<'_>, lane: u8, say: &mut Vec<Control>) -> Result<()> {
        let doorbell = setup.lanes.doorbell(lane);
        let doorbell = doorbell.unwrap_or(setup.config.doorbell);
        let made = self.link.make(setup.nic, lane, doorbell)?;
        say.extend(made.map(|end| Control::Connect {
            lane,
            ends: vec![end],
            shape: setup.config.shape(),
            keeps_order: setup.nic.device.keeps_write_order(),
        }));
        Ok(())
    }

    fn send_channel(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        limit: usize,
        say: &mut Vec<Control>,
    ) -> Result<&mut SendChannel> {
        if !self.sends.contains_key(&tag) {
            let shape = self.admit(self.sends.len(), limit, setup)?;
            let channel = SendChannel::new(setup.nic, shape)?;
            say.push(Control::Sends {
                tag,
                block: channel.block(),
                shape,
            });
            self.sends.insert(tag, channel);
        }
        Ok(self.sends.get_mut(&tag).expect("it was inserted"))
    }

    fn recv_channel(
        &mut self,
        setup: &Setup<'_>,
        tag: u32,
        limit: usize,
        say: &mut Vec<Control>,
    ) -> Result<&mut RecvChannel> {
        if !self.recvs.contains_key(&tag) {
            // A channel that only the peer has opened does not count against this side's limit.
            let own = self.recvs.values().filter(|c| c.is_used() || !c.is_open());
            let shape = self.admit(own.count(), limit, setup)?;
            let mut channel = RecvChannel::new(setup.nic, shape)?;
            if let Some(block) = self.deferred.remove(&tag) {
                channel.open(&block)?;
            }
            say.push(Control::Receives {
                tag,
                block: channel.block(),
                shape,
            });
            self.recvs.insert(tag, channel);
        }
        Ok(self.recvs.get_mut(&tag).expect("it was inserted"))
    }

    /// Whether a mailbox may be made for a tag under which nothing is received.
    fn has_mailbox_room(&self, setup: &Setup<'_>) -> bool {
        let places = UNUSED_BYTES / setup.config.shape().mailbox_len();
        let places = places.clamp(UNUSED_TAGS, COUNTERPARTS);
        let unused = self.recvs.values().filter(|c| c.is_open() && !c.is_used());
        unused.count() < places
    }

    /// Keeps the announcement until a mailbox may be made. The peer's first send under the tag waits.
    fn defer(&mut self, setup: &Setup<'_>, tag: u32, block: &[Record]) -> Result<()> {
        self.admit(self.recvs.len() + self.deferred.len(), COUNTERPARTS, setup)?;
        match self.deferred.insert(tag, block.to_vec()) {
            Some(known) if known != block => {
                let what = format!("tag {tag}, announced twice");
                Err(Error::new("open channel", Kind::Protocol, what).with_rank(self.rank))
            }
            _ => Ok(()),
        }
    }

    /// Makes the mailboxes that the peer waits for: those of `wanted` tags, under which a receive
    /// from any rank waits, and others as far as the bound allows.
    pub fn make_mailboxes(
        &mut self,
        setup: &Setup<'_>,
        wanted: impl Fn(u32) -> bool,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        let tags: Vec<u32> = self.deferred.keys().copied().collect();
        for tag in tags {
            if wanted(tag) || self.has_mailbox_room(setup) {
                self.recv_channel(setup, tag, COUNTERPARTS, say)?;
            }
        }
        Ok(())
    }

    /// Whether the peer waits for a mailbox.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn admit(&self, channels: usize, limit: usize, setup: &Setup<'_>) -> Result<Shape> {
        if channels >= limit {
            let what = "tags under which messages are under way";
            return Err(Error::new("open channel", Kind::QueueFull, what)
                .with_rank(self.rank)
                .with_limit(limit));
        }
        Ok(setup.config.shape())
    }

    /// Takes in what the peer said.
    ///
    /// # Errors
    /// `Protocol` for what makes no sense here; else what opening its counterpart refuses.
    pub fn hear(
        &mut self,
        setup: &Setup<'_>,
        message: &Control,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        match *message {
            Control::Connect {
                lane,
                ref ends,
                shape,
                keeps_order,
            } => {
                self.lane(setup, 0, say)?;
                // What is said now tells the peer, too, how this side is set up.
                self.lane(setup, lane, say)?;
                self.agree(setup, shape)?;
                self.link.connect(setup.nic, lane, ends, keeps_order)?;
                say.push(Control::Up { lane });
                Ok(())
            }
            Control::Up { lane } => self.link.connected(lane),
            Control::Sends {
                tag,
                ref block,
                shape,
            } => {
                self.agree(setup, shape)?;
                if !self.recvs.contains_key(&tag) && !self.has_mailbox_room(setup) {
                    return self.defer(setup, tag, block);
                }
                self.recv_channel(setup, tag, COUNTERPARTS, say)?
                    .open(block)
            }
            Control::Receives {
                tag,
                ref block,
                shape,
            } => {
                self.agree(setup, shape)?;
                self.send_channel(setup, tag, COUNTERPARTS, say)?
                    .open(block)
            }
            Control::Retire { tag, next } => {
                let link = &mut self.link;
                let gone = self.recvs.get(&tag).is_none_or(|channel| {
                    channel.is_idle(next) && channel.told.iter().all(|told| is_told(link, told))
                });
                if gone {
                    self.recvs.remove(&tag);
                    self.deferred.remove(&tag);
                }
                say.push(Control::Retired { tag, gone });
                Ok(())
            }
            Control::Retired { tag, gone } => {
                let asked = self.sends.get_mut(&tag).filter(|channel| channel.retiring);
                match asked {
                    Some(channel) if !gone => {
                        channel.retiring = false;
                        // Others are asked about first.
                        channel.used = u64::MAX;
                    }
                    Some(_) => _ = self.sends.remove(&tag),
                    None => {
                        let what = format!("nobody asked about tag {tag}");
                        return Err(Error::new("open channel", Kind::Protocol, what));
                    }
                }
                Ok(())
            }
            Control::Leaving => {
                self.leaving = true;
                Ok(())
            }
            Control::Left => {
                self.closing = Closing::Answered;
                Ok(())
            }
            Control::Ping => {
                say.push(Control::Pong);
                Ok(())
            }
            Control::Pong | Control::Truncated { .. } | Control::GivenUp => Ok(()),
        }
    }

    /// Whether most places for channels are taken.
    pub fn is_crowded(&self, limit: usize) -> bool {
        self.sends.len() > limit / 4 * 3
    }

    /// When most places for channels are taken, asks the peer about those that were not used for
    /// longest, whether they can go.
    pub fn retire(&mut self, limit: usize, busy: &[u32], say: &mut Vec<Control>) {
        if !self.is_crowded(limit) {
            return;
        }
        let mut idle: Vec<(u64, u32)> = self
            .sends
            .iter()
            .filter(|(tag, channel)| channel.is_idle() && !busy.contains(tag))
            .map(|(tag, channel)| (channel.used, *tag))
            .collect();
        idle.sort_unstable();
        let most = RETIRE.min(self.sends.len() - limit / 2);
        for (_, tag) in idle.into_iter().take(most) {
            if let Some(channel) = self.sends.get_mut(&tag) {
                channel.retiring = true;
                say.push(Control::Retire {
                    tag,
                    next: channel.next,
                });
            }
        }
    }

    fn agree(&self, setup: &Setup<'_>, theirs: Shape) -> Result<()> {
        let ours = setup.config.shape();
        if ours == theirs {
            return Ok(());
        }
        let what = format!(
            "depth and eager limit are {} and {} there, {} and {} here",
            theirs.depth, theirs.eager, ours.depth, ours.eager
        );
        Err(Error::new("open channel", Kind::Protocol, what).with_rank(self.rank))
    }

    /// Gives the peer up: nothing of it reaches this side any more, and every stream passes that
    /// waits for it to take messages or to be ready for them.
    pub fn fail(&mut self, status: Status) {
        self.failed = Some(status);
        self.link.fail(status);
        for channel in self.sends.values() {
            channel.release(status);
        }
    }
}

/// Whether nothing that tells a sender of a receive is in flight to the sender's memory.
fn is_told(link: &mut Link, told: &Option<(u8, Put)>) -> bool {
    let pending = |(lane, put): (u8, Put)| link.lane(lane).is_some_and(|lane| lane.is_pending(put));
    !told.is_some_and(pending)
}
