//! Parser for bytes from other processes, front to back; integers are little-endian.

/// The bytes are malformed. The text is a clause that says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The unread bytes, and the error text if they are too short.
pub(super) struct Bytes<'a>(pub &'a [u8], pub &'static str);

impl<'a> Bytes<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed(self.1))?;
        self.0 = rest;
        Ok(*array)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Fails if unread bytes remain.
    pub fn end(&self, what: &'static str) -> Result<(), Malformed> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed(what)),
        }
    }
}
