//! Control messages: what contexts send each other through the bootstrap when a peer, a lane or a
//! tag is used first, and when a message was too long. [`bytes`] is their format.

mod bytes;
#[cfg(test)]
mod tests;

use super::agree::Note;
use super::record::Record;

/// Version of the messages and of the words.
pub const VERSION: u16 = 17;

/// The layout of a channel; equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of slots.
    pub depth: u32,
    /// Longest eager message in bytes.
    pub eager: u32,
    /// Number of the first message.
    pub start: u64,
    /// Sends and receives that name another rank of the host are zero-SM messages by default.
    pub zero_sm: bool,
}

/// A rank's record of its part of an exchange, for the neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// The tag under which the rank sends to the reader.
    pub send: u32,
    /// The tag under which it receives.
    pub receive: u32,
    /// The bytes that it sends in a step.
    pub sends: u64,
    /// The bytes that it receives.
    pub receives: u64,
    /// The offset of its words for the reader: two ready words, two arrival words.
    pub words: u64,
    /// The memory of its words, one record for each path.
    pub words_block: Vec<Record>,
    /// The offsets of the bytes that it receives, in even and in odd steps.
    pub landing: [u64; 2],
    /// The memory of these bytes; none if it receives none.
    pub landing_block: Vec<Record>,
}

/// Memory that a rank shares with a rank of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// The sender's key of the memory.
    pub key: u32,
    /// Its address at the sender.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its offset, in bytes, in the memory that the descriptor names.
    pub offset: u64,
    /// Whether it is host memory.
    pub host: bool,
}

/// The flagged rooms of a channel, or its long rooms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomsPlace {
    /// Their offset in their memory.
    pub offset: u64,
    /// The number of the first message that may use them.
    pub from: u64,
    /// Bytes of a message that has room in a long room.
    pub bytes: u32,
}

/// One end of a circuit: of a captured send, or of the captured receive that it matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitEnd {
    /// It is the end of the sender of messages.
    pub sends: bool,
    /// The tag.
    pub tag: u32,
    /// The position among the captured messages of this direction under the tag.
    pub number: u64,
    /// Bytes of the message or of its receive; `None`: this rank has not captured it yet.
    pub len: Option<u64>,
    /// The memory, one record for each path: the rooms of a receiver, the words of a sender.
    pub block: Vec<Record>,
    /// Its offset in it.
    pub offset: u64,
    /// Bytes of payload for which each of a receiver's rooms has lines.
    pub bytes: u64,
}

/// The receiver's memory of a channel of zero-SM messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZeroSmRoom {
    /// The tag.
    pub tag: u32,
    /// The entries in host memory, one record for each path.
    pub block: Vec<Record>,
    /// The device memory of the slots, one record for each path.
    pub slots: Vec<Record>,
    /// Their offset in it.
    pub offset: u64,
}

/// The NIC of a rank, as far as it decides which ranks its queue pairs reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicSort {
    /// None: its queue pairs are those of TCP.
    Absent,
    /// A virtual one, which reaches the ranks of its host.
    Virtual,
    /// One that reaches other hosts.
    Physical,
}

