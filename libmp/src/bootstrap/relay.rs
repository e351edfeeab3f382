//! The store's side of the protocol: joining, authentication, routing of messages. Pure: bytes and
//! times are its input, bytes are its output; the sockets are in another module.
//!
//! The windows of the senders bound the bytes that are held for a rank. The length of a greeting
//! bounds the bytes that are held of a connection that has not proved that it has the secret.
//! Unproved connections cannot keep a rank from joining: each has a time limit, and if there are
//! too many, a new one replaces the oldest of the network address with the most of them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::inbox::room;
use super::output::Output;
use super::secret::{Nonce, Proof};
use super::wire::{self, Frame, Hello, MAX_FRAME, MAX_GREETING, MAX_LISTED, Malformed, VERSION};
use super::{Secret, WINDOW};

/// The time limit for a connection to prove that it has the secret.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// The interval between two notices of missing ranks to the ranks that wait.
const NOTICE: Duration = Duration::from_millis(100);

/// Most connections that have not proved that they have the secret.
const MAX_UNPROVED: usize = 64;

/// The number of a connection.
pub(super) type Id = u64;

/// The state of a job's store.
pub(super) struct Relay {
    secret: Secret,
    name: u64,
    job: u64,
    slots: Vec<Slot>,
    started: bool,
    connections: BTreeMap<Id, Connection>,
    next: Id,
    /// Room of messages in flight, in bytes, by sender and receiver.
    inflight: HashMap<(u32, u32), u32>,
    /// When the waiting ranks get the next notice of missing ranks.
    notice: Option<Duration>,
}

#[derive(Clone, Copy)]
enum Slot {
    Missing,
    Joined { id: Id, host: u64 },
    Gone,
}

struct Connection {
    origin: IpAddr,
    phase: Phase,
    input: Vec<u8>,
    output: Output,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Connected, without a complete greeting yet. Holds the nonce for the challenge and the
    /// deadline.
    Connected { nonce: Nonce, until: Duration },
    /// Challenged: must answer with this proof.
    Asked {
        hello: Hello,
        proof: Proof,
        until: Duration,
    },
    /// The connection of a rank that has joined.
    Joined(u32),
    /// Being closed, when its output is written or at this time.
    Leaving { until: Duration },
}

impl Relay {
    /// The store of a job of `size` ranks whose name has the number `name`.
    pub fn new(secret: Secret, name: u64, job: u64, size: u32) -> Relay {
        Relay {
            secret,
            name,
            job,
            slots: vec![Slot::Missing; size as usize],
            started: false,
            connections: BTreeMap::new(),
            next: 0,
            inflight: HashMap::new(),
            notice: None,
        }
    }

    /// Adds a new connection from an address. Returns its number and, if there are too many, the
    /// number of the connection to drop.
    pub fn connect(&mut self, now: Duration, from: IpAddr, nonce: Nonce) -> (Id, Option<Id>) {
        let dropped = self.oldest_unproved();
        if let Some(id) = dropped {
            self.connections.remove(&id);
        }
        self.next += 1;
        let until = now + GREETING_LIMIT;
        let connection = Connection {
            origin: origin(from),
            phase: Phase::Connected { nonce, until },
            input: Vec::new(),
            output: Output::default(),
        };
        self.connections.insert(self.next, connection);
        (self.next, dropped)
    }

    /// The connection to drop before another one is added, if there are too many.
    fn oldest_unproved(&self) -> Option<Id> {
        let mut origins: HashMap<IpAddr, (usize, Id)> = HashMap::new();
        let all = self.connections.iter();
        let unproved = all.filter(|(_, c)| !matches!(c.phase, Phase::Joined(_)));
        // The lowest number is the oldest.
        for (id, connection) in unproved {
            origins.entry(connection.origin).or_insert((0, *id)).0 += 1;
        }
        let count: usize = origins.values().map(|(count, _)| count).sum();
        let most = origins.into_values().max_by_key(|(count, _)| *count);
        most.filter(|_| count >= MAX_UNPROVED + self.slots.len())
            .map(|(_, oldest)| oldest)
    }

