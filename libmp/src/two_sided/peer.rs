//! Peers: the lanes and channels to one rank, and how they come about.
//!
//! A *lane* is a queue pair on each side. Lane 0 is posted on by the CPU; each stream that sends
//! or receives has another, so that a stream that stands still holds up nobody else. Lanes and
//! channels open on first use: each side tells the other its half, whichever comes first, and
//! answers what it did not ask for.

use std::collections::BTreeMap;

use gds_step::Time;
use gdsync::Status;
use gdsync::gpu::{MemoryKind, Word32};
use gdsync::rdma::{Access, Endpoint, Mr, Pd, Qp, QpConfig, RemoteMemory, SendRequest};

use super::channel::{RecvChannel, SendChannel};
use super::config::Config;
use crate::Tell;
use crate::error::{Error, Kind, Result};
use crate::request::fault::Name;
use crate::request::table::RequestKey;
use crate::wire::control::{Control, Shape};

/// Lanes that a context has at most: one for the CPU, the others for streams, which share them
/// if there are more.
pub(crate) const LANES: usize = 8;
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

/// A queue pair to a peer.
pub(crate) struct Lane {
    pub qp: Qp,
    /// Where the READs land that keep words behind their payload; `None`: words are plain WRITEs.
    pub behind: Option<Mr>,
    /// The other end, if the peer is this rank itself.
    mirror: Option<Qp>,
    connected: bool,
    /// The peer has connected its side.
    up: bool,
}

/// One rank, as another has to do with it.
pub(crate) struct Peer {
    pub rank: u32,
    pub lanes: [Option<Lane>; LANES],
    pub sends: BTreeMap<u32, SendChannel>,
    pub recvs: BTreeMap<u32, RecvChannel>,
    /// By tag: the peer's return block, for tags whose mailbox is not made yet.
    put_off: BTreeMap<u32, RemoteMemory>,
    /// How words to it are kept behind their payload, once that is chosen.
    pub tells: Option<Tell>,
    /// As [`Lane::behind`].
    behind: Option<Mr>,
    /// How it failed, if it was given up.
    pub failed: Option<Status>,
    /// It is about to leave, and waits to be told that nothing is under way to it.
    pub leaving: bool,
    /// It was asked by this side, which is about to leave.
    pub asked: bool,
    /// It has answered.
    pub answered: bool,
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
pub(crate) enum Way {
    /// Lanes alone.
    Lanes,
    /// The channel to the peer under a tag.
    Send(u32),
    /// The channel from the peer under a tag.
    Recv(u32),
}

/// What peers are made with.
pub(crate) struct Ground<'a> {
    pub pd: &'a Pd,
    pub config: &'a Config,
    pub me: u32,
    /// The context's error word.
    pub error: &'a Word32,
    /// By lane: who rings the NIC.
    pub endpoints: &'a [Endpoint],
}

impl Ground<'_> {
    fn queue_pair(&self, lane: usize) -> Result<Qp> {
        let mut config: QpConfig = self.config.qp.clone();
        if lane == 0 {
            // What the CPU posts is little and done soon.
            config.send_blocks = config.send_blocks.min(32);
        }
        config.timeout = Some(self.config.timeout);
        config.error = Some(self.error.clone());
        config.endpoint = *self.endpoints.get(lane).unwrap_or(&self.config.endpoint);
        Ok(self.pd.create_qp(&config)?)
    }
}

