//! Leaving the job: orderly, when nothing is in flight to or from this rank, or at once.

use std::time::Duration;

use gds_step::{Thread, Time};
use gdsync::Status;
use gdsync::gpu::Event;

use super::engine::Engine;
use super::peer::{Cause, Closing, Failure, Peer, Standing};
use super::texts::join;
use crate::error::{Error, Kind, Result, time};
use crate::wire::control::Control;

impl Engine {
    /// Leaves in order; see [`Context::close`](crate::Context::close).
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
            let (limit, open) = (time(limit), open.join("; "));
            let requests = if count == 1 { "request" } else { "requests" };
            let what = format!("{count} {requests} did not end within {limit}: {open}");
            return Err(Error::new(OPERATION, Kind::Timeout, what));
        }
        self.settle(deadline);
        self.ask_to_leave(true);
        let mut unanswered = Vec::new();
        self.wait(deadline, &mut || {
            self.ask_to_leave(false);
            self.progress();
            unanswered = self.unanswered();
            unanswered.is_empty()
        });
        match unanswered.first() {
            None => Ok(()),
            Some(rank) => {
                let what = format!(
                    "no answer arrived within {} from rank {}; check that each runs, and that it \
                     calls progress() if it has Progress::Manual",
                    time(limit),
                    join(&unanswered)
                );
                Err(Error::new(OPERATION, Kind::Timeout, what).with_rank(*rank))
            }
        }
    }

    /// Waits until what streams have sent by mapped memory is visible to the peers. A send ends when its payload is
    /// read; its stores are visible when its kernel has ended.
    fn settle(&self, deadline: Time) {
        /// Much longer than the end of a kernel takes. A stream that waits for later work of the application
        /// has ended its earlier kernels.
        const MOST: Duration = Duration::from_millis(5);
        if !self.paths.maps() {
            return;
        }
        let ends: Vec<Event> = self.lock().lanes.ends().collect();
        let is_done = |end: &Event| end.is_done().unwrap_or(true);
        self.wait(deadline.min(self.host().now() + MOST), &mut || {
            ends.iter().all(is_done)
        });
    }

    /// Asks peers whether a message is in flight to this rank: all peers, or those that are new
    /// since.
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
            self.send_control(&mut state, rank, vec![Control::Leaving]);
        }
    }

    /// Ranks that were asked and have not answered. Empty if the bootstrap is lost, because no
    /// answer can arrive.
    fn unanswered(&self) -> Vec<u32> {
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

    /// Names of the requests that were posted and have not ended.
    fn unfinished(&self) -> Vec<String> {
        let mut state = self.lock();
        let mut open = Vec::new();
        for (key, entry) in state.requests.iter() {
            let by_stream = entry.in_flight().is_some()
                || entry.claimed_by().is_some()
                || entry.signal().is_some()
                || entry.step().is_some()
                || entry.collective().is_some()
                || entry.zero_sm().is_some_and(|message| message.sends);
            if (by_stream || entry.is_queued()) && state.requests.result(key).is_none() {
                open.push(entry.name().to_string());
            }
        }
        for peer in state.peers.iter_mut().filter(|peer| peer.is_here()) {
            peer.write_credits();
            let busy = peer.link.busy_lanes();
            let what = format!("credits, ready words or fences to rank {}", peer.rank);
            open.extend(std::iter::repeat_n(what, busy));
        }
        open
    }

    /// Gives up all that is unfinished, without a wait: no handle is left. Waiting streams are
    /// released; those that wait for several values of one word by a machine, one after the other.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        for rank in 0..self.size {
            if let Some(peer) = state.peers.get_mut(rank) {
                if peer.is_here() {
                    let cause = Cause::Other("this rank dropped its context".to_owned());
                    let status = Status::CLOSED;
                    peer.fail(Failure { status, cause });
                }
                for channel in peer.channels.recvs.values() {
                    channel.release(Status::CLOSED);
                }
                self.send_given_up(&mut state, rank, true);
            }
        }
        // The streams may be about to find the signals; they continue in both cases.
        let mut releases = state.requests.releases();
        if releases.release() {
            self.host().attach(Thread::Watch, Box::new(releases));
        }
        let mut keys = Vec::new();
        state.requests.to_advance(&mut keys);
        for key in keys {
            // The context is dropped: no call can return the failure.
            state.return_fault(key);
            let Some(entry) = state.requests.get(key) else {
                continue;
            };
            if let Some(step) = entry.step() {
                step.words.release();
            }
            if let Some(collection) = entry.collective() {
                collection.team.release_at_once(entry.number);
            }
            // The kernel after the wait stores the result of a claimed receive, and the stream that
            // of a wait for a signal, which `releases` reads.
            let claimed = entry.receive().is_some() && entry.claimed_by().is_some();
            let by_stream = claimed || entry.signal().is_some();
            if !by_stream && entry.in_flight().is_none() {
                self.finish(&mut state, key, Status::CLOSED, 0);
            }
        }
        self.host().ring();
    }
}
