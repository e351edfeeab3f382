//! The format of control messages.
//!
//! All numbers are little-endian. A message starts with a magic and the version of its format; a
//! reader refuses another version, and its error names both versions.

use super::{
    Answer, CircuitEnd, Control, Export, Neighbour, NicSort, RoomsPlace, Shape, VERSION, ZeroSmRoom,
};
use crate::error::{Error, Kind, Result};
use crate::wire::agree::Note;
use crate::wire::record::{self, Record};

const MAGIC: [u8; 4] = *b"mp01";
/// Maximum number of bytes of a text or of the name of a GPU.
const SHORT: usize = 1024;

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

impl Shape {
    fn encode(&self, b: &mut Vec<u8>) {
        b.extend(self.depth.to_le_bytes());
        b.extend(self.eager.to_le_bytes());
        b.extend(self.start.to_le_bytes());
        b.push(self.zero_sm.into());
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
