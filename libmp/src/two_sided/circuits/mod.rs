//! Circuits: private channels of messages in CUDA graphs, to and from one rank.
//!
//! A graph runs any number of times, so the number of a message cannot be in its kernels. The k-th captured
//! send to a rank under a tag matches the k-th captured receive there, and the two share a circuit: a
//! few rooms, one credit, one place, and a number at each end in device memory, which the kernels of the end
//! count (`device/mp_replay.cu`). Each replay moves one message. Captured messages and others of the same
//! tag never match each other.
//!
//! Both ends exist before a kernel is captured, and no program waits for the other one's call: a rank
//! that captures a message sends its end, and the background work of the other rank answers with an end
//! that its program has not captured yet.

mod memory;

use std::collections::BTreeMap;

use gdsync::gpu::{DevicePtr, Region};
use gdsync::{Status, Stream};

use crate::error::{Error, Kind, Result};
use crate::path::{Exported, Path, Paths, Remote};
use crate::region::Memory;
use crate::wire::control::{CircuitEnd, Control};

use memory::RESULT_AT;
pub(crate) use memory::{Alarm, PLACE_AT, rooms};

/// The first number of the circuits of neighbourhoods, whose tags are their own.
const OF_EXCHANGES: u64 = 1 << 63;

/// Maximum number of circuits that a peer makes before this rank captures their messages.
const AHEAD: usize = 1 << 16;

pub(super) const CAPTURE: &str = "capture message";

/// Which circuit of a peer: whether this rank sends, the tag, and the position among the captured messages
/// of this direction under the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CircuitId {
    pub sends: bool,
    pub tag: u32,
    pub number: u64,
}

/// What an end is made from.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub paths: &'a Paths,
    /// The number of the first message.
    pub start: u64,
}

/// The end of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Theirs {
    /// The mapping of its memory.
    region: Region,
    /// The rooms of a receiver, the words of a sender, as this rank addresses them.
    pub addr: u64,
    /// As [`CircuitEnd::bytes`].
    pub bytes: u64,
    /// As [`CircuitEnd::len`].
    len: Option<u64>,
}

/// A circuit, once this rank has made its end.
pub(crate) struct Circuit {
    pub memory: Exported,
    /// As [`CircuitEnd::bytes`], of the own end.
    pub bytes: u64,
    pub theirs: Option<Theirs>,
    /// The length that the peer was sent.
    len: Option<u64>,
    /// The message is captured; its memory, if it has any.
    captured: Option<Option<Memory>>,
}

impl Circuit {
    /// The address of the part that the peer maps.
    pub fn shared_addr(&self) -> u64 {
        self.memory.addr(memory::SHARED_AT)
    }
}

/// The circuits of a peer.
#[derive(Default)]
pub(crate) struct Circuits {
    all: BTreeMap<CircuitId, Circuit>,
    /// By direction, tag and whether a neighbourhood uses it: the number of the next message.
    reserved: BTreeMap<(bool, u32, bool), u64>,
    /// Number of circuits whose messages this rank has not captured.
    ahead: usize,
    alarm: Option<Alarm>,
}

impl Circuits {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes the next circuit in a direction under a tag.
    pub fn reserve(&mut self, sends: bool, tag: u32, exchange: bool) -> CircuitId {
        let first = if exchange { OF_EXCHANGES } else { 0 };
        let next = self.reserved.entry((sends, tag, exchange)).or_insert(first);
        let number = *next;
        *next += 1;
        CircuitId { sends, tag, number }
    }

    /// Gives a circuit back whose message was not captured.
    pub fn give_back(&mut self, id: CircuitId) {
        let exchange = id.number >= OF_EXCHANGES;
        if let Some(next) = self.reserved.get_mut(&(id.sends, id.tag, exchange))
            && *next == id.number + 1
        {
            *next = id.number;
        }
    }

    /// Whether the peer's end of a circuit is awaited.
    pub fn is_opening(&self) -> bool {
        self.all.values().any(|circuit| circuit.theirs.is_none())
    }

    /// The words in host memory for the kernels.
    pub fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// Makes the graph of `stream` keep all memory that kernels of the circuit name.
    pub fn keep(&self, id: CircuitId, stream: &Stream) {
        let alarm = self.alarm.as_ref().map(Alarm::region);
        let circuit = self.all.get(&id);
        let theirs = circuit.and_then(|circuit| circuit.theirs.as_ref());
        let own = circuit.map(|circuit| circuit.memory.region());
        let kept = circuit.and_then(|circuit| circuit.captured.as_ref()?.as_ref());
        let message = kept.map(Memory::region);
        let all = [alarm, own, theirs.map(|theirs| &theirs.region), message];
        all.into_iter()
            .flatten()
            .for_each(|region| stream.keep(region));
    }

    /// The address of the result of the last replay.
    pub fn result_addr(&self, id: CircuitId) -> DevicePtr {
        let circuit = self.all.get(&id);
        DevicePtr(circuit.map_or(0, |circuit| circuit.memory.addr(RESULT_AT)))
    }

    /// The circuit, once both ends are made.
    pub fn open(&self, id: CircuitId) -> Option<(&Circuit, &Theirs)> {
        let circuit = self.all.get(&id)?;
        Some((circuit, circuit.theirs.as_ref()?))
    }

