//! The parameters of the kernels: structures whose layout the sources in `device/` assert too.
//! Addresses are GPU addresses, aligned to the word that they name unless the field says otherwise.

use zerocopy::{Immutable, IntoBytes};

/// Maximum number of segments of [`Unpack`].
pub(crate) const SEGMENTS: usize = 30;

/// Maximum number of work requests for one message's payload.
pub(crate) const MOST_CHUNKS: usize = 16;

/// A piece of a receive's memory, of any alignment and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Segment {
    /// The address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The parameters of the receiver's kernel. It runs after the wait for the message's word, or polls
/// for the word. It scatters the payload over the segments, acknowledges the message to the sender
/// and ends the request.
///
/// The request ends with SUCCESS and the length; with TRUNCATED and the length if the message is
/// longer than the receive, and nothing is copied; with the status with which the peer gave up; or
/// with BAD_RESPONSE if the word is invalid. The length is 0 in the last two cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Unpack<const N: usize> {
    /// The message's word, of 64 bits.
    pub word: u64,
    /// The payload of an EAGER message: `slot` bytes of any alignment; see `waits`.
    pub payload: u64,
    /// Without `ended`: the address of the 64-bit word that acknowledges the message: TAKEN, TOO_LONG, or FAILED
    /// with the status. Stored when the payload has been copied. With `ended`: the value of the word at `credit`
    /// before, or [`UNKNOWN`].
    pub consumed: u64,
    /// The request's result, of 64 bits, status << 48 | length. Stored when the payload has been
    /// copied; for a failure it is stored last.
    pub result: u64,
    /// A 32-bit word that keeps the first failure, or 0.
    pub error: u64,
    /// Bytes of the receive: the sum of all segments.
    pub capacity: u64,
    /// The address of a DIRECT message that was staged, `capacity` bytes of any alignment; or 0 if
    /// it was written to the segments.
    pub staging: u64,
    /// The flagged room of the message; or 0.
    pub flagged: u64,
    /// The room for longer messages: lines for `long_len` bytes; or 0.
    pub long_room: u64,
    /// See `long_room`.
    pub long_len: u64,
    /// A 64-bit word in device memory, which kernels of the sender read: set to the credit for `number`
    /// ([`word::credit`](crate::wire::word::credit)) once the payload was read; or 0. With `ended`, this word is
    /// the credit of the message, else that at `consumed`. Not 0 if `ended` and `flagged` are not.
    pub credit: u64,
    /// Two 64-bit words in device memory, or 0. The second one gets the request's result, and behind it the
    /// first one gets `value`, to which the length is added, unless the first block found the receive failed. A
    /// success is stored here alone; a failure is stored in `result` first, and nothing in `consumed`.
    pub ended: u64,
    /// See `ended`, and [`word::ended`](crate::wire::word::ended).
    pub value: u64,
    /// The value of the first word at `ended` before, or [`UNKNOWN`].
    pub before: u64,
    /// A 32-bit word in device memory that counts the shares that are done: 0 before and after. Not used by
    /// the kernel of the usual message, or if one block takes all shares.
    pub count: u64,
    /// A 64-bit word, or 0. The kernel stores `marked` there when the earlier work of the stream
    /// has ended, before it waits. Only the kernel of the usual message does.
    pub mark: u64,
    /// See `mark`.
    pub marked: u64,
    /// Bytes of the slot.
    pub slot: u32,
    /// The shares into which a long message is divided, at least 1. Blocks of the launch take them in turn.
    pub shares: u32,
    /// Segments in use, from the first.
    pub segments: u32,
    /// [`POLLS`]: the kernel polls for the word, and for the message in the flagged room; without it,
    /// the word has arrived when the kernel runs. [`LATER`]: `payload` is the address of a word with
    /// the address of the payload, or with 0, which no EAGER message has. [`IN_HOST`]: a segment is in
    /// host memory.
    pub waits: u32,
    /// The message's number; its low 16 bits are compared with those of `word`.
    pub number: u64,
    /// The segments, filled in order.
    pub segment: [Segment; N],
}

