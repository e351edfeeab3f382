//! The progress of requests: polling, waiting on the CPU, received lengths.

use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::cqe::Cqe64;
use mlx5_prm::opcode::CqeOpcode;

use super::core::Side;
use super::{Completion, Qp, ReceiveRequest, Received, Source};
use crate::error::{Error, Kind, Result};
use crate::memop::DevicePtr;
use crate::mutant::{self, Mutant};
use crate::ring::{Refusal, Ticket};
use crate::status::Status;

impl Qp {
    /// Polls a request: its status if it has completed, `None` while it is in flight or not posted.
    /// Does not block. The completion of an unsignaled request is known when a later signaled
    /// request has completed.
    ///
    /// The library records a request until as many later requests are prepared as the queue has
    /// blocks. After that the request counts as successful, unless it was aborted.
    ///
    /// # Errors
    /// `Foreign` for a request of another queue pair, or from before a reset; `NoSuchRequest` if
    /// another request has its ticket now, or if the request is so old, after thousands of aborts,
    /// that the library cannot tell whether it was aborted.
    pub fn poll(&mut self, completion: impl Into<Completion>) -> Result<Option<Status>> {
        let completion = completion.into();
        self.own(completion.queue, "poll request")?;
        let mut state = self.core.lock();
        self.core.settle(&mut state);
        self.known(&state, completion, "poll request")?;
        let (ticket, serial) = (Ticket(completion.ticket), completion.serial);
        match state.status(completion.side, ticket, serial) {
            None => Err(self.refused("poll request", Refusal::Forgotten)),
            Some(Status::PENDING) => Ok(None),
            Some(status) => Ok(Some(status)),
        }
    }

    /// Blocks the CPU, for at most `limit`, until the request has completed. Data that a receive or
    /// a READ wrote to host memory is then visible to the CPU. For data in GPU memory, see
    /// [`Gpu::flush_remote_writes`](crate::Gpu::flush_remote_writes).
    ///
    /// # Errors
    /// `Failed` with the status if the request failed; `Timeout` after `limit`, and the request
    /// stays in flight; `NoSuchRequest` if the request is not posted; `Foreign` as for
    /// [`Qp::poll`].
    pub fn wait(&mut self, completion: impl Into<Completion>, limit: Duration) -> Result<()> {
        const OPERATION: &str = "wait for completion";
        let completion = completion.into();
        self.own(completion.queue, OPERATION)?;
        {
            let state = self.core.lock();
            self.known(&state, completion, OPERATION)?;
            if completion.ticket >= state.fifo(completion.side).posted() {
                let what = format!("the request of {self:?} is not posted; post it first");
                return Err(Error::new(OPERATION, Kind::NoSuchRequest, what));
            }
        }
        let host = Arc::clone(&self.core.host);
        let deadline = host.now() + limit;
        let mut result = Ok(None);
        let nic = Arc::clone(&self.core.nic);
        nic.wait_until(&*host, Some(deadline), &mut || {
            result = self.poll(completion);
            !matches!(result, Ok(None))
        });
        match result? {
            Some(Status::SUCCESS) => Ok(()),
            Some(status) => Err(self.failed(OPERATION, completion.ticket, status)),
            None => {
                let what = format!(
                    "request {} of {self:?} did not complete within {limit:?}",
                    completion.ticket
                );
                Err(Error::new(OPERATION, Kind::Timeout, what))
            }
        }
    }

    /// The result of a completed receive: length, immediate data, source of a datagram. It is kept
    /// until as many more receives are prepared as the queue has entries.
    ///
    /// # Errors
    /// `NoSuchRequest` if the receive has not completed, or its entry has been reused since;
    /// `Failed` if it failed; `Foreign` as for [`Qp::poll`].
    pub fn received(&mut self, request: ReceiveRequest) -> Result<Received> {
        const OPERATION: &str = "read receive completion";
        let polled = self.poll(request)?;
        if let Some(status) = polled.filter(|s| s.is_error()) {
            return Err(self.failed(OPERATION, request.ticket, status));
        }
        let state = self.core.lock();
        let cq = &state.recv.cq;
        let position = state.recv.fifo.slot(request.ticket).and_then(|s| s.entry);
        // The entry of a known slot is intact: a slot is reused before its entry is.
        let Some(position) = position.filter(|p| *p < cq.completed()) else {
            let what = match polled {
                None => format!("the receive of {self:?} is not complete; wait for it first"),
                Some(_) => format!(
                    "the receive of {self:?} is too old: a later receive has its completion entry"
                ),
            };
            return Err(Error::new(OPERATION, Kind::NoSuchRequest, what));
        };
        let entry = Cqe64::from_bytes(cq.entry(position));
        let imm = matches!(
            entry.opcode(),
            CqeOpcode::RESP_SEND_IMM | CqeOpcode::RESP_WR_IMM
        )
        .then(|| match mutant::on(Mutant::ImmReversed) {
            true => u32::from_le_bytes(entry.imm_inval_pkey),
            false => u32::from_be_bytes(entry.imm_inval_pkey),
        });
        let source = self.core.transport.is_ud().then(|| {
            let from = entry.source();
            // On other links these fields have another meaning.
            let infiniband = self.core.nic.port().is_some_and(|port| port.lid != 0);
            Source {
                qpn: match mutant::on(Mutant::SourceOfTaker) {
                    true => self.core.qpn(),
                    false => from.qpn,
                },
                lid: if infiniband { from.slid } else { 0 },
                service_level: if infiniband { from.sl } else { 0 },
                grh: from.grh,
            }
        });
        Ok(Received {
            len: entry.byte_cnt.get(),
            imm,
            source,
        })
    }

