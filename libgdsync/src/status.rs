//! The single list of statuses, shared by completion handling, streams and kernels.
//!
//! A [`Status`] is a word in memory that a GPU reads. Zero means *not known yet*, so that cleared
//! memory is never mistaken for success.

use std::fmt;

use mlx5_prm::syndrome::Syndrome;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// The outcome of a request, as the 32-bit word that the CPU, streams and kernels read.
        ///
        /// [`Qp::poll`](crate::rdma::Qp::poll) returns it, [`Kind::Failed`](crate::Kind::Failed)
        /// contains it, and [`Qp::error_word`](crate::rdma::Qp::error_word) and
        /// [`Qp::status_word`](crate::rdma::Qp::status_word) are the addresses at which kernels
        /// find it. 0 is [`Status::PENDING`], so that cleared memory is never mistaken for success.
        ///
        /// ```
        /// use gdsync::Status;
        ///
        /// let status = Status(13); // a word that a kernel has read
        /// assert_eq!(status, Status::TRANSPORT_RETRY);
        /// assert!(status.is_error());
        /// println!("{status}"); // a sentence for a log
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct Status(pub u32);

        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// Every status with its name and its description, in order of value.
            pub const ALL: &'static [(Status, &'static str, &'static str)] =
                &[$((Status::$name, stringify!($name), $text),)*];
        }
    };
}

statuses! {
    /// Not complete yet: never posted, or still in flight.
    PENDING = 0, "not complete yet";
    /// Complete with success.
    SUCCESS = 1, "success";
    /// Aborted before it was posted.
    ABORTED = 2, "aborted before it was posted";
    /// Discarded because an earlier request of the queue pair failed (`IBV_WC_WR_FLUSH_ERR`).
    FLUSHED = 3, "flushed because an earlier request failed";
    /// Not complete within its time limit, for any reason.
    TIMEOUT = 4, "not complete within the time limit";
    /// The message is longer than the posted memory, or the request is longer than the device
    /// allows (`IBV_WC_LOC_LEN_ERR`).
    LOCAL_LENGTH = 5, "local length error";
    /// The work queue entry is malformed (`IBV_WC_LOC_QP_OP_ERR`).
    LOCAL_QP_OPERATION = 6, "local QP operation error";
    /// A local key is wrong, lacks the right, or does not cover the span (`IBV_WC_LOC_PROT_ERR`).
    LOCAL_PROTECTION = 7, "local protection error";
    /// The peer sent an invalid response (`IBV_WC_BAD_RESP_ERR`).
    BAD_RESPONSE = 8, "bad response";
    /// An atomic or remote write found the local memory protected (`IBV_WC_LOC_ACCESS_ERR`).
    LOCAL_ACCESS = 9, "local access error";
    /// The peer could not accept the request: too long, misaligned (`IBV_WC_REM_INV_REQ_ERR`).
    REMOTE_INVALID_REQUEST = 10, "remote invalid request";
    /// The peer's key is wrong, lacks the right, or does not cover the span
    /// (`IBV_WC_REM_ACCESS_ERR`).
    REMOTE_ACCESS = 11, "remote access error";
    /// The peer failed during the operation (`IBV_WC_REM_OP_ERR`).
    REMOTE_OPERATION = 12, "remote operation error";
    /// The peer did not answer after all retries (`IBV_WC_RETRY_EXC_ERR`).
    TRANSPORT_RETRY = 13, "transport retries exceeded: the peer's NIC does not answer";
    /// The peer had no receive posted, at any of the retries (`IBV_WC_RNR_RETRY_EXC_ERR`).
    RNR_RETRY = 14, "receiver-not-ready retries exceeded: no receive was posted";
    /// The peer aborted (`IBV_WC_REM_ABORT_ERR`).
    REMOTE_ABORTED = 15, "remote aborted";
    /// A syndrome that is unknown to this library.
    UNKNOWN_SYNDROME = 16, "unknown syndrome";
    /// The queue pair was closed or reset with the request in flight.
    CLOSED = 17, "the queue pair was closed";
    /// The message is longer than the memory of the receive. The layer above (`mp`) sets it.
    TRUNCATED = 18, "the message is longer than the receive";
    /// Cancelled before it was matched. The layer above (`mp`) sets it.
    CANCELLED = 19, "cancelled";
    /// Data received in GPU memory could not be made visible to streams.
    NOT_VISIBLE = 20, "what arrived in GPU memory could not be made visible";
    /// The NIC reported a fatal error, or was removed (`IBV_EVENT_DEVICE_FATAL`). None of its work
    /// completes any more.
    DEVICE_FATAL = 21, "the NIC reported a fatal error or was removed";
    /// The NIC reported a fatal error of the queue pair (`IBV_EVENT_QP_FATAL`).
    QP_FATAL = 22, "the NIC reported a fatal error of the queue pair";
    /// The NIC reported that a completion queue takes no more entries (`IBV_EVENT_CQ_ERR`).
    CQ_FATAL = 23, "the NIC reported a fatal error of the completion queue";
    /// The NIC refused a malformed request of the peer and closed the connection
    /// (`IBV_EVENT_QP_REQ_ERR`).
    PEER_REQUEST = 24, "the NIC refused a malformed request of the peer";
    /// The NIC refused a request of the peer for memory that it may not access, and closed the
    /// connection (`IBV_EVENT_QP_ACCESS_ERR`).
    PEER_ACCESS = 25, "the NIC refused an access of the peer to memory";
    /// The NIC lost the path to the peer and could not migrate to another
    /// (`IBV_EVENT_PATH_MIG_ERR`).
    PATH_LOST = 26, "the NIC lost the path to the peer";
    /// The port of the NIC was down for longer than the NIC retries (`IBV_EVENT_PORT_ERR`).
    PORT_DOWN = 27, "the port of the NIC is down";
}

