//! The device's objects of a queue pair: creation, posting, polling, destruction.

use std::ffi::c_int;
use std::ptr;

use gdsync_sys::verbs::Ibverbs;
use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::*;

use crate::error::Result;
use crate::nic::Transport;
use crate::provider::ibv::path::{self, Change};
use crate::provider::ibv::{Context, check, is_gone, refused_last};
use crate::provider::relay::{Limits, Queues};

const CREATE: &str = "create queue pair";

/// Most requests that one queue pair has at the device. Further requests stay in its ring until
/// then.
const MOST_WAITING: u32 = 256;
/// Pieces of a send that are requested first; fewer where the device has no more.
const SEND_SGES: u32 = 30;
/// Bytes of inline data that are requested first.
const INLINE: u32 = 256;
/// Below this number of bytes, no inline data are requested.
const LEAST_INLINE: u32 = 32;

/// The device's objects of one queue pair.
pub(super) struct DeviceQueues {
    context: &'static Context,
    qp: *mut ibv_qp,
    /// The completion queue of sends and receives.
    cq: *mut ibv_cq,
    /// The change to INIT, the first step of every path.
    pub init: Change,
    /// Whether the next completion raises an event.
    armed: bool,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for DeviceQueues {}

/// The sizes that are requested for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    sends: u32,
    receives: u32,
    send_sges: u32,
    inline: u32,
}

impl Sizes {
    /// The next smaller sizes after a refusal; `None`: the refusal has another reason. No attribute
    /// reports the limit of inline data, nor the limit of requests times pieces.
    fn smaller(self) -> Option<Sizes> {
        let Sizes {
            sends,
            receives,
            send_sges,
            inline,
        } = self;
        match self {
            _ if inline > 0 => Some(Sizes {
                inline: Some(inline / 2).filter(|n| *n >= LEAST_INLINE).unwrap_or(0),
                ..self
            }),
            _ if send_sges > 4 => Some(Sizes {
                send_sges: send_sges / 2,
                ..self
            }),
            _ if sends.max(receives) > 16 => Some(Sizes {
                sends: (sends / 2).max(4).min(sends),
                receives: (receives / 2).max(4).min(receives),
                ..self
            }),
            _ => None,
        }
    }
}

/// The device's attributes.
pub(super) fn attributes(context: &Context) -> Result<ibv_device_attr> {
    let mut attr = std::mem::MaybeUninit::zeroed();
    let verbs = context.verbs();
    // SAFETY: an open context and memory to write to.
    let answer = unsafe { (verbs.ibv_query_device)(context.raw(), attr.as_mut_ptr()) };
    check(answer, super::OPEN, "ibv_query_device")?;
    // SAFETY: numbers, for which all zeros are valid.
    Ok(unsafe { attr.assume_init() })
}

