//! What a queue pair sends: heads, short payloads and operands as bytes, long payloads as memory
//! that is read when the connection takes them.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use super::memory::Piece;
use super::seal::{PLAIN, Seal};
use super::wire::{Wire, iovec, piece};
use crate::error::Result;
use crate::gpu::{AHEAD, Chunk, Chunks, Mapped};

/// Bytes of a payload that are copied when they are posted.
const SHORT: usize = 2048;
/// Bytes of a GPU's memory that are copied to the host at once, while the thread waits.
const BOUNCE: usize = 256 * 1024;
/// Maximum number of parts of one write.
const PARTS: usize = 16;
/// Bytes that are written in one step; then other queue pairs have their turn.
const STEP: usize = 512 * 1024;

enum Part {
    /// This many of the staged bytes.
    Staged(usize),
    Memory(Piece),
    Chunks(Copied),
}

/// Memory of a GPU that goes by chunks.
struct Copied {
    /// Chunks whose copies are started, each with the bytes of it that the connection has taken.
    chunks: VecDeque<(Chunk, usize)>,
    /// The memory behind them.
    rest: Piece,
}

impl Copied {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.rest.len == 0
    }

    /// Starts copies as far as there are chunks, so that `most` are started. Returns whether those of all
    /// of the memory are.
    fn start(&mut self, most: usize, all: &Arc<Chunks>) -> Result<bool> {
        while self.rest.len > 0 {
            if self.chunks.len() >= most {
                return Ok(false);
            }
            let Some(mut chunk) = all.take(self.rest.len) else {
                return Ok(false);
            };
            self.rest.read_beside(&mut chunk)?;
            self.rest.advance(chunk.len);
            self.chunks.push_back((chunk, 0));
        }
        Ok(true)
    }

    /// Adds the bytes that are copied, up to the first that are not, to a list of at most [`PARTS`].
    /// Returns whether that is all.
    fn ready(&mut self, list: &mut SmallVec<[iovec; PARTS]>) -> Result<bool> {
        for (chunk, head) in &mut self.chunks {
            if list.len() == PARTS || !chunk.is_done()? {
                return Ok(false);
            }
            let at = chunk.memory().as_ptr().wrapping_add(*head);
            list.push(piece(at, chunk.len - *head));
        }
        Ok(self.rest.len == 0)
    }

    /// Drops up to `n` bytes of the chunks. Returns how many.
    fn consume(&mut self, n: usize) -> usize {
        let mut left = n;
        while let Some((chunk, head)) = self.chunks.front_mut()
            && left > 0
        {
            let taken = left.min(chunk.len - *head);
            *head += taken;
            left -= taken;
            if *head == chunk.len {
                self.chunks.pop_front();
            }
        }
        n - left
    }
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
    /// The chunks of the device.
    all: Option<Arc<Chunks>>,
    parts: VecDeque<Part>,
    staged: Bytes,
    /// Bytes of a GPU's memory, in front of all parts.
    bounce: Bytes,
    waits: bool,
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
    pub fn new(all: Option<Arc<Chunks>>) -> Output {
        Output {
            all,
            ..Output::default()
        }
    }

    /// Encrypts everything from now on.
    pub fn seal(&mut self, seal: Option<Seal>) {
        self.seal = seal;
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.bounce.rest().is_empty() && self.sealed.rest().is_empty()
    }

    /// Whether the last write stopped at bytes that a copy engine copies: the thread writes them later.
    pub fn waits(&self) -> bool {
        self.waits
    }

    fn is_copying(&mut self) -> bool {
        let next = match self.parts.front_mut() {
            Some(Part::Chunks(copied)) if self.bounce.rest().is_empty() => {
                copied.chunks.front_mut()
            }
            _ => None,
        };
        next.is_some_and(|(chunk, _)| matches!(chunk.is_done(), Ok(false)))
    }

    /// Number of bytes that were pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Number of those that the connection has taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether memory of the registration with this key is still to be sent.
    pub fn is_of(&self, key: u32) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Staged(_) => false,
            Part::Memory(memory) => memory.key == key,
            Part::Chunks(copied) => copied.rest.key == key,
        })
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
            self.parts
                .push_back(match self.all.is_some() && memory.uses_chunks(memory.len) {
                    true => Part::Chunks(Copied {
                        chunks: VecDeque::new(),
                        rest: memory,
                    }),
                    false => Part::Memory(memory),
                });
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
        self.waits = self.is_copying();
        wire.want_room(!self.is_empty() && !self.waits);
        outcome.map(|()| written > 0)
    }

    /// Starts copies of a GPU's memory. Copies the next bytes at once if no chunk has them.
    fn fetch(&mut self) -> io::Result<()> {
        let mut most = AHEAD;
        if let Some(all) = &self.all {
            for part in self.parts.iter_mut().take(PARTS) {
                let Part::Chunks(copied) = part else {
                    continue;
                };
                if !copied.start(most, all).map_err(io::Error::other)? {
                    break;
                }
                most = most.saturating_sub(copied.chunks.len());
            }
        }
        let memory = match self.parts.front_mut() {
            _ if !self.bounce.rest().is_empty() => return Ok(()),
            Some(Part::Memory(memory)) if memory.host().is_none() => memory,
            // No chunk is free: others may wait for what is sent here.
            Some(Part::Chunks(copied)) if copied.chunks.is_empty() => &mut copied.rest,
            _ => return Ok(()),
        };
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

    /// The next bytes, as far as the host has them.
    ///
    /// # Errors
    /// `Other`: the GPU is lost.
    fn ready(&mut self) -> io::Result<SmallVec<[iovec; PARTS]>> {
        self.fetch()?;
        let mut list = SmallVec::new();
        let bounce = self.bounce.rest();
        if !bounce.is_empty() {
            list.push(piece(bounce.as_ptr(), bounce.len()));
        }
        let mut staged = self.staged.rest();
        for part in &mut self.parts {
            if list.len() == PARTS {
                break;
            }
            match part {
                Part::Staged(n) => {
                    let (now, later) = staged.split_at(*n);
                    staged = later;
                    list.push(piece(now.as_ptr(), *n));
                }
                Part::Memory(memory) => match memory.host() {
                    Some(at) => list.push(piece(at, memory.len)),
                    None => break,
                },
                Part::Chunks(copied) => match copied.ready(&mut list) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => return Err(io::Error::other(e)),
                },
            }
        }
        match list.is_empty() {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(list),
        }
    }

    fn write_plain(&mut self, wire: &mut dyn Wire) -> io::Result<usize> {
        let list = self.ready()?;
        // SAFETY: bytes of this structure, and memory that the parts keep.
        let n = unsafe { wire.write(&list)? };
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
                Some(Part::Chunks(copied)) => (copied.consume(n), copied.is_empty()),
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
    ///
    /// # Errors
    /// As [`Output::ready`].
    fn gather(&mut self) -> io::Result<()> {
        self.plain.clear();
        while self.plain.len() < PLAIN {
            let list = match self.ready() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && !self.plain.is_empty() => break,
                list => list?,
            };
            let mut n = 0;
            for part in &list {
                let len = part.iov_len.min(PLAIN - self.plain.len());
                let at = self.plain.len();
                self.plain.resize(at + len, 0);
                if let Some(from) = NonNull::new(part.iov_base.cast()) {
                    // SAFETY: bytes of this structure, and memory that the parts keep.
                    unsafe { Mapped::new(from, len) }.read(0, &mut self.plain[at..]);
                }
                n += len;
            }
            self.consume(n);
        }
        Ok(())
    }
}