impl<const N: usize> Unpack<N> {
    /// Whether the kernel for the usual message takes it in: its receive has at most one segment, and ends
    /// in device memory.
    pub fn is_usual(&self) -> bool {
        let polls = self.waits & POLLS != 0 && self.flagged != 0;
        polls && self.segments <= 1 && self.ended != 0
    }
}

/// See [`Unpack::consumed`] and [`Unpack::before`].
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Bits of [`Unpack::waits`].
pub(crate) const POLLS: u32 = 1;
pub(crate) const LATER: u32 = 2;
pub(crate) const IN_HOST: u32 = 4;

/// The addresses of the fields of a prepared work request, big-endian as the NIC reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Patch {
    /// The 32-bit word with the opcode. Without bytes to send, the request becomes a NOP.
    pub control: u64,
    /// The remote address (64 bits), or 0. Written only if there is a `ready` word.
    pub remote_address: u64,
    /// The remote key (32 bits), or 0. Written only if there is a `ready` word.
    pub remote_key: u64,
    /// The length (32 bits), or 0 if it stays unchanged.
    pub length: u64,
    /// The local address (64 bits), or 0 if it stays unchanged.
    pub address: u64,
}

/// The parameters of the sender's kernel, for a message whose destination or length is known only
/// when the stream reaches it. It runs after the wait for the receiver's answer, and completes the
/// work requests and the stamp, which is the word after the payload.
///
/// If the message cannot be sent, the work requests become NOPs, the request ends with a status and
/// the length, and the stamp is TOO_LONG: LOCAL_LENGTH if length and offset exceed the source,
/// TRUNCATED if the receive is shorter. If the receiver has refused or failed, or its answer is
/// invalid, the stamp becomes a NOP too, and its words stay unchanged: a later message may be using
/// them. On success the result stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Stamp<const N: usize> {
    /// The receiver's answer, of 64 bits: it has arrived when the kernel runs. 0: the message is
    /// EAGER and needs no answer.
    pub ready: u64,
    /// The address of the receiver's place, in the byte order of the host: its address for the NIC
    /// (64 bits), its keys by rail (32 bits each), of which the first is used. Read if `ready` is
    /// READY.
    pub info: u64,
    /// Two 64-bit words for the stamp.
    pub stamp: u64,
    /// The 64-bit word with the length, or 0: the length is `size`.
    pub length: u64,
    /// The 64-bit word with the offset in the source, or 0: the offset is 0.
    pub offset: u64,
    /// Bytes of the source: the greatest length.
    pub size: u64,
    /// The source's address for the NIC.
    pub source: u64,
    /// The request's result, of 64 bits, as [`Unpack::result`]; stored only for a failure.
    pub result: u64,
    /// A 32-bit word that keeps the first failure, or 0.
    pub error: u64,
    /// The 32-bit word with the opcode of the work request that sends the stamp.
    pub stamp_control: u64,
    /// Bytes of each work request except the last.
    pub chunk: u64,
    /// Work requests in use, from the first: together they have `size` bytes.
    pub chunks: u32,
    /// The message's number; its low 16 bits are used.
    pub seq: u32,
    /// The work requests.
    pub patch: [Patch; N],
}

/// What the kernel of a sender waits for before it uses a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Credit {
    /// A 64-bit word in device memory of the receiver that a kernel there sets to the credit for the
    /// message that it has taken in the slot; or 0. It is one of 16 words, at an address that is a multiple
    /// of their bytes.
    pub credit: u64,
    /// The word of this slot among 16 in device memory of this rank, likewise aligned, in which the kernels
    /// keep what they read at `credit`; or 0.
    pub known: u64,
    /// A word of the wire format in host memory that the receiver sets likewise, in runs; or 0: the
    /// slot is free. The kernel waits until one of both words has reached `before`.
    pub taken: u64,
    /// The number of the message before in the slot; `taken` has its low 16 bits.
    pub before: u64,
}

