//! Peers: one rank, as another has to do with it.
//!
//! Lanes open on first use: each side tells the other its end, whichever comes first, and answers
//! what it did not ask for.

use gdsync::Status;

use super::channel::RecvChannel;
use super::channels::Channels;
use super::config::Config;
use super::lanes::Lanes;
use super::liveness::Pulse;
use crate::error::{Error, Kind, Result};
use crate::path::{Link, Paths, Put};
use crate::request::fault::Name;
use crate::request::table::RequestKey;
use crate::wire::control::{Control, Shape};

/// One rank.
pub(crate) struct Peer {
    pub rank: u32,
    pub link: Link,
    pub channels: Channels,
    pub pulse: Pulse,
    pub standing: Standing,
}

/// How a peer stands with this rank.
pub(crate) enum Standing {
    /// Messages go between the two.
    Here {
        /// It is about to leave, and waits to be told that nothing is under way to it.
        leaving: bool,
        /// Whether this side is about to leave.
        closing: Closing,
    },
    /// It was given up.
    GivenUp(Failure),
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

/// How a peer failed.
pub(crate) struct Failure {
    pub status: Status,
    pub cause: Cause,
}

/// Why a peer was given up.
pub(crate) enum Cause {
    /// It failed a request.
    Request {
        culprit: RequestKey,
        name: Name,
        /// The position of the failure in the order of failures.
        order: u64,
        text: String,
    },
    /// It sent what this rank does not understand.
    Protocol(String),
    /// Another reason, in words.
    Other(String),
}

impl Failure {
    /// In words, for other requests than the culprit.
    pub fn of_others(&self, rank: u32) -> String {
        match &self.cause {
            Cause::Request { name, text, .. } => {
                format!("rank {rank} was given up after another request failed: {name}: {text}")
            }
            Cause::Protocol(why) => {
                format!("rank {rank} sent what this rank does not understand: {why}")
            }
            Cause::Other(text) => text.clone(),
        }
    }

