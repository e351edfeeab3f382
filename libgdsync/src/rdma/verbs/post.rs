//! Posting from the CPU, by the owner or, behind unsignaled requests, by the library.

use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::doorbell;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{SendWqe, WqeFlags};

use super::Locked;
use super::core::{QpCore, RungBy};
use super::locked::let_go;
use super::{Qp, QpState, ReceiveRequest, SendRequest};
use crate::error::{Error, Kind, Result};
use crate::ring::fault::settled;
use crate::ring::send::Posted;
use crate::ring::{Poster, RingMemory, Ticket};

impl Qp {
    /// Posts a prepared request from the CPU: writes the doorbell record and the doorbell. The NIC
    /// starts the request after all earlier requests of the queue. The call returns at once.
    ///
    /// # Errors
    /// `OutOfOrder` if an earlier request is neither posted nor aborted; `Busy` if a stream posted
    /// last and has not written its doorbell yet (see [`Qp::post_within`]); `NoSuchRequest` if the
    /// request is posted or aborted already; `Foreign` for a request of another queue pair, or from
    /// before a reset; `WrongState` if the queue pair is not connected or activated; `Failed` if it
    /// is in error. After each of these errors the request is as before.
    pub fn post(&mut self, request: SendRequest) -> Result<()> {
        self.post_all([request])
    }

    /// Posts prepared requests from the CPU, in the order of their preparation, as [`Qp::post`] does,
    /// with one doorbell for all. Without requests it does nothing.
    ///
    /// # Errors
    /// As [`Qp::post`]; after an error none of the requests is posted.
    pub fn post_all(&mut self, requests: impl IntoIterator<Item = SendRequest>) -> Result<()> {
        const OPERATION: &str = "post send";
        let mut guard = self.core.lock();
        let mark = guard.send.fifo.mark();
        let posted = self.post_each(&mut guard, requests, OPERATION);
        if posted.is_err() {
            guard.send.fifo.restore(mark);
        }
        if let Some(last) = posted? {
            self.core.ring_posted(&mut guard, &last);
        }
        Ok(())
    }

    /// Checks that [`Qp::post_all`] would not refuse these requests, except for `Busy`. Posts nothing.
    ///
    /// # Errors
    /// `OutOfOrder`, `NoSuchRequest`, `Foreign`, `WrongState` and `Failed` as [`Qp::post`].
    pub fn check_order(&self, requests: impl IntoIterator<Item = SendRequest>) -> Result<()> {
        const OPERATION: &str = "check order";
        let mut guard = self.core.lock();
        let mark = guard.send.fifo.mark();
        let checked = requests.into_iter().try_for_each(|request| {
            self.own(request.queue, OPERATION)?;
            self.known(&guard, request.into(), OPERATION)?;
            let fifo = &mut self.usable(&mut guard, OPERATION)?.send.fifo;
            let posted = fifo.post(request.ticket, Poster::Cpu);
            posted.map(drop).map_err(|e| self.refused(OPERATION, e))
        });
        guard.send.fifo.restore(mark);
        checked
    }

    /// Posts requests, without a doorbell. Returns the last one.
    fn post_each(
        &self,
        guard: &mut Locked<'_>,
        requests: impl IntoIterator<Item = SendRequest>,
        operation: &'static str,
    ) -> Result<Option<Posted>> {
        let before = guard.send.fifo.posted();
        let mut last = None;
        for request in requests {
            self.own(request.queue, operation)?;
            self.known(guard, request.into(), operation)?;
            let state = self.usable(guard, operation)?;
            let posted = state
                .send
                .post(Ticket(request.ticket), Poster::Cpu)
                .map_err(|e| self.refused(operation, e))?;
            if let Some(index) = posted.edge
                && !self.core.has_rung(state, index, before)
            {
                let what = format!(
                    "a stream posted the previous request of {self:?} and has not rung its doorbell \
                     yet; repeat the call, or use `post_within`"
                );
                return Err(Error::new(operation, Kind::Busy, what));
            }
            last = Some(posted);
        }
        Ok(last)
    }

