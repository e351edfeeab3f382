//! Opening of lanes to a peer and of channels under a tag, on first use or all at once.

use gds_step::Time;

use super::engine::Engine;
use super::lanes::StreamLanes;
use super::peer::{Need, Setup};
use super::spec::On;
use super::state::{Guard, State};
use super::texts::join;
use crate::error::{Error, Kind, Result, time};

impl Engine {
    /// Repeats `attempt` until it returns true, which the background work of `rank` makes possible.
    ///
    /// # Errors
    /// The first of `attempt`; `Timeout` behind the context's time limit.
    pub(crate) fn await_answer(
        &self,
        operation: &'static str,
        rank: u32,
        mut attempt: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let mut answer = attempt();
        if matches!(answer, Ok(false)) {
            let deadline = self.host().now() + self.config.timeout;
            self.wait(deadline, &mut || {
                self.progress();
                answer = attempt();
                !matches!(answer, Ok(false))
            });
        }
        if answer? {
            return Ok(());
        }
        let what = format!(
            "rank {rank} did not answer within {} (Builder::timeout); check that it calls progress() if \
             it has Progress::Manual",
            time(self.config.timeout)
        );
        Err(Error::new(operation, Kind::Timeout, what).with_rank(rank))
    }

    pub(super) fn setup<'a>(&'a self, lanes: &'a StreamLanes) -> Setup<'a> {
        Setup {
            paths: &self.paths,
            config: &self.config,
            lanes,
        }
    }

    /// The lane of `on`.
    #[inline]
    pub fn lane_of(&self, state: &mut State, on: &On<'_>) -> u8 {
        match on {
            On::Cpu => 0,
            On::Stream(stream, doorbell) => {
                state.lane_of(stream, doorbell.unwrap_or(self.config.doorbell))
            }
        }
    }

    /// The lane on which `on` posts to `rank`.
    #[inline]
    pub fn lane_to(&self, state: &mut State, rank: u32, on: &On<'_>) -> u8 {
        let lane = self.lane_of(state, on);
        let peer = state.peers.get(rank);
        peer.map_or(lane, |peer| peer.stand_in[usize::from(lane)])
    }

    /// The lane on which `on` posts to `rank`, after opening all that is needed to post on it.
    ///
    /// # Errors
    /// `Invalid` for a rank outside the job; `PeerFailed`; `Timeout`, naming the rank, if it does
    /// not answer within the context's timeout.
    #[inline]
    pub fn ensure(&self, rank: u32, on: &On<'_>, need: Need) -> Result<(Guard<'_>, u8)> {
        let mut state = self.lock();
        let lane = self.lane_to(&mut state, rank, on);
        match state.peers.get(rank) {
            Some(peer) if peer.can_post(lane, need) => return Ok((state, lane)),
            _ => {}
        }
        drop(state);
        let opened = self.open(rank, lane, need);
        let mut state = self.lock();
        match opened {
            Ok(()) => Ok((state, lane)),
            Err(e) if e.kind() == Kind::BootstrapLost => {
                let shared = state.share_lane(rank, lane, need);
                shared.map(|lane| (state, lane)).ok_or(e)
            }
            Err(e) => Err(e),
        }
    }

    #[cold]
    fn open(&self, rank: u32, lane: u8, need: Need) -> Result<()> {
        const OPERATION: &str = "open connection";
        if rank >= self.size {
            return Err(Error::outside_job(OPERATION, rank, self.size));
        }
        let deadline = self.host().now() + self.config.timeout;
        let mut answer = Ok(false);
        let mut full = None;
        self.wait(deadline, &mut || {
            full = None;
            match self.begin(rank, lane, need) {
                Ok(()) => {}
                // Room appears when idle channels are retired.
                Err(e) if e.kind() == Kind::QueueFull => full = Some(e),
                Err(e) => answer = Err(e),
            }
            self.progress();
            if answer.is_ok() {
                answer = self.is_open(rank, lane, need);
            }
            !matches!(answer, Ok(false))
        });
        match (answer?, full) {
            (true, _) => Ok(()),
            (false, Some(e)) => Err(e),
            (false, None) => {
                let what = format!(
                    "rank {rank} did not answer within {} (Builder::timeout); check that it has \
                     built a context named {:?}, and that it calls progress() if it has \
                     Progress::Manual",
                    time(self.config.timeout),
                    self.config.name
                );
                Err(Error::new(OPERATION, Kind::Timeout, what).with_rank(rank))
            }
        }
    }

