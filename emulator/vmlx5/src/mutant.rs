//! Committed mutants: each breaks one rule of the transport on purpose, so that the tests can show
//! that they detect it. Without the feature `mutants`, every mutant is off at compile time.

gds_step::mutants! {
    /// A responder that misses a packet sends no NAK.
    NoNak,
    /// A repeated atomic is executed again.
    DuplicateCarriedOut,
    /// The result of an atomic is not kept for a retry.
    ReplayMissing,
    /// Progress does not reset the retry counts.
    RetriesNeverReset,
    /// A responder without a receive may be retried without limit.
    RnrUncounted,
    /// A fence does not hold requests back.
    FenceIgnored,
    /// An atomic, a READ or a receive overtakes WRITEs that are placed late.
    LateBehindAtomic,
    /// Packet numbers have 23 bits.
    ShortNumbers,
}
