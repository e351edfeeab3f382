//! [`Plan`]: collects what one call enqueues on a stream, and lowers it once.
//!
//! A call collects, in order, waits for words, stores, prepared puts to any number of peers, waits
//! for the completion of puts, and the positions of kernels, whose blocks share the tasks of the call.
//! (A call of more tasks than a launch takes has several launches at a position.) Most plans have at
//! most one position and lower to {list, kernel, list}. Each list is one submission over all queue
//! pairs that it names ([`crate::path::Lists`]).
//!
//! If a part is refused, the plan aborts all puts that it has not posted, the newest first. The order of
//! the puts is checked before a kernel is launched in front of them, and the room of the stream as well.
//!
//! Its users are the calls that post to several peers at once: `neighbourhood`, `collective`, and
//! `two_sided::{post_all, wait_all}`. State (`two_sided::state`) keeps the buffers.

#[cfg(test)]
mod tests;

use gdsync::Stream;
use gdsync::gpu::{Condition, Word64};

use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::path::{Item, Lane, Lists, Put, emptied, submissions, while_held};

/// Names a lane: its peer, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId {
    pub rank: u32,
    pub lane: u8,
}

/// The lanes of a rank to its peers.
pub(crate) trait PeerLanes {
    fn lane(&mut self, at: LaneId) -> Option<&mut Lane>;

    /// These lanes, each once; the names are sorted and differ.
    fn each<'l>(&'l mut self, used: &'l [LaneId]) -> impl Iterator<Item = &'l mut Lane>;
}

/// The kernels of a plan: enqueues those of a position, which are counted from 0.
pub(crate) type Launch<'k> = &'k dyn Fn(&Stream, usize) -> Result<()>;

/// A plan that was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub error: Error,
    /// A part is enqueued. Otherwise nothing is, except a kernel that no list precedes.
    pub torn: bool,
}

impl From<Error> for Refusal {
    /// Nothing is enqueued.
    fn from(error: Error) -> Refusal {
        Refusal { error, torn: false }
    }
}

/// What one call enqueues. Its buffers are kept: [`Plan::emptied`] passes them to the next call.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    items: Vec<Item<'a>>,
    /// The positions of kernels: the number of items before each, and its submissions, at most.
    kernels: Vec<(usize, u32)>,
    /// The puts, in the order in which they were prepared.
    made: Vec<(LaneId, Put)>,
    /// The lanes of the puts.
    used: Vec<LaneId>,
    lists: Lists,
}

impl<'a> Plan<'a> {
    /// An empty plan for another call, with the same buffers.
    pub fn emptied<'b>(self) -> Plan<'b> {
        let Plan {
            items,
            mut kernels,
            mut made,
            mut used,
            lists,
        } = self;
        kernels.clear();
        made.clear();
        used.clear();
        Plan {
            items: emptied(items),
            kernels,
            made,
            used,
            lists,
        }
    }

    /// Appends a wait until `word` is cyclically at least `value`; `flush`: NIC writes to the GPU
    /// are visible after it.
    pub fn wait(&mut self, word: &'a Word64, value: u64, flush: bool) {
        self.items.push(Item::Wait {
            word,
            condition: Condition::Geq,
            value,
            flush,
        });
    }

    /// Appends a store.
    pub fn store(&mut self, word: &'a Word64, value: u64) {
        self.items.push(Item::Store { word, value });
    }

    /// Appends puts that were prepared on a lane, after all that were appended for this lane.
    pub fn puts(&mut self, at: LaneId, puts: impl Iterator<Item = Put>) {
        self.note(at);
        for put in puts {
            self.items.push(Item::Put(put));
            self.made.push((at, put));
        }
    }

    /// Appends a wait until a put is done that an earlier call, or this one, has posted.
    pub fn done(&mut self, at: LaneId, put: Put) {
        self.done_flushed(at, put, false);
    }

    /// As [`Plan::done`]; `flush`: NIC writes to the GPU are visible after it.
    pub fn done_flushed(&mut self, at: LaneId, put: Put, flush: bool) {
        self.note(at);
        self.items.push(Item::Done(put, flush));
    }

    /// Puts the copies that follow behind those before: copies without other items in between have
    /// an order only up to the word of each peer.
    pub fn next(&mut self) {
        self.items.push(Item::Next);
    }

    /// Declares the word and the value that show that the stream has passed all waits so far. Work
    /// behind them stores the value.
    pub fn passed_by(&mut self, word: &'a Word64, value: u64) {
        self.items.push(Item::PassedBy { word, value });
    }

    /// Puts a kernel here.
    pub fn kernel_here(&mut self) {
        self.kernels_here(1);
    }

    /// Puts a kernel here if there is one.
    pub fn kernel_here_if(&mut self, any: bool) {
        if any {
            self.kernel_here();
        }
    }

    /// Puts kernels here that take at most this many submissions.
    pub fn kernels_here(&mut self, launches: u32) {
        self.kernels.push((self.items.len(), launches));
    }

