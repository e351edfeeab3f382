//! [`List`]: stream operations for messages, in order, which one call enqueues: waits for words,
//! stores of words, and prepared puts.

use gdsync::Stream;
use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{self, Descriptor};

use super::{Lane, Put, Word, copy, foreign};
use crate::error::Result;
use crate::wire::word;

/// At most `N` operations, stored on the CPU's stack.
pub(crate) struct List<'a, const N: usize> {
    items: [Descriptor<'a>; N],
    /// What a lane of copies needs for each operation.
    copies: [copy::Item; N],
    len: usize,
}

impl<'a, const N: usize> List<'a, N> {
    pub fn new() -> List<'a, N> {
        List {
            items: [Descriptor::Flush; N],
            copies: [copy::Item::Other; N],
            len: 0,
        }
    }

    fn push(&mut self, item: Descriptor<'a>) {
        self.items[self.len] = item;
        self.len += 1;
    }

    /// Appends puts that were prepared on the lane with which the list is posted.
    #[inline]
    pub fn put(&mut self, puts: impl IntoIterator<Item = Put>) {
        for put in puts {
            match put {
                Put::Nic(put) => self.push(Descriptor::Send(put.into())),
                Put::Copy(put) => {
                    self.copies[self.len] = copy::Item::Put(put);
                    self.len += 1;
                }
            }
        }
    }

    /// Appends a wait until `word` has reached `value`; `flush`: NIC writes to the GPU are visible
    /// after it.
    pub fn wait(&mut self, word: &'a Word64, value: u64, flush: bool) {
        self.copies[self.len] = copy::Item::Wait;
        self.push(Descriptor::wait_value(word, Condition::Geq, value).flush(flush));
    }

    /// Appends a wait until a count has reached `value`, by a memory operation on every GPU; see
    /// [`Descriptor::wait_count`].
    pub fn wait_count(&mut self, word: &'a Word64, value: u64) {
        self.copies[self.len] = copy::Item::Wait;
        self.push(Descriptor::wait_count(word, value));
    }

    /// Appends a wait until `word` satisfies `condition` with `value`.
    pub fn wait_until(&mut self, word: &'a Word, condition: Condition, value: u64, flush: bool) {
        self.copies[self.len] = copy::Item::Wait;
        let wait = match word {
            Word::Narrow(word) => Descriptor::wait_value(word, condition, value as u32),
            Word::Wide(word) => Descriptor::wait_value(word, condition, value),
        };
        self.push(wait.flush(flush));
    }

    /// Appends a wait until `word` has reached message `number`.
    pub fn wait_for(&mut self, word: &'a Word64, number: u64, flush: bool) {
        self.wait(word, word::threshold(number), flush);
    }

    /// Appends a store of `value`.
    pub fn store(&mut self, word: &'a Word64, value: u64) {
        self.push(Descriptor::write_value(word, value));
    }

    /// Appends a store of `value` into a word of either width.
    pub fn store_word(&mut self, word: &'a Word, value: u64) {
        self.push(match word {
            Word::Narrow(word) => Descriptor::write_value(word, value as u32),
            Word::Wide(word) => Descriptor::write_value(word, value),
        });
    }

    /// Declares the word and value that show that the stream has passed the list, or its earlier waits; see
    /// [`Descriptor::PassedBy`].
    pub fn passed_by(&mut self, word: &'a Word64, value: u64) {
        self.push(Descriptor::PassedBy { word, value });
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enqueues all operations, in one submission.
    pub fn post(&self, stream: &Stream, lane: Option<&mut Lane>) -> Result<()> {
        let items = &self.items[..self.len];
        let copies = &self.copies[..self.len];
        if items.is_empty() {
            return Ok(());
        }
        // A stream that waits and is full would block the caller, which holds the engine's lock.
        stream.check_room(1)?;
        match lane {
            Some(lane) => lane.post_on(stream, items, copies),
            None if copies.iter().any(copy::Item::is_put) => Err(foreign("post list")),
            None => Ok(rdma::post_on(stream, &mut [], items)?),
        }
    }
}
