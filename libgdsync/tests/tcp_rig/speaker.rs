//! A peer that is not the library: it speaks the protocol, as far as the test wants.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use gdsync::internals::tcp::{
    CLAIM, Claim, End, HEAD, Head, OPENING, Seal, Session, VERDICT, Verdict, opening, read_opening,
};

use super::*;

/// The queue pair of the speaker. Its node is the smallest, so that the speaker connects.
pub const OWN: End = End {
    node: 0,
    qpn: 1,
    psn: 5,
};

/// The address of the speaker's queue pair.
pub fn address() -> QpAddress {
    let own = QpAddress::default()
        .node(OWN.node)
        .qpn(OWN.qpn)
        .psn(OWN.psn);
    through(own, SocketAddr::from(([127, 0, 0, 1], 1)))
}

/// A queue pair as a claim names it.
pub fn end_of(address: &QpAddress) -> End {
    End {
        node: address.node,
        qpn: address.qpn,
        psn: address.psn,
    }
}

pub fn claim_to(address: &QpAddress) -> Claim {
    Claim::new(end_of(address), OWN, false)
}

/// A connection with the random numbers of both sides.
pub type Opened = (TcpStream, [u8; 32], Option<[u8; 32]>);

/// Connects, and sends the opening; returns what the device answers, if it does.
pub fn open(at: SocketAddr) -> Opened {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let nonce = [3; 32];
    stream.write_all(&opening(&nonce)).unwrap();
    let mut theirs = [0; OPENING];
    let theirs = stream.read_exact(&mut theirs).is_ok().then_some(theirs);
    (stream, nonce, theirs.map(|b| read_opening(&b).unwrap()))
}

pub struct Speaker {
    pub stream: TcpStream,
    /// How the bytes of both directions are encrypted, and decrypted bytes.
    seals: Option<[Seal; 2]>,
    records: Vec<u8>,
    plain: Vec<u8>,
}

impl Speaker {
    /// Connects to a device by this claim; the verdict, if there is one.
    pub fn greet(at: SocketAddr, key: [u8; 32], claim: &Claim) -> (Speaker, Option<Verdict>) {
        Speaker::claim(open(at), key, claim)
    }

    /// As [`Speaker::greet`], on a connection whose opening was answered.
    pub fn claim(opened: Opened, key: [u8; 32], claim: &Claim) -> (Speaker, Option<Verdict>) {
        let (mut stream, ours, theirs) = opened;
        let session = Session::new(key, [ours, theirs.expect("an opening")]);
        let bytes: [u8; CLAIM] = session.claim(claim);
        stream.write_all(&bytes).unwrap();
        let mut verdict = [0; VERDICT];
        let read = stream.read_exact(&mut verdict).is_ok();
        let verdict = read.then(|| session.read_verdict(&bytes, &verdict).unwrap());
        let seals = claim
            .encrypted
            .then(|| session.keys(&bytes).map(|key| Seal::new(&key)));
        let speaker = Speaker {
            stream,
            seals,
            records: Vec::new(),
            plain: Vec::new(),
        };
        (speaker, verdict)
    }

    /// Connects to this queue pair, which is connected to [`address`].
    pub fn to(side: &Side) -> Speaker {
        let there = side.qp.address();
        let (speaker, verdict) = Speaker::greet(socket(&there), KEY, &claim_to(&there));
        assert_eq!(verdict, Some(Verdict::Welcome));
        speaker
    }

    /// Sends bytes; `false`: the device has ended the connection.
    pub fn say(&mut self, bytes: &[u8]) -> bool {
        let mut sealed = Vec::new();
        let bytes = match &mut self.seals {
            None => bytes,
            Some([ours, _]) => {
                ours.seal(bytes, &mut sealed);
                &sealed
            }
        };
        self.stream.write_all(bytes).is_ok()
    }

    pub fn frame(&mut self, head: Head, payload: &[u8]) -> bool {
        self.say(&[&head.encode(), payload].concat())
    }

    /// Reads bytes; `false`: the connection has ended.
    pub fn hear(&mut self, into: &mut [u8]) -> bool {
        let Some([_, theirs]) = &mut self.seals else {
            return match self.stream.read_exact(into) {
                Ok(()) => true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("silence"),
                Err(_) => false,
            };
        };
        while self.plain.len() < into.len() {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(n) => self.records.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("silence"),
                Err(_) => return false,
            }
            while let Some((range, len)) = theirs.open(&mut self.records).unwrap() {
                self.plain.extend_from_slice(&self.records[range]);
                self.records.drain(..len);
            }
        }
        let later = self.plain.split_off(into.len());
        into.copy_from_slice(&self.plain);
        self.plain = later;
        true
    }

    /// The next head; `None`: the connection has ended.
    pub fn head(&mut self) -> Option<Head> {
        let mut bytes = [0; HEAD];
        self.hear(&mut bytes).then(|| Head::decode(&bytes).unwrap())
    }

    /// The next head that is not only counts.
    pub fn answer(&mut self) -> Option<Head> {
        loop {
            let head = self.head()?;
            if head.kind != gdsync::internals::tcp::Kind::Ack {
                return Some(head);
            }
        }
    }
}
