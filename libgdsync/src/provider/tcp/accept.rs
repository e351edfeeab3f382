//! The side of connections that accepts. Sockets have a time limit and a maximum number until their
//! peers have proven that they have the key of the job. A connection waits until all of its sockets have,
//! and until its queue pair is connected.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gds_step::Mutex;

use super::Broken;
use super::bundle;
use super::dial::{fill, put};
use super::greeting::{CLAIM, Claim, OPENING, Session, Verdict, opening, read_opening};
use super::poller::{Interest, Polled};
use super::queues::{Offer, Shared, TcpQueues};
use super::wire;
use crate::provider::relay::thread::{SharedRelay, Source};

/// Maximum number of sockets without a proof; beyond it the oldest is closed, after a time in which a
/// proof may arrive: a connection by many sockets needs the proofs of all of them.
const UNPROVEN: usize = 256;
const ARRIVAL: Duration = Duration::from_millis(20);
/// Time limit of a socket until its proof.
const PROOF: Duration = Duration::from_secs(5);
/// Maximum number of connections with proofs that wait for further sockets or for their queue pair, and
/// their time limit.
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

/// A socket without a proof.
struct Unproven {
    /// Its number in the order in which sockets were accepted.
    number: u64,
    stream: Polled<TcpStream>,
    since: Instant,
    got: Vec<u8>,
    session: Option<Session>,
}

/// A socket with a proof.
struct Proven {
    stream: Polled<TcpStream>,
    session: Session,
    bytes: [u8; CLAIM],
    claim: Claim,
}

impl Proven {
    fn answer(&mut self, verdict: Verdict) -> Result<(), Broken> {
        put(
            &mut self.stream,
            &self.session.verdict(&self.bytes, verdict),
        )
    }
}

/// A connection whose sockets have proofs.
struct Early {
    /// The number of the socket whose proof was read first.
    number: u64,
    since: Instant,
    /// Those that are there, in the order of their places.
    sockets: Vec<Proven>,
}

impl Early {
    fn claim(&self) -> Option<Claim> {
        self.sockets.first().map(|proven| proven.claim)
    }

    /// The index of a socket in `sockets`, if it is a new one of this connection.
    fn place(&self, claim: &Claim) -> Option<usize> {
        let same = self.claim()?.at(0) == claim.at(0);
        let place = |proven: &Proven| proven.claim.socket;
        let place = self.sockets.binary_search_by_key(&claim.socket, place);
        place.err().filter(|_| same)
    }
}

#[derive(Default)]
struct Pending {
    unproven: VecDeque<Unproven>,
    early: VecDeque<Early>,
    /// Number of sockets that were accepted.
    accepted: u64,
    /// The time of the last refusal, if connections wait since.
    refused: Option<Instant>,
}

pub struct Acceptor {
    pub name: String,
    pub shared: Arc<Shared>,
    listener: Polled<TcpListener>,
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

impl Pending {
    /// Adds a socket to its connection. It is closed if it begins one and there are too many.
    fn add(&mut self, number: u64, proven: Proven) {
        for early in &mut self.early {
            if let Some(place) = early.place(&proven.claim) {
                early.sockets.insert(place, proven);
                return;
            }
        }
        if self.early.len() < EARLY {
            self.early.push_back(Early {
                number,
                since: Instant::now(),
                sockets: vec![proven],
            });
        }
    }
}

impl Acceptor {
    pub fn new(name: String, shared: Arc<Shared>, listener: TcpListener) -> io::Result<Acceptor> {
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Acceptor {
            name,
            listener: shared.poller.add(listener, Interest::BYTES)?,
            shared,
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
                        self.shared.poller.ignore(&*self.listener);
                        pending.refused = Some(Instant::now());
                    }
                    return count > 0;
                }
            };
            let ready = stream.set_nonblocking(true);
            let added = ready.and_then(|()| self.shared.poller.add(stream, Interest::BYTES));
            let Ok(stream) = added else {
                continue;
            };
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
            let step = match self.shared.poller.take(&*waiting.stream) {
                true => waiting.step(&self.shared),
                false => Ok(None),
            };
            match step {
                Ok(None) if waiting.since.elapsed() < PROOF => {
                    pending.unproven.push_back(waiting);
                }
                Ok(None) => busy = true,
                Ok(Some((bytes, claim))) => {
                    busy = true;
                    if let Some(session) = waiting.session {
                        let proven = Proven {
                            stream: waiting.stream,
                            session,
                            bytes,
                            claim,
                        };
                        pending.add(waiting.number, proven);
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

    /// Hands a connection to its queue pair; returns it if a socket is missing, or if the queue pair is
    /// not connected yet.
    fn hand_over(&self, mut early: Early) -> Option<Early> {
        let claim = early.claim()?;
        let offer = match early.sockets.len() == usize::from(claim.sockets) {
            true => self.offer(&claim, &mut early),
            false => Offer::Later,
        };
        match offer {
            Offer::Later if early.since.elapsed() < WAIT && self.is_silent(&early) => Some(early),
            Offer::Later | Offer::Taken => None,
            Offer::Refused(verdict) => {
                for proven in &mut early.sockets {
                    let _ = proven.answer(verdict);
                }
                None
            }
        }
    }

    /// Offers a connection to its queue pair, which takes its sockets if it accepts.
    fn offer(&self, claim: &Claim, early: &mut Early) -> Offer {
        let relay = self.qps.lock().get(&claim.to.qpn).cloned();
        let Some(relay) = relay.filter(|_| claim.to.node == self.shared.node) else {
            return Offer::Refused(Verdict::NotNow);
        };
        let Some(first) = early.sockets.first() else {
            return Offer::Later;
        };
        let keys = first.session.keys(&first.bytes);
        let open = |limit| {
            for proven in &mut early.sockets {
                wire::prepare(&proven.stream, limit).ok()?;
                proven.answer(Verdict::Welcome).ok()?;
            }
            let streams = early.sockets.drain(..).map(|proven| proven.stream);
            Some(bundle::over(streams.collect(), &self.shared.poller))
        };
        relay.with(|relay| relay.queues.offer(early.number, claim, keys, open))
    }

    /// Whether the peer awaits its verdicts. One that has given up would keep the thread awake.
    fn is_silent(&self, early: &Early) -> bool {
        let none = |e: io::Error| e.kind() == io::ErrorKind::WouldBlock;
        early.sockets.iter().all(|Proven { stream, .. }| {
            !self.shared.poller.take(&**stream) || stream.peek(&mut [0]).is_err_and(none)
        })
    }

    fn hand_over_all(&self, pending: &mut Pending) -> bool {
        let mut busy = false;
        for _ in 0..pending.early.len() {
            let Some(early) = pending.early.pop_front() else {
                break;
            };
            match self.hand_over(early) {
                Some(early) => pending.early.push_back(early),
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

    fn before_sleep(&self, _: &[SharedRelay<TcpQueues>]) -> bool {
        // A queue pair that was connected since the last work may be that of an early connection.
        self.work()
    }

    fn work(&self) -> bool {
        let pending = &mut *self.pending.lock();
        let over = |since: Instant| since.elapsed() > PAUSE;
        let again = pending.refused.is_some_and(over);
        if again {
            pending.refused = None;
            self.shared.poller.set(&*self.listener, Interest::BYTES);
        }
        let news = self.shared.poller.take(&*self.listener);
        self.shared.poller.sweep(news);
        let mut busy = (news || again) && pending.refused.is_none() && self.accept(pending);
        busy |= self.read_proofs(pending);
        busy |= self.hand_over_all(pending);
        busy
    }
}
