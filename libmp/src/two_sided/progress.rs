//! The background work, one round at a time: it advances all requests that have not ended. Once a
//! millisecond it also looks for failures, returns credits, and runs the watchdog.

use std::time::Duration;

use gds_step::Time;
use gdsync::Status;

use super::config::Progress;
use super::engine::{Engine, PERIOD};
use super::marks::ask_reached;
use super::peer::{Cause, Standing};
use super::state::State;
use crate::path::Put;
use crate::region::Slice;
use crate::request::entry::{Entry, Incoming, Operation, ReceiveState, SendState};
use crate::request::one_sided::{SignalState, SignalWait};
use crate::request::table::RequestKey;
use crate::request::transfer::TransferState;
use crate::wire::control::Control;
use crate::wire::word::{self, WordKind};

/// Time between two reads of device memory, each of which is a copy of an engine.
pub(super) const READS_APART: Duration = Duration::from_micros(20);

/// Number of unfinished requests that are advanced under one lock.
const SLICE: usize = 128;

impl Engine {
    /// Executes one round of the background work. `true`: the round did some work.
    pub(crate) fn progress(&self) -> bool {
        if self.config.progress == Progress::Manual {
            self.paths.progress();
        }
        self.observers.collect();
        let now = self.host().now();
        let (mut done, keys) = {
            let mut state = self.lock();
            state.last_round = now;
            let mut done = self.receive_control(&mut state);
            done |= self.advance_agreement(&mut state);
            done |= self.match_any(&mut state);
            done |= self.copy(&mut state);
            let mut keys = std::mem::take(&mut state.keys);
            state.requests.to_advance(&mut keys);
            if !keys.is_empty() {
                self.read_reports(&mut state, now);
            }
            (done, keys)
        };
        for slice in keys.chunks(SLICE) {
            let mut state = self.lock();
            for key in slice {
                done |= self.advance(&mut state, *key);
            }
        }
        let due = {
            let state = &mut *self.lock();
            state.keys = keys;
            if now >= state.next_slow_round {
                state.next_slow_round = now + PERIOD;
                done |= self.slow_round(state, now);
            }
            state.gone_poll.due(&state.peers, &state.requests, now)
        };
        for (rank, gone) in due {
            // This may read a file, so it is called without the lock.
            if gone || self.bootstrap.gone(rank) {
                let mut state = self.lock();
                self.drain_control(&mut state);
                if let Some(peer) = state.peers.get_mut(rank) {
                    peer.liveness.gone = true;
                }
                let cause = Cause::Other(format!("rank {rank} has left the job or has died"));
                self.give_up(&mut state, rank, Status::REMOTE_ABORTED, cause);
                done = true;
            }
        }
        done
    }

    /// Reads what kernels have stored in device memory of the end of messages, unless a thread did so a
    /// short time ago.
    pub(super) fn read_reports(&self, state: &mut State, now: Time) {
        if self.paths.maps() && now >= state.last_refresh + READS_APART {
            self.paths.copier().read_reports();
            state.last_refresh = now;
        }
    }

    /// Executes the CPU's copies.
    fn copy(&self, state: &mut State) -> bool {
        if self.paths.maps() {
            let peers = state.peers.iter_mut();
            return peers.fold(false, |any, peer| peer.link.go_on() | any);
        }
        let me = state.peers.get_mut(self.rank);
        me.is_some_and(|peer| peer.link.go_on())
    }

    /// Advances the CPU's sends and the receives that the CPU takes in, and nothing else: the work
    /// of a waiting call at each check. It leaves out `visited`, which the call has advanced. `true`: there
    /// was such a request besides, or a copy.
    pub(crate) fn push_all(&self, state: &mut State, visited: Option<RequestKey>) -> bool {
        let mut any = self.copy(state);
        let mut keys = std::mem::take(&mut state.keys);
        let active = |entry: &Entry| {
            let posted = |receive: &Incoming| receive.state == ReceiveState::Posted;
            let by_cpu = entry.poster.stream.is_none();
            let copies = entry.zero_sm().is_some_and(|message| message.queued);
            entry.is_queued() || copies || by_cpu && entry.receive().is_some_and(posted)
        };
        keys.clear();
        let open = state.requests.iter().filter(|(_, entry)| active(entry));
        let others = open.map(|(key, _)| key).filter(|key| visited != Some(*key));
        keys.extend(others.take(SLICE));
        for key in &keys {
            self.advance(state, *key);
        }
        any |= !keys.is_empty();
        state.keys = keys;
        any
    }

