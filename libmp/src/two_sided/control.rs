//! Sends control messages through the bootstrap, and handles those of peers. `wire::control` has
//! their format, `outbox` those that wait.

use std::os::fd::{AsFd, OwnedFd};

use gdsync::Status;

use super::engine::Engine;
use super::outbox::UNSENT;
use super::peer::{Cause, Peer};
use super::ready::READY;
use super::state::State;
use crate::error::{Error, Kind, Result};
use crate::wire::control::Control;

/// Number of control messages that are handled under one lock.
const BURST: usize = 64;

impl Engine {
    /// Informs a rank that this rank sends nothing more to it; `closed`: nor to any other rank.
    pub fn send_given_up(&self, state: &mut State, rank: u32, closed: bool) {
        state.outbox.clear(rank);
        self.send_control(state, rank, vec![Control::GivenUp { closed }]);
    }

    /// Sends control messages; those that the bootstrap does not accept now are kept.
    pub fn send_control(&self, state: &mut State, rank: u32, messages: Vec<Control>) {
        for message in messages {
            if let Err(e) = self.send_shared(state, rank, message) {
                let text = format!("this rank cannot share memory with it: {e}");
                self.give_up(state, rank, Status::LOCAL_QP_OPERATION, Cause::Other(text));
            }
        }
        if let (_, Some(e)) = self.flush_outbox(state) {
            self.lose(state, &e);
        }
        if state.outbox.overflows(rank) {
            tracing::warn!(target: "mp", "rank {}: rank {rank} does not read messages", self.rank);
            let text = format!("rank {rank} does not read the control messages of this rank");
            self.give_up(state, rank, Status::BAD_RESPONSE, Cause::Other(text));
        }
    }

    /// Returns whether a message was sent, and the bootstrap's error if it does not reach the other
    /// ranks.
    fn flush_outbox(&self, state: &mut State) -> (bool, Option<Error>) {
        let send = |rank, message: &Control, fd: &mut Option<OwnedFd>| {
            if let Some(fd) = fd {
                self.bootstrap.send_fd(rank, self.topic, fd.as_fd())?;
            }
            *fd = None;
            self.bootstrap.send(rank, self.topic, &message.encode())
        };
        let sent = state.outbox.flush(send);
        if sent.any {
            self.host().ring();
        }
        for rank in sent.gone {
            // The rank is given up after its last control messages are read; see `progress`.
            if let Some(peer) = state.peers.get_mut(rank) {
                peer.liveness.gone = true;
                state.gone_poll.hurry();
            }
        }
        (sent.any, sent.lost)
    }

    /// Handles the loss of the bootstrap: open peers and channels stay usable.
    fn lose(&self, state: &mut State, e: &Error) {
        if state.outbox.mark_lost(e) {
            tracing::warn!(
                target: "mp",
                "rank {}: the bootstrap does not reach the other ranks any more: {e}; peers and \
                 tags that are open stay usable, no others can be opened",
                self.rank
            );
        }
        // Channels whose retirement could not be requested stay.
        for (rank, tag) in state.outbox.take_retires() {
            if let Some(peer) = state.peers.get_mut(rank) {
                peer.channels.unretire(tag);
            }
        }
    }

    /// Receives and handles control messages. `true`: there was one.
    pub fn receive_control(&self, state: &mut State) -> bool {
        state.outbox.try_again();
        let (mut heard, mut lost) = self.flush_outbox(state);
        for _ in 0..BURST {
            match self.bootstrap.receive(self.topic) {
                Ok(Some((rank, bytes))) => {
                    heard = true;
                    let handled = self.handle_control(state, rank, &bytes);
                    self.give_up_after(state, rank, handled);
                }
                Ok(None) => break,
                Err(e) => {
                    lost = Some(e);
                    break;
                }
            }
        }
        if self.paths.maps() {
            match self.handle_held(state) {
                Ok(any) => heard |= any,
                Err(e) => lost = Some(e),
            }
        }
        if let Some(e) = lost {
            self.lose(state, &e);
        }
        if state.outbox.mark_reached() {
            tracing::info!(
                target: "mp",
                "rank {}: the bootstrap reaches the other ranks again",
                self.rank
            );
        }
        heard
    }

