//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it detects
//! the defect. Without the feature `mutants`, no mutant is on (a constant).

gds_step::mutants! {
    /// The receiver never returns the credits of some messages.
    LostCredit,
    /// A sender reuses a slot before the slot's last message was taken.
    EarlySlotReuse,
    /// A large receive does not write its ready word to the sender.
    MissingReadyWord,
    /// Words are plain WRITEs, even to a peer whose NIC may place WRITEs out of order.
    PlainTell,
    /// The ready word of a receive is written while another queue pair may still write the ready
    /// word of the previous receive in the same slot.
    EarlyTell,
    /// A rank that sends to itself by the CPU stores the word of a message before the payload.
    LocalWordFirst,
    /// Two messages of one tag have their numbers exchanged.
    SwappedMatchOrder,
    /// A stream takes in the message of a receive that another stream posted before that stream has
    /// reached the receive.
    EarlyClaim,
    /// A stream takes the address of a payload as it is when the wait is enqueued.
    EarlyRoom,
    /// The signal of a put is stored before its payload.
    SignalFirst,
    /// A fence orders nothing.
    MissingFence,
    /// Quiet returns at once.
    QuietAtOnce,
    /// A refused call does not abort the first of its puts.
    ForgottenPut,
    /// An exchange with neighbours takes the ready word of the step before for that of the step.
    StaleReady,
    /// A double-buffered exchange unpacks the landing memory of the other parity.
    WrongParity,
    /// All calls of collectives use the same slots.
    SameParity,
    /// A collective call does not wait for the words of this call.
    StaleCall,
    /// A stream's collective call that was released ends with success.
    ReleasedCallSucceeds,
    /// A rank decides which ranks are lost as soon as all others have called.
    HastyAgreement,
    /// Some ready words repeat the number of the one before.
    RepeatedReadyWord,
    /// A receive by mapped memory names the start of its memory to its sender.
    MissingOffset,
    /// A message is written into the flagged room of the next slot.
    WrongRoom,
    /// A stream writes a message into a flagged room before the message before was taken.
    UncreditedRoom,
    /// A large receive of a stream is not named to the kernels of its sender.
    MissingName,
    /// A receive is taken for ended by the value with which the one before it ended.
    StaleEnd,
    /// The value with which a receive ended is noted without its length.
    ForgottenLength,
    /// The credit of a slot is noted as that of the slot's message before.
    StaleCredit,
    /// The report of a kernel is expected one share too early.
    EarlyReport,
    /// A stream stores no mark for the receives that it has posted before it waits.
    MissingMark,
    /// A replay writes its message before that of the replay before was taken.
    UncreditedReplay,
    /// A captured receive of a long message does not show its memory to its sender.
    MissingPlace,
    /// The sender's stream of a zero-SM message does not wait for its receive.
    MissingReadyWait,
    /// A zero-SM message is acknowledged before it is copied.
    EarlyDone,
    /// A zero-SM message is copied to a slot before the message before was taken in.
    EarlySlot,
    /// A stream takes a zero-SM message in before the stream that posts its receive has reached that.
    UnreachedReceive,
    /// The CPU does not return the credits of the first slots when it copies them at once.
    MissingCredit,
    /// A receive of the CPU copies the payload of the next slot.
    WrongPayload,
    /// A rank takes the addresses of memory that a peer has named for its own.
    ForeignAddress,
}
