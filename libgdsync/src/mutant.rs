//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it
//! notices. Without the feature `mutants` every question is the constant *no*.

gds_step::mutants! {
    /// The doorbell write is not fenced against the doorbell record.
    NoFenceBeforeDoorbell,
    /// Completion buffers are preset with owner 0.
    PresetF0,
    /// Completion waits expect the parity of the other lap.
    ParityOffByOne,
    /// Completion waits test the owner bit alone.
    ErrorEntryPasses,
    /// An abort does not give its slots back.
    LostRollback,
    /// Waits never flush.
    DroppedFlush,
    /// The CPU says that it has flushed, and has not.
    FlagWithoutFlush,
    /// What stands behind a wait goes before the flush that the wait asks somebody else for.
    FlushedLate,
    /// A stream does not wait for the READ that it asked its NIC for.
    ReadNotAwaited,
    /// The GPU does not keep the order of writes that it claims.
    OrderNotKept,
    /// Completion entries count as reusable before their waiters have passed.
    EntryReusedEarly,
    /// A quarter of completion entries counts as written when all entries before it are.
    QuarterWrittenEarly,
    /// Immediate data are told as a machine of the other byte order has them.
    ImmReversed,
    /// A datagram is told to be from the queue pair that took it.
    SourceOfTaker,
    /// A datagram says its sender's key.
    KeyOfSender,
}
