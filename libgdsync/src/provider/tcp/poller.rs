//! The sockets of a device as one descriptor, which is ready while one of them is (epoll), and the
//! sockets that wait for the end of their peer's bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// How long the bytes of a peer are read and dropped after the last own byte.
const LINGER: Duration = Duration::from_secs(2);
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
    lingering: Mutex<Vec<(OwnedFd, Instant)>>,
}

fn flags(room: bool) -> EventFlags {
    match room {
        false => EventFlags::IN,
        true => EventFlags::IN | EventFlags::OUT,
    }
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller(Arc::new(Inner {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            ready: (0..MOST / 64).map(|_| AtomicU64::new(0)).collect(),
            lingering: Mutex::default(),
        })))
    }

    pub fn fd(&self) -> RawFd {
        self.0.epoll.as_raw_fd()
    }

    /// Adds a socket, until it is closed; `room`: also for room in it.
    pub fn add(&self, socket: impl AsFd, room: bool) -> io::Result<()> {
        let data = token(&socket);
        Ok(epoll::add(&self.0.epoll, socket, data, flags(room))?)
    }

    /// Changes whether a socket is ready for room in it. A refusal only delays the thread.
    pub fn set(&self, socket: impl AsFd, room: bool) {
        let data = token(&socket);
        let _ = epoll::modify(&self.0.epoll, socket, data, flags(room));
    }

    /// Keeps a socket for a while and drops what it receives.
    pub fn linger(&self, socket: OwnedFd) {
        self.0.lingering.lock().push((socket, Instant::now()));
    }

    /// Drops the bytes of lingering sockets. Returns whether there are such sockets.
    pub fn sweep(&self) -> bool {
        let mut lingering = self.0.lingering.lock();
        lingering.retain(|(socket, since)| {
            let mut dropped = [0; 4096];
            loop {
                match rustix::io::read(socket, &mut dropped) {
                    Ok(1..) => {}
                    Err(rustix::io::Errno::AGAIN) => return since.elapsed() < LINGER,
                    Ok(0) | Err(_) => return false,
                }
            }
        });
        !lingering.is_empty()
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
            let fd = event.data.u64() as usize;
            if let Some(bits) = self.0.ready.get(fd / 64) {
                bits.fetch_or(1 << (fd % 64), Ordering::Relaxed);
            }
        }
    }

    /// Whether a socket was ready since the last call.
    pub fn take(&self, socket: impl AsFd) -> bool {
        let fd = socket.as_fd().as_raw_fd() as usize;
        let Some(bits) = self.0.ready.get(fd / 64) else {
            return true;
        };
        let bit = 1 << (fd % 64);
        bits.load(Ordering::Relaxed) & bit != 0
            && bits.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// What events name a socket by.
fn token(socket: &impl AsFd) -> EventData {
    EventData::new_u64(socket.as_fd().as_raw_fd() as u64)
}
