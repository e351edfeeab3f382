//! [`Secret`]: the key of a job, which authenticates its processes and is never sent; proofs by
//! this key, random numbers and digests.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Kind, Result};

/// A fresh random number that makes every proof different.
pub(super) type Nonce = [u8; 32];

/// A keyed digest. Its comparison is constant-time.
pub(super) type Proof = blake3::Hash;

/// The key that only the ranks and the store of a job share. It authenticates them; it encrypts
/// nothing, and it is never sent. `Debug` does not show it.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The minimum length of a text for [`from_text`](Secret::from_text), in bytes.
    pub const SHORTEST: usize = 16;

    /// A new random secret.
    ///
    /// # Errors
    /// `System` if the system has no random numbers.
    pub fn random() -> Result<Secret> {
        random_bytes().map(Secret)
    }

    /// Derives the secret from a text, as in `MP_SECRET`: equal texts give equal secrets. The text
    /// must be random; a text that can be guessed protects nothing.
    ///
    /// # Errors
    /// `Invalid` for a text of less than 16 bytes ([`SHORTEST`](Secret::SHORTEST)).
    pub fn from_text(text: &str) -> Result<Secret> {
        if text.len() < Secret::SHORTEST {
            let what = "the text of the secret (MP_SECRET) is too short; use a longer random text";
            let error = Error::new("read secret", Kind::Invalid, what);
            return Err(error.with_limit(Secret::SHORTEST, "bytes"));
        }
        let key = blake3::derive_key(
            "mp, version 1: the secret of a job, from a text",
            text.as_bytes(),
        );
        Ok(Secret(key))
    }

    /// The secret of these bytes.
    pub(super) fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// A digest that only holders of the secret can compute. `what` names its purpose; the lengths
    /// of the parts are included, so that different divisions give different digests.
    pub(super) fn proof(&self, what: &str, parts: &[&[u8]]) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in [&[what.as_bytes()], parts].concat() {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// 32 random bytes.
///
/// # Errors
/// `System` if the system has none.
pub(super) fn random_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        // A request of at most 256 bytes is not cut short, but may be interrupted before it starts.
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                let what = "the call getrandom failed";
                let error = Error::new("draw random numbers", Kind::System, what);
                return Err(error.with_source(e));
            }
        }
    }
    Ok(bytes)
}

/// A random number.
///
/// # Errors
/// As [`random_bytes`].
pub(super) fn random_number() -> Result<u64> {
    let [a, b, c, d, e, f, g, h, ..] = random_bytes()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// The 64-bit digest of a text, equal on every host.
pub(super) fn number_of(what: &str, parts: &[&[u8]]) -> u64 {
    let digest = Secret([0; 32]).proof(what, parts);
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_differ_by_secret_purpose_and_cut() {
        let (a, b) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_eq!(a.proof("x", &[b"12"]), a.clone().proof("x", &[b"12"]));
        assert_ne!(a.proof("x", &[b"12"]), b.proof("x", &[b"12"]));
        assert_ne!(a.proof("x", &[b"12"]), a.proof("y", &[b"12"]));
        assert_ne!(a.proof("x", &[b"12"]), a.proof("x", &[b"1", b"2"]));
        assert!(!format!("{a:?}").contains(&format!("{:?}", a.0)));
    }

    #[test]
    fn equal_texts_give_equal_secrets() {
        let text = "0123456789abcdef";
        let (a, b) = (Secret::from_text(text), Secret::from_text(text));
        assert_eq!(a.unwrap().0, b.unwrap().0);
        let e = Secret::from_text("short").unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(16)));
    }
}
