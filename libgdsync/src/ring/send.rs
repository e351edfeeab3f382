//! The send queue: work queue entries in a ring of 64-byte basic blocks.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{self, BASIC_BLOCK, SEGMENT, SendWqe};

use super::fifo::{Fifo, Poster, Slot, Ticket};
use super::memory::Writer;
use super::{CompletionRing, Refusal, RingMemory};

/// A send queue and its completion queue.
#[derive(Debug)]
pub struct SendQueue<M, H> {
    memory: M,
    qpn: u32,
    /// Number of address-vector segments, which datagrams have before their data.
    av: usize,
    /// The order of its requests.
    pub fifo: Fifo<H>,
    /// The completion positions of its signaled requests.
    pub cq: CompletionRing<M>,
}

/// The values for the doorbell of the requests that were posted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Index behind the last basic block.
    pub index: u32,
    /// First eight bytes of the last control segment.
    pub doorbell: [u8; 8],
    /// Producer index that this poster must see in the record first.
    pub edge: Option<u32>,
}

/// The segment numbers of an entry's parts.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The remote address segment.
    pub remote: Option<usize>,
    first_data: usize,
    segments: usize,
    inline: bool,
}

impl Layout {
    /// The data segment with this number. `inline` has no meaning if there is none.
    pub fn data(&self, i: usize) -> Option<usize> {
        let segment = self.first_data.checked_add(i)?;
        (!self.inline && segment < self.segments).then_some(segment)
    }
}

impl<M: RingMemory, H: Default> SendQueue<M, H> {
    /// An empty queue of `blocks` basic blocks in `memory`, whose first block has index `start`.
    pub fn new(
        memory: M,
        qpn: u32,
        blocks: u32,
        start: u32,
        cq: CompletionRing<M>,
    ) -> SendQueue<M, H> {
        SendQueue {
            memory,
            qpn,
            av: 0,
            fifo: Fifo::new(blocks, start),
            cq,
        }
    }

    /// The same, for a queue pair of datagrams.
    pub fn of_datagrams(mut self) -> SendQueue<M, H> {
        self.av = wqe::AvSeg::SEGMENTS;
        self
    }

    /// Writes the entry for `wqe`. Nothing changes if it does not fit.
    ///
    /// An unsignaled request becomes signaled when half the queue would otherwise be in flight
    /// without any completion entry: its slots could never be returned.
    ///
    /// If there is no room, completed requests are retired first, and each hold is passed to
    /// `empty`.
    pub fn prepare(
        &mut self,
        wqe: &SendWqe<'_>,
        empty: impl FnMut(&mut H),
        fill: impl FnOnce(&mut H),
    ) -> Result<Ticket, Refusal> {
        let measured = wqe.measure().map_err(Refusal::Format)?;
        let segments = measured.segments();
        let blocks = u32::from(segments).div_ceil((BASIC_BLOCK / SEGMENT) as u32);
        if !self.fifo.has_room(blocks) {
            let limit = self.fifo.room();
            if blocks > limit {
                return Err(Refusal::TooLarge { blocks, limit });
            }
            self.retire_with(empty);
            if !self.fifo.has_room(blocks) {
                return Err(Refusal::SendQueueFull { limit });
            }
        }
        let signaled = wqe.flags.signaled || self.fifo.silent_run() + blocks > self.fifo.room() / 2;
        let entry = match signaled {
            true => Some(self.cq.reserve(self.fifo.next())?),
            false => None,
        };
        let flags = wqe::WqeFlags {
            signaled,
            ..wqe.flags
        };
        let (head, qpn) = (self.fifo.head(), self.qpn);
        if let Err(e) = measured.encode(flags, head as u16, qpn, &mut self.writer(head)) {
            if let Some(position) = entry {
                self.cq.unreserve(position);
            }
            return Err(Refusal::Format(e));
        }
        Ok(Ticket(self.fifo.push(blocks, segments, entry, fill)))
    }

