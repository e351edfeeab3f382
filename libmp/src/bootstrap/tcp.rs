//! [`Tcp`]: the bootstrap of ranks that meet at a store over TCP, on one or several
//! hosts. [`Server`] is the store; [`Join`] has the parameters of a rank.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gds_step::deadline;

use super::descriptors::Descriptors;
use super::host::host;
use super::secret::{number_of, random_bytes};
pub use super::server::Server;
use super::server::prepare;
use super::session::{Session, SessionError};
use super::wire::Hello;
use super::{Bootstrap, JOIN, Secret, check, check_host, fits, full, gone, key_of, lock, missing};
use crate::error::{Error, Kind, Result};

/// Most bytes that one call reads.
const MAX_READ: usize = 1 << 18;

/// The time limit for a rank that leaves to send its pending output.
const CLOSE_LIMIT: Duration = Duration::from_millis(250);

/// The parameters with which a rank joins a job at a store, for [`Tcp::join`]. They have no
/// defaults but the name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Join {
    /// The host and port of the store: `host:port`.
    pub store: String,
    /// The number of this rank, 0 to `size` - 1.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The job's secret, the same for the store and all ranks.
    pub secret: Secret,
    /// The job's name, the same for the store and all ranks; may be empty.
    pub name: String,
    /// The time limit for the store to answer and the other ranks to join.
    pub limit: Duration,
}

impl Join {
    /// Rank `rank` of `size` at `store`, in a job without a name, with the time limit `limit`.
    pub fn new(
        store: impl Into<String>,
        (rank, size): (u32, u32),
        secret: &Secret,
        limit: Duration,
    ) -> Join {
        Join {
            store: store.into(),
            rank,
            size,
            secret: secret.clone(),
            name: String::new(),
            limit,
        }
    }

    /// Sets the job's name, which the store compares with its own. Default: empty.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Join {
        self.name = name.into();
        self
    }
}

/// One rank of a job whose ranks meet at a store over TCP, on one or several hosts.
///
/// The store forwards messages. This type has no thread: `send` and `receive` read and write its
/// socket without waiting, and a later call writes what the socket does not accept at once. After
/// the store is lost, messages that have arrived are still received; then calls return errors of
/// kind `System`, or `Protocol` if the store sent malformed bytes. Communication over NICs does not
/// need the store. When the value is dropped, the rank is gone; the drop takes at most half a
/// second if the store does not answer.
///
/// ```
/// use std::time::Duration;
///
/// use mp::Bootstrap;
/// use mp::bootstrap::tcp::{Join, Server};
/// use mp::bootstrap::{Secret, Tcp};
///
/// let secret = Secret::random()?;
/// let store = Server::start("127.0.0.1:0".parse().unwrap(), &secret, "my job", 2)?;
/// std::thread::scope(|ranks| {
///     for rank in 0..2 {
///         let (secret, address) = (&secret, store.address().to_string());
///         ranks.spawn(move || {
///             let join = Join::new(address, (rank, 2), secret, Duration::from_secs(10));
///             let job = Tcp::join(&join.name("my job")).unwrap();
///             assert_eq!((job.rank(), job.size()), (rank, 2));
///         });
///     }
/// });
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Debug)]
pub struct Tcp {
    rank: u32,
    job: u64,
    hosts: Vec<u64>,
    secret: Secret,
    descriptors: Descriptors,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: TcpStream,
    session: Session,
    lost: Option<Lost>,
}

/// The reason for which the connection to the store is lost.
#[derive(Debug)]
enum Lost {
    Closed,
    Failed(std::io::Error),
    Protocol(SessionError),
}

