//! Words that the application names by a slice of registered memory: checks, waits and stores.

use gdsync::Stream;
use gdsync::gpu::{Condition, MemoryKind};

use super::signal::Awaited;
use crate::error::{Error, Kind, Result};
use crate::path::{List, Word};
use crate::region::Slice;
use crate::request::one_sided::Action;
use crate::two_sided::On;
use crate::two_sided::engine::Engine;

impl Engine {
    /// The word that `slice` contains, and `value` checked against its width.
    fn word(&self, operation: &'static str, slice: &Slice, value: u64) -> Result<Word> {
        let refuse = |what: String| Err(Error::new(operation, Kind::Invalid, what));
        self.paths.check(operation, slice.memory().keys(), slice)?;
        let len = slice.len();
        if !matches!(len, 4 | 8) {
            return refuse(format!(
                "{slice:?} is not a word; use a slice of 4 or 8 bytes"
            ));
        }
        if !slice.addr().is_multiple_of(len as u64) {
            return refuse(format!(
                "{slice:?} is not aligned to {len} bytes; use an aligned offset"
            ));
        }
        if len == 4 && value > u64::from(u32::MAX) {
            let what = format!("the value {value:#x} does not fit a word of 32 bits");
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(error.with_limit(u32::MAX, "as the highest value"));
        }
        let region = slice.memory().region();
        Ok(match len {
            4 => Word::Narrow(region.word32(slice.offset())?),
            _ => Word::Wide(region.word64(slice.offset())?),
        })
    }

    /// A word that the application waits for.
    pub fn awaited(
        &self,
        from: Option<u32>,
        slice: &Slice,
        condition: Condition,
        value: u64,
    ) -> Result<Awaited> {
        Ok(Awaited {
            action: Action::WaitWord,
            from,
            word: self.word("wait for value", slice, value)?,
            memory: slice.clone(),
            flush: from.is_some() && slice.memory().region().kind() == MemoryKind::Device,
            condition,
            value,
        })
    }

    /// Makes a stream store a word.
    pub fn write_word_on(&self, stream: &Stream, slice: &Slice, value: u64) -> Result<()> {
        const OPERATION: &str = "write value";
        On::Stream(stream, None).check(&self.gpu, OPERATION)?;
        let word = self.word(OPERATION, slice, value)?;
        let mut list = List::<1>::new();
        list.store_word(&word, value);
        self.with_room(|| list.post(stream, None))
    }
}
