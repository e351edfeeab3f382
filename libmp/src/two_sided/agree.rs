//! Agreements on lost ranks, over control messages: `agreement` has the rules.

use std::time::Duration;

use gds_step::Time;
use gdsync::Status;

use super::engine::Engine;
use super::peer::Cause;
use super::state::State;
use super::texts::join;
use crate::agreement::Decision;
use crate::error::{Error, Kind, Result, time};
use crate::wire::control::Control;

const AGREE: &str = "agree on lost ranks";

/// The part of a call's limit after which a rank that does not answer counts as lost.
const SILENCE: u32 = 2;
/// The least time after which it does.
const LEAST: Duration = Duration::from_millis(50);
/// The number of pings in that time.
const PINGS: u32 = 4;

/// The times of an agreement: since when it waits, and how long a rank may send nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AgreementTimer {
    since: Time,
    silence: Duration,
    /// The time of the last look at the ranks.
    looked: Time,
    /// A call is in progress.
    taken: bool,
}

impl Engine {
    /// Agrees with all other ranks; see [`Context::agree`](crate::Context::agree).
    pub fn agree(&self, value: u64, limit: Duration) -> Result<Decision> {
        let start = self.host().now();
        let number = {
            let mut guard = self.lock();
            let state = &mut *guard;
            if state.agreement_timer.taken {
                let what = "another thread of this rank is in the call; call it from one thread at \
                            a time";
                return Err(Error::new(AGREE, Kind::Busy, what));
            }
            state.agreement_timer.taken = true;
            for rank in 0..self.size {
                state.peers.make(rank);
            }
            if !state.agreement.is_open() {
                state.agreement_timer.since = start;
            }
            state.agreement_timer.silence = (limit / SILENCE).max(LEAST);
            let number = state.agreement.call(value);
            self.advance_agreement(state);
            number
        };
        let mut result = None;
        self.wait(start + limit, &mut || {
            self.progress();
            let mut state = self.lock();
            result = match state.agreement.expelled_by() {
                Some(by) => Some(Err(expelled(by))),
                None => state.agreement.take(number).map(Ok),
            };
            result.is_some()
        });
        self.lock().agreement_timer.taken = false;
        result.unwrap_or_else(|| Err(self.late_agreement(limit)))
    }

    fn late_agreement(&self, limit: Duration) -> Error {
        let (state, limit) = (self.lock(), time(limit));
        if let Some(why) = state.outbox.lost() {
            let what = format!("the bootstrap no longer reaches the other ranks ({why})");
            return Error::new(AGREE, Kind::BootstrapLost, what);
        }
        let absent: Vec<u32> = state.agreement.absent().collect();
        let Some(first) = absent.first() else {
            let what = format!(
                "rank {} did not confirm the lost ranks within {limit}; repeat the call",
                join(&state.agreement.others().collect::<Vec<_>>())
            );
            return Error::new(AGREE, Kind::Timeout, what);
        };
        let what = format!(
            "rank {} did not call Context::agree within {limit}; call it on all ranks, and repeat \
             the call",
            join(&absent)
        );
        Error::new(AGREE, Kind::Missing, what).with_rank(*first)
    }

    /// Whether another rank has called, and this rank has not.
    pub fn is_asked_to_agree(&self) -> bool {
        self.lock().agreement.is_asked()
    }

    /// Continues the agreement with what has changed. `true`: something has.
    pub(super) fn advance_agreement(&self, state: &mut State) -> bool {
        let step = state.agreement.step();
        if step.notes.is_empty() && step.reported.is_empty() {
            return false;
        }
        for (by, rank) in step.reported {
            let text = match by == rank {
                true => {
                    format!("rank {rank} is no longer part of the job: another rank gave it up")
                }
                false => format!("rank {by} reports that rank {rank} is lost"),
            };
            self.give_up(state, rank, Status::REMOTE_ABORTED, Cause::Other(text));
        }
        // To lost ranks as well: one that lives finds out that it is not part of the job any more.
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            if !step.notes.is_empty() && state.peers.get(rank).is_some_and(|p| !p.liveness.gone) {
                let notes = step.notes.iter().cloned().map(Control::Agree);
                self.send_control(state, rank, notes.collect());
            }
        }
        let open = state.agreement.is_open();
        for peer in state.peers.iter_mut() {
            peer.liveness.awaited = open && peer.rank != self.rank;
        }
        true
    }

    /// Pings the ranks that an open agreement waits for, and gives up those that are silent.
    pub(super) fn watch_agreement(&self, state: &mut State, now: Time) {
        if !state.agreement.is_open() {
            return;
        }
        let AgreementTimer {
            looked, silence, ..
        } = state.agreement_timer;
        state.agreement_timer.looked = now;
        if now.since(looked) >= silence / 2 {
            // This rank did no background work, and pinged no rank.
            state.agreement_timer.since = now;
        }
        let since = state.agreement_timer.since;
        let others: Vec<u32> = state.agreement.others().collect();
        for rank in others {
            let Some(peer) = state.peers.get_mut(rank) else {
                continue;
            };
            let heard = peer.liveness.heard.map_or(since, |heard| heard.max(since));
            if now.since(heard) >= silence {
                let text = format!(
                    "rank {rank} has sent no control message for {} during an agreement: it may \
                     be stopped, busy or dead",
                    time(silence)
                );
                // It may have been given up before, after it had given this rank up.
                state.agreement.lose(rank);
                self.give_up(state, rank, Status::TIMEOUT, Cause::Other(text));
            } else if peer.is_here() && peer.liveness.probe(since, now, silence / PINGS) {
                self.send_control(state, rank, vec![Control::Ping]);
            }
        }
    }
}

fn expelled(by: u32) -> Error {
    let what = format!("rank {by} has given this rank up; this rank is no longer part of the job");
    Error::new(AGREE, Kind::PeerFailed(Status::REMOTE_ABORTED), what).with_rank(by)
}