    /// Advances one request. `true`: its state changed.
    pub(crate) fn advance(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        let rank = entry.peer;
        match &entry.operation {
            Operation::Send(send) => match send.state {
                SendState::Prepared => false,
                SendState::Queued { .. } => {
                    self.end_with_peer(state, key) || self.push_send(state, key)
                }
                SendState::InFlight(put) => self.advance_in_flight(state, key, put),
                SendState::Done(_) => state.requests.forget(key),
            },
            Operation::Receive(receive) => match receive.state {
                ReceiveState::Prepared | ReceiveState::Unmatched => false,
                ReceiveState::Posted => {
                    let unadvertised = receive.unadvertised;
                    if self.take_at_once(state, key).is_some() {
                        return true;
                    }
                    let advertised = unadvertised && self.advertise_late(state, key);
                    self.refuse(state, key);
                    self.advance_posted(state, key) || advertised
                }
                ReceiveState::Claimed(_) => {
                    if receive.unadvertised {
                        self.advertise_late(state, key);
                    }
                    if !self.refuse(state, key) {
                        return false;
                    }
                    if let Some((status, len)) = state.requests.result(key) {
                        if let Ok((common, receive, channel, _)) = state.incoming(key)
                            && receive.ended.is_some()
                        {
                            channel.set_taken(common.number);
                        }
                        self.finish(state, key, status, len);
                        return true;
                    }
                    match state.given_up(rank) {
                        Some(status) => release(state, key, status),
                        None => false,
                    }
                }
                ReceiveState::Done(_) => state.requests.forget(key),
            },
            Operation::Transfer(transfer) => match transfer.state {
                TransferState::Prepared(..) => false,
                TransferState::InFlight(put) => self.advance_in_flight(state, key, put),
                TransferState::Done(_) => state.requests.forget(key),
            },
            Operation::Signal(wait) => match wait.state {
                SignalState::Done(_) => state.requests.forget(key),
                _ => self.advance_signal(state, key),
            },
            Operation::Step(step) => match step.done {
                Some(_) => state.requests.forget(key),
                None => self.advance_step(state, key),
            },
            Operation::ZeroSm(_) => self.advance_zero_sm(state, key),
            Operation::Collective(collection) => match collection.done {
                Some(_) => state.requests.forget(key),
                None => self.advance_collective(state, key),
            },
        }
    }

