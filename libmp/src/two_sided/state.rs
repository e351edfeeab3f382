//! [`State`]: all that a context's lock guards (peers, requests, lanes, the matcher, failures), how
//! parts of it are looked up, and the [`Guard`] of the lock.

use std::collections::BTreeMap;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard, Weak};
use std::thread::{self, ThreadId};

use gds_step::Time;
use gdsync::rdma::Doorbell;
use gdsync::{Gpu, Status, Stream};

use super::agree::AgreementTimer;
use super::any::Matcher;
use super::channel::{RecvChannel, SendChannel};
use super::lanes::StreamLanes;
use super::liveness::GonePoll;
use super::outbox::Outbox;
use super::peer::{Need, Peer, Peers};
use super::post_all::Posts;
use super::ready::ReadyMemory;
use super::staging::Staging;
use super::wait_all::Waits;
use super::watch::Watch;
use crate::agreement::Agreement;
use crate::error::{Error, Kind, Result};
use crate::path::Copier;
use crate::path::{Lane, Link};
use crate::plan::Plan;
use crate::region::Memory;
use crate::request::collective::Team;
use crate::request::entry::{Common, Entry, Incoming, Operation, Outgoing, Segments};
use crate::request::fault::Faults;
use crate::request::one_sided::Released;
use crate::request::reached::Reached;
use crate::request::table::{RequestKey, Table};
use crate::stats::Counts;

/// The operation of errors of requests that several calls use.
const USE: &str = "use request";

/// Memory of ended requests, which is released without the lock.
#[derive(Default)]
pub(crate) struct Trash {
    pub segments: Vec<Segments>,
    pub memory: Vec<Memory>,
}

impl Trash {
    /// Keeps the memory of a request until the lock is released, if the request may have the last handles on some:
    /// to free it takes long.
    #[inline]
    pub fn free_later(&mut self, segments: Segments) {
        let all = segments.as_slice();
        if all.iter().any(|slice| slice.handles() <= all.len()) {
            self.segments.push(segments);
        }
    }

    fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.memory.is_empty()
    }
}

pub(crate) struct State {
    pub peers: Peers,
    pub requests: Table,
    pub lanes: StreamLanes,
    pub matcher: Matcher,
    pub reached: Reached,
    pub outbox: Outbox,
    pub trash: Trash,
    pub staging: Staging,
    /// A buffer that the rounds reuse.
    pub keys: Vec<RequestKey>,
    /// As `keys`, for the receives that get a mark.
    pub marked: Vec<RequestKey>,
    /// As `keys`, for the calls that wait until a window is quiet.
    pub quiets: Vec<RequestKey>,
    /// The buffers of plans.
    pub plan: Plan<'static>,
    /// The buffers of posts of several requests.
    pub posts: Posts,
    /// The buffers of waits for several requests.
    pub waits: Waits,
    pub watch: Watch,
    /// The start of the last round of the background work.
    pub last_round: Time,
    pub next_slow_round: Time,
    /// The last read of what kernels have stored in device memory.
    pub last_refresh: Time,
    pub gone_poll: GonePoll,
    /// Number of windows that were made with all ranks.
    pub windows: u64,
    /// A window of GPU memory was made: a signal in any window may follow puts to it, so that waits
    /// for signals flush.
    pub device_windows: bool,
    pub released: Released,
    /// The teams of collective calls, by number.
    pub teams: BTreeMap<u64, Weak<Team>>,
    /// Teams that failed: other ranks may write to their memory still.
    pub failed_teams: Vec<Arc<Team>>,
    pub ready: ReadyMemory,
    /// Which ranks are lost, as far as the ranks have agreed.
    pub agreement: Agreement,
    pub agreement_timer: AgreementTimer,
    /// Failures that no call has returned.
    pub faults: Faults,
    /// What belongs to no peer.
    pub counts: Counts,
    pub pairs: Pairs,
}

/// The calls in progress that prepare several requests before they post them: no other call can
/// post on the same queue pair meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// The threads of the calls.
    threads: Vec<ThreadId>,
    /// Number of calls so far.
    pub count: u64,
}

impl Pairs {
    pub fn begin(&mut self) {
        self.threads.push(thread::current().id());
        self.count += 1;
    }

    pub fn end(&mut self) {
        let own = self.threads.iter().position(is_current);
        own.map(|at| self.threads.swap_remove(at));
    }

