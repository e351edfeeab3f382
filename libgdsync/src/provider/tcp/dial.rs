//! [`Dial`]: the side of a connection that connects: it tries again until the peer accepts.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Broken;
use super::bundle;
use super::greeting::{
    CLAIM, Claim, Key, Nonce, OPENING, Session, VERDICT, Verdict, opening, read_opening,
};
use super::poller::{Interest, Polled, Poller};
use super::wire::{self, Wire};

/// The time between two attempts: the first, and the longest.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(200);
/// The time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(10);

pub struct Dial {
    to: SocketAddr,
    claim: Claim,
    key: Key,
    poller: Poller,
    /// The limit of the connection; see [`wire::prepare`].
    limit: Option<Duration>,
    attempt: Option<Attempt>,
    next: Instant,
    pause: Duration,
    /// Whether a reason why an attempt failed was logged.
    logged: bool,
}

/// The sockets of a connection until their greetings end.
struct Attempt {
    sockets: Vec<Greeter>,
    until: Instant,
}

/// A socket of an attempt, with its part of the greeting.
struct Greeter {
    stream: Polled<TcpStream>,
    nonce: Nonce,
    claim: Claim,
    stage: Stage,
    got: Vec<u8>,
}

enum Stage {
    /// The system connects.
    Connecting,
    /// The peer's opening is awaited.
    Opening,
    /// The peer's verdict is awaited.
    Claimed(Box<(Session, [u8; CLAIM])>),
    /// The peer has accepted; the keys of what this side and the peer send.
    Welcome(Box<[Key; 2]>),
}

/// Reads until `into` has `len` bytes. Returns whether it has.
pub fn fill(stream: &mut TcpStream, into: &mut Vec<u8>, len: usize) -> Result<bool, Broken> {
    let mut bytes = [0; 128];
    while into.len() < len {
        // Not a byte of what follows the greeting.
        let room = &mut bytes[..len - into.len()];
        match stream.read(room) {
            Ok(0) => return Err(Broken::Closed),
            Ok(n) => into.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Broken::of(&e)),
        }
    }
    Ok(true)
}

/// Writes a message of a greeting, for which a new connection has room.
pub fn put(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Broken> {
    match stream.write(bytes) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Broken::Greeting("it takes no bytes")),
        Err(e) => Err(Broken::of(&e)),
    }
}

impl Dial {
    pub fn new(
        to: SocketAddr,
        claim: Claim,
        key: Key,
        poller: Poller,
        limit: Option<Duration>,
    ) -> Dial {
        Dial {
            to,
            claim,
            key,
            poller,
            limit,
            attempt: None,
            next: Instant::now(),
            pause: FIRST,
            logged: false,
        }
    }

    /// Goes on. Returns the connection, and the keys of what this side and the peer send, once the
    /// peer has accepted it.
    pub fn step(&mut self) -> Option<(Box<dyn Wire>, [Key; 2])> {
        let now = Instant::now();
        let outcome = match &mut self.attempt {
            None if now < self.next => return None,
            None => self.begin(now).map(|()| None),
            Some(attempt) if now > attempt.until => Err(Broken::Late),
            Some(attempt) => attempt.step(self.key, &self.poller, self.limit),
        };
        match outcome {
            Ok(keys) => {
                let keys = keys?;
                let sockets = self.attempt.take()?.sockets.into_iter();
                let streams = sockets.map(|socket| socket.stream).collect();
                Some((bundle::over(streams, &self.poller), keys))
            }
            Err(why) => {
                self.again(now, why);
                None
            }
        }
    }

    /// When it continues without an event.
    pub fn due(&self) -> Instant {
        self.attempt
            .as_ref()
            .map_or(self.next, |attempt| attempt.until)
    }

    fn begin(&mut self, now: Instant) -> Result<(), Broken> {
        let none = |_| Broken::Greeting("no random numbers");
        let attempt = super::random_number().map_err(none)?;
        let begun = |socket| {
            let stream = wire::connect(self.to).map_err(|e| Broken::of(&e))?;
            let stream = self.poller.add(stream, Interest::BOTH);
            Ok(Greeter {
                stream: stream.map_err(|e| Broken::of(&e))?,
                nonce: super::random().map_err(none)?,
                claim: Claim {
                    attempt,
                    socket,
                    ..self.claim
                },
                stage: Stage::Connecting,
                got: Vec::new(),
            })
        };
        let sockets: Result<_, Broken> = (0..self.claim.sockets).map(begun).collect();
        self.attempt = Some(Attempt {
            sockets: sockets?,
            until: now + ATTEMPT,
        });
        Ok(())
    }

