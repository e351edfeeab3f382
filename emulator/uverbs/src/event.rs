//! Event files: what a completion channel and the file of asynchronous events are made of, and
//! the watch on completion queues that are armed.
//!
//! A file is a pair of sequenced sockets. One end is the user's, who reads an event a message;
//! what does not fit now is kept at the other end and sent later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx5_prm::cqe::{OP_OWN_OFFSET, SIZE};
use mlx5_prm::doorbell;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use vmlx5::{Cqn, Dma, Nic};

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event: at most 16 bytes, and whose it is.
#[derive(Clone, Copy)]
struct Message {
    bytes: [u8; 16],
    len: usize,
}

/// Our end of an event file.
pub(crate) struct EventFile {
    ends: Mutex<Ends>,
}

struct Ends {
    ours: OwnedFd,
    /// A copy of the user's end, to take back what the user has not read.
    theirs: OwnedFd,
    waiting: VecDeque<Message>,
}

impl EventFile {
    /// A new file, and the descriptor for the user.
    pub fn new() -> Result<(EventFile, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, user) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let theirs = rustix::io::fcntl_dupfd_cloexec(&user, 0)?;
        let ends = Mutex::new(Ends {
            ours,
            theirs,
            waiting: VecDeque::new(),
        });
        Ok((EventFile { ends }, user))
    }

    /// Says something to the user.
    pub fn send(&self, bytes: &[u8]) {
        let mut message = Message {
            bytes: [0; 16],
            len: bytes.len().min(16),
        };
        message.bytes[..message.len].copy_from_slice(&bytes[..message.len]);
        let mut ends = lock(&self.ends);
        ends.waiting.push_back(message);
        ends.push();
    }

    /// Sends what did not fit before.
    pub fn push(&self) {
        lock(&self.ends).push();
    }

    /// Takes back the events that begin with `handle` and were not read. Returns how many.
    pub fn take_back(&self, handle: u64) -> u32 {
        let mut ends = lock(&self.ends);
        let mut unread = VecDeque::new();
        let mut bytes = [0; 16];
        let flags = RecvFlags::DONTWAIT;
        while let Ok((len, _)) = rustix::net::recv(ends.theirs.as_fd(), &mut bytes[..], flags) {
            if len == 0 {
                break;
            }
            unread.push_back(Message { bytes, len });
        }
        unread.append(&mut ends.waiting);
        let all = unread.len();
        unread.retain(|m| m.bytes[..8] != handle.to_ne_bytes());
        let taken = all - unread.len();
        ends.waiting = unread;
        ends.push();
        taken as u32
    }
}

impl Ends {
    fn push(&mut self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while let Some(message) = self.waiting.front() {
            match rustix::net::send(&self.ours, &message.bytes[..message.len], flags) {
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => return,
                // Sent, or nobody reads it any more.
                _ => self.waiting.pop_front(),
            };
        }
    }
}

/// A completion queue whose owner may ask for an event.
pub(crate) struct Watch {
    pub cqn: Cqn,
    /// The user's name of the queue.
    pub handle: u64,
    pub channel: Arc<EventFile>,
    pub entries: Arc<dyn Dma>,
    pub log_entries: u8,
    pub record: Arc<dyn Dma>,
    pub state: Mutex<Watching>,
}

/// The word that arms before anybody armed: no command looks like it.
pub(crate) const NEVER_ARMED: u32 = !0;

#[derive(Default)]
pub(crate) struct Watching {
    /// The arm word that was answered last.
    answered: Option<u32>,
    /// Events sent, and not taken back.
    pub sent: u32,
}

const SOLICITED_ONLY: u32 = 1 << 24;
const CI: u32 = 0xff_ffff;

impl Watch {
    /// Sends an event if the queue is armed and has what was asked for.
    pub fn turn(&self, nic: &Nic) {
        let Ok(word) = self.record.load32(doorbell::ARM as u64) else {
            return;
        };
        let word = u32::from_be(word);
        let mut state = lock(&self.state);
        if word == NEVER_ARMED || state.answered == Some(word) {
            return;
        }
        let Ok(info) = nic.query_cq(self.cqn) else {
            return;
        };
        let consumed = word & CI;
        let there = info.producer.wrapping_sub(consumed) & CI;
        // A consumer ahead of the producer makes no sense; it waits for ever, as it would.
        if there == 0 || there > CI / 2 {
            return;
        }
        let wanted = word & SOLICITED_ONLY == 0
            || (consumed..consumed.wrapping_add(there)).any(|i| self.solicited(i));
        if wanted {
            state.answered = Some(word);
            state.sent += 1;
            self.channel.send(&self.handle.to_ne_bytes());
        }
    }

    /// True of an entry that an armed queue with "solicited only" tells of.
    fn solicited(&self, index: u32) -> bool {
        let slot = u64::from(index & ((1 << self.log_entries) - 1));
        let mut op_own = [0];
        let at = slot * SIZE as u64 + OP_OWN_OFFSET as u64;
        if self.entries.read(at, &mut op_own).is_err() {
            return false;
        }
        // The solicited bit, or an error entry (requester's 13, responder's 14).
        op_own[0] & 2 != 0 || matches!(op_own[0] >> 4, 13 | 14)
    }
}
