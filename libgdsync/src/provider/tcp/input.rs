//! What a queue pair receives: a buffer of bytes, of which heads and short payloads are taken, and
//! memory that long payloads are read into without the buffer: that of the payload, or chunks whose bytes
//! a copy engine copies to a GPU's memory.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::Broken;
use super::frame::HEAD;
use super::memory::{Piece, Pieces};
use super::seal::{RECORD, Seal};
use super::wire::{Wire, iovec, piece};
use crate::gpu::{AHEAD, Chunk, Chunks};

/// Bytes of the buffer.
const BUFFER: usize = 64 * 1024;
/// Payloads up to this length are stored at once, from low addresses to high ones, each aligned word
/// at once. A word that announces other data is such a payload.
pub const SHORT: usize = 8 * 1024;
/// Until this many payloads have followed a long one, heads are read alone: the next long payload is then read
/// into its memory, and not copied from the buffer.
const AFTER_LONG: u8 = 4;
/// Maximum number of pieces that are read into at once.
const PIECES: usize = 8;

/// The memory that a payload goes to.
#[derive(Default)]
pub struct Sink {
    pieces: Pieces,
    /// The first piece that is not full.
    next: usize,
}

impl Sink {
    pub fn new(pieces: Pieces) -> Sink {
        Sink { pieces, next: 0 }
    }

    /// Its room in bytes.
    pub fn room(&self) -> u64 {
        self.pieces[self.next..].iter().map(|p| p.len as u64).sum()
    }

    fn advance(&mut self, mut n: usize) {
        while let Some(piece) = self.pieces.get_mut(self.next) {
            let taken = n.min(piece.len);
            piece.advance(taken);
            n -= taken;
            if piece.len > 0 {
                return;
            }
            self.next += 1;
        }
    }

    /// The next piece, if `left` bytes of it and behind it go by chunks.
    fn by_chunks(&self, left: usize) -> Option<&Piece> {
        let piece = self.pieces.get(self.next)?;
        piece.uses_chunks(left.min(piece.len)).then_some(piece)
    }

    /// Stores bytes; those without room are dropped. `false`: the GPU is lost.
    fn store(&mut self, mut bytes: &[u8]) -> bool {
        let mut stored = true;
        while let Some(piece) = self.pieces.get(self.next)
            && !bytes.is_empty()
        {
            let (now, later) = bytes.split_at(bytes.len().min(piece.len));
            stored &= piece.write(now);
            self.advance(now.len());
            bytes = later;
        }
        stored
    }
}

/// A payload that is being received.
#[derive(Default)]
pub struct Payload {
    sink: Sink,
    /// Bytes that have not been stored yet.
    left: usize,
    /// Whether it is stored at once.
    short: bool,
}

impl Payload {
    pub fn new(sink: Sink, len: usize) -> Payload {
        Payload {
            sink,
            left: len,
            short: len <= SHORT,
        }
    }

    /// Whether bytes are still to be stored in memory of the registration with this key. `copying`: a copy
    /// engine still copies bytes of this payload; then full pieces count too.
    pub fn is_of(&self, key: u32, copying: bool) -> bool {
        let from = if copying { 0 } else { self.sink.next };
        let mut pieces = self.sink.pieces[from..].iter();
        pieces.any(|piece| piece.key == key)
    }
}

pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// A GPU other than the software GPU accesses the memory of payloads: it is not in the cache of the CPU, and
    /// copies to it are slow.
    copies_are_slow: bool,
    /// Payloads since the last long one, at most [`AFTER_LONG`].
    since_long: u8,
    seal: Option<Seal>,
    /// Bytes of records that are not opened yet.
    records: Vec<u8>,
    /// The chunk that the next bytes of a payload go to, and how many it has.
    filling: Option<(Chunk, usize)>,
    /// The chunks of the device.
    all: Option<Arc<Chunks>>,
    /// Full chunks that are copied to the memory of the payload.
    copying: VecDeque<Chunk>,
}

impl Input {
    pub fn new(all: Option<Arc<Chunks>>) -> Input {
        Input {
            copies_are_slow: all.is_some(),
            all,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            since_long: AFTER_LONG,
            seal: None,
            records: Vec::new(),
            filling: None,
            copying: VecDeque::new(),
        }
    }

    /// Decrypts everything from now on.
    pub fn seal(&mut self, seal: Option<Seal>) {
        (self.start, self.end) = (0, 0);
        self.records.clear();
        self.seal = seal;
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes `N` bytes, if they are there.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.buffered().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }

    fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves the buffered bytes to the start of the buffer.
    fn compact(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// A payload begins.
    pub fn begins(&mut self, payload: &Payload) {
        self.since_long = match payload.short {
            true => (self.since_long + 1).min(AFTER_LONG),
            false => 0,
        };
    }

    /// Whether the next payload is likely to be long, and slow to copy.
    fn expects_long(&self) -> bool {
        self.copies_are_slow && self.since_long < AFTER_LONG
    }

    /// Whether a copy engine copies what was received.
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Drops the chunks of a payload that ends early: then no engine writes to its memory any more.
    pub fn forget_chunks(&mut self) {
        (self.filling, self.copying) = (None, VecDeque::new());
    }

    /// Where the next bytes of a payload go.
    ///
    /// # Errors
    /// The GPU is lost.
    fn chunk(&mut self, payload: &Payload) -> Result<Next, Broken> {
        if self.filling.is_none() {
            let Some(piece) = payload.sink.by_chunks(payload.left) else {
                return Ok(Next::Plain);
            };
            let len = payload.left.min(piece.len);
            if !self.land(AHEAD - 1)? {
                return Ok(Next::Later);
            }
            let taken = self.all.as_ref().and_then(|all| all.take(len));
            self.filling = taken.map(|chunk| (chunk, 0));
        }
        // Without a free chunk the thread copies: chunks may wait for what it sends behind that.
        Ok(self.filling.as_ref().map_or(Next::Plain, Next::of))
    }

    /// Counts `n` bytes that the chunk has got. A full one is copied.
    fn filled(&mut self, payload: &mut Payload, n: usize) -> Result<(), Broken> {
        let Some((chunk, has)) = &mut self.filling else {
            return Ok(());
        };
        *has += n;
        payload.left -= n;
        if *has == chunk.len
            && let Some((mut chunk, len)) = self.filling.take()
        {
            let piece = payload.sink.pieces.get(payload.sink.next);
            let copied = piece.map_or(Ok(()), |piece| piece.write_beside(&mut chunk));
            copied.map_err(|_| Broken::Gpu)?;
            payload.sink.advance(len);
            self.copying.push_back(chunk);
        }
        Ok(())
    }

    /// Whether at most `most` chunks are copied.
    fn land(&mut self, most: usize) -> Result<bool, Broken> {
        while let Some(chunk) = self.copying.front_mut()
            && chunk.is_done().map_err(|_| Broken::Gpu)?
        {
            self.copying.pop_front();
        }
        Ok(self.copying.len() <= most)
    }

    /// Stores what is buffered of a payload. `Ok(true)`: all of it is stored.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn store(&mut self, payload: &mut Payload) -> Result<bool, Broken> {
        loop {
            let n = payload.left.min(self.end - self.start);
            if payload.short && n < payload.left {
                return Ok(false);
            }
            match self.chunk(payload)? {
                Next::Room(to) if n > 0 => {
                    let n = n.min(to.iov_len);
                    // SAFETY: room of a chunk that nothing else accesses, and `n` buffered bytes.
                    unsafe {
                        let from = self.buffer[self.start..].as_ptr();
                        to.iov_base.cast::<u8>().copy_from_nonoverlapping(from, n);
                    }
                    self.consume(n);
                    self.filled(payload, n)?;
                }
                Next::Plain if n > 0 => {
                    let piece = payload.sink.pieces.get(payload.sink.next);
                    let n = piece.map_or(n, |piece| n.min(piece.len));
                    let stored = payload.sink.store(&self.buffer[self.start..self.start + n]);
                    self.consume(n);
                    payload.left -= n;
                    if !stored {
                        return Err(Broken::Gpu);
                    }
                }
                _ => return Ok(payload.left == 0 && self.land(0)?),
            }
        }
    }

    /// Reads once from the connection, behind the buffered bytes: into the memory of a long payload
    /// where the CPU reaches it, else into the buffer. Returns the number of bytes, and whether the
    /// connection may have more; 0 and `false`: it has none now.
    ///
    /// # Errors
    /// The connection has ended or is broken.
    pub fn read(
        &mut self,
        wire: &mut dyn Wire,
        payload: Option<&mut Payload>,
    ) -> Result<(usize, bool), Broken> {
        if self.seal.is_some() {
            return self.read_sealed(wire);
        }
        self.compact();
        let mut iov = [piece(std::ptr::null(), 0); PIECES + 1];
        let (mut count, mut direct) = (0, 0);
        let head_alone = payload.is_none() && self.end == 0 && self.expects_long();
        let mut payload = payload.filter(|payload| !payload.short && self.end == 0);
        if let Some(payload) = &mut payload
            && payload.left > 0
        {
            match self.chunk(payload)? {
                Next::Plain => {}
                Next::Later => return Ok((0, false)),
                Next::Room(room) => {
                    // SAFETY: room of a chunk that nothing else accesses.
                    let n = read(unsafe { wire.read(&[room]) })?;
                    self.filled(payload, n)?;
                    return Ok((n, n == room.iov_len));
                }
            }
            for to in &payload.sink.pieces[payload.sink.next..] {
                let left = payload.left - direct;
                match to.host() {
                    Some(at) if count < PIECES && left > 0 => {
                        iov[count] = piece(at, to.len.min(left));
                        direct += iov[count].iov_len;
                        count += 1;
                    }
                    _ => break,
                }
            }
        }
        // Not behind memory that only an engine reaches: its bytes come next.
        let all = payload
            .as_ref()
            .is_none_or(|payload| payload.left == direct);
        if all || direct == 0 {
            let end = if head_alone { HEAD } else { self.buffer.len() };
            let room = &mut self.buffer[self.end..end];
            if room.is_empty() {
                // The bytes before these wait for a copy.
                return Ok((0, false));
            }
            iov[count] = piece(room.as_mut_ptr(), room.len());
            count += 1;
        }
        // SAFETY: registered memory that the pieces keep, and bytes of this structure.
        let n = read(unsafe { wire.read(&iov[..count]) })?;
        let placed = n.min(direct);
        if let Some(payload) = payload {
            payload.sink.advance(placed);
            payload.left -= placed;
        }
        self.end += n - placed;
        let asked: usize = iov[..count].iter().map(|part| part.iov_len).sum();
        Ok((n, n == asked))
    }

