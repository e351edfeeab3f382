//! The sizes of messages: `MIN:MAX`, each twice the one before, as OSU's option `-m`.

use std::iter;

use serde::{Deserialize, Serialize};

use crate::options;

/// The least and the greatest size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// The first size.
    pub min: u64,
    /// No size is greater.
    pub max: u64,
}

impl Sizes {
    /// One size.
    pub fn one(size: u64) -> Sizes {
        Sizes {
            min: size,
            max: size,
        }
    }

    /// The sizes, from the least on.
    pub fn each(self) -> impl Iterator<Item = u64> {
        let double = |size: &u64| size.checked_mul(2);
        iter::successors(Some(self.min), double).take_while(move |size| *size <= self.max)
    }

    /// Reads `MIN:MAX`, `MAX` (from 1 byte on) or `MIN:` (to 1 MiB).
    pub fn parse(text: &str) -> Result<Sizes, String> {
        let (min, max) = text.split_once(':').unwrap_or(("", text));
        let or = |text: &str, default| match text {
            "" => Ok(default),
            text => options::size(text),
        };
        let sizes = Sizes {
            min: or(min, 1)?,
            max: or(max, 1 << 20)?,
        };
        match sizes.min <= sizes.max {
            true => Ok(sizes),
            false => Err(format!(
                "the first size, {} bytes, is greater than the last, {} bytes",
                sizes.min, sizes.max
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_from_the_first_to_the_last() {
        let each = |text| Sizes::parse(text).unwrap().each().collect::<Vec<_>>();
        assert_eq!(each("8:64"), [8, 16, 32, 64]);
        assert_eq!(each("3:13"), [3, 6, 12]);
        assert_eq!(each("4"), [1, 2, 4]);
        assert_eq!(each("512Ki:"), [512 << 10, 1 << 20]);
        assert_eq!(each("5:5"), [5]);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for bad in ["0:8", "x", "8:x", "1:2:3", "1:1Gi"] {
            assert!(Sizes::parse(bad).is_err(), "{bad}");
        }
        let e = Sizes::parse("8:4").unwrap_err();
        assert!(e.contains("8 bytes, is greater than the last, 4"), "{e}");
    }
}