impl Status {
    /// The status for the syndrome of a completion entry in error (ConnectX PRM, completion
    /// syndromes).
    pub fn from_syndrome(syndrome: Syndrome) -> Status {
        match syndrome {
            Syndrome::LOCAL_LENGTH => Status::LOCAL_LENGTH,
            Syndrome::LOCAL_QP_OP => Status::LOCAL_QP_OPERATION,
            Syndrome::LOCAL_PROT => Status::LOCAL_PROTECTION,
            Syndrome::WR_FLUSH => Status::FLUSHED,
            Syndrome::BAD_RESP => Status::BAD_RESPONSE,
            Syndrome::LOCAL_ACCESS => Status::LOCAL_ACCESS,
            Syndrome::REMOTE_INVAL_REQ => Status::REMOTE_INVALID_REQUEST,
            Syndrome::REMOTE_ACCESS => Status::REMOTE_ACCESS,
            Syndrome::REMOTE_OP => Status::REMOTE_OPERATION,
            Syndrome::TRANSPORT_RETRY => Status::TRANSPORT_RETRY,
            Syndrome::RNR_RETRY => Status::RNR_RETRY,
            Syndrome::REMOTE_ABORTED => Status::REMOTE_ABORTED,
            _ => Status::UNKNOWN_SYNDROME,
        }
    }

    /// Whether the request failed (neither pending nor successful).
    pub fn is_error(self) -> bool {
        self != Status::PENDING && self != Status::SUCCESS
    }

    fn entry(self) -> Option<&'static (Status, &'static str, &'static str)> {
        Status::ALL.iter().find(|(s, _, _)| *s == self)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, _, text)) => f.write_str(text),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "Status({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbered_without_gap_and_named() {
        for (i, (status, name, text)) in Status::ALL.iter().enumerate() {
            assert_eq!(status.0 as usize, i, "{name}");
            assert_eq!(format!("{status:?}"), *name);
            assert_eq!(format!("{status}"), *text);
        }
        assert!(!Status::PENDING.is_error() && !Status::SUCCESS.is_error());
        assert!(Status::FLUSHED.is_error() && Status(999).is_error());
        assert_eq!(Status(999).to_string(), "status 999");
    }

    #[test]
    fn syndromes_map_to_statuses() {
        assert_eq!(Status::from_syndrome(Syndrome::WR_FLUSH), Status::FLUSHED);
        assert_eq!(
            Status::from_syndrome(Syndrome::REMOTE_ACCESS),
            Status::REMOTE_ACCESS
        );
        assert_eq!(
            Status::from_syndrome(Syndrome(0xee)),
            Status::UNKNOWN_SYNDROME
        );
    }
}
