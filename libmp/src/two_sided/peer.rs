//! Peers: the state that one rank keeps of another.
//!
//! Lanes open on first use: each side sends the other its end, either side may start, and each
//! answers a request that it did not expect.

use std::collections::BTreeMap;

use gdsync::Status;

use super::channel::RecvChannel;
use super::channels::Channels;
use super::circuits::{self, Circuits};
use super::config::Config;
use super::lanes::StreamLanes;
use super::liveness::Liveness;
use super::ready::READY;
use super::state::not_connected;
use super::zero_sm::{self, ZeroSmChannels};
use crate::error::{Error, Kind, Result};
use crate::path::{LANES, Lane, Link, Path, Paths, Put};
use crate::plan::{LaneId, PeerLanes};
use crate::request::entry::{Entry, Operation};
use crate::request::fault::Name;
use crate::request::table::RequestKey;
use crate::stats::Counts;
use crate::wire::control::{Answer, Control, Neighbour, Shape};
use crate::wire::record::Record;

/// Maximum number of windows that a peer makes before this rank does.
const WINDOWS: usize = 4096;
/// Maximum number of times that a peer names this rank as a neighbour before this rank builds the
/// neighbourhood.
const NEIGHBOURS: usize = 4096;

/// The state of one rank.
pub(crate) struct Peer {
    pub rank: u32,
    pub link: Link,
    meeting: Meeting,
    /// By lane: the lane on which its streams post. It is another one if their own could not be
    /// opened, and stays that one, which keeps the order of what they post.
    pub stand_in: [u8; LANES],
    pub channels: Channels,
    pub circuits: Circuits,
    pub zero_sm: ZeroSmChannels,
    pub liveness: Liveness,
    pub standing: Standing,
    /// Its memory of windows that this rank has not made yet, by the window's number.
    pub windows: BTreeMap<u64, Vec<Record>>,
    /// Its records of exchanges that this rank has not built yet, in their order.
    pub neighbours: Vec<Neighbour>,
    /// The counters of requests with it.
    pub counts: Counts,
}

/// What two ranks find out for the choice of their path.
#[derive(Default)]
struct Meeting {
    /// The peer was sent what it needs for the choice.
    introduced: bool,
    /// The choice waits for the peer.
    waits: bool,
    /// This rank's answer, once the peer has asked.
    ours: Option<Answer>,
    /// The peer's answer.
    theirs: Option<Answer>,
}

/// The standing of a peer.
pub(crate) enum Standing {
    /// The two ranks exchange messages.
    Here {
        /// The peer is about to leave, and waits for the answer that nothing is in flight to it.
        leaving: bool,
        /// The state of this side's leaving.
        closing: Closing,
    },
    /// The peer was given up.
    GivenUp(Failure),
}

/// The state of this side's leaving, towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The peer was not asked.
    No,
    /// The peer was asked whether any of its messages is in flight.
    Asked,
    /// The peer has answered that none is.
    Answered,
}

/// The failure of a peer.
pub(crate) struct Failure {
    pub status: Status,
    pub cause: Cause,
}

/// The reason for giving a peer up.
pub(crate) enum Cause {
    /// A request with the peer failed.
    Request {
        culprit: RequestKey,
        name: Name,
        /// The position of the failure in the order of failures.
        order: u64,
        text: String,
    },
    /// The peer sent a control message that this rank cannot accept; the text is a clause.
    Protocol(String),
    /// Another reason, as a clause.
    Other(String),
}

impl Failure {
    /// The text for requests other than the one that caused the failure.
    pub fn of_others(&self, rank: u32) -> String {
        match &self.cause {
            Cause::Request { name, text, .. } => {
                format!("rank {rank} was given up after another request failed: {name}: {text}")
            }
            Cause::Protocol(why) => {
                format!("rank {rank} was given up: {why}")
            }
            Cause::Other(text) => text.clone(),
        }
    }

    /// The error kind with which requests with the peer end.
    pub fn kind(&self) -> Kind {
        match self.cause {
            Cause::Protocol(_) => Kind::Protocol,
            _ => Kind::PeerFailed(self.status),
        }
    }
}

/// What has to be open before a request can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Lanes alone.
    Lanes,
    /// The channel to the peer under a tag, for messages above the eager limit or for `eager` ones.
    Send { tag: u32, eager: bool },
    /// The channel from the peer under a tag, for receives above the eager limit or for others
    /// (`eager`).
    Recv { tag: u32, eager: bool },
}

