//! Posting from the CPU.

use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::doorbell;

use super::core::EndpointKind;
use super::{Qp, QpState, ReceiveRequest, SendRequest};
use crate::error::{Error, Kind, Result};
use crate::ring::{Poster, RingMemory, Ticket};

impl Qp {
    /// Posts a prepared request from the CPU.
    ///
    /// # Errors
    /// `OutOfOrder` if an earlier request is neither posted nor aborted; `Busy` if a stream
    /// posted last and has not rung yet (see [`Qp::post_within`]); `NoSuchRequest`, `Failed`.
    pub fn post(&mut self, request: SendRequest) -> Result<()> {
        const OPERATION: &str = "post send";
        self.own(request.queue, OPERATION)?;
        let mut guard = self.core.lock();
        let state = self.usable(&mut guard, OPERATION)?;
        let mark = state.send.mark();
        let posted = state
            .send
            .post(Ticket(request.ticket), Poster::Cpu)
            .map_err(|e| self.refused(OPERATION, e))?;
        if let Some(index) = posted.edge
            && !self.has_rung(state, index, mark.posted())
        {
            state.send.restore(mark);
            let what = format!("{self:?}: a stream posted last and has not rung yet");
            return Err(Error::new(OPERATION, Kind::Busy, what));
        }
        state.rung = state.send.fifo.posted();
        self.core
            .places
            .send
            .trigger
            .cpu
            .store32(0, state.rung as u32);
        self.note_counters(state);
        self.core.ring(posted.index, posted.doorbell);
        Ok(())
    }

    /// Whether the stream that posted last has rung: the record shows `index`.
    fn has_rung(&self, state: &QpState, index: u32, posted: u64) -> bool {
        match self.core.kind {
            EndpointKind::Ring => {
                let record = self.core.places.record.cpu.load32(doorbell::SND);
                doorbell::record_index(record) == index as u16
            }
            EndpointKind::Proxy => state.rung >= posted,
        }
    }

    /// Tells the program kernel's counters what the CPU has posted.
    fn note_counters(&self, state: &QpState) {
        let words = &self.core.places.send.device_state.cpu;
        words.store32(super::build::STATE_INDEX, state.send.fifo.posted_head());
        let words = &self.core.places.recv.device_state.cpu;
        words.store32(super::build::STATE_INDEX, state.recv.fifo.posted_head());
    }

    /// As [`Qp::post`], waiting at most `limit` for a stream that posted last.
    ///
    /// # Errors
    /// As [`Qp::post`]; `Busy` after the limit.
    pub fn post_within(&mut self, request: SendRequest, limit: Duration) -> Result<()> {
        let host = Arc::clone(self.core.nic.host());
        let deadline = host.now() + limit;
        let mut result = self.post(request);
        host.wait_until(Some(deadline), &mut || {
            if matches!(&result, Err(e) if e.kind() == Kind::Busy) {
                result = self.post(request);
            }
            !matches!(&result, Err(e) if e.kind() == Kind::Busy)
        });
        result
    }

    /// Posts a prepared receive from the CPU.
    ///
    /// # Errors
    /// As [`Qp::post`].
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<()> {
        const OPERATION: &str = "post receive";
        self.own(request.queue, OPERATION)?;
        let mut state = self.core.lock();
        if let Some(status) = state.failed() {
            return Err(Error::new(
                OPERATION,
                Kind::Failed(status),
                format!("{self:?}"),
            ));
        }
        let mark = state.recv.mark();
        let (index, edge) = state
            .recv
            .post(Ticket(request.ticket), Poster::Cpu)
            .map_err(|e| self.refused(OPERATION, e))?;
        let record = &self.core.places.record.cpu;
        if edge.is_some_and(|index| {
            doorbell::record_index(record.load32(doorbell::RCV)) != index as u16
        }) {
            state.recv.restore(mark);
            let what = format!("{self:?}: a stream posted last and has not done so yet");
            return Err(Error::new(OPERATION, Kind::Busy, what));
        }
        self.core.places.recv.trigger.cpu.store32(0, index);
        self.note_counters(&state);
        record.store32(doorbell::RCV, doorbell::record_value(index));
        self.core.nic.host().ring();
        Ok(())
    }
}