    /// The submissions of the plan on `stream`, at most.
    pub fn room(&self, stream: &Stream) -> u32 {
        let list = |items: &[Item<'_>]| submissions(items, stream.gpu().caps());
        let mut from = 0;
        let mut room = 0;
        for (at, launches) in &self.kernels {
            room += list(&self.items[from..*at]) + launches;
            from = *at;
        }
        room + list(&self.items[from..])
    }

    fn note(&mut self, at: LaneId) {
        if self.used.last() != Some(&at) {
            self.used.push(at);
        }
    }

    /// Aborts all puts that are not posted, the newest first, and empties the plan.
    #[cold]
    pub fn undo(&mut self, lanes: &mut impl PeerLanes) {
        let forgotten = usize::from(on(Mutant::ForgottenPut));
        for (at, put) in self.made.drain(..).skip(forgotten).rev() {
            if let Some(lane) = lanes.lane(at) {
                // A put of a list that was posted cannot be aborted.
                let _ = lane.abort(put);
            }
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.items.clear();
        self.made.clear();
        self.used.clear();
        self.kernels.clear();
    }

    /// Checks that no put would be refused because an earlier one of its lane is neither posted nor aborted.
    pub fn check_order(&mut self, lanes: &mut impl PeerLanes) -> Result<()> {
        let lane_of = |(at, _): &(LaneId, Put)| *at;
        if !self.made.is_sorted_by_key(lane_of) {
            // Stable: those of a lane stay in order.
            self.made.sort_by_key(lane_of);
        }
        let mut of_lanes = self.made.chunk_by(|a, b| a.0 == b.0);
        of_lanes.try_for_each(|puts| match lanes.lane(puts[0].0) {
            Some(lane) => lane.check_order(puts.iter().map(|(_, put)| *put)),
            None => Ok(()),
        })
    }

    /// Enqueues the plan on `stream`, and empties it. `kernel` is called for each position.
    ///
    /// # Errors
    /// All puts that were not posted are aborted. An order in which puts cannot be posted is found before anything
    /// is enqueued.
    pub fn post(
        &mut self,
        stream: &Stream,
        lanes: &mut impl PeerLanes,
        kernel: Option<Launch<'_>>,
    ) -> Result<(), Refusal> {
        self.used.sort_unstable();
        self.used.dedup();
        // A kernel in front of puts runs even if they are refused, and writes to memory that is used for others by
        // then.
        let in_front = self.kernels.iter().any(|(at, _)| *at < self.items.len());
        let checked = match in_front {
            true => self.check_order(lanes).map_err(Refusal::from),
            false => Ok(()),
        };
        let posted = checked.and_then(|()| self.lower(stream, lanes, kernel));
        match posted {
            Ok(()) => self.clear(),
            Err(_) => self.undo(lanes),
        }
        posted
    }

    /// Posts the puts of a plan without other items by the CPU, and empties it. A put whose lane has
    /// failed is left out: it ends as the lane's other puts.
    ///
    /// # Errors
    /// All puts that were not posted are aborted.
    pub fn post_by_cpu(&mut self, lanes: &mut impl PeerLanes) -> Result<(), Refusal> {
        debug_assert!(self.kernels.is_empty() && self.items.len() == self.made.len());
        let mut torn = false;
        for (at, put) in &self.made {
            let Some(lane) = lanes.lane(*at) else {
                continue;
            };
            match lane.post([*put].into_iter()) {
                Ok(()) => torn = true,
                Err(_) if lane.error().is_some() => {}
                Err(error) => {
                    self.undo(lanes);
                    return Err(Refusal { error, torn });
                }
            }
        }
        self.clear();
        Ok(())
    }

    fn lower(
        &mut self,
        stream: &Stream,
        lanes: &mut impl PeerLanes,
        kernel: Option<Launch<'_>>,
    ) -> Result<(), Refusal> {
        let room = self.room(stream);
        let Plan {
            items,
            kernels,
            used,
            lists,
            ..
        } = self;
        let mut list = |items: &[Item<'a>]| lists.post(stream, lanes.each(used), items);
        let refused = |error, torn| Refusal { error, torn };
        let Some(kernel) = kernel.filter(|_| !kernels.is_empty()) else {
            let waits = room > 1 && items.iter().any(Item::waits);
            let enqueued = while_held(stream, waits, || {
                check_room(stream, room)?;
                list(items)
            });
            return Ok(enqueued?);
        };
        if let ([], [_]) = (&items[..], &kernels[..]) {
            check_room(stream, room)?;
            return Ok(kernel(stream, 0)?);
        }
        // A later list is not refused because other streams wait. The room of a stream is limited
        // only while it counts as waiting, as it will behind the first list.
        let held = stream.hold_wait(|| {
            check_room(stream, room)?;
            let mut from = 0;
            for (index, (at, _)) in kernels.iter().enumerate() {
                list(&items[from..*at]).map_err(|e| refused(e, from > 0))?;
                kernel(stream, index).map_err(|e| refused(e, *at > 0))?;
                from = *at;
            }
            list(&items[from..]).map_err(|e| refused(e, from > 0))
        });
        held.map_err(Error::from)?
    }
}

/// Checks that a stream can take `n` submissions now, so that the call is neither refused in the
/// middle nor blocked.
pub(crate) fn check_room(stream: &Stream, n: u32) -> Result<()> {
    stream.check_submissions(n).map_err(|e| match e.limit() {
        Some(limit) if u64::from(n) > limit => {
            let what = format!(
                "the call takes up to {n} submissions, more than {stream:?} can hold; name fewer \
                 requests in a call"
            );
            Error::new("enqueue", Kind::Invalid, what).with_limit(limit, "submissions")
        }
        _ => e.into(),
    })
}