    /// Whether a call of another thread is in progress.
    pub fn of_others(&self) -> bool {
        !self.threads.iter().all(is_current)
    }
}

fn is_current(id: &ThreadId) -> bool {
    *id == thread::current().id()
}

impl State {
    /// `copier`: of the mapped memory, if ranks map any.
    pub fn new(
        gpu: &Gpu,
        (rank, size): (u32, u32),
        doorbell: Doorbell,
        copier: Option<Copier>,
    ) -> State {
        State {
            peers: Peers::new(size),
            requests: Table::new(),
            lanes: StreamLanes::new(doorbell),
            matcher: Matcher::default(),
            reached: Reached::new(gpu, copier),
            outbox: Outbox::default(),
            trash: Trash::default(),
            staging: Staging::default(),
            keys: Vec::new(),
            marked: Vec::new(),
            quiets: Vec::new(),
            plan: Plan::default(),
            posts: Posts::default(),
            waits: Waits::default(),
            watch: Watch::default(),
            last_round: Time::ZERO,
            next_slow_round: Time::ZERO,
            last_refresh: Time::ZERO,
            gone_poll: GonePoll::default(),
            windows: 0,
            device_windows: false,
            released: Released::default(),
            teams: BTreeMap::new(),
            failed_teams: Vec::new(),
            ready: ReadyMemory::default(),
            agreement: Agreement::new(rank, size),
            agreement_timer: AgreementTimer::default(),
            faults: Faults::default(),
            pairs: Pairs::default(),
            counts: Counts::default(),
        }
    }

    /// The counters of `rank`; of no peer if it was not used.
    #[inline]
    pub fn counts(&mut self, rank: Option<u32>) -> &mut Counts {
        let peer = rank.and_then(|rank| self.peers.get_mut(rank));
        peer.map_or(&mut self.counts, |peer| &mut peer.counts)
    }

    /// Counts a wait for a request.
    #[inline]
    pub fn count_wait(&mut self, key: RequestKey) {
        let rank = self.requests.get(key).map(|entry| entry.peer);
        if let Some(peer) = rank.and_then(|rank| self.peers.get_mut(rank)) {
            peer.counts.waits += 1;
        }
    }

    /// The lane of a stream, which the stream keeps as long as it lives.
    #[inline]
    pub fn lane_of(&mut self, stream: &Stream, doorbell: Doorbell) -> u8 {
        match self.lanes.of(stream, doorbell) {
            Some(lane) => lane,
            None => self.assign_lane(stream, doorbell),
        }
    }

    #[cold]
    fn assign_lane(&mut self, stream: &Stream, doorbell: Doorbell) -> u8 {
        let State {
            lanes,
            requests,
            peers,
            ..
        } = self;
        let any = |lane: u8, is: fn(&Entry) -> bool| {
            let mut entries = requests.iter();
            entries.any(|(_, entry)| is(entry) && entry.poster.lane == lane)
        };
        let quiet = |peer: &mut Peer, lane: u8| {
            !peer.is_here() || peer.link.lane(lane).is_none_or(Lane::is_quiet)
        };
        let open = |entry: &Entry| entry.is_prepared() || entry.in_flight().is_some();
        lanes.assign(
            stream,
            doorbell,
            |lane| !any(lane, open) && peers.iter_mut().all(|peer| quiet(peer, lane)),
            |lane| any(lane, Entry::is_prepared),
        )
    }

    /// Lets the streams of `lane`, which cannot be opened, post to `rank` on an open lane of other
    /// streams with the same doorbell.
    pub fn share_lane(&mut self, rank: u32, lane: u8, need: Need) -> Option<u8> {
        let peer = self.peers.get_mut(rank)?;
        let mut like = self.lanes.like(lane);
        let shared = like.find(|other| peer.can_post(*other, need))?;
        peer.stand_in[usize::from(lane)] = shared;
        Some(shared)
    }

    /// The lane on which the streams of `lane` post to `rank`: another open one if theirs cannot be
    /// used.
    #[inline]
    pub fn open_lane(&mut self, rank: u32, lane: u8, need: Need) -> u8 {
        let Some(peer) = self.peers.get(rank) else {
            return lane;
        };
        let own = peer.stand_in[usize::from(lane)];
        match peer.can_post(own, need) {
            true => own,
            false => self.share_lane(rank, lane, need).unwrap_or(own),
        }
    }