    /// Ends a send or a transfer when its last put is done.
    fn advance_in_flight(&self, state: &mut State, key: RequestKey, put: Put) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        let (rank, len, flush) = (entry.peer, entry.len, entry.lands_in_device());
        let Some(peer) = state.peers.get_mut(rank) else {
            return false;
        };
        let reason = peer.failed();
        let Some(lane) = peer.link.lane(entry.poster.lane) else {
            return false;
        };
        let status = match lane.poll(put) {
            Ok(None) => return false,
            Ok(Some(status)) => status,
            // The put is so old that the queue has no state for it.
            Err(_) => reason.unwrap_or(Status::SUCCESS),
        };
        let (status, len) = match state.requests.result(key) {
            Some(result) => result,
            None if status == Status::SUCCESS => (status, len),
            None => (reason.unwrap_or(status), 0),
        };
        if flush {
            self.gpu.flush_remote_writes();
        }
        let fatal =
            status.is_error() && status != Status::TRUNCATED && status != Status::LOCAL_LENGTH;
        if fatal {
            let text = self.status_text(state, rank, status);
            self.give_up_for(state, key, status, text);
        }
        self.finish(state, key, status, len);
        true
    }

    /// Ends a stream's wait for a signal when the stream has passed it. If the rank was given up and
    /// the signal has not arrived, releases the stream first.
    fn advance_signal(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        let (Some(wait), rank) = (entry.signal(), entry.peer) else {
            return false;
        };
        if state.requests.result(key).is_some() {
            let (status, len) = match wait.state {
                SignalState::Released(status) => (status, 0),
                _ => (Status::SUCCESS, entry.len),
            };
            self.finish(state, key, status, len);
            return true;
        }
        let Some(status) = state.given_up(rank) else {
            return false;
        };
        if wait.is_met() || self.holds_an_earlier_wait(state, entry, wait) {
            return false;
        }
        let (wait, slice) = (wait.clone(), entry.segments.as_slice().first().cloned());
        self.release_signal(state, &wait, slice, status);
        true
    }

    /// Releases the stream at a wait whose signal does not arrive. Other waits at the word that the
    /// store meets end without their signals, too.
    fn release_signal(
        &self,
        state: &mut State,
        wait: &SignalWait,
        slice: Option<Slice>,
        status: Status,
    ) {
        let before = wait.word.load();
        let before = before.map_or(0, |now| state.released.signal(&wait.word, now));
        let ended = state.requests.iter().filter(|(key, entry)| {
            let ends = |other: &SignalWait| other.ends_with(wait, before);
            entry.signal().is_some_and(ends) && state.requests.result(*key).is_none()
        });
        let ended: Vec<RequestKey> = ended.map(|(key, _)| key).collect();
        if !ended.is_empty() {
            // Stored before the streams continue.
            self.set_error(status);
        }
        for key in ended {
            if let Some(other) = state.requests.signal_mut(key) {
                other.state = SignalState::Released(status);
            }
        }
        if let Some(slice) = slice {
            let (word, memory) = (&wait.word, slice.memory());
            state.released.note(word, memory, before, wait.value);
        }
        if let Err(e) = wait.release() {
            tracing::warn!(target: "mp", "a stream cannot be released: {e}");
        }
    }

    /// Whether the store that releases `wait` would hold a stream that has not passed an earlier
    /// wait at the word, and that has its signal or needs a release as well. Waits are released in
    /// the order in which they were enqueued, because a later one may be behind an earlier one.
    fn holds_an_earlier_wait(&self, state: &State, entry: &Entry, wait: &SignalWait) -> bool {
        let earlier = state.requests.iter().filter(|(key, other)| {
            other.order < entry.order && state.requests.result(*key).is_none()
        });
        let mut waits = earlier.filter_map(|(_, other)| Some((other.peer, other.signal()?)));
        waits.any(|(rank, other)| {
            other.is_held_by(wait) && (state.given_up(rank).is_some() || other.is_met())
        })
    }

    fn advance_posted(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return false;
        };
        if let Some(stream) = entry.poster.stream.clone() {
            // The stream may use the memory until it reaches the receive.
            if entry.receive().is_none_or(|receive| !receive.wanted) {
                let lost = state.given_up(entry.peer).is_some();
                return lost && !arrived(state, key) && self.end_with_peer(state, key);
            }
            if !ask_reached(state, key, &stream) {
                return false;
            }
        }
        self.take_by_cpu(state, key) || self.end_with_peer(state, key)
    }

    /// Ends a request whose peer was given up. `true`: it was ended.
    fn end_with_peer(&self, state: &mut State, key: RequestKey) -> bool {
        let rank = state.requests.get(key).map(|entry| entry.peer);
        let failed = rank.and_then(|rank| state.given_up(rank));
        if let Some(status) = failed {
            self.finish(state, key, status, 0);
        }
        failed.is_some()
    }

    /// The work that is not needed in every round: failures, credits, mailboxes, retired channels,
    /// answers and the watchdog.
    fn slow_round(&self, state: &mut State, now: Time) -> bool {
        let mut done = false;
        if self.paths.maps()
            && state
                .peers
                .iter_mut()
                .any(|peer| peer.link.busy_lanes() > 0)
        {
            // Requests that asked for the reports of these lanes may all have ended.
            self.read_reports(state, now);
        }
        self.release_shared(state);
        self.late_replays(state);
        let lost = state.outbox.lost().is_some();
        for rank in 0..self.size {
            self.settle_zero_sm(state, rank, None);
            let tags = match state.peers.get(rank) {
                Some(peer) if peer.channels.has_deferred() => state.matcher.tags(&state.requests),
                _ => Vec::new(),
            };
            let setup = self.setup(&state.lanes);
            let Some(peer) = state.peers.get_mut(rank).filter(|peer| peer.is_here()) else {
                continue;
            };
            done |= peer.write_credits();
            let mut out = Vec::new();
            let made = peer.channels.make_mailboxes(&setup, &tags, &mut out);
            let failed = match made {
                Ok(()) => peer.link.error(),
                Err(_) => Some(Status::BAD_RESPONSE),
            };
            if let Some(status) = failed {
                let text = match made {
                    Ok(()) => self.status_text(state, rank, status),
                    Err(e) => format!("this rank cannot open its side: {e}"),
                };
                self.give_up(state, rank, status, Cause::Other(text));
                done = true;
                continue;
            }
            if !lost && peer.channels.is_crowded(self.config.channels) {
                let open = |entry: &&Entry| entry.send().is_some() && entry.status().is_none();
                let sends = state.requests.iter().map(|(_, entry)| entry).filter(open);
                let sends = sends.filter(|entry| entry.peer == rank);
                let busy: Vec<u32> = sends.map(|entry| entry.tag).collect();
                peer.channels.retire(self.config.channels, &busy, &mut out);
            }
            if let Standing::Here { leaving, .. } = &mut peer.standing
                && *leaving
                && peer.link.busy_lanes() == 0
                && peer.zero_sm.is_quiet()
            {
                *leaving = false;
                out.push(Control::Left);
            }
            if !out.is_empty() {
                self.send_control(state, rank, out);
                done = true;
            }
        }
        self.watch(state, now);
        self.watch_agreement(state, now);
        done
    }

    /// Removes ended requests, if there are many.
    #[inline]
    pub(crate) fn sweep_if_crowded(&self, state: &mut State) {
        if state.requests.is_crowded() {
            self.sweep(state);
        }
    }

    #[cold]
    fn sweep(&self, state: &mut State) {
        self.advance_all(state);
        state.requests.swept();
    }

    /// Ends all requests that can end now.
    pub(crate) fn advance_all(&self, state: &mut State) {
        if self.paths.maps() && self.error.load().unwrap_or(0) != 0 {
            // Behind a stream that has passed a failed receive, the end of this receive is found now.
            self.paths.copier().read_reports();
        }
        let mut keys = std::mem::take(&mut state.keys);
        state.requests.to_advance(&mut keys);
        for key in &keys {
            self.advance(state, *key);
        }
        state.keys = keys;
    }
}

