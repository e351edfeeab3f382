//! The outbox: control messages that wait for the bootstrap, and whether it reaches the other
//! ranks.

use std::mem;
use std::os::fd::OwnedFd;

use crate::error::{Error, Kind, Result};
use crate::wire::control::Control;

/// Maximum number of control messages that are kept for a rank that does not accept them.
pub(super) const UNSENT: usize = 16384;

/// Whether the bootstrap reaches the other ranks.
#[derive(Debug, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Good,
    /// It did not reach them, and is retried.
    Tried,
    /// It does not reach them, for this reason.
    Lost(String),
}

/// The result of a flush.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// At least one message was sent.
    pub any: bool,
    /// Ranks that are gone, as the bootstrap reports.
    pub gone: Vec<u32>,
    /// The error if the bootstrap does not reach the other ranks.
    pub lost: Option<Error>,
}

/// A message that waits.
#[derive(Debug)]
struct Waiting {
    to: u32,
    message: Control,
    /// The descriptor that is sent before it.
    fd: Option<OwnedFd>,
}

/// The waiting messages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Vec<Waiting>,
    reach: Reach,
}

impl Outbox {
    pub fn push(&mut self, rank: u32, messages: Vec<Control>) {
        let messages = messages.into_iter();
        self.waiting.extend(messages.map(|message| Waiting {
            to: rank,
            message,
            fd: None,
        }));
    }

    /// As [`Outbox::push`], for a message with a descriptor.
    pub fn push_with(&mut self, to: u32, message: Control, fd: OwnedFd) {
        let fd = Some(fd);
        self.waiting.push(Waiting { to, message, fd });
    }

    /// Drops the messages that wait for a rank.
    pub fn clear(&mut self, rank: u32) {
        self.waiting.retain(|waiting| waiting.to != rank);
    }

    /// Sends what `send` accepts, in order for each rank, and keeps the rest. `send` takes the
    /// descriptor when it has sent it.
    pub fn flush(
        &mut self,
        mut send: impl FnMut(u32, &Control, &mut Option<OwnedFd>) -> Result<()>,
    ) -> Sent {
        let mut sent = Sent::default();
        let mut blocked: Vec<u32> = Vec::new();
        for mut waiting in mem::take(&mut self.waiting) {
            let rank = waiting.to;
            if blocked.contains(&rank) {
                self.waiting.push(waiting);
                continue;
            }
            let message = &waiting.message;
            match send(rank, message, &mut waiting.fd) {
                Ok(()) => sent.any = true,
                // Question and answer are useful only while they are new.
                Err(e)
                    if e.kind() != Kind::QueueFull
                        && matches!(message, Control::Ping | Control::Pong) => {}
                Err(e) if matches!(e.kind(), Kind::PeerFailed(_)) => {
                    if !matches!(message, Control::GivenUp { .. }) {
                        sent.gone.push(rank);
                    }
                }
                Err(e) => {
                    blocked.push(rank);
                    self.waiting.push(waiting);
                    if e.kind() != Kind::QueueFull {
                        // The error concerns the bootstrap, not the peer.
                        sent.lost = Some(e);
                    }
                }
            }
        }
        sent
    }

    /// Whether too many messages wait for a rank. If the bootstrap is lost, the rank is not the
    /// cause: the oldest messages are kept, and the result is `false`.
    pub fn overflows(&mut self, rank: u32) -> bool {
        let full = self.waiting.iter().filter(|one| one.to == rank).count() > UNSENT;
        if full && self.lost().is_some() {
            let mut room = UNSENT;
            self.waiting.retain(|one| {
                let keep = one.to != rank || room > 0;
                room -= usize::from(one.to == rank && room > 0);
                keep
            });
            return false;
        }
        full
    }

    /// Removes the messages that ask ranks to retire tags, and returns their ranks and tags.
    pub fn take_retires(&mut self) -> Vec<(u32, u32)> {
        let mut taken = Vec::new();
        self.waiting.retain(|one| match one.message {
            Control::Retire { tag, .. } => {
                taken.push((one.to, tag));
                false
            }
            _ => true,
        });
        taken
    }

