//! The sockets of a device as one descriptor, which is ready while one of them is (epoll), and the
//! sockets that wait for the end of their peer's bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// How long the bytes of a peer are read and dropped after the last own byte.
const LINGER: Duration = Duration::from_secs(2);
/// How often they are read if no socket is reported as ready, and how many reads at a time.
const SWEEP: Duration = Duration::from_millis(20);
const READS: usize = 16;

/// A clone is the same poller.
#[derive(Clone)]
pub struct Poller(Arc<Inner>);

struct Inner {
    epoll: OwnedFd,
    /// Incremented when sockets were ready: their queue pairs read again. A hint, so it is relaxed.
    events: AtomicU32,
    lingering: Mutex<Lingering>,
    /// Whether there are such sockets. A hint, so it is relaxed.
    lingers: AtomicBool,
}

/// Sockets with the times of their last own bytes, and the time of the last sweep.
#[derive(Default)]
struct Lingering(Vec<(OwnedFd, Instant)>, Option<Instant>);

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
            lingers: AtomicBool::new(false),
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

    /// Does not report a socket as ready, until [`Poller::set`].
    pub fn ignore(&self, socket: impl AsFd) {
        let data = EventData::new_u64(0);
        let _ = epoll::modify(&self.0.epoll, socket, data, EventFlags::empty());
    }

    /// Keeps a socket for a while and drops what it receives.
    pub fn linger(&self, socket: OwnedFd) {
        self.0.lingering.lock().0.push((socket, Instant::now()));
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
