//! The lock of a queue pair's state, and what its holders leave to be done without it.
//!
//! No thread calls the NIC while it holds the lock: a change of state or the end of a registration
//! is a system call, which may take milliseconds, or seconds on a NIC that hangs, and the owner has
//! to be able to post meanwhile. So a holder only notes in the state that the NIC has to put the
//! queue pair in error, and sets aside what completed requests held. `Behind` does both when the
//! lock is released. For the proxy, whose thread serves other NICs too, the watcher does it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use mlx5_prm::opcode::CqeOpcode;

use super::core::{Held, Hold, QpCore, QpState, Side};
use super::destination::DestinationInner;
use super::device::MrInner;
use crate::error::{Error, Kind, Result};
use crate::gpu::Mapped;
use crate::ring::CompletionRing;
use crate::ring::fifo::Fifo;
use crate::status::Status;

/// The state of a queue pair, locked.
pub(crate) struct Locked<'a> {
    // Dropped first, so that `behind` runs without the lock.
    state: MutexGuard<'a, QpState>,
    behind: Behind<'a>,
}

impl<'a> Locked<'a> {
    pub fn new(core: &'a QpCore, state: MutexGuard<'a, QpState>) -> Locked<'a> {
        let behind = Behind {
            core,
            left: false,
            fails: false,
            lost: false,
            ended: Vec::new(),
        };
        Locked { state, behind }
    }

    /// Leaves what is to be done at the NIC to the watcher's next visit: for a thread that serves
    /// other NICs too.
    pub fn leave_to_watcher(&mut self) {
        self.behind.left = true;
    }
}

impl Deref for Locked<'_> {
    type Target = QpState;

    fn deref(&self) -> &QpState {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut QpState {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.behind.left {
            return;
        }
        if !self.state.ended.is_empty() {
            self.behind.ended = std::mem::take(&mut self.state.ended);
            self.behind.core.letting_go.fetch_add(1, Ordering::Relaxed);
        }
        if self.state.fails && !self.state.under_way {
            self.state.fails = false;
            self.state.under_way = true;
            self.behind.fails = true;
            self.behind.lost = self.state.lost().is_some();
        }
    }
}

/// What is done once the lock is free.
struct Behind<'a> {
    core: &'a QpCore,
    left: bool,
    fails: bool,
    lost: bool,
    ended: Vec<Ended>,
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        if self.fails {
            self.core.put_in_error(self.lost);
        }
        if !self.ended.is_empty() {
            self.ended.clear();
            self.core.letting_go.fetch_sub(1, Ordering::Release);
            self.core.host.ring();
        }
    }
}

/// The last reference that a request held. Its drop calls the NIC.
pub(crate) enum Ended {
    Memory { _mr: MrInner },
    Destination { _to: DestinationInner },
}

/// Drops what a request held. Last references are set aside in `ended`.
pub(crate) fn let_go(hold: &mut Hold, ended: &mut Vec<Ended>) {
    ended.extend(hold.drain(..).filter_map(|held| match held {
        Held::Memory(mr) => mr.into_last().map(|_mr| Ended::Memory { _mr }),
        Held::Destination(to) => to.into_last().map(|_to| Ended::Destination { _to }),
    }));
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
                let what = "the queue pair failed meanwhile";
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

    /// Has the NIC flush what is outstanding. If the NIC is gone, or has reported that the queue
    /// pair is lost (`lost`), the library writes the flushed entries itself, so that streams pass.
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

    /// Destroys the queue pair once streams have run what they held when the last request was
    /// done. The NIC may start a request when it reads the doorbell record, before the request's
    /// stream rings. That late doorbell must not reach another queue pair with the same number.
    pub(super) fn leave(&self) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_closed() || ends.as_ref().is_some_and(|ends| !ends.is_reached()) {
            return false;
        }
        drop(ends);
        self.nic.destroy_qp(&self.objects);
        self.closed.store(true, Ordering::Release);
        true
    }
}

/// Writes an entry for each request that was posted and has no outcome.
fn tell_flushed(fifo: &Fifo<Hold>, cq: &CompletionRing<Mapped>, opcode: CqeOpcode) {
    let posted = (fifo.retired()..fifo.posted()).filter_map(|ticket| fifo.slot(ticket));
    let pending = posted.filter(|slot| slot.status == Status::PENDING);
    for (position, slot) in (cq.written()..).zip(pending) {
        cq.put_flushed(position, opcode, slot.start as u16);
    }
}