impl Need {
    /// What a message of a request needs.
    pub fn of(entry: &Entry) -> Need {
        let (tag, eager) = (entry.tag, !entry.large);
        match &entry.operation {
            Operation::Receive(_) => Need::Recv { tag, eager },
            Operation::Transfer(_) => Need::Lanes,
            _ => Need::Send { tag, eager },
        }
    }
}

/// The inputs for opening lanes and channels.
pub(crate) struct Setup<'a> {
    pub paths: &'a Paths,
    pub config: &'a Config,
    pub lanes: &'a StreamLanes,
}

impl<'a> Setup<'a> {
    /// The shape of channels by most paths. Two ranks compare it before they know that they have chosen
    /// the same path.
    pub fn settings(&self) -> Shape {
        self.config.shape(Path::Nic)
    }

    /// The shape of channels with `peer`, to which the path is chosen.
    pub fn shape(&self, peer: u32) -> Shape {
        self.config.shape(self.paths.to(peer))
    }

    /// What the end of a circuit is made from.
    pub fn circuits(&self) -> circuits::Origin<'a> {
        circuits::Origin {
            paths: self.paths,
            start: self.config.start,
        }
    }

    /// What a channel of zero-SM messages is made from.
    pub fn zero_sm(&self) -> zero_sm::Origin<'a> {
        zero_sm::Origin {
            paths: self.paths,
            room: self.config.eager_limit(Path::Ipc).next_multiple_of(64),
        }
    }
}

impl Peer {
    pub fn new(rank: u32) -> Peer {
        Peer {
            rank,
            link: Link::new(rank),
            meeting: Meeting::default(),
            stand_in: std::array::from_fn(|lane| lane as u8),
            channels: Channels::new(rank),
            circuits: Circuits::default(),
            zero_sm: ZeroSmChannels::default(),
            liveness: Liveness::default(),
            windows: BTreeMap::new(),
            neighbours: Vec::new(),
            counts: Counts::default(),
            standing: Standing::Here {
                leaving: false,
                closing: Closing::No,
            },
        }
    }