    fn again(&mut self, now: Instant, why: Broken) {
        self.attempt = None;
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
        let [from, to] = [self.claim.from, self.claim.to];
        let serious = matches!(
            why,
            Broken::Greeting(_)
                | Broken::Closed
                | Broken::Unanswered
                | Broken::Connection(_)
                | Broken::Late
        );
        if serious && !std::mem::replace(&mut self.logged, true) {
            tracing::warn!(
                target: "gdsync",
                "QP {:#x} cannot connect to QP {:#x} at {} and tries again: {why}",
                from.qpn, to.qpn, self.to
            );
        }
    }
}

impl Attempt {
    /// Goes on. Returns the keys of the first socket, once all of them are accepted.
    fn step(
        &mut self,
        key: Key,
        poller: &Poller,
        limit: Option<Duration>,
    ) -> Result<Option<[Key; 2]>, Broken> {
        let mut welcome = true;
        for socket in &mut self.sockets {
            welcome &= socket.step(key, poller)?;
        }
        if !welcome {
            return Ok(None);
        }
        for socket in &self.sockets {
            wire::prepare(&socket.stream, limit).map_err(|e| Broken::of(&e))?;
        }
        Ok(self.sockets.first().and_then(|first| match &first.stage {
            Stage::Welcome(keys) => Some(**keys),
            _ => None,
        }))
    }
}

impl Greeter {
    /// Goes on. Returns whether the peer has accepted.
    fn step(&mut self, key: Key, poller: &Poller) -> Result<bool, Broken> {
        loop {
            match &self.stage {
                Stage::Connecting => {
                    if let Some(e) = self.stream.take_error().map_err(|e| Broken::of(&e))? {
                        return Err(Broken::of(&e));
                    }
                    if self.stream.peer_addr().is_err() {
                        return Ok(false);
                    }
                    // It has room, which must not keep the thread awake.
                    poller.set(&*self.stream, Interest::BYTES);
                    put(&mut self.stream, &opening(&self.nonce))?;
                    self.stage = Stage::Opening;
                }
                Stage::Opening => {
                    if !fill(&mut self.stream, &mut self.got, OPENING)? {
                        return Ok(false);
                    }
                    let theirs = self.got.first_chunk().map(read_opening);
                    let theirs = theirs.ok_or(Broken::Closed)??;
                    let session = Session::new(key, [self.nonce, theirs]);
                    let bytes = session.claim(&self.claim);
                    put(&mut self.stream, &bytes)?;
                    self.got.clear();
                    self.stage = Stage::Claimed(Box::new((session, bytes)));
                }
                Stage::Claimed(claimed) => {
                    match fill(&mut self.stream, &mut self.got, VERDICT) {
                        Ok(true) => {}
                        Ok(false) => return Ok(false),
                        Err(Broken::Closed) => return Err(Broken::Unanswered),
                        Err(why) => return Err(why),
                    }
                    let (session, bytes) = &**claimed;
                    let verdict = self.got.first_chunk();
                    let verdict = verdict.map(|verdict| session.read_verdict(bytes, verdict));
                    match verdict.ok_or(Broken::Closed)?? {
                        Verdict::Welcome => {
                            self.stage = Stage::Welcome(Box::new(session.keys(bytes)));
                        }
                        Verdict::NotNow => return Err(Broken::NotNow),
                        Verdict::Encryption => {
                            return Err(Broken::Greeting(
                                "only one of the two devices encrypts; use the same setting for both",
                            ));
                        }
                    }
                }
                Stage::Welcome(_) => return Ok(true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::provider::tcp::greeting::End;

    #[test]
    fn an_attempt_that_ended_is_not_reported_while_a_forked_child_has_it() {
        let poller = Poller::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let claim = Claim {
            sockets: 2,
            ..Claim::new(End::default(), End::default(), false)
        };
        let mut dial = Dial::new(to, claim, [7; 32], poller.clone(), None);
        assert!(dial.step().is_none());
        let sockets = &dial.attempt.as_ref().unwrap().sockets;
        let copy = |socket: &Greeter| socket.stream.try_clone().unwrap();
        let copies: Vec<_> = sockets.iter().map(copy).collect();
        assert_eq!(copies.len(), 2);
        drop(dial);
        // The peer closes its side.
        drop(listener);
        assert!(!poller.is_ready());
    }
}
