//! The syndrome byte of an error completion: the reason of the failure.

codes! {
    /// The reason in an error completion entry.
    Syndrome {
        /// The message is longer than the local buffers (for example than the receive).
        LOCAL_LENGTH = 0x01,
        /// The WQE is invalid, or the QP is in the wrong state.
        LOCAL_QP_OP = 0x02,
        /// The lkey is invalid, or does not cover the buffer.
        LOCAL_PROT = 0x04,
        /// Flushed: the QP was already in error, and the NIC did not execute the entry.
        WR_FLUSH = 0x05,
        /// A memory window could not be bound.
        MW_BIND = 0x06,
        /// The response of the peer is invalid.
        BAD_RESP = 0x10,
        /// The local memory does not permit the access (responder side).
        LOCAL_ACCESS = 0x11,
        /// The responder rejects the request as malformed, or as longer than its receive.
        REMOTE_INVAL_REQ = 0x12,
        /// The responder rejects the rkey, the range or the kind of access.
        REMOTE_ACCESS = 0x13,
        /// The responder failed while it executed the request.
        REMOTE_OP = 0x14,
        /// The peer did not acknowledge; the transport retries are exhausted.
        TRANSPORT_RETRY = 0x15,
        /// The peer had no receive posted; the RNR retries are exhausted.
        RNR_RETRY = 0x16,
        /// The peer aborted the operation.
        REMOTE_ABORTED = 0x22,
    }
}
