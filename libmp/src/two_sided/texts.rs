//! The texts that describe what a request waits for and why it failed. Errors, the watchdog and
//! logs use the same ones.

use std::fmt;
use std::time::Duration;

use gdsync::Status;

use super::any::unexpected;
use super::config::Progress;
use super::engine::Engine;
use super::liveness::Life;
use super::null::NULL_RANK;
use super::peer::{Cause, Failure, Peer, Peers};
use super::receive::ANY_RANK;
use super::state::State;
use crate::error::{Error, Kind, time};
use crate::path::Path;
use crate::request::collective::TeamFailure;
use crate::request::entry::{Entry, Handle, Operation};
use crate::request::fault::{Fault, Name, Why};
use crate::request::one_sided::{Action, SignalWait};
use crate::request::step::Lacking;
use crate::request::zero_sm::Way;

/// The reason of a failed send whose message is too long.
pub(super) const TOO_LONG: &str = "the message is longer than its receive";

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The request's message.
    Message,
    /// The CPU of this rank, to match an arrived message with a receive from any rank.
    Match,
    /// Credit from the receiver, which has taken this many of the last messages.
    Room { taken: u32 },
    /// The receiver, to take an earlier zero-SM message in.
    Slot,
    /// The receiver, to take the zero-SM message in.
    Copy,
    /// The peer's receive.
    Receive,
    /// The CPU of this rank, to send the message.
    Cpu,
    /// The signal that a stream waits for.
    Signal,
    /// A word of a neighbour in an exchange.
    Neighbour(Lacking),
    /// A rank, to join a collective call.
    Rank,
}

impl Entry {
    /// The name of the request, for texts.
    pub(crate) fn name(&self) -> Name {
        Name {
            receive: self.is_receive(),
            one_sided: self.action(),
            peer: (self.peer != ANY_RANK).then_some(self.peer),
            tag: self.tag,
            number: self.number,
            size: self.len,
        }
    }
}