    /// Marks the failure of a request as returned by a call.
    pub fn return_fault(&mut self, key: RequestKey) {
        if let Some(entry) = self.requests.get_mut(key)
            && !std::mem::replace(&mut entry.end.returned, true)
            && entry.end.fault.is_some()
        {
            self.faults.open -= 1;
        }
    }

    /// A send with its channel, and the lanes to the peer.
    pub fn outgoing(
        &mut self,
        key: RequestKey,
    ) -> Result<(&mut Common, &mut Outgoing, &mut SendChannel, &mut Link)> {
        let (entry, Peer { channels, link, .. }) = self.request(key)?;
        let Entry { common, operation } = entry;
        match (operation, channels.sends.get_mut(&common.tag)) {
            (Operation::Send(send), Some(channel)) => Ok((common, send, channel, link)),
            _ => {
                let what = format!("the channel to rank {} is not open", common.peer);
                Err(Error::new(USE, Kind::Closed, what).with_rank(common.peer))
            }
        }
    }

    /// A receive with its channel, and the lanes to the peer.
    pub fn incoming(
        &mut self,
        key: RequestKey,
    ) -> Result<(&mut Common, &mut Incoming, &mut RecvChannel, &mut Link)> {
        let (entry, Peer { channels, link, .. }) = self.request(key)?;
        let Entry { common, operation } = entry;
        match (operation, channels.recvs.get_mut(&common.tag)) {
            (Operation::Receive(receive), Some(channel)) => Ok((common, receive, channel, link)),
            _ => {
                let what = format!("the channel from rank {} is not open", common.peer);
                Err(Error::new(USE, Kind::Closed, what).with_rank(common.peer))
            }
        }
    }

    /// A request, and its peer.
    pub fn request(&mut self, key: RequestKey) -> Result<(&mut Entry, &mut Peer)> {
        let entry = known(&mut self.requests, key)?;
        let peer = self.peers.get_mut(entry.peer);
        let rank = entry.peer;
        let peer = peer.ok_or_else(|| not_connected(USE, rank))?;
        Ok((entry, peer))
    }

    /// The channel to `rank` under `tag`.
    pub fn sending(&self, rank: u32, tag: u32) -> Option<&SendChannel> {
        self.peers.get(rank)?.channels.sends.get(&tag)
    }

    /// The channel from `rank` under `tag`.
    pub fn receiving(&self, rank: u32, tag: u32) -> Option<&RecvChannel> {
        self.peers.get(rank)?.channels.recvs.get(&tag)
    }

    /// How `rank` failed, if it was given up.
    pub fn given_up(&self, rank: u32) -> Option<Status> {
        self.peers.get(rank)?.failed()
    }
}

/// The error of an operation with a rank that is not connected.
#[cold]
pub(crate) fn not_connected(operation: &'static str, rank: u32) -> Error {
    let what = format!("rank {rank} is not connected");
    Error::new(operation, Kind::Closed, what).with_rank(rank)
}

/// The error of an operation whose lane to a rank is not open.
#[cold]
pub(crate) fn no_lane(operation: &'static str, rank: u32) -> Error {
    let what = format!("the lane to rank {rank} is not open");
    Error::new(operation, Kind::Closed, what).with_rank(rank)
}

pub(super) fn known(requests: &mut Table, key: RequestKey) -> Result<&mut Entry> {
    let entry = requests.get_mut(key);
    entry.ok_or_else(|| Error::unknown_request(USE))
}

/// The lock guard; it releases memory only after the lock is released.
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

#[cfg(test)]
mod tests {
    use gdsync::gpu::MemoryKind;

    use super::*;
    use crate::Context;
    use crate::bootstrap::Local;

    /// Its owner may call the library when it is freed.
    #[test]
    fn memory_of_a_request_is_not_freed_under_the_lock() {
        let alone = Local::ranks(1).remove(0);
        let gpu = Gpu::soft().unwrap();
        let ctx = Context::builder()
            .bootstrap(alone)
            .gpu(&gpu)
            .build()
            .unwrap();
        for pieces in 0..4 {
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let part = |i| memory.slice(8 * i, 8).unwrap();
            let segments = Segments::new(&(0..pieces).map(part).collect::<Vec<_>>());
            let mut trash = Trash::default();
            drop(memory);
            trash.free_later(segments);
            assert_eq!(trash.segments.len(), pieces.min(1), "{pieces} pieces");
        }
    }
}