    /// Posts a prepared request from the CPU, as [`Qp::post`] does, but blocks for at most `limit`
    /// until a stream that posted last has written its doorbell.
    ///
    /// # Errors
    /// As [`Qp::post`]; `Busy` after `limit`.
    pub fn post_within(&mut self, request: SendRequest, limit: Duration) -> Result<()> {
        let host = Arc::clone(&self.core.host);
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

    /// Posts a prepared receive from the CPU: writes the doorbell record. Messages match posted
    /// receives in the order of the posts. The queue pair need not be connected yet.
    ///
    /// # Errors
    /// As [`Qp::post`], without `WrongState`; `Busy` if a stream has not posted its earlier
    /// receives yet.
    pub fn post_receive(&mut self, request: ReceiveRequest) -> Result<()> {
        const OPERATION: &str = "post receive";
        self.own(request.queue, OPERATION)?;
        let mut state = self.core.lock();
        if let Some(status) = state.failed() {
            return Err(self.in_error(OPERATION, status));
        }
        self.known(&state, request.into(), OPERATION)?;
        let mark = state.recv.fifo.mark();
        let (index, edge) = state
            .recv
            .post(Ticket(request.ticket), Poster::Cpu)
            .map_err(|e| self.refused(OPERATION, e))?;
        let record = &self.core.addrs.record.cpu;
        if edge.is_some_and(|index| {
            doorbell::record_index(record.load32(doorbell::RCV)) != index as u16
        }) {
            state.recv.fifo.restore(mark);
            let what = format!(
                "a stream has not executed its posts of earlier receives of {self:?} yet; repeat \
                 the call later"
            );
            return Err(Error::new(OPERATION, Kind::Busy, what));
        }
        self.core.post_receives(index);
        if self.core.transport.is_ud() {
            self.core.nic.ring_receives(self.core.qpn());
        }
        Ok(())
    }
}

impl QpCore {
    /// Hands receives up to this index to the NIC.
    fn post_receives(&self, index: u32) {
        self.addrs.recv.trigger.cpu.store32(0, index);
        let record = &self.addrs.record.cpu;
        record.store32(doorbell::RCV, doorbell::record_value(index));
        self.ring_nic();
    }

    /// Writes the doorbell for all requests up to `posted`, which the CPU posted.
    fn ring_posted(&self, state: &mut QpState, posted: &Posted) {
        let addrs = &self.addrs.send;
        state.rung = state.send.fifo.posted();
        addrs.trigger.cpu.store32(0, state.rung as u32);
        self.ring(posted.index, posted.doorbell);
    }

    /// Whether streams have written the doorbell for everything below the request `posted`, whose
    /// entries end at `index`.
    pub fn has_rung(&self, state: &QpState, index: u32, posted: u64) -> bool {
        match self.rung_by {
            RungBy::Poster => {
                let record = self.addrs.record.cpu.load32(doorbell::SND);
                doorbell::record_index(record) == index as u16
            }
            RungBy::CpuThread => state.rung >= posted,
        }
    }

    /// Whether a stream has posted its receives up to this index.
    pub fn has_posted_receives(&self, index: u32) -> bool {
        let written = match self.rung_by {
            RungBy::Poster => doorbell::record_index(self.addrs.record.cpu.load32(doorbell::RCV)),
            RungBy::CpuThread => self.addrs.recv.trigger.cpu.load32(0) as u16,
        };
        written == index as u16
    }

    /// Makes the completion of all posted requests visible. An unsignaled request has no completion
    /// entry: once its doorbell is written, a signaled NOP is posted behind it, whose completion
    /// covers all earlier requests. `false`: a prepared request occupies the place of the NOP.
    ///
    /// No stream posts the rest of a list that failed half way: the CPU writes the doorbell for it
    /// once streams have passed the first part. The queue pair is in error, so the NIC flushes
    /// these requests.
    pub fn drain(&self, state: &mut QpState) -> bool {
        if let Some(ends) = &state.torn {
            if ends.is_reached() {
                state.torn = None;
                if let Some(posted) = state.send.ring_for(state.send.fifo.posted()) {
                    self.ring_posted(state, &posted);
                }
                self.post_receives(state.recv.fifo.posted_head());
            }
            return true;
        }
        if !state.ends_silently() {
            return true;
        }
        let fifo = &state.send.fifo;
        if fifo.next() != fifo.posted() {
            return false;
        }
        if !self.has_rung(state, fifo.posted_head(), fifo.posted()) {
            return true;
        }
        let nop = SendWqe {
            opcode: SendOpcode::NOP,
            flags: WqeFlags {
                signaled: true,
                ..WqeFlags::default()
            },
            ..SendWqe::default()
        };
        let QpState { send, ended, .. } = &mut *state;
        // If the queue has no room now, the next visit tries again.
        if let Ok(ticket) = send.prepare(&nop, |hold| let_go(hold, ended), |_| ())
            && let Ok(posted) = state.send.post(ticket, Poster::Cpu)
        {
            self.ring_posted(state, &posted);
        }
        true
    }
}

impl QpState {
    /// Whether all requests in flight are unsignaled, so that success raises no completion entry.
    fn ends_silently(&self) -> bool {
        let fifo = &self.send.fifo;
        let mut flight = (fifo.retired()..fifo.posted()).map(|ticket| fifo.slot(ticket));
        fifo.retired() < fifo.posted()
            && !settled(fifo)
            && flight.all(|slot| slot.is_some_and(|slot| slot.entry.is_none()))
    }

    /// Aborts every prepared request.
    pub fn take_prepared_back(&mut self) {
        let QpState {
            send, recv, ended, ..
        } = self;
        while let Some(newest) = send.fifo.newest_prepared()
            && send
                .abort(Ticket(newest), |hold| let_go(hold, ended))
                .is_ok()
        {}
        while let Some(newest) = recv.fifo.newest_prepared()
            && recv
                .abort(Ticket(newest), |hold| let_go(hold, ended))
                .is_ok()
        {}
    }
}
