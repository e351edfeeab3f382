//! Control messages: what contexts send each other through the bootstrap when a peer, a lane or a
//! tag is used first, and when a message was too long.
//!
//! All numbers are little-endian. A message starts with a magic and the version of its format; a
//! reader refuses another version, and its error names both versions.

#[cfg(test)]
mod tests;

use super::agree::Note;
use super::record::{self, Record};
use crate::error::{Error, Kind, Result};

const MAGIC: [u8; 4] = *b"mp01";
/// Version of the messages and of the words.
pub const VERSION: u16 = 16;

/// Maximum number of bytes of a text or of the name of a GPU.
const SHORT: usize = 1024;

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

impl Shape {
    fn encode(&self, b: &mut Vec<u8>) {
        b.extend(self.depth.to_le_bytes());
        b.extend(self.eager.to_le_bytes());
        b.extend(self.start.to_le_bytes());
        b.push(self.zero_sm.into());
    }
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
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, small) = match self {
            Control::Connect { lane, .. } => (1, *lane),
            Control::Up { lane } => (2, *lane),
            Control::Sends { eager, .. } => (3, u8::from(*eager)),
            Control::Receives { .. } => (4, 0),
            Control::Truncated { .. } => (5, 0),
            Control::Retire { .. } => (6, 0),
            Control::Retired { gone, .. } => (7, u8::from(*gone)),
            Control::GivenUp { closed } => (8, u8::from(*closed)),
            Control::Leaving => (9, 0),
            Control::Left => (10, 0),
            Control::Ping => (11, 0),
            Control::Pong => (12, 0),
            Control::Window { .. } => (13, 0),
            Control::Neighbour(_) => (14, 0),
            Control::Withdrawn { .. } => (15, 0),
            Control::Broken { .. } => (16, 0),
            Control::Agree(_) => (17, 0),
            Control::Memory(export) => (18, u8::from(export.host)),
            Control::Mapped { place, .. } => (19, u8::from(place.is_some())),
            Control::Released { .. } => (20, 0),
            Control::DeviceBlock { .. } => (21, 0),
            Control::AskPath { .. } => (22, 0),
            Control::AnswerPath(Answer { can, nic }) => {
                (23, u8::from(can.is_ok()) | (*nic as u8) << 1)
            }
            Control::Circuit(end) => (24, u8::from(end.sends) | u8::from(end.len.is_some()) << 1),
            Control::AskZeroSm { .. } => (25, 0),
            Control::ZeroSm(_) => (26, 0),
        };
        let mut b = MAGIC.to_vec();
        b.extend(VERSION.to_le_bytes());
        b.extend([kind, small]);
        match self {
            Control::Connect { ends, shape, .. } => {
                shape.encode(&mut b);
                put(&mut b, ends);
            }
            Control::Sends {
                tag, block, shape, ..
            } => {
                b.extend(tag.to_le_bytes());
                shape.encode(&mut b);
                put(&mut b, block);
            }
            Control::Receives {
                tag,
                block,
                rooms,
                flagged,
                flags,
                long,
                long_flags,
                shape,
            } => {
                b.extend(tag.to_le_bytes());
                shape.encode(&mut b);
                for records in [block, rooms, flagged, long] {
                    put(&mut b, records);
                }
                for flags in [flags, long_flags] {
                    b.extend(flags.offset.to_le_bytes());
                    b.extend(flags.from.to_le_bytes());
                    b.extend(flags.bytes.to_le_bytes());
                }
            }
            Control::DeviceBlock {
                tag,
                block,
                offset,
                from,
            } => {
                b.extend(tag.to_le_bytes());
                put(&mut b, block);
                b.extend(offset.to_le_bytes());
                b.extend(from.to_le_bytes());
            }
            Control::Retire { tag, next } => {
                b.extend(tag.to_le_bytes());
                b.extend(next.to_le_bytes());
            }
            Control::Retired { tag, .. } => b.extend(tag.to_le_bytes()),
            Control::Truncated { tag, number, len } => {
                b.extend(tag.to_le_bytes());
                b.extend(number.to_le_bytes());
                b.extend(len.to_le_bytes());
            }
            Control::Window {
                number,
                rank,
                block,
            } => {
                b.extend(number.to_le_bytes());
                b.extend(rank.to_le_bytes());
                put(&mut b, block);
            }
            Control::Neighbour(side) => {
                b.extend(side.send.to_le_bytes());
                b.extend(side.receive.to_le_bytes());
                for number in [side.sends, side.receives, side.words] {
                    b.extend(number.to_le_bytes());
                }
                put(&mut b, &side.words_block);
                side.landing
                    .iter()
                    .for_each(|at| b.extend(at.to_le_bytes()));
                put(&mut b, &side.landing_block);
            }
            Control::Withdrawn { send, receive } => {
                b.extend(send.to_le_bytes());
                b.extend(receive.to_le_bytes());
            }
            Control::Broken {
                id,
                call,
                rank,
                status,
            } => {
                b.extend(id.to_le_bytes());
                b.extend(call.to_le_bytes());
                b.extend(rank.to_le_bytes());
                b.extend(status.to_le_bytes());
            }
            Control::Agree(note) => note.encode(&mut b),
            Control::Memory(export) => {
                b.extend(export.key.to_le_bytes());
                for number in [export.addr, export.len, export.offset] {
                    b.extend(number.to_le_bytes());
                }
            }
            Control::Mapped { key, place } => {
                let (addr, theirs) = place.unwrap_or_default();
                b.extend(key.to_le_bytes());
                b.extend(addr.to_le_bytes());
                b.extend(theirs.to_le_bytes());
            }
            Control::Released { key } => b.extend(key.to_le_bytes()),
            Control::Circuit(end) => {
                b.extend(end.tag.to_le_bytes());
                let len = end.len.unwrap_or_default();
                for number in [end.number, len, end.offset, end.bytes] {
                    b.extend(number.to_le_bytes());
                }
                put(&mut b, &end.block);
            }
            Control::AskZeroSm { tag } => b.extend(tag.to_le_bytes()),
            Control::ZeroSm(room) => {
                b.extend(room.tag.to_le_bytes());
                b.extend(room.offset.to_le_bytes());
                put(&mut b, &room.block);
                put(&mut b, &room.slots);
            }
            Control::AskPath { gpu, shape } => {
                shape.encode(&mut b);
                put_short(&mut b, gpu);
            }
            Control::AnswerPath(Answer { can, .. }) => {
                let why = can.as_ref().err().map_or("", String::as_str);
                put_short(&mut b, &why.as_bytes()[..why.floor_char_boundary(SHORT)]);
            }
            _ => {}
        }
        b
    }

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

    /// Decodes a message.
    ///
    /// # Errors
    /// `Protocol` for anything but one whole message of this version.
    pub fn decode(bytes: &[u8]) -> Result<Control> {
        let mut r = Reader(bytes);
        if r.take::<4>()? != MAGIC {
            return Err(malformed(
                "the bytes do not begin with the mark of a control message",
            ));
        }
        let version = u16::from_le_bytes(r.take()?);
        if version != VERSION {
            return Err(malformed(format!(
                "the control message has version {version}, and this rank has version {VERSION}; \
                 use one version of mp on all ranks"
            )));
        }
        let [kind, small] = r.take()?;
        let most = match kind {
            1 | 2 => u8::MAX,
            3 | 7 | 8 | 18 | 19 => 1,
            23 => 5,
            24 => 3,
            _ => 0,
        };
        if small > most {
            let what =
                format!("the fourth field of a control message of kind {kind} cannot be {small}");
            return Err(malformed(what));
        }
        let message = match kind {
            1 => Control::Connect {
                lane: small,
                shape: r.shape()?,
                ends: r.records()?,
            },
            2 => Control::Up { lane: small },
            3 => Control::Sends {
                tag: r.u32()?,
                shape: r.shape()?,
                block: r.records()?,
                eager: small == 1,
            },
            4 => Control::Receives {
                tag: r.u32()?,
                shape: r.shape()?,
                block: r.records()?,
                rooms: r.records()?,
                flagged: r.records()?,
                long: r.records()?,
                flags: r.flags()?,
                long_flags: r.flags()?,
            },
            5 => Control::Truncated {
                tag: r.u32()?,
                number: r.u64()?,
                len: r.u64()?,
            },
            6 => Control::Retire {
                tag: r.u32()?,
                next: r.u64()?,
            },
            7 => Control::Retired {
                tag: r.u32()?,
                gone: small == 1,
            },
            8 => Control::GivenUp { closed: small == 1 },
            9 => Control::Leaving,
            10 => Control::Left,
            11 => Control::Ping,
            12 => Control::Pong,
            13 => Control::Window {
                number: r.u64()?,
                rank: r.u32()?,
                block: r.records()?,
            },
            14 => Control::Neighbour(Box::new(Neighbour {
                send: r.u32()?,
                receive: r.u32()?,
                sends: r.u64()?,
                receives: r.u64()?,
                words: r.u64()?,
                words_block: r.records()?,
                landing: [r.u64()?, r.u64()?],
                landing_block: r.records()?,
            })),
            15 => Control::Withdrawn {
                send: r.u32()?,
                receive: r.u32()?,
            },
            16 => Control::Broken {
                id: r.u64()?,
                call: r.u64()?,
                rank: r.u32()?,
                status: r.u32()?,
            },
            17 => {
                let (note, rest) = Note::decode(r.0)?;
                r.0 = rest;
                Control::Agree(note)
            }
            18 => Control::Memory(Export {
                key: r.u32()?,
                addr: r.u64()?,
                len: r.u64()?,
                offset: r.u64()?,
                host: small == 1,
            }),
            19 => {
                let key = r.u32()?;
                let place = (r.u64()?, r.u32()?);
                let place = (small == 1).then_some(place);
                Control::Mapped { key, place }
            }
            20 => Control::Released { key: r.u32()? },
            21 => Control::DeviceBlock {
                tag: r.u32()?,
                block: r.records()?,
                offset: r.u64()?,
                from: r.u64()?,
            },
            22 => Control::AskPath {
                shape: r.shape()?,
                gpu: r.short()?,
            },
            23 => {
                let why = String::from_utf8(r.short()?);
                let why = why.map_err(|_| malformed("the text is not in UTF-8"))?;
                let can = match (small & 1 == 1, why.is_empty()) {
                    (true, true) => Ok(()),
                    (true, false) => return Err(malformed("a consent has no text")),
                    (false, _) => Err(why),
                };
                let nic = match small >> 1 {
                    0 => NicSort::Absent,
                    1 => NicSort::Virtual,
                    _ => NicSort::Physical,
                };
                Control::AnswerPath(Answer { can, nic })
            }
            24 => {
                let (tag, number, len) = (r.u32()?, r.u64()?, r.u64()?);
                Control::Circuit(Box::new(CircuitEnd {
                    sends: small & 1 == 1,
                    tag,
                    number,
                    len: (small & 2 != 0).then_some(len),
                    offset: r.u64()?,
                    bytes: r.u64()?,
                    block: r.records()?,
                }))
            }
            25 => Control::AskZeroSm { tag: r.u32()? },
            26 => Control::ZeroSm(Box::new(ZeroSmRoom {
                tag: r.u32()?,
                offset: r.u64()?,
                block: r.records()?,
                slots: r.records()?,
            })),
            _ => {
                let what = format!("the kind {kind} of the control message is unknown");
                return Err(malformed(what));
            }
        };
        match r.0.len() {
            0 => Ok(message),
            more => Err(malformed(format!(
                "the control message has {more} extra bytes"
            ))),
        }
    }
}

