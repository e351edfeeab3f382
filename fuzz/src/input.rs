//! Bytes as a source of choices. Reads past the end return zero, so every prefix of an input is an
//! input.

use zerocopy::{FromBytes, IntoBytes};

/// The remaining bytes.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether all bytes have been read.
    pub fn done(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, at most `len`.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// The next number.
    pub fn next<T: FromBytes + IntoBytes + Copy>(&mut self) -> T {
        let mut value = T::new_zeroed();
        let bytes = self.bytes(size_of::<T>());
        value.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        value
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.next()
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next::<u32>() as u64 % limit.max(1)
    }

    /// A number, often one at a limit: small, near a power of two, or any.
    pub fn number(&mut self) -> u64 {
        let shape = self.byte();
        match shape >> 6 {
            0 => u64::from(shape & 63),
            1 => (1_u64 << (shape & 63)).wrapping_sub(1),
            2 => (1_u64 << (shape & 63)).wrapping_add(self.next::<i8>() as u64),
            _ => self.next(),
        }
    }
}
