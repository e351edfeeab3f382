//! The side of connections that accepts. Connections have a time limit and a maximum number until they
//! have proven that they have the key of the job.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;

use super::Broken;
use super::dial::{fill, put};
use super::greeting::{CLAIM, Claim, OPENING, Session, Verdict, opening, read_opening};
use super::queues::{Offer, Shared, TcpQueues};
use super::wire::{self, Sockets, Wire};
use crate::provider::relay::thread::{SharedRelay, Source};

/// Maximum number of connections without a proof; beyond it the oldest is closed, after a time in which
/// a proof may arrive.
const UNPROVEN: usize = 64;
const ARRIVAL: Duration = Duration::from_millis(5);
/// Time limit of a connection until its proof.
const PROOF: Duration = Duration::from_secs(5);
/// Maximum number of proven connections that wait for their queue pair, and their time limit.
const EARLY: usize = 4096;
const WAIT: Duration = Duration::from_secs(30);
/// Number of rounds from one look for events to the next.
const LOOK: u32 = 8;
/// Connections that the system keeps until they are accepted: all queue pairs of a large job may
/// connect at the same time, and the system of a peer that finds no room tries again after 1 s.
const BACKLOG: i32 = 4096;
/// Connections that are accepted in one step.
const STEP: usize = 16;
/// How long none is accepted after the system refused one, for example without descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection without a proof.
struct Unproven {
    /// Its number in the order in which connections were accepted.
    number: u64,
    stream: TcpStream,
    since: Instant,
    got: Vec<u8>,
    session: Option<Session>,
}

/// A connection with a proof.
struct Proven {
    number: u64,
    stream: TcpStream,
    since: Instant,
    session: Session,
    bytes: [u8; CLAIM],
    claim: Claim,
}

#[derive(Default)]
struct Pending {
    unproven: VecDeque<Unproven>,
    proven: VecDeque<Proven>,
    /// Number of connections that were accepted.
    accepted: u64,
    /// The time of the last refusal, if connections wait since.
    refused: Option<Instant>,
}

pub struct Acceptor {
    pub name: String,
    pub shared: Arc<Shared>,
    listener: TcpListener,
    pending: Mutex<Pending>,
    /// Counts the rounds over the queue pairs; relaxed, because only the pace depends on it.
    rounds: AtomicU32,
    /// The queue pairs by number.
    pub qps: Mutex<BTreeMap<u32, SharedRelay<TcpQueues>>>,
}

impl Unproven {
    /// The proven claim, once it is there.
    fn step(&mut self, shared: &Shared) -> Result<Option<([u8; CLAIM], Claim)>, Broken> {
        if self.session.is_none() {
            if !fill(&mut self.stream, &mut self.got, OPENING)? {
                return Ok(None);
            }
            let theirs = self.got.first_chunk().map(read_opening);
            let theirs = theirs.ok_or(Broken::Closed)??;
            let ours = super::random().map_err(|_| Broken::Closed)?;
            put(&mut self.stream, &opening(&ours))?;
            self.session = Some(Session::new(shared.key, [theirs, ours]));
            self.got.clear();
        }
        if !fill(&mut self.stream, &mut self.got, CLAIM)? {
            return Ok(None);
        }
        let (Some(session), Some(bytes)) = (&self.session, self.got.first_chunk()) else {
            return Ok(None);
        };
        Ok(Some((*bytes, session.read_claim(bytes)?)))
    }
}

impl Acceptor {
    pub fn new(name: String, shared: Arc<Shared>, listener: TcpListener) -> io::Result<Acceptor> {
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        shared.poller.add(&listener, false)?;
        Ok(Acceptor {
            name,
            shared,
            listener,
            pending: Mutex::default(),
            rounds: AtomicU32::new(0),
            qps: Mutex::default(),
        })
    }

    /// Accepts new connections; returns whether there was any.
    fn accept(&self, pending: &mut Pending) -> bool {
        for count in 0..STEP {
            let full = pending.unproven.len() == UNPROVEN;
            let arrives = |oldest: &Unproven| oldest.since.elapsed() < ARRIVAL;
            if full && pending.unproven.front().is_some_and(arrives) {
                // The system keeps new ones until then.
                return count > 0;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => {
                    if e.kind() != io::ErrorKind::WouldBlock {
                        // The connection stays in the system's queue, and would keep the thread awake.
                        self.shared.poller.ignore(&self.listener);
                        pending.refused = Some(Instant::now());
                    }
                    return count > 0;
                }
            };
            let ready = stream.set_nonblocking(true);
            if ready.is_err() || self.shared.poller.add(&stream, false).is_err() {
                continue;
            }
            if full {
                pending.unproven.pop_front();
            }
            pending.accepted += 1;
            pending.unproven.push_back(Unproven {
                number: pending.accepted,
                stream,
                since: Instant::now(),
                got: Vec::new(),
                session: None,
            });
        }
        true
    }

