//! Control messages that wait for the bootstrap, and whether that reaches the other ranks.

use std::mem;

use crate::error::{Error, Kind, Result};
use crate::wire::control::Control;

/// Control messages that are kept for a rank that has no room for them.
pub(super) const UNSENT: usize = 16384;

/// Whether the bootstrap reaches the other ranks.
#[derive(Debug, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Good,
    /// It did not, and is tried again.
    Tried,
    /// It does not, for this reason.
    Lost(String),
}

/// What a try to send has come to.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Something was sent.
    pub any: bool,
    /// Ranks that the bootstrap says are gone.
    pub gone: Vec<u32>,
    /// Why it does not reach the others.
    pub lost: Option<Error>,
}

/// The messages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Vec<(u32, Control)>,
    reach: Reach,
}

impl Outbox {
    pub fn push(&mut self, rank: u32, messages: Vec<Control>) {
        let messages = messages.into_iter();
        self.waiting.extend(messages.map(|message| (rank, message)));
    }

    /// Drops what waits for a rank.
    pub fn clear(&mut self, rank: u32) {
        self.waiting.retain(|(to, _)| *to != rank);
    }

    /// Sends what `send` takes, in the order of each rank, and keeps the rest.
    pub fn flush(&mut self, mut send: impl FnMut(u32, &Control) -> Result<()>) -> Sent {
        let mut sent = Sent::default();
        let mut blocked: Vec<u32> = Vec::new();
        for (rank, message) in mem::take(&mut self.waiting) {
            if blocked.contains(&rank) {
                self.waiting.push((rank, message));
                continue;
            }
            match send(rank, &message) {
                Ok(()) => sent.any = true,
                // Ask and answer count only while they are new.
                Err(e)
                    if e.kind() != Kind::QueueFull
                        && matches!(message, Control::Ping | Control::Pong) => {}
                Err(e) if matches!(e.kind(), Kind::PeerFailed(_)) => {
                    if message != Control::GivenUp {
                        sent.gone.push(rank);
                    }
                }
                Err(e) => {
                    blocked.push(rank);
                    self.waiting.push((rank, message));
                    if e.kind() != Kind::QueueFull {
                        // The error says nothing about the peer.
                        sent.lost = Some(e);
                    }
                }
            }
        }
        sent
    }

    /// Whether too many messages wait for a rank. If it is the bootstrap that is lost the oldest are
    /// kept, and it is not the rank's fault.
    pub fn overflows(&mut self, rank: u32) -> bool {
        let full = self.waiting.iter().filter(|(to, _)| *to == rank).count() > UNSENT;
        if full && self.lost().is_some() {
            let mut room = UNSENT;
            self.waiting.retain(|(to, _)| {
                let keep = *to != rank || room > 0;
                room -= usize::from(*to == rank && room > 0);
                keep
            });
            return false;
        }
        full
    }

    /// Takes back what was to ask ranks to retire tags.
    pub fn take_retires(&mut self) -> Vec<(u32, u32)> {
        let mut taken = Vec::new();
        self.waiting.retain(|(rank, message)| match message {
            Control::Retire { tag, .. } => {
                taken.push((*rank, *tag));
                false
            }
            _ => true,
        });
        taken
    }

    /// Why the bootstrap does not reach the others; `None`: it does, or is tried.
    pub fn lost(&self) -> Option<&str> {
        match &self.reach {
            Reach::Lost(why) => Some(why),
            _ => None,
        }
    }

    /// The bootstrap is tried again.
    pub fn try_again(&mut self) {
        if self.lost().is_some() {
            self.reach = Reach::Tried;
        }
    }

    /// It does not reach the others. `true`: that is new.
    pub fn lose(&mut self, why: &Error) -> bool {
        let new = self.reach == Reach::Good;
        if self.lost().is_none() {
            self.reach = Reach::Lost(why.to_string());
        }
        new
    }

    /// It was tried, and did what it was asked. `true`: it does again.
    pub fn find(&mut self) -> bool {
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
    fn what_is_not_taken_waits_in_order_and_questions_do_not() {
        let mut outbox = Outbox::default();
        let (up, left) = (|lane| Control::Up { lane }, Control::Left);
        outbox.push(1, vec![up(0), up(1), Control::Ping]);
        outbox.push(2, vec![Control::Ping, left.clone()]);
        outbox.push(3, vec![Control::GivenUp, left.clone()]);
        let sent = outbox.flush(|rank, _| {
            Err(error(match rank {
                1 => Kind::QueueFull,
                2 => Kind::System,
                _ => Kind::PeerFailed(gdsync::Status::REMOTE_ABORTED),
            }))
        });
        assert_eq!((sent.any, sent.gone), (false, vec![3]));
        assert_eq!(sent.lost.unwrap().kind(), Kind::System);
        let mut order = Vec::new();
        let sent = outbox.flush(|rank, message| {
            order.push((rank, message.clone()));
            Ok(())
        });
        assert!(sent.any && sent.gone.is_empty() && sent.lost.is_none());
        let kept = [(1, up(0)), (1, up(1)), (1, Control::Ping), (2, left)];
        assert_eq!(order, kept);
    }

    #[test]
    fn too_many_messages_are_the_fault_of_a_rank_only_while_the_bootstrap_reaches_it() {
        let mut outbox = Outbox::default();
        outbox.push(1, vec![Control::Pong; UNSENT]);
        outbox.push(2, vec![Control::Pong]);
        assert!(!outbox.overflows(1) && !outbox.overflows(2));
        outbox.push(1, vec![Control::Left]);
        assert!(outbox.overflows(1));
        assert!(outbox.lose(&error(Kind::System)));
        assert!(!outbox.overflows(1));
        assert_eq!(outbox.waiting.len(), UNSENT + 1);
        outbox.push(1, vec![Control::Retire { tag: 7, next: 0 }]);
        assert_eq!(outbox.take_retires(), [(1, 7)]);
        outbox.clear(1);
        assert_eq!(outbox.waiting, [(2, Control::Pong)]);
    }

    #[test]
    fn a_loss_is_new_once_and_so_is_its_end() {
        let mut outbox = Outbox::default();
        assert!(!outbox.find());
        assert!(outbox.lose(&error(Kind::System)));
        assert!(outbox.lost().is_some());
        outbox.try_again();
        assert_eq!(outbox.lost(), None);
        assert!(!outbox.lose(&error(Kind::System)), "it was lost before");
        outbox.try_again();
        assert!(outbox.find() && !outbox.find());
    }
}