    /// The reason why the bootstrap does not reach the other ranks; `None`: it does, or is retried.
    pub fn lost(&self) -> Option<&str> {
        match &self.reach {
            Reach::Lost(why) => Some(why),
            _ => None,
        }
    }

    /// Marks the bootstrap as retried.
    pub fn try_again(&mut self) {
        if self.lost().is_some() {
            self.reach = Reach::Tried;
        }
    }

    /// Marks the bootstrap as lost. `true`: it was not lost before.
    pub fn mark_lost(&mut self, why: &Error) -> bool {
        let new = self.reach == Reach::Good;
        if self.lost().is_none() {
            self.reach = Reach::Lost(why.to_string());
        }
        new
    }

    /// Marks the bootstrap as reachable if its retry had no error. `true`: it was lost before.
    pub fn mark_reached(&mut self) -> bool {
        let again = self.reach == Reach::Tried;
        if again {
            self.reach = Reach::Good;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: Kind) -> Error {
        Error::new("send", kind, "why")
    }

    #[test]
    fn unsent_messages_keep_their_order_and_failed_pings_are_dropped() {
        let mut outbox = Outbox::default();
        let (up, left) = (|lane| Control::Up { lane }, Control::Left);
        outbox.push(1, vec![up(0), up(1), Control::Ping]);
        outbox.push(2, vec![Control::Ping, left.clone()]);
        outbox.push(3, vec![Control::GivenUp { closed: false }, left.clone()]);
        let sent = outbox.flush(|rank, _, _| {
            Err(error(match rank {
                1 => Kind::QueueFull,
                2 => Kind::System,
                _ => Kind::PeerFailed(gdsync::Status::REMOTE_ABORTED),
            }))
        });
        assert_eq!((sent.any, sent.gone), (false, vec![3]));
        assert_eq!(sent.lost.unwrap().kind(), Kind::System);
        let mut order = Vec::new();
        let sent = outbox.flush(|rank, message, _| {
            order.push((rank, message.clone()));
            Ok(())
        });
        assert!(sent.any && sent.gone.is_empty() && sent.lost.is_none());
        let kept = [(1, up(0)), (1, up(1)), (1, Control::Ping), (2, left)];
        assert_eq!(order, kept);
    }

    #[test]
    fn overflow_is_the_fault_of_a_rank_only_while_the_bootstrap_reaches_it() {
        let mut outbox = Outbox::default();
        outbox.push(1, vec![Control::Pong; UNSENT]);
        outbox.push(2, vec![Control::Pong]);
        assert!(!outbox.overflows(1) && !outbox.overflows(2));
        outbox.push(1, vec![Control::Left]);
        assert!(outbox.overflows(1));
        assert!(outbox.mark_lost(&error(Kind::System)));
        assert!(!outbox.overflows(1));
        assert_eq!(outbox.waiting.len(), UNSENT + 1);
        outbox.push(1, vec![Control::Retire { tag: 7, next: 0 }]);
        assert_eq!(outbox.take_retires(), [(1, 7)]);
        outbox.clear(1);
        let left = outbox.waiting.iter().map(|one| (one.to, &one.message));
        assert!(left.eq([(2, &Control::Pong)]));
    }

    #[test]
    fn loss_and_recovery_are_each_reported_once() {
        let mut outbox = Outbox::default();
        assert!(!outbox.mark_reached());
        assert!(outbox.mark_lost(&error(Kind::System)));
        assert!(outbox.lost().is_some());
        outbox.try_again();
        assert_eq!(outbox.lost(), None);
        assert!(
            !outbox.mark_lost(&error(Kind::System)),
            "it was lost before"
        );
        outbox.try_again();
        assert!(outbox.mark_reached() && !outbox.mark_reached());
    }
}