/// Whether the message of a receive has arrived, or that of a zero-SM send has left.
pub(super) fn arrived(state: &State, key: RequestKey) -> bool {
    state.requests.get(key).is_some_and(|entry| {
        if let Some(message) = entry.zero_sm() {
            let (tag, number) = (entry.tag, entry.number);
            return state
                .peers
                .get(entry.peer)
                .is_some_and(|peer| match message.sends {
                    true => peer.zero_sm.has_left(tag, number, message.way),
                    false => peer.zero_sm.has_come(tag, number),
                });
        }
        let channel = state.receiving(entry.peer, entry.tag);
        channel.is_some_and(|channel| channel.has_come(entry.number, entry.large))
    })
}

/// Releases the stream that waits for a message that will not arrive. `true`: it was released.
fn release(state: &State, key: RequestKey, status: Status) -> bool {
    let Some(entry) = state.requests.get(key) else {
        return false;
    };
    let Some(channel) = state.receiving(entry.peer, entry.tag) else {
        return false;
    };
    let (number, large) = (entry.number, entry.large);
    // The word may still belong to the previous message, or already to this one. A kernel may wait for
    // the rest of a message that its sender did not finish.
    let whole = |w: u64| match word::parse(w) {
        (_, Some(WordKind::Flagged), len) => {
            !matches!(channel.flagged_payload(number, len as usize), Ok(None))
        }
        _ => true,
    };
    if channel.arrived(number, large).is_some_and(whole) || !channel.is_free(number) {
        return false;
    }
    let failed = word::word(number, WordKind::Failed, u64::from(status.0));
    channel.word(number, large).store(failed).is_ok()
}