impl DeviceQueues {
    /// Creates a queue pair for up to this many requests; returns the numbers that it really takes.
    ///
    /// # Safety
    /// `pd` is a protection domain of `context`, `channel` a channel, and both outlive this.
    pub unsafe fn make(
        context: &'static Context,
        pd: *mut ibv_pd,
        channel: *mut ibv_comp_channel,
        wanted: Limits,
        device: &ibv_device_attr,
        init: Change,
        transport: Transport,
    ) -> Result<(DeviceQueues, u32, Limits)> {
        let verbs = context.verbs();
        let most = |number: c_int| u32::try_from(number).unwrap_or(0).max(1);
        // Sends and receives complete into one queue, which must have room for all.
        let side = (most(device.max_cqe) / 2).max(1);
        let requests = |wanted: usize| {
            (wanted as u32)
                .min(MOST_WAITING)
                .min(most(device.max_qp_wr))
                .min(side)
        };
        let (sends, receives) = (requests(wanted.sends), requests(wanted.receives));
        let recv_sges = (wanted.recv_sges as u32).min(most(device.max_sge));
        let entries = (sends + receives) as c_int;
        // SAFETY: an open context and a channel of it.
        let cq =
            unsafe { (verbs.ibv_create_cq)(context.raw(), entries, ptr::null_mut(), channel, 0) };
        if cq.is_null() {
            let call = format!("ibv_create_cq for {entries} entries");
            return Err(refused_last(CREATE, &call));
        }
        let mut made = DeviceQueues {
            context,
            qp: ptr::null_mut(),
            cq,
            init,
            armed: false,
        };
        let mut sizes = Sizes {
            sends,
            receives,
            send_sges: SEND_SGES.min(most(device.max_sge)),
            inline: INLINE,
        };
        loop {
            let mut attr = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: sizes.sends,
                    max_recv_wr: sizes.receives,
                    max_send_sge: sizes.send_sges,
                    max_recv_sge: recv_sges,
                    max_inline_data: sizes.inline,
                },
                qp_type: match transport {
                    Transport::Rc => IBV_QPT_RC,
                    Transport::Ud { .. } => IBV_QPT_UD,
                },
                sq_sig_all: 1,
            };
            // SAFETY: a protection domain and a completion queue of the same context.
            made.qp = unsafe { (verbs.ibv_create_qp)(pd, &mut attr) };
            if !made.qp.is_null() {
                let limits = Limits {
                    sends: sizes.sends as usize,
                    receives: sizes.receives as usize,
                    send_sges: sizes.send_sges as usize,
                    recv_sges: recv_sges as usize,
                    inline: sizes.inline as usize,
                };
                // SAFETY: a live queue pair.
                let qpn = unsafe { (*made.qp).qp_num };
                return Ok((made, qpn, limits));
            }
            let refusal = refused_last(CREATE, &format!("ibv_create_qp with {:?}", attr.cap));
            sizes = sizes.smaller().ok_or(refusal)?;
        }
    }

    fn verbs(&self) -> &'static Ibverbs {
        self.context.verbs()
    }

    pub fn modify(&self, change: Change, operation: &'static str) -> Result<()> {
        let (mut attr, mask) = change;
        // SAFETY: a live queue pair.
        let answer = unsafe { (self.verbs().ibv_modify_qp)(self.qp, &mut attr, mask) };
        let call = format!("ibv_modify_qp to {}", path::state_name(attr.qp_state));
        check(answer, operation, &call)
    }

    /// The addresses of the queue pair and its completion queue, as events name them.
    pub fn objects(&self) -> Vec<usize> {
        vec![self.cq as usize, self.qp as usize]
    }

    /// Whether `cq` is this queue pair's. If so, its next completion raises no event.
    pub fn disarm(&mut self, cq: *mut ibv_cq) {
        self.armed &= self.cq != cq;
    }

    /// Destroys the objects. No call uses them any more.
    pub fn destroy(&mut self) {
        let (qp, cq) = (self.qp, self.cq);
        (self.qp, self.cq) = (ptr::null_mut(), ptr::null_mut());
        let mut answers = [0; 2];
        // SAFETY: made by `make`, and destroyed once, users first: the fields are cleared.
        unsafe {
            if !qp.is_null() {
                answers[0] = (self.verbs().ibv_destroy_qp)(qp);
            }
            if !cq.is_null() {
                answers[1] = (self.verbs().ibv_destroy_cq)(cq);
            }
        }
        if answers != [0; 2] {
            let name = &self.context.name;
            tracing::warn!(target: "gdsync", "destroy queue pair of {name}: {answers:?}");
        }
    }
}

impl Drop for DeviceQueues {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Queues for DeviceQueues {
    fn post_send(&mut self, wr: &mut ibv_send_wr) -> c_int {
        // SAFETY: a live queue pair, as its relay is not down; a request with its data.
        unsafe { self.verbs().post_send(self.qp, wr).abs() }
    }

    fn post_recv(&mut self, wr: &mut ibv_recv_wr) -> c_int {
        // SAFETY: as for a send.
        unsafe { self.verbs().post_recv(self.qp, wr).abs() }
    }

    fn poll(&mut self, into: &mut [ibv_wc]) -> usize {
        // SAFETY: a live completion queue, as its relay is not down; room for so many.
        let n = unsafe {
            self.verbs()
                .poll_cq(self.cq, into.len() as c_int, into.as_mut_ptr())
        };
        usize::try_from(n).unwrap_or(0).min(into.len())
    }

    fn to_error(&mut self) -> bool {
        if self.qp.is_null() {
            return true;
        }
        const OPERATION: &str = "modify to error";
        let to = path::plain(IBV_QPS_ERR);
        // From any state but RESET, where receives may be flushed that were posted before a
        // connection.
        let done = self.modify(to, OPERATION).or_else(|_| {
            self.modify(self.init, OPERATION)?;
            self.modify(to, OPERATION)
        });
        let Err(e) = done else { return true };
        tracing::warn!(target: "gdsync", "{e}");
        !is_gone(&e)
    }

    fn arm(&mut self) {
        if !self.armed {
            // SAFETY: a live completion queue.
            let answer = unsafe { self.verbs().req_notify_cq(self.cq, false) };
            self.armed = answer == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_sizes_shrink_until_none_is_left() {
        let most = Sizes {
            sends: 256,
            receives: 256,
            send_sges: 30,
            inline: 256,
        };
        let all: Vec<Sizes> = std::iter::successors(Some(most), |sizes| sizes.smaller()).collect();
        // Inline data are reduced first: everything works without them.
        let inline: Vec<u32> = all.iter().map(|sizes| sizes.inline).collect();
        assert_eq!(inline[..6], [256, 128, 64, 32, 0, 0]);
        assert_eq!(all[4], Sizes { inline: 0, ..most });
        let last = Sizes {
            sends: 16,
            receives: 16,
            send_sges: 3,
            inline: 0,
        };
        assert_eq!(all.last(), Some(&last));
        assert_eq!(all.len(), 5 + 3 + 4);
        assert_eq!(Sizes { sends: 1, ..last }.smaller(), None);
    }
}
