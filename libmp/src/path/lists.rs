//! [`Lists`]: posts one list over the lanes of several peers, in one submission.

use std::mem;

use gdsync::Stream;
use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{self, Descriptor, Qp};

use super::{Lane, Put, foreign};
use crate::error::Result;

/// An operation of a stream in a list over several lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    /// Waits until the word satisfies the condition; `flush`: NIC writes to the GPU are visible
    /// after it.
    Wait {
        word: &'a Word64,
        condition: Condition,
        value: u64,
        flush: bool,
    },
    /// Stores into a word.
    Store { word: &'a Word64, value: u64 },
    /// Posts a prepared put.
    Put(Put),
    /// Waits until a posted put is done; `true`: NIC writes to the GPU are visible after it.
    Done(Put, bool),
    /// Declares the word that shows that the stream has passed the list; see
    /// [`Descriptor::PassedBy`].
    PassedBy { word: &'a Word64, value: u64 },
}

impl<'a> Item<'a> {
    fn descriptor(self) -> Result<Descriptor<'a>> {
        let queued = |put: Put| put.nic().ok_or_else(|| foreign("post list"));
        Ok(match self {
            Item::Wait {
                word,
                condition,
                value,
                flush,
            } => Descriptor::wait_value(word, condition, value).flush(flush),
            Item::Store { word, value } => Descriptor::write_value(word, value),
            Item::Put(put) => Descriptor::Send(queued(put)?.into()),
            Item::Done(put, flush) => {
                Descriptor::wait(gdsync::rdma::SendRequest::from(queued(put)?)).flush(flush)
            }
            Item::PassedBy { word, value } => Descriptor::PassedBy { word, value },
        })
    }
}

/// The buffers of the lists, which are kept from call to call.
#[derive(Default)]
pub(crate) struct Lists {
    list: Vec<Descriptor<'static>>,
    queues: Vec<&'static mut Qp>,
}

impl Lists {
    /// Enqueues all items or none. `lanes` are those of the puts, each once. A rank has no queue to
    /// itself: its puts are refused.
    pub fn post<'a>(
        &mut self,
        stream: &Stream,
        lanes: impl Iterator<Item = &'a mut Lane>,
        items: &[Item<'a>],
    ) -> Result<()> {
        let mut list = emptied(mem::take(&mut self.list));
        let mut queues = emptied(mem::take(&mut self.queues));
        queues.extend(lanes.filter_map(Lane::queue));
        let mut posted = Ok(());
        for item in items {
            match item.descriptor() {
                Ok(descriptor) => list.push(descriptor),
                Err(e) => posted = Err(e),
            }
        }
        if posted.is_ok() && !list.is_empty() {
            posted = rdma::post_on(stream, &mut queues, &list).map_err(Into::into);
        }
        (self.list, self.queues) = (emptied(list), emptied(queues));
        posted
    }
}

/// An empty vector of a type that differs in its lifetimes alone. The standard library collects in
/// place, so the allocation stays.
pub(crate) fn emptied<A, B>(mut vec: Vec<A>) -> Vec<B> {
    vec.clear();
    vec.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_vector_keeps_its_allocation() {
        let text = String::from("a");
        let mut vec: Vec<&str> = Vec::with_capacity(100);
        vec.push(&text);
        let at = vec.as_ptr().addr();
        let vec: Vec<&'static str> = emptied(vec);
        assert_eq!(
            (vec.len(), vec.capacity(), vec.as_ptr().addr()),
            (0, 100, at)
        );
    }
}
