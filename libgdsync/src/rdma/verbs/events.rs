//! Handling of the NIC's asynchronous events by a queue pair.

use gds_step::Time;

use super::core::Side;
use super::{QpCore, QpState};
use crate::nic::Report;
use crate::ring::RingMemory;
use crate::status::Status;

impl QpCore {
    /// Reads new reports of the NIC. Fails the queue pair if a report says that it is unusable,
    /// which ends all waits. Returns whether it failed the queue pair.
    pub(in crate::rdma) fn heed_reports(&self, state: &mut QpState, now: Time) -> bool {
        let reports = self.nic.reports();
        if reports == state.reports {
            return false;
        }
        let report = self.nic.report(self.qpn(), now);
        if report != Report::Waiting {
            state.reports = reports;
        }
        let receives = state.recv.fifo.retired() != state.recv.fifo.posted();
        match report {
            Report::None | Report::Waiting => false,
            Report::Failed(status) => {
                // The status goes to the side that has requests.
                let sends = state.send.fifo.retired() != state.send.fifo.posted();
                let side = if sends { Side::Send } else { Side::Receive };
                self.fail(state, side, status);
                true
            }
            // An outstanding receive completes as flushed, which reports the error.
            Report::Closed(_) if state.failed().is_some() || receives => false,
            Report::Closed(status) | Report::Lost(status) => {
                self.note_report(state, report, status);
                true
            }
        }
    }

    fn note_report(&self, state: &mut QpState, report: Report, status: Status) {
        state.connected = false;
        state.fails = true;
        state.reported.get_or_insert(report);
        let known = Status(self.addrs.error.cpu.load32(0));
        if matches!(known, Status::PENDING | Status::FLUSHED) {
            self.addrs.error.cpu.store32(0, status.0);
        }
    }
}

impl QpState {
    /// The status that the NIC reported for the queue pair.
    pub(in crate::rdma) fn reported(&self) -> Option<Status> {
        self.reported.and_then(|report| match report {
            Report::Closed(status) | Report::Lost(status) => Some(status),
            Report::None | Report::Waiting | Report::Failed(_) => None,
        })
    }

    /// The status for requests whose flushed entries the library writes.
    pub(in crate::rdma) fn lost(&self) -> Option<Status> {
        match self.reported {
            Some(Report::Lost(status)) => Some(status),
            _ => None,
        }
    }
}