    /// The reason for which the queue pair is in error: the status of the first request that
    /// failed, or of the failure that the NIC or the library detected. `None`: it is not in error.
    pub fn error(&mut self) -> Option<Status> {
        let mut state = self.core.lock();
        self.core.settle(&mut state);
        state.failed()
    }

    /// Puts the queue pair in error with `status`: requests in flight are flushed, and
    /// the streams that wait for it are released. No effect on a queue pair in error.
    pub fn fail(&mut self, status: Status) {
        let mut state = self.core.lock();
        self.core.fail(&mut state, Side::Send, status);
        drop(state);
        self.core.host.ring();
    }

    /// The address of the error word, 32 bits in pinned memory: [`Status::PENDING`] (0) until a
    /// request fails, then its status. A kernel may read it after a wait to check whether a failure
    /// released the stream. A reset of the queue pair sets it to 0.
    pub fn error_word(&self) -> DevicePtr {
        self.core.addrs.error.gpu
    }

    /// The address of the status word of a request, 32 bits in pinned memory: [`Status::PENDING`]
    /// (0) until the request fails, then its status, stored before a stream that waits for it
    /// continues. A kernel that runs after the wait can read the outcome here; after a success the
    /// word is still 0. The word belongs to the request until as many later requests are prepared
    /// as the queue has blocks.
    ///
    /// # Errors
    /// `Foreign` for a request of another queue pair.
    pub fn status_word(
        &self,
        completion: impl Into<Completion>,
    ) -> Result<crate::memop::DevicePtr> {
        let completion = completion.into();
        self.own(completion.queue, "locate status word")?;
        let statuses = self.core.side(completion.side).statuses;
        let slots = (statuses.cpu.len() / 4) as u64;
        Ok(statuses.gpu.offset(4 * (completion.ticket & (slots - 1))))
    }

    /// Whether nothing of this queue pair is in flight; see [`Qp::quiet`]. Does not block.
    pub fn is_quiet(&mut self) -> bool {
        let mut state = self.core.lock();
        self.core.settle(&mut state);
        self.core.drain(&mut state) && self.core.is_idle(&state)
    }

    /// Blocks the CPU, for at most `limit`, until nothing of this queue pair is in flight (drain):
    /// the NIC is done with all posted requests, and every stream has posted its requests and
    /// passed its waits. To detect the completion of unsignaled requests, the library posts a NOP
    /// behind them, which takes a block of the queue.
    ///
    /// # Errors
    /// `Timeout` after `limit`; the work stays in flight. `Busy` if a prepared request occupies the
    /// place of that NOP.
    pub fn quiet(&mut self, limit: Duration) -> Result<()> {
        let host = Arc::clone(&self.core.host);
        let deadline = host.now() + limit;
        let mut possible = true;
        let idle = &mut || {
            let mut state = self.core.lock();
            self.core.settle(&mut state);
            possible = self.core.drain(&mut state);
            !possible || self.core.is_idle(&state)
        };
        let done = host.wait_until(Some(deadline), idle);
        if !possible {
            let what = format!(
                "requests of {self:?} are prepared after unsignaled ones; post or abort them first"
            );
            return Err(Error::new("wait for quiet", Kind::Busy, what));
        }
        if done {
            return Ok(());
        }
        let what = format!("{self:?} still has work in flight after {limit:?}");
        Err(Error::new("wait for quiet", Kind::Timeout, what))
    }
}