    /// Handles input of a connection.
    pub fn input(&mut self, now: Duration, id: Id, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mut input = std::mem::take(&mut connection.input);
        input.extend(bytes);
        let mut at = 0;
        loop {
            let limit = match self.phase(id) {
                Some(Phase::Joined(_)) => MAX_FRAME,
                Some(Phase::Connected { .. } | Phase::Asked { .. }) => MAX_GREETING,
                Some(Phase::Leaving { .. }) | None => return,
            };
            let done = match wire::decode(&input[at..], limit) {
                Ok(None) => break,
                Ok(Some((frame, len))) => {
                    at += len;
                    self.frame(now, id, frame)
                }
                Err(malformed) => Err(malformed),
            };
            if let Err(malformed) = done {
                self.refuse(now, id, malformed.0);
            }
        }
        input.drain(..at);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = input;
        }
    }

    /// Handles the end of a connection.
    pub fn closed(&mut self, now: Duration, id: Id) {
        self.leave(now, id);
        self.connections.remove(&id);
    }

    /// Handles the passage of time: refuses connections beyond their time limit, and sends notices
    /// to waiting ranks.
    pub fn tick(&mut self, now: Duration) {
        let late = |c: &Connection| match c.phase {
            Phase::Connected { until, .. } | Phase::Asked { until, .. } => until <= now,
            _ => false,
        };
        let all = self.connections.iter();
        let late = all.filter(|(_, c)| late(c)).map(|(id, _)| *id);
        for id in late.collect::<Vec<_>>() {
            self.refuse(now, id, "its greeting did not arrive in time");
        }
        if self.notice.is_some_and(|at| at <= now) {
            self.notice = None;
            let missing = self.missing();
            if !self.started && !missing.is_empty() {
                let count = missing.len() as u32;
                self.broadcast(&Frame::Waiting { count, missing });
            }
        }
    }

    /// When the next tick is due.
    pub fn due(&self) -> Option<Duration> {
        let limit = |c: &Connection| match c.phase {
            Phase::Connected { until, .. }
            | Phase::Asked { until, .. }
            | Phase::Leaving { until } => Some(until),
            Phase::Joined(_) => None,
        };
        let limits = self.connections.values().filter_map(limit);
        limits.chain(self.notice).min()
    }

    /// The ranks that have not joined.
    pub fn missing(&self) -> Vec<u32> {
        let slots = self.slots.iter().enumerate();
        let missing = slots.filter(|(_, s)| matches!(s, Slot::Missing));
        missing.map(|(rank, _)| rank as u32).collect()
    }

    /// Whether all ranks have joined and left.
    pub fn over(&self) -> bool {
        self.started && self.slots.iter().all(|s| matches!(s, Slot::Gone))
    }

    /// Whether output is pending.
    pub fn writes(&self, id: Id) -> bool {
        let output = self.connections.get(&id).map(|c| c.output.pending());
        output.is_some_and(|bytes| !bytes.is_empty())
    }

    /// The pending output of a connection.
    pub fn output(&mut self, id: Id) -> Option<&mut Output> {
        self.connections.get_mut(&id).map(|c| &mut c.output)
    }

    /// Whether the connection must be closed now.
    pub fn finished(&self, now: Duration, id: Id) -> bool {
        match self.connections.get(&id) {
            None => true,
            Some(c) => match c.phase {
                Phase::Leaving { until } => c.output.pending().is_empty() || until <= now,
                _ => false,
            },
        }
    }

    fn phase(&self, id: Id) -> Option<Phase> {
        self.connections.get(&id).map(|c| c.phase)
    }

    fn frame(&mut self, now: Duration, id: Id, frame: Frame<'_>) -> Result<(), Malformed> {
        let Some(phase) = self.phase(id) else {
            return Ok(());
        };
        match (phase, frame) {
            (Phase::Connected { nonce, until }, Frame::Hello(hello)) => {
                let job = self.job;
                let proof = hello.proof(&self.secret, "store", job, &nonce);
                self.send(id, &Frame::Challenge { job, nonce, proof });
                let proof = hello.proof(&self.secret, "rank", job, &nonce);
                let asked = Phase::Asked {
                    hello,
                    proof,
                    until,
                };
                self.set_phase(id, asked);
                Ok(())
            }
            (Phase::Connected { .. }, Frame::Foreign { version }) => {
                let why = format!(
                    "its protocol has version {version}, and the protocol of the store has \
                     version {VERSION}"
                );
                // The store's own greeting has its version; the rank compares.
                self.send(id, &Frame::Foreign { version: VERSION });
                self.refuse(now, id, &why);
                Ok(())
            }
            // The comparison is constant-time.
            (Phase::Asked { hello, proof, .. }, Frame::Answer { proof: theirs }) => {
                if theirs != proof {
                    self.refuse(
                        now,
                        id,
                        "it does not have the job's secret; use one MP_SECRET for all ranks",
                    );
                } else if let Some(why) = self.objection(&hello) {
                    self.refuse(now, id, &why);
                } else {
                    self.take_slot(now, id, &hello);
                }
                Ok(())
            }
            (Phase::Joined(from), Frame::Message { peer, topic, bytes }) if self.started => {
                self.forward(from, peer, topic, bytes)
            }
            (Phase::Joined(by), Frame::Credit { peer, room }) if self.started => {
                let Some(Slot::Joined { id, .. }) = self.slots.get(peer as usize).copied() else {
                    // The sender has left, and its counts of messages in flight are removed.
                    return Ok(());
                };
                let in_flight = self.inflight.entry((peer, by)).or_default();
                *in_flight = in_flight
                    .checked_sub(room)
                    .ok_or(Malformed("a credit exceeds the messages in flight"))?;
                self.send(id, &Frame::Credit { peer: by, room });
                Ok(())
            }
            _ => Err(Malformed("a frame is out of turn")),
        }
    }

    /// The reason to refuse a rank that has proved the secret, if there is one.
    fn objection(&self, hello: &Hello) -> Option<String> {
        let (rank, size) = (hello.rank, self.slots.len());
        if hello.size as usize != size {
            return Some(format!(
                "it expects {} ranks, and the job has {size}; start all with one number of ranks",
                hello.size
            ));
        }
        if hello.name != self.name {
            return Some("its job has another name; use one MP_JOB for all ranks".into());
        }
        match self.slots.get(rank as usize) {
            None => Some(format!("rank {rank} is not in the job of {size} ranks")),
            Some(Slot::Joined { .. }) => Some(format!(
                "another process is already rank {rank}; start each rank once"
            )),
            Some(Slot::Gone) => Some(format!("rank {rank} has left and cannot join again")),
            Some(Slot::Missing) => None,
        }
    }

    fn take_slot(&mut self, now: Duration, id: Id, hello: &Hello) {
        let host = hello.host;
        self.slots[hello.rank as usize] = Slot::Joined { id, host };
        self.set_phase(id, Phase::Joined(hello.rank));
        self.notice.get_or_insert(now + NOTICE);
        let host = |slot: &Slot| match slot {
            Slot::Joined { host, .. } => Some(*host),
            _ => None,
        };
        let Some(hosts) = self.slots.iter().map(host).collect::<Option<Vec<_>>>() else {
            return;
        };
        self.started = true;
        for (i, hosts) in hosts.chunks(MAX_LISTED).enumerate() {
            let (first, hosts) = ((i * MAX_LISTED) as u32, hosts.to_vec());
            self.broadcast(&Frame::Hosts { first, hosts });
        }
        self.broadcast(&Frame::Start);
    }

    fn forward(&mut self, from: u32, to: u32, topic: u64, bytes: &[u8]) -> Result<(), Malformed> {
        match self.slots.get(to as usize).copied() {
            None | Some(Slot::Missing) => {
                Err(Malformed("a message is for a rank that has not joined"))
            }
            Some(Slot::Gone) => Ok(()),
            Some(Slot::Joined { id, .. }) => {
                let in_flight = self.inflight.entry((from, to)).or_default();
                *in_flight += room(bytes.len());
                if *in_flight > WINDOW {
                    return Err(Malformed("the messages exceed the window"));
                }
                let peer = from;
                self.send(id, &Frame::Message { peer, topic, bytes });
                Ok(())
            }
        }
    }

    /// Sends the reason and closes the connection.
    fn refuse(&mut self, now: Duration, id: Id, why: &str) {
        self.send(id, &Frame::Refused { why });
        self.leave(now, id);
    }

    /// Starts to close the connection. Its rank, if any, is then gone, or missing before the start.
    fn leave(&mut self, now: Duration, id: Id) {
        let until = now + GREETING_LIMIT;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.input = Vec::new();
        let phase = std::mem::replace(&mut connection.phase, Phase::Leaving { until });
        let Phase::Joined(rank) = phase else {
            return;
        };
        if self.started {
            self.slots[rank as usize] = Slot::Gone;
            self.inflight.retain(|(a, b), _| *a != rank && *b != rank);
            self.broadcast(&Frame::Gone { rank });
        } else {
            self.slots[rank as usize] = Slot::Missing;
            self.notice.get_or_insert(now + NOTICE);
        }
    }

    fn set_phase(&mut self, id: Id, phase: Phase) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = phase;
        }
    }

    fn send(&mut self, id: Id, frame: &Frame<'_>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.output.push(frame);
        }
    }

    /// Sends a frame to all ranks that have joined.
    fn broadcast(&mut self, frame: &Frame<'_>) {
        for connection in self.connections.values_mut() {
            if matches!(connection.phase, Phase::Joined(_)) {
                connection.output.push(frame);
            }
        }
    }
}

