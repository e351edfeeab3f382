//! What a context's lock guards.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::time::Duration;

use gds_step::Time;
use gdsync::gpu::WeakStream;
use gdsync::rdma::Endpoint;
use gdsync::{Status, Stream};

use super::channel::{RecvChannel, SendChannel};
use super::peer::{Peer, Way};
use super::spec::Source;
use super::staging::Staging;
use crate::error::{Error, Kind, Result};
use crate::path::{LANES, Lane, Link};
use crate::region::Memory;
use crate::request::fault::Faults;
use crate::request::table::{Entry, Phase, RequestKey, Segments, Table};
use crate::wire::control::Control;

/// A request that a stream has waited for longer than the watchdog's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// This rank.
    pub rank: u32,
    /// The rank whose message, or whose taking it, does not come.
    pub peer: Source,
    /// The message's tag.
    pub tag: u32,
    /// Its number under peer and tag, from 0; 0 if nothing has matched a receive from anybody.
    pub number: u64,
    /// What the stream waits for, and what to check, in words.
    pub what: String,
    /// The stream's number.
    pub stream: u64,
    /// For how long.
    pub since: Duration,
}

/// Who posts on a lane.
#[derive(Debug)]
pub(crate) struct LaneUse {
    pub endpoint: Endpoint,
    /// One, unless there were more streams than lanes; none on the CPU's. Each with the endpoint that
    /// it asked for.
    streams: Vec<(WeakStream, Endpoint)>,
}

/// The first request that a stream has not passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    pub stream: u64,
    pub order: u64,
    pub key: RequestKey,
}

/// Memory of requests that ended, to be given up without the lock.
#[derive(Default)]
pub(crate) struct Trash {
    pub segments: Vec<Segments>,
    pub memory: Vec<Memory>,
}

impl Trash {
    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.memory.is_empty()
    }
}

pub(crate) struct State {
    pub peers: Vec<Option<Box<Peer>>>,
    pub requests: Table,
    /// By lane.
    pub lanes: Vec<LaneUse>,
    pub endpoints: Vec<Endpoint>,
    /// Receives from anybody that nothing has matched, oldest first.
    pub wild: Vec<RequestKey>,
    /// Where the next search for them begins.
    pub wild_from: u32,
    /// Control messages that the bootstrap had no room for.
    pub unsent: Vec<(u32, Control)>,
    /// Why the bootstrap does not reach the other ranks; `None`: it does.
    pub lost: Option<String>,
    /// Whether the loss was logged.
    pub lost_told: bool,
    pub trash: Trash,
    pub staging: Staging,
    /// Kept from round to round.
    pub keys: Vec<RequestKey>,
    pub fronts: Vec<Front>,
    pub next_look: Time,
    /// When the bootstrap is next asked which ranks are gone.
    pub next_census: Time,
    /// The rank whose turn is next, whether or not a request waits for it.
    pub census_at: u32,
    /// Failures that no call has returned.
    pub faults: Faults,
}

impl State {
    pub fn new(size: u32, endpoint: Endpoint) -> State {
        State {
            peers: (0..size).map(|_| None).collect(),
            requests: Table::new(),
            lanes: vec![LaneUse {
                endpoint,
                streams: Vec::new(),
            }],
            endpoints: vec![endpoint],
            wild: Vec::new(),
            wild_from: 0,
            unsent: Vec::new(),
            lost: None,
            lost_told: false,
            trash: Trash::default(),
            staging: Staging::default(),
            keys: Vec::new(),
            fronts: Vec::new(),
            next_look: Time::ZERO,
            next_census: Time::ZERO,
            census_at: 0,
            faults: Faults::default(),
        }
    }

    /// The lane of a stream, which it keeps as long as it lives.
    #[inline]
    pub fn lane_of(&mut self, stream: &Stream, endpoint: Endpoint) -> u8 {
        let id = stream.id();
        let its = |lane: &LaneUse| {
            let mut streams = lane.streams.iter();
            streams.any(|(stream, wanted)| stream.id() == id && *wanted == endpoint)
        };
        match self.lanes.iter().position(its) {
            Some(lane) => lane as u8,
            None => self.take_lane(stream, endpoint),
        }
    }

    /// The lane of a stream that has none: one whose streams are gone, a new one, or if there are
    /// no more the one with the fewest streams.
    #[cold]
    fn take_lane(&mut self, stream: &Stream, endpoint: Endpoint) -> u8 {
        for lane in &mut self.lanes {
            lane.streams.retain(|(stream, _)| !stream.has_ended());
        }
        let alike = |lanes: &[LaneUse], lane: usize| lanes[lane].endpoint == endpoint;
        let streams = 1..self.lanes.len();
        let free = streams
            .clone()
            .find(|lane| alike(&self.lanes, *lane) && self.is_free(*lane));
        let lane = match free {
            Some(lane) => lane,
            None if self.lanes.len() < LANES => {
                self.lanes.push(LaneUse {
                    endpoint,
                    streams: Vec::new(),
                });
                self.endpoints.push(endpoint);
                self.lanes.len() - 1
            }
            // A queue pair's endpoint does not change; another one is better than none. Behind a
            // request that is prepared and not posted nothing can be posted.
            None => streams
                .min_by_key(|lane| {
                    let other = !alike(&self.lanes, *lane);
                    let blocked = self.requests.iter().any(|(_, entry)| {
                        entry.phase == Phase::Prepared && usize::from(entry.poster.lane) == *lane
                    });
                    (other, blocked, self.lanes[*lane].streams.len())
                })
                .unwrap_or(1),
        };
        let user = (stream.downgrade(), endpoint);
        self.lanes[lane].streams.push(user);
        lane as u8
    }

