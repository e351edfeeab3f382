//! The greeting of a connection: each side proves that it has the key of the job before the other
//! reads a frame. Pure.
//!
//! The side that connects sends [`opening`] bytes; the other answers with its own. The first sends
//! its claim, which names the two queue pairs, with a proof; the other answers with a verdict and
//! a proof. A proof is a digest, keyed with the key of the job, of the side, both random numbers, the
//! claim and the verdict. So a recorded greeting proves nothing in another connection.
//!
//! Each socket of a connection has a greeting of its own. The verdicts are sent when the claims of all
//! of them are there.

use blake3::{Hash, Hasher};

use super::Broken;

/// The key of a job.
pub type Key = [u8; 32];
/// The random number of one side.
pub type Nonce = [u8; 32];

/// Begins both openings; its last byte is the version of the protocol.
const MAGIC: [u8; 8] = *b"gdstcp\0\x02";
/// Bytes of an opening, of a claim with its proof, and of a verdict with its proof.
pub const OPENING: usize = 40;
pub const CLAIM: usize = CLAIMED + 32;
pub const VERDICT: usize = 40;
/// Bytes of a claim without its proof.
pub const CLAIMED: usize = 48;
/// Maximum number of sockets of a connection.
pub const MOST_SOCKETS: u8 = 16;

/// A queue pair with one of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The device.
    pub node: u64,
    pub qpn: u32,
    /// The number of its first packet, which is new in each connection.
    pub psn: u32,
}

/// What the side that connects says on each socket of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub to: End,
    pub from: End,
    /// Whether frames are encrypted.
    pub encrypted: bool,
    /// A random number, the same on all sockets of one attempt to connect.
    pub attempt: u64,
    /// The place of the socket among those of the connection, from 0 on, and their number.
    pub socket: u8,
    pub sockets: u8,
}

impl Claim {
    /// The claim of a connection of one socket.
    pub fn new(to: End, from: End, encrypted: bool) -> Claim {
        Claim {
            to,
            from,
            encrypted,
            attempt: 0,
            socket: 0,
            sockets: 1,
        }
    }

    /// The claim of another socket of the connection.
    pub fn at(self, socket: u8) -> Claim {
        Claim { socket, ..self }
    }
}

/// What the other side answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Welcome,
    /// The queue pair does not exist, or has another connection: the peer may try again.
    NotNow,
    /// The two devices differ in whether they encrypt.
    Encryption,
}

const VERDICTS: [Verdict; 3] = [Verdict::Welcome, Verdict::NotNow, Verdict::Encryption];

/// The bytes that open a connection.
pub fn opening(nonce: &Nonce) -> [u8; OPENING] {
    let mut b = [0; OPENING];
    b[..8].copy_from_slice(&MAGIC);
    b[8..].copy_from_slice(nonce);
    b
}

/// # Errors
/// The reason if the other side does not speak this protocol.
pub fn read_opening(b: &[u8; OPENING]) -> Result<Nonce, Broken> {
    if b[..7] != MAGIC[..7] {
        return Err(Broken::Greeting("it speaks another protocol"));
    }
    if b[7] != MAGIC[7] {
        return Err(Broken::Greeting("it has another release"));
    }
    let mut nonce = [0; 32];
    nonce.copy_from_slice(&b[8..]);
    Ok(nonce)
}

/// One connection's proofs and keys.
#[derive(Clone, Copy)]
pub struct Session {
    key: Key,
    /// The random number of the side that connects, and of the other.
    pub nonces: [Nonce; 2],
}

impl Session {
    pub fn new(key: Key, nonces: [Nonce; 2]) -> Session {
        Session { key, nonces }
    }

