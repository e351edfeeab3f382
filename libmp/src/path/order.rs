//! Word order: which operation makes the word that announces a message visible after its payload.

use std::fmt;

use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};

/// How a rank orders the word that announces a message after the message's payload, for
/// [`NicOptions::word_order`](crate::NicOptions::word_order).
///
/// A receiver takes a message when it finds the word, so the payload must be visible before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WordOrder {
    /// [`WordOrder::Plain`] to a peer whose NIC is known to place WRITEs in order,
    /// [`WordOrder::BehindRead`] to any other peer.
    #[default]
    Auto,
    /// The word's WRITE follows the payload's. Correct only if the WRITEs of one queue pair become
    /// visible in order. A fabric that spreads packets over several paths does not guarantee this.
    Plain,
    /// A READ of eight bytes follows the payload, and the word's WRITE waits for its response
    /// (fence): the responder executes a READ after all earlier WRITEs. Costs one round trip for
    /// each message.
    BehindRead,
}

impl WordOrder {
    /// The order in `MP_TELL`.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    pub(crate) fn from_env() -> Result<WordOrder> {
        WordOrder::parse(&std::env::var("MP_TELL").unwrap_or_default())
    }

    /// The order that `value` of `MP_TELL` names.
    ///
    /// # Errors
    /// `Invalid` for an unknown value.
    #[doc(hidden)]
    pub fn parse(value: &str) -> Result<WordOrder> {
        match value {
            "" | "auto" => Ok(WordOrder::Auto),
            "write" => Ok(WordOrder::Plain),
            "read" => Ok(WordOrder::BehindRead),
            _ => {
                let what = format!("MP_TELL={value} is not valid; set it to auto, write or read");
                Err(Error::new("read environment", Kind::Invalid, what))
            }
        }
    }

    /// Chooses the order for a peer, and returns the reason. `keeps`: the peer's NIC places WRITEs
    /// in order; `reads`: the NIC of this rank executes READs.
    ///
    /// # Errors
    /// `Unsupported` if READs are needed and this NIC has none.
    #[doc(hidden)]
    pub fn choose(self, keeps: bool, reads: bool) -> Result<(WordOrder, &'static str)> {
        let forced = "MP_TELL or NicOptions::word_order forces it";
        if on(Mutant::PlainTell) {
            return Ok((WordOrder::Plain, "a mutant forces it"));
        }
        let chosen = match (self, keeps) {
            (WordOrder::Plain, _) => (WordOrder::Plain, forced),
            (WordOrder::BehindRead, _) => (WordOrder::BehindRead, forced),
            (WordOrder::Auto, true) => (WordOrder::Plain, "its NIC places WRITEs in order"),
            (WordOrder::Auto, false) => (
                WordOrder::BehindRead,
                "its NIC may place WRITEs out of order",
            ),
        };
        if chosen.0 == WordOrder::BehindRead && !reads {
            let what = match self {
                WordOrder::BehindRead => {
                    "MP_TELL or NicOptions::word_order forces a READ before each word, and the NIC \
                     of this rank executes no READ; set MP_TELL=auto"
                }
                _ => {
                    "the peer's NIC may place WRITEs out of order, and the NIC of this rank \
                     executes no READ, which would order a word after its payload; set \
                     MP_TELL=write if the fabric has one path between the two NICs"
                }
            };
            return Err(Error::new("open connection", Kind::Unsupported, what));
        }
        Ok(chosen)
    }
}

impl fmt::Display for WordOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WordOrder::Auto => "auto",
            WordOrder::Plain => "a plain WRITE",
            WordOrder::BehindRead => "a WRITE behind a READ",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_a_plain_write_only_if_order_is_known_or_forced() {
        let chosen = |tell: WordOrder, keeps| tell.choose(keeps, true).unwrap().0;
        assert_eq!(chosen(WordOrder::Auto, true), WordOrder::Plain);
        assert_eq!(chosen(WordOrder::Auto, false), WordOrder::BehindRead);
        for keeps in [true, false] {
            assert_eq!(chosen(WordOrder::Plain, keeps), WordOrder::Plain);
            assert_eq!(chosen(WordOrder::BehindRead, keeps), WordOrder::BehindRead);
        }
    }

    #[test]
    fn unknown_value_of_mp_tell_is_refused_by_name() {
        for (value, tell) in [
            ("", WordOrder::Auto),
            ("write", WordOrder::Plain),
            ("read", WordOrder::BehindRead),
        ] {
            assert_eq!(WordOrder::parse(value).unwrap(), tell);
        }
        let e = WordOrder::parse("atomic").unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid);
        assert!(e.to_string().contains("MP_TELL=atomic"), "{e}");
    }

    #[test]
    fn a_nic_without_reads_refuses_a_peer_that_may_place_out_of_order() {
        let e = WordOrder::Auto.choose(false, false).unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.to_string().contains("MP_TELL=write"), "{e}");
        assert_eq!(
            WordOrder::Plain.choose(false, false).unwrap().0,
            WordOrder::Plain
        );
        assert_eq!(
            WordOrder::Auto.choose(true, false).unwrap().0,
            WordOrder::Plain
        );
    }
}
