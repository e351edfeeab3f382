//! What a queue pair sends: heads, short payloads and operands as bytes, long payloads as memory
//! that is read when the connection takes them.

use std::collections::VecDeque;
use std::io;

use super::memory::Piece;
use super::seal::{PLAIN, Seal};
use super::wire::{Wire, iovec, piece};

/// Bytes of a payload that are copied when they are posted.
const SHORT: usize = 2048;
/// Bytes of a GPU's memory that are copied to the host at once.
const BOUNCE: usize = 256 * 1024;
/// Maximum number of parts of one write.
const PARTS: usize = 16;
/// Bytes that are written in one step; then other queue pairs have their turn.
const STEP: usize = 512 * 1024;

enum Part {
    /// This many of the staged bytes.
    Staged(usize),
    Memory(Piece),
}

/// Bytes with a front that was consumed. Its memory is kept.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    head: usize,
}

impl Bytes {
    /// Consumed bytes that are kept in front of others.
    const CONSUMED: usize = 64 * 1024;

    fn rest(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    fn consume(&mut self, n: usize) {
        self.head += n;
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
        } else if self.head > Bytes::CONSUMED && self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }
}

#[derive(Default)]
pub struct Output {
    parts: VecDeque<Part>,
    staged: Bytes,
    /// Bytes of a GPU's memory, in front of all parts.
    bounce: Bytes,
    seal: Option<Seal>,
    /// Records, in front of all other bytes.
    sealed: Bytes,
    plain: Vec<u8>,
    /// Number of bytes that were pushed, and of those that the connection has taken.
    pushed: u64,
    taken: u64,
    /// The ends of answers in the pushed bytes, and of the last frame that has counts alone.
    answers: VecDeque<u64>,
    counts: u64,
}

impl Output {
    /// Encrypts everything from now on.
    pub fn seal(&mut self, seal: Option<Seal>) {
        self.seal = seal;
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.bounce.rest().is_empty() && self.sealed.rest().is_empty()
    }

    /// Number of bytes that the connection has not taken.
    #[cfg(test)]
    pub fn left(&self) -> u64 {
        self.pushed - self.taken
    }

    /// An answer ends behind what was pushed.
    pub fn end_answer(&mut self) {
        self.answers.push_back(self.pushed);
    }

    /// Number of answers that the connection has not taken.
    pub fn answers(&mut self) -> usize {
        while self.answers.front().is_some_and(|end| *end <= self.taken) {
            self.answers.pop_front();
        }
        self.answers.len()
    }

    /// A frame that has counts alone ends behind what was pushed.
    pub fn end_counts(&mut self) {
        self.counts = self.pushed;
    }

