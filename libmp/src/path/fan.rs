//! [`Fan`]: stream operations with several peers, which one call enqueues: prepared puts on a lane
//! to each, and waits for words.

use gdsync::Stream;
use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{self, Descriptor, Qp};

use super::{Lane, Put, foreign};
use crate::error::Result;

/// The storage of a [`Fan`], which the next one uses again.
#[derive(Default)]
pub(crate) struct Room {
    items: Vec<Descriptor<'static>>,
    queues: Vec<&'static mut Qp>,
}

/// Operations with several peers, on paths through the NIC.
pub(crate) struct Fan<'a> {
    items: Vec<Descriptor<'a>>,
    queues: Vec<&'a mut Qp>,
}

/// An empty list of another type of the same layout, in the same allocation.
fn reuse<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    // The list is empty. The standard library collects into the allocation of the source.
    list.into_iter().map(|_| unreachable!()).collect()
}

impl<'a> Fan<'a> {
    pub fn new(room: &mut Room) -> Fan<'a> {
        Fan {
            items: reuse(std::mem::take(&mut room.items)),
            queues: reuse(std::mem::take(&mut room.queues)),
        }
    }

    /// Appends a put that was prepared on a lane of this list.
    pub fn put(&mut self, put: Put) -> Result<()> {
        let put = put.nic().ok_or_else(|| foreign("post list"))?;
        self.items.push(Descriptor::Send(put.into()));
        Ok(())
    }

    /// Appends a wait until `word` has reached `value`, cyclically.
    pub fn wait(&mut self, word: &'a Word64, value: u64) {
        let wait = Descriptor::wait_value(word, Condition::Geq, value);
        self.items.push(wait);
    }

    /// Declares the word and value that show that the stream has passed the list; see
    /// [`Descriptor::PassedBy`].
    pub fn passed_by(&mut self, word: &'a Word64, value: u64) {
        self.items.push(Descriptor::PassedBy { word, value });
    }

    /// Adds a lane on which puts of the list are prepared.
    pub fn lane(&mut self, lane: &'a mut Lane) -> Result<()> {
        let queue = lane.queue().ok_or_else(|| foreign("post list"))?;
        self.queues.push(queue);
        Ok(())
    }

    /// Enqueues all operations, or none. Returns the storage.
    pub fn post(mut self, stream: &Stream, room: &mut Room) -> Result<()> {
        let posted = match self.items.is_empty() {
            true => Ok(()),
            false => rdma::post_on(stream, &mut self.queues, &self.items),
        };
        room.items = reuse(self.items);
        room.queues = reuse(self.queues);
        Ok(posted?)
    }
}
