//! The lock of a queue pair's state, and the work that its holders defer until after the unlock.
//!
//! A thread that holds the lock never calls the NIC: a change of state or the end of a registration
//! is a system call, which may take milliseconds, or seconds on a NIC that hangs, and the owner
//! must be able to post meanwhile. A holder only records in the state that the NIC must put the
//! queue pair in error, and sets aside the objects of completed requests. The drop of `Locked` does
//! both after the unlock. For the CPU thread, which serves other NICs too, the watcher does it: see
//! `lock_for_watcher`.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use mlx5_prm::opcode::CqeOpcode;

use super::core::{Held, Hold, Life, QpCore, QpState, Side};
use super::destination::DestinationInner;
use super::pd::MrInner;
use crate::error::{Error, Kind, Result};
use crate::gpu::Mapped;
use crate::ring::CompletionRing;
use crate::ring::fifo::Fifo;
use crate::status::Status;

/// The state of a queue pair, locked.
pub(crate) struct Locked<'a> {
    state: ManuallyDrop<MutexGuard<'a, QpState>>,
    core: &'a QpCore,
}

impl<'a> Locked<'a> {
    #[inline]
    pub fn new(core: &'a QpCore, state: MutexGuard<'a, QpState>) -> Locked<'a> {
        let state = ManuallyDrop::new(state);
        Locked { state, core }
    }
}

impl Deref for Locked<'_> {
    type Target = QpState;

    #[inline]
    fn deref(&self) -> &QpState {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut QpState {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is taken only here, and not used afterwards.
        let state = unsafe { ManuallyDrop::take(&mut self.state) };
        if state.fails || !state.ended.is_empty() {
            self.core.release(state);
        }
    }
}

/// The last reference that a request held. Its drop calls the NIC.
pub(crate) enum Ended {
    Memory { _mr: MrInner },
    Destination { _to: DestinationInner },
}

/// Drops the objects that a request held. Last references are set aside in `ended`.
#[inline]
pub(crate) fn let_go(hold: &mut Hold, ended: &mut Vec<Ended>) {
    while let Some(held) = hold.pop() {
        let last = match held {
            Held::Memory(mr) => mr.into_last().map(|_mr| Ended::Memory { _mr }),
            Held::Destination(to) => to.into_last().map(|_to| Ended::Destination { _to }),
        };
        if let Some(last) = last {
            ended.push(last);
        }
    }
}

impl QpCore {
    /// Releases the lock, then does the deferred work. Most holders leave none.
    #[cold]
    #[inline(never)]
    fn release(&self, mut state: MutexGuard<'_, QpState>) {
        let ended = std::mem::take(&mut state.ended);
        if !ended.is_empty() {
            self.letting_go.fetch_add(1, Ordering::Relaxed);
        }
        let fails = state.fails && !state.under_way;
        if fails {
            state.fails = false;
            state.under_way = true;
        }
        let lost = state.lost().is_some();
        drop(state);
        if fails {
            self.put_in_error(lost);
        }
        if !ended.is_empty() {
            drop(ended);
            self.letting_go.fetch_sub(1, Ordering::Release);
            self.host.stored();
        }
    }
}

/// Calls of the NIC without the lock, by the thread that has set `under_way`.
impl QpCore {
    /// Stores the result of connecting or activating.
    pub fn went_up(&self, operation: &'static str, up: Result<()>) -> Result<()> {
        let mut state = self.lock();
        state.under_way = false;
        match (&up, state.failed()) {
            (Ok(()), None) => state.connected = true,
            (Ok(()), Some(status)) => {
                let what = "the queue pair went into error during the call";
                return Err(Error::new(operation, Kind::Failed(status), what));
            }
            (Err(e), _) => {
                if let Kind::Failed(status) = e.kind() {
                    self.fail(&mut state, Side::Receive, status);
                }
            }
        }
        drop(state);
        self.host.ring();
        up
    }

    /// Makes the NIC flush outstanding requests. If the NIC is gone, or has reported that the queue
    /// pair is lost (`lost`), the library writes the flushed entries itself, so that streams
    /// continue.
    pub fn put_in_error(&self, lost: bool) {
        let flushed = match lost {
            false => self.nic.modify_to_error(self.objects.qpn),
            true => self.nic.lose_qp(self.objects.qpn),
        };
        let mut guard = self.lock();
        guard.under_way = false;
        if !flushed {
            let QpState {
                send, recv, ended, ..
            } = &mut *guard;
            send.retire_with(|hold| let_go(hold, ended));
            recv.retire_with(|hold| let_go(hold, ended));
            tell_flushed(&send.fifo, &send.cq, CqeOpcode::REQ_ERR);
            tell_flushed(&recv.fifo, &recv.cq, CqeOpcode::RESP_ERR);
        }
        drop(guard);
        self.host.ring();
    }

    /// Destroys the queue pair once streams have run the work they held when the last request was
    /// done. The NIC may start a request when it reads the doorbell record, before the request's
    /// stream writes the doorbell. That late doorbell must not reach another queue pair with the
    /// same number.
    pub(in crate::rdma) fn leave(&self) -> bool {
        let ends = self.ends.lock();
        if self.is(Life::Closed) || ends.as_ref().is_some_and(|ends| !ends.is_reached()) {
            return false;
        }
        drop(ends);
        self.nic.destroy_qp(&self.objects);
        self.advance(Life::Closed);
        true
    }
}

/// Writes an entry for each posted request that has no outcome.
fn tell_flushed(fifo: &Fifo<Hold>, cq: &CompletionRing<Mapped>, opcode: CqeOpcode) {
    let posted = (fifo.retired()..fifo.posted()).filter_map(|ticket| fifo.slot(ticket));
    let pending = posted.filter(|slot| slot.status == Status::PENDING);
    for (position, slot) in (cq.written()..).zip(pending) {
        cq.put_flushed(position, opcode, slot.start as u16);
    }
}
