//! Messages and descriptors that have arrived and were not yet received, by topic.
//!
//! Each sender has its own room, so that one sender's messages cannot use up the room of another. A
//! message occupies its room until the rank receives it or forgets its topic.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use super::WINDOW;

/// Room of a message in addition to its payload, in bytes.
const OVERHEAD: u32 = 64;

/// Most descriptors in an inbox.
const MAX_FDS: usize = 256;

/// Most topics whose forgetting is remembered.
const MAX_FORGOTTEN: usize = 4096;

/// The room that a message of `len` bytes takes in its sender's window.
pub(super) fn room(len: usize) -> u32 {
    // No message is longer than MAX_MESSAGE.
    OVERHEAD.saturating_add(u32::try_from(len).unwrap_or(u32::MAX))
}

/// The inbox of one rank.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    topics: HashMap<u64, VecDeque<(u32, Vec<u8>)>>,
    fds: HashMap<u64, VecDeque<(u32, OwnedFd)>>,
    fd_count: usize,
    /// Room in use, in bytes, by sender.
    used: HashMap<u32, u32>,
    /// Topics whose messages are dropped, the newest last.
    forgotten: VecDeque<u64>,
}

impl Inbox {
    /// Whether a message of `len` bytes from `from` has room.
    pub fn has_room(&self, from: u32, len: usize) -> bool {
        let used = self.used.get(&from).copied().unwrap_or(0);
        used.saturating_add(room(len)) <= WINDOW
    }

    /// Adds a message. False if its topic is forgotten: the message is dropped and its room is
    /// free.
    pub fn push(&mut self, from: u32, topic: u64, message: Vec<u8>) -> bool {
        if self.forgotten.contains(&topic) {
            return false;
        }
        *self.used.entry(from).or_default() += room(message.len());
        let queue = self.topics.entry(topic).or_default();
        queue.push_back((from, message));
        true
    }

    /// The oldest message under `topic`.
    pub fn take(&mut self, topic: u64) -> Option<(u32, Vec<u8>)> {
        let queue = self.topics.get_mut(&topic)?;
        let taken = queue.pop_front();
        if queue.is_empty() {
            self.topics.remove(&topic);
        }
        let (from, message) = taken?;
        self.give_back(from, message.len());
        Some((from, message))
    }

    /// Adds a descriptor. Returns the descriptor as the error if there is no room or its topic is
    /// forgotten.
    pub fn push_fd(&mut self, from: u32, topic: u64, fd: OwnedFd) -> Result<(), OwnedFd> {
        if self.fd_count == MAX_FDS || self.forgotten.contains(&topic) {
            return Err(fd);
        }
        self.fd_count += 1;
        self.fds.entry(topic).or_default().push_back((from, fd));
        Ok(())
    }

    /// The oldest descriptor under `topic`.
    pub fn take_fd(&mut self, topic: u64) -> Option<(u32, OwnedFd)> {
        let queue = self.fds.get_mut(&topic)?;
        let taken = queue.pop_front();
        if queue.is_empty() {
            self.fds.remove(&topic);
        }
        self.fd_count -= usize::from(taken.is_some());
        taken
    }

    /// Whether the inbox has room for another descriptor.
    pub fn has_room_for_fd(&self) -> bool {
        self.fd_count < MAX_FDS
    }

    /// Drops the messages that have arrived under `topic` and those that arrive later. Returns each
    /// sender of a dropped message with the room to return to it.
    pub fn forget(&mut self, topic: u64) -> Vec<(u32, u32)> {
        if !self.forgotten.contains(&topic) {
            self.forgotten.push_back(topic);
        }
        if self.forgotten.len() > MAX_FORGOTTEN {
            self.forgotten.pop_front();
        }
        if let Some(fds) = self.fds.remove(&topic) {
            self.fd_count -= fds.len();
        }
        let mut freed = Vec::new();
        for (from, message) in self.topics.remove(&topic).unwrap_or_default() {
            self.give_back(from, message.len());
            freed.push((from, room(message.len())));
        }
        freed
    }

    /// Whether `topic` was forgotten.
    pub fn is_forgotten(&self, topic: u64) -> bool {
        self.forgotten.contains(&topic)
    }

    fn give_back(&mut self, from: u32, len: usize) {
        if let Some(used) = self.used.get_mut(&from) {
            *used = used.saturating_sub(room(len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::MAX_MESSAGE;

    #[test]
    fn topics_are_separate_and_each_sender_stays_in_order() {
        let mut inbox = Inbox::default();
        for (from, topic, text) in [(1, 7, "a"), (2, 7, "b"), (1, 8, "c"), (1, 7, "d")] {
            assert!(inbox.push(from, topic, text.into()));
        }
        assert_eq!(inbox.take(8), Some((1, b"c".to_vec())));
        let rest = std::iter::from_fn(|| inbox.take(7)).collect::<Vec<_>>();
        let text = |from, s: &str| (from, s.as_bytes().to_vec());
        assert_eq!(rest, [text(1, "a"), text(2, "b"), text(1, "d")]);
        assert_eq!(inbox.take(9), None);
        assert!(inbox.topics.is_empty());
    }

    #[test]
    fn each_sender_has_its_own_room() {
        let mut inbox = Inbox::default();
        let mut sent = 0;
        while inbox.has_room(1, MAX_MESSAGE) {
            inbox.push(1, sent % 2, vec![0; MAX_MESSAGE]);
            sent += 1;
        }
        assert!(sent >= 8, "{sent}");
        assert!(inbox.has_room(2, MAX_MESSAGE));
        inbox.take(0).unwrap();
        assert!(inbox.has_room(1, MAX_MESSAGE));
        let freed = inbox.forget(1);
        assert_eq!(freed.len() as u64, sent / 2);
        assert!(!inbox.push(1, 1, vec![0]));
        while inbox.take(0).is_some() {}
        assert!(inbox.used.values().all(|t| *t == 0));
    }

    #[test]
    fn taken_descriptors_free_room_for_others() {
        let mut inbox = Inbox::default();
        let null = std::fs::File::open("/dev/null").unwrap();
        for _ in 0..2 {
            for _ in 0..MAX_FDS {
                assert!(inbox.has_room_for_fd());
                inbox
                    .push_fd(1, 5, null.try_clone().unwrap().into())
                    .unwrap();
            }
            assert!(!inbox.has_room_for_fd());
            while inbox.take_fd(5).is_some() {}
        }
    }

    #[test]
    fn the_oldest_forgotten_topic_is_dropped_at_the_limit() {
        let mut inbox = Inbox::default();
        for topic in 0..=MAX_FORGOTTEN as u64 {
            inbox.forget(topic);
        }
        assert!(!inbox.is_forgotten(0) && inbox.is_forgotten(1));
        assert_eq!(inbox.forgotten.len(), MAX_FORGOTTEN);
    }
}
