//! How requests end, by success, failure, cancellation or a dropped handle; how calls find the
//! failures; and how a peer is given up.

use gdsync::Status;

use super::bind::unbind;
use super::channel::RecvChannel;
use super::engine::Engine;
use super::marks::ask_reached;
use super::null::NULL_RANK;
use super::peer::{Cause, Failure, Peer};
use super::progress::arrived;
use super::receive::{ANY_RANK, check_ready_order};
use super::state::{State, known};
use super::texts::TOO_LONG;
use crate::error::{Error, Kind, Result};
use crate::path::{Batch, Link, Put};
use crate::request::entry::{Entry, Handle, Operation, Passed, ReceiveState, SendState, Waiter};
use crate::request::fault::{Fault, Name, Why};
use crate::request::table::RequestKey;
use crate::wire::control::Control;
use crate::wire::word::{self, WordKind};

impl Engine {
    /// Ends a request: stores the result, informs the peer, releases the memory, and removes the
    /// entry if its handle is dropped.
    pub(crate) fn finish(&self, state: &mut State, key: RequestKey, status: Status, len: u64) {
        let ended = |entry: &Entry| entry.status().is_some();
        if state.requests.get(key).is_none_or(ended) {
            return;
        }
        let failed = status != Status::SUCCESS && status != Status::CANCELLED;
        if failed {
            // Stored before the word that streams wait for.
            self.set_error(status);
            self.record_failure(state, key, status, len);
        }
        let looked_at = |e: &Entry| e.handle == Handle::Held || !e.waiters.is_empty();
        if state.requests.get(key).is_some_and(looked_at) && state.requests.result(key).is_none() {
            state.requests.set_result(key, status, len);
        }
        state.requests.note_end(key);
        let Some(entry) = state.requests.get_mut(key) else {
            return;
        };
        let stream = entry.poster.stream.take();
        if failed
            && entry.send().is_some_and(|send| send.late.is_some())
            && let Some(stream) = &stream
        {
            // The kernel of the send may be enqueued still, and stores its result.
            entry.waiters.push(Waiter {
                stream: stream.id(),
                order: 0,
                passed: Passed::AtEnd(stream.clone()),
            });
        }
        let late = entry.take_late();
        if let Some(peer) = state.peers.get_mut(entry.peer) {
            let limit = self.config.eager_limit(self.paths.to(entry.peer));
            peer.counts.ended(entry, status, len, limit as u64);
            if let Some((late, channel)) = late.zip(peer.channels.sends.get_mut(&entry.tag)) {
                channel.keep_late(late);
            }
        }
        entry.end_with(status);
        entry.len = len;
        entry.end.stream = stream.map(|stream| stream.id());
        let (segments, staging) = entry.take_memory();
        let (receive, rank, tag, number) =
            (entry.is_receive(), entry.peer, entry.tag, entry.number);
        let ordinary = entry.receive().is_some();
        if let Operation::ZeroSm(message) = &entry.operation
            && let Some(peer) = state.peers.get_mut(rank)
        {
            peer.zero_sm.ended(message.sends, tag, number);
        }
        state.trash.free_later(segments);
        let memory = &mut state.trash.memory;
        match staging {
            // The sender writes to it no more: the word that ended the receive came after the
            // payload, or in place of it. The puts of a send that read it are done.
            Some(staging) if matches!(status, Status::SUCCESS | Status::TRUNCATED) => {
                state.staging.keep(staging, memory);
            }
            // The NIC refuses later writes once the registration is released.
            staging => memory.extend(staging),
        }
        // The length is 0 if the sender dropped the message before it was posted: the sender then
        // has no failure to record.
        let known = || len == 0 || knows_too_long(state, rank, tag, number);
        if ordinary && receive && status == Status::TRUNCATED && !known() {
            self.send_control(state, rank, vec![Control::Truncated { tag, number, len }]);
        }
        if failed {
            self.drop_fault(state, key);
        }
        state.requests.forget(key);
    }

