//! [`TeamHandle`]: the handle's part of a team, with the layout of the memory, and the puts of a
//! call.

use std::mem;
use std::sync::Arc;

use gdsync::Status;
use gdsync::gpu::{MemoryKind, Word64};

use super::call::CollectiveCall;
use crate::error::{Error, Kind, Result};
use crate::path::{Batch, Piece, Rights};
use crate::plan::{LaneId, Plan, Refusal};
use crate::region::Memory;
use crate::request::collective::{Team, TeamFailure, parity};
use crate::two_sided::engine::Engine;
use crate::two_sided::{Need, On, State, not_connected};
use crate::window::Targets;
use crate::wire::collective::MOST_LEN;

const MAKE: &str = "make collectives";
/// Length of a word in bytes.
pub(super) const WORD: usize = 8;
/// Alignment of a slot.
const ALIGN: usize = 16;

/// The layout of the memory of a team, equal on all ranks: words, slots for the contributions of
/// the ranks, and this rank's contributions to each rank; each for two parities and all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    ranks: usize,
    /// Bytes of a slot.
    pub room: usize,
}

impl Layout {
    /// # Errors
    /// `Invalid` if a contribution of `most` bytes is too long, or for too much memory.
    fn new(ranks: u32, most: usize) -> Result<Layout> {
        let what = |what: &str| Error::new(MAKE, Kind::Invalid, what);
        if most > MOST_LEN {
            let what = what("contributions are too long; send messages instead");
            return Err(what.with_limit(MOST_LEN, "bytes"));
        }
        let (ranks, room) = (ranks as usize, most.next_multiple_of(ALIGN).max(ALIGN));
        let slots = ranks.checked_mul(room).and_then(|n| n.checked_mul(4));
        match slots.and_then(|slots| slots.checked_add(2 * WORD * ranks + ALIGN)) {
            Some(_) => Ok(Layout { ranks, room }),
            None => Err(what("the memory of the ranks exceeds the address space")),
        }
    }

    /// The offset of the word of `rank`.
    pub fn word(&self, parity: usize, rank: u32) -> usize {
        WORD * (parity * self.ranks + rank as usize)
    }

    /// The offset of the slot of `rank`.
    pub fn slot(&self, parity: usize, rank: u32) -> usize {
        let slots = (2 * WORD * self.ranks).next_multiple_of(ALIGN);
        slots + (parity * self.ranks + rank as usize) * self.room
    }

    /// The offset of the contributions of this rank, if it has another one for each rank.
    pub fn personal(&self, parity: usize) -> usize {
        self.slot(2 + parity, 0)
    }

    fn len(&self) -> usize {
        self.personal(2)
    }
}

/// The handle's part of a team: what this rank needs to post its next call.
pub(crate) struct TeamHandle {
    pub team: Arc<Team>,
    pub(super) targets: Targets,
    pub(super) layout: Layout,
    /// The greatest length of a contribution in bytes.
    pub most: usize,
    /// The number of the last call.
    pub(super) last: u64,
    /// The stream of the last call; `None`: the CPU.
    pub(super) stream: Option<u64>,
    /// By rank: the lane of the call that is posted.
    pub(super) lanes: Vec<u8>,
}

