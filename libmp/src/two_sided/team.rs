//! Teams of collective calls: how the calls of streams end, how a team fails, and how the other
//! ranks are informed. `collective` posts the calls.

use std::sync::{Arc, Weak};

use gds_step::Time;
use gdsync::Status;

use super::engine::Engine;
use super::liveness::Life;
use super::peer::Peer;
use super::state::State;
use super::texts::join;
use crate::error::{Error, Kind, Result, time};
use crate::request::collective::{Team, TeamFailure};
use crate::request::entry::Entry;
use crate::request::table::RequestKey;
use crate::wire::collective::Called;
use crate::wire::control::Control;

impl Engine {
    /// Ends a stream's collective call when the stream has passed it. If a rank is given up before
    /// it has joined the call, the team fails; the streams of a team that failed are released.
    pub(super) fn advance_collective(&self, state: &mut State, key: RequestKey) -> bool {
        let Some((team, number)) = waiting(state.requests.get(key)) else {
            return false;
        };
        if team.has_passed(number) {
            self.find_fault(state, &team);
            if team.has_fault(number) {
                self.end_earlier(state, &team, number);
            }
            self.end_collective(state, key, &team, number);
            return true;
        }
        if team.failure().is_none() {
            let mut absent = team.absent(number).peekable();
            if let (Some(entry), Some(rank)) = (state.requests.get_mut(key), absent.peek()) {
                entry.peer = *rank;
            }
            let lost = absent.find_map(|rank| Some((rank, state.given_up(rank)?)));
            let Some((rank, status)) = lost else {
                return false;
            };
            self.lose_rank(state, &team, number, (rank, status));
        }
        if let Some(failure) = team.failure() {
            // Stored before the stream continues.
            self.set_error(failure.status);
            team.release(number);
        }
        false
    }

    /// Ends a stream's call that the stream has passed.
    fn end_collective(&self, state: &mut State, key: RequestKey, team: &Arc<Team>, number: u64) {
        // A call that was released has a fault, unless all words had arrived before.
        let failure = team.failure().filter(|_| team.has_fault(number));
        let Some(entry) = state.requests.get_mut(key) else {
            return;
        };
        entry.peer = failure.map_or(entry.peer, |failure| failure.rank);
        let (status, len) = match failure {
            Some(failure) => (failure.status, 0),
            None => (Status::SUCCESS, entry.len),
        };
        self.finish(state, key, status, len);
        if Arc::strong_count(team) == 1 {
            // Its memory is released without the lock.
            state.trash.memory.push(team.memory.clone());
        }
    }

    /// Ends the calls before call `number`, so that the first one is the first failure.
    fn end_earlier(&self, state: &mut State, team: &Arc<Team>, number: u64) {
        let open = state.requests.iter().filter_map(|(key, entry)| {
            let this = entry
                .collective()
                .is_some_and(|open| Arc::ptr_eq(&open.team, team));
            (this && entry.number < number).then_some((entry.number, key))
        });
        let mut open: Vec<(u64, RequestKey)> = open.collect();
        open.sort_unstable();
        for (number, key) in open {
            self.end_collective(state, key, team, number);
        }
    }

    /// Fails the team if a kernel has found that a rank has called something else.
    pub(crate) fn find_fault(&self, state: &mut State, team: &Arc<Team>) {
        let [call, rank, word] = team.fault.each_ref().map(|word| word.load().unwrap_or(0));
        if call != 0 && team.failure().is_none() {
            self.mismatch(state, team, call, rank as u32, word);
        }
    }

    /// Fails the team because a rank has another call under the number of this rank's call.
    pub(crate) fn mismatch(
        &self,
        state: &mut State,
        team: &Arc<Team>,
        call: u64,
        rank: u32,
        word: u64,
    ) {
        let called = Called(word);
        let text = format!(
            "call {call} of rank {rank} is another one: {called}; make the same calls, with the \
             same lengths, in the same order on all ranks"
        );
        let status = Status::BAD_RESPONSE;
        let failure = TeamFailure {
            call,
            status,
            rank,
            text,
        };
        self.fail_team(state, team, failure, true);
    }

    /// Fails the team because a rank was given up that has not joined call `number`.
    pub(crate) fn lose_rank(
        &self,
        state: &mut State,
        team: &Arc<Team>,
        number: u64,
        (rank, status): (u32, Status),
    ) {
        let failure = state.peers.get(rank).and_then(Peer::failure);
        let text = failure.map_or_else(String::new, |failure| failure.of_others(rank));
        let failure = TeamFailure {
            call: team.first_open(number),
            status,
            rank,
            text,
        };
        self.fail_team(state, team, failure, true);
    }

    /// Asks the ranks that have not joined call `number` since `since` whether they are alive.
    pub(crate) fn probe_absent(&self, state: &mut State, team: &Team, number: u64, since: Time) {
        let now = self.host().now();
        for rank in team.absent(number) {
            self.probe(state, rank, since, now);
        }
    }

