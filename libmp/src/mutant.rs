//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it
//! notices. Without the feature `mutants` every question is the constant *no*.

gds_step::mutants! {
    /// Some messages that were taken are never told to their sender.
    LostCredit,
    /// A sender uses a slot before its last message was taken.
    EarlySlotReuse,
    /// A large receive does not tell its sender that it is there.
    MissingReadyWord,
    /// Words are plain WRITEs, even to a peer whose NIC may place WRITEs out of order.
    PlainTell,
    /// The ready word of a receive is written while another queue pair may still write the one of
    /// the receive before in the slot.
    EarlyTell,
    /// A rank that sends to itself by the CPU stores the word of a message before the payload.
    LocalWordFirst,
    /// Two messages of one tag take each other's number.
    SwappedMatchOrder,
}
