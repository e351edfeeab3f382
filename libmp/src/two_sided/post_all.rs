//! A stream posts several prepared requests in one submission: a list with the ready words of
//! receives, the short sends and the announcements, a kernel with a block for each send that it
//! completes, and a list with the puts of these sends. If sends need a kernel that do not wait for
//! their receives, these have a kernel and a list in front of the waits of the others. Sends of several
//! work requests and of strided pieces have kernels of their own. If a part is refused, no request is
//! posted. [`passes`](super::passes) prepares the parts, [`take_back`](super::take_back) takes them back.

use std::cell::Cell;

use gdsync::gpu::Word64;
use gdsync::{Status, Stream};

use super::bind::{is_bound, unbind};
use super::engine::Engine;
use super::marks::mark_others;
use super::null::NULL_RANK;
use super::packed::{check_stray, staged};
use super::passes::PASSES;
use super::peer::Need;
use super::post::{POST, may_wait, unposted};
use super::receive::ANY_RANK;
use super::spec::On;
use super::state::{State, known};
use super::take_back::take_back_all;
use crate::error::{Error, Kind, Result};
use crate::kernels::{MOST_CHUNKS, STAMPS, Stamp};
use crate::path::{Path, Put};
use crate::plan::{LaneId, Plan, Refusal};
use crate::region::{Memory, Strided};
use crate::request::entry::{Entry, Operation, Poster, ReceiveState, SendState};
use crate::request::reached::Mark;
use crate::request::table::{RequestKey, Table};

/// An operation of the stream.
pub(super) enum Part {
    Wait(Word64, u64),
    Store(Word64, u64),
    Put(LaneId, Put),
    /// Waits until the put is done.
    Done(LaneId, Put),
    Next,
}

/// A request of the call.
pub(super) struct Member {
    pub key: RequestKey,
    pub lane: u8,
    /// It was prepared for the stream.
    pub bound: bool,
    /// The puts that were prepared for it are aborted.
    pub taken: bool,
    /// Its last put.
    pub last: Option<Put>,
    /// It has parts behind the kernels.
    pub behind: bool,
    /// It is a message of this rank to itself, which is posted alone.
    pub alone: bool,
}

/// The operations and kernels of one call. The buffers are kept from call to call.
#[derive(Default)]
pub(crate) struct Posts {
    pub(super) members: Vec<Member>,
    /// All puts, in the order in which they were prepared.
    pub(super) made: Vec<(LaneId, Put)>,
    pub(super) front: Vec<Part>,
    /// Puts behind a kernel that waits for no receive.
    pub(super) short: Vec<Part>,
    /// Waits for ready words, after all that others may wait for.
    pub(super) ready: Vec<Part>,
    pub(super) back: Vec<Part>,
    /// The kernels in front of `short`, and those in front of `back`.
    pub(super) stamps: [Vec<Stamp<MOST_CHUNKS>>; 2],
}

impl Posts {
    fn clear(&mut self) {
        self.members.clear();
        self.made.clear();
        self.front.clear();
        self.short.clear();
        self.ready.clear();
        self.back.clear();
        self.stamps.iter_mut().for_each(Vec::clear);
    }
}

impl Engine {
    /// Posts prepared requests on a stream: all or, after an error, none.
    pub fn post_all_on(
        &self,
        keys: impl ExactSizeIterator<Item = RequestKey> + Clone,
        stream: &Stream,
    ) -> Result<()> {
        let on = On::Stream(stream, None);
        on.check(&self.gpu, POST)?;
        self.with_room(|| {
            for key in keys.clone() {
                self.lane_for(key, &on)?;
            }
            let mut state = self.lock();
            let mut posts = std::mem::take(&mut state.posts);
            let mut posted = self.try_post_all_on(&mut state, keys.clone(), stream, &mut posts);
            let is_full =
                |posted: &Result<()>| matches!(posted, Err(e) if e.kind() == Kind::QueueFull);
            let mut never = is_full(&posted) && is_quiet(&mut state, &posts, stream);
            if never {
                // What was in flight may have ended after the attempt.
                posts.clear();
                posted = self.try_post_all_on(&mut state, keys.clone(), stream, &mut posts);
                never = is_full(&posted);
            }
            posts.clear();
            state.posts = posts;
            // A call that never fits is not repeated.
            match never {
                true => Ok(posted),
                false => posted.map(Ok),
            }
        })?
    }

