//! Why an entry failed: the syndrome byte of an error completion.

codes! {
    /// The reason an error completion entry gives.
    Syndrome {
        /// The message does not fit the local buffers (a receive shorter than what arrived).
        LOCAL_LENGTH = 0x01,
        /// The queue entry is invalid, or the queue pair is in the wrong state.
        LOCAL_QP_OP = 0x02,
        /// A local key is wrong, or does not cover the buffer.
        LOCAL_PROT = 0x04,
        /// The queue pair was in error already: this entry was never tried.
        WR_FLUSH = 0x05,
        /// A memory window could not be bound.
        MW_BIND = 0x06,
        /// The peer answered with something unexpected.
        BAD_RESP = 0x10,
        /// The local memory does not allow the access (responder side).
        LOCAL_ACCESS = 0x11,
        /// The peer found the request malformed, or longer than its receive.
        REMOTE_INVAL_REQ = 0x12,
        /// The peer refused the key, the range or the kind of access.
        REMOTE_ACCESS = 0x13,
        /// The peer failed while carrying the request out.
        REMOTE_OP = 0x14,
        /// The peer did not acknowledge after all retries.
        TRANSPORT_RETRY = 0x15,
        /// The peer had no receive posted, after all retries.
        RNR_RETRY = 0x16,
        /// The peer gave the operation up.
        REMOTE_ABORTED = 0x22,
    }
}