/// The origin of a connection: an IPv4 address, or the /64 network of an IPv6 address.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The store of a job of `size` ranks.
    fn relay(size: u32) -> Relay {
        Relay::new(Secret::from_bytes([1; 32]), 0, 1, size)
    }

    #[test]
    fn too_many_connections_replace_those_of_their_own_address() {
        let mut relay = relay(2);
        let addresses: [IpAddr; 3] = [
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
            "fd00::1".parse().unwrap(),
        ];
        let mut connect = |from: IpAddr| relay.connect(Duration::ZERO, from, [0; 32]);
        // A flood from one address leaves room for other addresses, and their connections stay.
        let mut flood = Vec::new();
        for _ in 0..MAX_UNPROVED + 2 {
            let (id, dropped) = connect(addresses[0]);
            assert_eq!(dropped, None);
            flood.push(id);
        }
        let (rank, dropped) = connect(addresses[1]);
        assert_eq!(dropped, Some(flood.remove(0)));
        // Many IPv6 addresses of one network count as one origin.
        for i in 0..10 * MAX_UNPROVED as u16 {
            let from = match i % 2 {
                0 => addresses[0],
                _ => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, i, 1).into(),
            };
            let (_, dropped) = connect(from);
            assert!(dropped.is_some() && dropped != Some(rank));
        }
        assert!(relay.connections.len() == MAX_UNPROVED + 2);
        assert!(relay.phase(rank).is_some());
    }

    fn sent(relay: &mut Relay, id: Id) -> String {
        let bytes = relay.output(id).map(|output| output.pending().to_vec());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// Connects a rank that greets the store and proves that it knows the secret.
    fn take_slot(relay: &mut Relay, rank: u32, size: u32) -> Id {
        let (secret, nonce) = (Secret::from_bytes([1; 32]), [rank as u8; 32]);
        let hello = Hello::plain(rank, size);
        let (id, _) = relay.connect(Duration::ZERO, [127, 0, 0, 1].into(), nonce);
        let proof = hello.proof(&secret, "rank", 1, &nonce);
        for frame in [Frame::Hello(hello), Frame::Answer { proof }] {
            say(relay, id, &frame);
        }
        id
    }

    fn say(relay: &mut Relay, id: Id, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        relay.input(Duration::ZERO, id, &bytes);
    }

    fn message(peer: u32) -> Frame<'static> {
        let (topic, bytes) = (0, b"early".as_slice());
        Frame::Message { peer, topic, bytes }
    }

    #[test]
    fn a_connection_whose_greeting_is_too_long_or_too_late_is_refused() {
        let mut relay = relay(2);
        let here = [127, 0, 0, 1].into();
        let [much, nothing] = [(); 2].map(|()| relay.connect(Duration::ZERO, here, [0; 32]).0);
        relay.input(Duration::ZERO, much, &(MAX_GREETING as u32).to_le_bytes());
        assert!(sent(&mut relay, much).contains("too long"));
        relay.tick(GREETING_LIMIT - Duration::from_nanos(1));
        assert_eq!(sent(&mut relay, nothing), "");
        relay.tick(GREETING_LIMIT);
        assert!(sent(&mut relay, nothing).contains("did not arrive in time"));
        // It is closed even if it does not read the refusal.
        assert!(!relay.finished(GREETING_LIMIT, nothing));
        assert!(relay.finished(2 * GREETING_LIMIT, nothing));
    }

    #[test]
    fn a_message_before_the_start_is_dropped_and_its_sender_disconnected() {
        let mut relay = relay(3);
        let ids = [0, 1].map(|rank| take_slot(&mut relay, rank, 3));
        say(&mut relay, ids[0], &message(1));
        assert!(sent(&mut relay, ids[0]).contains("out of turn"));
        assert!(!sent(&mut relay, ids[1]).contains("early"));
        assert_eq!(relay.missing(), [0, 2]);
    }

    #[test]
    fn the_counts_of_messages_in_flight_are_dropped_with_their_rank() {
        let mut relay = relay(3);
        let ids = [0, 1, 2].map(|rank| take_slot(&mut relay, rank, 3));
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            say(&mut relay, ids[from], &message(to));
        }
        relay.closed(Duration::ZERO, ids[1]);
        assert_eq!(relay.inflight.keys().collect::<Vec<_>>(), [&(2, 0)]);
    }
}