    /// Whether nothing was posted on a lane, or is going to be, by the streams that had it.
    fn is_free(&mut self, lane: usize) -> bool {
        let on = |entry: &Entry| {
            let open = matches!(entry.phase, Phase::Prepared | Phase::Sent(_));
            open && usize::from(entry.poster.lane) == lane
        };
        self.lanes[lane].streams.is_empty()
            && !self.requests.iter().any(|(_, entry)| on(entry))
            && self.peers.iter_mut().flatten().all(|peer| {
                let lane = peer.link.lane(lane as u8);
                peer.failed.is_some() || lane.is_none_or(Lane::is_quiet)
            })
    }

    /// A lane to `rank` that is open, for a stream whose own `lane` cannot be: one of other streams
    /// that the same endpoint rings.
    pub fn open_lane_like(&self, rank: u32, lane: u8, way: Way) -> Option<u8> {
        let endpoint = self.lanes.get(usize::from(lane))?.endpoint;
        let peer = self.known(rank)?;
        let alike = |other: &u8| self.lanes[usize::from(*other)].endpoint == endpoint;
        (1..self.lanes.len() as u8).find(|other| alike(other) && peer.may(*other, way))
    }

    /// Keeps the channels whose peer could not be asked to retire them.
    pub fn unretire(&mut self) {
        let State { peers, unsent, .. } = self;
        unsent.retain(|(rank, message)| {
            let Control::Retire { tag, .. } = message else {
                return true;
            };
            let peer = peers.get_mut(*rank as usize).and_then(Option::as_deref_mut);
            if let Some(channel) = peer.and_then(|peer| peer.sends.get_mut(tag)) {
                channel.retiring = false;
            }
            false
        });
    }

    /// A call is about to return the failure of a request.
    pub fn take_fault(&mut self, key: RequestKey) {
        if let Some(entry) = self.requests.get_mut(key)
            && !std::mem::replace(&mut entry.end.taken, true)
            && entry.end.fault.is_some()
        {
            self.faults.open -= 1;
        }
    }

    /// A send that is not done with its channel, and the lanes to the peer.
    pub fn outgoing(
        &mut self,
        key: RequestKey,
    ) -> Result<(&mut Entry, &mut SendChannel, &mut Link)> {
        let State {
            requests, peers, ..
        } = self;
        let entry = known(requests, key)?;
        let peer = connected(peers, entry.peer)?;
        let channel = peer.sends.get_mut(&entry.tag);
        let channel = channel.ok_or_else(|| gone("no channel", entry.peer))?;
        Ok((entry, channel, &mut peer.link))
    }

    /// A receive with its channel, and the lanes to the peer.
    pub fn incoming(
        &mut self,
        key: RequestKey,
    ) -> Result<(&mut Entry, &mut RecvChannel, &mut Link)> {
        let State {
            requests, peers, ..
        } = self;
        let entry = known(requests, key)?;
        let peer = connected(peers, entry.peer)?;
        let channel = peer.recvs.get_mut(&entry.tag);
        let channel = channel.ok_or_else(|| gone("no channel", entry.peer))?;
        Ok((entry, channel, &mut peer.link))
    }

    pub fn known(&self, rank: u32) -> Option<&Peer> {
        self.peers.get(rank as usize)?.as_deref()
    }

    /// How `rank` failed, if it was given up.
    pub fn given_up(&self, rank: u32) -> Option<Status> {
        self.known(rank)?.failed
    }

    pub fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        self.peers.get_mut(rank as usize)?.as_deref_mut()
    }
}

#[cold]
pub(super) fn gone(what: &str, rank: u32) -> Error {
    Error::new("look up peer", Kind::Closed, what).with_rank(rank)
}

fn connected(peers: &mut [Option<Box<Peer>>], rank: u32) -> Result<&mut Peer> {
    let peer = peers.get_mut(rank as usize).and_then(Option::as_deref_mut);
    peer.ok_or_else(|| gone("no connection", rank))
}

pub(super) fn known(requests: &mut Table, key: RequestKey) -> Result<&mut Entry> {
    let none = || Error::new("look up request", Kind::NoSuchRequest, "it is not known");
    requests.get_mut(key).ok_or_else(none)
}

/// The lock, which gives memory up only after it is given back.
pub(crate) struct Guard<'a>(Option<MutexGuard<'a, State>>);

impl<'a> Guard<'a> {
    pub fn new(guard: MutexGuard<'a, State>) -> Guard<'a> {
        Guard(Some(guard))
    }
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_deref().expect("held until it is dropped")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_deref_mut().expect("held until it is dropped")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let full = |state: &&mut State| !state.trash.is_empty();
        let trash = self
            .0
            .as_deref_mut()
            .filter(full)
            .map(|s| mem::take(&mut s.trash));
        self.0 = None;
        drop(trash);
    }
}
