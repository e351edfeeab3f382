//! The frames between ranks and the store, as bytes. Pure: no socket, no clock.
//!
//! A frame is its length (4 bytes, of the bytes that follow), its kind (1 byte) and its body. All
//! numbers are little-endian. Greetings begin with a magic number and the version; this beginning
//! is the same in every version.

use super::bytes::Bytes;
pub use super::bytes::Malformed;
use super::{MAX_MESSAGE, Secret};
use crate::bootstrap::secret::{Nonce, Proof};

/// The version of these frames.
pub const VERSION: u32 = 1;

/// Most ranks of a job.
pub const MAX_RANKS: u32 = 1 << 16;

/// Most bytes of a frame, including its length word.
pub const MAX_FRAME: usize = MAX_MESSAGE + 64;

/// Most bytes of a frame before both sides have proved that they have the secret.
pub const MAX_GREETING: usize = 256;

/// Most ranks in the list of one frame.
pub const MAX_LISTED: usize = 4096;

const MAX_TEXT: usize = 200;

const MAGIC: [u8; 8] = *b"mp-store";

/// The greeting of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rank's number.
    pub rank: u32,
    /// The job size that the rank expects.
    pub size: u32,
    /// The digest of the job's name.
    pub name: u64,
    /// The number of the rank's host.
    pub host: u64,
    /// A fresh random number.
    pub nonce: Nonce,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Rank to store: greeting.
    Hello(Hello),
    /// Store to rank: proves that the store has the secret, and challenges the rank.
    Challenge {
        /// The job's number.
        job: u64,
        /// A fresh random number.
        nonce: Nonce,
        /// Proof over both nonces and the hello.
        proof: Proof,
    },
    /// Rank to store: proves that the rank has the secret.
    Answer {
        /// Proof over both nonces and the hello.
        proof: Proof,
    },
    /// A greeting of another version of the protocol.
    Foreign {
        /// The other version.
        version: u32,
    },
    /// Store to rank: the store refuses the rank.
    Refused {
        /// The reason, as a clause.
        why: &'a str,
    },
    /// Store to rank: other ranks have not joined yet.
    Waiting {
        /// The number of missing ranks.
        count: u32,
        /// The first of the missing ranks.
        missing: Vec<u32>,
    },
    /// Store to rank: the hosts of consecutive ranks.
    Hosts {
        /// The first rank.
        first: u32,
        /// Host numbers, beginning with that of rank `first`.
        hosts: Vec<u64>,
    },
    /// Store to rank: all ranks have joined.
    Start,
    /// A control message.
    Message {
        /// To the store: the receiver. From the store: the sender.
        peer: u32,
        /// The message's topic.
        topic: u64,
        /// The message's bytes.
        bytes: &'a [u8],
    },
    /// Messages were received: room in the window is free again.
    Credit {
        /// To the store: the sender of the messages. From the store: their receiver.
        peer: u32,
        /// The room, in bytes.
        room: u32,
    },
    /// Store to rank: another rank has left or died.
    Gone {
        /// That rank's number.
        rank: u32,
    },
}

impl Frame<'_> {
    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        out.push(self.kind());
        match self {
            Frame::Hello(hello) => {
                greet(out, VERSION);
                hello.encode(out);
            }
            Frame::Challenge { job, nonce, proof } => {
                greet(out, VERSION);
                out.extend(job.to_le_bytes());
                out.extend(nonce);
                out.extend(proof.as_bytes());
            }
            Frame::Foreign { version } => greet(out, *version),
            Frame::Answer { proof } => out.extend(proof.as_bytes()),
            Frame::Refused { why } => {
                let mut end = why.len().min(MAX_TEXT);
                while !why.is_char_boundary(end) {
                    end -= 1;
                }
                out.extend(&why.as_bytes()[..end]);
            }
            Frame::Waiting { count, missing } => {
                out.extend(count.to_le_bytes());
                let listed = missing.iter().take(MAX_LISTED);
                out.extend(listed.flat_map(|r| r.to_le_bytes()));
            }
            Frame::Hosts { first, hosts } => {
                out.extend(first.to_le_bytes());
                let listed = hosts.iter().take(MAX_LISTED);
                out.extend(listed.flat_map(|h| h.to_le_bytes()));
            }
            Frame::Start => {}
            Frame::Message { peer, topic, bytes } => {
                out.extend(peer.to_le_bytes());
                out.extend(topic.to_le_bytes());
                out.extend(&bytes[..bytes.len().min(MAX_MESSAGE)]);
            }
            Frame::Credit { peer, room } => {
                out.extend(peer.to_le_bytes());
                out.extend(room.to_le_bytes());
            }
            Frame::Gone { rank } => out.extend(rank.to_le_bytes()),
        }
        let len = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello(_) | Frame::Foreign { .. } => 1,
            Frame::Challenge { .. } => 2,
            Frame::Answer { .. } => 3,
            Frame::Refused { .. } => 4,
            Frame::Waiting { .. } => 5,
            Frame::Hosts { .. } => 6,
            Frame::Start => 7,
            Frame::Message { .. } => 8,
            Frame::Credit { .. } => 9,
            Frame::Gone { .. } => 10,
        }
    }
}