    /// The ranks that have not joined call `number` since `since`, first those that have not
    /// answered: a rank that is alive may itself wait for them, in an earlier call.
    pub(crate) fn absent_ranks(
        &self,
        state: &State,
        team: &Team,
        number: u64,
        since: Time,
    ) -> Vec<u32> {
        let mut absent: Vec<u32> = team.absent(number).collect();
        let alive = |rank: &u32| self.life(state.peers.get(*rank), Some(since)) == Life::Alive;
        absent.sort_by_cached_key(alive);
        absent
    }

    /// As [`Engine::probe_absent`], for a stream's call. `false`: the request is none.
    pub(super) fn probe_team(&self, state: &mut State, key: RequestKey, since: Time) -> bool {
        let open = waiting(state.requests.get(key));
        if let Some((team, number)) = &open {
            self.probe_absent(state, team, *number, since);
        }
        open.is_some()
    }

    /// Fails the team because ranks have not joined call `number`, for which this rank has waited
    /// since `since`: `limit`, with where it is set.
    pub(crate) fn time_out_team(
        &self,
        state: &mut State,
        team: &Arc<Team>,
        (number, since): (u64, Time),
        limit: &str,
    ) {
        let absent = self.absent_ranks(state, team, number, since);
        let Some(rank) = absent.first().copied() else {
            return;
        };
        let text = format!(
            "rank {} did not join call {number} within {limit}; make the same calls in the same \
             order on all ranks",
            join(&absent)
        );
        let failure = TeamFailure {
            call: team.first_open(number),
            status: Status::TIMEOUT,
            rank,
            text,
        };
        self.fail_team(state, team, failure, true);
    }

    /// Fails a team: its calls end with an error on this rank, and, with `inform`, on the others.
    pub(crate) fn fail_team(
        &self,
        state: &mut State,
        team: &Arc<Team>,
        failure: TeamFailure,
        inform: bool,
    ) {
        let (me, call, rank) = (self.rank, failure.call, failure.rank);
        let (status, text) = (failure.status, failure.text.clone());
        if !team.fail(failure) {
            return;
        }
        tracing::warn!(target: "mp", "rank {me}: {team:?} cannot be used any more: {text}");
        // Other ranks may write to its memory until they are informed.
        state.failed_teams.push(Arc::clone(team));
        let others = (0..self.size).filter(|other| inform && *other != me);
        for other in others {
            if state.peers.get(other).is_some_and(Peer::is_here) {
                let id = team.id;
                let broken = Control::Broken {
                    id,
                    call,
                    rank,
                    status: status.0,
                };
                self.send_control(state, other, vec![broken]);
            }
        }
        self.host().ring();
    }

    /// Handles the report of rank `from` that a team has failed there.
    pub(super) fn team_broke(
        &self,
        state: &mut State,
        from: u32,
        (id, call, rank, status): (u64, u64, u32, u32),
    ) -> Result<()> {
        let status = Status(status);
        if rank >= self.size || !status.is_error() {
            let what = format!(
                "rank {from} reported the failure of a collective call with rank {rank} and \
                 status {}",
                status.0
            );
            return Err(Error::new("read control message", Kind::Protocol, what).with_rank(from));
        }
        let Some(team) = state.teams.get(&id).and_then(Weak::upgrade) else {
            return Ok(());
        };
        let whom = match rank == self.rank {
            true => format!("rank {rank}, which is this rank,"),
            false => format!("rank {rank}"),
        };
        let text = match status {
            Status::TIMEOUT => format!("{whom} did not join call {call} in time"),
            Status::BAD_RESPONSE => format!("call {call} of {whom} is not that of rank {from}"),
            status => format!("{whom} has failed at call {call}: {status}"),
        };
        let text = format!("{text}, as rank {from} reports");
        let failure = TeamFailure {
            call,
            status,
            rank,
            text,
        };
        self.fail_team(state, &team, failure, false);
        Ok(())
    }

    /// Fails the team of a stream's call whose timeout has expired.
    pub(super) fn time_out_collective(&self, state: &mut State, key: RequestKey) {
        let entry = state.requests.get(key);
        let since = entry.and_then(|entry| entry.since).unwrap_or_default();
        if let Some((team, number)) = waiting(entry) {
            let limit = format!("{} (Builder::timeout)", time(self.config.timeout));
            let open = team.failure().is_none();
            self.time_out_team(state, &team, (number, since), &limit);
            if let Some(failure) = team.failure().filter(|_| open) {
                state.counts(Some(failure.rank)).timeouts += 1;
            }
        }
    }
}

/// The team and the number of a stream's call that has not ended.
fn waiting(entry: Option<&Entry>) -> Option<(Arc<Team>, u64)> {
    let entry = entry?;
    let collection = entry.collective()?;
    Some((Arc::clone(&collection.team), entry.number))
}