/// The parameters of the kernel that writes a message into a flagged room of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Flag {
    /// What the kernel waits for. If `taken` then has the failure of a lost peer, the kernel does
    /// nothing.
    pub slot: Credit,
    /// A 64-bit word in device memory, to which each share adds 1 when its part of the payload was read.
    pub report: u64,
    /// The payload: `len` bytes of any alignment.
    pub from: u64,
    /// The room: two lines of 8 bytes, and, without `long_room`, as many as `len` needs.
    pub room: u64,
    /// The room for longer messages: as many lines as `len` needs; or 0.
    pub long_room: u64,
    /// Bytes of the message.
    pub len: u64,
    /// The lines of the payload that are written, if they are more than `len` needs.
    pub lines: u64,
    /// The message's number.
    pub number: u64,
    /// The shares into which the message is divided, at least 1. Blocks of the launch take them in turn.
    pub shares: u64,
}

impl Flag {
    /// Bytes of a share of a message in a long room, at least.
    const SHARE: u64 = 4 << 10;
    /// Maximum number of shares: two kernels of a stream that wait leave half of the GPU to others.
    const MOST_SHARES: u64 = 32;

    /// The shares of a message of `len` bytes in a long room.
    pub fn shares_of(len: u64) -> u32 {
        len.div_ceil(Flag::SHARE).clamp(1, Flag::MOST_SHARES) as u32
    }
}

/// The parameters of the kernel that writes a message into the memory of its receive. It waits for the
/// address of this memory, and copies. A flagged room shows the message.
///
/// If the message cannot be sent, the request ends as for [`Stamp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Direct {
    /// What the kernel waits for before it announces the message, if the receive is not posted.
    pub slot: Credit,
    /// Six lines in device memory, in which a kernel of the receiver names the memory of the receive:
    /// the halves of its address and of its length, the high half of the number, and its key.
    pub place: u64,
    /// Six lines in device memory for the blocks of the launch: the first one stores what `ready` answers.
    pub found: u64,
    /// The receiver's answer, of 64 bits in host memory: the kernel waits for it or for the lines.
    pub ready: u64,
    /// The receiver's place, as [`Stamp::info`].
    pub info: u64,
    /// A 64-bit word in device memory: the status with which the peer was given up, whose memory the
    /// kernel then leaves alone; or 0.
    pub lost: u64,
    /// The payload: `len` bytes of any alignment.
    pub from: u64,
    /// See `from`.
    pub len: u64,
    /// The flagged room: two lines of the head, two of the length, one for each share, and those of
    /// `lines`.
    pub room: u64,
    /// As [`Flag::lines`], behind those that show the shares.
    pub lines: u64,
    /// The lines of the payload that the room has.
    pub room_lines: u64,
    /// The two 64-bit words of the message in host memory: for the announcement, and if the message is
    /// longer than its receive.
    pub pair: u64,
    /// The request's result, of 64 bits, as [`Unpack::result`]; stored only for a failure.
    pub result: u64,
    /// A 32-bit word that keeps the first failure, or 0.
    pub error: u64,
    /// A 64-bit word in device memory, to which each share adds 1 at its end, with or without a failure.
    pub report: u64,
    /// The message's number.
    pub number: u64,
    /// As [`Flag::shares`].
    pub shares: u64,
}

/// The parameters of the kernel that names the memory of a receive to kernels of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Name {
    /// As [`Direct::place`], in memory of the peer.
    pub place: u64,
    /// The memory, as the sender addresses it.
    pub to: u64,
    /// Bytes of the memory.
    pub len: u64,
    /// Its key at the sender.
    pub key: u64,
    /// A 64-bit word in device memory: not 0 if the peer was given up, to which nothing is named then.
    pub lost: u64,
    /// The message's number.
    pub number: u64,
    /// A 64-bit word in device memory, to which 1 is added at the end.
    pub report: u64,
}

/// The parameters of the kernel that waits for the credit of a message, in front of its puts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Await {
    /// What it waits for.
    pub slot: Credit,
    /// A 64-bit word in device memory, to which 1 is added at the end.
    pub report: u64,
}