/// What a rank answers to one that has to choose the path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it can map the reader's memory. The error is a clause about it.
    pub can: Result<(), String>,
    /// Its NIC.
    pub nic: NicSort,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The sender's end of a lane.
    Connect {
        /// The lane.
        lane: u8,
        /// The end, one record for each path.
        ends: Vec<Record>,
        /// The layout of the sender's channels.
        shape: Shape,
    },
    /// The sender's GPU: asks whether the reader can map its memory, and for the reader's NIC.
    AskPath {
        /// The identity of the GPU.
        gpu: Vec<u8>,
        /// The layout of the sender's channels.
        shape: Shape,
    },
    /// The answer to `AskPath`; also sent unasked by a rank that chooses without an answer.
    AnswerPath(Answer),
    /// The sender has connected its end of a lane.
    Up {
        /// The lane.
        lane: u8,
    },
    /// The sender will send under a tag; the reader writes acknowledgements and ready words into
    /// its return block.
    Sends {
        /// The tag.
        tag: u32,
        /// Its return block, one record for each path.
        block: Vec<Record>,
        /// Its layout.
        shape: Shape,
        /// It sends eager messages, and asks for rooms. It may ask after its first message.
        eager: bool,
    },
    /// The sender will receive under a tag; the reader writes the words of messages into its
    /// mailbox. Sent again when the sender has made rooms.
    Receives {
        /// The tag.
        tag: u32,
        /// Its mailbox, one record for each path.
        block: Vec<Record>,
        /// Its rooms for eager messages, one record for each path; none if it has no rooms.
        rooms: Vec<Record>,
        /// The memory of its flagged rooms, with the credits behind them; none if it has none.
        flagged: Vec<Record>,
        /// Where they are, and from which message on.
        flags: RoomsPlace,
        /// The memory of its long rooms; none if it has none.
        long: Vec<Record>,
        /// Where they are, and from which message on.
        long_flags: RoomsPlace,
        /// Its layout.
        shape: Shape,
    },
    /// The sender of messages under a tag has a device block, in which the reader's kernels store the place
    /// of a receive for each slot. Kernels of messages from `from` on also look for credits behind the
    /// reader's flagged rooms.
    DeviceBlock {
        /// The tag.
        tag: u32,
        /// The memory, one record for each path.
        block: Vec<Record>,
        /// Its offset in it.
        offset: u64,
        /// The number of the first message whose kernels look for a place there.
        from: u64,
    },
    /// The sender does not need the channel to the reader under a tag: all its messages were taken.
    Retire {
        /// The tag.
        tag: u32,
        /// The number of the next message of the channel.
        next: u64,
    },
    /// The answer to `Retire`.
    Retired {
        /// The tag.
        tag: u32,
        /// True if the reader has removed its channel; false if a receive is posted on it.
        gone: bool,
    },
    /// The sender is about to leave: it asks for an answer when no message of the reader is in
    /// flight to it.
    Leaving,
    /// The answer to `Leaving`.
    Left,
    /// The sender has given up the reader, or has dropped its context: it sends nothing else but
    /// notes of agreements.
    GivenUp {
        /// It has dropped its context.
        closed: bool,
    },
    /// A request of the sender waits for the reader: asks whether the reader is alive.
    Ping,
    /// The answer to `Ping`.
    Pong,
    /// A message of the reader was longer than the receive that took it.
    Truncated {
        /// The tag.
        tag: u32,
        /// Its number.
        number: u64,
        /// Its length.
        len: u64,
    },
    /// The sender's memory of a window; also the record of a window that applications exchange.
    Window {
        /// The window's number in the order of [`Context::window`](crate::Context::window) calls; 0
        /// in a record of an application.
        number: u64,
        /// The rank of the memory.
        rank: u32,
        /// The memory, one record for each path.
        block: Vec<Record>,
    },
    /// The sender builds a neighbourhood of which the reader is a neighbour.
    Neighbour(Box<Neighbour>),
    /// The sender has not built the neighbourhood of its last `Neighbour` with these tags.
    Withdrawn {
        /// The tag under which the sender sends.
        send: u32,
        /// The tag under which it receives.
        receive: u32,
    },
    /// A collective call has failed at the sender: the object cannot be used any more.
    Broken {
        /// The object's number, that of its window.
        id: u64,
        /// The call's number.
        call: u64,
        /// The rank that is the reason.
        rank: u32,
        /// How it failed.
        status: u32,
    },
    /// How far the sender is in an agreement on lost ranks.
    Agree(Note),
    /// The sender's memory that later messages name on the path `ipc`. Its descriptor was sent
    /// before; the descriptors of a sender have the order of these messages.
    Memory(Export),
    /// The answer to `Memory`.
    Mapped {
        /// The reader's key of the memory.
        key: u32,
        /// Its address at the sender, and the sender's key; `None`: the sender cannot map it.
        place: Option<(u64, u32)>,
    },
    /// The sender has released memory that the reader has mapped.
    Released {
        /// The sender's key of the memory.
        key: u32,
    },
    /// The sender has made its end of a circuit. The reader answers with its own end, unless it has
    /// sent that before.
    Circuit(Box<CircuitEnd>),
    /// The sender will send zero-SM messages under a tag: asks the reader for the memory of the channel.
    AskZeroSm {
        /// The tag.
        tag: u32,
    },
    /// The sender has made the memory for zero-SM messages of the reader; also the answer to
    /// `AskZeroSm`.
    ZeroSm(Box<ZeroSmRoom>),
}

impl Control {
    /// The blocks that name memory of the sender to the reader.
    pub fn blocks(&self) -> [&[Record]; 4] {
        match self {
            Control::Sends { block, .. }
            | Control::DeviceBlock { block, .. }
            | Control::Window { block, .. } => [block, &[], &[], &[]],
            Control::Receives {
                block,
                rooms,
                flagged,
                long,
                ..
            } => [block, rooms, flagged, long],
            Control::Neighbour(side) => [&side.words_block, &side.landing_block, &[], &[]],
            Control::Circuit(end) => [&end.block, &[], &[], &[]],
            Control::ZeroSm(room) => [&room.block, &room.slots, &[], &[]],
            _ => [&[]; 4],
        }
    }

    /// As [`Control::blocks`], to change them.
    pub fn blocks_mut(&mut self) -> [Option<&mut Vec<Record>>; 4] {
        match self {
            Control::Sends { block, .. }
            | Control::DeviceBlock { block, .. }
            | Control::Window { block, .. } => [Some(block), None, None, None],
            Control::Receives {
                block,
                rooms,
                flagged,
                long,
                ..
            } => [Some(block), Some(rooms), Some(flagged), Some(long)],
            Control::Neighbour(side) => [
                Some(&mut side.words_block),
                Some(&mut side.landing_block),
                None,
                None,
            ],
            Control::Circuit(end) => [Some(&mut end.block), None, None, None],
            Control::ZeroSm(room) => [Some(&mut room.block), Some(&mut room.slots), None, None],
            _ => [None, None, None, None],
        }
    }
}
