//! Opens peers, lanes and channels, and handles the control messages of peers.

use std::time::Duration;

use gdsync::Status;

use super::engine::Engine;
use super::lanes::Lanes;
use super::outbox::UNSENT;
use super::peer::{Cause, Closing, Peer, Setup, Standing, Target};
use super::spec::On;
use super::state::{Guard, State};
use super::texts::time;
use crate::error::{Error, Kind, Result};
use crate::wire::control::Control;

/// Control messages taken in with one lock.
const BURST: usize = 64;

impl Engine {
    pub(super) fn setup<'a>(&'a self, lanes: &'a Lanes) -> Setup<'a> {
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

    /// The lane of `on`, with everything open to post there.
    ///
    /// # Errors
    /// `Invalid` for a rank that there is none of; `PeerFailed`; `Timeout`, naming the rank, if it
    /// does not answer within the context's limit.
    #[inline]
    pub fn ensure(&self, rank: u32, on: &On<'_>, target: Target) -> Result<(Guard<'_>, u8)> {
        let mut state = self.lock();
        let lane = self.lane_of(&mut state, on);
        match state.peers.get(rank) {
            Some(peer) if peer.may(lane, target) => return Ok((state, lane)),
            _ => {}
        }
        drop(state);
        let opened = self.open(rank, lane, target);
        let state = self.lock();
        match opened {
            Ok(()) => Ok((state, lane)),
            Err(e) if e.kind() == Kind::BootstrapLost => {
                let shared = state.open_lane_like(rank, lane, target);
                shared.map(|lane| (state, lane)).ok_or(e)
            }
            Err(e) => Err(e),
        }
    }

    #[cold]
    fn open(&self, rank: u32, lane: u8, target: Target) -> Result<()> {
        const OPERATION: &str = "open connection";
        if rank >= self.size {
            let what = format!("the job has {} ranks", self.size);
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_rank(rank));
        }
        let deadline = self.host().now() + self.config.timeout;
        let mut answer = Ok(false);
        let mut full = None;
        self.wait(deadline, &mut || {
            full = None;
            match self.begin(rank, lane, target) {
                Ok(()) => {}
                // Channels that are not used any more make room.
                Err(e) if e.kind() == Kind::QueueFull => full = Some(e),
                Err(e) => answer = Err(e),
            }
            self.progress();
            if answer.is_ok() {
                answer = self.is_open(rank, lane, target);
            }
            !matches!(answer, Ok(false))
        });
        match (answer?, full) {
            (true, _) => Ok(()),
            (false, Some(e)) => Err(e),
            (false, None) => {
                let what = format!(
                    "rank {rank} has not answered in {} (Builder::timeout): has it built a context \
                     named {:?}, and does it call progress() if it does so itself \
                     (Progress::Manual)?",
                    time(self.config.timeout),
                    self.config.name
                );
                Err(Error::new(OPERATION, Kind::Timeout, what)
                    .with_rank(rank)
                    .whole())
            }
        }
    }

    fn begin(&self, rank: u32, lane: u8, target: Target) -> Result<()> {
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
        let mut say = Vec::new();
        let begun = peer.begin(&setup, lane, target, &mut say);
        self.say(state, rank, say);
        begun
    }

    fn is_open(&self, rank: u32, lane: u8, target: Target) -> Result<bool> {
        const OPERATION: &str = "open connection";
        let state = self.lock();
        match state.peers.get(rank) {
            Some(peer) if peer.may(lane, target) => return Ok(true),
            Some(peer) if !peer.is_here() => return Err(peer.error(OPERATION)),
            _ => {}
        }
        let Some(why) = state.outbox.lost() else {
            return Ok(false);
        };
        let what = format!(
            "the bootstrap does not reach the other ranks any more ({why}): peers and tags that \
             are open stay usable, this one cannot be opened"
        );
        Err(Error::new(OPERATION, Kind::BootstrapLost, what).with_rank(rank))
    }