    /// What kind of error a request with the peer ends with.
    pub fn kind(&self) -> Kind {
        match self.cause {
            Cause::Protocol(_) => Kind::Protocol,
            _ => Kind::PeerFailed(self.status),
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
    pub paths: &'a Paths,
    pub config: &'a Config,
    pub lanes: &'a Lanes,
}

impl Peer {
    pub fn new(rank: u32) -> Peer {
        Peer {
            rank,
            link: Link::new(rank),
            channels: Channels::new(rank),
            pulse: Pulse::default(),
            standing: Standing::Here {
                leaving: false,
                closing: Closing::No,
            },
        }
    }

    /// How it failed, if it was given up.
    #[inline]
    pub fn failure(&self) -> Option<&Failure> {
        match &self.standing {
            Standing::Here { .. } => None,
            Standing::GivenUp(failure) => Some(failure),
        }
    }

    /// The status that it was given up with.
    #[inline]
    pub fn failed(&self) -> Option<Status> {
        self.failure().map(|failure| failure.status)
    }

    /// Whether it was not given up.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.failure().is_none()
    }

    /// The error of a request that cannot be: the peer was given up, or is not connected.
    #[cold]
    pub fn error(&self, operation: &'static str) -> Error {
        let rank = self.rank;
        let Some(failure) = self.failure() else {
            return super::state::closed("no connection", rank);
        };
        let error = match &failure.cause {
            Cause::Protocol(why) => Error::new(operation, Kind::Protocol, why.as_str()),
            _ => Error::new(operation, failure.kind(), failure.of_others(rank)).whole(),
        };
        error.with_rank(rank)
    }

    /// How far this side is with leaving.
    pub fn closing(&mut self) -> Option<&mut Closing> {
        match &mut self.standing {
            Standing::Here { closing, .. } => Some(closing),
            Standing::GivenUp(_) => None,
        }
    }

    /// Whether this side waits for a control message of the peer's.
    pub fn owes_answer(&self) -> bool {
        let asked = Closing::Asked;
        self.link.is_opening()
            || matches!(self.standing, Standing::Here { closing, .. } if closing == asked)
            || self.channels.is_opening()
    }

    /// Whether everything is there to post on `lane`.
    #[inline]
    pub fn is_open(&self, lane: u8, target: Target) -> bool {
        self.link.is_open(0)
            && self.link.is_open(lane)
            && match target {
                Target::Lanes => true,
                Target::Send(tag) => self.channels.can_send(tag),
                Target::Recv(tag) => self.channels.can_receive(tag),
            }
    }

    /// Whether a request may use `target`: all is open, or the peer was given up but left a message
    /// that can still be taken.
    #[inline]
    pub fn can_post(&self, lane: u8, target: Target) -> bool {
        match (&self.standing, target) {
            (Standing::Here { .. }, _) => self.is_open(lane, target),
            (Standing::GivenUp(_), Target::Recv(tag)) => {
                let channel = self.channels.recvs.get(&tag);
                channel.is_some_and(RecvChannel::has_unexpected)
            }
            (Standing::GivenUp(_), _) => false,
        }
    }

    /// Makes this side's part of what is to be open; what the peer must know goes to `out`.
    pub fn begin(
        &mut self,
        setup: &Setup<'_>,
        lane: u8,
        target: Target,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        self.lane(setup, 0, out)?;
        self.lane(setup, lane, out)?;
        let (channels, limit) = (&mut self.channels, setup.config.channels);
        match target {
            Target::Lanes => Ok(()),
            Target::Send(tag) => channels.send_channel(setup, tag, limit, out).map(drop),
            Target::Recv(tag) => channels.recv_channel(setup, tag, limit, out).map(drop),
        }
    }

    /// Makes this side's end of a lane; what the peer must know goes to `out`.
    fn lane(&mut self, setup: &Setup<'_>, lane: u8, out: &mut Vec<Control>) -> Result<()> {
        let doorbell = setup.lanes.doorbell(lane);
        let doorbell = doorbell.unwrap_or(setup.config.doorbell);
        let made = self.link.make(setup.paths, lane, doorbell)?;
        out.extend(made.map(|end| Control::Connect {
            lane,
            ends: vec![end],
            shape: setup.config.shape(),
        }));
        Ok(())
    }

    /// Takes in what the peer said.
    ///
    /// # Errors
    /// `Protocol` for what cannot be meant for this side; else what opening its counterpart refuses.
    pub fn handle(
        &mut self,
        setup: &Setup<'_>,
        message: &Control,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        match message {
            Control::Connect { lane, ends, shape } => {
                self.lane(setup, 0, out)?;
                // What is said now tells the peer, too, how this side is set up.
                self.lane(setup, *lane, out)?;
                self.agree(setup, *shape)?;
                self.link.connect(setup.paths, *lane, ends)?;
                out.push(Control::Up { lane: *lane });
            }
            Control::Up { lane } => self.link.connected(*lane)?,
            Control::Sends { tag, block, shape } => {
                self.agree(setup, *shape)?;
                self.channels.peer_sends(setup, *tag, block, out)?;
            }
            Control::Receives { tag, block, shape } => {
                self.agree(setup, *shape)?;
                self.channels.peer_receives(setup, *tag, block, out)?;
            }
            Control::Retire { tag, next } => {
                let link = &mut self.link;
                // No ready word is in flight to the peer's memory.
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
            Control::Ping => out.push(Control::Pong),
            Control::Pong | Control::Truncated { .. } | Control::GivenUp => {}
        }
        Ok(())
    }

    /// Writes the credits that are due, of all channels. `true`: there were some.
    pub fn write_credits(&mut self) -> bool {
        let Some(lane) = self.link.lane(0) else {
            return false;
        };
        let mut credited = false;
        for channel in self.channels.recvs.values_mut() {
            while let Some(run) = channel.credit_due()
                && channel.credit_by_cpu(Some(&mut *lane), run)
            {
                credited = true;
            }
        }
        credited
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
    pub fn fail(&mut self, failure: Failure) {
        let status = failure.status;
        self.standing = Standing::GivenUp(failure);
        self.link.fail(status);
        for channel in self.channels.sends.values() {
            channel.release(status);
        }
    }
}

/// The ranks of a job, each from when this one has to do with it.
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

    /// The rank, made if this one has not had to do with it; `None`: the job has no such rank.
    pub fn make(&mut self, rank: u32) -> Option<&mut Peer> {
        let place = self.0.get_mut(rank as usize)?;
        Some(place.get_or_insert_with(|| Box::new(Peer::new(rank))))
    }

    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.0.len() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter().flatten().map(|peer| &**peer)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.0.iter_mut().flatten().map(|peer| &mut **peer)
    }

    /// Those that were not given up.
    pub fn here(&self) -> impl Iterator<Item = &Peer> {
        self.iter().filter(|peer| peer.is_here())
    }
}