    /// Handles all control messages that have arrived, including the last ones of a rank that is
    /// gone.
    pub fn drain_control(&self, state: &mut State) {
        for _ in 0..UNSENT {
            if !self.receive_control(state) {
                return;
            }
        }
    }

    /// Gives up a rank whose control message could not be handled.
    fn give_up_after(&self, state: &mut State, rank: u32, handled: Result<()>) {
        let Err(e) = handled else {
            return;
        };
        tracing::warn!(target: "mp", "rank {}: from rank {rank}: {e}", self.rank);
        let cause = match e.kind() {
            Kind::Protocol | Kind::QueueFull => Cause::Protocol(e.sentence()),
            _ => Cause::Other(format!("this rank cannot open its side: {e}")),
        };
        self.give_up(state, rank, Status::BAD_RESPONSE, cause);
    }

    /// Handles the control messages whose descriptors have arrived. `true`: there was one.
    fn handle_held(&self, state: &mut State) -> Result<bool> {
        let mut any = self.receive_descriptors(state)?;
        for rank in 0..self.size {
            while let Some(peer) = state.peers.get_mut(rank).filter(|peer| peer.is_here())
                && let Some(message) = peer.link.shared.next_held()
            {
                any = true;
                let handled = self.handle_message(state, rank, message);
                self.give_up_after(state, rank, handled);
            }
        }
        Ok(any)
    }

    fn handle_control(&self, state: &mut State, rank: u32, bytes: &[u8]) -> Result<()> {
        let Some(peer) = state.peers.make(rank) else {
            let what = format!("rank {rank} is not in the job of {} ranks", self.size);
            return Err(Error::new("read control message", Kind::Protocol, what).with_rank(rank));
        };
        peer.liveness.heard = Some(self.host().now());
        let message = match Control::decode(bytes) {
            // Accepted also from a peer that was given up: a message that it refused before must
            // not count as sent; the agreement itself ignores the notes of lost ranks.
            Ok(
                message @ (Control::Truncated { .. }
                | Control::Agree(_)
                | Control::GivenUp { closed: true }),
            ) => message,
            _ if !peer.is_here() => return Ok(()),
            message => message?,
        };
        let ready = match self.paths.maps() {
            true => peer.link.shared.admit(message)?,
            false => Some(message),
        };
        ready.map_or(Ok(()), |message| self.handle_message(state, rank, message))
    }

    fn handle_message(&self, state: &mut State, rank: u32, mut message: Control) -> Result<()> {
        let setup = self.setup(&state.lanes);
        let Some(peer) = state.peers.make(rank) else {
            return Ok(());
        };
        for block in message.blocks_mut().into_iter().flatten() {
            peer.link.shared.translate(block)?;
        }
        let mut out = Vec::new();
        let handled = peer.handle(&setup, &message, &mut out);
        self.send_control(state, rank, out);
        match message {
            Control::Truncated { tag, number, len } => {
                self.was_truncated(state, rank, tag, number, len);
            }
            Control::GivenUp { closed } => {
                let status = Status::REMOTE_ABORTED;
                let cause = Cause::Other(self.status_text(state, rank, status));
                self.give_up(state, rank, status, cause);
                match closed {
                    true => state.agreement.lose(rank),
                    // It lives, and counts this rank as lost.
                    false => state.agreement.spare(rank),
                }
            }
            Control::Window { number: READY, .. } => self.name_ready(state, rank)?,
            // The peer may have named its ready words before the path was chosen.
            Control::AskPath { .. } | Control::AnswerPath(_)
                if state.peers.get(rank).is_some_and(Peer::has_ready_words) =>
            {
                self.name_ready(state, rank)?;
            }
            Control::Up { lane: 0 } => self.announce_all(state, rank)?,
            Control::Agree(note) => {
                state.agreement.receive(rank, note)?;
                // The next note may belong to the next agreement.
                self.advance_agreement(state);
            }
            Control::Broken {
                id,
                call,
                rank: culprit,
                status,
            } => self.team_broke(state, rank, (id, call, culprit, status))?,
            _ => {}
        }
        handled
    }
}