/// Encodes the number of records, and for each the path, the length and the bytes.
fn put(b: &mut Vec<u8>, records: &[Record]) {
    b.push(records.len() as u8);
    for Record { path, bytes } in records {
        b.extend([*path, bytes.len() as u8]);
        b.extend(bytes);
    }
}

/// Encodes the length, and the bytes: at most [`SHORT`].
fn put_short(b: &mut Vec<u8>, bytes: &[u8]) {
    b.extend((bytes.len() as u16).to_le_bytes());
    b.extend(bytes);
}

fn malformed(what: impl Into<String>) -> Error {
    Error::new("read control message", Kind::Protocol, what)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| malformed("the control message is too short"))?;
        self.0 = rest;
        Ok(*head)
    }

    /// Bytes that [`put_short`] has encoded.
    fn short(&mut self) -> Result<Vec<u8>> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        let whole = self.0.split_at_checked(len).filter(|_| len <= SHORT);
        let (bytes, rest) = whole.ok_or_else(|| malformed("the control message is too short"))?;
        self.0 = rest;
        Ok(bytes.to_vec())
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn records(&mut self) -> Result<Vec<Record>> {
        let [count] = self.take()?;
        if usize::from(count) > record::MOST {
            let what = format!("the {count} records of the control message are too many");
            return Err(malformed(what).with_limit(record::MOST, "records"));
        }
        let one = |_| {
            let [path, len] = self.take()?;
            let whole = self.0.split_at_checked(len.into());
            let (bytes, rest) =
                whole.ok_or_else(|| malformed("the control message is too short"))?;
            self.0 = rest;
            Ok(Record::new(path, bytes))
        };
        (0..count).map(one).collect()
    }

    fn flags(&mut self) -> Result<RoomsPlace> {
        Ok(RoomsPlace {
            offset: self.u64()?,
            from: self.u64()?,
            bytes: self.u32()?,
        })
    }

    fn shape(&mut self) -> Result<Shape> {
        Ok(Shape {
            depth: self.u32()?,
            eager: self.u32()?,
            start: self.u64()?,
            zero_sm: match self.take()? {
                [zero_sm @ 0..=1] => zero_sm == 1,
                [other] => return Err(malformed(format!("a setting cannot be {other}"))),
            },
        })
    }
}