impl Name {
    /// Sets what an error, whose text names the request, says of it to programs.
    #[cold]
    pub(crate) fn attribute(&self, error: Error) -> Error {
        match (self.one_sided, self.peer) {
            (Some(Action::Exchange), peer) => error.of_message(peer, self.tag, self.number),
            (Some(_), Some(peer)) => error.with_rank(peer),
            _ => error.of_message(self.peer, self.tag, self.number),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Name {
            receive,
            one_sided,
            peer,
            tag,
            number,
            size,
        } = self;
        if let (Some(action), Some(peer)) = (one_sided, peer) {
            match action {
                Action::Put => write!(f, "put of {size} bytes at offset {number}")?,
                Action::Get => write!(f, "get of {size} bytes at offset {number}")?,
                Action::Signal => write!(f, "signal at offset {number}")?,
                Action::FetchAdd => write!(f, "fetch-add at offset {number}")?,
                Action::CompareSwap => write!(f, "compare-swap at offset {number}")?,
                Action::Quiet => write!(f, "quiet")?,
                Action::Exchange => {
                    return write!(
                        f,
                        "exchange with the neighbour rank {peer}, tag {tag}, step {number}"
                    );
                }
                Action::Collective(call) => {
                    return write!(f, "{}, call {number} of its collectives", call.name());
                }
                Action::WaitSignal => {
                    return write!(
                        f,
                        "wait for the signal of rank {peer} at offset {number} of this rank's \
                         window"
                    );
                }
                Action::WaitReady => return write!(f, "wait for the ready word of rank {peer}"),
                Action::WaitWord => {
                    return write!(
                        f,
                        "wait for the word that rank {peer} stores at offset {number} of this \
                         rank's memory"
                    );
                }
            }
            return match *peer {
                NULL_RANK => write!(f, " of the window of the null rank"),
                peer => write!(f, " of the window of rank {peer}"),
            };
        }
        match (receive, peer) {
            (_, None) => write!(f, "receive from any rank, tag {tag}"),
            (true, Some(NULL_RANK)) => write!(f, "receive from the null rank, tag {tag}"),
            (false, Some(NULL_RANK)) => write!(f, "send to the null rank, tag {tag}"),
            (true, Some(peer)) => {
                write!(f, "receive from rank {peer}, tag {tag}, message {number}")
            }
            (false, Some(peer)) => write!(
                f,
                "send of {size} bytes to rank {peer}, tag {tag}, message {number}"
            ),
        }
    }
}

/// Formats ranks as a list.
pub(crate) fn join(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    names.join(", ")
}

/// What a request waits for; `None` if it waits for nothing.
pub(super) fn lack(peers: &Peers, entry: &Entry) -> Option<Lack> {
    if entry.is_unmatched() {
        return Some(match unexpected(peers, entry.tag, 0) {
            Some(_) => Lack::Match,
            None => Lack::Message,
        });
    }
    if let Some(step) = entry.step() {
        let (_, lacking) = step.lack()?;
        return Some(Lack::Neighbour(lacking));
    }
    if entry.action().is_some() {
        let open = entry.collective();
        let open = open.filter(|open| open.team.absent(entry.number).next().is_some());
        return open
            .map(|_| Lack::Rank)
            .or(entry.signal().map(|_| Lack::Signal));
    }
    if let Some(message) = entry.zero_sm() {
        let (tag, number, channels) = (entry.tag, entry.number, &peers.get(entry.peer)?.zero_sm);
        if !message.sends {
            return (!channels.has_come(tag, number)).then_some(Lack::Message);
        }
        let lack = match message.way {
            Way::Direct => Lack::Receive,
            Way::Staged { .. } => Lack::Slot,
            Way::Pulled => Lack::Copy,
        };
        return channels.send_lacks(tag, number).then_some(lack);
    }
    let (number, channels) = (entry.number, &peers.get(entry.peer)?.channels);
    if entry.is_receive() {
        let channel = channels.recvs.get(&entry.tag)?;
        let there = channel.seems_to_have_come(number, entry.large);
        return (!there).then_some(Lack::Message);
    }
    let channel = channels.sends.get(&entry.tag)?;
    if channel.blocked_by(number).is_some() {
        let taken = channel.taken_before(number);
        return Some(Lack::Room { taken });
    }
    if entry.large && channel.reply(number).is_none() {
        return Some(Lack::Receive);
    }
    entry.is_queued().then_some(Lack::Cpu)
}

impl Engine {
    /// Says what a request waits for, and what to check; `within`: the time waited, with a leading
    /// space.
    fn lacks(&self, state: &State, entry: &Entry, lack: Option<Lack>, within: &str) -> String {
        let (rank, depth) = (entry.peer, self.config.depth);
        let eager = self.config.eager_limit(self.paths.to(rank));
        let manual = match self.config.progress {
            Progress::Manual => "; call progress() (Progress::Manual)",
            Progress::Background => "",
        };
        let (what, check) = match lack {
            Some(Lack::Message) if entry.is_unmatched() => {
                return format!(
                    "no message has arrived{within}; check that a rank sends under this tag"
                );
            }
            Some(Lack::Match) => {
                return format!(
                    "a message has arrived, and the CPU of this rank has not matched \
                     it{within}{manual}"
                );
            }
            Some(Lack::Cpu) => {
                return format!("the CPU of this rank has not sent the message{within}{manual}");
            }
            Some(Lack::Signal) => (
                format!("no signal has arrived{within}"),
                "; check that it stores to this offset a value that satisfies the condition"
                    .to_owned(),
            ),
            Some(Lack::Neighbour(Lacking::Ready)) => (
                format!("its ready word has not arrived{within}"),
                "; check that it calls Neighbourhood::ready_on, exchange_on or ready in each step"
                    .to_owned(),
            ),
            Some(Lack::Neighbour(Lacking::Data)) => (
                format!("its data has not arrived{within}"),
                "; check that it calls Neighbourhood::send_on, exchange_on or send in each step"
                    .to_owned(),
            ),
            Some(Lack::Rank) => {
                let number = entry.number;
                let open = entry.collective().into_iter();
                let absent: Vec<u32> = open.flat_map(|open| open.team.absent(number)).collect();
                (
                    format!("rank {} has not joined the call{within}", join(&absent)),
                    "; check that all ranks make the same calls in the same order".to_owned(),
                )
            }
            Some(Lack::Message) => (
                format!("no message has arrived{within}"),
                "; check that both ranks use the same tags in the same order".to_owned(),
            ),
            Some(Lack::Room { taken }) => (
                format!(
                    "no credit has arrived{within}: rank {rank} has received {taken} of the last \
                     {depth} messages (Builder::depth)"
                ),
                "; check that it posts a receive for each message".to_owned(),
            ),
            Some(Lack::Slot) => (
                format!("rank {rank} has not taken in the message 16 before{within}"),
                "; check that a stream or the CPU waits for each receive".to_owned(),
            ),
            Some(Lack::Copy) => (
                format!("rank {rank} has not taken the message in{within}"),
                "; check that it posts the receive, and that a stream or the CPU waits for it"
                    .to_owned(),
            ),
            Some(Lack::Receive) if entry.zero_sm().is_some() => (
                format!("no stream of rank {rank} has reached its receive{within}"),
                "; check that both ranks post zero-SM messages of a tag in the same order"
                    .to_owned(),
            ),
            Some(Lack::Receive) => {
                let stream = match entry.poster.stream {
                    Some(_) => "holds its stream",
                    None => "waits",
                };
                (
                    format!("rank {rank} has posted no receive{within}"),
                    format!(
                        "; post the receive first: a message above the eager limit ({eager} \
                         bytes) {stream} until then"
                    ),
                )
            }
            None => (format!("the request has not ended{within}"), String::new()),
        };
        self.with_life(state, entry, &what, &check)
    }

