//! [`Output`]: bytes that wait until a non-blocking socket accepts them.

use std::io::{ErrorKind, Write};

use super::wire::{Frame, MAX_FRAME};

/// Bytes that are not yet written.
#[derive(Debug, Default)]
pub(super) struct Output {
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    /// Appends a frame.
    pub fn push(&mut self, frame: &Frame<'_>) {
        frame.encode(&mut self.bytes);
    }

    /// The bytes that are not yet written.
    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Removes the first `n` bytes, which are written.
    pub fn wrote(&mut self, n: usize) {
        self.written += n;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
            // Releases the memory of a burst.
            self.bytes.shrink_to(MAX_FRAME);
        } else if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes as much as `to` accepts. False if bytes remain.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn flush(&mut self, to: &mut impl Write) -> std::io::Result<bool> {
        while !self.pending().is_empty() {
            match to.write(self.pending()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.wrote(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_dropped_while_others_are_pending() {
        let mut output = Output::default();
        let whole = 16 * MAX_FRAME;
        let bytes = [7; 1 << 10];
        let (peer, topic) = (0, 0);
        for _ in 0..whole / bytes.len() {
            let bytes = bytes.as_slice();
            output.push(&Frame::Message { peer, topic, bytes });
            let pending = output.pending().len();
            output.wrote(pending - 1);
            assert!(output.bytes.len() <= 2 * bytes.len());
        }
    }
}
