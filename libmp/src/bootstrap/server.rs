//! [`Server`]: the store of a job, its sockets and its thread. `relay` has the protocol.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::relay::{Id, Relay};
use super::secret::{number_of, random_bytes, random_number};
use super::{Secret, wire};
use crate::error::{Error, Kind, Result};

const START: &str = "start store";

/// Most bytes that are read from one connection before the next connection is served.
const MAX_READ: usize = 1 << 18;

/// How long the store accepts no connection after an accept failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The byte on the thread's socket that releases the thread: it then runs until all ranks have
/// left.
const RELEASED: u8 = 1;

/// The store of a job over TCP: ranks meet at it, and it forwards their control messages.
///
/// It has one thread. When the value is dropped, the ranks lose their connection to each other:
/// they can open no more peers and tags. [`Tcp`](crate::bootstrap::Tcp) has an example.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    job: u64,
    /// Closing this socket stops the thread, unless [`RELEASED`] was written to it.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the store: it listens on `bind` (port 0: any free port) for the `size` ranks of the
    /// job named `name`, and accepts those that have the secret.
    ///
    /// # Errors
    /// `Invalid` for a job of no ranks, or of more than 65,536; `System` if the address is not
    /// available or the system refuses.
    pub fn start(bind: SocketAddr, secret: &Secret, name: &str, size: u32) -> Result<Server> {
        if size == 0 {
            let what = "a job of 0 ranks is invalid; start at least one rank";
            return Err(Error::new(START, Kind::Invalid, what));
        }
        if size > wire::MAX_RANKS {
            let what = format!("a job of {size} ranks is too large");
            let error = Error::new(START, Kind::Invalid, what);
            return Err(error.with_limit(wire::MAX_RANKS, "ranks"));
        }
        let deaf = |e| {
            let what = format!("the store cannot listen on {bind}");
            Error::new(START, Kind::System, what).with_source(e)
        };
        let system = |e| {
            let what = "the system cannot create a socket pair or a thread";
            Error::new(START, Kind::System, what).with_source(e)
        };
        let listener = TcpListener::bind(bind).map_err(deaf)?;
        listener.set_nonblocking(true).map_err(deaf)?;
        let address = listener.local_addr().map_err(deaf)?;
        let (stop, stopped) = UnixStream::pair().map_err(system)?;
        let job = random_number()?;
        let relay = Relay::new(
            secret.clone(),
            number_of("job", &[name.as_bytes()]),
            job,
            size,
        );
        let mut store = StoreThread {
            listener,
            stopped: Some(stopped),
            relay,
            streams: BTreeMap::new(),
            begun: Instant::now(),
            pause: None,
        };
        let thread = std::thread::Builder::new()
            .name("mp-store".into())
            .spawn(move || store.run())
            .map_err(system)?;
        Ok(Server {
            address,
            job,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address on which the store listens, with the port that was chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job's number, which all its ranks have ([`Bootstrap::job`](crate::Bootstrap::job)).
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Detaches the store: it runs until all ranks have left, or the process ends. Returns its
    /// thread.
    pub(super) fn release(mut self) -> Option<JoinHandle<()>> {
        if let Some(mut stop) = self.stop.take() {
            // If the thread has ended, the write fails and has no effect.
            let _ = stop.write(&[RELEASED]);
        }
        self.thread.take()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there is nothing left to end.
            let _ = thread.join();
        }
    }
}

/// Sets the options of every connection of this protocol: no delay, and keep-alive probes for a
/// dead host.
pub(super) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, 30_000)?;
    Ok(())
}

/// The thread's state.
struct StoreThread {
    listener: TcpListener,
    /// None once the store is released.
    stopped: Option<UnixStream>,
    relay: Relay,
    streams: BTreeMap<Id, TcpStream>,
    begun: Instant,
    /// No connection is accepted before this time.
    pause: Option<Duration>,
}

impl StoreThread {
    fn run(&mut self) {
        while !self.relay.over() {
            let Ok(ready) = self.wait() else {
                return;
            };
            if ready.stopped && self.is_stopped() {
                return;
            }
            if ready.listener {
                self.accept();
            }
            let mut ended = ready.streams;
            ended.retain(|id| self.read(*id));
            let now = self.begun.elapsed();
            self.relay.tick(now);
            // The last messages of ranks that leave are written before their connections are
            // closed.
            self.write(now);
            let ended = ended.into_iter().map(|id| {
                self.relay.closed(now, id);
                self.streams.remove(&id)
            });
            let ended = ended.collect::<Vec<_>>();
            self.write(now);
            drop(ended);
        }
    }

    fn is_stopped(&mut self) -> bool {
        let Some(mut stopped) = self.stopped.take() else {
            return false;
        };
        !matches!(stopped.read(&mut [0]), Ok(1))
    }

    fn wait(&self) -> rustix::io::Result<Ready> {
        let now = self.begun.elapsed();
        let open = self.pause.is_none_or(|until| until <= now);
        let interest = if open {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![PollFd::new(&self.listener, interest)];
        for (id, stream) in &self.streams {
            let mut interest = PollFlags::IN;
            if self.relay.writes(*id) {
                interest |= PollFlags::OUT;
            }
            fds.push(PollFd::new(stream, interest));
        }
        fds.extend((self.stopped.as_ref()).map(|s| PollFd::new(s, PollFlags::IN)));
        let pause = self.pause.filter(|_| !open);
        let due = self.relay.due().into_iter().chain(pause).min();
        let timeout = due.map(|due| due.saturating_sub(now) + Duration::from_millis(1));
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let hit = |fd: &PollFd<'_>| !(fd.revents() & !PollFlags::OUT).is_empty();
        Ok(Ready {
            listener: hit(&fds[0]),
            stopped: self.stopped.is_some() && fds.last().is_some_and(hit),
            streams: (self.streams.keys().zip(&fds[1..]))
                .filter(|(_, fd)| hit(fd))
                .map(|(id, _)| *id)
                .collect(),
        })
    }

    fn accept(&mut self) {
        let now = self.begun.elapsed();
        self.pause = None;
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let Ok(nonce) = random_bytes() else { continue };
                    if prepare(&stream).is_err() || stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let (id, dropped) = self.relay.connect(now, from.ip(), nonce);
                    self.streams.insert(id, stream);
                    if let Some(id) = dropped {
                        self.streams.remove(&id);
                    }
                }
                Err(e) => match e.kind() {
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    ErrorKind::WouldBlock => return,
                    _ => {
                        self.pause = Some(now + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    /// Reads the input of a connection. True if the connection has ended.
    fn read(&mut self, id: Id) -> bool {
        let now = self.begun.elapsed();
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        let mut bytes = [0; 1 << 14];
        let mut taken = 0;
        while taken < MAX_READ {
            match stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(n) => {
                    self.relay.input(now, id, &bytes[..n]);
                    taken += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() != ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn write(&mut self, now: Duration) {
        // A closed connection may produce output for others: repeat until no connection is closed.
        loop {
            let mut closed = Vec::new();
            for (id, stream) in &mut self.streams {
                let sent = self.relay.output(*id).map(|output| output.flush(stream));
                if sent.is_some_and(|s| s.is_err()) || self.relay.finished(now, *id) {
                    closed.push(*id);
                }
            }
            if closed.is_empty() {
                return;
            }
            for id in closed {
                self.relay.closed(now, id);
                self.streams.remove(&id);
            }
        }
    }
}

struct Ready {
    stopped: bool,
    listener: bool,
    streams: Vec<Id>,
}