    /// Connects to every rank.
    pub fn connect_all(&self) -> Result<()> {
        for rank in 0..self.size {
            self.begin(rank, 0, Target::Lanes)?;
        }
        let deadline = self.host().now() + self.config.timeout;
        let mut missing = Vec::new();
        let mut broken = None;
        self.wait(deadline, &mut || {
            self.progress();
            missing.clear();
            for rank in 0..self.size {
                match self.is_open(rank, 0, Target::Lanes) {
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
        let what = format!("no answer from rank {}", join(&missing));
        Err(Error::new("connect all ranks", Kind::Missing, what).with_limit(self.size))
    }

    /// Tells a rank that nothing else comes from this one.
    pub fn say_given_up(&self, state: &mut State, rank: u32) {
        state.outbox.clear(rank);
        self.say(state, rank, vec![Control::GivenUp]);
    }

    /// Sends control messages, or keeps what the bootstrap does not take now.
    pub fn say(&self, state: &mut State, rank: u32, messages: Vec<Control>) {
        state.outbox.push(rank, messages);
        if let (_, Some(e)) = self.send_unsent(state) {
            self.lose(state, &e);
        }
        if state.outbox.overflows(rank) {
            tracing::warn!(target: "mp", "rank {}: rank {rank} asks and does not read", self.rank);
            let text = format!("rank {rank} does not read the control messages of this rank");
            self.give_up(state, rank, Status::BAD_RESPONSE, Cause::Other(text));
        }
    }

    /// `true`: something was sent. The error is the bootstrap's, if it does not reach the others.
    fn send_unsent(&self, state: &mut State) -> (bool, Option<Error>) {
        let send = |rank, message: &Control| {
            let bytes = message.encode();
            self.bootstrap.send(rank, self.topic, &bytes)
        };
        let sent = state.outbox.flush(send);
        if sent.any {
            self.host().ring();
        }
        for rank in sent.gone {
            // It is given up behind its last control messages, see `progress`.
            if let Some(peer) = state.peers.get_mut(rank) {
                peer.pulse.gone = true;
                state.gone_poll.hurry();
            }
        }
        (sent.any, sent.lost)
    }

    /// The bootstrap does not reach the other ranks: what is open stays so.
    fn lose(&self, state: &mut State, e: &Error) {
        if state.outbox.lose(e) {
            tracing::warn!(
                target: "mp",
                "rank {}: the bootstrap does not reach the other ranks any more: {e}; peers and \
                 tags that are open stay usable, no others can be opened",
                self.rank
            );
        }
        // What could not be asked to go stays.
        for (rank, tag) in state.outbox.take_retires() {
            if let Some(peer) = state.peers.get_mut(rank) {
                peer.channels.unretire(tag);
            }
        }
    }

    /// Takes control messages in. `true`: there was something.
    pub fn hear(&self, state: &mut State) -> bool {
        state.outbox.try_again();
        let (mut heard, mut lost) = self.send_unsent(state);
        for _ in 0..BURST {
            match self.bootstrap.receive(self.topic) {
                Ok(Some((rank, bytes))) => {
                    heard = true;
                    if let Err(e) = self.take_in(state, rank, &bytes) {
                        tracing::warn!(target: "mp", "rank {}: from rank {rank}: {e}", self.rank);
                        let cause = match e.kind() {
                            Kind::Protocol | Kind::QueueFull => {
                                let limit = e.limit_value();
                                let limit = limit.map(|limit| format!(" (limit {limit})"));
                                Cause::Protocol(e.object().to_owned() + &limit.unwrap_or_default())
                            }
                            _ => Cause::Other(format!("this rank cannot open its side: {e}")),
                        };
                        self.give_up(state, rank, Status::BAD_RESPONSE, cause);
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    lost = Some(e);
                    break;
                }
            }
        }
        if let Some(e) = lost {
            self.lose(state, &e);
        }
        if state.outbox.find() {
            tracing::info!(
                target: "mp",
                "rank {}: the bootstrap reaches the other ranks again",
                self.rank
            );
        }
        heard
    }

    /// Takes in all control messages that have arrived, also the last ones of a rank that is gone.
    pub fn hear_out(&self, state: &mut State) {
        for _ in 0..UNSENT {
            if !self.hear(state) {
                return;
            }
        }
    }

    fn take_in(&self, state: &mut State, rank: u32, bytes: &[u8]) -> Result<()> {
        let setup = self.setup(&state.lanes);
        let Some(peer) = state.peers.make(rank) else {
            let what = format!("the job has {} ranks", self.size);
            return Err(Error::new("read control message", Kind::Protocol, what).with_rank(rank));
        };
        peer.pulse.heard = Some(self.host().now());
        let message = match Control::decode(bytes) {
            // Also of a peer that was given up: what it refused before must not count as sent.
            Ok(message @ Control::Truncated { .. }) => message,
            _ if !peer.is_here() => return Ok(()),
            message => message?,
        };
        let mut say = Vec::new();
        let taken = peer.hear(&setup, &message, &mut say);
        self.say(state, rank, say);
        match message {
            Control::Truncated { tag, number, len } => {
                self.was_truncated(state, rank, tag, number, len);
            }
            Control::GivenUp => {
                let status = Status::REMOTE_ABORTED;
                let cause = Cause::Other(self.status_text(state, rank, status));
                self.give_up(state, rank, status, cause);
            }
            _ => {}
        }
        taken
    }

    /// Leaves in good order; see [`Context::close`](crate::Context::close).
    pub fn close(&self, limit: Duration) -> Result<()> {
        const OPERATION: &str = "close context";
        let deadline = self.host().now() + limit;
        let mut open = Vec::new();
        let done = self.wait(deadline, &mut || {
            self.progress();
            open = self.unfinished();
            open.is_empty()
        });
        if !done {
            let count = open.len();
            open.truncate(8);
            let what = format!("{count} requests unfinished: {}", open.join("; "));
            return Err(Error::new(OPERATION, Kind::Timeout, what));
        }
        self.ask_to_leave(true);
        let mut silent = Vec::new();
        self.wait(deadline, &mut || {
            self.ask_to_leave(false);
            self.progress();
            silent = self.silent();
            silent.is_empty()
        });
        match silent.first() {
            None => Ok(()),
            Some(rank) => {
                let what = format!("no answer from rank {}", join(&silent));
                Err(Error::new(OPERATION, Kind::Timeout, what).with_rank(*rank))
            }
        }
    }

    /// Asks peers whether anything is under way to this rank: all, or those who came since.
    fn ask_to_leave(&self, all: bool) {
        let mut state = self.lock();
        if state.outbox.lost().is_some() {
            return;
        }
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let Some(closing) = state.peers.get_mut(rank).and_then(Peer::closing) else {
                continue;
            };
            if *closing != Closing::No && !all {
                continue;
            }
            *closing = Closing::Asked;
            self.say(&mut state, rank, vec![Control::Leaving]);
        }
    }

    /// Ranks that were asked and have not answered. None without a bootstrap that brings answers.
    fn silent(&self) -> Vec<u32> {
        let state = self.lock();
        if state.outbox.lost().is_some() {
            return Vec::new();
        }
        let others = state.peers.iter().filter(|peer| peer.rank != self.rank);
        let silent = others.filter(|peer| match peer.standing {
            Standing::Here { closing, .. } => closing != Closing::Answered,
            Standing::GivenUp(_) => false,
        });
        silent.map(|peer| peer.rank).collect()
    }
}

fn join(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    names.join(", ")
}
