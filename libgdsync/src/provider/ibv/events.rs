//! Reads the asynchronous events of an open NIC and stores their meaning for its ports and queue
//! pairs.

use std::io;
use std::mem::MaybeUninit;

use gds_step::Time;
use gdsync_sys::verbs::consts::*;
use gdsync_sys::verbs::types::{ibv_async_event, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};

use super::context::Context;
use crate::nic::Report;
use crate::status::Status;

impl Context {
    /// Makes reads of events return at once if there is no event.
    pub(super) fn read_without_waiting(&self) {
        // SAFETY: an open context, whose descriptor is its own; numbers.
        let answer = unsafe {
            let fd = (*self.raw()).async_fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if answer < 0 {
            self.stop_reading(&mut self.readable.lock(), &io::Error::last_os_error());
        }
    }

    fn stop_reading(&self, readable: &mut bool, why: &io::Error) {
        *readable = false;
        let name = &self.name;
        tracing::warn!(target: "gdsync", "{name}: its events cannot be read: {why}");
    }

    /// Reads all available events. Returns at once while another thread does so.
    pub fn read_events(&self, now: Time) {
        let Some(mut readable) = self.readable.try_lock() else {
            return;
        };
        let verbs = self.verbs();
        while *readable {
            let mut event = MaybeUninit::<ibv_async_event>::zeroed();
            // SAFETY: an open context, whose descriptor does not block, and memory to write to.
            let answer = unsafe { (verbs.ibv_get_async_event)(self.raw(), event.as_mut_ptr()) };
            if answer != 0 {
                let why = io::Error::last_os_error();
                match why.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => {}
                    // The kernel has taken the device from the process.
                    Some(libc::EIO | libc::ENODEV) => {
                        *readable = false;
                        self.lose();
                    }
                    _ => self.stop_reading(&mut readable, &why),
                }
                return;
            }
            // SAFETY: written by the call, and numbers and pointers before.
            let mut event = unsafe { event.assume_init() };
            self.take(&event, now);
            // SAFETY: an event that was read and is acknowledged once. The object that it names is
            // not destroyed before that.
            unsafe { (verbs.ibv_ack_async_event)(&mut event) };
        }
    }

    fn lose(&self) {
        if self.events.lose() {
            let name = &self.name;
            tracing::error!(
                target: "gdsync",
                "{name} reported a fatal error or was removed: all its queue pairs fail",
            );
        }
    }

    fn take(&self, event: &ibv_async_event, now: Time) {
        let name = &self.name;
        let closed = |status, what| self.take_qp(event, Report::Closed(status), what);
        let lost = |status, what| self.take_qp(event, Report::Lost(status), what);
        let failed = |status, what| self.take_qp(event, Report::Failed(status), what);
        match event.event_type {
            IBV_EVENT_DEVICE_FATAL => self.lose(),
            IBV_EVENT_QP_FATAL => lost(Status::QP_FATAL, "has a fatal error"),
            IBV_EVENT_PATH_MIG_ERR => failed(Status::PATH_LOST, "lost its path"),
            IBV_EVENT_QP_REQ_ERR => closed(Status::PEER_REQUEST, "refused a malformed request"),
            IBV_EVENT_QP_ACCESS_ERR => closed(Status::PEER_ACCESS, "refused an access of its peer"),
            IBV_EVENT_CQ_ERR => {
                // SAFETY: the object that an event of this type names.
                let cq = unsafe { event.element.cq };
                let qpn = self.events.cq(cq as usize);
                tracing::error!(target: "gdsync", "{name}: a completion queue of {qpn:x?} failed");
            }
            IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE => {
                let up = event.event_type == IBV_EVENT_PORT_ACTIVE;
                let port = port(event);
                self.events.port(port, up, now);
                let state = if up { "active" } else { "down" };
                tracing::warn!(target: "gdsync", "{name}:{port} is {state}");
            }
            IBV_EVENT_LID_CHANGE | IBV_EVENT_GID_CHANGE | IBV_EVENT_PKEY_CHANGE => {
                let port = port(event);
                let what = match event.event_type {
                    IBV_EVENT_LID_CHANGE => "local identifier",
                    IBV_EVENT_GID_CHANGE => "table of GIDs",
                    _ => "table of partition keys",
                };
                tracing::warn!(
                    target: "gdsync",
                    "{name}:{port}: its {what} changed; connections made before keep the old one",
                );
            }
            other => tracing::info!(target: "gdsync", "{name}: event {other}"),
        }
    }

    /// Clears the reports about a queue pair that was reset. A later read of an event from before
    /// the reset is ignored, because the queue pair is not in error then.
    pub(in crate::provider) fn forget_reports(&self, qpn: u32) {
        let _reader = self.readable.lock();
        self.events.reset(qpn);
    }

    fn take_qp(&self, event: &ibv_async_event, report: Report, what: &str) {
        // SAFETY: the object that an event of this type names.
        let qp = unsafe { event.element.qp };
        if !matches!(report, Report::Failed(_)) && !self.is_in_error(qp) {
            return;
        }
        let Some(qpn) = self.events.object(qp as usize, report) else {
            return;
        };
        let name = &self.name;
        tracing::error!(target: "gdsync", "{name}: queue pair {qpn:#x} {what}");
    }
}

impl Context {
    /// Whether a queue pair is in error, as far as its driver reports. A queue pair that was reset
    /// since then is not.
    fn is_in_error(&self, qp: *mut ibv_qp) -> bool {
        let mut attr = ibv_qp_attr::default();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let query = self.verbs().ibv_query_qp;
        // SAFETY: a queue pair that is not destroyed before its event is acknowledged, and memory
        // to write to.
        let answer = unsafe { query(qp, &mut attr, IBV_QP_STATE, init.as_mut_ptr()) };
        answer != 0 || attr.qp_state == IBV_QPS_ERR
    }
}

fn port(event: &ibv_async_event) -> u8 {
    // SAFETY: the object that an event of this type names; a number in any case.
    let port = unsafe { event.element.port_num };
    u8::try_from(port).unwrap_or(0)
}
