//! What the kernels take: structures with the layout that the sources in `device/` assert too.
//! Addresses are those of the GPU, aligned to the word that they name unless said otherwise.

/// The most segments that [`Unpack`] has.
pub(crate) const SEGMENTS: usize = 30;

/// The most work requests that [`Stamp`] completes.
pub(crate) const STAMPS: usize = 16;

/// A piece of a receive's memory, of any alignment and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Segment {
    /// Where it begins.
    pub addr: u64,
    /// Its bytes.
    pub len: u64,
}

/// The receiver's half of a message, run behind the wait for its word or waiting for it: scatters the payload over
/// the segments, tells the sender, ends the request.
///
/// The request ends with SUCCESS and the length; with TRUNCATED and the length if the message is
/// longer than the receive, and nothing is copied; with the status that the peer gave up with;
/// with BAD_RESPONSE if the word makes no sense. A length of 0 goes with the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Unpack<const N: usize> {
    /// The message's word, of 64 bits.
    pub word: u64,
    /// The payload of an EAGER message: `slot` bytes of any alignment.
    pub payload: u64,
    /// The 64-bit word that tells the sender: TAKEN, TOO_LONG, or FAILED with the status. Stored when
    /// the payload has been copied.
    pub consumed: u64,
    /// The request's result, of 64 bits, status << 48 | length. Stored when the payload has been
    /// copied; of a failure the last to be stored.
    pub result: u64,
    /// A 32-bit word where the first failure stays, or 0.
    pub error: u64,
    /// Bytes of the receive: of all segments together.
    pub capacity: u64,
    /// Where a DIRECT message was written, `capacity` bytes of any alignment, if not where it
    /// belongs; or 0.
    pub staging: u64,
    /// Bytes of the slot.
    pub slot: u32,
    /// The message's number; its low 16 bits are compared.
    pub seq: u32,
    /// Segments in use, from the first.
    pub segments: u32,
    /// 1: the word is waited for; 0: it has arrived when this runs.
    pub waits: u32,
    /// The segments, filled in order.
    pub segment: [Segment; N],
}

/// Where fields of a prepared work request are, big-endian as the NIC reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Patch {
    /// The 32-bit word with the opcode. Without anything to send the request becomes a NOP.
    pub control: u64,
    /// The remote address (64 bits), or 0. Written only if there is a `ready` word.
    pub remote_address: u64,
    /// The remote key (32 bits), or 0. Written only if there is a `ready` word.
    pub remote_key: u64,
    /// The length (32 bits), or 0 if it is not to be changed.
    pub length: u64,
    /// The local address (64 bits), or 0 if it is not to be changed.
    pub address: u64,
}

/// The sender's half of a message whose destination or length only the stream knows, run behind
/// the wait for the receiver's answer: completes the work requests and the stamp, the word that
/// follows the payload.
///
/// If the message cannot be sent the work requests become NOPs, the request ends with a status and
/// the length, and the stamp says TOO_LONG: LOCAL_LENGTH if length and offset lie outside the
/// source, TRUNCATED if the receive is shorter. Where the receiver has refused or failed, or its
/// answer makes no sense, the stamp becomes a NOP too. On success the result stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Stamp<const N: usize> {
    /// The receiver's answer, of 64 bits: it has arrived when this runs. 0: none is needed, the
    /// message is EAGER.
    pub ready: u64,
    /// Where the receiver's memory is told, in the order of the host: its address for the NIC (64
    /// bits), its keys by rail (32 bits each), of which the first is used. Read if `ready` says READY.
    pub info: u64,
    /// Two 64-bit words for the stamp.
    pub stamp: u64,
    /// The 64-bit word with the length, or 0: it is `size`.
    pub length: u64,
    /// The 64-bit word with the offset in the source, or 0: it is 0.
    pub offset: u64,
    /// Bytes of the source: the greatest length.
    pub size: u64,
    /// The source's address for the NIC.
    pub source: u64,
    /// The request's result, of 64 bits, as [`Unpack::result`]; stored only for a failure.
    pub result: u64,
    /// A 32-bit word where the first failure stays, or 0.
    pub error: u64,
    /// The 32-bit word with the opcode of the work request that sends the stamp.
    pub stamp_control: u64,
    /// Bytes of each work request but the last.
    pub chunk: u64,
    /// Work requests in use, from the first: they hold `size` bytes together.
    pub chunks: u32,
    /// The message's number, of which the low 16 bits count.
    pub seq: u32,
    /// The work requests.
    pub patch: [Patch; N],
}

/// The most puts that [`Puts`] has.
pub(crate) const PUTS: usize = 4;

/// Puts of a rank to itself, by records that `path::local` writes: carried out in their order,
/// unless a record's opcode has become that of a NOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Puts<const N: usize> {
    /// A 32-bit word: nothing is put if it is not 0.
    pub failed: u64,
    /// The 64-bit word that comes to `serial` when all is put, or 0.
    pub done: u64,
    /// See `done`.
    pub serial: u64,
    /// Records in use, from the first.
    pub count: u32,
    /// By bit: the record puts 64-bit words, each as a whole and all behind what was put before.
    pub words: u32,
    /// The records.
    pub record: [u64; N],
}

/// A structure as it lies in memory; the sizes repeat what the sources assert.
macro_rules! layout {
    ($($name:ident { $head:literal + $element:literal * N }),*) => {$(
        impl<const N: usize> $name<N> {
            const PACKED: () = assert!(
                size_of::<Self>() == $head + $element * N && align_of::<Self>() == 8
            );

            /// Its bytes.
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

impl Stamp<STAMPS> {
    /// The same for a message of at most one work request.
    pub fn first(&self) -> &Stamp<1> {
        // SAFETY: both are repr(C), and differ in how many elements their last field has, so that
        // the smaller is a prefix of the greater.
        unsafe { &*(&raw const *self).cast() }
    }
}

layout!(Unpack { 72 + 16 * N }, Stamp { 96 + 40 * N }, Puts { 32 + 8 * N });

const _: () = assert!(size_of::<Unpack<1>>() == 88 && size_of::<Unpack<SEGMENTS>>() == 552);
const _: () = assert!(size_of::<Puts<PUTS>>() == 64);
const _: () = assert!(size_of::<Stamp<1>>() == 136 && size_of::<Stamp<STAMPS>>() == 736);