    /// Whether the connection has not taken such a frame.
    pub fn has_counts(&self) -> bool {
        self.counts > self.taken
    }

    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.staged.bytes.extend_from_slice(bytes);
        self.staged_more(bytes.len());
    }

    fn staged_more(&mut self, more: usize) {
        self.pushed += more as u64;
        match self.parts.back_mut() {
            Some(Part::Staged(n)) => *n += more,
            _ => self.parts.push_back(Part::Staged(more)),
        }
    }

    /// `false`: the GPU is lost.
    pub fn push_memory(&mut self, memory: Piece) -> bool {
        if memory.len > SHORT {
            self.pushed += memory.len as u64;
            self.parts.push_back(Part::Memory(memory));
            return true;
        }
        let (bytes, len) = (&mut self.staged.bytes, memory.len);
        let at = bytes.len();
        bytes.resize(at + len, 0);
        let read = memory.read(&mut bytes[at..]);
        if len > 0 {
            self.staged_more(len);
        }
        read
    }

    /// Writes what the connection takes. Returns whether it took anything.
    ///
    /// # Errors
    /// Errors of the connection; `Other` if the GPU is lost.
    pub fn write(&mut self, wire: &mut dyn Wire) -> io::Result<bool> {
        let mut written = 0;
        let outcome = loop {
            if self.is_empty() || written >= STEP {
                break Ok(());
            }
            let wrote = match self.seal {
                None => self.write_plain(wire),
                Some(_) => self.write_sealed(wire),
            };
            match wrote {
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        wire.want_room(!self.is_empty());
        outcome.map(|()| written > 0)
    }

    /// Copies the next bytes of a GPU's memory to the host, if they are the next.
    fn fetch(&mut self) -> io::Result<()> {
        let Some(Part::Memory(memory)) = self.parts.front_mut() else {
            return Ok(());
        };
        if memory.host().is_some() || !self.bounce.rest().is_empty() {
            return Ok(());
        }
        let len = memory.len.min(BOUNCE);
        self.bounce.bytes.resize(len, 0);
        if !memory.read(&mut self.bounce.bytes) {
            return Err(io::Error::other("the GPU is lost"));
        }
        memory.advance(len);
        if memory.len == 0 {
            self.parts.pop_front();
        }
        Ok(())
    }

    fn write_plain(&mut self, wire: &mut dyn Wire) -> io::Result<usize> {
        self.fetch()?;
        let mut iov = [piece(std::ptr::null(), 0); PARTS];
        let mut count = 0;
        let mut push = |part: iovec| {
            iov[count] = part;
            count += 1;
            count < PARTS
        };
        let bounce = self.bounce.rest();
        let mut room = bounce.is_empty() || push(piece(bounce.as_ptr(), bounce.len()));
        let mut staged = self.staged.rest();
        for part in &self.parts {
            let part = match part {
                Part::Staged(n) => {
                    let (now, later) = staged.split_at(*n);
                    staged = later;
                    piece(now.as_ptr(), *n)
                }
                Part::Memory(memory) => match memory.host() {
                    Some(at) => piece(at, memory.len),
                    None => break,
                },
            };
            if !room {
                break;
            }
            room = push(part);
        }
        // SAFETY: bytes of this structure, and registered memory that the parts keep.
        let n = unsafe { wire.write(&iov[..count])? };
        self.consume(n);
        self.taken += n as u64;
        Ok(n)
    }

    /// Drops `n` bytes of the bounce buffer and the parts.
    fn consume(&mut self, mut n: usize) {
        let bounced = n.min(self.bounce.rest().len());
        self.bounce.consume(bounced);
        n -= bounced;
        while n > 0 {
            let (taken, empty) = match self.parts.front_mut() {
                None => return,
                Some(Part::Staged(len)) => {
                    let taken = n.min(*len);
                    self.staged.consume(taken);
                    *len -= taken;
                    (taken, *len == 0)
                }
                Some(Part::Memory(memory)) => {
                    let taken = n.min(memory.len);
                    memory.advance(taken);
                    (taken, memory.len == 0)
                }
            };
            n -= taken;
            if empty {
                self.parts.pop_front();
            }
        }
    }

    fn write_sealed(&mut self, wire: &mut dyn Wire) -> io::Result<usize> {
        if self.sealed.rest().is_empty() {
            self.gather()?;
            if let Some(seal) = &mut self.seal {
                seal.seal(&self.plain, &mut self.sealed.bytes);
            }
        }
        let sealed = self.sealed.rest();
        // SAFETY: bytes of this structure.
        let n = unsafe { wire.write(&[piece(sealed.as_ptr(), sealed.len())])? };
        self.sealed.consume(n);
        // The peer opens a record as a whole.
        if self.sealed.rest().is_empty() {
            self.taken += self.plain.len() as u64;
        }
        Ok(n)
    }

    /// Moves the plain bytes of a record from the parts.
    fn gather(&mut self) -> io::Result<()> {
        self.plain.clear();
        while self.plain.len() < PLAIN {
            self.fetch()?;
            let room = PLAIN - self.plain.len();
            let bounce = self.bounce.rest();
            let taken = if !bounce.is_empty() {
                let taken = room.min(bounce.len());
                self.plain.extend_from_slice(&bounce[..taken]);
                taken
            } else {
                match self.parts.front() {
                    None => break,
                    Some(Part::Staged(len)) => {
                        let taken = room.min(*len);
                        self.plain.extend_from_slice(&self.staged.rest()[..taken]);
                        taken
                    }
                    Some(Part::Memory(memory)) => {
                        let (at, taken) = (self.plain.len(), room.min(memory.len));
                        self.plain.resize(at + taken, 0);
                        memory.read(&mut self.plain[at..]);
                        taken
                    }
                }
            };
            self.consume(taken);
        }
        Ok(())
    }
}
