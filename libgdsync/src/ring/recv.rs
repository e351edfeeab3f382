//! The receive queue: entries of fixed size, each a list of data segments.

use mlx5_prm::wqe::{SEGMENT, Sge, encode_recv};

use super::fifo::{Fifo, Poster, Ticket};
use super::memory::Writer;
use super::{CompletionRing, Refusal, RingMemory};

/// A receive queue and its completion queue.
#[derive(Debug)]
pub struct ReceiveQueue<M, H> {
    memory: M,
    stride: usize,
    /// The order of its requests; a "block" is one entry.
    pub fifo: Fifo<H>,
    /// The completion positions: every receive has one.
    pub cq: CompletionRing<M>,
}

impl<M: RingMemory, H: Default> ReceiveQueue<M, H> {
    /// An empty queue of `entries` entries of `stride` bytes, whose first has index `start`.
    pub fn new(memory: M, entries: u32, stride: usize, start: u32, cq: CompletionRing<M>) -> Self {
        ReceiveQueue {
            memory,
            stride,
            fifo: Fifo::new(entries, start),
            cq,
        }
    }

    /// Writes the entry for a receive into `sges`. Nothing changes if it does not fit.
    ///
    /// If there is no room, completed requests are retired first, and each hold is passed to
    /// `empty`.
    pub fn prepare(
        &mut self,
        sges: &[Sge],
        empty: impl FnMut(&mut H),
        fill: impl FnOnce(&mut H),
    ) -> Result<Ticket, Refusal> {
        if !self.fifo.has_room(1) {
            self.retire_with(empty);
            if !self.fifo.has_room(1) {
                let limit = self.fifo.room();
                return Err(Refusal::ReceiveQueueFull { limit });
            }
        }
        let position = self.cq.reserve(self.fifo.next())?;
        let base = (self.fifo.head() & (self.fifo.room() - 1)) as usize * self.stride;
        // `encode_recv` stays within the stride.
        let mut slot = Writer {
            memory: &self.memory,
            at: base,
            mask: usize::MAX,
        };
        if let Err(e) = encode_recv(sges, self.stride, &mut slot) {
            self.cq.unreserve(position);
            return Err(Refusal::Format(e));
        }
        let segments = (self.stride / SEGMENT) as u8;
        Ok(Ticket(self.fifo.push(1, segments, Some(position), fill)))
    }

    /// Takes the newest prepared receive back.
    pub fn abort(&mut self, ticket: Ticket, empty: impl FnOnce(&mut H)) -> Result<(), Refusal> {
        self.fifo.check_prepared(ticket.0)?;
        if !self.fifo.is_newest(ticket.0) {
            return Err(Refusal::NotNewest);
        }
        if let Some(position) = self.fifo.pop(empty) {
            self.cq.unreserve(position);
        }
        Ok(())
    }

    /// Hands everything up to `ticket` to `poster`. The results are the index behind the last entry
    /// and the index that the poster must see in the record first.
    pub fn post(&mut self, ticket: Ticket, poster: Poster) -> Result<(u32, Option<u32>), Refusal> {
        let edge = self.fifo.post(ticket.0, poster)?;
        Ok((self.fifo.posted_head(), edge))
    }
}

impl<M: RingMemory, H> ReceiveQueue<M, H> {
    /// Retires the requests that new completion entries cover and passes each retired hold to
    /// `empty`.
    pub fn retire_with(&mut self, empty: impl FnMut(&mut H)) {
        self.cq.retire(&mut self.fifo, empty);
    }
}