impl TeamHandle {
    /// Makes the team with all ranks. A contribution has at most `most` bytes.
    pub fn new(engine: &Engine, most: usize) -> Result<TeamHandle> {
        let (me, size) = (engine.rank, engine.size);
        // No team lives for 2^64 calls: only the numbers in the words wrap.
        let start = u64::from(engine.config.start as u32);
        let layout = Layout::new(size, most)?;
        let memory = Memory::new(engine.paths.pinned(layout.len(), Rights::All)?);
        let own = engine.gpu.alloc(MemoryKind::Pinned, 4 * WORD)?;
        let targets = Targets::new(&engine.paths, size, &memory)?;
        let word = |parity, rank| Ok(memory.region().word64(layout.word(parity, rank))?);
        let words = |parity| (0..size).map(|rank| word(parity, rank)).collect();
        let words: [Result<Vec<Word64>>; 2] = [words(0), words(1)];
        let [even, odd] = words;
        let words = [even?, odd?];
        let word = |i: usize| own.word64(i * WORD);
        let mine = [word(0)?, word(1)?, word(2)?, word(3)?];
        let mut team = None;
        let what = ["object", "Context::collectives"];
        engine.join_window(&targets, what, |state, id| {
            let made = Arc::new(Team::new((id, me, start), &memory, words, mine)?);
            state.teams.retain(|_, team| team.strong_count() > 0);
            state.teams.insert(id, Arc::downgrade(&made));
            team = Some(made);
            Ok(())
        })?;
        let other = |rank: &u32| {
            targets
                .of(MAKE, *rank)
                .is_ok_and(|t| t.len() != layout.len() as u64)
        };
        if let Some(rank) = (0..size).find(other) {
            let what = format!(
                "rank {rank} has made another object, or one with another greatest length; call \
                 Context::collectives with the same length on all ranks"
            );
            return Err(Error::new(MAKE, Kind::Protocol, what)
                .with_rank(rank)
                .with_limit(most, "bytes"));
        }
        let team =
            team.ok_or_else(|| Error::new(MAKE, Kind::Closed, "the object has no number"))?;
        Ok(TeamHandle {
            team,
            targets,
            layout,
            most,
            last: start,
            stream: None,
            lanes: vec![0; size as usize],
        })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.team.memory
    }

    /// The number of the next call.
    ///
    /// # Errors
    /// The failure of an earlier call.
    pub(super) fn next(&self, call: &CollectiveCall<'_>, engine: &Engine) -> Result<u64> {
        call.check(engine.rank, engine.size, self.most)?;
        match self.team.failure() {
            Some(failure) => Err(failure.error(call.name())),
            None => Ok(self.last + 1),
        }
    }

    /// The offset of the contribution of this rank to `rank` in call `number`.
    pub(super) fn source(&self, call: &CollectiveCall<'_>, number: u64, rank: u32) -> usize {
        let (me, parity) = (self.team.me, parity(number));
        match call.is_personal() {
            true => self.layout.personal(parity) + call.to(me, rank).1,
            false => self.layout.slot(parity, me),
        }
    }

    /// Where the contributions of this rank to call `number` begin.
    pub(super) fn sources(&self, call: &CollectiveCall<'_>, number: u64) -> usize {
        self.source(call, number, 0)
    }

    /// The offset of the contribution of `rank` to this rank in call `number`.
    pub fn slot(&self, call: &CollectiveCall<'_>, number: u64, rank: u32) -> usize {
        match rank == self.team.me {
            true => self.source(call, number, rank),
            false => self.layout.slot(parity(number), rank),
        }
    }

    /// Opens the lanes of `on` to all ranks.
    ///
    /// # Errors
    /// As [`Engine::ensure`]; the team fails if a rank was given up.
    pub(super) fn open(
        &mut self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        on: &On<'_>,
        number: u64,
    ) -> Result<()> {
        for rank in others(engine) {
            match engine.ensure(rank, on, Need::Lanes) {
                Ok((_, lane)) => self.lanes[rank as usize] = lane,
                Err(e) => return Err(self.refused(engine, call, number, e)),
            }
        }
        Ok(())
    }

    /// The error of a call of which nothing is posted. If a rank was given up, the team fails, so
    /// that the other ranks do not wait for this one.
    #[cold]
    pub(super) fn refused(
        &self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        number: u64,
        e: Error,
    ) -> Error {
        let state = &mut *engine.lock();
        let lost = others(engine).find_map(|rank| Some((rank, state.given_up(rank)?)));
        let failed = match (e.rank(), e.kind()) {
            (Some(rank), Kind::PeerFailed(status)) => Some((rank, status)),
            _ => None,
        };
        if let Some(lost) = lost.or(failed) {
            engine.lose_rank(state, &self.team, number, lost);
        }
        match self.team.failure() {
            Some(failure) => failure.error(call.name()),
            None => e,
        }
    }