    /// Adds to what a request waits for what is known of its peer; `check`: what to check if the
    /// peer is alive.
    fn with_life(&self, state: &State, entry: &Entry, what: &str, check: &str) -> String {
        let rank = entry.peer;
        match self.life(state.peers.get(rank), entry.since) {
            Life::Alive => format!("{what}; rank {rank} is alive{check}"),
            Life::Own => format!("{what}; rank {rank} is this rank{check}"),
            Life::Gone => format!("{what}; rank {rank} has left the job or has died"),
            Life::Silent(ago) => {
                let ago = time(ago);
                format!(
                    "{what}; rank {rank} has not answered a ping for {ago}: it may be stopped, \
                     busy or dead"
                )
            }
            Life::Unknown => format!("{what}; it is not known whether rank {rank} is alive"),
        }
    }

    /// Describes what a stream waits for with a request, and what to check.
    pub(super) fn wait_text(&self, state: &State, entry: &Entry) -> Option<String> {
        let lack = lack(&state.peers, entry)?;
        if entry.signal().is_some_and(SignalWait::is_met) {
            // The stream has not reached the wait.
            return None;
        }
        let lacks = self.lacks(state, entry, Some(lack), "");
        Some(format!("{}: {lacks}", entry.name()))
    }

    /// Describes what a request waits for that has not ended within a limit.
    fn late(&self, state: &State, entry: &Entry, limit: Duration, setting: &str) -> String {
        let within = format!(" within {}{setting}", time(limit));
        self.lacks(state, entry, lack(&state.peers, entry), &within)
    }

    /// The text for a request that has not ended within the caller's `limit`.
    pub(crate) fn late_text(&self, state: &State, entry: &Entry, limit: Duration) -> String {
        format!("{}: {}", entry.name(), self.late(state, entry, limit, ""))
    }

    /// The text for a request whose timeout has expired.
    pub(super) fn timeout_text(&self, state: &State, entry: &Entry) -> String {
        let setting = match (entry.timeout, entry.is_receive()) {
            (None, _) => " (Builder::timeout)",
            (Some(_), true) => " (RecvOp::timeout)",
            (Some(_), false) => " (SendOp::timeout)",
        };
        let limit = entry.timeout.unwrap_or(self.config.timeout);
        self.late(state, entry, limit, setting)
    }