    /// Makes the own end of a circuit for a message or a receive of `len` bytes, if there is none, and
    /// appends what the peer must know to `out`.
    ///
    /// # Errors
    /// Those of the memory; `Truncated` if the message is longer than its receive, and this rank knows both;
    /// `Invalid` for another length than that of an earlier attempt.
    pub fn begin(
        &mut self,
        from: Origin<'_>,
        id: CircuitId,
        len: u64,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        let theirs = match self.all.get(&id) {
            // The peer knows another length, and may have captured its message.
            Some(circuit) if circuit.len.is_some_and(|sent| sent != len) => {
                let what = format!(
                    "an attempt to capture the message had another length than {len} bytes, and failed; \
                     capture that message first"
                );
                let error = Error::new(CAPTURE, Kind::Invalid, what);
                return Err(error.with_limit(circuit.len.unwrap_or_default(), "bytes"));
            }
            Some(circuit) => circuit.theirs.as_ref().and_then(|theirs| theirs.len),
            None => {
                self.make(from, id, Some(len), len, out)?;
                None
            }
        };
        let (message, room) = match id.sends {
            true => (Some(len), theirs),
            false => (theirs, Some(len)),
        };
        match message.zip(room) {
            Some((message, room)) if message > room => {
                let what = format!(
                    "the message has {message} bytes, and its receive {room}, as captured by the two ranks; \
                     capture sends and receives of one tag in the same order"
                );
                Err(Error::new(CAPTURE, Kind::Truncated, what).with_limit(room, "bytes"))
            }
            _ => Ok(()),
        }
    }

    /// Notes that the message of a circuit is captured, and keeps its memory.
    pub fn capture(&mut self, id: CircuitId, memory: Option<Memory>) {
        if let Some(circuit) = self.all.get_mut(&id)
            && circuit.captured.replace(memory).is_none()
        {
            self.ahead -= 1;
        }
    }

    /// Makes an end, with rooms for messages of `len` bytes if the peer sends.
    fn make(
        &mut self,
        from: Origin<'_>,
        id: CircuitId,
        captured: Option<u64>,
        len: u64,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        if self.alarm.is_none() {
            self.alarm = Some(Alarm::new(from.paths.gpu())?);
        }
        let most = from.paths.long_message() as u64;
        // A message that is certainly longer goes to the memory of its receive.
        let bytes = match (id.sends, captured) {
            (true, _) => 0,
            (false, None) if len > most => 0,
            (false, _) => len.min(most),
        };
        let memory = memory::make(from, id.sends, bytes)?;
        out.push(Control::Circuit(Box::new(CircuitEnd {
            sends: id.sends,
            tag: id.tag,
            number: id.number,
            len: captured,
            block: vec![memory.record()],
            offset: (memory.offset() + memory::SHARED_AT) as u64,
            bytes,
        })));
        let circuit = Circuit {
            memory,
            bytes,
            theirs: None,
            len: captured,
            captured: None,
        };
        self.all.insert(id, circuit);
        self.ahead += 1;
        Ok(())
    }

    /// Handles the peer's end of a circuit: makes the own one, if there is none.
    ///
    /// # Errors
    /// `Protocol` if the peer names it twice, names other memory, or makes too many; those of the memory.
    pub fn peer_made(
        &mut self,
        from: Origin<'_>,
        end: &CircuitEnd,
        out: &mut Vec<Control>,
    ) -> Result<()> {
        let id = CircuitId {
            sends: !end.sends,
            tag: end.tag,
            number: end.number,
        };
        let protocol = |what: String| Err(Error::new("open circuit", Kind::Protocol, what));
        let len = memory::shared_len(end.sends, end.bytes);
        let remote = Remote::any(Path::Ipc, &end.block)?;
        let region = remote
            .copy_key()
            .and_then(|key| from.paths.copier().region(key));
        let Some(region) = region else {
            return protocol("the peer named memory that is not mapped".to_owned());
        };
        let inside = len.and_then(|len| Some(end.offset.checked_add(len)? <= remote.len()));
        if inside != Some(true) || remote.addr().wrapping_add(end.offset) % 16 != 0 {
            return protocol("the peer named memory that a circuit does not fit in".to_owned());
        }
        let theirs = Theirs {
            region,
            addr: remote.addr() + end.offset,
            bytes: end.bytes,
            len: end.len,
        };
        if !self.all.contains_key(&id) {
            if self.ahead >= AHEAD {
                let what =
                    "the peer has captured too many messages that this rank has not captured";
                let error = Error::new("open circuit", Kind::Protocol, what);
                return Err(error.with_limit(AHEAD, "messages"));
            }
            // An answer without a length has a question.
            let Some(len) = end.len else {
                return protocol("the peer answered for a message that is not captured".to_owned());
            };
            self.make(from, id, None, len, out)?;
        }
        match self.all.get_mut(&id).map(|circuit| &mut circuit.theirs) {
            Some(slot @ None) => {
                *slot = Some(theirs);
                Ok(())
            }
            _ => protocol("the peer named its end of a circuit twice".to_owned()),
        }
    }

    /// Ends the waits of kernels: the peer was given up.
    pub fn fail(&self, status: Status) {
        for circuit in self.all.values() {
            if let Err(e) = memory::set_lost(&circuit.memory, status) {
                tracing::debug!(target: "mp", "kernels do not find the peer lost at once: {e}");
            }
        }
        if let Some(alarm) = &self.alarm {
            alarm.stop(status);
        }
    }
}
