//! Handling of error entries after the first one.
//!
//! After the first error the NIC writes an entry for *every* work queue entry, signaled or not. So
//! the position no longer identifies the request; the entry's `wqe_counter` does. [`Fault::tick`]
//! reads the new entries in order, gives each request its status, and then releases the positions
//! whose request has one: it overwrites their entries with a success, so that the waiting streams
//! continue, *after* status and error word are stored. A released stream may ring for more work;
//! the NIC flushes it and raises entries, which the next ticks handle.
//!
//! Only positions whose entry has been read are overwritten. That is enough: the request of
//! position `p` is flushed by the entry at `p` or a later one, because every signaled request
//! before it has raised an entry too.

use mlx5_prm::cqe::{Cqe64, EntryState};

use super::RingMemory;
use super::cq::CompletionRing;
use super::fifo::Fifo;
use crate::status::Status;

/// The progress of error handling for one work queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// Status of the request that failed first.
    first: Option<Status>,
    /// The position of the next entry to be read.
    scan: u64,
}

/// Where statuses are published before streams are released.
pub trait StatusSink {
    /// Stores the request's outcome; called before the stream that waits for it is released.
    fn publish(&mut self, ticket: u64, status: Status);

    /// The last published status belongs to a signaled request, which a stream may wait for.
    fn signaled(&mut self) {}
}

impl Fault {
    /// Status of the request that failed first, if any has.
    pub fn first(&self) -> Option<Status> {
        self.first
    }

    /// Reads new error entries, publishes statuses, releases waiting streams. `cause` is the status
    /// for flushed requests when none of them caused the failure (a time limit, a close). Returns
    /// whether any work was done.
    pub fn tick<M: RingMemory, H>(
        &mut self,
        fifo: &mut Fifo<H>,
        cq: &mut CompletionRing<M>,
        cause: Option<Status>,
        sink: &mut impl StatusSink,
    ) -> bool {
        let completed = cq.advance();
        if self.first.is_none() {
            if !matches!(cq.state(completed), EntryState::Error(_)) {
                return false;
            }
            self.scan = completed;
        }
        let mut busy = false;
        while matches!(cq.state(self.scan), EntryState::Error(_)) {
            let entry = Cqe64::from_bytes(cq.entry(self.scan));
            let entry = entry.as_error();
            let status = match Status::from_syndrome(entry.reason()) {
                Status::FLUSHED => match self.first {
                    None => cause.unwrap_or(Status::FLUSHED),
                    Some(_) => Status::FLUSHED,
                },
                status => status,
            };
            let ticket = fifo.by_counter(entry.wqe_counter.get());
            if self.first.is_none() {
                self.first = Some(status);
                // Entries are in order: requests before the first failure have succeeded,
                // unsignaled ones too.
                for earlier in fifo.retired()..ticket.unwrap_or(0) {
                    settle(fifo, earlier, Status::SUCCESS);
                }
            }
            if let Some(ticket) = ticket {
                sink.publish(ticket, settle(fifo, ticket, status));
                if fifo.slot(ticket).is_some_and(|s| s.entry.is_some()) {
                    sink.signaled();
                }
            }
            self.scan += 1;
            busy = true;
        }
        busy | self.release(fifo, cq, completed)
    }

    fn release<M: RingMemory, H>(
        &self,
        fifo: &Fifo<H>,
        cq: &CompletionRing<M>,
        completed: u64,
    ) -> bool {
        let mut busy = false;
        for position in completed..cq.next().min(self.scan) {
            let ticket = cq.ticket(position);
            // A request that was aborted and is not posted may still be taken back, with its
            // position.
            let known =
                ticket < fifo.posted() && fifo.slot(ticket).is_none_or(|s| s.status.is_error());
            if known && !matches!(cq.state(position), EntryState::Success(_)) {
                cq.release(position);
                busy = true;
            }
        }
        busy
    }
}

/// Whether every posted request has an outcome, so that the NIC will write no further entry.
pub fn settled<H>(fifo: &Fifo<H>) -> bool {
    (fifo.retired()..fifo.posted())
        .filter_map(|ticket| fifo.slot(ticket))
        .all(|slot| slot.status != Status::PENDING)
}

/// Reads new entries of both queues of a queue pair; returns for which of the two
/// [`tick`](Fault::tick) is due: the queue whose first incomplete position holds an error entry,
/// until all failures are attributed and released. A NIC writes the entry of a failure before the
/// entries of the requests that it flushes in the other queue. So after a flush is read in one
/// queue, the function reads the other queue again and finds the failure.
pub fn due<M: RingMemory, N: RingMemory>(
    send: &mut CompletionRing<M>,
    recv: &mut CompletionRing<N>,
) -> (bool, bool) {
    let sent = is_due(send);
    let received = is_due(recv);
    (sent || received && is_due(send), received)
}

fn is_due<M: RingMemory>(cq: &mut CompletionRing<M>) -> bool {
    let completed = cq.advance();
    matches!(cq.state(completed), EntryState::Error(_))
}

/// Gives a pending request its outcome; returns the outcome that it has then.
fn settle<H>(fifo: &mut Fifo<H>, ticket: u64, status: Status) -> Status {
    match fifo.slot_mut(ticket) {
        Some(slot) if slot.status == Status::PENDING => {
            slot.status = status;
            status
        }
        Some(slot) => slot.status,
        None => status,
    }
}

/// The outcome of a request, as far as it is known. `None`: never prepared, or so old that it may
/// have been aborted.
pub fn status<H>(fifo: &Fifo<H>, ticket: u64, serial: u64) -> Option<Status> {
    if ticket >= fifo.next() {
        return None;
    }
    let known = match fifo.slot(ticket) {
        Some(slot) => slot.status,
        // The previous request of a reused slot succeeded or was aborted.
        None => match fifo.was_aborted(serial)? {
            true => Status::ABORTED,
            false => Status::SUCCESS,
        },
    };
    match known {
        Status::PENDING if ticket < fifo.retired() => Some(Status::SUCCESS),
        status => Some(status),
    }
}
