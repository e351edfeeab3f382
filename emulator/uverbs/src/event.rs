//! Event files: the descriptors of completion channels and of asynchronous events.
//!
//! A file is a pair of sequenced-packet sockets. The user has one end and reads one event per
//! message. Events that do not fit into the socket are queued at the other end and sent later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event of at most 16 bytes, with its owner.
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
    /// A copy of the user's end, to take back unread events.
    theirs: OwnedFd,
    waiting: VecDeque<Message>,
}

impl EventFile {
    /// Creates a file, and the descriptor for the user.
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

    /// Whether a descriptor of this process is the open user's end of this file, and not another
    /// file.
    pub fn is_known_by(&self, fd: RawFd) -> bool {
        let theirs = lock(&self.ends).theirs.as_raw_fd();
        let file = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        file(fd).is_some_and(|it| Some(it) == file(theirs))
    }

    /// Sends an event to the user. Returns `false` if some events have to wait.
    pub fn send(&self, bytes: &[u8]) -> bool {
        let mut message = Message {
            bytes: [0; 16],
            len: bytes.len().min(16),
        };
        message.bytes[..message.len].copy_from_slice(&bytes[..message.len]);
        let mut ends = lock(&self.ends);
        ends.waiting.push_back(message);
        ends.push()
    }

    /// Sends the queued events. Returns `false` if some still have to wait.
    pub fn push(&self) -> bool {
        lock(&self.ends).push()
    }

    /// Takes back the unread events that satisfy `is`. Returns their number.
    pub fn take_back(&self, is: impl Fn(&[u8]) -> bool) -> u32 {
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
        unread.retain(|m| !is(&m.bytes[..m.len]));
        let taken = all - unread.len();
        ends.waiting = unread;
        ends.push();
        taken as u32
    }
}

impl Ends {
    fn push(&mut self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while let Some(message) = self.waiting.front() {
            match rustix::net::send(&self.ours, &message.bytes[..message.len], flags) {
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => return false,
                // The event was sent, or the user's end is closed.
                _ => self.waiting.pop_front(),
            };
        }
        true
    }
}
