//! [`Lists`]: posts one list over the lanes of several peers, in one submission.

use std::mem;

use gdsync::gpu::Caps;
use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{self, Descriptor, Qp};
use gdsync::{Status, Stream};

use super::{Lane, Put, copy, foreign, nic, while_held};
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
    /// Copies behind it start after those before it.
    Next,
}

impl<'a> Item<'a> {
    /// The put of an item that is a copy.
    fn copy(&self) -> Option<copy::Put> {
        match self {
            Item::Put(put) => put.copy(),
            _ => None,
        }
    }

    /// Whether the stream waits at it for a word.
    pub fn waits(&self) -> bool {
        matches!(self, Item::Wait { .. }) || self.copy().is_some_and(|put| put.waits)
    }

    fn descriptor(self) -> Result<Option<Descriptor<'a>>> {
        let queued = |put: Put| put.nic().ok_or_else(|| foreign("post list"));
        Ok(Some(match self {
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
            // The launches of a stream are in order.
            Item::Next => return Ok(None),
        }))
    }
}

/// The buffers of the lists, which are kept from call to call.
#[derive(Default)]
pub(crate) struct Lists {
    list: Vec<Descriptor<'static>>,
    queues: Vec<&'static mut Qp>,
    copies: Vec<&'static mut copy::Lane>,
    run: Vec<copy::Put>,
    tasks: copy::Tasks,
}

impl Lists {
    /// Enqueues all items or none; a part only if the GPU fails, and then the lanes of copies fail.
    /// `lanes` are those of the puts, each once.
    pub fn post<'a>(
        &mut self,
        stream: &Stream,
        lanes: impl Iterator<Item = &'a mut Lane>,
        items: &[Item<'a>],
    ) -> Result<()> {
        let mut queues = emptied(mem::take(&mut self.queues));
        let mut copies = emptied(mem::take(&mut self.copies));
        for Lane { nic, copy, .. } in lanes {
            queues.extend(nic.as_mut().map(nic::Lane::queue));
            copies.extend(copy.as_deref_mut());
        }
        let mut behind = items.iter().skip_while(|item| item.copy().is_none());
        let posted = while_held(stream, behind.any(Item::waits), || {
            self.enqueue(stream, &mut queues, &mut copies, items)
        });
        (self.queues, self.copies) = (emptied(queues), emptied(copies));
        posted
    }

    fn enqueue<'a>(
        &mut self,
        stream: &Stream,
        queues: &mut [&mut Qp],
        copies: &mut [&mut copy::Lane],
        mut items: &[Item<'a>],
    ) -> Result<()> {
        let mut list = emptied(mem::take(&mut self.list));
        let mut enqueued = Ok(());
        let mut launched = false;
        while enqueued.is_ok() && !items.is_empty() {
            let copies_first = items[0].copy().is_some();
            let same = |item: &&Item<'a>| item.copy().is_some() == copies_first;
            let (run, rest) = items.split_at(items.iter().take_while(same).count());
            items = rest;
            enqueued = match copies_first {
                true => {
                    self.run.clear();
                    self.run.extend(run.iter().filter_map(Item::copy));
                    let posted = copy::post_puts(stream, copies, &self.run, &mut self.tasks);
                    launched |= posted.is_ok();
                    posted
                }
                false => {
                    list.clear();
                    let collected = run.iter().try_for_each(|item| {
                        list.extend(item.descriptor()?);
                        Ok(())
                    });
                    match list.is_empty() {
                        true => collected,
                        false => collected.and_then(|()| Ok(rdma::post_on(stream, queues, &list)?)),
                    }
                }
            };
        }
        self.list = emptied(list);
        if enqueued.is_err() && launched {
            // The remaining operations are not enqueued.
            for lane in copies {
                lane.fail(Status::LOCAL_QP_OPERATION);
            }
        }
        enqueued
    }
}

/// The submissions of a list on a stream with these capabilities, at most.
pub(crate) fn submissions(items: &[Item<'_>], caps: &Caps) -> u32 {
    /// Operations of an item, at most.
    const EACH: usize = 8;
    let at_once = (caps.batch_limit / EACH).max(1);
    let list = |items: &[Item<'_>]| 2 + items.len().div_ceil(at_once) as u32 + kernels(items, caps);
    let runs = items.chunk_by(|one, next| one.copy().is_some() == next.copy().is_some());
    let of = |run: &[Item<'_>]| match run[0].copy() {
        None if run.iter().all(|item| matches!(item, Item::Next)) => 0,
        None => list(run),
        Some(_) => copy::launches(run.iter().filter_map(Item::copy)),
    };
    runs.map(of).sum()
}

/// The kernels that execute waits of a list, and the submissions behind them, at most: waits that
/// follow each other share a kernel.
fn kernels(items: &[Item<'_>], caps: &Caps) -> u32 {
    /// Waits of one kernel, at least.
    const WAITS: usize = 100;
    let is_wait = |item: &Item<'_>| matches!(item, Item::Wait { .. });
    let runs = items.chunk_by(|one, next| is_wait(one) == is_wait(next));
    let waits = runs.filter(|run| !caps.cyclic && is_wait(&run[0]));
    waits.map(|run| 2 * run.len().div_ceil(WAITS) as u32).sum()
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
