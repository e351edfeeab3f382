//! The refusals of calls on a queue pair, as errors.

use mlx5_prm::wqe::{self, FormatError};

use super::{Completion, Qp, QpState};
use crate::error::{Error, Kind, Result};
use crate::ring::Refusal;
use crate::status::Status;

impl Qp {
    /// The error of a failed queue pair, or of a failed request.
    pub(super) fn failed(&self, operation: &'static str, status: Status) -> Error {
        Error::new(operation, Kind::Failed(status), format!("{self:?}"))
    }

    pub(in crate::rdma) fn usable<'s>(
        &self,
        state: &'s mut QpState,
        operation: &'static str,
    ) -> Result<&'s mut QpState> {
        if let Some(status) = state.failed() {
            return Err(self.failed(operation, status));
        }
        if !state.connected {
            let what = format!("{self:?} is not connected");
            return Err(Error::new(operation, Kind::WrongState, what));
        }
        Ok(state)
    }

    pub(in crate::rdma) fn own(&self, queue: u64, operation: &'static str) -> Result<()> {
        if queue == self.id {
            return Ok(());
        }
        let what = format!("a request of another queue pair, or from before a reset: {self:?}");
        Err(Error::new(operation, Kind::Foreign, what))
    }

    /// Refuses a request that was aborted: another request may have its ticket now.
    pub(in crate::rdma) fn known(
        &self,
        state: &QpState,
        request: Completion,
        operation: &'static str,
    ) -> Result<()> {
        let fifo = state.fifo(request.side);
        fifo.check_serial(request.ticket, request.serial)
            .map_err(|e| self.refused(operation, e))
    }

    pub(in crate::rdma) fn refused(&self, operation: &'static str, refusal: Refusal) -> Error {
        let (kind, what, limit) = match refusal {
            Refusal::WorkQueueFull { limit } => (
                Kind::QueueFull,
                "the work queue is full".to_owned(),
                Some(limit),
            ),
            Refusal::CompletionQueueFull { limit } => (
                Kind::QueueFull,
                "the completion queue is full".to_owned(),
                Some(limit),
            ),
            Refusal::OutOfOrder { first } => {
                let what = format!(
                    "request {first} was prepared earlier and is neither posted nor aborted"
                );
                (Kind::OutOfOrder, what, None)
            }
            Refusal::NoSuchRequest => (
                Kind::NoSuchRequest,
                "it is posted, aborted, or was never prepared".to_owned(),
                None,
            ),
            Refusal::NotNewest => (
                Kind::Unsupported,
                "only the newest receive can be aborted".to_owned(),
                None,
            ),
            Refusal::TooManyWaiters { limit } => (
                Kind::QueueFull,
                "too many streams that wait on one completion queue".to_owned(),
                Some(limit),
            ),
            Refusal::TooLarge { blocks, limit } => {
                let what = format!("an entry of {blocks} blocks exceeds the queue");
                (Kind::Invalid, what, Some(limit))
            }
            Refusal::Format(e) => {
                let error = Error::new(operation, Kind::Invalid, format!("{self:?}: {e}"));
                let error = match e {
                    FormatError::TooManySegments { .. } => error.with_limit(wqe::MAX_SEGMENTS, ""),
                    FormatError::InlineTooLong { .. } => error.with_limit(wqe::MAX_INLINE, ""),
                    FormatError::SgeTooLong { .. } => error.with_limit(wqe::MAX_SGE_LEN, ""),
                    _ => error,
                };
                return error.with_source(e);
            }
        };
        let error = Error::new(operation, kind, format!("{self:?}: {what}"));
        match limit {
            Some(limit) => error.with_limit(limit, ""),
            None => error,
        }
    }
}