    fn begin(&self, rank: u32, lane: u8, need: Need) -> Result<()> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let setup = self.setup(&state.lanes);
        let lost = state.outbox.lost().is_some();
        let peer = state
            .peers
            .make(rank)
            .filter(|peer| peer.is_here() && !lost);
        let Some(peer) = peer else {
            return Ok(());
        };
        let mut out = Vec::new();
        let begun = peer.begin(&setup, lane, need, &mut out);
        self.send_control(state, rank, out);
        begun
    }

    /// Asks a rank for what the choice of the path to it needs. `true`: the path is chosen, or the
    /// rank was given up.
    pub(crate) fn introduce(&self, state: &mut State, rank: u32) -> bool {
        let setup = self.setup(&state.lanes);
        let Some(peer) = state.peers.make(rank).filter(|peer| peer.is_here()) else {
            return true;
        };
        let mut out = Vec::new();
        let chosen = peer.introduce(&setup, &mut out);
        self.send_control(state, rank, out);
        chosen
    }

    /// Waits until the paths to these ranks are chosen. Returns the ranks to which none is at
    /// `deadline`; ranks that were given up, and all if the bootstrap is lost, are the caller's.
    pub fn await_paths(&self, ranks: impl Iterator<Item = u32>, deadline: Time) -> Vec<u32> {
        let mut open: Vec<u32> = ranks.filter(|r| self.paths.chosen(*r).is_none()).collect();
        if open.is_empty() {
            return open;
        }
        self.wait(deadline, &mut || {
            self.progress();
            let state = &mut *self.lock();
            open.retain(|rank| state.outbox.lost().is_none() && !self.introduce(state, *rank));
            open.is_empty()
        });
        open
    }

    fn is_open(&self, rank: u32, lane: u8, need: Need) -> Result<bool> {
        const OPERATION: &str = "open connection";
        let state = self.lock();
        match state.peers.get(rank) {
            Some(peer) if peer.can_post(lane, need) => return Ok(true),
            Some(peer) if !peer.is_here() => return Err(peer.error(OPERATION)),
            _ => {}
        }
        let Some(why) = state.outbox.lost() else {
            return Ok(false);
        };
        let what = format!(
            "rank {rank} or the tag is not open for this message, and the bootstrap no longer \
             reaches the other ranks ({why}); use connections and tags that are open"
        );
        Err(Error::new(OPERATION, Kind::BootstrapLost, what).with_rank(rank))
    }

    /// Connects to every rank.
    pub fn connect_all(&self) -> Result<()> {
        let deadline = self.host().now() + self.config.timeout;
        let mut missing: Vec<u32> = (0..self.size).collect();
        let mut broken = None;
        self.wait(deadline, &mut || {
            let asked = std::mem::take(&mut missing);
            let begun = asked.iter().map(|rank| self.begin(*rank, 0, Need::Lanes));
            broken = begun.filter_map(Result::err).next();
            self.progress();
            for rank in asked {
                match self.is_open(rank, 0, Need::Lanes) {
                    Ok(true) => {}
                    Ok(false) => missing.push(rank),
                    Err(e) => broken = Some(e),
                }
            }
            missing.is_empty() || broken.is_some()
        });
        if let Some(e) = broken {
            return Err(e);
        }
        if missing.is_empty() {
            return Ok(());
        }
        let what = format!(
            "no answer arrived within {} (Builder::timeout) from rank {}; check that each rank has \
             built a context named {:?}",
            time(self.config.timeout),
            join(&missing),
            self.config.name
        );
        Err(Error::new("connect all ranks", Kind::Missing, what))
    }
}
