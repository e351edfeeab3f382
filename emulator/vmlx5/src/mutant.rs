//! Committed mutants: each breaks one rule of the transport on purpose, so that the tests can
//! show that they notice. Without the feature `mutants` every question is the constant *no*.

gds_step::mutants! {
    /// A responder that misses a packet says nothing.
    NoNak,
    /// An atomic that comes again is carried out again.
    DuplicateCarriedOut,
    /// What an atomic found is not kept for when it comes again.
    ReplayMissing,
    /// Progress does not give retries back.
    RetriesNeverReset,
    /// A responder without a receive may be asked any number of times.
    RnrUncounted,
    /// A fence holds nothing back.
    FenceIgnored,
    /// An atomic, a READ or a receive overtakes WRITEs that are placed late.
    LateBehindAtomic,
    /// Packets are numbered by 23 bits.
    ShortNumbers,
}