    /// Describes what a NIC status means for a peer.
    pub(crate) fn status_text(&self, state: &State, rank: u32, status: Status) -> String {
        let device = match self.paths.ways(rank) {
            [_, Path::Tcp] => "TCP",
            _ => "the NIC",
        };
        match status {
            Status::TRANSPORT_RETRY if device == "TCP" => format!(
                "the TCP connection to rank {rank} broke or could not be made: the rank has died, \
                 the network to it is interrupted, or a firewall blocks its port"
            ),
            Status::TRANSPORT_RETRY => format!(
                "rank {rank} did not acknowledge a packet, and the retries of the NIC are \
                 exhausted: the rank has died, or the network to it is interrupted"
            ),
            Status::TIMEOUT => {
                let life = match self.life(state.peers.get(rank), None) {
                    Life::Gone => format!("rank {rank} has left the job or has died"),
                    _ => format!("it is not known whether rank {rank} is alive"),
                };
                let limit = time(self.config.timeout);
                format!(
                    "{device} has completed no request within {limit} (Builder::timeout); {life}"
                )
            }
            Status::REMOTE_ABORTED => format!(
                "rank {rank} dropped its context, or gave this rank up after one of its requests \
                 failed"
            ),
            status => format!("the connection to rank {rank} failed: {status}"),
        }
    }

    /// The text for a request that failed itself.
    pub(super) fn own_text(
        &self,
        state: &State,
        entry: &Entry,
        status: Status,
        len: u64,
    ) -> String {
        if let Operation::Collective(collection) = &entry.operation {
            let failure = collection.team.failure();
            return failure.map_or_else(String::new, |failure| failure.text.clone());
        }
        match status {
            Status::TRUNCATED if entry.handle == Handle::Void => {
                format!(
                    "the receive was dropped before it was posted, and its message of {len} bytes \
                     was discarded"
                )
            }
            Status::TRUNCATED if entry.is_receive() && len > entry.len => {
                let room = entry.len;
                format!("the message has {len} bytes, and its receive has room for {room}")
            }
            Status::TRUNCATED if entry.is_receive() => {
                "the sender dropped the message, or the message is longer than was announced"
                    .to_owned()
            }
            Status::TRUNCATED => TOO_LONG.to_owned(),
            Status::TIMEOUT => self.timeout_text(state, entry),
            status => format!("the request failed: {status}"),
        }
    }

    /// The text for a failure.
    pub(crate) fn fault_text(&self, state: &State, fault: &Fault) -> String {
        let name = fault.name;
        let rank = name.peer.unwrap_or(ANY_RANK);
        let failure = state.peers.get(rank).and_then(Peer::failure);
        match (&fault.why, failure) {
            (Why::Own(text), _) => format!("{name}: {text}"),
            (
                Why::Culprit,
                Some(Failure {
                    cause: Cause::Request { text, .. },
                    ..
                }),
            ) => format!("{name}: {text}"),
            (_, Some(failure)) => format!("{name}: {}", failure.of_others(rank)),
            (_, None) => format!("{name}: the request failed: {}", fault.status),
        }
    }

    /// The error for a failure.
    #[cold]
    pub(crate) fn fault_error(
        &self,
        state: &State,
        operation: &'static str,
        fault: &Fault,
    ) -> Error {
        let peer = fault.name.peer;
        let text = self.fault_text(state, fault);
        let failure = peer.and_then(|rank| state.peers.get(rank)?.failure());
        let kind = match (&fault.why, failure) {
            (Why::Own(_), _) if fault.status == Status::TRUNCATED => Kind::Truncated,
            (Why::Own(_), _) if matches!(fault.name.one_sided, Some(Action::Collective(_))) => {
                TeamFailure::kind_of_stream(fault.status)
            }
            (Why::Own(_), _) => Kind::Failed(fault.status),
            (_, Some(failure)) => failure.kind(),
            (_, None) => Kind::PeerFailed(fault.status),
        };
        fault.name.attribute(Error::new(operation, kind, text))
    }
}