/// The parameters of the kernel that waits until a receive is named, and stores the name in host memory,
/// for kernels that find it there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Relay {
    /// As [`Direct::place`].
    pub place: u64,
    /// As [`Direct::ready`]: the kernel waits for it too, and stores it.
    pub ready: u64,
    /// As [`Direct::info`].
    pub info: u64,
    /// The message's number.
    pub number: u64,
    /// A 64-bit word in device memory, to which 1 is added at the end.
    pub report: u64,
}

/// The own end of a circuit, as the kernels of messages in graphs use it (`device/mp_replay.cu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct End {
    /// Four 64-bit words in device memory: the number of the message of the next replay, a count of
    /// shares (0 before and after a kernel), the result of the last message as [`Unpack::result`], and the
    /// status with which the peer was given up, or 0.
    pub words: u64,
    /// Three 64-bit words in host memory: the status with which the library has given the peer up, or 0;
    /// set to 1 by a kernel that has waited too long; set to 1 by a kernel that ends without its message.
    pub alarm: u64,
    /// A 32-bit word that keeps the first failure.
    pub error: u64,
    /// Nanoseconds after which a kernel has waited too long; 0: never.
    pub limit: u64,
    /// As [`Flag::shares`].
    pub shares: u64,
}

/// The rooms of a circuit. A message is in the room of the slot with its number, modulo `slots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Rooms {
    /// The first room: two lines of the head, then those of the payload; or, of a message in the memory of
    /// its receive, two of the length, and one for each share.
    pub first: u64,
    /// The bytes from a room to the next.
    pub stride: u64,
    /// A power of two.
    pub slots: u64,
}

/// The parameters of the kernel that writes the message of a replay into a room of a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReplayWrite {
    pub end: End,
    /// A 64-bit word in device memory that a kernel of the receiver sets to the number of the message
    /// that it has taken. The kernel waits for the message before in the slot.
    pub credit: u64,
    /// The payload: `len` bytes of any alignment.
    pub from: u64,
    /// See `from`.
    pub len: u64,
    /// In memory of the receiver.
    pub rooms: Rooms,
}

/// The parameters of the kernel that shows the memory of a captured receive to the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReplayPlace {
    pub end: End,
    /// Two lines in device memory of the sender, for the halves of the address.
    pub place: u64,
    /// The address of the memory at the sender.
    pub to: u64,
}

/// The parameters of the kernel that writes the message of a replay into the memory of its receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReplayCopy {
    pub end: End,
    /// As [`ReplayPlace::place`]: the kernel waits for it.
    pub place: u64,
    /// The payload: `len` bytes of any alignment.
    pub from: u64,
    /// See `from`.
    pub len: u64,
    /// In memory of the receiver.
    pub rooms: Rooms,
}

/// The parameters of the kernel that takes in the message of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReplayTake {
    pub end: End,
    /// In own memory.
    pub rooms: Rooms,
    /// Bytes of payload for which a room has lines.
    pub bytes: u64,
    /// The memory of the receive: `capacity` bytes of any alignment.
    pub to: u64,
    /// See `to`.
    pub capacity: u64,
    /// As [`ReplayWrite::credit`], in memory of the sender.
    pub credit: u64,
}

/// Maximum number of puts of [`Puts`].
pub(crate) const PUTS: usize = 4;

/// The parameters of the kernel that executes puts by copies. `path::copy` writes the
/// WQEs; the kernel executes them in order, except WQEs whose opcode has become a NOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Puts<const N: usize> {
    /// A 32-bit word: no put is executed if it is not 0.
    pub failed: u64,
    /// The 64-bit word that is set to `serial` when all puts are done, or 0.
    pub done: u64,
    /// See `done`.
    pub serial: u64,
    /// WQEs in use, from the first.
    pub count: u32,
    /// One bit for each WQE: the WQE puts 64-bit words, each atomically and all after the earlier
    /// puts.
    pub words: u32,
    /// The WQEs.
    pub wqe: [u64; N],
}

