//! Entry points for tests and fuzzers: the pure parts of the protocol, connected in memory, and the
//! parsers of bytes from other processes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::Secret;
use super::relay::{Id, Relay};
use super::session::Session;
use super::wire::Hello;

/// The address of all connections.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A store and its ranks in memory. Only [`turn`](World::turn) moves bytes.
pub struct World {
    relay: Relay,
    ranks: Vec<(Id, Session)>,
    now: Duration,
}

impl World {
    /// A store that all of `size` ranks have joined.
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

    /// Delivers all pending bytes.
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
            // A failed session reads no more input; its owner closes the connection.
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

    /// Passes bytes to the store on the connection of `rank`, or on a connection without a rank if
    /// the job has no rank of this number.
    pub fn say(&mut self, rank: u32, bytes: &[u8]) {
        let id = match self.ranks.get(rank as usize) {
            Some((id, _)) => *id,
            None => self.relay.connect(self.now, HERE, [9; 32]).0,
        };
        self.relay.input(self.now, id, bytes);
    }

    /// Passes bytes to a rank on its connection to the store. False if the session of the rank
    /// fails.
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

    /// Queues a message. False if the window is full.
    pub fn send(&mut self, from: u32, to: u32, topic: u64, bytes: &[u8]) -> bool {
        self.ranks[from as usize].1.send(to, topic, bytes)
    }

    /// Takes the next message.
    pub fn take(&mut self, rank: u32, topic: u64) -> Option<(u32, Vec<u8>)> {
        self.ranks[rank as usize].1.take(topic)
    }

    /// Whether a rank has received the start of the job.
    pub fn has_started(&self, rank: u32) -> bool {
        self.ranks[rank as usize].1.started()
    }

    /// Whether a rank has received that another rank is gone.
    pub fn gone(&self, rank: u32, other: u32) -> bool {
        self.ranks[rank as usize].1.gone(other)
    }
}

/// Passes bytes to a store from an unknown connection and from a rank; the store must continue to
/// serve the other ranks.
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

/// Passes bytes to the session of a rank.
pub fn session(bytes: &[u8]) {
    let mut world = World::started(2);
    world.hear(0, bytes);
    let mut session = Session::new(Secret::from_bytes([7; 32]), Hello::plain(0, 2));
    // The session returns at most an error.
    let _ = session.input(bytes);
}

/// Decodes the bytes of a datagram that carries a descriptor.
pub fn descriptor(bytes: &[u8]) -> bool {
    super::descriptors::is_note(bytes)
}

/// Decodes the bytes of files in a shared directory.
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
