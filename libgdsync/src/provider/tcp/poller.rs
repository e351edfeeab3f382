//! The sockets of a device as one descriptor, which is ready while one of them is (epoll), and the
//! sockets that wait for the end of their peer's bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// How long the bytes of a peer are read and dropped after the last own byte.
const LINGER: Duration = Duration::from_secs(2);

/// A clone is the same poller.
#[derive(Clone)]
pub struct Poller(Arc<Inner>);

struct Inner {
    epoll: OwnedFd,
    /// Incremented when sockets were ready: their queue pairs read again. A hint, so it is relaxed.
    events: AtomicU32,
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
            events: AtomicU32::new(0),
            lingering: Mutex::default(),
        })))
    }

    pub fn fd(&self) -> RawFd {
        self.0.epoll.as_raw_fd()
    }

    /// Adds a socket, until it is closed; `room`: also for room in it.
    pub fn add(&self, socket: impl AsFd, room: bool) -> io::Result<()> {
        let data = EventData::new_u64(0);
        Ok(epoll::add(&self.0.epoll, socket, data, flags(room))?)
    }

    /// Changes whether a socket is ready for room in it. A refusal only delays the thread.
    pub fn set(&self, socket: impl AsFd, room: bool) {
        let _ = epoll::modify(&self.0.epoll, socket, EventData::new_u64(0), flags(room));
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

    /// Looks for ready sockets, and returns whether there are any.
    pub fn look(&self) -> bool {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 1];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = epoll::wait(&self.0.epoll, &mut events[..], Some(&now)).unwrap_or(0) > 0;
        if ready {
            self.0.events.fetch_add(1, Ordering::Relaxed);
        }
        ready
    }

    /// A number that changes when sockets were ready.
    pub fn events(&self) -> u32 {
        self.0.events.load(Ordering::Relaxed)
    }
}