    fn try_post_all_on(
        &self,
        state: &mut State,
        keys: impl Iterator<Item = RequestKey>,
        stream: &Stream,
        posts: &mut Posts,
    ) -> Result<()> {
        let mut mark = None;
        let decided = self.admit(state, keys, stream, posts).and_then(|()| {
            let waits = any_waits(state, stream, posts)?;
            if waits {
                mark_others(state, stream, 0)?;
            }
            let marked = |member: &Member| is_marked(state, member, waits);
            if posts.members.iter().any(marked) {
                let reached = state.reached.next(&stream.downgrade())?;
                let (word, count) = state.reached.word(reached);
                posts.front.push(Part::Store(word.clone(), count));
                mark = Some(reached);
            }
            PASSES
                .iter()
                .try_for_each(|pass| self.decide_all(state, *pass, posts))?;
            self.bind_alone(state, stream, posts)
        });
        let posted = match decided {
            Ok(()) => self.submit(state, stream, posts),
            Err(error) => Err(error.into()),
        };
        if let Err(refusal) = posted {
            match refusal.torn {
                true => self.posted(state, stream, posts, mark, Some(&refusal.error)),
                false => self.restore(state, stream, posts),
            }
            return Err(refusal.error);
        }
        self.posted(state, stream, posts, mark, None);
        for receive in [true, false] {
            for member in posts.members.iter().filter(|member| member.alone) {
                if receives(state, member) == receive
                    && let Err(e) = self.post_known(state, member.key)
                {
                    unbind(state, member.key);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Prepares the puts of the requests of this rank to itself, so that they find room when they
    /// are posted. The receives first: a large send holds the stream until its receive is posted.
    fn bind_alone(&self, state: &mut State, stream: &Stream, posts: &mut Posts) -> Result<()> {
        for receive in [true, false] {
            for member in posts.members.iter().filter(|member| member.alone) {
                if receives(state, member) != receive {
                    continue;
                }
                let entry = known(&mut state.requests, member.key)?;
                entry.poster.stream = None;
                let at = LaneId {
                    rank: entry.peer,
                    lane: member.lane,
                };
                self.bind(state, member.key, member.lane, stream)?;
                let puts = known(&mut state.requests, member.key)?.newest_puts();
                posts.made.extend(puts.rev().map(|put| (at, put)));
            }
        }
        Ok(())
    }

    /// Collects the requests, and takes back the puts of those that were prepared for the stream:
    /// the order of the puts is that of this call.
    fn admit(
        &self,
        state: &mut State,
        mut keys: impl Iterator<Item = RequestKey>,
        stream: &Stream,
        posts: &mut Posts,
    ) -> Result<()> {
        let on = On::Stream(stream, None);
        keys.try_for_each(|key| {
            let own = self.lane_of(state, &on);
            let entry = unposted(&mut state.requests, key)?;
            let (rank, bound) = (entry.peer, is_bound(entry, stream)?);
            if bound && posts.members.iter().any(|member| member.key == key) {
                let what = "the request is named twice";
                return Err(Error::new(POST, Kind::Busy, what));
            }
            let need = Need::of(entry);
            let mut lane = match bound {
                true => entry.poster.lane,
                false => own,
            };
            let (mut alone, numbered) = (false, !matches!(rank, ANY_RANK | NULL_RANK));
            if numbered {
                if !bound {
                    lane = state.open_lane(rank, lane, need);
                }
                alone = self.paths.to(rank) == Path::Local;
            }
            let entry = known(&mut state.requests, key)?;
            entry.poster = Poster {
                lane,
                stream: Some(stream.downgrade()),
            };
            posts.members.push(Member {
                key,
                lane,
                bound,
                taken: false,
                last: None,
                behind: false,
                alone,
            });
            Ok(())
        })?;
        take_back_all(state, posts)
    }

    /// Enqueues what was decided.
    fn submit(&self, state: &mut State, stream: &Stream, posts: &Posts) -> Result<(), Refusal> {
        let mut plan: Plan<'_> = std::mem::take(&mut state.plan).emptied();
        let stages = [
            (&posts.front, &posts.short, false),
            (&posts.ready, &posts.back, true),
        ];
        for ((before, behind, large), stamps) in stages.into_iter().zip(&posts.stamps) {
            before.iter().for_each(|part| part.add_to(&mut plan));
            let gathers = gathering(&state.requests, posts, large).count();
            let own = stamps.iter().filter(|params| params.chunks > 1).count();
            let shared = (stamps.len() - own).div_ceil(STAMPS);
            if !behind.is_empty() {
                plan.kernels_here((gathers + own + shared) as u32);
            }
            behind.iter().for_each(|part| part.add_to(&mut plan));
        }
        let State {
            peers, requests, ..
        } = &mut *state;
        // The first position is missing if no send needs it.
        let first = usize::from(posts.short.is_empty());
        let launched = Cell::new(false);
        let launch = |stream: &Stream, at| {
            launched.set(true);
            self.complete_all(requests, stream, posts, first + at)
        };
        let alone = posts.members.iter().filter(|member| member.alone).count();
        let own = posts.made.iter().filter(|(at, _)| at.rank == self.rank);
        /// Submissions of a request of this rank to itself, at most, without its puts.
        const ALONE: usize = 5;
        let room = ALONE * alone + own.count();
        let stagings = || {
            let members = posts.members.iter();
            members.filter_map(|member| {
                let (_, staging) = gathered(requests, member)?;
                Some((member, staging))
            })
        };
        let checked = stagings()
            .try_for_each(|(member, staging)| {
                let checked = check_stray(staging, Some(stream.id()));
                checked.map_err(|e| match requests.get(member.key) {
                    Some(entry) => e.of_peer(entry.peer),
                    None => e,
                })
            })
            .and_then(|()| Ok(stream.check_room(room as u32)?));
        let posted = match checked {
            Ok(()) => plan.post(stream, peers, Some(&launch)),
            Err(e) => Err(e.into()),
        };
        if posted.is_err() && launched.get() {
            // The kernels of some may not be launched.
            let behind = stagings().filter(|(member, _)| member.behind);
            behind.for_each(|(_, staging)| staging.set_stray(stream.id()));
        }
        state.plan = plan.emptied();
        posted
    }

    /// Launches the kernels of short sends (0) or of large ones (1): they gather pieces, and complete
    /// the work requests.
    fn complete_all(
        &self,
        requests: &Table,
        stream: &Stream,
        posts: &Posts,
        stage: usize,
    ) -> Result<()> {
        for (pieces, staging) in gathering(requests, posts, stage == 1) {
            self.gather_on(stream, POST, pieces, staging)?;
        }
        self.stamp_all(stream, &posts.stamps[stage])
    }

    /// Changes the states of the requests that are posted. After an error `e` only the first list
    /// is: sends with parts behind it fail.
    fn posted(
        &self,
        state: &mut State,
        stream: &Stream,
        posts: &Posts,
        mark: Option<Mark>,
        e: Option<&Error>,
    ) {
        // The stream waits for all of them in one place.
        let order = state.requests.next_order();
        for member in posts.members.iter().filter(|member| !member.alone) {
            let key = member.key;
            if let Some(e) = e
                && member.behind
            {
                self.fail_partly_posted(state, key, e);
                continue;
            }
            let Some(entry) = state.requests.get_mut(key) else {
                continue;
            };
            entry.order = order;
            let rank = entry.peer;
            if rank == NULL_RANK {
                self.finish(state, key, Status::SUCCESS, 0);
                continue;
            }
            let Entry { common, operation } = entry;
            match operation {
                Operation::Send(send) => {
                    let done = SendState::Done(Status::SUCCESS);
                    send.state = member.last.map_or(done, SendState::InFlight);
                }
                Operation::Receive(receive) => {
                    receive.reached = mark;
                    if mark.is_none() {
                        // Without memory for the word of the stream, it is marked when it is asked for.
                        let _ = state.reached.note_receive(&stream.downgrade());
                    }
                    receive.state = match rank {
                        ANY_RANK => ReceiveState::Unmatched,
                        _ => ReceiveState::Posted,
                    };
                    let put = member.last.map(|put| (common.poster.lane, put));
                    if rank == ANY_RANK {
                        state.matcher.add(key);
                    } else if let (Some(put), Ok((common, _, channel, _))) =
                        (put, state.incoming(key))
                    {
                        *channel.ready_put(common.number) = Some(put);
                    }
                }
                Operation::Transfer(transfer) => transfer.post(common.poster.lane, member.last),
                // Never prepared.
                Operation::Signal(_)
                | Operation::Step(_)
                | Operation::Collective(_)
                | Operation::ZeroSm(_) => {}
            }
        }
        self.match_any(state);
    }
}

impl Part {
    fn add_to<'a>(&'a self, plan: &mut Plan<'a>) {
        match self {
            Part::Wait(word, value) => plan.wait(word, *value, false),
            Part::Store(word, value) => plan.store(word, *value),
            Part::Put(at, put) => plan.puts(*at, std::iter::once(*put)),
            Part::Done(at, put) => plan.done(*at, *put),
            Part::Next => plan.next(),
        }
    }
}

/// Whether nothing is in flight that would return room to a call.
fn is_quiet(state: &mut State, posts: &Posts, stream: &Stream) -> bool {
    let mut members = posts.members.iter();
    // Prepared requests of a call of another thread take room until it posts them.
    !state.pairs.of_others()
        && stream.is_idle().unwrap_or(false)
        && members.all(|member| {
            let rank = state.requests.get(member.key).map(|entry| entry.peer);
            let peer = rank.and_then(|rank| state.peers.get_mut(rank));
            peer.is_none_or(|peer| peer.link.busy_lanes() == 0)
        })
}

/// Whether the stream may wait for a peer or for another stream at a request of the call.
fn any_waits(state: &mut State, stream: &Stream, posts: &Posts) -> Result<bool> {
    for member in &posts.members {
        let entry = known(&mut state.requests, member.key)?;
        let (rank, tag, number, large) = (entry.peer, entry.tag, entry.number, entry.large);
        if matches!(rank, ANY_RANK | NULL_RANK) {
            continue;
        }
        let waits = match (entry.is_receive(), entry.send().is_some()) {
            (true, _) => {
                large && {
                    let channel = state.receiving(rank, tag);
                    channel.is_some_and(|c| c.blocked_by(number, stream.id()).is_some())
                }
            }
            (_, true) => may_wait(state, member.key)?,
            // A put may follow those of another stream.
            _ => true,
        };
        if waits {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the stream stores a mark for a receive. `waits`: the call may wait for a party. The CPU matches
/// a receive from any rank when the stream has reached it.
fn is_marked(state: &State, member: &Member, waits: bool) -> bool {
    let Some(entry) = state.requests.get(member.key).filter(|e| e.is_receive()) else {
        return false;
    };
    let own = || {
        state
            .receiving(entry.peer, entry.tag)
            .is_some_and(|c| c.side.taken_by_poster)
    };
    let marks = || state.reached.marks_receives() && (waits || !own());
    entry.peer == ANY_RANK || entry.peer != NULL_RANK && marks()
}

/// The pieces that a kernel gathers, and the memory that it packs them into.
fn gathered<'r>(requests: &'r Table, member: &Member) -> Option<(&'r Strided, &'r Memory)> {
    let entry = requests.get(member.key)?;
    staged(entry.send()?.packed.as_deref(), &entry.common)
}

/// Those of the large sends of a call, or of the others.
fn gathering<'r>(
    requests: &'r Table,
    posts: &'r Posts,
    large: bool,
) -> impl Iterator<Item = (&'r Strided, &'r Memory)> {
    let behind = posts.members.iter().filter(|member| member.behind);
    let of = move |member: &&Member| {
        let entry = requests.get(member.key);
        entry.is_some_and(|entry| entry.large == large)
    };
    behind
        .filter(of)
        .filter_map(|member| gathered(requests, member))
}

pub(super) fn receives(state: &State, member: &Member) -> bool {
    state
        .requests
        .get(member.key)
        .is_some_and(Entry::is_receive)
}