    /// The failure of a peer that was given up.
    #[inline]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.standing {
            Standing::Here { .. } => None,
            Standing::GivenUp(failure) => Some(failure),
        }
    }

    /// The status with which the peer was given up.
    #[inline]
    pub fn failed(&self) -> Option<Status> {
        self.failure().map(|failure| failure.status)
    }

    /// Whether it was not given up.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.failure().is_none()
    }

    /// The error of a request that cannot be posted: the peer was given up, or is not connected.
    #[cold]
    pub fn error(&self, operation: &'static str) -> Error {
        let rank = self.rank;
        let Some(failure) = self.failure() else {
            return not_connected(operation, rank);
        };
        Error::new(operation, failure.kind(), failure.of_others(rank)).with_rank(rank)
    }

    /// The state of this side's leaving; `None` if the peer was given up.
    pub fn closing(&mut self) -> Option<&mut Closing> {
        match &mut self.standing {
            Standing::Here { closing, .. } => Some(closing),
            Standing::GivenUp(_) => None,
        }
    }

    /// Whether this side waits for a control message of the peer.
    pub fn owes_answer(&self) -> bool {
        let asked = Closing::Asked;
        self.link.is_opening()
            || self.meeting.waits
            || self.liveness.awaited
            || self.liveness.joins
            || matches!(self.standing, Standing::Here { closing, .. } if closing == asked)
            || self.channels.is_opening()
            || self.circuits.is_opening()
            || self.zero_sm.is_opening()
    }

    /// Whether all that is needed to post on `lane` is open.
    #[inline]
    pub fn is_open(&self, lane: u8, need: Need) -> bool {
        self.link.is_open(0)
            && self.link.is_open(lane)
            && match need {
                Need::Lanes => true,
                Need::Send { tag, eager } => self.channels.can_send(tag, eager),
                Need::Recv { tag, eager } => self.channels.can_receive(tag, eager),
            }
    }

    /// Whether a request may use `need`: all is open, or the peer was given up but left a message
    /// that can still be received.
    #[inline]
    pub fn can_post(&self, lane: u8, need: Need) -> bool {
        match (&self.standing, need) {
            (Standing::Here { .. }, _) => self.is_open(lane, need),
            (Standing::GivenUp(_), Need::Recv { tag, .. }) => {
                let channel = self.channels.recvs.get(&tag);
                channel.is_some_and(RecvChannel::has_unexpected)
            }
            (Standing::GivenUp(_), _) => false,
        }
    }

    /// Asks the peer for what the choice of the path needs, once; control messages for it are
    /// appended to `out`. `true`: the path is chosen.
    pub fn introduce(&mut self, setup: &Setup<'_>, out: &mut Vec<Control>) -> bool {
        let paths = setup.paths;
        if !std::mem::replace(&mut self.meeting.introduced, true) {
            out.extend(paths.introduction(self.rank, setup.settings()));
        }
        self.meeting.waits = paths.chosen(self.rank).is_none();
        !self.meeting.waits
    }

    /// Chooses the path if all is known.
    fn choose_path(&mut self, setup: &Setup<'_>) {
        let Meeting { ours, theirs, .. } = &self.meeting;
        setup
            .paths
            .settle(self.rank, ours.as_ref(), theirs.as_ref());
        self.meeting.waits &= setup.paths.chosen(self.rank).is_none();
    }

    /// Makes this side's part of `need`, or asks for what the choice of the path needs; control
    /// messages for the peer are appended to `out`.
    pub fn begin(
        &mut self,
        setup: &Setup<'_>,
        lane: u8,
        need: Need,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        if !self.introduce(setup, out) {
            return Ok(());
        }
        self.lane(setup, 0, out)?;
        self.lane(setup, lane, out)?;
        let (channels, limit) = (&mut self.channels, setup.config.channels);
        match need {
            Need::Lanes => Ok(()),
            Need::Send { tag, eager } => {
                channels.send_channel(setup, (tag, eager), limit, out)?;
                Ok(())
            }
            Need::Recv { tag, eager } => {
                channels.recv_channel(setup, (tag, eager), limit, out)?;
                Ok(())
            }
        }
    }

    /// Makes this side's end of a lane; control messages for the peer are appended to `out`.
    fn lane(&mut self, setup: &Setup<'_>, lane: u8, out: &mut Vec<Control>) -> Result<()> {
        let doorbell = setup.lanes.doorbell(lane);
        let doorbell = doorbell.unwrap_or(setup.config.doorbell);
        let made = self.link.make(setup.paths, lane, doorbell)?;
        out.extend(made.map(|end| Control::Connect {
            lane,
            ends: vec![end],
            shape: setup.settings(),
        }));
        Ok(())
    }

    /// Handles a control message of the peer.
    ///
    /// # Errors
    /// `Protocol` for a message that is not valid for this side; otherwise the error of opening
    /// this side's part.
    pub fn handle(
        &mut self,
        setup: &Setup<'_>,
        message: &Control,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        match message {
            Control::AskPath { gpu, shape } => {
                // Before the check of the peer's settings, as this side's end of a lane.
                if setup.paths.chosen(self.rank).is_none() {
                    self.introduce(setup, out);
                }
                // The answer introduces a rank that has chosen.
                self.meeting.introduced = true;
                let answer = setup.paths.answer(self.rank, gpu);
                out.push(Control::AnswerPath(answer.clone()));
                self.agree(setup.settings(), *shape)?;
                self.meeting.ours = Some(answer);
                self.choose_path(setup);
            }
            Control::AnswerPath(answer) => {
                self.meeting.theirs = Some(answer.clone());
                self.choose_path(setup);
            }
            Control::Connect { lane, ends, shape } => {
                // A peer that chooses by itself has answered before.
                if setup.paths.chosen(self.rank).is_none() {
                    self.meeting.theirs = Some(setup.paths.unasked(ends));
                    self.choose_path(setup);
                }
                self.lane(setup, 0, out)?;
                // Sent before the check of the peer's settings, so that the peer can compare its
                // settings, too.
                self.lane(setup, *lane, out)?;
                self.agree(setup.settings(), *shape)?;
                self.link.connect(setup.paths, *lane, ends)?;
                out.push(Control::Up { lane: *lane });
            }
            Control::Up { lane } => self.link.connected(*lane)?,
            Control::Sends {
                tag,
                block,
                shape,
                eager,
            } => {
                self.agree(setup.shape(self.rank), *shape)?;
                let tag = (*tag, *eager);
                self.channels.peer_sends(setup, tag, block, out)?;
            }
            Control::Receives {
                tag,
                block,
                rooms,
                flagged,
                flags,
                long,
                long_flags,
                shape,
            } => {
                self.agree(setup.shape(self.rank), *shape)?;
                let memory = [&block[..], rooms, flagged, long];
                let flags = [*flags, *long_flags];
                self.channels
                    .peer_receives(setup, *tag, memory, flags, out)?;
            }
            Control::DeviceBlock {
                tag,
                block,
                offset,
                from,
            } => {
                let at = (*offset, *from);
                self.channels.peer_device_block(*tag, block, at)?;
            }
            Control::Retire { tag, next } => {
                let link = &mut self.link;
                // Whether no ready word is in flight to the peer's memory.
                let mut done = |(lane, put): (u8, Put)| {
                    let lane = link.lane(lane);
                    lane.is_none_or(|lane| !lane.is_pending(put))
                };
                let written = |channel: &RecvChannel| channel.ready_puts().all(&mut done);
                out.push(self.channels.peer_retires(*tag, *next, written));
            }
            Control::Retired { tag, gone } => self.channels.retired(*tag, *gone)?,
            Control::Leaving | Control::Left => {
                if let Standing::Here { leaving, closing } = &mut self.standing {
                    match message {
                        Control::Leaving => *leaving = true,
                        _ => *closing = Closing::Answered,
                    }
                }
            }
            Control::Window {
                number,
                rank,
                block,
            } => self.keep_window(*number, *rank, block)?,
            Control::Neighbour(side) => self.keep_neighbour(side)?,
            Control::Withdrawn { send, receive } => {
                let last = |side: &Neighbour| (side.send, side.receive) == (*send, *receive);
                if let Some(at) = self.neighbours.iter().rposition(last) {
                    self.neighbours.remove(at);
                }
            }
            Control::Memory(export) => {
                out.push(self.link.shared.open(setup.paths, export)?);
            }
            Control::Mapped { key, place } => self.link.shared.answered(*key, *place)?,
            Control::Released { key } => self.link.shared.close(*key),
            Control::Circuit(end) => self.circuits.peer_made(setup.circuits(), end, out)?,
            Control::AskZeroSm { tag } => self.zero_sm.peer_asks(setup.zero_sm(), *tag, out)?,
            Control::ZeroSm(room) => self.zero_sm.peer_made(setup.zero_sm(), room)?,
            Control::Ping => out.push(Control::Pong),
            Control::Pong
            | Control::Truncated { .. }
            | Control::GivenUp { .. }
            | Control::Broken { .. }
            | Control::Agree(_) => {}
        }
        Ok(())
    }

    /// Whether the peer has named its ready words, which this rank has not used.
    pub fn has_ready_words(&self) -> bool {
        self.windows.contains_key(&READY)
    }

    /// Keeps the record of a window that this rank makes later.
    fn keep_window(&mut self, number: u64, rank: u32, block: &[Record]) -> Result<()> {
        let sender = self.rank;
        if rank != sender {
            let what = format!("rank {sender} named window {number} of rank {rank}");
            return Err(Error::new("make window", Kind::Protocol, what).with_rank(sender));
        }
        if self.windows.len() >= WINDOWS {
            let what = format!(
                "rank {sender} named too many windows that this rank has not made; make them on \
                 all ranks"
            );
            let error = Error::new("make window", Kind::Protocol, what).with_rank(sender);
            return Err(error.with_limit(WINDOWS, "windows"));
        }
        self.windows.insert(number, block.to_vec());
        Ok(())
    }

    /// Keeps the record of a neighbour until this rank builds its neighbourhood.
    fn keep_neighbour(&mut self, side: &Neighbour) -> Result<()> {
        if self.neighbours.len() >= NEIGHBOURS {
            let rank = self.rank;
            let what = format!(
                "rank {rank} named this rank as a neighbour too often; build the neighbourhoods \
                 on both ranks"
            );
            let error = Error::new("build neighbourhood", Kind::Protocol, what);
            return Err(error.with_rank(rank).with_limit(NEIGHBOURS, "times"));
        }
        self.neighbours.push(side.clone());
        Ok(())
    }

    /// Writes the credits that are due, for all channels. `true`: there were some.
    pub fn write_credits(&mut self) -> bool {
        let Some(lane) = self.link.lane(0) else {
            return false;
        };
        let mut credited = false;
        for channel in self.channels.recvs.values_mut() {
            credited |= channel.return_credits(Some(&mut *lane));
        }
        credited
    }

    fn agree(&self, ours: Shape, theirs: Shape) -> Result<()> {
        if ours == theirs {
            return Ok(());
        }
        let rank = self.rank;
        if ours.zero_sm != theirs.zero_sm {
            let what = format!(
                "only one of rank {rank} and this rank uses zero-SM messages by default; use the same \
                 MP_ZERO_SM or Builder::zero_sm on all ranks"
            );
            return Err(Error::new("open channel", Kind::Protocol, what).with_rank(rank));
        }
        let what = format!(
            "rank {rank} has a depth of {} messages and an eager limit of {} bytes, and this rank \
             has {} and {}; use the same settings on all ranks",
            theirs.depth, theirs.eager, ours.depth, ours.eager
        );
        Err(Error::new("open channel", Kind::Protocol, what).with_rank(rank))
    }

    /// Gives the peer up: its operations cannot reach this side any more, and every stream is
    /// released that waits for its credits or ready words.
    pub fn fail(&mut self, failure: Failure) {
        let status = failure.status;
        self.standing = Standing::GivenUp(failure);
        self.link.fail(status);
        self.circuits.fail(status);
        self.zero_sm.fail();
        // Stored before streams are released.
        for channel in self.channels.recvs.values() {
            channel.set_lost();
        }
        for channel in self.channels.sends.values() {
            channel.release(status);
        }
    }
}

