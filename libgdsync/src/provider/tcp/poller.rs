//! The sockets of a device as one descriptor, which is ready while one of them is (epoll), and the
//! sockets that wait for the end of their peer's bytes.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// How long the bytes of a peer are read and dropped after the last own byte.
const LINGER: Duration = Duration::from_secs(2);
/// How often they are read if no socket is reported as ready, and how many reads at a time.
const SWEEP: Duration = Duration::from_millis(20);
const READS: usize = 16;
/// Maximum number of these sockets; beyond it the oldest is closed.
const LINGERING: usize = 4096;
/// Descriptors from this number on are always taken for ready.
const MOST: usize = 1 << 16;
/// Ready descriptors that one call reports.
const EVENTS: usize = 64;

/// A clone is the same poller.
#[derive(Clone)]
pub struct Poller(Arc<Inner>);

struct Inner {
    epoll: OwnedFd,
    /// The descriptors that were ready, one bit each, until [`Poller::take`]. Relaxed: a bit only says
    /// that a call of the system is worth while, and the call provides the order. A descriptor may be
    /// closed and used again meanwhile; then a call is made for nothing.
    ready: Box<[AtomicU64]>,
    /// As `ready`, of those that had room, until [`Poller::take_room`].
    room: Box<[AtomicU64]>,
    lingering: Mutex<Lingering>,
    /// Whether there are such sockets. A hint, so it is relaxed.
    lingers: AtomicBool,
}

/// Sockets with the times of their last own bytes, and the time of the last sweep.
#[derive(Default)]
struct Lingering(VecDeque<(OwnedFd, Instant)>, Option<Instant>);

/// What makes a socket ready, besides an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    pub bytes: bool,
    pub room: bool,
}

impl Interest {
    pub const BYTES: Interest = Interest {
        bytes: true,
        room: false,
    };
    pub const BOTH: Interest = Interest {
        bytes: true,
        room: true,
    };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.bytes);
        flags.set(EventFlags::OUT, self.room);
        flags
    }
}

/// A socket that a poller has. It leaves the poller before it is closed: a poller has a closed socket as
/// long as a child of a fork does.
pub struct Polled<T> {
    /// In front of the socket, so that it is dropped first.
    member: Member,
    socket: T,
}

struct Member {
    poller: Poller,
    socket: RawFd,
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: the socket is closed later.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket) };
        let _ = epoll::delete(&self.poller.0.epoll, socket);
    }
}

impl<T> Polled<T> {
    pub fn map<U>(self, into: impl FnOnce(T) -> U) -> Polled<U> {
        Polled {
            member: self.member,
            socket: into(self.socket),
        }
    }

    /// The socket, which the poller has no more.
    pub fn leave(self) -> T {
        self.socket
    }
}

impl<T> Deref for Polled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.socket
    }
}

impl<T> DerefMut for Polled<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.socket
    }
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller(Arc::new(Inner {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            ready: bits(),
            room: bits(),
            lingering: Mutex::default(),
            lingers: AtomicBool::new(false),
        })))
    }

    pub fn fd(&self) -> RawFd {
        self.0.epoll.as_raw_fd()
    }

    /// Adds a socket.
    pub fn add<T: AsFd>(&self, socket: T, interest: Interest) -> io::Result<Polled<T>> {
        epoll::add(&self.0.epoll, &socket, token(&socket), interest.flags())?;
        let member = Member {
            poller: self.clone(),
            socket: socket.as_fd().as_raw_fd(),
        };
        Ok(Polled { member, socket })
    }

    /// Changes what makes a socket ready. Returns whether the system does so.
    pub fn set(&self, socket: impl AsFd, interest: Interest) -> bool {
        let data = token(&socket);
        epoll::modify(&self.0.epoll, socket, data, interest.flags()).is_ok()
    }

    /// Does not report a socket as ready, until [`Poller::set`].
    pub fn ignore(&self, socket: impl AsFd) {
        let data = EventData::new_u64(0);
        let _ = epoll::modify(&self.0.epoll, socket, data, EventFlags::empty());
    }

    /// Keeps a socket for a while and drops what it receives.
    pub fn linger(&self, socket: OwnedFd) {
        let Lingering(sockets, _) = &mut *self.0.lingering.lock();
        if sockets.len() == LINGERING {
            sockets.pop_front();
        }
        sockets.push_back((socket, Instant::now()));
        self.0.lingers.store(true, Ordering::Relaxed);
    }

    /// Drops bytes of lingering sockets, at once if there is `news`, else from time to time. Returns
    /// whether there are such sockets.
    pub fn sweep(&self, news: bool) -> bool {
        if !self.0.lingers.load(Ordering::Relaxed) {
            return false;
        }
        let Lingering(sockets, last) = &mut *self.0.lingering.lock();
        let now = Instant::now();
        if !news && last.is_some_and(|last| now - last < SWEEP) {
            return true;
        }
        *last = Some(now);
        let mut dropped = vec![0; 16 * 1024];
        sockets.retain(|(socket, since)| {
            // A peer may send without an end.
            for _ in 0..READS {
                match rustix::io::read(socket, &mut dropped[..]) {
                    Ok(1..) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    Ok(0) | Err(_) => return false,
                }
            }
            now - *since < LINGER
        });
        self.0.lingers.store(!sockets.is_empty(), Ordering::Relaxed);
        !sockets.is_empty()
    }

    /// Whether a thread that waits for the descriptor would wake.
    #[cfg(test)]
    pub fn is_ready(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(&self.0.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    /// Looks for ready sockets, without waiting.
    pub fn look(&self) {
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = [none; EVENTS];
        let count = epoll::wait(&self.0.epoll, &mut events[..], Some(&now)).unwrap_or(0);
        for event in &events[..count] {
            let (fd, flags) = (event.data.u64() as usize, event.flags);
            // An error is found by a read and by a write.
            for (all, other) in [
                (&self.0.ready, EventFlags::OUT),
                (&self.0.room, EventFlags::IN),
            ] {
                if flags != other
                    && let Some(bits) = all.get(fd / 64)
                {
                    bits.fetch_or(1 << (fd % 64), Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether a socket was ready to be read since the last call.
    pub fn take(&self, socket: impl AsFd) -> bool {
        take(&self.0.ready, &socket)
    }

    /// Whether a socket had room since the last call.
    pub fn take_room(&self, socket: impl AsFd) -> bool {
        take(&self.0.room, &socket)
    }
}

fn bits() -> Box<[AtomicU64]> {
    (0..MOST / 64).map(|_| AtomicU64::new(0)).collect()
}

/// Clears the bit of a socket; returns it.
fn take(all: &[AtomicU64], socket: &impl AsFd) -> bool {
    let fd = socket.as_fd().as_raw_fd() as usize;
    let Some(bits) = all.get(fd / 64) else {
        return true;
    };
    let bit = 1 << (fd % 64);
    bits.load(Ordering::Relaxed) & bit != 0 && bits.fetch_and(!bit, Ordering::Relaxed) & bit != 0
}

/// What events name a socket by.
fn token(socket: &impl AsFd) -> EventData {
    EventData::new_u64(socket.as_fd().as_raw_fd() as u64)
}