/// Decodes the first frame in `bytes`. Returns the frame and its length; None if it is incomplete.
///
/// # Errors
/// The bytes do not begin with a frame of at most `limit` bytes.
pub fn decode(bytes: &[u8], limit: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((len, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 {
        return Err(Malformed("a frame is empty"));
    }
    if len > limit.saturating_sub(4) {
        return Err(Malformed("a frame is too long"));
    }
    let Some(frame) = rest.get(..len) else {
        return Ok(None);
    };
    let mut body = Bytes(&frame[1..], "a frame is too short");
    let decoded = body.frame(frame[0])?;
    body.end("a frame has trailing bytes")?;
    Ok(Some((decoded, 4 + len)))
}

fn greet(out: &mut Vec<u8>, version: u32) {
    out.extend(MAGIC);
    out.extend(version.to_le_bytes());
}

impl Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.rank.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.name.to_le_bytes());
        out.extend(self.host.to_le_bytes());
        out.extend(self.nonce);
    }

    /// The greeting of a rank in a job without a name on one host: for tests and fuzzers.
    pub(super) fn plain(rank: u32, size: u32) -> Hello {
        let nonce = [rank as u8; 32];
        let (name, host) = (0, 0);
        Hello {
            rank,
            size,
            name,
            host,
            nonce,
        }
    }

    /// The proof by one side ("rank" or "store") that it has the secret.
    pub(super) fn proof(&self, secret: &Secret, side: &str, job: u64, theirs: &Nonce) -> Proof {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        let version = VERSION.to_le_bytes();
        secret.proof(side, &[&version, &bytes, &job.to_le_bytes(), theirs])
    }
}

impl<'a> Bytes<'a> {
    /// Decodes the body of a frame of this kind.
    fn frame(&mut self, kind: u8) -> Result<Frame<'a>, Malformed> {
        Ok(match kind {
            1 | 2 => {
                if self.array()? != MAGIC {
                    return Err(Malformed("the greeting is not of this protocol"));
                }
                let version = self.u32()?;
                if version != VERSION {
                    self.rest();
                    return Ok(Frame::Foreign { version });
                }
                if kind == 2 {
                    let (job, nonce, proof) = (self.u64()?, self.array()?, self.proof()?);
                    return Ok(Frame::Challenge { job, nonce, proof });
                }
                Frame::Hello(Hello {
                    rank: self.u32()?,
                    size: self.u32()?,
                    name: self.u64()?,
                    host: self.u64()?,
                    nonce: self.array()?,
                })
            }
            3 => Frame::Answer {
                proof: self.proof()?,
            },
            4 => {
                let text = self.rest();
                if text.len() > MAX_TEXT {
                    return Err(Malformed("a reason is too long"));
                }
                let why = std::str::from_utf8(text);
                let why = why.map_err(|_| Malformed("a reason is not UTF-8"))?;
                Frame::Refused { why }
            }
            5 => Frame::Waiting {
                count: self.u32()?,
                missing: self.list(u32::from_le_bytes)?,
            },
            6 => Frame::Hosts {
                first: self.u32()?,
                hosts: self.list(u64::from_le_bytes)?,
            },
            7 => Frame::Start,
            8 => {
                let (peer, topic, bytes) = (self.u32()?, self.u64()?, self.rest());
                if bytes.len() > MAX_MESSAGE {
                    return Err(Malformed("a message is too long"));
                }
                Frame::Message { peer, topic, bytes }
            }
            9 => Frame::Credit {
                peer: self.u32()?,
                room: self.u32()?,
            },
            10 => Frame::Gone { rank: self.u32()? },
            _ => return Err(Malformed("a frame has an unknown kind")),
        })
    }

    fn proof(&mut self) -> Result<Proof, Malformed> {
        Ok(Proof::from_bytes(self.array()?))
    }

    fn list<const N: usize, T>(&mut self, read: fn([u8; N]) -> T) -> Result<Vec<T>, Malformed> {
        let (items, rest) = self.rest().as_chunks::<N>();
        if !rest.is_empty() || items.len() > MAX_LISTED {
            return Err(Malformed("a list has an invalid length"));
        }
        Ok(items.iter().map(|i| read(*i)).collect())
    }
}
