//! The puts that the CPU executes, in order, a bounded number of bytes at a time. Short messages and credits are
//! copied at once, without a put.

use gdsync::Status;
use gdsync::gpu::Region;

use super::put::{PutState, Source};
use super::{Lane, Piece, Put, Span};
use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};

/// Number of bytes that the CPU copies in one round, under the context's lock.
pub(crate) const ROUND: usize = 4 << 20;
/// Number of bytes that the CPU copies when it posts, under the context's lock.
pub(crate) const AT_ONCE: usize = 64 << 10;
/// Bytes of the copy buffer. Each piece of device memory costs two calls of the GPU's driver.
const BUFFER: usize = 64 << 10;

impl Lane {
    /// Whether the CPU has puts to copy.
    pub fn is_copying(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues a put for the CPU; [`Lane::go_on`] executes it.
    pub fn post(&mut self, put: Put) -> Result<()> {
        const OPERATION: &str = "post request";
        self.check(OPERATION)?;
        if put.reports() {
            let what = "a message to a flagged room is posted on a stream; post it there";
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        self.known(OPERATION, put)?.state = PutState::Posted(put);
        match on(Mutant::LocalWordFirst) && put.words {
            true => self.queue.push_front(put),
            false => self.queue.push_back(put),
        }
        Ok(())
    }

    /// Copies pieces to `to` and then stores `words` at `place`, if they are short, the CPU has no earlier
    /// put to copy, and it reaches all of the memory. `to` is not used without pieces. `false`: the words
    /// are not stored, and puts are needed.
    ///
    /// # Errors
    /// `PeerFailed` if the lane has failed.
    #[inline]
    pub fn copy_now<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        mut to: Span,
        words: &[u64],
        place: Span,
    ) -> Result<bool> {
        self.check("post request")?;
        if !self.queue.is_empty() || on(Mutant::LocalWordFirst) {
            return Ok(false);
        }
        // Held while bytes are copied: to clone the handles of the regions takes longer. Nothing below releases a key.
        let regions = self.copier.table.lock();
        let Some((shown, at)) = regions.of(place, size_of_val(words) as u64) else {
            return Ok(false);
        };
        let mut left = AT_ONCE;
        for piece in pieces.filter(|piece| piece.len > 0) {
            let Some((region, start)) = regions.of(to, piece.len as u64) else {
                return Ok(false);
            };
            if piece.len > left
                || !region.copy_from(start, piece.region, piece.offset, piece.len)?
            {
                return Ok(false);
            }
            left -= piece.len;
            to.addr += piece.len as u64;
        }
        shown.store_words(at, words)?;
        Ok(true)
    }

    /// Copies at most `left` bytes of the CPU's puts, and the words behind them. Returns `true` if the queue
    /// had a put.
    pub fn go_on(&mut self, mut left: usize) -> bool {
        let any = !self.queue.is_empty();
        while let Some(put) = self.queue.front().copied()
            && (left > 0 || put.words)
        {
            match self.copy(put, &mut left) {
                Ok(true) => {
                    self.complete(put);
                    if on(Mutant::LocalWordFirst) && put.words {
                        break;
                    }
                }
                Ok(false) => {}
                Err(e) => {
                    tracing::warn!(target: "mp", "a put by a copy failed: {e}");
                    self.fail(Status::LOCAL_ACCESS);
                }
            }
        }
        any
    }

    fn complete(&mut self, put: Put) {
        self.queue.pop_front();
        self.copied = 0;
        self.slots[put.slot()].from.clear();
        // As in `fail`. Release: a reader of the new value finds the bytes in place.
        let _ = self.wqes.done(put.slot()).store(put.serial);
    }

    /// Copies at most `left` bytes of the first put. Returns `true` if all of it is copied.
    fn copy(&mut self, put: Put, left: &mut usize) -> Result<bool> {
        let Lane {
            copier,
            slots,
            copied,
            buffer,
            ..
        } = self;
        let slot = &slots[put.slot()];
        let (to, start) = copier.table.find(slot.to, slot.len)?;
        let mut skip = *copied;
        for source in slot.from.iter() {
            if skip >= source.len {
                skip -= source.len;
                continue;
            }
            // The words of a put are stored in one step: a stream may take a message by the first
            // word, and the second is then the next message's.
            while skip < source.len && (*left > 0 || put.words) {
                let n = (source.len - skip).min(*left);
                let n = transfer(source, skip, &to, start + *copied, n, put.words, buffer)?;
                skip += n;
                *copied += n;
                *left = left.saturating_sub(n);
            }
            skip = skip.saturating_sub(source.len);
        }
        Ok(*copied as u64 == slot.len)
    }
}

/// Copies `n` bytes, at most as many as the buffer has if the bytes pass through it, or one word.
/// Returns the number of bytes.
fn transfer(
    from: &Source,
    at: usize,
    to: &Region,
    start: usize,
    n: usize,
    words: bool,
    buffer: &mut Vec<u8>,
) -> Result<usize> {
    if words {
        let mut word = [0; 8];
        from.region.read(from.offset + at, &mut word)?;
        to.word64(start)?.store(u64::from_ne_bytes(word))?;
        return Ok(8);
    }
    if to.copy_from(start, &from.region, from.offset + at, n)? {
        return Ok(n);
    }
    buffer.resize(BUFFER, 0);
    let n = n.min(BUFFER);
    from.region.read(from.offset + at, &mut buffer[..n])?;
    to.write(start, &buffer[..n])?;
    Ok(n)
}