    /// Fails the team after only a part of a call was posted.
    #[cold]
    fn torn(&self, engine: &Engine, state: &mut State, number: u64, e: &Error) {
        let failure = TeamFailure {
            call: number,
            status: Status::CLOSED,
            rank: engine.rank,
            text: format!("only a part of call {number} of this rank was posted: {e}"),
        };
        engine.fail_team(state, &self.team, failure, true);
        self.team.release_at_once(number);
    }

    /// Prepares the puts of call `number` to all ranks, and calls `post`, which posts them. If only
    /// a part is posted, the team fails.
    pub(super) fn with_puts<'a>(
        &'a self,
        engine: &Engine,
        state: &mut State,
        (call, number): (&CollectiveCall<'_>, u64),
        post: impl FnOnce(&mut State, &mut Plan<'a>) -> Result<(), Refusal>,
    ) -> Result<()> {
        let mut plan = mem::take(&mut state.plan).emptied();
        let prepared = self.prepare_all(engine, state, (call, number), &mut plan);
        let posted = prepared.map_err(Refusal::from);
        let posted = posted.and_then(|()| post(state, &mut plan));
        if posted.is_err() {
            plan.undo(&mut state.peers);
        }
        state.plan = plan.emptied();
        if posted.is_ok() {
            for rank in others(engine) {
                let counts = state.counts(Some(rank));
                counts.collectives += 1;
                counts.exchanged(call.between(engine.rank, rank));
            }
        }
        posted.map_err(|Refusal { error, torn }| {
            if torn {
                self.torn(engine, state, number, &error);
            }
            error
        })
    }

    fn prepare_all(
        &self,
        engine: &Engine,
        state: &mut State,
        (call, number): (&CollectiveCall<'_>, u64),
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        if let Some(failure) = self.team.failure() {
            // An attempt before this one has posted a part.
            return Err(failure.error(call.name()));
        }
        for rank in others(engine) {
            let lane = self.lanes[rank as usize];
            let none = || not_connected(call.name(), rank);
            let peer = state.peers.get_mut(rank).ok_or_else(none)?;
            if !peer.can_post(lane, Need::Lanes) {
                return Err(peer.error(call.name()));
            }
            let mut batch = Batch::short(peer.link.lane(lane).ok_or_else(none)?);
            let prepared = self.prepare(&mut batch, call, number, rank);
            prepared.map_err(|e| e.of_peer(rank))?;
            plan.puts(LaneId { rank, lane }, batch.all());
        }
        Ok(())
    }

    /// Prepares the puts of call `number` to `rank`: the contribution, and the word behind it.
    fn prepare(
        &self,
        batch: &mut Batch<'_, 3>,
        call: &CollectiveCall<'_>,
        number: u64,
        rank: u32,
    ) -> Result<()> {
        let (me, parity) = (self.team.me, parity(number));
        let target = self.targets.of(call.name(), rank)?;
        let span = |offset: usize, len: usize, word: bool| {
            target.span(call.name(), rank, (offset as u64, len), word)
        };
        let slot = span(self.layout.slot(parity, me), call.to(me, rank).0, false)?;
        let word = span(self.layout.word(parity, me), WORD, true)?;
        if let Some(piece) = self.piece(call, number, rank) {
            batch.put([piece].into_iter(), slot)?;
        }
        batch.announce(&call.word_to(number, rank).to_le_bytes(), word)?;
        batch.reach()
    }

    /// The contribution to `rank` as the source of a put; `None` if it is empty.
    fn piece(&self, call: &CollectiveCall<'_>, number: u64, rank: u32) -> Option<Piece<'_>> {
        let (len, _) = call.to(self.team.me, rank);
        let keys = self.memory().keys();
        (len > 0).then(|| keys.piece(self.source(call, number, rank), len))
    }
}

/// The other ranks.
pub(super) fn others(engine: &Engine) -> impl Iterator<Item = u32> {
    let me = engine.rank;
    (0..engine.size).filter(move |rank| *rank != me)
}
