//! The parts of a step by the CPU, which waits and copies itself.

use std::time::Duration;

use super::by_stream::{Open, READY, Refused, SEND, WAIT, put_ready, reserve, with_plan};
use super::exchange::Exchange;
use crate::error::{Error, Kind, Result, time};
use crate::plan::Plan;
use crate::request::step::{PeerState, parity, reached};
use crate::two_sided::engine::Engine;
use crate::two_sided::{On, State, not_connected};

impl Engine {
    /// Sends the ready words of the next step to all neighbours.
    pub fn ready_by_cpu(&self, x: &Exchange) -> Result<()> {
        let mut calls = x.calls(READY)?;
        let step = calls.may_ready(x.ahead)?;
        self.with_lanes(x, On::Cpu, &mut calls, |open| {
            with_plan(open, |open, plan| {
                for (peer, port) in x.words.peers.iter().zip(&x.ports) {
                    if let Some(at) = open.at(peer.rank) {
                        put_ready(open, plan, at, port, step)?;
                    }
                }
                post(open, plan)
            })
        })?;
        calls.ready = step;
        Ok(())
    }

    /// Waits, at most `limit`, for the ready words of all neighbours, and sends them the data of
    /// the next step.
    pub fn send_by_cpu(&self, x: &Exchange, limit: Duration) -> Result<()> {
        let mut calls = x.calls(SEND)?;
        let step = calls.may_send()?;
        let late = self.wait_for_peers(x, limit, |state, _, peer| {
            reached(&peer.ready[parity(step)], step) || state.given_up(peer.rank).is_some()
        });
        if let Some(peer) = late {
            return Err(late_peer(SEND, peer, step, limit, "the ready word"));
        }
        x.pack.execute(parity(step))?;
        let record = self.with_lanes(x, On::Cpu, &mut calls, |open| {
            reserve(self, open)?;
            with_plan(open, |open, plan| {
                self.prepare_data(x, open, plan, step, None)?;
                post(open, plan)
            })?;
            Ok(self.record_step(x, open, step, None))
        })?;
        calls.sent = step;
        calls.sender = None;
        calls.record = record;
        Ok(())
    }

    /// Waits, at most `limit`, for the data of the step that was sent last, and for its own puts.
    pub fn wait_by_cpu(&self, x: &Exchange, limit: Duration) -> Result<()> {
        let mut calls = x.calls(WAIT)?;
        let step = calls.may_wait(None)?;
        let late = self.wait_for_peers(x, limit, |state, at, peer| {
            let arrived = reached(&peer.arrived[parity(step)], step);
            let lost = state.given_up(peer.rank).is_some();
            lost || arrived && state.sent(&x.words, at, step) == Some(true)
        });
        if let Some(peer) = late {
            return Err(late_peer(WAIT, peer, step, limit, "the data"));
        }
        if x.flushes {
            self.gpu.flush_remote_writes();
        }
        x.unpack.execute(parity(step))?;
        calls.waited = step;
        let Some(key) = calls.record.take() else {
            return Ok(());
        };
        let state = &mut *self.lock();
        // Finds the peers that were lost.
        self.advance_step(state, key);
        let record = state.requests.step_mut(key);
        let lost = record.and_then(|record| record.lost().map(|peer| (peer.rank, peer.receive)));
        self.end_step_of_call(state, key);
        let Some((rank, tag)) = lost else {
            return Ok(());
        };
        let error = match state.peers.get(rank) {
            Some(peer) => peer.error(WAIT),
            None => not_connected(WAIT, rank),
        };
        Err(error.of_message(Some(rank), tag, step))
    }

    /// Waits, at most `limit`, until `is_over` holds for each peer. Returns the first for which it
    /// does not.
    fn wait_for_peers<'x>(
        &self,
        x: &'x Exchange,
        limit: Duration,
        is_over: impl Fn(&mut State, usize, &PeerState) -> bool,
    ) -> Option<&'x PeerState> {
        let mut late = None;
        let mut from = 0;
        self.wait_until(limit, &mut |state| {
            let mut peers = x.words.peers.iter().enumerate().skip(from);
            late = peers.find(|(at, peer)| !is_over(state, *at, peer));
            // What is over stays over.
            from = late.map_or(0, |(at, _)| at);
            late.is_none()
        });
        late.map(|(_, peer)| peer)
    }
}

/// The error of a call that has waited for a peer until its limit.
#[cold]
fn late_peer(
    operation: &'static str,
    peer: &PeerState,
    step: u64,
    limit: Duration,
    what: &str,
) -> Error {
    let PeerState { rank, receive, .. } = peer;
    let what = format!(
        "step {step}: {what} has not arrived from the neighbour rank {rank}, receive tag \
         {receive}, within {}",
        time(limit)
    );
    Error::new(operation, Kind::Timeout, what).of_message(Some(*rank), *receive, step)
}

/// Posts the puts of a plan by the CPU.
fn post(open: &mut Open<'_>, plan: &mut Plan<'_>) -> Result<(), Refused> {
    let posted = plan.post_by_cpu(&mut open.state.peers);
    posted.map_err(|refusal| open.refused(refusal.error, refusal.torn))
}