/// The peers of a job, each made when this rank first needs it.
pub(crate) struct Peers(Vec<Option<Box<Peer>>>);

impl Peers {
    pub fn new(size: u32) -> Peers {
        Peers((0..size).map(|_| None).collect())
    }

    #[inline]
    pub fn get(&self, rank: u32) -> Option<&Peer> {
        self.0.get(rank as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, rank: u32) -> Option<&mut Peer> {
        self.0.get_mut(rank as usize)?.as_deref_mut()
    }

    /// The peer of a rank, made on first use; `None`: the job does not have this rank.
    pub fn make(&mut self, rank: u32) -> Option<&mut Peer> {
        let peer = self.0.get_mut(rank as usize)?;
        Some(peer.get_or_insert_with(|| Box::new(Peer::new(rank))))
    }

    /// The number of ranks of the job.
    pub fn size(&self) -> u32 {
        self.0.len() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter().flatten().map(|peer| &**peer)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.0.iter_mut().flatten().map(|peer| &mut **peer)
    }

    /// The lanes that `used` names, in the order of the ranks. `used` is sorted.
    fn lanes<'l>(&'l mut self, used: &'l [LaneId]) -> impl Iterator<Item = &'l mut Lane> {
        let (mut rest, mut passed) = (&mut self.0[..], 0);
        let ranks = used.chunk_by(|one, next| one.rank == next.rank);
        let links = ranks.filter_map(move |same| {
            let mask = same.iter().fold(0, |mask, at| mask | 1 << at.lane);
            let at = same[0].rank as usize - passed;
            let (head, tail) = std::mem::take(&mut rest).split_at_mut_checked(at + 1)?;
            (rest, passed) = (tail, passed + at + 1);
            Some(head.last_mut()?.as_deref_mut()?.link.some(mask))
        });
        links.flatten()
    }

    /// The peers that were not given up.
    pub fn here(&self) -> impl Iterator<Item = &Peer> {
        self.iter().filter(|peer| peer.is_here())
    }
}

impl PeerLanes for Peers {
    fn lane(&mut self, at: LaneId) -> Option<&mut Lane> {
        self.get_mut(at.rank)?.link.lane(at.lane)
    }

    fn each<'l>(&'l mut self, used: &'l [LaneId]) -> impl Iterator<Item = &'l mut Lane> {
        self.lanes(used)
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::rdma::{Device, Doorbell};

    use super::*;

    #[test]
    fn a_peer_names_its_own_windows_and_a_bounded_number() {
        let gpu = Gpu::soft().unwrap();
        let setup = Setup {
            paths: &Paths::for_test(&Device::emulated(&gpu).unwrap()),
            config: &Config::default(),
            lanes: &StreamLanes::new(Doorbell::Auto),
        };
        let mut peer = Peer::new(1);
        let mut names = |number, rank| {
            let block = Vec::new();
            let window = Control::Window {
                number,
                rank,
                block,
            };
            peer.handle(&setup, &window, &mut Vec::new())
        };
        let e = names(0, 2).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)), "{e}");
        (0..WINDOWS as u64).for_each(|number| names(number, 1).unwrap());
        let e = names(WINDOWS as u64, 1).unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Protocol, Some(4096)), "{e}");
    }
}