    fn digest(&self, what: &str, claim: &[u8], verdict: &[u8]) -> Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        hasher.update(&(what.len() as u64).to_le_bytes());
        hasher.update(what.as_bytes());
        for part in [&self.nonces[0][..], &self.nonces[1][..], claim, verdict] {
            hasher.update(part);
        }
        hasher.finalize()
    }

    /// The claim and its proof.
    pub fn claim(&self, claim: &Claim) -> [u8; CLAIM] {
        let mut b = [0; CLAIM];
        let ends = b.chunks_exact_mut(16).zip([claim.to, claim.from]);
        for (b, end) in ends {
            b[..8].copy_from_slice(&end.node.to_le_bytes());
            b[8..12].copy_from_slice(&end.qpn.to_le_bytes());
            b[12..].copy_from_slice(&end.psn.to_le_bytes());
        }
        b[32..40].copy_from_slice(&claim.attempt.to_le_bytes());
        b[40..43].copy_from_slice(&[claim.encrypted.into(), claim.socket, claim.sockets]);
        let proof = self.digest("the side that connects", &b[..CLAIMED], &[]);
        b[CLAIMED..].copy_from_slice(proof.as_bytes());
        b
    }

    /// # Errors
    /// The reason if the proof is wrong, after the same time whatever its bytes are; or if the connection
    /// has no such socket.
    pub fn read_claim(&self, b: &[u8; CLAIM]) -> Result<Claim, Broken> {
        let proof = self.digest("the side that connects", &b[..CLAIMED], &[]);
        if !proven(proof, &b[CLAIMED..]) {
            return Err(Broken::Greeting("it does not have the key of this job"));
        }
        let number = |b: &[u8]| b.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let end = |at: usize| End {
            node: number(&b[at..at + 8]),
            qpn: number(&b[at + 8..at + 12]) as u32,
            psn: number(&b[at + 12..at + 16]) as u32,
        };
        let claim = Claim {
            to: end(0),
            from: end(16),
            attempt: number(&b[32..40]),
            encrypted: b[40] != 0,
            socket: b[41],
            sockets: b[42],
        };
        match claim.socket < claim.sockets && claim.sockets <= MOST_SOCKETS {
            true => Ok(claim),
            false => Err(Broken::Greeting("its connection has no such socket")),
        }
    }

    /// The verdict on a claim, and its proof.
    pub fn verdict(&self, claim: &[u8; CLAIM], verdict: Verdict) -> [u8; VERDICT] {
        let mut b = [0; VERDICT];
        let number = VERDICTS.iter().position(|one| *one == verdict);
        b[0] = number.unwrap_or_default() as u8;
        let proof = self.digest("the side that accepts", &claim[..CLAIMED], &b[..8]);
        b[8..].copy_from_slice(proof.as_bytes());
        b
    }

    /// # Errors
    /// As [`Session::read_claim`].
    pub fn read_verdict(&self, claim: &[u8; CLAIM], b: &[u8; VERDICT]) -> Result<Verdict, Broken> {
        let proof = self.digest("the side that accepts", &claim[..CLAIMED], &b[..8]);
        if !proven(proof, &b[8..]) {
            return Err(Broken::Greeting("it does not have the key of this job"));
        }
        let verdict = VERDICTS.get(usize::from(b[0]));
        verdict
            .copied()
            .ok_or(Broken::Greeting("its verdict does not exist"))
    }

    /// The keys that encrypt what the side that connects sends, and what the other sends.
    pub fn keys(&self, claim: &[u8; CLAIM]) -> [Key; 2] {
        ["from the side that connects", "from the side that accepts"]
            .map(|what| *self.digest(what, &claim[..CLAIMED], &[]).as_bytes())
    }
}

/// Compares in constant time.
fn proven(proof: Hash, bytes: &[u8]) -> bool {
    <[u8; 32]>::try_from(bytes).is_ok_and(|bytes| proof == Hash::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: Claim = Claim {
        to: End {
            node: 0x1122_3344_5566_7788,
            qpn: 0x12_3456,
            psn: 0x65_4321,
        },
        from: End {
            node: u64::MAX,
            qpn: 1,
            psn: 2,
        },
        encrypted: true,
        attempt: 0x8877_6655_4433_2211,
        socket: 2,
        sockets: 3,
    };

    #[test]
    fn sockets_that_a_connection_does_not_have_are_refused() {
        let session = Session::new([7; 32], [[1; 32], [2; 32]]);
        let read = |socket, sockets| {
            let claim = Claim {
                socket,
                sockets,
                ..EXAMPLE
            };
            session.read_claim(&session.claim(&claim)).is_ok()
        };
        assert!(read(0, 1) && read(MOST_SOCKETS - 1, MOST_SOCKETS));
        assert!(!read(0, 0) && !read(1, 1) && !read(0, MOST_SOCKETS + 1));
    }

    #[test]
    fn greetings_are_accepted_by_the_same_key_and_numbers_alone() {
        let ours = Session::new([7; 32], [[1; 32], [2; 32]]);
        let bytes = ours.claim(&EXAMPLE);
        assert_eq!(ours.read_claim(&bytes), Ok(EXAMPLE));
        let verdict = ours.verdict(&bytes, Verdict::NotNow);
        assert_eq!(ours.read_verdict(&bytes, &verdict), Ok(Verdict::NotNow));
        // Another key, or the greeting of another connection.
        for other in [
            Session::new([8; 32], ours.nonces),
            Session::new([7; 32], [[1; 32], [3; 32]]),
            Session::new([7; 32], [[2; 32], [1; 32]]),
        ] {
            assert!(other.read_claim(&bytes).is_err());
            assert!(other.read_verdict(&bytes, &verdict).is_err());
            assert_ne!(other.keys(&bytes), ours.keys(&bytes));
        }
        for at in 0..CLAIM {
            let mut forged = bytes;
            forged[at] ^= 0x10;
            assert!(ours.read_claim(&forged).is_err(), "byte {at}");
        }
        for at in 0..VERDICT {
            let mut forged = verdict;
            forged[at] ^= 1;
            assert!(ours.read_verdict(&bytes, &forged).is_err(), "byte {at}");
        }
        let [a, b] = ours.keys(&bytes);
        assert_ne!(a, b);
    }

    #[test]
    fn openings_of_other_protocols_and_versions_are_refused() {
        let bytes = opening(&[9; 32]);
        assert_eq!(read_opening(&bytes), Ok([9; 32]));
        for at in 0..8 {
            let mut other = bytes;
            other[at] ^= 1;
            assert!(read_opening(&other).is_err());
        }
    }
}