    /// Records the failure of a request that ends, or that had ended with success.
    fn record_failure(&self, state: &mut State, key: RequestKey, status: Status, len: u64) {
        if status == Status::ABORTED {
            return;
        }
        let order = state.faults.next_order();
        let Some(entry) = state.requests.get(key) else {
            return;
        };
        let name = entry.name();
        let failure = state.peers.get(entry.peer).and_then(Peer::failure);
        let own = matches!(status, Status::TRUNCATED | Status::LOCAL_LENGTH);
        let (order, why) = match failure.map(|failure| &failure.cause) {
            Some(Cause::Request { culprit, order, .. }) if *culprit == key => {
                (*order, Why::Culprit)
            }
            Some(_) if !own => (order, Why::Peer),
            _ => (order, Why::Own(self.own_text(state, entry, status, len))),
        };
        let posted = entry.poster.id().or(entry.end.stream);
        let waiters = entry.waiters.iter().map(|waiter| waiter.stream);
        let streams = posted.into_iter().chain(entry.claimed_by());
        let fault = Fault {
            order,
            name,
            status,
            why,
            streams: streams.chain(waiters).collect(),
        };
        if let Some(entry) = state.requests.get_mut(key) {
            state.faults.open += usize::from(!entry.end.returned);
            entry.end.fault = Some(Box::new(fault));
        }
    }

    /// Logs and keeps the failure of a request whose handle is dropped, if no call has returned it.
    fn drop_fault(&self, state: &mut State, key: RequestKey) {
        let entry = state.requests.get_mut(key);
        if let Some(entry) = entry.filter(|entry| entry.handle != Handle::Held)
            && let Some(fault) = entry.end.fault.take().filter(|_| !entry.end.returned)
        {
            self.keep_fault(state, *fault);
        }
    }

    fn keep_fault(&self, state: &mut State, fault: Fault) {
        let (me, text) = (self.rank, self.fault_text(state, &fault));
        let first = state.faults.counted.is_empty();
        if state.faults.keep(fault) {
            tracing::warn!(target: "mp", "rank {me}: a request that was dropped failed: {text}");
        } else if first {
            tracing::warn!(
                target: "mp",
                "rank {me}: further failures of dropped requests are counted, not named, until \
                 Context::close, Context::synchronize or Context::take_error returns them"
            );
        }
    }

    /// The first failure that no call has returned, for `stream` or for the whole context; `take`:
    /// this failure and all later ones count as returned. Behind those of requests, that of a graph on
    /// any stream.
    pub(crate) fn first_error(
        &self,
        operation: &'static str,
        stream: Option<u64>,
        take: bool,
    ) -> Option<Error> {
        let first = self.first_fault(operation, stream, take);
        first.or_else(|| self.replay_error(operation, take))
    }

