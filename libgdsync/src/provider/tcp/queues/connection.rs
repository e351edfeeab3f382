//! The connection of a queue pair: how it begins, and how long a peer may take.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::TcpQueues;
use crate::provider::tcp::dial::Dial;
use crate::provider::tcp::frame::{Head, Kind};
use crate::provider::tcp::greeting::{Claim, End, Key, Verdict};
use crate::provider::tcp::seal::Seal;
use crate::provider::tcp::wire::Wire;

/// The connection.
pub(super) enum Link {
    /// The queue pair is in its first state.
    None,
    /// The peer connects.
    Awaited,
    /// This side connects.
    Dialled(Box<Dial>),
    Open(Box<dyn Wire>),
    Broken,
}

/// The answer to a peer that connects.
pub enum Offer {
    Taken,
    /// Not yet: the peer's address is not known here.
    Later,
    Refused(Verdict),
}

impl TcpQueues {
    /// Begins a connection of this side, `ends[0]`, to a peer that accepts at an address, by so many
    /// sockets, or that connects to this side.
    pub fn connect(&mut self, ends: [End; 2], at: Option<(SocketAddr, u8)>) {
        self.ends = ends;
        self.link = match at {
            None => Link::Awaited,
            Some((at, sockets)) => {
                let [from, to] = ends;
                let claim = Claim {
                    sockets,
                    ..Claim::new(to, from, self.shared.encrypted)
                };
                let (key, poller) = (self.shared.key, &self.shared.poller);
                Link::Dialled(Box::new(Dial::new(
                    at,
                    claim,
                    key,
                    poller.clone(),
                    self.limit,
                )))
            }
        };
    }

    /// Connects the queue pair to itself.
    pub fn connect_to_itself(&mut self, ends: [End; 2], wire: Box<dyn Wire>) {
        self.ends = ends;
        (self.link, self.confirmed) = (Link::Open(wire), true);
    }

    /// A connection by `wire` of a peer that has proven its claim. The peer gives up a connection
    /// before it begins another one. Those that have waited for this queue pair come in any order, so
    /// `number` says which is later.
    pub fn offer(
        &mut self,
        number: u64,
        claim: &Claim,
        keys: [Key; 2],
        wire: impl FnOnce(Option<Duration>) -> Option<Box<dyn Wire>>,
    ) -> Offer {
        if claim.encrypted != self.shared.encrypted {
            return Offer::Refused(Verdict::Encryption);
        }
        let awaited = match &self.link {
            Link::None => return Offer::Later,
            Link::Awaited => true,
            Link::Open(_) => !self.confirmed && number > self.number,
            _ => false,
        };
        if !awaited || [claim.to, claim.from] != self.ends {
            return Offer::Refused(Verdict::NotNow);
        }
        let Some(wire) = wire(self.limit) else {
            return Offer::Refused(Verdict::NotNow);
        };
        self.await_again();
        self.number = number;
        let [theirs, ours] = keys;
        self.open(wire, ours, theirs);
        Offer::Taken
    }

    fn open(&mut self, wire: Box<dyn Wire>, ours: Key, theirs: Key) {
        if self.shared.encrypted {
            self.output.seal(Some(Seal::new(&ours)));
            self.input.seal(Some(Seal::new(&theirs)));
        }
        // What has arrived with the greeting is read without a look.
        (self.link, self.more) = (Link::Open(wire), true);
    }

    /// Drops a connection that the peer does not use; it connects again.
    pub(super) fn await_again(&mut self) {
        if let Link::Open(wire) = std::mem::replace(&mut self.link, Link::Awaited) {
            wire.close();
        }
        self.output.seal(None);
        self.input.seal(None);
        self.peer.forget();
    }

    /// Whether a connection that a request waits for takes too long.
    pub(super) fn is_late(&mut self) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.limit.is_some_and(|limit| since.elapsed() > limit)
    }

    /// Goes on to connect, if this side does so. Returns whether the connection is open.
    pub(super) fn connecting(&mut self) -> bool {
        let Link::Dialled(dial) = &mut self.link else {
            return false;
        };
        let Some((wire, [ours, theirs])) = dial.step() else {
            return false;
        };
        self.open(wire, ours, theirs);
        self.confirmed = true;
        if self.output.is_empty() {
            self.push_head(Head::new(Kind::Ack, 0));
        }
        true
    }
}
