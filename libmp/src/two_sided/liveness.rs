//! Whether peers live: what the bootstrap knows of them, and what they answer when they are asked.

use std::time::Duration;

use gds_step::Time;

use super::engine::Engine;
use super::peer::Peer;
use super::state::State;
use crate::request::table::{Phase, Table};
use crate::wire::control::Control;

/// How often the bootstrap is asked which ranks are gone: one in turn, and each that a request
/// waits for.
const POLL: Duration = Duration::from_millis(100);

/// Whether a peer is alive, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It has answered the last question.
    Alive,
    /// The bootstrap says that it is gone.
    Gone,
    /// It was asked this long ago and has not answered.
    Mute(Duration),
    Unknown,
    /// It is this rank.
    Own,
}

/// When the bootstrap is asked which ranks are gone.
#[derive(Default)]
pub(crate) struct GonePoll {
    next: Time,
    /// The rank that is asked about next, whether or not a request waits for it.
    at: u32,
}

impl GonePoll {
    /// Asks in the next round.
    pub fn hurry(&mut self) {
        self.next = Time::ZERO;
    }

    /// The ranks of which the bootstrap is to be asked now: one after the other, and each that a
    /// request or an answer is waited for from. `true`: it is gone, as it refused a message.
    pub fn due(
        &mut self,
        peers: &[Option<Box<Peer>>],
        requests: &Table,
        now: Time,
    ) -> Vec<(u32, bool)> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + POLL;
        let size = peers.len();
        let mut asked = vec![false; size];
        for (_, entry) in requests.iter() {
            let waits = !matches!(entry.phase, Phase::Done(_) | Phase::Prepared);
            if let Some(asked) = asked.get_mut(entry.peer as usize) {
                *asked |= waits;
            }
        }
        let lives = |peer: &Peer| peer.failed.is_none();
        for (asked, peer) in asked.iter_mut().zip(peers) {
            let peer = peer.as_deref().filter(|peer| lives(peer));
            *asked = peer.is_some_and(|peer| *asked || peer.gone || peer.owes_answer());
        }
        let next = (0..size).map(|i| (self.at as usize + i) % size);
        let mut known = next.filter(|at| peers[*at].as_deref().is_some_and(lives));
        if let Some(at) = known.next() {
            asked[at] = true;
            self.at = (at + 1) as u32;
        }
        let ranks = (0..).zip(peers).zip(asked);
        ranks
            .filter(|(_, asked)| *asked)
            .map(|((rank, peer), _)| (rank, peer.as_deref().is_some_and(|peer| peer.gone)))
            .collect()
    }
}

impl Engine {
    /// Whether a peer that a request has waited for since `since` is alive, as far as known.
    pub(super) fn life(&self, peer: Option<&Peer>, since: Option<Time>) -> Life {
        let Some(peer) = peer else {
            return Life::Unknown;
        };
        if peer.rank == self.rank {
            return Life::Own;
        }
        if peer.gone {
            return Life::Gone;
        }
        let (Some(since), now) = (since, self.host().now()) else {
            return Life::Unknown;
        };
        // The answer to the latest question may be in flight.
        let fresh = |heard: &Time| *heard >= since && now.since(*heard) <= 2 * self.probe_after();
        match (peer.heard.filter(fresh), peer.probed) {
            (Some(_), _) => Life::Alive,
            (None, Some(probed)) if probed >= since => Life::Mute(now.since(probed)),
            (None, _) => Life::Unknown,
        }
    }

    /// How long a peer that a request waits for may send nothing before it is asked.
    fn probe_after(&self) -> Duration {
        self.config.timeout.min(self.config.watchdog) / 2
    }

    /// Asks a peer whether it is alive, if a request has waited for it since `since` and it has sent
    /// no control message for some time. Its background work answers.
    pub(super) fn probe(&self, state: &mut State, rank: u32, since: Time, now: Time) {
        let Some(peer) = state.peer(rank) else { return };
        if rank == self.rank || peer.failed.is_some() {
            return;
        }
        let known = [peer.probed, peer.heard].into_iter().flatten();
        let last = known.fold(since, Time::max);
        if now.since(last) >= self.probe_after() {
            peer.probed = Some(now);
            self.say(state, rank, vec![Control::Ping]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_asked_about_in_turn_and_those_that_are_gone_always() {
        let mut peers: Vec<_> = (0..4).map(|rank| Some(Box::new(Peer::new(rank)))).collect();
        peers[1] = None;
        peers[2].as_mut().unwrap().failed = Some(gdsync::Status::TIMEOUT);
        let (mut gone_poll, requests) = (GonePoll::default(), Table::new());
        let mut now = Time::ZERO;
        let mut ask = |peers: &[Option<Box<Peer>>]| {
            let due = gone_poll.due(peers, &requests, now);
            assert_eq!(gone_poll.due(peers, &requests, now), [], "too soon");
            now = now + POLL;
            due
        };
        assert_eq!(ask(&peers), [(0, false)]);
        assert_eq!(ask(&peers), [(3, false)]);
        peers[3].as_mut().unwrap().gone = true;
        assert_eq!(ask(&peers), [(0, false), (3, true)]);
    }
}