    /// As [`Engine::first_error`], of a request.
    fn first_fault(
        &self,
        operation: &'static str,
        stream: Option<u64>,
        take: bool,
    ) -> Option<Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        self.advance_all(state);
        if state.faults.open == 0 && state.faults.counted.is_empty() {
            return None;
        }
        let mut first: Option<Fault> = None;
        let mut look = |fault: &Fault| {
            if first.as_ref().is_none_or(|first| fault.order < first.order) {
                first = Some(fault.clone());
            }
        };
        let mut open = 0;
        for (fault, returned) in state.requests.faults() {
            if fault.is_of(stream) {
                look(fault);
                open += 1;
                *returned = take;
            }
        }
        let faults = &mut state.faults;
        for fault in faults.kept.iter().filter(|fault| fault.is_of(stream)) {
            look(fault);
            open += 1;
        }
        let mut count = open;
        for (fault, more) in faults.counted.iter().filter(|(f, _)| f.is_of(stream)) {
            look(fault);
            count += more;
        }
        if take {
            faults.open -= open;
            faults.forget(stream);
        }
        let error = self.fault_error(state, operation, &first?);
        Some(match count {
            1 => error,
            n => error.and_more(n - 1),
        })
    }

    /// Refuses an announced message for which the receive has no room, before the receive ends: the
    /// sender's stream may be waiting at that send. `false`: the refusal cannot be sent now, and
    /// the receive must not end yet.
    pub(super) fn refuse(&self, state: &mut State, key: RequestKey) -> bool {
        let Some(entry) = state.requests.get(key) else {
            return true;
        };
        if entry.large || entry.receive().is_none_or(|receive| receive.refused) {
            return true;
        }
        let (rank, tag, number) = (entry.peer, entry.tag, entry.number);
        let Some(peer) = state.peers.get_mut(rank).filter(|peer| peer.is_here()) else {
            return true;
        };
        let Some(channel) = peer.channels.recvs.get_mut(&tag) else {
            return true;
        };
        let Some((Some(WordKind::Announce), len)) = channel.first_word(number) else {
            return true;
        };
        // The ready word of a later receive in the slot implies that this receive has ended. If a
        // stream writes that ready word, at an unknown time, no other word may overtake it: a
        // control message carries the refusal instead.
        let slot = channel.numbers.slot(number);
        let (mut is_later, mut by_control) = (false, false);
        for (_, entry) in state.requests.iter() {
            let of_channel = entry.peer == rank && entry.tag == tag && entry.receive().is_some();
            let behind = entry.number > number && channel.numbers.slot(entry.number) == slot;
            if of_channel && behind && entry.large && !entry.is_prepared() {
                is_later = true;
                by_control |= entry.poster.stream.is_some();
            }
        }
        let refused = is_later
            || match refusal(channel, &mut peer.link, number) {
                Ok(request) => {
                    *channel.ready_put(number) = Some((0, request));
                    true
                }
                Err(e) => !matches!(e.kind(), Kind::QueueFull | Kind::Busy),
            };
        if let Some(receive) = state.requests.receive_mut(key) {
            receive.refused = refused;
        }
        if by_control {
            self.send_control(state, rank, vec![Control::Truncated { tag, number, len }]);
        }
        refused
    }

    /// Stores the status of the first failed request.
    pub(super) fn set_error(&self, status: Status) {
        if self.error.load().unwrap_or(0) == 0 {
            // Pinned memory, which the CPU reaches: it cannot fail.
            let _ = self.error.store(status.0);
        }
    }

    /// Handles the receiver's report that a message of this rank was too long.
    pub(crate) fn was_truncated(
        &self,
        state: &mut State,
        rank: u32,
        tag: u32,
        number: u64,
        len: u64,
    ) {
        let Some(channel) = state.sending(rank, tag) else {
            return;
        };
        if number >= channel.numbers.next() {
            return;
        }
        // Numbers restart when a channel was retired and opened again.
        let first_use = channel.side.first_use;
        let eager = self.config.eager_limit(self.paths.to(rank)) as u64;
        let long = channel.has_long(len);
        self.set_error(Status::TRUNCATED);
        let found = state.requests.iter().find(|(_, entry)| {
            let this = entry.peer == rank && entry.tag == tag && entry.number == number;
            entry.send().is_some() && this && entry.order >= first_use
        });
        let Some((key, entry)) = found else {
            // The application dropped the request, which has ended and was removed. A long send had
            // failed already; a short one had succeeded.
            if len <= eager || long {
                self.keep_truncation(state, (rank, tag, number), len);
            }
            return;
        };
        let queued = match entry.send().map(|send| send.state) {
            Some(SendState::Queued { announced: true }) => true,
            Some(SendState::InFlight(_) | SendState::Done(Status::SUCCESS)) => false,
            _ => return,
        };
        if entry.large
            && let Some(channel) = state.sending(rank, tag)
        {
            channel.refuse(number);
        }
        if queued {
            // The send continues with the refused word.
            return;
        }
        self.fail_ended(state, key, len);
    }

    /// Fails a send whose message of `len` bytes was too long, also if it has ended with success. One that has not
    /// ended takes this result when it ends: the word is stored before its completion.
    pub(super) fn fail_ended(&self, state: &mut State, key: RequestKey, len: u64) {
        if let Some(entry) = state.requests.get_mut(key)
            && entry.status().is_some()
        {
            entry.end_with(Status::TRUNCATED);
            entry.len = len;
            self.record_failure(state, key, Status::TRUNCATED, len);
            self.drop_fault(state, key);
        }
        state.requests.set_result(key, Status::TRUNCATED, len);
    }

    /// Keeps the failure of a send whose message of `size` bytes was too long.
    #[cold]
    pub(super) fn keep_truncation(
        &self,
        state: &mut State,
        (rank, tag, number): (u32, u32, u64),
        size: u64,
    ) {
        let fault = Fault {
            order: state.faults.next_order(),
            name: Name {
                receive: false,
                one_sided: None,
                peer: Some(rank),
                tag,
                number,
                size,
            },
            status: Status::TRUNCATED,
            why: Why::Own(TOO_LONG.to_owned()),
            streams: Vec::new(),
        };
        state.faults.open += 1;
        self.keep_fault(state, fault);
    }

    /// Gives up the peer that caused the failure of a request.
    pub(super) fn give_up_for(
        &self,
        state: &mut State,
        key: RequestKey,
        status: Status,
        text: String,
    ) {
        let Some(entry) = state.requests.get(key) else {
            return;
        };
        let (rank, name) = (entry.peer, entry.name());
        let cause = Cause::Request {
            culprit: key,
            name,
            order: state.faults.next_order(),
            text,
        };
        self.give_up(state, rank, status, cause);
    }

    /// Ends a request of which only a part is enqueued on the stream: the peer would wait for the
    /// rest forever.
    pub(super) fn fail_partly_posted(&self, state: &mut State, key: RequestKey, e: &Error) {
        state.return_fault(key);
        let text = format!("only a part of the request was enqueued: {e}");
        self.give_up_for(state, key, Status::CLOSED, text);
        self.finish(state, key, Status::CLOSED, 0);
    }

    /// Gives a peer up: requests in flight with it end with an error, in the next rounds. A live
    /// peer is informed, because it would wait for messages that are never sent.
    pub(crate) fn give_up(&self, state: &mut State, rank: u32, status: Status, cause: Cause) {
        let me = self.rank;
        if !state.peers.get(rank).is_some_and(Peer::is_here) {
            return;
        }
        let lost = matches!(cause, Cause::Request { .. }) || self.loses(state, rank);
        if lost {
            // Stored before streams are released.
            self.set_error(status);
        }
        if lost || status != Status::REMOTE_ABORTED {
            let text = match &cause {
                Cause::Request { name, text, .. } => &format!("{name}: {text}"),
                Cause::Protocol(text) | Cause::Other(text) => text,
            };
            tracing::warn!(target: "mp", "rank {me}: rank {rank} is given up: {text}");
        } else {
            tracing::debug!(target: "mp", "rank {me}: rank {rank} has left");
        }
        self.fail_zero_sm(state, rank, status);
        if let Some(peer) = state.peers.get_mut(rank) {
            peer.fail(Failure { status, cause });
        }
        state.agreement.lose(rank);
        self.send_given_up(state, rank, false);
        self.host().ring();
    }

    /// Whether giving up `rank` fails a request.
    fn loses(&self, state: &mut State, rank: u32) -> bool {
        let mut keys = Vec::new();
        state.requests.to_advance(&mut keys);
        keys.into_iter().any(|key| {
            if state.fails_step(key, rank) {
                return true;
            }
            let entry = state.requests.get(key).filter(|entry| entry.peer == rank);
            let Some(entry) = entry else {
                return false;
            };
            if let Some(put) = entry.in_flight() {
                let peer = state.peers.get_mut(rank);
                let lane = peer.and_then(|peer| peer.link.lane(entry.poster.lane));
                let polled = lane.map(|lane| lane.poll(put));
                return !matches!(polled, None | Some(Ok(Some(Status::SUCCESS))));
            }
            match &entry.operation {
                Operation::Send(_) => entry.is_queued(),
                Operation::Receive(receive) => match receive.state {
                    ReceiveState::Posted | ReceiveState::Claimed(_) => !arrived(state, key),
                    _ => false,
                },
                Operation::Transfer(_) | Operation::Step(_) => false,
                // The stream continues, or has continued, by a signal that has arrived.
                Operation::Signal(_) => {
                    let missing = entry.signal().is_some_and(|wait| !wait.is_met());
                    missing && state.requests.result(key).is_none()
                }
                Operation::ZeroSm(_) => !arrived(state, key),
                Operation::Collective(_) => entry.collective().is_some_and(|open| {
                    let mut absent = open.team.absent(entry.number);
                    absent.any(|absent| absent == rank)
                }),
            }
        })
    }

    /// Cancels a request that was not posted, or a receive that no message has matched.
    pub(crate) fn cancel(&self, state: &mut State, key: RequestKey) -> Result<()> {
        const OPERATION: &str = "cancel request";
        let entry = known(&mut state.requests, key)?;
        let late = |what: &str| Err(Error::new(OPERATION, Kind::Unsupported, what));
        let unposted = entry.is_prepared();
        let one_sided = entry.action().is_some();
        let numbered = !matches!(entry.peer, ANY_RANK | NULL_RANK) && !one_sided;
        if !numbered && (unposted || entry.is_unmatched()) {
            if one_sided {
                // It has puts if a list posted only requests before it.
                unbind(state, key);
            }
            state.matcher.remove(key);
            self.finish(state, key, Status::CANCELLED, 0);
            return Ok(());
        }
        let unknown = match &entry.operation {
            Operation::Send(send) => send.state == SendState::Queued { announced: false },
            Operation::Receive(receive) => {
                let posted = receive.state == ReceiveState::Posted;
                posted && entry.poster.stream.is_none() && !entry.large
            }
            Operation::Transfer(_)
            | Operation::Signal(_)
            | Operation::Step(_)
            | Operation::Collective(_)
            | Operation::ZeroSm(_) => false,
        };
        if !unposted && !unknown {
            return late("the request was posted, and its message may be in flight; wait for it");
        }
        let Some(peer) = state.peers.get_mut(entry.peer) else {
            return late("the peer of the request is not connected");
        };
        let (tag, number) = (entry.tag, entry.number);
        let numbers = if entry.is_receive() {
            let channel = peer.channels.recvs.get_mut(&tag);
            if channel
                .as_ref()
                .is_some_and(|c| !unposted && c.has_come(number, entry.large))
            {
                return late("the message of the receive has arrived; wait for the request");
            }
            channel.map(|channel| &mut channel.numbers)
        } else {
            let channel = peer.channels.sends.get_mut(&tag);
            channel.map(|channel| &mut channel.numbers)
        };
        let Some(numbers) = numbers else {
            return late("the channel of the request is not open");
        };
        if !numbers.is_newest(number) {
            return late("a later request of the same rank and tag exists; cancel that one first");
        }
        if let Some(lane) = peer.link.lane(entry.poster.lane) {
            for put in entry.newest_puts() {
                lane.abort(put)?;
            }
        }
        numbers.give_back();
        self.finish(state, key, Status::CANCELLED, 0);
        Ok(())
    }

    /// Records that the application's handle is dropped.
    pub(crate) fn drop_handle(&self, state: &mut State, key: RequestKey) {
        let Some(entry) = state.requests.get_mut(key) else {
            return;
        };
        entry.handle = Handle::Dropped;
        if entry.status().is_some() {
            self.drop_fault(state, key);
            state.requests.forget(key);
        } else if entry.is_prepared() {
            let back = self.cancel(state, key);
            back.unwrap_or_else(|_| self.void(state, key));
        } else if let Operation::ZeroSm(message) = &mut entry.operation {
            message.wanted = true;
        } else if let Operation::Receive(receive) = &mut entry.operation
            && receive.state == ReceiveState::Posted
        {
            // No later call asks for its completion. The mark is enqueued now, while the stream
            // still has a handle.
            receive.wanted = true;
            if let Some(stream) = entry.poster.stream.clone() {
                ask_reached(state, key, &stream);
            }
        }
    }

    /// Voids a prepared request that was dropped while later requests have numbers. Its match ends
    /// without a message: a matching message is taken and discarded as too long, and a matching
    /// receive ends as if its message were too long.
    fn void(&self, state: &mut State, key: RequestKey) {
        let Some(entry) = state.requests.get_mut(key) else {
            return;
        };
        let peer = state.peers.get_mut(entry.peer);
        if let Some(lane) = peer.and_then(|peer| peer.link.lane(entry.poster.lane)) {
            for put in entry.newest_puts() {
                // Puts that are already aborted return an error here.
                let _ = lane.abort(put);
            }
        }
        let (rank, number) = (entry.peer, entry.number);
        tracing::warn!(
            target: "mp",
            "a prepared request with rank {rank} was dropped: its number {number} is void"
        );
        entry.handle = Handle::Void;
        entry.large = false;
        entry.len = 0;
        entry.puts = [None; 3];
        entry.poster.lane = 0;
        entry.poster.stream = None;
        match &mut entry.operation {
            Operation::Send(send) => {
                send.late = None;
                send.state = SendState::Queued { announced: false };
            }
            Operation::Receive(receive) => receive.state = ReceiveState::Posted,
            // Cancelled, or never prepared.
            Operation::Transfer(_)
            | Operation::Signal(_)
            | Operation::Step(_)
            | Operation::Collective(_)
            | Operation::ZeroSm(_) => {}
        }
        let (segments, staging) = entry.take_memory();
        state.trash.segments.push(segments);
        state.trash.memory.extend(staging);
        self.advance(state, key);
    }
}

/// Puts a word that refuses message `number`, whose receive has ended without it.
fn refusal(channel: &mut RecvChannel, link: &mut Link, number: u64) -> Result<Put> {
    check_ready_order(channel, link, number, 0)?;
    let Some(lane) = link.lane(0) else {
        return Err(Error::new(
            "prepare receive",
            Kind::Closed,
            "the lane is closed",
        ));
    };
    let refused = word::word(number, WordKind::Refused, 0).to_le_bytes();
    let mut batch = Batch::new(lane);
    batch.announce(&refused, channel.ready(number)?)?;
    batch.post()
}

/// Whether the word of a message has the kind TooLong, so that its sender has already failed it.
fn knows_too_long(state: &State, rank: u32, tag: u32, number: u64) -> bool {
    let word = state
        .receiving(rank, tag)
        .and_then(|channel| channel.first_word(number));
    matches!(word, Some((Some(WordKind::TooLong), _)))
}