    fn read_sealed(&mut self, wire: &mut dyn Wire) -> Result<(usize, bool), Broken> {
        if self.end - self.start >= BUFFER {
            // These bytes wait for a copy.
            return Ok((0, false));
        }
        let at = self.records.len();
        self.records.resize(at + RECORD, 0);
        let room = piece(self.records[at..].as_mut_ptr(), RECORD);
        // SAFETY: bytes of this structure.
        let outcome = read(unsafe { wire.read(&[room]) });
        let n = *outcome.as_ref().unwrap_or(&0);
        self.records.truncate(at + n);
        outcome?;
        self.compact();
        let mut opened = 0;
        while let Some(seal) = &mut self.seal
            && let Some((plain, len)) = seal.open(&mut self.records[opened..])?
        {
            let plain = &self.records[opened..][plain];
            let end = self.end + plain.len();
            if self.buffer.len() < end {
                self.buffer.resize(end, 0);
            }
            self.buffer[self.end..end].copy_from_slice(plain);
            self.end = end;
            opened += len;
        }
        self.records.drain(..opened);
        Ok((n, n == RECORD))
    }
}

/// Where the next bytes of a payload go.
enum Next {
    /// To the room of a chunk.
    Room(iovec),
    /// To a chunk, once an earlier one is copied.
    Later,
    /// To the memory itself.
    Plain,
}

impl Next {
    fn of((chunk, has): &(Chunk, usize)) -> Next {
        let memory = chunk.memory();
        Next::Room(piece(memory.as_ptr().wrapping_add(*has), chunk.len - has))
    }
}

/// The outcome of a read: 0 bytes if there are none now.
fn read(outcome: io::Result<usize>) -> Result<usize, Broken> {
    match outcome {
        Ok(0) => Err(Broken::Closed),
        Ok(n) => Ok(n),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(0)
        }
        Err(e) => Err(Broken::Connection(e.raw_os_error().unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Registrations;
    use super::*;
    use crate::gpu::{Gpu, MemoryKind};
    use crate::nic::{Access, PdId};

    #[test]
    fn a_payload_that_an_engine_still_copies_is_of_its_registration() {
        const LEN: usize = 64 * 1024;
        let region = Gpu::open("soft").unwrap();
        let region = region.alloc(MemoryKind::Pinned, LEN).unwrap();
        let registrations = Registrations::default();
        let keys = registrations.add(PdId(0), &region, Access::ALL);
        let piece =
            registrations.find(keys.rkey, PdId(0), region.addr().0, LEN as u32, Access::ALL);
        let mut payload = Payload::new(Sink::new([piece.unwrap()].into_iter().collect()), LEN);
        // The last chunk is full, and its copy is started.
        payload.sink.advance(LEN);
        payload.left = 0;
        assert!(payload.is_of(keys.rkey, true));
        assert!(!payload.is_of(keys.rkey + 1, true));
        assert!(!payload.is_of(keys.rkey, false));
    }

    /// A connection without an end, which keeps the lengths of the reads.
    struct Endless(Vec<Vec<usize>>);

    impl Wire for Endless {
        unsafe fn read(&mut self, into: &[iovec]) -> io::Result<usize> {
            let lens = into.iter().map(|part| part.iov_len);
            self.0.push(lens.collect());
            Ok(into[0].iov_len.min(HEAD))
        }

        unsafe fn write(&mut self, _: &[iovec]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn may_read(&mut self) -> bool {
            true
        }

        fn want_room(&mut self, _: bool) {}

        fn close(self: Box<Self>) {}
    }

    #[test]
    fn heads_behind_a_long_payload_are_read_alone() {
        let begun = |len| Payload::new(Sink::default(), len);
        for copies_are_slow in [true, false] {
            let (mut input, mut wire) = (Input::new(None), Endless(Vec::new()));
            input.copies_are_slow = copies_are_slow;
            let mut next = |payload: Option<usize>| {
                if let Some(len) = payload {
                    input.begins(&begun(len));
                }
                input.read(&mut wire, None).unwrap();
                input.take::<HEAD>().unwrap();
                wire.0.pop().unwrap() == [HEAD]
            };
            assert!(
                !next(None) && !next(Some(SHORT)),
                "no long payload has come"
            );
            assert_eq!(next(Some(SHORT + 1)), copies_are_slow);
            assert_eq!(next(None), copies_are_slow, "a head without a payload");
            for _ in 1..AFTER_LONG {
                assert_eq!(next(Some(8)), copies_are_slow);
            }
            assert!(!next(Some(8)), "the payloads are short");
        }
    }
}