    fn read_proofs(&self, pending: &mut Pending) -> bool {
        let mut busy = false;
        for _ in 0..pending.unproven.len() {
            let Some(mut waiting) = pending.unproven.pop_front() else {
                break;
            };
            match waiting.step(&self.shared) {
                Ok(None) if waiting.since.elapsed() < PROOF => {
                    pending.unproven.push_back(waiting);
                }
                Ok(None) => busy = true,
                Ok(Some((bytes, claim))) => {
                    busy = true;
                    if let Some(session) = waiting.session
                        && pending.proven.len() < EARLY
                    {
                        pending.proven.push_back(Proven {
                            number: waiting.number,
                            stream: waiting.stream,
                            since: Instant::now(),
                            session,
                            bytes,
                            claim,
                        });
                    }
                }
                Err(why) => {
                    busy = true;
                    tracing::debug!(target: "gdsync", "{}: a connection is refused: {why}", self.name);
                }
            }
        }
        busy
    }

    /// Hands a connection to its queue pair; returns it if that is not connected yet.
    fn hand_over(&self, proven: Proven) -> Option<Proven> {
        let relay = self.qps.lock().get(&proven.claim.to.qpn).cloned();
        let relay = relay.filter(|_| proven.claim.to.node == self.shared.node);
        let Proven {
            number,
            stream,
            since,
            session,
            bytes,
            claim,
        } = proven;
        let mut stream = Some(stream);
        let open = |limit| {
            let mut stream = stream.take()?;
            wire::prepare(&stream, limit).ok()?;
            put(&mut stream, &session.verdict(&bytes, Verdict::Welcome)).ok()?;
            Some(Box::new(Sockets::over(stream, &self.shared.poller)) as Box<dyn Wire>)
        };
        let offer = match relay {
            None => Offer::Refused(Verdict::NotNow),
            Some(relay) => {
                let keys = session.keys(&bytes);
                relay.with(|relay| relay.queues.offer(number, &claim, keys, open))
            }
        };
        let mut stream = stream?;
        match offer {
            Offer::Later if since.elapsed() < WAIT && self.is_silent(&stream) => Some(Proven {
                number,
                stream,
                since,
                session,
                bytes,
                claim,
            }),
            Offer::Later | Offer::Taken => None,
            Offer::Refused(verdict) => {
                let _ = put(&mut stream, &session.verdict(&bytes, verdict));
                None
            }
        }
    }

    /// Whether the peer awaits its verdict. One that has given up would keep the thread awake.
    fn is_silent(&self, stream: &TcpStream) -> bool {
        let none = |e: io::Error| e.kind() == io::ErrorKind::WouldBlock;
        !self.shared.poller.take(stream) || stream.peek(&mut [0]).is_err_and(none)
    }

    fn hand_over_all(&self, pending: &mut Pending) -> bool {
        let mut busy = false;
        for _ in 0..pending.proven.len() {
            let Some(proven) = pending.proven.pop_front() else {
                break;
            };
            match self.hand_over(proven) {
                Some(proven) => pending.proven.push_back(proven),
                None => busy = true,
            }
        }
        busy
    }
}

impl Source for Acceptor {
    type Queues = TcpQueues;

    fn name(&self) -> &str {
        &self.name
    }

    fn fd(&self) -> RawFd {
        self.shared.poller.fd()
    }

    fn look(&self) {
        // Connections in use are read without a look.
        if self
            .rounds
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(LOOK)
        {
            self.shared.poller.look();
        }
    }

    fn take_events(&self, _: &[SharedRelay<TcpQueues>], _: i16) -> bool {
        self.shared.poller.look();
        true
    }

    fn work(&self) -> bool {
        let pending = &mut *self.pending.lock();
        let over = |since: Instant| since.elapsed() > PAUSE;
        let again = pending.refused.is_some_and(over);
        if again {
            pending.refused = None;
            self.shared.poller.set(&self.listener, false);
        }
        let news = self.shared.poller.take(&self.listener);
        self.shared.poller.sweep(news);
        let mut busy = (news || again) && pending.refused.is_none() && self.accept(pending);
        busy |= self.read_proofs(pending);
        busy |= self.hand_over_all(pending);
        busy
    }
}
