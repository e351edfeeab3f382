//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it detects
//! the fault. Without the feature `mutants` every question is the constant *no*.

gds_step::mutants! {
    /// The doorbell write is not fenced against the doorbell record.
    NoFenceBeforeDoorbell,
    /// Completion buffers are preset with owner 0.
    PresetF0,
    /// Completion waits expect the parity of the other lap.
    ParityOffByOne,
    /// Completion waits test the owner bit alone.
    ErrorEntryPasses,
    /// An abort does not return its slots.
    LostRollback,
    /// Waits never flush.
    DroppedFlush,
    /// The CPU announces a flush that it has not done.
    FlagWithoutFlush,
    /// Operations behind a wait run before the flush that the wait requests from another agent.
    FlushedLate,
    /// A stream does not wait for the READ that it requested from its NIC.
    ReadNotAwaited,
    /// The GPU does not keep the order of writes that it claims.
    OrderNotKept,
    /// Completion entries count as reusable before their waiters have passed.
    EntryReusedEarly,
    /// A quarter of completion entries counts as written when all entries before it are written.
    QuarterWrittenEarly,
    /// Immediate data are reported in the byte order of the other endianness.
    ImmReversed,
    /// A datagram is reported with the receiving queue pair as its source.
    SourceOfTaker,
    /// A datagram carries its sender's queue key instead of the destination's.
    KeyOfSender,
}