/// The parameters of the kernel that copies pieces of one length at equal distances: a send gathers
/// them, a receive scatters to them. All addresses, except those of words, have any alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Pieces {
    /// The address of the first piece.
    pub first: u64,
    /// The address of the packed bytes.
    pub packed: u64,
    /// Bytes of all pieces, at most 2^30.
    pub len: u64,
    /// Bytes of a piece, at least 1.
    pub block: u64,
    /// Bytes from a piece to the next of its row.
    pub row: u64,
    /// Bytes from a row to the next.
    pub plane: u64,
    /// The 64-bit word, as [`Unpack::result`], with which the message ended, for a receive. Bytes
    /// are scattered, as many as the message has, if it is a SUCCESS. 0: the pieces are gathered.
    pub arrival: u64,
    /// The request's result, for a receive: `arrival` is stored there when the bytes are in place;
    /// or 0.
    pub result: u64,
    /// Pieces of a row, at least 1.
    pub rows: u32,
    /// In a table of [`Moves`]: 1 if bytes are scattered, 0 if pieces are gathered. Else 0.
    pub scatters: u32,
}

/// The parameters of the kernel that executes a table of [`Pieces`], in any order. Their fields
/// `arrival` and `result` are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Moves {
    /// The address of the table.
    pub table: u64,
    /// Its number of entries.
    pub count: u32,
    /// Blocks that share an entry, at least 1: the launch has a multiple of it.
    pub blocks: u32,
}

/// An entry of the table of [`ReadyWords`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReadyWord {
    /// As [`StepPart::closed`].
    pub closed: u64,
    /// The rank's word.
    pub to: u64,
}

/// The parameters of the kernel that stores the ready words of a step at ranks whose memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ReadyWords {
    /// The address of the table of [`ReadyWord`].
    pub table: u64,
    /// The number of the step.
    pub step: u64,
    /// The number of entries.
    pub count: u32,
    pub reserved: u32,
}

/// An entry of the table of [`StepParts`]: the data that one rank is sent, or has sent, in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct StepPart {
    /// The 64-bit word of this rank for which the part waits; 0: none.
    pub word: u64,
    /// A 64-bit word that is not 0 if the rank was given up: the part writes nothing to it. A part does not wait if it
    /// is 2.
    pub closed: u64,
    /// A [`StepGate`] in device memory of this rank.
    pub gate: u64,
    /// A 64-bit word of the rank that is set to the number of the step behind the data; 0: none.
    pub arrived: u64,
    /// A 64-bit word of this rank that is set to the same number then.
    pub left: u64,
    /// The address of its [`Pieces`], whose fields `arrival` and `result` are 0.
    pub pieces: u64,
    /// Number of pieces.
    pub count: u32,
    /// Shares that divide a piece among them, at least 1.
    pub split: u32,
    /// Number of shares, a multiple of `split`, at least 1.
    pub shares: u32,
    pub reserved: u32,
}

/// Words by which the blocks of a part agree, 0 before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct StepGate {
    /// Twice the number of the last step for which the first block has waited, plus 1 if the rank was
    /// given up.
    pub open: u64,
    /// Counts the shares that are done, less all of them for the first block: 0 at the end.
    pub ended: u32,
    pub reserved: u32,
}

/// The parameters of the kernel that executes the data of a step with ranks whose memory is mapped: it
/// waits for a word of each, and copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct StepParts {
    /// The address of the table of [`StepPart`].
    pub table: u64,
    /// The number of the step.
    pub step: u64,
    /// The value that the words reach, cyclically.
    pub awaited: u64,
    /// A 64-bit word that is set to the number of the step when all parts have ended.
    pub passed: u64,
    /// A 32-bit word in device memory, as [`StepGate::ended`] for all parts.
    pub ended: u64,
    /// The number of entries.
    pub count: u32,
    /// The shares of all parts.
    pub shares: u32,
}

/// The parameters of the kernel that executes a whole step with ranks whose memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct WholeStep {
    /// Stored by the first block.
    pub ready: ReadyWords,
    /// The data that is sent. The kernel counts the shares of both halves in its word `ended`, and sets its word
    /// `passed`.
    pub send: StepParts,
    /// The data that is received: no piece of it overlaps one that is sent. Its words `ended` and `passed` are not
    /// used.
    pub receive: StepParts,
}