    fn writer(&self, index: u32) -> Writer<'_, M> {
        Writer {
            memory: &self.memory,
            at: self.offset(index),
            mask: self.fifo.room() as usize * BASIC_BLOCK - 1,
        }
    }

    /// Byte offset of the basic block with this index.
    pub fn offset(&self, index: u32) -> usize {
        (index & (self.fifo.room() - 1)) as usize * BASIC_BLOCK
    }

    /// Takes a prepared request back. The newest one is removed, together with the holes that are
    /// then at the end; an older one becomes a NOP of equal size, which completes at the request's
    /// position if it had one.
    pub fn abort(&mut self, ticket: Ticket, mut empty: impl FnMut(&mut H)) -> Result<(), Refusal> {
        self.fifo.check_prepared(ticket.0)?;
        if self.fifo.is_newest(ticket.0) {
            self.pop(&mut empty);
            while self.fifo.newest_is_hole() {
                self.pop(&mut empty);
            }
            return Ok(());
        }
        let qpn = self.qpn;
        let slot = self.fifo.make_hole(ticket.0, empty);
        let (start, segments, signaled) = (slot.start, slot.segments, slot.entry.is_some());
        wqe::encode_nop(
            start as u16,
            qpn,
            segments,
            signaled,
            &mut self.writer(start),
        )
        .map(|_| ())
        .map_err(Refusal::Format)
    }

    fn pop(&mut self, empty: impl FnOnce(&mut H)) {
        if let Some(position) = self.fifo.pop(empty) {
            self.cq.unreserve(position);
        }
    }

    /// Hands everything up to `ticket` to `poster`; see [`Fifo::post`].
    pub fn post(&mut self, ticket: Ticket, poster: Poster) -> Result<Posted, Refusal> {
        let edge = self.fifo.post(ticket.0, poster)?;
        let start = self.fifo.slot(ticket.0).map_or(0, |s| s.start);
        Ok(Posted {
            index: self.fifo.posted_head(),
            doorbell: self.doorbell(start),
            edge,
        })
    }

    /// The doorbell for the posted requests below `upto`; `None` if none are in flight.
    pub fn ring_for(&self, upto: u64) -> Option<Posted> {
        let newest = upto.min(self.fifo.posted()).checked_sub(1)?;
        let slot = self.fifo.slot(newest)?;
        Some(Posted {
            index: slot.start.wrapping_add(slot.blocks),
            doorbell: self.doorbell(slot.start),
            edge: None,
        })
    }

    /// The segment numbers of the request's entry. `None` for a hole.
    pub fn layout(&self, slot: &Slot<H>) -> Option<Layout> {
        let control = self.memory.load_segment(self.offset(slot.start));
        let opcode = SendOpcode(control[3]);
        let (remote, first_data) = match opcode {
            SendOpcode::SEND | SendOpcode::SEND_IMM => (None, 1 + self.av),
            SendOpcode::RDMA_WRITE | SendOpcode::RDMA_WRITE_IMM | SendOpcode::RDMA_READ => {
                (Some(1), 2)
            }
            SendOpcode::ATOMIC_CS | SendOpcode::ATOMIC_FA => (Some(1), 3),
            _ => return None,
        };
        let segments = usize::from(slot.segments);
        let ring = self.fifo.room() as usize * BASIC_BLOCK;
        let first = self
            .memory
            .load_segment((self.offset(slot.start) + first_data * SEGMENT) % ring);
        Some(Layout {
            remote,
            first_data,
            segments,
            inline: first[0] & 0x80 != 0,
        })
    }

    fn doorbell(&self, start: u32) -> [u8; 8] {
        let control = self.memory.load_segment(self.offset(start));
        let mut doorbell = [0; 8];
        doorbell.copy_from_slice(&control[..8]);
        doorbell
    }
}

impl<M: RingMemory, H> SendQueue<M, H> {
    /// Retires the requests that new completion entries cover and passes each retired hold to
    /// `empty`.
    pub fn retire_with(&mut self, empty: impl FnMut(&mut H)) {
        self.cq.retire(&mut self.fifo, empty);
    }
}