impl Tcp {
    /// Joins at the store and waits until all ranks have joined, at most [`Join::limit`]. If too
    /// many connections have not proved that they have the secret, the store drops the oldest. A
    /// connection that ends before the start is retried until the limit has passed.
    ///
    /// # Errors
    /// - `Missing`, with the numbers of the ranks that have not joined in time.
    /// - `Absent` if the store could not be reached, or did not answer, in time.
    /// - `Protocol` if the store refuses this rank (another secret, version, size or name; a second
    ///   process of the same rank), or is not the job's store.
    /// - `Invalid` if the job has no rank `rank`, or more than 65,536 ranks.
    /// - `System` for other failures, and if the last connection ended before the start.
    pub fn join(join: &Join) -> Result<Tcp> {
        let Join { rank, size, .. } = *join;
        fits(rank, size)?;
        let end = deadline(join.limit);
        let mut pause = Duration::from_millis(5);
        loop {
            let why = match Tcp::attempt(join, end)? {
                Ok(joined) => return Ok(joined),
                Err(why) => why,
            };
            std::thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
            if Instant::now() >= end {
                return Err(why);
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Tries once to join. The inner error is that of a connection that fails or ends before the
    /// job has started: the caller may retry.
    fn attempt(join: &Join, end: Instant) -> Result<Result<Tcp>> {
        let Join { rank, size, .. } = *join;
        let mut stream = match connect(join, end) {
            Ok(stream) => stream,
            Err(e) => return Ok(Err(absent(join, e))),
        };
        let hello = Hello {
            rank,
            size,
            name: number_of("job", &[join.name.as_bytes()]),
            host: host(),
            nonce: random_bytes()?,
        };
        let mut session = Session::new(join.secret.clone(), hello);
        let mut descriptors = None;
        let mut bytes = [0; 1 << 14];
        while !session.started() {
            if let Some(job) = session.asked() {
                descriptors = Some(Descriptors::open(&join.secret, job, rank)?);
                session.answer();
            }
            // A greeting fits into the buffer of a socket that was never written to.
            if let Err(e) = session.output.flush(&mut stream) {
                return Ok(Err(broken(join, e)));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(join, &session));
            }
            stream
                .set_read_timeout(Some(left))
                .map_err(|e| broken(join, e))?;
            match stream.read(&mut bytes) {
                Ok(0) => return Ok(Err(broken(join, ErrorKind::UnexpectedEof.into()))),
                Ok(n) => session.input(&bytes[..n]).map_err(|e| refused(join, e))?,
                Err(e) => match e.kind() {
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                    _ => return Ok(Err(broken(join, e))),
                },
            }
        }
        stream.set_nonblocking(true).map_err(|e| broken(join, e))?;
        let (job, descriptors) = match (session.job(), descriptors) {
            (job, Some(descriptors)) => (job, descriptors),
            // The job has started, so the store has sent its challenge.
            _ => {
                return Err(refused(
                    join,
                    SessionError::Malformed("a frame is out of turn"),
                ));
            }
        };
        Ok(Ok(Tcp {
            rank,
            job,
            hosts: session.hosts().to_vec(),
            secret: join.secret.clone(),
            descriptors,
            state: Mutex::new(State {
                stream,
                session,
                lost: None,
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Reads and writes as much as is possible without waiting.
    fn pump(&mut self) {
        if self.lost.is_none()
            && let Err(lost) = self.exchange()
        {
            self.lost = Some(lost);
        }
    }

    fn exchange(&mut self) -> Result<(), Lost> {
        let mut bytes = [0; 1 << 14];
        let mut taken = 0;
        while taken < MAX_READ {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Lost::Closed),
                Ok(n) => {
                    self.session.input(&bytes[..n]).map_err(Lost::Protocol)?;
                    taken += n;
                    // A short read means that no more bytes have arrived.
                    if n < bytes.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(Lost::Failed(e)),
            }
        }
        let flushed = self.session.output.flush(&mut self.stream);
        flushed.map(drop).map_err(Lost::Failed)
    }

    fn alive(&self, operation: &'static str) -> Result<()> {
        let (kind, what) = match &self.lost {
            None => return Ok(()),
            Some(Lost::Closed) => (Kind::System, "the store closed the connection".to_owned()),
            Some(Lost::Failed(e)) => (
                Kind::System,
                format!("the connection to the store failed: {e}"),
            ),
            Some(Lost::Protocol(e)) => (Kind::Protocol, format!("the store {e}")),
        };
        Err(Error::new(operation, kind, what))
    }
}

impl Bootstrap for Tcp {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.hosts.len() as u32
    }

    fn job(&self) -> u64 {
        self.job
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        check(self.size(), to, message)?;
        let mut state = self.state();
        // First the input from the store: ranks that are gone, and ranks that have returned
        // credits.
        state.pump();
        if state.session.gone(to) {
            return Err(gone(to));
        }
        state.alive(super::SEND)?;
        if !state.session.send(to, topic, message) {
            return Err(full(to));
        }
        state.pump();
        Ok(())
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        let mut state = self.state();
        let mut message = state.session.take(topic);
        if message.is_none() {
            state.pump();
            message = state.session.take(topic);
        }
        // Write the credits now: a sender may wait for them, and the next call of this rank may be
        // late.
        if state.session.has_output() {
            state.pump();
        }
        match message {
            Some(message) => Ok(Some(message)),
            None => state.alive(super::RECEIVE).map(|()| None),
        }
    }

    fn forget(&self, topic: u64) {
        self.descriptors.forget(topic);
        let mut state = self.state();
        state.session.forget(topic);
        if state.session.has_output() {
            state.pump();
        }
    }

    fn is_forgotten(&self, topic: u64) -> bool {
        self.state().session.is_forgotten(topic)
    }

    fn gone(&self, rank: u32) -> bool {
        let mut state = self.state();
        state.pump();
        state.session.gone(rank)
    }

    fn host(&self, rank: u32) -> Option<u64> {
        self.hosts.get(rank as usize).copied()
    }

    fn key(&self) -> Option<[u8; 32]> {
        Some(key_of(&self.secret, self.job))
    }

    fn local_address(&self) -> Option<IpAddr> {
        let address = self.state().stream.local_addr();
        address.ok().map(|address| address.ip().to_canonical())
    }

    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        check_host(self, to)?;
        self.descriptors.send(&self.secret, to, topic, fd)
    }

    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        self.descriptors.take(self.size(), topic)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.lost.is_none() {
            // Output that cannot be sent in time is dropped.
            let _ = close(state);
        }
    }
}

/// Writes the pending output and waits until the store has read it: closing a socket with unread
/// input discards output that the other end has not read.
fn close(state: &mut State) -> std::io::Result<()> {
    let State {
        stream, session, ..
    } = state;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(CLOSE_LIMIT))?;
    stream.set_read_timeout(Some(CLOSE_LIMIT))?;
    if session.output.flush(stream)? {
        stream.shutdown(Shutdown::Write)?;
        let end = Instant::now() + CLOSE_LIMIT;
        let mut bytes = [0; 1 << 14];
        while Instant::now() < end && stream.read(&mut bytes)? > 0 {}
    }
    Ok(())
}

/// Connects to the store, at the first of its addresses that answers.
fn connect(join: &Join, end: Instant) -> std::io::Result<TcpStream> {
    let mut why = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for address in join.store.to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return prepare(&stream).map(|()| stream),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// An error of this rank, with the rank and the time limit.
#[cold]
fn failed(join: &Join, kind: Kind, what: String) -> Error {
    let error = Error::new(JOIN, kind, what).with_rank(join.rank);
    error.with_limit(join.limit.as_millis(), "ms")
}

#[cold]
fn absent(join: &Join, e: std::io::Error) -> Error {
    let what = format!(
        "the store at {} was not reached in time; check that it runs at this address",
        join.store
    );
    failed(join, Kind::Absent, what).with_source(e)
}

#[cold]
fn late(join: &Join, session: &Session) -> Error {
    match session.missing() {
        (0, _) => {
            let what = format!(
                "the store at {} did not answer in time; check that it runs at this address",
                join.store
            );
            failed(join, Kind::Absent, what)
        }
        (count, some) => missing(join.limit, count, some),
    }
}

#[cold]
fn broken(join: &Join, e: std::io::Error) -> Error {
    let what = format!("the connection to the store at {} broke", join.store);
    failed(join, Kind::System, what).with_source(e)
}

#[cold]
fn refused(join: &Join, e: SessionError) -> Error {
    let what = format!("the store at {} {e}", join.store);
    Error::new(JOIN, Kind::Protocol, what).with_rank(join.rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// Closing a socket with unread input resets the connection, which drops the output.
    #[test]
    fn the_last_output_arrives_although_input_is_left_unread() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(store.local_addr().unwrap()).unwrap();
        let (mut store, _) = store.accept().unwrap();
        let mut state = State {
            stream,
            session: Session::new(Secret::from_bytes([1; 32]), Hello::plain(0, 2)),
            lost: None,
        };
        let words = state.session.output.pending().to_vec();
        store.write_all(b"unheard").unwrap();
        store.shutdown(Shutdown::Write).unwrap();
        // The input has arrived.
        state.stream.peek(&mut [0]).unwrap();
        close(&mut state).unwrap();
        drop(state);
        let mut heard = Vec::new();
        store.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, words);
    }
}
