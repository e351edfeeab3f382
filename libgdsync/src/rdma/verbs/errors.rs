//! The refusals of calls on a queue pair, as errors.

use mlx5_prm::wqe::{self, FormatError};

use super::{Completion, Qp, QpState};
use crate::error::{Error, Kind, Result};
use crate::ring::Refusal;
use crate::status::Status;

impl Qp {
    /// The error of a call on a queue pair in error; `status` is that of the first request that
    /// failed.
    pub(in crate::rdma) fn in_error(&self, operation: &'static str, status: Status) -> Error {
        let what = format!("{self:?} is in error");
        Error::new(operation, Kind::Failed(status), what)
    }

    /// The error of a request that failed.
    pub(super) fn failed(&self, operation: &'static str, ticket: u64, status: Status) -> Error {
        let what = format!("request {ticket} of {self:?} failed");
        Error::new(operation, Kind::Failed(status), what)
    }

    pub(in crate::rdma) fn usable<'s>(
        &self,
        state: &'s mut QpState,
        operation: &'static str,
    ) -> Result<&'s mut QpState> {
        if let Some(status) = state.failed() {
            return Err(self.in_error(operation, status));
        }
        if !state.connected {
            let what = match self.core.transport.is_ud() {
                true => format!("{self:?} is not active; activate it first"),
                false => format!("{self:?} is not connected; connect it first"),
            };
            return Err(Error::new(operation, Kind::WrongState, what));
        }
        Ok(state)
    }

    pub(in crate::rdma) fn own(&self, queue: u64, operation: &'static str) -> Result<()> {
        if queue == self.id {
            return Ok(());
        }
        let what = format!(
            "the request does not belong to {self:?}: another queue pair prepared it, or a reset \
             ended it"
        );
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
        let kind = match refusal {
            Refusal::SendQueueFull { .. }
            | Refusal::ReceiveQueueFull { .. }
            | Refusal::CompletionQueueFull { .. }
            | Refusal::TooManyWaiters { .. } => Kind::QueueFull,
            Refusal::OutOfOrder { .. } => Kind::OutOfOrder,
            Refusal::AlreadyPosted | Refusal::Aborted | Refusal::Forgotten => Kind::NoSuchRequest,
            Refusal::NotNewest => Kind::Unsupported,
            Refusal::TooLarge { .. } | Refusal::Format(_) => Kind::Invalid,
        };
        let what = match refusal {
            Refusal::SendQueueFull { .. } => format!(
                "the send queue of {self:?} is full; wait for completions, or use `prepare_within`"
            ),
            Refusal::ReceiveQueueFull { .. } => {
                format!("the receive queue of {self:?} is full; wait for completions")
            }
            Refusal::CompletionQueueFull { .. } => format!(
                "the completion queue of {self:?} is full: a request is in flight, or a stream has \
                 not passed its wait; repeat the call later"
            ),
            Refusal::OutOfOrder { first } => format!(
                "request {first} of {self:?} was prepared earlier and is neither posted nor \
                 aborted; post or abort it first"
            ),
            Refusal::AlreadyPosted => format!("the request of {self:?} is posted already"),
            Refusal::Aborted => format!("the request of {self:?} was aborted"),
            Refusal::Forgotten => {
                format!("the request is too old: {self:?} records only its latest requests")
            }
            Refusal::NotNewest => format!(
                "a receive of {self:?} was prepared after this one; abort the newest receive first"
            ),
            Refusal::TooManyWaiters { .. } => format!(
                "too many streams wait on one completion queue of {self:?}; let another stream's \
                 wait pass first"
            ),
            Refusal::TooLarge { blocks, .. } => format!(
                "the WQE takes {blocks} blocks of 64 bytes, which the send queue of {self:?} cannot \
                 hold; create the queue pair with more `send_blocks`"
            ),
            Refusal::Format(FormatError::TooManySegments { segments }) => {
                format!("the WQE of {self:?} has {segments} segments of 16 bytes; use fewer SGEs")
            }
            Refusal::Format(FormatError::InlineTooLong { len }) => {
                format!("the request of {self:?} has {len} inline bytes; send them from an MR")
            }
            Refusal::Format(FormatError::SgeTooLong { len }) => {
                format!("an SGE of the request of {self:?} has {len} bytes; use several SGEs")
            }
            Refusal::Format(e) => format!("the request of {self:?} has no WQE format: {e}"),
        };
        let error = Error::new(operation, kind, what);
        match refusal {
            Refusal::SendQueueFull { limit } | Refusal::TooLarge { limit, .. } => {
                error.with_limit(limit, "blocks")
            }
            Refusal::ReceiveQueueFull { limit } | Refusal::CompletionQueueFull { limit } => {
                error.with_limit(limit, "entries")
            }
            Refusal::TooManyWaiters { limit } => error.with_limit(limit, "streams"),
            Refusal::Format(e) => {
                let error = match e {
                    FormatError::TooManySegments { .. } => {
                        error.with_limit(wqe::MAX_SEGMENTS, "segments")
                    }
                    FormatError::InlineTooLong { .. } => error.with_limit(wqe::MAX_INLINE, "bytes"),
                    FormatError::SgeTooLong { .. } => error.with_limit(wqe::MAX_SGE_LEN, "bytes"),
                    _ => error,
                };
                error.with_source(e)
            }
            _ => error,
        }
    }
}
