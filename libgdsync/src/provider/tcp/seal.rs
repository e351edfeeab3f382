//! Encryption of a connection's bytes: records of up to [`PLAIN`] bytes, sealed by
//! ChaCha20-Poly1305 with one key for each direction. Pure.
//!
//! A record is the length of its plain bytes (4 bytes, little-endian), these bytes encrypted, and a
//! tag of 16 bytes. Its nonce is its number, so that a record that is lost, repeated or reordered is
//! refused as a forged one is; the length is authenticated too.

use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit as _, Nonce, Tag};

use super::Broken;
use super::greeting::Key;

/// Maximum number of plain bytes of a record.
pub const PLAIN: usize = 32 * 1024;
const LENGTH: usize = 4;
const TAG: usize = 16;
/// Bytes of the longest record.
pub const RECORD: usize = LENGTH + PLAIN + TAG;

/// One direction of a connection.
pub struct Seal {
    cipher: ChaCha20Poly1305,
    next: u64,
}

impl Seal {
    pub fn new(key: &Key) -> Seal {
        Seal {
            cipher: ChaCha20Poly1305::new(key.into()),
            next: 0,
        }
    }

    /// The nonce of the next record. Of 64 bits, none is used twice.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        nonce
    }

    /// Appends the record of `plain`, at most [`PLAIN`] bytes, to `out`.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let length = (plain.len() as u32).to_le_bytes();
        let nonce = self.nonce();
        out.extend_from_slice(&length);
        let at = out.len();
        out.extend_from_slice(plain);
        // It refuses nothing shorter than 256 GiB.
        let tag = self
            .cipher
            .encrypt_in_place_detached(&nonce, &length, &mut out[at..]);
        out.extend_from_slice(&tag.unwrap_or_default());
    }

    /// Decrypts the record at the start of `bytes` in place. Returns the range of its plain bytes and
    /// its length; `None`: it is not complete.
    ///
    /// # Errors
    /// The reason if it is not the next record of the peer.
    pub fn open(
        &mut self,
        bytes: &mut [u8],
    ) -> Result<Option<(std::ops::Range<usize>, usize)>, Broken> {
        let Some((length, _)) = bytes.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = *length;
        let plain = u32::from_le_bytes(length) as usize;
        if plain == 0 || plain > PLAIN {
            return Err(Broken::Frame("a record has a length that no peer sends"));
        }
        let record = LENGTH + plain + TAG;
        let Some(bytes) = bytes.get_mut(..record) else {
            return Ok(None);
        };
        let (data, tag) = bytes[LENGTH..].split_at_mut(plain);
        let nonce = self.nonce();
        let opened =
            self.cipher
                .decrypt_in_place_detached(&nonce, &length, data, Tag::from_slice(tag));
        opened.map_err(|_| Broken::Frame("a record is forged, repeated or lost"))?;
        Ok(Some((LENGTH..LENGTH + plain, record)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_open_once_in_their_order_and_unchanged() {
        let texts: [Vec<u8>; 3] = [vec![1], vec![2; PLAIN], b"three".to_vec()];
        let mut seal = Seal::new(&[5; 32]);
        let records = texts.each_ref().map(|text| {
            let mut out = Vec::new();
            seal.seal(text, &mut out);
            assert!(out.len() <= RECORD);
            out
        });
        let mut open = Seal::new(&[5; 32]);
        for (text, record) in texts.iter().zip(&records) {
            for cut in [0, 3, record.len() - 1] {
                assert_eq!(open.open(&mut record.clone()[..cut]), Ok(None));
            }
            let mut bytes = record.clone();
            bytes.push(0xff);
            let (plain, len) = open.open(&mut bytes).unwrap().unwrap();
            assert_eq!((&bytes[plain], len), (&text[..], record.len()));
        }
        // Another order, a repetition, another key, and each changed byte.
        let first = |bytes: &[u8], key| Seal::new(&key).open(&mut bytes.to_vec());
        assert!(first(&records[1], [5; 32]).is_err());
        assert!(first(&records[0], [6; 32]).is_err());
        let mut again = Seal::new(&[5; 32]);
        assert!(again.open(&mut records[0].clone()).is_ok());
        assert!(again.open(&mut records[0].clone()).is_err());
        for at in 0..records[2].len() {
            let mut forged = records[0].clone();
            if let Some(byte) = forged.get_mut(at) {
                *byte ^= 1;
                assert_ne!(
                    first(&forged, [5; 32]).map(|r| r.is_some()),
                    Ok(true),
                    "byte {at}"
                );
            }
        }
    }
}