impl Peer {
    pub fn new(rank: u32) -> Peer {
        Peer {
            rank,
            lanes: Default::default(),
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            put_off: BTreeMap::new(),
            tells: None,
            behind: None,
            failed: None,
            leaving: false,
            asked: false,
            answered: false,
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
        let mut lanes = self.lanes.iter().flatten();
        lanes.any(|lane| !(lane.connected && lane.up))
            || self.asked && !self.answered
            || self.sends.values().any(|channel| !channel.is_open())
            || self.recvs.values().any(|channel| !channel.is_open())
    }

    /// Whether everything is there to post on `lane`.
    pub fn is_open(&self, lane: usize, way: Way) -> bool {
        let up = |lane: usize| {
            let lane = self.lanes.get(lane).and_then(Option::as_ref);
            lane.is_some_and(|lane| lane.connected && lane.up)
        };
        up(0)
            && up(lane)
            && match way {
                Way::Lanes => true,
                Way::Send(tag) => self.sends.get(&tag).is_some_and(SendChannel::is_open),
                Way::Recv(tag) => self.recvs.get(&tag).is_some_and(RecvChannel::is_open),
            }
    }

    /// Whether a request may use `way`: all is open, or the peer was given up but left a message
    /// that can still be taken.
    pub fn may(&self, lane: usize, way: Way) -> bool {
        match (self.failed, way) {
            (None, _) => self.is_open(lane, way),
            (Some(_), Way::Recv(tag)) => self.recvs.get(&tag).is_some_and(RecvChannel::has_mail),
            (Some(_), _) => false,
        }
    }

    /// Makes this side's part of what is to be open; what the peer must know goes to `say`.
    pub fn begin(
        &mut self,
        ground: &Ground<'_>,
        lane: usize,
        way: Way,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        self.lane(ground, 0, say)?;
        self.lane(ground, lane, say)?;
        match way {
            Way::Lanes => {}
            Way::Send(tag) => {
                self.send_channel(ground, tag, ground.config.channels, say)?;
            }
            Way::Recv(tag) => {
                self.recv_channel(ground, tag, ground.config.channels, say)?;
            }
        }
        Ok(())
    }

    fn lane(
        &mut self,
        ground: &Ground<'_>,
        lane: usize,
        say: &mut Vec<Control>,
    ) -> Result<&mut Lane> {
        let rank = self.rank;
        let keeps_order = ground.pd.device().keeps_write_order();
        if rank == ground.me {
            self.choose_tell(ground, keeps_order)?;
        }
        let behind = self.behind.clone();
        let place = self.lanes.get_mut(lane).ok_or_else(|| {
            let what = format!("lane {lane}");
            Error::new("open lane", Kind::Protocol, what)
                .with_rank(rank)
                .with_limit(LANES)
        })?;
        match place {
            Some(lane) => Ok(lane),
            None => {
                let mut qp = ground.queue_pair(lane)?;
                let mut mirror = None;
                if rank == ground.me {
                    let mut other = ground.queue_pair(lane)?;
                    qp.connect(&other.address())?;
                    other.connect(&qp.address())?;
                    mirror = Some(other);
                } else {
                    say.push(Control::Connect {
                        lane: lane as u8,
                        address: qp.address(),
                        shape: ground.config.shape(),
                        keeps_order,
                    });
                }
                let whole = mirror.is_some();
                Ok(place.insert(Lane {
                    qp,
                    behind,
                    mirror,
                    connected: whole,
                    up: whole,
                }))
            }
        }
    }

    /// Chooses how words to the peer are kept behind their payload, once for all its lanes.
    fn choose_tell(&mut self, ground: &Ground<'_>, keeps_order: bool) -> Result<()> {
        if self.tells.is_some() {
            return Ok(());
        }
        let device = ground.pd.device();
        let (tell, why) = ground.config.tell.choose(keeps_order, device.reads())?;
        if tell == Tell::Read {
            let landing = device.gpu().alloc(MemoryKind::Pinned, 64)?;
            self.behind = Some(ground.pd.register(&landing, Access::LOCAL_WRITE)?);
        }
        self.tells = Some(tell);
        let (me, rank) = (ground.me, self.rank);
        tracing::info!(target: "mp", "rank {me}: message words to rank {rank} are {tell}: {why}");
        Ok(())
    }

    fn send_channel(
        &mut self,
        ground: &Ground<'_>,
        tag: u32,
        limit: usize,
        say: &mut Vec<Control>,
    ) -> Result<&mut SendChannel> {
        if !self.sends.contains_key(&tag) {
            let shape = self.admit(self.sends.len(), limit, ground)?;
            let channel = SendChannel::new(ground.pd, shape)?;
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
        ground: &Ground<'_>,
        tag: u32,
        limit: usize,
        say: &mut Vec<Control>,
    ) -> Result<&mut RecvChannel> {
        if !self.recvs.contains_key(&tag) {
            // A channel that only the peer has opened does not count against this side's limit.
            let own = self.recvs.values().filter(|c| c.is_used() || !c.is_open());
            let shape = self.admit(own.count(), limit, ground)?;
            let mut channel = RecvChannel::new(ground.pd, shape)?;
            if let Some(block) = self.put_off.remove(&tag) {
                channel.open(block)?;
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
    fn has_place(&self, ground: &Ground<'_>) -> bool {
        let places = UNUSED_BYTES / ground.config.shape().mailbox_len();
        let places = places.clamp(UNUSED_TAGS, COUNTERPARTS);
        let unused = self.recvs.values().filter(|c| c.is_open() && !c.is_used());
        unused.count() < places
    }

    /// Keeps the announcement until a mailbox may be made. The peer's first send under the tag waits.
    fn put_off(&mut self, ground: &Ground<'_>, tag: u32, block: RemoteMemory) -> Result<()> {
        self.admit(self.recvs.len() + self.put_off.len(), COUNTERPARTS, ground)?;
        match self.put_off.insert(tag, block) {
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
        ground: &Ground<'_>,
        wanted: impl Fn(u32) -> bool,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        let tags: Vec<u32> = self.put_off.keys().copied().collect();
        for tag in tags {
            if wanted(tag) || self.has_place(ground) {
                self.recv_channel(ground, tag, COUNTERPARTS, say)?;
            }
        }
        Ok(())
    }

    /// Whether the peer waits for a mailbox.
    pub fn is_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    fn admit(&self, channels: usize, limit: usize, ground: &Ground<'_>) -> Result<Shape> {
        if channels >= limit {
            let what = "tags under which messages are under way";
            return Err(Error::new("open channel", Kind::QueueFull, what)
                .with_rank(self.rank)
                .with_limit(limit));
        }
        Ok(ground.config.shape())
    }

    /// Takes in what the peer said.
    ///
    /// # Errors
    /// `Protocol` for what makes no sense here; else what opening its counterpart refuses.
    pub fn hear(
        &mut self,
        ground: &Ground<'_>,
        message: &Control,
        say: &mut Vec<Control>,
    ) -> Result<()> {
        match *message {
            Control::Connect {
                lane,
                address,
                shape,
                keeps_order,
            } => {
                if usize::from(lane) > 0 {
                    self.lane(ground, 0, say)?;
                }
                // What is said now tells the peer, too, how this side is set up.
                self.lane(ground, usize::from(lane), say)?;
                self.agree(ground, shape)?;
                self.choose_tell(ground, keeps_order)?;
                let behind = self.behind.clone();
                let mine = self.lane(ground, usize::from(lane), say)?;
                mine.qp.connect(&address)?;
                mine.behind = behind;
                mine.connected = true;
                say.push(Control::Up { lane });
                Ok(())
            }
            Control::Up { lane } => {
                let rank = self.rank;
                match self.lanes.get_mut(usize::from(lane)) {
                    Some(Some(lane)) => {
                        lane.up = true;
                        Ok(())
                    }
                    _ => Err(
                        Error::new("open lane", Kind::Protocol, format!("no lane {lane}"))
                            .with_rank(rank),
                    ),
                }
            }
            Control::Sends { tag, block, shape } => {
                self.agree(ground, shape)?;
                if !self.recvs.contains_key(&tag) && !self.has_place(ground) {
                    return self.put_off(ground, tag, block);
                }
                self.recv_channel(ground, tag, COUNTERPARTS, say)?
                    .open(block)
            }
            Control::Receives { tag, block, shape } => {
                self.agree(ground, shape)?;
                self.send_channel(ground, tag, COUNTERPARTS, say)?
                    .open(block)
            }
            Control::Retire { tag, next } => {
                let lanes = &mut self.lanes;
                let gone = self.recvs.get(&tag).is_none_or(|channel| {
                    channel.is_idle(next) && channel.told.iter().all(|told| is_told(lanes, told))
                });
                if gone {
                    self.recvs.remove(&tag);
                    self.put_off.remove(&tag);
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
                self.answered = true;
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

    fn agree(&self, ground: &Ground<'_>, theirs: Shape) -> Result<()> {
        let ours = ground.config.shape();
        if ours == theirs {
            return Ok(());
        }
        let what = format!(
            "depth and eager limit are {} and {} there, {} and {} here",
            theirs.depth, theirs.eager, ours.depth, ours.eager
        );
        Err(Error::new("open channel", Kind::Protocol, what).with_rank(self.rank))
    }

    /// Whether nothing that was posted is under way, on the NIC or a stream.
    pub fn is_quiet(&mut self) -> bool {
        let mut lanes = self.lanes.iter_mut().flatten();
        lanes.all(|lane| lane.qp.is_quiet())
    }

    /// Why a lane is in error, if one is.
    pub fn lane_error(&mut self) -> Option<Status> {
        self.lanes
            .iter_mut()
            .flatten()
            .find_map(|lane| lane.qp.error())
    }

    /// Gives the peer up: nothing of it reaches this side any more, and every stream passes that
    /// waits for it to take messages or to be ready for them.
    pub fn fail(&mut self, status: Status) {
        self.failed = Some(status);
        for lane in self.lanes.iter_mut().flatten() {
            lane.qp.fail(status);
            if let Some(mirror) = &mut lane.mirror {
                mirror.fail(status);
            }
        }
        for channel in self.sends.values() {
            channel.release(status);
        }
    }
}

/// Whether nothing that tells a sender of a receive is in flight to the sender's memory.
fn is_told(lanes: &mut [Option<Lane>], told: &Option<(u8, SendRequest)>) -> bool {
    let Some((lane, request)) = told else {
        return true;
    };
    let lane = lanes[usize::from(*lane)].as_mut();
    !lane.is_some_and(|lane| matches!(lane.qp.poll(*request), Ok(None)))
}
