//! Entries for tests and fuzzers: the pure parts of the protocol, linked in memory, and what
//! parses bytes of other processes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Secret;
use super::relay::{Id, Relay};
use super::session::Session;
use super::wire::Hello;

/// Where all connections come from.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A store and its ranks in memory. Bytes move when [`turn`](World::turn) is called.
pub struct World {
    relay: Relay,
    ranks: Vec<(Id, Session)>,
    now: Duration,
}

impl World {
    /// A store that all of `size` ranks have come to.
    pub fn started(size: u32) -> World {
        let secret = Secret::from_bytes([7; 32]);
        let mut world = World {
            relay: Relay::new(secret.clone(), 0, 1, size),
            ranks: Vec::new(),
            now: Duration::ZERO,
        };
        for rank in 0..size {
            let (id, _) = world.relay.connect(world.now, HERE, [9; 32]);
            let session = Session::new(secret.clone(), Hello::plain(rank, size));
            world.ranks.push((id, session));
        }
        for _ in 0..3 {
            world.turn();
        }
        world
    }

    /// Carries all bytes that are under way to where they go.
    pub fn turn(&mut self) {
        self.now += Duration::from_millis(1);
        for (id, session) in &mut self.ranks {
            let bytes = session.output.pending().to_vec();
            session.output.wrote(bytes.len());
            self.relay.input(self.now, *id, &bytes);
        }
        self.relay.tick(self.now);
        for (id, session) in &mut self.ranks {
            let Some(output) = self.relay.output(*id) else {
                continue;
            };
            // A session that fails hears nothing more; its owner closes the connection.
            if session.input(output.pending()).is_err() {
                self.relay.closed(self.now, *id);
            } else {
                output.wrote(output.pending().len());
                if session.asked().is_some() {
                    session.answer();
                }
            }
        }
    }

    /// Bytes reach the store as if from a rank, and no rank, if there is none of this number.
    pub fn say(&mut self, rank: u32, bytes: &[u8]) {
        let id = match self.ranks.get(rank as usize) {
            Some((id, _)) => *id,
            None => self.relay.connect(self.now, HERE, [9; 32]).0,
        };
        self.relay.input(self.now, id, bytes);
    }

    /// Bytes reach a rank as if from the store. False if it gives up on that.
    pub fn hear(&mut self, rank: u32, bytes: &[u8]) -> bool {
        match self.ranks.get_mut(rank as usize) {
            Some((_, session)) => session.input(bytes).is_ok(),
            None => false,
        }
    }

    /// Closes a rank's connection.
    pub fn close(&mut self, rank: u32) {
        if let Some((id, _)) = self.ranks.get(rank as usize) {
            self.relay.closed(self.now, *id);
        }
    }

    /// Sends. False if the way is full.
    pub fn send(&mut self, from: u32, to: u32, topic: u64, bytes: &[u8]) -> bool {
        self.ranks[from as usize].1.send(to, topic, bytes)
    }

    /// Receives.
    pub fn take(&mut self, rank: u32, topic: u64) -> Option<(u32, Vec<u8>)> {
        self.ranks[rank as usize].1.take(topic)
    }

    /// Whether a rank knows all to have come.
    pub fn has_started(&self, rank: u32) -> bool {
        self.ranks[rank as usize].1.started()
    }

    /// Whether a rank knows another to be gone.
    pub fn gone(&self, rank: u32, other: u32) -> bool {
        self.ranks[rank as usize].1.gone(other)
    }
}

/// What a store makes of bytes of a stranger and of a rank: it goes on serving the others.
pub fn store(bytes: &[u8]) {
    let mut world = World::started(3);
    world.say(u32::MAX, bytes);
    world.say(0, bytes);
    world.turn();
    assert!(world.send(1, 2, u64::MAX, b"still here"));
    world.turn();
    let mut heard = std::iter::from_fn(|| world.take(2, u64::MAX));
    assert!(heard.any(|(from, text)| (from, text.as_slice()) == (1, b"still here")));
}

/// What a rank makes of bytes of a store.
pub fn session(bytes: &[u8]) {
    let mut world = World::started(2);
    world.hear(0, bytes);
    let mut session = Session::new(Secret::from_bytes([7; 32]), Hello::plain(0, 2));
    // Whatever it is, it is no more than refused.
    let _ = session.input(bytes);
}

/// What a rank makes of a datagram that brings a descriptor.
pub fn descriptor(bytes: &[u8]) -> bool {
    super::descriptors::is_note(bytes)
}

/// What ranks make of what lies in a shared directory.
pub fn notes(bytes: &[u8]) {
    if let Ok(note) = super::notes::RankNote::decode(bytes) {
        assert_eq!(note.encode(), bytes);
    }
    if let Ok(note) = super::notes::JobNote::decode(bytes) {
        assert_eq!(note.encode(), bytes);
    }
    if let Ok(name) = std::str::from_utf8(bytes) {
        super::notes::parse_mail_name(name);
    }
}
