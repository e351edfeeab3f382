//! Liveness: whether peers are alive, by the bootstrap's reports and by their answers to pings.

use std::time::Duration;

use gds_step::Time;

use super::engine::Engine;
use super::peer::{Peer, Peers};
use super::state::State;
use crate::request::table::Table;
use crate::wire::control::Control;

/// The period in which the bootstrap is asked which ranks are gone: one rank in turn, and each rank
/// that a request waits for.
const POLL: Duration = Duration::from_millis(100);

/// Whether a peer is alive, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The peer has answered the last ping.
    Alive,
    /// The bootstrap reports that the peer is gone.
    Gone,
    /// The peer was pinged this long ago and has not answered.
    Silent(Duration),
    Unknown,
    /// The peer is this rank.
    Own,
}

/// The data about a peer's liveness.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// The bootstrap has reported that the peer is gone.
    pub gone: bool,
    /// An agreement waits for the peer.
    pub awaited: bool,
    /// A neighbourhood is being built, and waits for the record of the peer.
    pub joins: bool,
    /// The time when a control message of the peer last arrived.
    pub heard: Option<Time>,
    /// The time of the last ping.
    probed: Option<Time>,
}

impl Liveness {
    /// Whether the peer is alive, if a request has waited for it since `since`; a ping is sent
    /// after `silence`.
    fn life(&self, since: Option<Time>, now: Time, silence: Duration) -> Life {
        if self.gone {
            return Life::Gone;
        }
        let Some(since) = since else {
            return Life::Unknown;
        };
        // The answer to the latest ping may be in flight.
        let fresh = |heard: &Time| *heard >= since && now.since(*heard) <= 2 * silence;
        match (self.heard.filter(fresh), self.probed) {
            (Some(_), _) => Life::Alive,
            (None, Some(probed)) if probed >= since => Life::Silent(now.since(probed)),
            (None, _) => Life::Unknown,
        }
    }

    /// Whether a ping is due now: a request has waited for the peer since `since`, and it has sent
    /// no control message for `silence`.
    pub fn probe(&mut self, since: Time, now: Time, silence: Duration) -> bool {
        let known = [self.probed, self.heard].into_iter().flatten();
        let due = now.since(known.fold(since, Time::max)) >= silence;
        if due {
            self.probed = Some(now);
        }
        due
    }
}

/// The schedule of questions to the bootstrap about ranks that are gone.
#[derive(Default)]
pub(crate) struct GonePoll {
    next: Time,
    /// The rank whose turn is next, whether or not a request waits for it.
    at: u32,
}

impl GonePoll {
    /// Makes the next round ask.
    pub fn hurry(&mut self) {
        self.next = Time::ZERO;
    }

    /// The ranks about which the bootstrap is asked now: one in turn, and each from which a request
    /// or an answer is awaited. `true`: the rank is known to be gone, because the bootstrap refused
    /// a message to it.
    pub fn due(&mut self, peers: &Peers, requests: &Table, now: Time) -> Vec<(u32, bool)> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + POLL;
        let size = peers.size();
        let mut asked = vec![false; size as usize];
        for (_, entry) in requests.iter() {
            let waits = !entry.is_prepared() && entry.status().is_none();
            if let Some(asked) = asked.get_mut(entry.peer as usize) {
                *asked |= waits;
            }
        }
        let mut next = (0..size).map(|i| (self.at + i) % size);
        let lives = |rank: &u32| peers.get(*rank).is_some_and(Peer::is_here);
        let turn = next.find(lives);
        self.at = turn.map_or(self.at, |rank| rank + 1);
        let due = peers.here().filter(|peer| {
            let waits = asked[peer.rank as usize] || peer.liveness.gone || peer.owes_answer();
            let waits = waits || !peer.circuits.is_empty() || !peer.zero_sm.is_empty();
            waits || turn == Some(peer.rank)
        });
        due.map(|peer| (peer.rank, peer.liveness.gone)).collect()
    }
}

impl Engine {
    /// Whether a peer that a request has waited for since `since` is alive, as far as known.
    pub(super) fn life(&self, peer: Option<&Peer>, since: Option<Time>) -> Life {
        match peer {
            None => Life::Unknown,
            Some(peer) if peer.rank == self.rank => Life::Own,
            Some(peer) => peer.liveness.life(since, self.host().now(), self.silence()),
        }
    }

    /// The time without a control message after which an awaited peer is pinged.
    fn silence(&self) -> Duration {
        self.config.timeout.min(self.config.watchdog) / 2
    }

    /// Pings a peer if a request has waited for it since `since` and it has sent no control message
    /// for some time. The peer's background work answers.
    pub(super) fn probe(&self, state: &mut State, rank: u32, since: Time, now: Time) {
        let other = |peer: &&mut Peer| rank != self.rank && peer.is_here();
        if let Some(peer) = state.peers.get_mut(rank).filter(other)
            && peer.liveness.probe(since, now, self.silence())
        {
            self.send_control(state, rank, vec![Control::Ping]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer::{Cause, Failure};
    use super::*;

    #[test]
    fn ranks_are_polled_in_turn_and_gone_ranks_always() {
        let mut peers = Peers::new(4);
        for rank in [0, 2, 3] {
            peers.make(rank).unwrap();
        }
        let (status, cause) = (gdsync::Status::TIMEOUT, Cause::Other(String::new()));
        peers.get_mut(2).unwrap().fail(Failure { status, cause });
        let (mut gone_poll, requests) = (GonePoll::default(), Table::new());
        let mut now = Time::ZERO;
        let mut ask = |peers: &Peers| {
            let due = gone_poll.due(peers, &requests, now);
            assert_eq!(gone_poll.due(peers, &requests, now), [], "too soon");
            now = now + POLL;
            due
        };
        assert_eq!(ask(&peers), [(0, false)]);
        assert_eq!(ask(&peers), [(3, false)]);
        peers.get_mut(3).unwrap().liveness.gone = true;
        assert_eq!(ask(&peers), [(0, false), (3, true)]);
    }

    #[test]
    fn silent_peer_is_pinged_and_its_answer_counts_for_some_time() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let (mut liveness, silence) = (Liveness::default(), Duration::from_secs(5));
        let since = at(10);
        assert_eq!(liveness.life(Some(since), at(11), silence), Life::Unknown);
        assert!(!liveness.probe(since, at(14), silence));
        assert!(liveness.probe(since, at(15), silence));
        assert!(!liveness.probe(since, at(16), silence), "it was just asked");
        let silent = Life::Silent(Duration::from_secs(2));
        assert_eq!(liveness.life(Some(since), at(17), silence), silent);
        liveness.heard = Some(at(18));
        assert_eq!(liveness.life(Some(since), at(28), silence), Life::Alive);
        assert_ne!(liveness.life(Some(since), at(29), silence), Life::Alive);
        assert_eq!(liveness.life(None, at(19), silence), Life::Unknown);
        liveness.gone = true;
        assert_eq!(liveness.life(Some(since), at(19), silence), Life::Gone);
    }
}