/// The bytes of a structure; the sizes repeat the assertions of the sources.
macro_rules! layout {
    ($($name:ident { $head:literal + $element:literal * N }),*) => {$(
        impl<const N: usize> $name<N> {
            const PACKED: () = assert!(
                size_of::<Self>() == $head + $element * N && align_of::<Self>() == 8
            );

            /// The bytes of the structure.
            #[inline]
            pub fn bytes(&self) -> &[u8] {
                const { Self::PACKED };
                // SAFETY: the structure is repr(C) without padding (its size, asserted above, is
                // the sum of its fields') and initialised; a byte has no alignment or validity
                // requirement.
                unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
            }
        }
    )*};
}

impl Stamp<MOST_CHUNKS> {
    /// The same parameters for a message of at most one work request.
    pub fn first(&self) -> &Stamp<1> {
        // SAFETY: both are repr(C), and differ only in the number of elements of their last field,
        // so the smaller is a prefix of the larger.
        unsafe { &*(&raw const *self).cast() }
    }
}

impl Unpack<SEGMENTS> {
    /// The same parameters for a message of at most one segment.
    pub fn first(&self) -> &Unpack<1> {
        // SAFETY: as for `Stamp::first`.
        unsafe { &*(&raw const *self).cast() }
    }
}

impl Direct {
    /// Lines of the payload that have the length.
    const LENGTH_LINES: u64 = 2;
    /// Bytes of a share, at least.
    const SHARE: u64 = 8 << 10;
    /// Maximum number of shares.
    pub const MOST_SHARES: u64 = 48;
    /// The same of a message that is shorter than `LONG`: more blocks are not faster on NVLink.
    const USUAL_SHARES: u64 = 32;
    const LONG: u64 = 8 << 20;

    /// The shares of a message of `len` bytes, of which a room of so many lines shows each.
    pub fn shares_of(len: u64, room_lines: u64) -> u32 {
        let shown = room_lines.saturating_sub(Direct::LENGTH_LINES).max(1);
        let most = match len < Direct::LONG {
            true => Direct::USUAL_SHARES,
            false => Direct::MOST_SHARES,
        };
        len.div_ceil(Direct::SHARE).clamp(1, most.min(shown)) as u32
    }
}

layout!(Unpack { 160 + 16 * N }, Stamp { 96 + 40 * N }, Puts { 32 + 8 * N });

const _: () = assert!(size_of::<Unpack<1>>() == 176 && size_of::<Unpack<SEGMENTS>>() == 640);
const _: () = assert!(size_of::<Puts<PUTS>>() == 64);
const _: () = assert!(size_of::<Flag>() == 96 && align_of::<Flag>() == 8);
const _: () = assert!(Flag::MOST_SHARES < 1 << crate::wire::word::COUNT_BITS);
const _: () = assert!(size_of::<Direct>() == 160 && align_of::<Direct>() == 8);
const _: () =
    assert!(size_of::<Name>() == 56 && size_of::<Relay>() == 40 && size_of::<Await>() == 40);
const _: () = assert!(size_of::<ReplayWrite>() == 88 && size_of::<ReplayPlace>() == 56);
const _: () = assert!(size_of::<ReplayCopy>() == 88 && size_of::<ReplayTake>() == 96);
const _: () = assert!(size_of::<Pieces>() == 72 && align_of::<Pieces>() == 8);
const _: () = assert!(size_of::<Moves>() == 16 && align_of::<Moves>() == 8);
const _: () = assert!(size_of::<ReadyWord>() == 16 && size_of::<ReadyWords>() == 24);
const _: () = assert!(size_of::<StepPart>() == 64 && size_of::<StepGate>() == 16);
const _: () = assert!(size_of::<StepParts>() == 48 && align_of::<StepParts>() == 8);
const _: () = assert!(size_of::<WholeStep>() == 120 && align_of::<WholeStep>() == 8);
const _: () = assert!(size_of::<Stamp<1>>() == 136 && size_of::<Stamp<MOST_CHUNKS>>() == 736);
