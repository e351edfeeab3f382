//! The calls of [`Context`] that wait for words and store them: words of registered memory.

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::Condition;

use super::Context;
use crate::error::Result;
use crate::region::Slice;

impl Context {
    /// Waits on the CPU, at most `limit`, until a word of this rank's memory satisfies `condition`
    /// with `value`. The word is a slice of 4 or 8 bytes, aligned to its length, of any registered
    /// memory; for an address alone, [`slice_at`](Context::slice_at) registers it and returns the
    /// slice. `from` is the rank that stores the word, if a rank does (by a put or a signal of a
    /// [`Window`](crate::Window)): the wait then fails when that rank is given up. A put that stores the
    /// word must store nothing else, because the bytes of a long put arrive in any order.
    ///
    /// The conditions compare numbers of the word's width, on the CPU as on a stream:
    ///
    /// | condition | the word satisfies it if |
    /// |---|---|
    /// | [`Geq`](Condition::Geq) | word − value, as a signed number, is not negative (cyclic) |
    /// | [`Eq`](Condition::Eq) | it is equal to the value |
    /// | [`And`](Condition::And) | a bit of the value is set in it |
    /// | [`Nor`](Condition::Nor) | a bit is clear in both |
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
    /// use mp::gdsync::gpu::{Condition, MemoryKind};
    /// # let alone = Local::ranks(1).remove(0);
    /// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
    ///
    /// let stream = ctx.gpu().stream()?;
    /// let memory = ctx.alloc(MemoryKind::Pinned, 64)?;
    /// let (go, done) = (memory.slice(0, 4)?, memory.slice(8, 8)?); // 32 and 64 bits
    ///
    /// ctx.wait_value_on(&stream, None, &go, Condition::Eq, 1)?;
    /// ctx.write_value_on(&stream, &done, 7)?;
    ///
    /// memory.write(0, &1_u32.to_ne_bytes())?; // releases the stream
    /// ctx.wait_value(None, &done, Condition::Eq, 7, Duration::from_secs(10))?;
    /// # Ok::<(), mp::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Invalid` for a slice that is not an aligned word of 4 or 8 bytes of this context's memory,
    ///   for a value that does not fit the word, for a rank outside the job, and for a condition
    ///   that no word satisfies: `And` with 0, `Nor` with all bits set.
    /// - `PeerFailed`, naming `from`, if that rank was given up and the word does not satisfy the
    ///   condition.
    /// - `Timeout` after `limit`. The call may be repeated.
    /// - `Unsupported` if the CPU cannot read the memory.
    pub fn wait_value(
        &self,
        from: impl Into<Option<u32>>,
        word: &Slice,
        condition: Condition,
        value: u64,
        limit: Duration,
    ) -> Result<()> {
        let (engine, from) = (self.engine(), from.into());
        let _call = self.observe(c"wait_value", from, None);
        let awaited = engine.awaited(from, word, condition, value)?;
        engine.wait_word(&awaited, limit)
    }

    /// Makes `stream` wait for a word, as [`wait_value`](Context::wait_value) does on the CPU. A
    /// store by the CPU, by another stream, by a kernel or by a NIC satisfies it.
    ///
    /// With `from`, the stream waits at most for
    /// [`Builder::timeout`](crate::Builder::timeout): then, or when the rank is given up earlier,
    /// the library stores `value` into the word, so that the stream continues, and
    /// [`synchronize`](Context::synchronize) returns the error. Without `from` the wait has no time
    /// limit: the stream waits until the word is stored.
    ///
    /// # Errors
    /// Nothing is enqueued then. As [`wait_value`](Context::wait_value), except `Timeout`;
    /// `Gdsync(Foreign)` for a stream of another GPU; `Unsupported` for a stream that is being
    /// captured into a graph; `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    pub fn wait_value_on(
        &self,
        stream: &Stream,
        from: impl Into<Option<u32>>,
        word: &Slice,
        condition: Condition,
        value: u64,
    ) -> Result<()> {
        let (engine, from) = (self.engine(), from.into());
        let _call = self.observe(c"wait_value_on", from, Some(stream));
        let awaited = engine.awaited(from, word, condition, value)?;
        engine.wait_word_on(stream, &awaited)
    }

    /// Makes `stream` store `value` into a word of this rank's memory, after all earlier writes of
    /// the stream. The word is as for [`wait_value`](Context::wait_value).
    ///
    /// # Errors
    /// As [`wait_value_on`](Context::wait_value_on), without those of the condition and of the rank.
    pub fn write_value_on(&self, stream: &Stream, word: &Slice, value: u64) -> Result<()> {
        let _call = self.observe(c"write_value_on", None, Some(stream));
        self.engine().write_word_on(stream, word, value)
    }
}
